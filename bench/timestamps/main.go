// Timestamps measures whether thirteen bits in a server's timestamps cost throughput
// (the MPLB paper's "timestamp evaluation"): one connection of Multipath TCP over one
// path, through a load balancer, with and without them, at delays of 1 to 500 ms and
// losses of 0.01 to 5 %. Both kinds take turns, each in a lab of its own. As root:
//
//	make build && go run ./bench/timestamps
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/lab/topology"
)

type settings struct {
	delays, losses []float64
	rounds         int
	while          time.Duration
	algorithm      string
	bin            string
}

func main() {
	log.SetFlags(0)
	s := settings{}
	delays := flag.String("delays", "1,10,50,100,200,500", "round-trip times in ms, with commas between")
	losses := flag.String("losses", "0.01,0.1,1,5", "losses in per cent of the frames of each direction, with commas between")
	flag.IntVar(&s.rounds, "rounds", 3, "measurements of each kind")
	flag.DurationVar(&s.while, "while", 4*time.Second, "time of a measurement, behind a warm-up of 1 s and eight round trips")
	flag.StringVar(&s.algorithm, "tcp", "reno", "TCP's algorithm at both ends, one of net.ipv4.tcp_allowed_congestion_control")
	flag.StringVar(&s.bin, "bin", "bin", "directory of the programs")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if s.delays, err = numbers(*delays, 0.1, 5000); err != nil {
		log.Fatalf("-delays: %v", err)
	}
	if s.losses, err = numbers(*losses, 0, 50); err != nil {
		log.Fatalf("-losses: %v", err)
	}
	if s.rounds < 1 || s.while <= 0 {
		log.Fatal("-rounds, -while: give at least one measurement and some time")
	}
	if err := run(ctx, s); err != nil {
		log.Fatal(err)
	}
}

func numbers(text string, from, to float64) (list []float64, err error) {
	for word := range strings.SplitSeq(text, ",") {
		n, err := strconv.ParseFloat(word, 64)
		if err != nil || n < from || n > to {
			return nil, fmt.Errorf("%q: give numbers from %v to %v", word, from, to)
		}
		list = append(list, n)
	}
	return list, nil
}

// run all measurements, and print a line for each delay and loss.
func run(ctx context.Context, s settings) (err error) {
	var places [2]*place
	for i, name := range []string{"plain", "thirteen-bits"} {
		if places[i], err = build(ctx, s, name, i == 1); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, places[i].remove()) }()
	}
	fmt.Printf("one connection, echoed, %s; Mbit/s, median of %d (least to most); load before: %s\n", s.algorithm, s.rounds, load())
	fmt.Printf("%8s %7s   %-24s %-24s %s\n", "rtt ms", "loss %", "without", "with thirteen bits", "ratio")
	for _, delay := range s.delays {
		for _, loss := range s.losses {
			var rates [2][]float64
			for range s.rounds {
				for i, p := range places {
					rate, err := p.measure(ctx, s, time.Duration(delay*float64(time.Millisecond)), loss/100)
					if err != nil {
						return err
					}
					rates[i] = append(rates[i], rate)
				}
			}
			fmt.Printf("%8v %7v   %-24s %-24s %.2f\n", delay, loss, shown(rates[0]), shown(rates[1]), median(rates[1])/median(rates[0]))
		}
	}
	for _, p := range places {
		if err := p.printKernel(); err != nil {
			return err
		}
	}
	return nil
}

func load() string {
	text, _ := os.ReadFile("/proc/loadavg")
	fields := strings.Fields(string(text))
	return strings.Join(fields[:min(3, len(fields))], " ")
}

func shown(rates []float64) string {
	return fmt.Sprintf("%.2f (%.2f to %.2f)", median(rates), slices.Min(rates), slices.Max(rates))
}

func median(rates []float64) float64 {
	sorted := slices.Sorted(slices.Values(rates))
	return sorted[len(sorted)/2]
}

// place is a lab with a client behind a delay line.
type place struct {
	name    string
	running *hosts.Lab
	client  *topology.Host
	line    *topology.DelayLine
}

func build(ctx context.Context, s settings, name string, bits bool) (_ *place, err error) {
	bin, err := filepath.Abs(s.bin)
	if err != nil {
		return nil, err
	}
	o := topology.Options{Name: "timestamps-" + name, BinDir: bin, LoadBalancers: 1, Backends: 2}
	o.Encap, o.Stateless, o.Multipath = "geneve", true, bits
	p := &place{name: name}
	if p.running, err = hosts.Up(ctx, o, true); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.remove())
		}
	}()
	if p.client, err = p.running.Network.AddHost(ctx, 1); err != nil {
		return nil, err
	}
	namespace, interfaces, err := p.client.Cut(ctx)
	if err != nil {
		return nil, err
	}
	p.line, err = topology.OpenDelayLine(namespace, interfaces)
	if err != nil {
		return nil, err
	}
	ends := []string{p.client.Namespace()}
	for _, n := range p.running.Network.Backends {
		ends = append(ends, n.Namespace)
	}
	for _, end := range ends {
		if err := topology.SetSysctls(end, []string{"ipv4/tcp_congestion_control=" + s.algorithm}); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (p *place) remove() (err error) {
	if p.line != nil {
		err = p.line.Close()
	}
	if p.client != nil {
		err = errors.Join(err, p.client.Remove(context.Background()))
	}
	return errors.Join(err, p.running.Down())
}

// measure the rate at which bytes come back, in Mbit/s.
func (p *place) measure(ctx context.Context, s settings, rtt time.Duration, loss float64) (float64, error) {
	p.line.Set(rtt/2, 0) // for the handshake, whose repetitions take seconds
	dialer := net.Dialer{Timeout: 10 * time.Second}
	dialer.SetMultipathTCP(true)
	connection, err := topology.DialInside(ctx, p.client.Namespace(), dialer, "tcp", netip.AddrPortFrom(topology.EchoVIPs[0], topology.EchoPort).String())
	if err != nil {
		return 0, fmt.Errorf("%s: %w", p.name, err)
	}
	defer connection.Close()
	if is, err := connection.(*net.TCPConn).MultipathTCP(); err != nil || !is {
		return 0, fmt.Errorf("%s: the connection is one of Multipath TCP: %v, %w", p.name, is, err)
	}
	p.line.Set(rtt/2, loss)
	warmUp := time.Second + 8*rtt
	if err := connection.SetDeadline(time.Now().Add(warmUp + s.while)); err != nil {
		return 0, err
	}
	go func() { _, _ = io.Copy(connection, zeros{}) }() // until the deadline
	var came atomic.Int64
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(counter{&came}, connection)
		ended <- err
	}()
	time.Sleep(warmUp)
	before := came.Load()
	if err := <-ended; !errors.Is(err, os.ErrDeadlineExceeded) {
		return 0, fmt.Errorf("%s: the connection broke at %v and %v %%: %w", p.name, rtt, 100*loss, err)
	}
	return float64(came.Load()-before) * 8 / s.while.Seconds() / 1e6, ctx.Err()
}

// printKernel counters that say whether timestamps were in order.
func (p *place) printKernel() error {
	var paws, refused uint64
	for _, n := range p.running.Network.Backends {
		counters, err := p.running.Network.KernelCounters(n.Name)
		if err != nil {
			return err
		}
		paws, refused = paws+counters["TcpExt.PAWSEstab"], refused+counters["TcpExt.TSEcrRejected"]
	}
	client, err := topology.KernelCounters(p.client.Namespace())
	if err != nil {
		return err
	}
	fmt.Printf("%s: PAWSEstab %d at servers and %d at the client, TSEcrRejected %d\n", p.name, paws, client["TcpExt.PAWSEstab"], refused)
	return nil
}

type zeros struct{}

func (zeros) Read(into []byte) (int, error) { return len(into), nil }

type counter struct{ bytes *atomic.Int64 }

func (c counter) Write(bytes []byte) (int, error) {
	c.bytes.Add(int64(len(bytes)))
	return len(bytes), nil
}
