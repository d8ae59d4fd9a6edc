package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/guideway/guideway/lab/traffic/flood"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

const (
	// Each service has one packet in this time, while rates are watched.
	packetEach = time.Second
	// How long processor time is counted; and before that nothing changes.
	watchTime = 10 * time.Second
	// Of one user.
	watchersMax = 8
)

// watch what those who watch rates cost, while every service has packets.
func (b *bench) watch() error {
	if _, err := fmt.Fprintln(b.backendsControl, "flood", b.services); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	began := 0
	for _, watchers := range []int{0, 1, watchersMax} {
		for ; began < watchers; began++ {
			if err := b.watchRates(ctx, uint32(b.services)); err != nil {
				return err
			}
		}
		time.Sleep(watchTime) // let it settle
		of := []*process{b.controller, b.forwarder}
		var used []string
		before := []time.Duration{of[0].processorTime(), of[1].processorTime()}
		time.Sleep(watchTime)
		for i, p := range of {
			used = append(used, ((p.processorTime() - before[i]) / time.Duration(watchTime/time.Second)).Round(100*time.Microsecond).String())
		}
		row(fmt.Sprintf("%d watch: of the controller, the forwarder", watchers), strings.Join(used, ", ")+" each second")
	}
	_, err := fmt.Fprintln(b.backendsControl, "flood", 0)
	return err
}

// watchRates until the context ends; every service has some.
func (b *bench) watchRates(ctx context.Context, services uint32) error {
	stream, err := b.askController.WatchRates(ctx, &controllerv1.WatchRatesRequest{})
	if err != nil {
		return err
	}
	err = until("every service has packets", func(context.Context) bool {
		rates, err := stream.Recv()
		return err != nil || rates.ServicesBusy == services
	})
	go func() {
		for err == nil {
			_, err = stream.Recv()
		}
	}()
	return err
}

// vip of a service.
func vip(service int) string { return fmt.Sprintf("198.18.%d.%d", service>>8, service&255) }

// floodServices with one SYN each, again and again.
func floodServices(ctx context.Context, services int) error {
	socket, err := flood.Open()
	if err != nil {
		return err
	}
	defer socket.Close()
	tick := time.NewTicker(packetEach / 100)
	defer tick.Stop()
	source, at := netip.MustParseAddrPort("10.0.0.2:1024"), make([]netip.AddrPort, 0, services)
	for i := range services {
		at = append(at, netip.MustParseAddrPort(vip(i)+":80"))
	}
	for next := 0; ; next += services / 100 {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		for i := range services / 100 {
			if err := socket.Send(flood.Packet(flood.SYN, source, at[(next+i)%services])); err != nil {
				return err
			}
		}
	}
}

// processorTime that it used so far: fields 14 and 15 of proc_pid_stat(5), in hundredths of
// a second.
func (p *process) processorTime() time.Duration {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.command.Process.Pid))
	_, fields, _ := strings.Cut(string(stat), ") ") // behind the name
	var user, system time.Duration
	if words := strings.Fields(fields); len(words) > 12 {
		_, _ = fmt.Sscan(words[11]+" "+words[12], &user, &system)
	}
	return (user + system) * 10 * time.Millisecond
}
