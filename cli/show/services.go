package show

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/guideway/guideway/cli/machine"
	"github.com/guideway/guideway/cli/output"
	"github.com/guideway/guideway/controller/brain"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

type shownService struct {
	Name           string   `json:"name"`
	VIPs           []string `json:"vips"`
	State          string   `json:"state"`
	Reason         string   `json:"reason,omitempty"`
	BackendsActive int      `json:"backends_active"`
	Backends       int      `json:"backends"`
	BackendsMin    int      `json:"backends_min,omitempty"`
	Pools          []string `json:"pools,omitempty"`
	BackupPools    []string `json:"backup_pools,omitempty"`
	// The backup pools are used.
	OnBackup bool `json:"on_backup,omitempty"`
	// Absent without a forwarder.
	Packets        *uint64 `json:"packets,omitempty"`
	Bytes          *uint64 `json:"bytes,omitempty"`
	NewConnections *uint64 `json:"new_connections,omitempty"`
	// Tracked now.
	Connections *uint64 `json:"connections,omitempty"`
}

func showServices(ctx context.Context, m machine.Machine, stderr io.Writer) (output.Listing, error) {
	p, err := readSnapshot(ctx, m, stderr, &controllerv1.GetStateRequest{WithoutBackends: true})
	if err != nil {
		return output.Listing{}, err
	}
	services := p.services()
	if p.counters != nil {
		if err := countLive(ctx, m, services); err != nil {
			return output.Listing{}, err
		}
	}
	found := output.Listing{
		Value: services, Pick: output.Picked(services),
		IsTrouble: func(row int) bool { return services[row].State != brain.ServingAll || services[row].OnBackup },
		Header:    []string{"SERVICE", "VIPS", "STATE", "BACKENDS", "PACKETS", "BYTES", "CONNECTIONS", "NEW", "POOLS", "REASON"},
		WideFrom:  6, Named: 1, Counters: []output.Counter{{Name: "packets", Column: 4}, {Name: "bytes", Column: 5}, {Name: "new_connections", Column: 7}},
		None: "no services",
	}
	for _, s := range services {
		found.Rows = append(found.Rows, []string{
			s.Name, strings.Join(s.VIPs, ", "), s.State, s.backendsText(),
			number(s.Packets), number(s.Bytes), number(s.Connections), number(s.NewConnections), output.Dash(s.poolsText()), output.Dash(s.Reason),
		})
	}
	return found, nil
}

func (s shownService) backendsText() string {
	text := fmt.Sprintf("%d/%d", s.BackendsActive, s.Backends)
	if s.OnBackup {
		text += " (backup)"
	}
	return text
}

func (s shownService) poolsText() string {
	text := strings.Join(s.Pools, ",")
	if len(s.BackupPools) > 0 {
		text += " (backup: " + strings.Join(s.BackupPools, ",") + ")"
	}
	return text
}

// countLive counts the connections that are tracked now.
func countLive(ctx context.Context, m machine.Machine, services []shownService) error {
	response, err := askConnections(ctx, m, &forwarderv1.GetConnectionsRequest{})
	if err != nil {
		return err
	}
	live := map[string]uint64{}
	for _, c := range response.Counts {
		live[c.Service] += c.Connections
	}
	for i := range services {
		n := live[services[i].Name]
		services[i].Connections = &n
	}
	return nil
}

func number(n *uint64) string {
	if n == nil {
		return "-"
	}
	return fmt.Sprint(*n)
}

func (p snapshot) services() []shownService {
	services := []shownService{} // an empty list is [] in JSON
	if p.state != nil {
		for _, s := range p.state.Services {
			services = append(services, serviceOfState(s))
		}
	} else {
		members := p.plan.Members()
		for _, s := range p.plan.GetServices() {
			services = append(services, serviceOfPlan(s, members[s.Group]))
		}
	}
	p.countServices(services)
	return services
}

func serviceOfState(s *controllerv1.Service) shownService {
	return shownService{
		Name: s.Name, VIPs: s.Vips, State: s.State, Reason: s.Reason,
		BackendsActive: int(s.BackendsActive), Backends: int(s.Backends), Pools: s.Pools,
		BackupPools: s.BackupPools, OnBackup: s.OnBackup, BackendsMin: int(s.BackendsMin),
	}
}

func serviceOfPlan(s *planv1.Service, members []*planv1.Member) shownService {
	// Whether clients come here depends on routes, of which it knows nothing.
	shown := shownService{Name: s.Name, State: "unknown", Reason: "no controller answers, which announces the routes", Backends: len(members)}
	for _, vip := range s.Vips {
		shown.VIPs = append(shown.VIPs, vipOfPlan(vip))
	}
	for _, member := range members {
		if member.State == planv1.BackendState_BACKEND_STATE_ACTIVE {
			shown.BackendsActive++
		}
	}
	if shown.BackendsActive == 0 {
		shown.State = "no backend"
	}
	return shown
}

func vipOfPlan(vip *planv1.Vip) string {
	words := []string{vip.GetAddress()}
	if suffix := vip.GetPrefixSuffix(); suffix != nil {
		words[0] = suffix.PrefixGroup + ":" + suffix.Suffix
		if suffix.SuffixBits > 0 {
			words[0] += fmt.Sprintf("/%d", suffix.SuffixBits)
		}
	}
	if vip.Protocol != planv1.Protocol_PROTOCOL_ANY {
		words = append(words, strings.ToLower(strings.TrimPrefix(vip.Protocol.String(), "PROTOCOL_")))
	}
	var ports []string
	for _, p := range vip.Ports {
		if p.First == p.Last {
			ports = append(ports, fmt.Sprint(p.First))
		} else {
			ports = append(ports, fmt.Sprintf("%d-%d", p.First, p.Last))
		}
	}
	if len(ports) > 0 {
		words = append(words, strings.Join(ports, ","))
	}
	return strings.Join(words, " ")
}

// countServices goes over the counters once, however many services there are.
func (p snapshot) countServices(services []shownService) {
	if p.counters == nil {
		return
	}
	type sums struct{ packets, bytes, connections uint64 }
	byName := make(map[string]*sums, len(services))
	for i := range services {
		s := &sums{}
		byName[services[i].Name] = s
		services[i].Packets, services[i].Bytes, services[i].NewConnections = &s.packets, &s.bytes, &s.connections
	}
	for _, c := range p.counters.Services {
		if s := byName[c.Service]; s != nil {
			s.packets += c.Packets
			s.bytes += c.Bytes
			s.connections += c.NewConnections
		}
	}
}
