package diagnose

// Checks whether a firewall on this machine may drop answers to health checks through
// tunnels, or packets from peers, which `ip route get` does not show.

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"github.com/guideway/guideway/controller/sinks/peers"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

// Backends looked at at most: a firewall drops the answers of all.
const probedBackendsMax = 16

// askTunnelChecks of the first backends that have ports of their own for probes.
func (p *diagnosis) askTunnelChecks(ctx context.Context, client controllerv1.ControllerClient) error {
	for _, name := range probedBackends(p.running) {
		answer, err := client.GetBackend(ctx, &controllerv1.GetBackendRequest{Name: name})
		if err != nil {
			return err
		}
		for _, check := range answer.GetChecks() {
			if check.GetVia() == "tunnel" && check.GetLast() != nil {
				p.tunnelChecks = append(p.tunnelChecks, check)
			}
		}
	}
	return nil
}

func probedBackends(plan *planv1.Plan) []string {
	var names []string
	for _, port := range plan.GetProbing().GetAssigned() {
		if !slices.Contains(names, port.GetBackend()) && len(names) < probedBackendsMax {
			names = append(names, port.GetBackend())
		}
	}
	return names
}

// noFirewall is false where one is suspected: no probe at all is answered. What
// one backend lacks, others have.
func (p *diagnosis) noFirewall(ctx context.Context) bool {
	passes := func(check *controllerv1.BackendCheck) bool { return check.GetLast().GetPassed() }
	if len(p.tunnelChecks) == 0 || slices.ContainsFunc(p.tunnelChecks, passes) {
		return true
	}
	chains, err := p.host.inputDrops(ctx)
	if err != nil || len(chains) == 0 {
		return true
	}
	ports := p.running.GetProbing().GetPorts()
	p.add(gradeFail, "probes", "none of %d health checks through the tunnels is answered, and a firewall of this machine may drop the answers (%s): accept what comes from VIPs to ports %d-%d of this machine",
		len(p.tunnelChecks), strings.Join(chains, ", "), ports.GetFirst(), ports.GetLast())
	return false
}

// peersFirewall suspects one where no peer at all is heard, and there is no etcd.
func (p *diagnosis) peersFirewall(ctx context.Context) {
	own := p.state.GetMachine().GetName()
	others := slices.DeleteFunc(slices.Clone(p.fleet.Machines), func(m *controllerv1.FleetMachine) bool { return m.Name == own })
	isHeard := func(m *controllerv1.FleetMachine) bool { return m.Registered != nil }
	if p.state.GetConfig().GetEtcd() != nil || len(others) == 0 || slices.ContainsFunc(others, isHeard) {
		return
	}
	if chains, err := p.host.inputDrops(ctx); err == nil && len(chains) > 0 {
		p.add(gradeWarn, "fleet", "no peer is heard, and a firewall of this machine may drop what they send (%s): accept UDP port %d from the addresses of `peers`", strings.Join(chains, ", "), peers.Port)
	}
}

// inputDrops lists the chains that may drop what comes in for this machine.
// iptables' chains are among them, where it is the one over nftables.
func (thisHost) inputDrops(ctx context.Context) ([]string, error) {
	out, err := exec.CommandContext(ctx, "nft", "--json", "list", "ruleset").Output()
	if err != nil {
		return nil, fmt.Errorf("nft list ruleset: %w", err)
	}
	return droppingChains(out)
}

// ruleset is what `nft --json` prints, as far as it matters here.
type ruleset struct {
	Items []struct {
		Chain *struct{ Family, Table, Name, Hook, Policy string }
		Rule  *struct {
			Family, Table, Chain string
			Expr                 []map[string]json.RawMessage
		}
	} `json:"nftables"`
}

// droppingChains are base chains on the way in with the policy drop, and any
// chain with a rule that drops: it may be jumped to.
func droppingChains(printed []byte) ([]string, error) {
	var rules ruleset
	if err := json.Unmarshal(printed, &rules); err != nil {
		return nil, fmt.Errorf("read what nft printed: %w", err)
	}
	var chains []string
	leadsOut := map[string]bool{}
	for _, item := range rules.Items {
		if c := item.Chain; c != nil {
			name := strings.Join([]string{c.Family, c.Table, c.Name}, " ")
			leadsOut[name] = c.Hook == "output" || c.Hook == "postrouting" || c.Hook == "forward"
			if c.Policy == "drop" && !leadsOut[name] {
				chains = append(chains, name+": policy drop")
			}
		}
		if r := item.Rule; r != nil {
			name := strings.Join([]string{r.Family, r.Table, r.Chain}, " ")
			if !leadsOut[name] && slices.ContainsFunc(r.Expr, drops) {
				chains = append(chains, name+": a rule that drops")
			}
		}
	}
	return slices.Compact(chains), nil
}

func drops(expression map[string]json.RawMessage) bool {
	_, drop := expression["drop"]
	_, reject := expression["reject"]
	return drop || reject
}
