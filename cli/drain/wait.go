package drain

// `drain --wait` only watches and reports: the controller decides when routes are
// withdrawn, and continues if this program is interrupted.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/guideway/guideway/cli/commandline"
	"github.com/guideway/guideway/cli/machine"
	"github.com/guideway/guideway/cli/show"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

const (
	// The state is looked at this often; the forwarder's connections, which takes
	// longer, less.
	drainLook       = 500 * time.Millisecond
	connectionsLook = time.Second
	// How often is said what is waited for.
	drainSay = 5 * time.Second
	// For so long after a withdrawal is looked whether routers and traffic follow.
	drainFollow = 10 * time.Second
	// As many packets in a second are no traffic: the controller's measure.
	packetsMovedMax = 10
)

// drained is what `--wait` waits for, whose routes go.
type drained interface {
	of(*controllerv1.GetStateResponse) *controllerv1.Drain
	// left: routers have routes of it, as far as that is known.
	left(*controllerv1.GetStateResponse) string
	// withdrawn and then: what may be done.
	outcome() string
}

type drainedMachine struct{}

func (drainedMachine) of(state *controllerv1.GetStateResponse) *controllerv1.Drain {
	return state.GetMachine().GetDrain()
}

func (drainedMachine) left(state *controllerv1.GetStateResponse) string {
	if speaker := state.GetSpeaker(); speaker != nil && !speaker.Answers && len(state.GetNeighbors()) > 0 {
		return "the speaker does not answer (" + speaker.Reason + "), so it is not known what routers have"
	}
	for _, n := range state.GetNeighbors() {
		if n.AnnouncedPrefixes > 0 {
			return fmt.Sprintf("%s still has %d routes", n.Address, n.AnnouncedPrefixes)
		}
	}
	return ""
}

func (drainedMachine) outcome() string { return "the machine may be stopped" }

type drainedService string

func (s drainedService) of(state *controllerv1.GetStateResponse) *controllerv1.Drain {
	for _, service := range state.GetServices() {
		if service.Name == string(s) {
			return service.GetDrain()
		}
	}
	return nil
}

func (drainedService) left(*controllerv1.GetStateResponse) string { return "" }
func (s drainedService) outcome() string {
	return "other machines serve " + string(s) + ", as far as routers have another"
}

// waitForRoutes until they are withdrawn, and traffic and routers have followed.
func waitForRoutes(ctx context.Context, m machine.Machine, what drained, out, progress io.Writer) error {
	defer m.KeepConnections()()
	say := newSayer(progress)
	var withdrawn time.Time
	for {
		state, err := show.StateOf(ctx, m)
		if err != nil {
			return interrupted(ctx, err)
		}
		d := what.of(state)
		left := what.left(state)
		switch {
		case d == nil:
			return errors.New("it was undrained meanwhile")
		case !d.Withdrawn:
			if late := time.Since(d.Until.AsTime()); late > drainFollow {
				return fmt.Errorf("routes were to be withdrawn %v ago and are not: %s", late.Round(time.Second), stillServed(state))
			}
			say.progress("%s; withdrawn in at most %v", rateText(d), time.Until(d.Until.AsTime()).Round(time.Second))
		default:
			if withdrawn.IsZero() {
				withdrawn = time.Now()
			}
			followed := left == "" && (d.MovedAway || noTraffic(d))
			if followed || time.Since(withdrawn) > drainFollow {
				return conclude(out, what, d, left)
			}
		}
		if err := commandline.Pause(ctx, drainLook); err != nil {
			return interrupted(ctx, err)
		}
	}
}

func noTraffic(d *controllerv1.Drain) bool {
	return d.PacketsPerSecond != nil && d.GetPacketsPerSecond() <= packetsMovedMax
}

// stillServed: why routes may stay in spite of a drain.
func stillServed(state *controllerv1.GetStateResponse) string {
	for _, service := range state.GetServices() {
		if service.GetDrain() != nil && service.Reason != "" {
			return service.Name + " is " + service.Reason
		}
	}
	return "the controller's log may say why"
}

// conclude in words, and by the exit code.
func conclude(out io.Writer, what drained, d *controllerv1.Drain, left string) error {
	switch {
	case left != "":
		return fmt.Errorf("the routes are to be withdrawn, but %s: see `guideway show bgp`", left)
	case d.MovedAway:
		fmt.Fprintf(out, "traffic has moved away (%s), the routes are withdrawn: %s\n", rateText(d), what.outcome())
		return nil
	case noTraffic(d):
		fmt.Fprintf(out, "the time was up before traffic had moved away; the routes are withdrawn, and now it has (%s): %s\n", rateText(d), what.outcome())
	default:
		fmt.Fprintf(out, "the time was up before traffic had moved away; the routes are withdrawn, and %s: connections break that still come here when the machine is stopped\n", rateText(d))
	}
	return commandline.ErrTimeUp
}

func rateText(d *controllerv1.Drain) string {
	if d.PacketsPerSecond == nil {
		return "it is not known how many packets still come"
	}
	return fmt.Sprintf("%d packets/s", d.GetPacketsPerSecond())
}

// use is what a backend has of this machine.
type use struct {
	connections, packets uint64
	// Of stateless services, those that it is in charge of, or whose connections may
	// live on it.
	buckets uint32
}

// connectionsText says what is left.
func (u use) connectionsText() string {
	switch {
	case u.buckets == 0:
		return fmt.Sprintf("this machine tracks %d", u.connections)
	case u.connections == 0:
		return fmt.Sprintf("those in %d buckets may live on it: `guideway show moves`", u.buckets)
	}
	return fmt.Sprintf("this machine tracks %d, and those in %d buckets may live on it: `guideway show moves`", u.connections, u.buckets)
}

// waitForBackend until its connections through this machine have ended.
func waitForBackend(ctx context.Context, m machine.Machine, name string, timeout time.Duration, out, progress io.Writer) error {
	defer m.KeepConnections()()
	say := newSayer(progress)
	end := time.Now().Add(timeout)
	before, err := useOf(ctx, m, name)
	if err != nil {
		return interrupted(ctx, err)
	}
	for {
		if err := commandline.Pause(ctx, connectionsLook); err != nil {
			return interrupted(ctx, err)
		}
		now, err := useOf(ctx, m, name)
		if err != nil {
			return interrupted(ctx, err)
		}
		switch {
		case now.connections == 0 && now.buckets == 0 && now.packets == before.packets:
			fmt.Fprintf(out, "%s has no connection through this machine any more\n", name)
			return nil
		case time.Now().After(end):
			fmt.Fprintf(out, "the time was up before the connections of %s had ended: %s\n", name, now.connectionsText())
			return commandline.ErrTimeUp
		}
		say.progress("of the connections of %s %s; at most %v more", name, now.connectionsText(), time.Until(end).Round(time.Second))
		before = now
	}
}

// useOf a backend: tracked connections but closing ones, and packets so far.
func useOf(ctx context.Context, m machine.Machine, name string) (use, error) {
	var found use
	err := m.AskPackets(ctx, func(ctx context.Context, client machine.Packets) error {
		found = use{}
		connections, err := client.GetConnections(ctx, &forwarderv1.GetConnectionsRequest{})
		if err != nil {
			return err
		}
		for _, count := range connections.Counts {
			if count.Backend == name && count.Class != "closing" {
				found.connections += count.Connections
			}
		}
		counters, err := client.GetCounters(ctx, &forwarderv1.GetCountersRequest{})
		for _, backend := range counters.GetBackends() {
			if backend.Backend == name {
				found.packets += backend.Packets
			}
		}
		return err
	})
	if err != nil {
		return found, err
	}
	services, err := show.StatelessServices(ctx, m)
	for _, s := range services {
		for _, use := range s.Buckets.Backends {
			if use.Backend == name {
				found.buckets += use.Owned + use.Earlier
			}
		}
	}
	return found, err
}

// sayer says what is waited for, now and then.
type sayer struct {
	to   io.Writer
	last time.Time
}

func newSayer(to io.Writer) *sayer { return &sayer{to: to, last: time.Now()} }

func (s *sayer) progress(format string, values ...any) {
	if time.Since(s.last) >= drainSay {
		s.last = time.Now()
		fmt.Fprintf(s.to, "waiting: "+format+"\n", values...)
	}
}

// interrupted: what was begun goes on without this program.
func interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errors.New("interrupted: the drain goes on; `guideway undrain` ends it")
	}
	return fmt.Errorf("the drain goes on, but it is not known how far it is: %w", err)
}
