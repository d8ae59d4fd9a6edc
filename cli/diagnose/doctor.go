// Package diagnose has the verbs for troubleshooting: doctor, explain, trace, capture and
// probe, one file each.
package diagnose

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/guideway/guideway/cli/commandline"
	"github.com/guideway/guideway/cli/machine"
	"github.com/guideway/guideway/cli/output"
	"github.com/guideway/guideway/cli/show"
	"github.com/guideway/guideway/controller/api"
	"github.com/guideway/guideway/controller/brain"
	"github.com/guideway/guideway/controller/config"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
	"github.com/guideway/guideway/speaker/judge"
)

// DoctorCommand is `guideway doctor`.
func DoctorCommand() *cobra.Command {
	var m machine.Machine
	var format string
	var nic bool
	command := &cobra.Command{
		Use:   "doctor [--nic [INTERFACE ...]]",
		Short: "Check this load balancer for common faults, and print their cures",
		Long: "Checks controller, forwarder and speaker, the plan, next hops, MTUs, interfaces, BGP,\n" +
			"peers, health checks through the tunnels, and counters. Each line is ok, warn or fail.\n" +
			"Exit status: 0 if nothing fails, else 1.\n\n" +
			"With --nic it says what interfaces and their drivers can (XDP, zero-copy, queues), and what\n" +
			"limits them: those of the forwarder, or those named. The report has no addresses.",
		Args: func(command *cobra.Command, arguments []string) error {
			if nic {
				return nil
			}
			return commandline.NoArguments(command, arguments)
		},
		RunE: func(command *cobra.Command, arguments []string) error {
			if nic {
				return reportNICs(command.Context(), command.OutOrStdout(), format, m, arguments)
			}
			findings := examine(command.Context(), m, thisHost{})
			return printFindings(command.OutOrStdout(), format, findings)
		},
	}
	commandline.AddOutput(command, &format, commandline.TextFormats)
	command.Flags().StringVar(&m.RunDir, "run-dir", machine.RunDirDefault, "directory of the sockets")
	command.Flags().BoolVar(&nic, "nic", false, "report on interfaces and their drivers instead")
	return command
}

type finding struct {
	Grade string `json:"grade"`
	What  string `json:"what"`
	Text  string `json:"text"`
}

const (
	gradeOK   = "ok"
	gradeWarn = "warn"
	gradeFail = "fail"
)

func printFindings(w io.Writer, format string, findings []finding) error {
	if format != "table" {
		if err := commandline.PrintValue(w, format, append([]finding{}, findings...)); err != nil {
			return err
		}
	} else {
		for _, f := range findings {
			if _, err := fmt.Fprintf(w, "%-4s  %-11s %s\n", f.Grade, f.What, f.Text); err != nil {
				return err
			}
		}
	}
	if slices.ContainsFunc(findings, func(f finding) bool { return f.Grade == gradeFail }) {
		return commandline.ErrReported
	}
	return nil
}

// diagnosis is what doctor found by asking; nil: not answered.
type diagnosis struct {
	state *controllerv1.GetStateResponse
	// nil also where the config names no other machines.
	fleet    *controllerv1.GetFleetResponse
	status   *forwarderv1.GetStatusResponse
	counters *forwarderv1.GetCountersResponse
	metrics  string
	// The forwarder's plan, if health checks go through its tunnels.
	running *planv1.Plan
	// Where a service lacks some.
	down []*controllerv1.Backend
	// Tracked connections, and those that nothing answers.
	counts     []*forwarderv1.ConnectionCount
	unanswered map[member]uint64
	// Those of its backends that were probed.
	tunnelChecks []*controllerv1.BackendCheck
	host         host

	findings []finding
	// By index of the finding.
	consequences map[int]consequence
}

// host is the machine, as far as interfaces go.
type host interface {
	// features as `ethtool -k` prints them; an error: not to be had.
	features(ctx context.Context, device string) (string, error)
	receiveQueues(device string) int
	// addresses of the machine.
	addresses() []netip.Addr
	// vlans are the names of the VLAN interfaces on a device.
	vlans(device string) []string
	// accepts a packet to one of the machine's addresses; an error: why it is dropped.
	accepts(ctx context.Context, to netip.AddrPort, from netip.Addr, device string) error
	// localPorts are those that the kernel chooses for connections.
	localPorts() (first, last int, err error)
	// inputDrops names the firewall's chains that may drop what comes in.
	inputDrops(ctx context.Context) ([]string, error)
}

// How often in-flight packets are looked at before they count as lost.
const (
	restLooks = 5
	restPause = 50 * time.Millisecond
)

func examine(ctx context.Context, m machine.Machine, h host) []finding {
	p := &diagnosis{host: h}
	p.ask(ctx, m)
	p.lookAgain(ctx, m)
	p.machine()
	p.plan()
	p.etcd()
	p.compared(ctx)
	p.nextHops()
	p.mtu()
	p.tunnelErrors()
	p.devices(ctx)
	p.speaker(ctx, m)
	p.bgp()
	p.vrrp()
	p.peers()
	p.probes(ctx)
	p.backends()
	p.accounts()
	p.losses()
	p.drops()
	return p.told()
}

func (p *diagnosis) add(grade, what, format string, values ...any) {
	p.findings = append(p.findings, finding{grade, what, fmt.Sprintf(format, values...)})
}

func (p *diagnosis) ask(ctx context.Context, m machine.Machine) {
	err := m.AskController(ctx, func(ctx context.Context, client controllerv1.ControllerClient) (err error) {
		p.state, err = client.GetState(ctx, &controllerv1.GetStateRequest{WithoutBackends: true})
		return err
	})
	if err != nil {
		p.add(gradeFail, "controller", "%v; until then all goes on by the last plan, and nothing follows the backends' health", err)
	} else {
		p.add(gradeOK, "controller", "answers, version %s", p.state.Version)
		_ = m.AskController(ctx, func(ctx context.Context, client controllerv1.ControllerClient) (err error) {
			p.fleet, err = client.GetFleet(ctx, &controllerv1.GetFleetRequest{})
			return err
		}) // there is no fleet
		_ = m.AskController(ctx, p.askDown) // it answered just now
	}
	err = m.AskForwarder(ctx, p.askForwarder)
	if err != nil {
		p.add(gradeFail, "forwarder", "%v", err)
	} else {
		p.add(gradeOK, "forwarder", "answers, version %s, up %s", p.status.Version, (time.Duration(p.status.UptimeMs) * time.Millisecond).Round(time.Second))
		p.controllerAbsent()
		p.takeOver()
		p.threads()
	}
	if p.state != nil && p.running != nil {
		if err := m.AskController(ctx, p.askTunnelChecks); err != nil {
			p.add(gradeWarn, "probes", "what became of them is not known: %v", err)
		}
	}
}

// askDown for the backends that services lack.
func (p *diagnosis) askDown(ctx context.Context, client controllerv1.ControllerClient) error {
	lacks := func(s *controllerv1.Service) bool { return s.BackendsActive < s.Backends }
	if !slices.ContainsFunc(p.state.Services, lacks) {
		return nil
	}
	state, err := client.GetState(ctx, &controllerv1.GetStateRequest{})
	for _, b := range state.GetBackends() {
		if b.State == "down" {
			p.down = append(p.down, b)
		}
	}
	return err
}

// controllerAbsent by the forwarder's words: it may run, and not reach the forwarder.
func (p *diagnosis) controllerAbsent() {
	if absent := p.status.GetControllerAbsentMs(); absent > 0 {
		p.add(gradeFail, "forwarder", "has had no request of a controller for %v: it goes on by its last plan, and nothing follows the backends' health: systemctl start guideway-controller",
			(time.Duration(absent) * time.Millisecond).Round(time.Second))
		p.follows("controller", "")
	}
}

// takeOver says from which process the forwarder took over, if from one.
func (p *diagnosis) takeOver() {
	note := p.status.GetTakenOver()
	if note == nil {
		return
	}
	at := time.UnixMilli(int64(note.GetTimeMs())).Format(time.RFC3339)
	pause := time.Duration(note.GetPauseUs()) * time.Microsecond
	p.add(gradeOK, "forwarder", "took over from process %d (version %s) at %s, packets waited for %v", note.GetPredecessorPid(), note.GetPredecessorVersion(), at, pause)
	for _, table := range note.GetEmptied() {
		p.add(gradeWarn, "forwarder", "a connection table started empty then (%s): its connections of that time went by hash", table)
	}
}

// threads that packets do not need at once: the others' hanging withdraws the routes.
func (p *diagnosis) threads() {
	const reload = "`systemctl reload guideway-forwarder` has a new process take over"
	cures := map[string]string{
		"next-hops": "backends whose MAC address, route or MTU changed since are sent to as before, and a link that goes down is not seen: " + reload,
		"punt":      "packets to addresses inside VIP prefixes that are no VIP do not reach the kernel: " + reload,
		"take-over": "no other process can take over: `systemctl restart guideway-forwarder`",
	}
	for _, thread := range p.status.GetHelpers() {
		age := time.Duration(thread.GetHeartbeatAgeMs()) * time.Millisecond
		cure, known := cures[thread.GetName()]
		if age > judge.HelperAgeMax && known { // of probes the forwarder itself says so
			p.add(gradeFail, "forwarder", "its thread %s hangs, no heartbeat for %v: %s", thread.GetName(), age.Round(time.Second), cure)
		}
	}
}

func (p *diagnosis) askForwarder(ctx context.Context, client forwarderv1.ForwarderClient) (err error) {
	if p.status, err = client.GetStatus(ctx, &forwarderv1.GetStatusRequest{}); err != nil {
		return err
	}
	if p.status.GetProbeDevice() != nil {
		answer, err := client.GetPlan(ctx, &forwarderv1.GetPlanRequest{})
		if err != nil {
			return err
		}
		p.running = answer.GetPlan()
	}
	metrics, err := client.GetMetrics(ctx, &forwarderv1.GetMetricsRequest{})
	if err != nil {
		return err
	}
	p.metrics = metrics.Text
	connections, err := client.GetConnections(ctx, &forwarderv1.GetConnectionsRequest{})
	if err != nil {
		return err
	}
	p.counts = connections.GetCounts()
	for range restLooks {
		if p.counters, err = client.GetCounters(ctx, &forwarderv1.GetCountersRequest{}); err != nil || p.counters.Unaccounted == 0 {
			return err
		}
		time.Sleep(restPause)
	}
	return nil
}

func (p *diagnosis) plan() {
	if p.status != nil && p.status.Generation == 0 {
		p.add(gradeFail, "plan", "the forwarder has none and forwards nothing: start the controller with a good config")
	}
	if why := p.status.GetPlanUnsaved(); why != "" {
		p.add(gradeWarn, "plan", "is served but not on disk, so a restart would start from an older one (%s): make room or mend the state directory; it is tried again by itself", why)
	}
	if p.status.GetRestartRequired() != "" {
		p.add(gradeFail, "plan", "restart required: %s: systemctl restart guideway-forwarder", p.status.RestartRequired)
	}
	if p.state == nil {
		return
	}
	if p.state.Config.GetStale() {
		p.add(gradeFail, "config", "the newest is refused, an older one serves: %s", p.state.Config.Problem)
	}
	if why := p.state.Config.GetNotKept(); why != "" {
		p.add(gradeWarn, "config", "serves but could not be kept for a restart (%s): make room or mend the state directory; it is tried again by itself", why)
	}
	for _, warning := range p.state.Config.GetWarnings() {
		p.add(gradeWarn, "config", "%s", warning)
	}
	f := p.state.Forwarder
	switch {
	case p.status == nil: // what it runs is what it ran
	case p.status.Generation == 0: // said above
	case f.GetGenerationWanted() == 0:
		p.add(gradeWarn, "plan", "the forwarder goes on with its last one; the controller has none yet: `guideway config check`, then the controller's log")
	case f.GetRefusal() != "":
		refusal := f.Refusal
		if strings.Contains(p.state.Machine.GetReason(), refusal) {
			refusal = "so the machine does not serve"
		}
		p.add(gradeFail, "plan", "the forwarder refuses it: %s", refusal)
	case f.GetGenerationWanted() != f.GetGenerationRunning():
		p.add(gradeFail, "plan", "the forwarder does not run the controller's yet: look again, then at the controller's log")
	default:
		p.add(gradeOK, "plan", "wanted and running")
	}
}

// etcd that is away or full changes nothing that runs, and is mended in peace.
func (p *diagnosis) etcd() {
	e := p.state.GetConfig().GetEtcd()
	if e == nil {
		return
	}
	switch {
	case e.Away != "":
		p.add(gradeWarn, "etcd", "%s; config %d goes on, and the next one is taken when it answers", e.Away, e.Config)
	case e.Unusable != "":
		p.add(gradeFail, "etcd", "%s; config %d goes on: apply a config (`guideway config apply`)", e.Unusable, e.Config)
	case e.ConfigStored == 0 && e.AnsweredAt != nil:
		p.add(gradeFail, "etcd", "holds no config, and config %d runs here: were its data lost? `guideway config apply` stores the one that is to run", e.Config)
	default:
		p.add(gradeOK, "etcd", "answers and holds config %d; %d runs here", e.ConfigStored, e.Config)
	}
	if e.NotRegistered != "" && e.Away == "" {
		p.add(gradeWarn, "etcd", "this machine is not registered there, so others do not see it: %s", e.NotRegistered)
	}
	if len(e.Alarms) > 0 {
		p.add(gradeWarn, "etcd", "has alarms (%s): with NOSPACE no config can be applied: compact and defragment it, or raise --quota-backend-bytes, then `etcdctl alarm disarm`", strings.Join(e.Alarms, ", "))
	}
}

// compared with the other machines: what differs on them, and which cannot be compared.
func (p *diagnosis) compared(ctx context.Context) {
	for _, alarm := range p.fleet.GetAlarms() {
		p.add(gradeFail, "fleet", "%s", alarm)
	}
	switch {
	case p.fleet == nil || p.state.GetConfig().GetEtcd() != nil && len(p.fleet.Alarms) == 0:
		return // etcd has a line of its own
	case p.fleet.Away != "":
		p.add(gradeWarn, "fleet", "machines are not compared: %s", p.fleet.Away)
		return
	}
	for _, m := range p.fleet.Machines {
		if m.Registered == nil {
			p.add(gradeWarn, "fleet", "%s is not compared: %s", m.Name, m.Reason)
		}
	}
	p.peersFirewall(ctx)
	if len(p.fleet.Alarms) == 0 {
		p.add(gradeOK, "fleet", "what the machines run does not differ (`guideway fleet`)")
	}
}

// machine reports whether clients are served here at all.
func (p *diagnosis) machine() {
	if p.state == nil {
		return
	}
	switch m := p.state.Machine; m.GetState() {
	case brain.ServingAll:
		p.add(gradeOK, "machine", "serves clients")
	case brain.Drained, brain.Draining:
		p.add(gradeWarn, "machine", "is %s: %s; `guideway undrain machine` ends that", m.State, m.Reason)
	default:
		p.add(gradeFail, "machine", "is %s: %s", m.GetState(), m.GetReason())
		p.follows(p.causeOf(m.GetReason()), "is "+m.GetState())
	}
	for _, missing := range p.state.NotReady {
		if !p.isMachines(missing) {
			p.add(gradeWarn, "ready", "not yet: %s", missing)
			p.follows(p.causeOf(missing), "")
		}
	}
}

// isMachines: the reason is the machine's, which was told.
func (p *diagnosis) isMachines(reason string) bool {
	of := p.state.GetMachine().GetReason()
	return of != "" && strings.Contains(reason, of)
}

func (p *diagnosis) nextHops() {
	if p.status == nil {
		return
	}
	if len(p.status.Unresolved) == 0 {
		p.add(gradeOK, "next hop", "known for every active backend")
	}
	addUnresolved(p, gradeFail, "of %s not known: %s; look at `ip route get %s` and `ip neigh`", p.status.Unresolved)
	addUnresolved(p, gradeWarn, "of the peer %s not known: %s; until then it gets no fragments from here; look at `ip route get %s` and `ip neigh`", p.status.UnresolvedPeers)
}

// unresolved is a backend or a peer whose next hop is not known.
type unresolved interface {
	GetName() string
	GetAddress() string
	GetWhy() string
}

// addUnresolved next hops, each reason in one sentence with the first that has it.
func addUnresolved[T unresolved](p *diagnosis, grade, sentence string, hops []T) {
	var reasons alike
	first := map[string]string{}
	for _, hop := range hops {
		reasons.add(fmt.Sprintf("%s (%s)", hop.GetName(), hop.GetAddress()), hop.GetWhy())
		if first[hop.GetWhy()] == "" {
			first[hop.GetWhy()] = hop.GetAddress()
		}
	}
	for _, reason := range reasons.reasons {
		p.add(grade, "next hop", sentence, reasons.subject(reason), reason, first[reason])
		p.follows(p.linkDown(), "")
	}
}

// mtu: the forwarder says what does not fit, and both remedies, with each
// plan.
func (p *diagnosis) mtu() {
	if p.state == nil || p.status == nil {
		return
	}
	found := len(p.status.Unresolved) > 0 // their paths are not known
	for _, warning := range p.state.Forwarder.GetWarnings() {
		found = true
		if problem := p.status.GetProbeDevice().GetProblem(); problem == "" || !strings.Contains(warning, problem) { // said of the probes
			p.add(gradeWarn, "forwarder", "%s", warning)
		}
	}
	if !found {
		p.add(gradeOK, "mtu", "what clients send fits the path to the backends")
	}
}

// tunnelErrors: some link carries less than the load balancer takes for granted, or
// somebody forges.
func (p *diagnosis) tunnelErrors() {
	e := p.status.GetTunnelErrors()
	if e == nil {
		return
	}
	age := (time.Duration(e.AgeMs) * time.Millisecond).Round(time.Second)
	p.add(gradeWarn, "path mtu", "%s said that a tunnel's packets do not fit, the last %s ago from %s: the path to %s carries %d bytes. Nothing follows such errors, since anybody can forge them. If a link there is that narrow, widen it, or set tunnel.mtu, or `mtu %d` on the kernel's route", output.Counted(int(e.Count), "ICMP error"), age, e.From, e.About, e.Mtu, e.Mtu)
}

func (p *diagnosis) devices(ctx context.Context) {
	for _, d := range p.status.GetDevices() {
		if d.Gone {
			p.add(gradeFail, d.Interface, "is gone: see by `ip link` and `journalctl -k` what became of it; when an interface of that name is there again, and up, the forwarder starts anew by itself within seconds")
			continue
		}
		if !d.Up {
			p.add(gradeFail, d.Interface, "is down: ip link set %s up", d.Interface)
			continue
		}
		if queues := p.host.receiveQueues(d.Interface); queues > int(d.Queues) {
			p.add(gradeFail, d.Interface, "has %d receive queues, of which %d are ours: what the others receive is lost; restart the forwarder, or ethtool -L %s combined %d", queues, d.Queues, d.Interface, d.Queues)
		}
		if d.ChecksumsIncomplete {
			p.add(gradeFail, d.Interface, "gets packets without checksums, which backends drop: their sender (a namespace or a virtual machine of this host, most often) leaves them to a device that they do not pass: there, `ethtool -K INTERFACE tx off`")
		}
		if d.Mode == "generic" {
			p.add(gradeWarn, d.Interface, "runs XDP in generic mode, which is slow: its driver refuses native mode (the forwarder's log says why)")
		}
		p.offloads(ctx, d)
		if d.TapMissing != "" {
			p.add(gradeWarn, d.Interface, "has no way back to the kernel for packets that are no VIP's, which are dropped (not_passed): %s", d.TapMissing)
		}
	}
}

// packetBytesMax is what a chunk of packet memory has room for behind the headroom, less
// the Ethernet header (wire/src/frame.rs).
const packetBytesMax = 2048 - 256 - 14

// In what `ethtool -k` prints.
const lroIsOn = "large-receive-offload: on"

// offloads: LRO never goes with forwarding; GRO happens behind native XDP, and what it joined
// af_packet cuts again. In front of generic XDP it makes frames too long.
func (p *diagnosis) offloads(ctx context.Context, d *forwarderv1.Device) {
	features, err := p.host.features(ctx, d.Interface)
	if err != nil {
		p.add(gradeWarn, d.Interface, "offloads are not known: %v", err)
		return
	}
	bad := []string{"lro"}
	names := map[string]string{"lro": lroIsOn, "gro": "generic-receive-offload: on"}
	if d.Mode == "generic" {
		bad = append(bad, "gro")
	}
	clean := true
	for _, name := range bad {
		if strings.Contains(features, names[name]) {
			clean = false
			p.add(gradeFail, d.Interface, "joins packets before we get them (%s), and they are dropped as too long: ethtool -K %s %s off", name, d.Interface, name)
		}
	}
	if vlans := p.host.vlans(d.Interface); len(vlans) > 0 && strings.Contains(features, "rx-vlan-offload: on") {
		clean = false
		p.add(gradeWarn, d.Interface, "strips VLAN tags before we get frames (rx-vlan-offload), so those of %s to a VIP's address are taken for its own: ethtool -K %s rxvlan off", strings.Join(vlans, ", "), d.Interface)
	}
	if d.Mtu > packetBytesMax {
		clean = false
		p.add(gradeWarn, d.Interface, "has MTU %d, and packets longer than %d bytes do not fit in packet memory: they are dropped: ip link set %s mtu %d, on the neighbors of that link, too", d.Mtu, packetBytesMax, d.Interface, packetBytesMax)
	}
	if clean {
		p.add(gradeOK, d.Interface, "up, %s, %d queues, MTU %d", strings.Trim(d.Driver+" "+d.Mode, " -"), d.Queues, d.Mtu)
	}
}

// A session has its BFD by then: the speaker begins it after a second, and GoBGP
// and routers take a second each for it.
const bfdBegins = 10 * time.Second

func (p *diagnosis) bgp() {
	if p.state == nil {
		return
	}
	if len(p.state.Neighbors) == 0 {
		return
	}
	up := 0
	for _, n := range p.state.Neighbors {
		if n.State == sessionUnknown {
			continue // said of the speaker
		}
		if n.State == "established" {
			up++
			if n.Bfd == "down" && time.Since(n.Since.AsTime()) > bfdBegins {
				p.add(gradeWarn, "bgp", "the session with %s has no BFD, so that the router notices this machine's death by the hold time only: it needs BFD there as well (`bfd on` in BIRD, `neighbor … bfd` in FRR), and UDP port 3784 open both ways", n.Address)
			}
			continue
		}
		p.add(gradeFail, "bgp", "the session with %s (AS %d) is %s: %s", n.Address, n.Asn, n.State, cmp.Or(n.Reason, "look at the router's side and at port 179 between"))
		if strings.Contains(n.Reason, "no route to the router") {
			p.follows(p.linkDown(), "")
		}
	}
	if up > 0 {
		p.add(gradeOK, "bgp", "%d of %d sessions established", up, len(p.state.Neighbors))
	}
	var reasons alike
	for _, r := range p.state.Routes {
		if !r.Announced && len(p.state.Neighbors) > 0 && r.Reason != api.NoSession && !p.isMachines(r.Reason) { // said of them, of it
			reasons.add(r.Prefix, r.Reason)
		}
	}
	for _, reason := range reasons.reasons {
		p.add(gradeWarn, "route", "%s not announced: %s", reasons.subject(reason), reason)
		p.follows(p.causeOf(reason), "")
	}
}

// vrrp: a virtual router that does not run has its reason, and of two owners one is wrong.
func (p *diagnosis) vrrp() {
	routers := p.state.GetVrrp()
	active := 0
	var reasons alike
	for _, r := range routers {
		switch name := fmt.Sprintf("virtual router %d", r.GetVrid()); {
		case r.GetState() == "active":
			active++
		case r.GetState() == "initialize" && !p.isMachines(r.GetReason()):
			reasons.add(name, r.GetReason())
		}
	}
	for _, reason := range reasons.reasons {
		p.add(gradeFail, "vrrp", "%s not running: %s", reasons.subject(reason), reason)
	}
	if n := p.state.GetVrrpCounts().GetSecondOwners(); n > 0 {
		p.add(gradeWarn, "vrrp", "another machine claimed VIPs that this one owned (%d times): does it hear this one's advertisements (protocol 112, 224.0.0.18 and ff02::12), and has no other host these addresses? The speaker's log says who", n)
	}
	p.vipsOfOurOwn()
	p.probedHosts()
	if len(routers) > 0 && len(reasons.reasons) == 0 {
		p.add(gradeOK, "vrrp", "this machine owns the VIPs of %d of %d virtual routers", active, len(routers))
	}
}

// probedHosts by which the speaker finds that the link receives nothing. A gateway that never
// answered may be one that does not.
func (p *diagnosis) probedHosts() {
	for _, probe := range p.state.GetVrrpProbes() {
		switch {
		case probe.GetAnswers():
		case probe.GetAnsweredAt() != nil:
			p.add(gradeWarn, "vrrp", "%s did not answer ARP or neighbor solicitations for %s: if nothing else is heard either, this machine gives its VIPs up", probe.GetAddress(), output.Ago(probe.GetAnsweredAt()))
		case !probe.GetGateway():
			p.add(gradeWarn, "vrrp", "%s of `vrrp.probes` never answered ARP or neighbor solicitations: name a host on the segment of the interface that does", probe.GetAddress())
		}
	}
}

// vipsOfOurOwn: the kernel would answer ARP for them, whoever owns them.
func (p *diagnosis) vipsOfOurOwn() {
	if len(p.state.GetVrrp()) == 0 {
		return
	}
	addresses := p.host.addresses()
	for _, r := range p.state.GetVrrp() {
		for _, vip := range r.GetVips() {
			if address, err := netip.ParseAddr(vip); err == nil && slices.Contains(addresses, address) {
				p.add(gradeFail, "vrrp", "VIP %s is an address of an interface of this machine, for which the kernel answers ARP whoever owns it: remove it (`ip address del`), and from what sets it up, keepalived or the network's configuration", vip)
			}
		}
	}
}

func (p *diagnosis) peers() {
	for _, peer := range p.state.GetPeers() {
		if peer.Healthy {
			p.add(gradeOK, "peer", "%s answers through the tunnel", peer.Name)
		} else {
			p.add(gradeWarn, "peer", "%s: %s", peer.Name, peer.Reason)
		}
	}
}

func (p *diagnosis) backends() {
	unanswered := p.connections()
	byGrade := map[string]*alike{gradeFail: {}, gradeWarn: {}, gradeOK: {}}
	for _, s := range p.state.GetServices() {
		switch {
		case p.isMachines(s.Reason): // said of it
		case s.BackendsActive == 0:
			byGrade[gradeFail].add(s.Name, fmt.Sprintf("in state `%s`, with no active backend of %d", s.State, s.Backends))
		case s.Drain != nil:
			p.add(gradeWarn, "service", "%s is in state `%s`: %s; `guideway undrain service %s` ends that", s.Name, s.State, s.Reason, s.Name)
		case s.State != brain.ServingAll:
			byGrade[p.notServing()].add(s.Name, fmt.Sprintf("in state `%s`: %s", s.State, s.Reason))
		case unanswered[s.Name]: // it looks well, and is not
		case s.BackendsActive < s.Backends:
			byGrade[gradeWarn].add(s.Name, fmt.Sprintf("served by %d of %d backends", s.BackendsActive, s.Backends))
		default:
			byGrade[gradeOK].add(s.Name, fmt.Sprintf("served by all %d backends", s.Backends))
		}
	}
	for _, grade := range []string{gradeFail, gradeWarn, gradeOK} {
		for _, reason := range byGrade[grade].reasons {
			p.add(grade, "service", "%s %s", byGrade[grade].subject(reason), reason)
		}
	}
	p.backendsDown()
	p.memberSources()
	if silent := p.state.GetSilentAgents(); len(silent) > 0 {
		p.add(gradeWarn, "agent", "silent on %s: connections that move to or from there break; there: systemctl status guideway-agent; guideway-agent doctor; do `controllers` of agent.yaml name this machine, and does UDP port %d reach it?",
			few(silent), config.AgentsPortDefault)
	}
	if behind := p.state.GetAgentsBehind(); len(behind) > 0 {
		p.add(gradeFail, "agent", "behind on %s: VIPs that services have here are lacking there, and packets to them are dropped; guideway config backend %s | ssh %s guideway-agent setup --from -",
			few(behind), behind[0], behind[0])
	}
}

// backendsDown, each reason once; all of them: guideway show backends --only-trouble.
func (p *diagnosis) backendsDown() {
	var reasons alike
	seen := map[string]bool{}
	for _, b := range p.down {
		if !seen[b.Name] { // of several groups
			seen[b.Name] = true
			reasons.add(b.Name, b.Reason)
		}
	}
	for _, reason := range reasons.reasons {
		p.add(gradeWarn, "backend", "%s down: %s", reasons.subject(reason), reason)
		p.follows(p.linkDown(), "")
	}
}

func (p *diagnosis) memberSources() {
	for _, s := range p.state.GetMemberSources() {
		switch {
		case s.Problem != "":
			p.add(gradeWarn, "pool", "%s keeps its %d backends: %s fails: %s; its latest success: %s", s.Name, s.Backends, s.Source, s.Problem, output.Ago(s.LastSuccess))
		case s.Waiting > 0:
			p.add(gradeWarn, "pool", "%s: %s lacks %d of its %d backends, which stay until %s (shrink_delay): correct the source if they live",
				s.Name, s.Source, s.Waiting, s.Backends, output.At(s.WaitingUntil))
		}
	}
}

// alike gathers what has one reason, so that it is told once.
type alike struct {
	reasons []string
	names   map[string][]string
}

func (a *alike) add(name, reason string) {
	if a.names == nil {
		a.names = map[string][]string{}
	}
	if a.names[reason] == nil {
		a.reasons = append(a.reasons, reason)
	}
	a.names[reason] = append(a.names[reason], name)
}

// few of the names, and how many there are beyond.
func few(names []string) string { return config.Enumerate(names, 3) }

// subject of a sentence about those with the reason.
func (a *alike) subject(reason string) string {
	names := a.names[reason]
	if len(names) == 1 {
		return names[0] + " is"
	}
	return fmt.Sprintf("%s and %d more are", names[0], len(names)-1)
}

// notServing is no failure where an operator drained the machine.
func (p *diagnosis) notServing() string {
	if state := p.state.Machine.GetState(); state == brain.Drained || state == brain.Draining {
		return gradeWarn
	}
	return gradeFail
}

func (p *diagnosis) accounts() {
	switch {
	case p.counters == nil:
	case p.counters.Received == 0:
		p.add(gradeOK, "accounts", "no packet was received yet")
	case p.counters.Unaccounted == 0:
		p.add(gradeOK, "accounts", "all of %d packets received are accounted for", p.counters.Received)
	default:
		p.add(gradeWarn, "accounts", "%d packets are unaccounted for: under load some are on their way; if it stays, it is a bug: please report it", p.counters.Unaccounted)
	}
}

// losses before us, by the forwarder's metrics.
func (p *diagnosis) losses() {
	for line := range strings.Lines(p.metrics) {
		labels, found := strings.CutPrefix(strings.TrimSpace(line), "guideway_rx_lost_packets_total{")
		if !found || strings.HasSuffix(labels, " 0") {
			continue
		}
		labels, count, _ := strings.Cut(labels, "} ")
		p.add(gradeWarn, "lost", "%s packets before us (%s): the worker is too slow, or a ring too small (ethtool -G)", count, labels)
	}
}

// More than this share dropped is no noise.
const dropsShareMax = 0.01

func (p *diagnosis) drops() {
	if p.counters == nil {
		return
	}
	for _, drop := range show.DropsOf(p.counters, nil).Dropped {
		grade := gradeOK
		if float64(drop.Packets) > dropsShareMax*float64(p.counters.Received) {
			grade = gradeWarn
		}
		p.add(grade, "drops", "%d of %d: %s. Usually: %s", drop.Packets, p.counters.Received, drop.Reason, drop.UsualCause)
	}
}

// thisHost asks the kernel and ethtool.
type thisHost struct{}

func (thisHost) features(ctx context.Context, device string) (string, error) {
	out, err := ethtool(ctx, "-k", device)
	return string(out), err
}

// ethtool's words; an error says what it complains of.
func ethtool(ctx context.Context, option, device string) ([]byte, error) {
	out, err := exec.CommandContext(ctx, "ethtool", option, device).Output()
	if failed := new(exec.ExitError); errors.As(err, &failed) {
		err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(failed.Stderr))
	}
	if err != nil {
		return nil, fmt.Errorf("ethtool %s %s: %w", option, device, err)
	}
	return out, nil
}

func (thisHost) vlans(device string) (names []string) {
	for _, name := range uppersOf(device) {
		if _, err := os.Stat(filepath.Join("/proc/net/vlan", name)); err == nil {
			names = append(names, name)
		}
	}
	return names
}

func (thisHost) addresses() (addresses []netip.Addr) {
	found, _ := net.InterfaceAddrs() // none: there is nothing to find
	for _, one := range found {
		if prefix, err := netip.ParsePrefix(one.String()); err == nil {
			addresses = append(addresses, prefix.Addr())
		}
	}
	return addresses
}

func (thisHost) receiveQueues(device string) int {
	return queuesOf(device, "rx")
}
