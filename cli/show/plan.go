package show

// Describes a plan, for use without a controller.

import (
	"fmt"
	"strings"

	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

func stateOfPlan(plan *planv1.Plan) *controllerv1.GetStateResponse {
	state := &controllerv1.GetStateResponse{Backends: backendsOfPlan(plan)}
	members := plan.Members()
	for _, s := range plan.GetServices() {
		state.Services = append(state.Services, serviceOfPlan(s, members[s.Group]))
	}
	for _, peer := range plan.GetPeers() {
		state.Peers = append(state.Peers, &controllerv1.Peer{Name: peer.Name, Addresses: peer.Addresses, Healthy: peer.Healthy})
	}
	return state
}

func serviceOfPlan(s *planv1.Service, members []*planv1.Member) *controllerv1.Service {
	// Whether clients come here depends on routes, of which it knows nothing.
	service := &controllerv1.Service{Name: s.Name, Group: s.Group, State: "unknown", Reason: "no controller answers, which announces the routes", Backends: uint32(len(members))}
	for _, vip := range s.Vips {
		service.Vips = append(service.Vips, vipOfPlan(vip))
	}
	for _, member := range members {
		if member.State == planv1.BackendState_BACKEND_STATE_ACTIVE {
			service.BackendsActive++
		}
	}
	if service.BackendsActive == 0 {
		service.State = "no backend"
	}
	return service
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

func backendsOfPlan(plan *planv1.Plan) []*controllerv1.Backend {
	addresses := map[string]string{}
	for _, b := range plan.GetBackends() {
		addresses[b.Name] = b.Address
	}
	var backends []*controllerv1.Backend
	services := map[string][]string{}
	for _, service := range plan.GetServices() {
		services[service.Group] = append(services[service.Group], service.Name)
	}
	for _, group := range plan.GetGroups() {
		names := services[group.Name]
		if len(names) == 0 {
			continue // no service has it
		}
		only := ""
		if len(names) == 1 {
			only = names[0]
		}
		for _, member := range group.Members {
			backends = append(backends, &controllerv1.Backend{
				Service: only, Group: group.Name, Services: uint32(len(names)), Name: member.Backend, Address: addresses[member.Backend], Weight: member.Weight,
				State: strings.ToLower(strings.TrimPrefix(member.State.String(), "BACKEND_STATE_")),
			})
		}
	}
	return backends
}
