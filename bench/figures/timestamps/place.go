package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/lab/topology"
)

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

// open a connection of Multipath TCP over a path that loses nothing, until its server has
// named itself.
func (p *place) open(ctx context.Context) (net.Conn, error) {
	dialer := net.Dialer{Timeout: 10 * time.Second}
	dialer.SetMultipathTCP(true)
	connection, err := topology.DialInside(ctx, p.client.Namespace(), dialer, "tcp", netip.AddrPortFrom(topology.EchoVIPs[0], topology.EchoPort).String())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.name, err)
	}
	if is, err := connection.(*net.TCPConn).MultipathTCP(); err != nil || !is {
		return nil, errors.Join(fmt.Errorf("%s: the connection is one of Multipath TCP: %v, %w", p.name, is, err), connection.Close())
	}
	if err := connection.SetDeadline(time.Now().Add(dialer.Timeout)); err != nil {
		return nil, errors.Join(err, connection.Close())
	}
	for one := []byte{0}; one[0] != '\n'; {
		if _, err := connection.Read(one); err != nil {
			return nil, errors.Join(fmt.Errorf("%s: the server's name: %w", p.name, err), connection.Close())
		}
	}
	return connection, nil
}

// rate at which bytes come back, in Mbit/s, after a warm-up.
func rate(connection net.Conn, warmUp, while time.Duration) (float64, error) {
	if err := connection.SetDeadline(time.Now().Add(warmUp + while)); err != nil {
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
		return 0, fmt.Errorf("the connection broke: %w", err)
	}
	return float64(came.Load()-before) * 8 / while.Seconds() / 1e6, nil
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
