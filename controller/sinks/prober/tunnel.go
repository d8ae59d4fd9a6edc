package prober

// Probes through tunnels: sent to a VIP with a mark, by which the kernel passes them to the
// forwarder, from a port that identifies backend and encapsulation.
//
//	the plan has the port ─► packets leave by gw-probe ─► probe ─► failed: does the backend answer directly?
//
// If this machine could not send a probe, that is no verdict on the backend.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/guideway/guideway/controller/check"
	"github.com/guideway/guideway/controller/compile"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

const (
	// How long the kernel's route to a VIP counts as known.
	routeAge = time.Second
	// A backend that answers directly does so at once; the next probe is near.
	directTimeout = 200 * time.Millisecond
)

// tunnels are those that the forwarder's plan has, by port. Another plan's are
// another value.
type tunnels struct {
	byPort map[uint16]*planv1.ProbePort
	// Closed when there is a later one.
	replaced chan struct{}
}

func (t *tunnels) lead(to compile.Tunnel) bool {
	assigned := t.byPort[to.From.Port()]
	return assigned.GetBackend() == to.Backend && assigned.GetEncap() == to.Encap && assigned != nil
}

// tunnelProber knows by which tunnels probes may go now.
type tunnelProber struct {
	probe func(context.Context, compile.Probe, check.Dialer) (check.Answer, error)
	// The interface that marked packets to an address leave by, or why none does.
	route func(netip.Addr) (string, error)

	current atomic.Pointer[tunnels]
	// The plan's ports as given last, and as taken: many plans have the same.
	given, taken *planv1.Probing

	mu   sync.Mutex
	seen map[netip.Addr]seenRoute
}

type seenRoute struct {
	problem string
	at      time.Time
}

func newTunnelProber() *tunnelProber {
	probe := func(ctx context.Context, p compile.Probe, dialer check.Dialer) (check.Answer, error) {
		return p.Check.Probe(ctx, dialer)
	}
	t := &tunnelProber{probe: probe, route: markedRoute, seen: map[netip.Addr]seenRoute{}}
	t.current.Store(&tunnels{replaced: make(chan struct{})})
	return t
}

// set takes the ports of the plan that a healthy forwarder runs; nil: there is
// none. Not to be called by several at once.
func (t *tunnelProber) set(probing *planv1.Probing) {
	if probing == t.given {
		return
	}
	t.given = probing
	if proto.Equal(probing, t.taken) {
		return
	}
	t.taken = probing
	next := &tunnels{byPort: map[uint16]*planv1.ProbePort{}, replaced: make(chan struct{})}
	for _, assigned := range probing.GetAssigned() {
		next.byPort[uint16(assigned.GetPort())] = assigned
	}
	close(t.current.Swap(next).replaced)
}

// attempt probes once, within the probe's timeout.
func (t *tunnelProber) attempt(ctx context.Context, p compile.Probe) Result {
	plan := t.current.Load()
	if !plan.lead(p.Tunnel) {
		return Result{Probe: p, Unsent: true, Reason: "no healthy forwarder runs a plan that has this tunnel"}
	}
	if problem := t.routeProblem(p.Address); problem != "" {
		return Result{Probe: p, Unsent: true, Reason: problem}
	}
	started := time.Now()
	probing, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	answer, err := t.probe(probing, p, check.Dialer{Address: p.Address, From: p.Tunnel.From, Mark: compile.ProbeMark, Reset: true})
	result := Result{Probe: p, OK: err == nil, Reason: answer.Text, Answer: answer, Duration: time.Since(started)}
	switch {
	case t.current.Load() != plan:
		return Result{Probe: p, Unsent: true, Reason: "the forwarder, or its plan, changed meanwhile"}
	case err == nil:
		return result
	}
	if why := t.whyUnsent(err, p); why != "" {
		return Result{Probe: p, Unsent: true, Reason: why}
	}
	result.Reason = t.compareDirect(ctx, p, err)
	return result
}

// await returns when the plan has the probe's tunnel, or the timeout is over: a
// probe that is new with a plan does not lose a whole interval.
func (t *tunnelProber) await(ctx context.Context, p compile.Probe) {
	plan := t.current.Load()
	if plan.lead(p.Tunnel) {
		return
	}
	timeout := time.NewTimer(p.Timeout)
	defer timeout.Stop()
	for ; !plan.lead(p.Tunnel); plan = t.current.Load() {
		select {
		case <-plan.replaced:
		case <-timeout.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// routeProblem is why packets to the VIP would not get into the tunnel; empty: they
// do. Without this a probe could reach the VIP by another machine.
func (t *tunnelProber) routeProblem(vip netip.Addr) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if known, ok := t.seen[vip]; ok && time.Since(known.at) < routeAge {
		return known.problem
	}
	device, err := t.route(vip)
	var problem string
	switch {
	case err != nil:
		problem = fmt.Sprintf("no way to %s by %s, which the forwarder makes: %v", vip, compile.ProbeDevice, err)
	case device == "lo":
		problem = fmt.Sprintf("%s is an address of this machine itself: remove it from its interfaces", vip)
	case device != compile.ProbeDevice:
		problem = fmt.Sprintf("probes of %s would leave by %s, not by %s: the forwarder's log says why, or the rule 26487 of `ip rule` is missing", vip, device, compile.ProbeDevice)
	}
	t.seen[vip] = seenRoute{problem, time.Now()}
	return problem
}

// markedRoute asks the kernel.
func markedRoute(to netip.Addr) (string, error) {
	routes, err := netlink.RouteGetWithOptions(to.AsSlice(), &netlink.RouteGetOptions{Mark: compile.ProbeMark})
	if err != nil || len(routes) == 0 {
		return "", cmp.Or(err, error(syscall.ENETUNREACH))
	}
	switch routes[0].Type {
	case unix.RTN_UNICAST, unix.RTN_LOCAL:
	default: // IPv6 answers with the route
		return "", syscall.EHOSTUNREACH
	}
	link, err := net.InterfaceByIndex(routes[0].LinkIndex)
	if err != nil {
		return "", err
	}
	return link.Name, nil
}

// whyUnsent is why this machine could not send; empty: it could.
func (t *tunnelProber) whyUnsent(err error, p compile.Probe) string {
	switch {
	case errors.Is(err, os.ErrPermission):
		return fmt.Sprintf("not permitted: SO_MARK takes the capability CAP_NET_RAW (Linux 5.17), or CAP_NET_ADMIN; else a firewall here drops what goes to %s (%v)", p.Address, err)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Sprintf("%s cannot be the source: the address (machine.addresses) is not this machine's, or the port is in use", p.Tunnel.From)
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Sprintf("port %d is in use by another program: stop it, or give another range as machine.probe_ports", p.Tunnel.From.Port())
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE), errors.Is(err, syscall.ENOBUFS), errors.Is(err, syscall.ENOMEM):
		return err.Error()
	}
	t.forget(p.Address)
	return t.routeProblem(p.Address)
}

// forget has the route to the VIP looked up anew.
func (t *tunnelProber) forget(vip netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if known, ok := t.seen[vip]; ok && time.Since(known.at) > directTimeout {
		delete(t.seen, vip)
	}
}

// compareDirect says by a second probe, to the backend's own address, whether the
// backend is at fault or what lies between its own address and the VIP.
func (t *tunnelProber) compareDirect(ctx context.Context, p compile.Probe, failed error) string {
	ctx, cancel := context.WithTimeout(ctx, min(p.Timeout, directTimeout))
	defer cancel()
	reason := check.Reason(failed, p.Timeout)
	if _, err := t.probe(ctx, p, check.Dialer{Address: p.Tunnel.End}); err != nil {
		return reason + " through the tunnel to " + p.Address.String() + ", and none directly"
	}
	if isSilence(failed) {
		return "answers directly, not through the tunnel: no tunnel end, or the VIP " + p.Address.String() + " is not on lo (" + reason + ")"
	}
	return "answers directly, not at the VIP " + p.Address.String() + ": " + reason
}

// isSilence distinguishes that nothing came back from a wrong answer.
func isSilence(err error) bool {
	var failed net.Error
	return errors.As(err, &failed) && failed.Timeout() || errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH)
}
