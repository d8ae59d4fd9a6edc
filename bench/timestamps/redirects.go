package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/guideway/guideway/lab/topology"
)

const (
	connectionsMax = 100 // opened until one is of the kind: half of those without timestamps are
	roundTrips     = 5000
)

// kind of a connection, by how its packets find its backend.
type kind struct {
	name       string
	timestamps bool
	redirected bool
}

var kinds = []kind{
	{"by timestamps", true, false},
	{"without timestamps, at the five-tuple's backend", false, false},
	{"without timestamps, by a redirect rule", false, true},
}

// cost of a connection.
type cost struct {
	mbits []float64
	cpu   []float64 // of the whole machine, in ms per MiB echoed
	trip  []float64 // there and back with 1 byte, in us
}

// compareRedirects prints what connections of each kind cost, which take turns in one lab.
func compareRedirects(ctx context.Context, s settings) (err error) {
	p, err := build(ctx, s, "redirects", true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.remove()) }()
	costs := make([]cost, len(kinds))
	fmt.Println("MPLB, section 3.3: what redirect rules cost, beside timestamps")
	if err := s.printSetting(); err != nil {
		return err
	}
	for range s.rounds {
		for i, k := range kinds {
			if err := p.add(ctx, s.while, k, &costs[i]); err != nil {
				return fmt.Errorf("%s: %w", k.name, err)
			}
		}
	}
	fmt.Printf("%-48s %-24s %-24s %s\n", "", "Mbit/s", "CPU, ms per MiB", "there and back, us")
	for i, k := range kinds {
		c := costs[i]
		fmt.Printf("%-48s %-24s %-24s %s\n", k.name, shown(c.mbits), shown(c.cpu), shown(c.trip))
	}
	return p.printKernel()
}

// add a measurement of a connection of that kind.
func (p *place) add(ctx context.Context, while time.Duration, k kind, c *cost) error {
	connection, err := p.openKind(ctx, k)
	if err != nil {
		return err
	}
	defer connection.Close()
	trips := make([]float64, roundTrips)
	for i := range trips {
		begun := time.Now()
		if err := echo(connection); err != nil {
			return err
		}
		trips[i] = float64(time.Since(begun).Nanoseconds()) / 1000
	}
	before, err := busy()
	if err != nil {
		return err
	}
	mbits, err := rate(connection, 0, while)
	if err != nil {
		return err
	}
	after, err := busy()
	if err != nil {
		return err
	}
	mebibytes := mbits * 1e6 / 8 * while.Seconds() / (1 << 20)
	c.mbits = append(c.mbits, mbits)
	c.cpu = append(c.cpu, 1000*(after-before).Seconds()/mebibytes)
	c.trip = append(c.trip, median(trips))
	return ctx.Err()
}

// openKind opens connections until one is of that kind.
func (p *place) openKind(ctx context.Context, k kind) (net.Conn, error) {
	setting := "ipv4/tcp_timestamps=0"
	if k.timestamps {
		setting = "ipv4/tcp_timestamps=1"
	}
	if err := topology.SetSysctls(p.client.Namespace(), []string{setting}); err != nil {
		return nil, err
	}
	for range connectionsMax {
		connection, err := p.open(ctx)
		if err != nil {
			return nil, err
		}
		is, err := p.isRedirected(ctx, connection)
		if err == nil && is == k.redirected {
			return connection, nil
		}
		if err := errors.Join(err, connection.Close()); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("none of %d connections is", connectionsMax)
}

// isRedirected is true if agents send by rules what the client sends.
func (p *place) isRedirected(ctx context.Context, connection net.Conn) (bool, error) {
	const trips = 10
	if err := echo(connection); err != nil { // so that the handshake is over
		return false, err
	}
	before, err := p.redirected(ctx)
	if err != nil {
		return false, err
	}
	for range trips {
		if err := echo(connection); err != nil {
			return false, err
		}
	}
	after, err := p.redirected(ctx)
	return after-before >= trips, err
}

// redirected packets, of all backends.
func (p *place) redirected(ctx context.Context) (sum float64, err error) {
	for i := range p.running.Network.Backends {
		samples, err := p.running.AgentMetrics(ctx, i)
		if err != nil {
			return 0, err
		}
		sum += samples[`guideway_agent_forwarded_packets_total{reason="redirect_rule"}`]
	}
	return sum, nil
}

// echo a byte.
func echo(connection net.Conn) error {
	sent, got := []byte{1}, []byte{0}
	if err := connection.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	if _, err := connection.Write(sent); err != nil {
		return err
	}
	if _, err := io.ReadFull(connection, got); err != nil {
		return err
	}
	if !bytes.Equal(sent, got) {
		return fmt.Errorf("%v came back for %v", got, sent)
	}
	return nil
}

// busy time of all processors.
func busy() (time.Duration, error) {
	const tick = 10 * time.Millisecond // USER_HZ
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	fields := strings.Fields(line) // cpu user nice system idle iowait irq softirq
	if len(fields) < 8 {
		return 0, fmt.Errorf("/proc/stat: %q", line)
	}
	ticks := 0
	for _, field := range slices.Concat(fields[1:4], fields[6:8]) {
		n, err := strconv.Atoi(field)
		if err != nil {
			return 0, fmt.Errorf("/proc/stat: %w", err)
		}
		ticks += n
	}
	return time.Duration(ticks) * tick, nil
}
