package brain

// What people see of one backend: its health checks, and the latest result of each. The
// work is proportional to the number of pools that have the backend.

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/guideway/guideway/controller/compile"
	"github.com/guideway/guideway/controller/config"
)

// Probe is what the latest probe of a target brought.
type Probe struct {
	Passed bool
	// What was answered, or why it failed.
	Result  string
	Latency time.Duration
	// When the result came; zero: there was none yet.
	At      time.Time
	Warning string
	Expires time.Time
}

// CheckView is a health check of one backend.
type CheckView struct {
	*config.HealthCheck
	Kind    string
	Via     config.Via // never auto
	Address netip.Addr // the backend's; through a tunnel, the VIP
	// Those that name the check and have the backend.
	Pools   []string
	Verdict string
	Since   time.Time
	// The latest results in a row that contradict the verdict.
	Contradicting int
	Last          Probe
}

// BackendDetail is one backend in each group that has it, and its checks.
type BackendDetail struct {
	Backends []BackendView
	Checks   []CheckView
}

// Backend returns everything that is known of one; false: no service here has it.
func (s *State) Backend(name string) (BackendDetail, bool) {
	if !s.HasBackend(name) {
		return BackendDetail{}, false
	}
	var detail BackendDetail
	var groups []string
	checks := map[targetCheck]*CheckView{}
	pools := slices.Sorted(slices.Values(s.current.poolsOfBackend[name]))
	for _, pool := range pools {
		groups = append(groups, s.current.groupsOf[pool]...)
		for _, c := range s.current.checks[compile.PoolBackend{Pool: pool, Backend: name}] {
			view := checks[c]
			if view == nil {
				view = s.health.viewCheck(&s.step, c)
				checks[c] = view
			}
			view.Pools = append(view.Pools, pool)
		}
	}
	for _, view := range checks {
		detail.Checks = append(detail.Checks, *view)
	}
	slices.SortFunc(detail.Checks, func(a, b CheckView) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), a.Address.Compare(b.Address), slices.Compare(a.Pools, b.Pools), cmp.Compare(a.Verdict, b.Verdict))
	})
	slices.Sort(groups)
	for _, group := range slices.Compact(groups) {
		members := s.current.groups[group]
		at, found := slices.BinarySearchFunc(members, name, func(m config.Member, name string) int { return cmp.Compare(m.Backend.Name, name) })
		if found {
			detail.Backends = append(detail.Backends, s.viewGroup(group)[at])
		}
	}
	return detail, true
}

func (h *healthState) viewCheck(at *step, c targetCheck) *CheckView {
	d := h.verdicts[c.target]
	index, _ := slices.BinarySearchFunc(at.current.targets, c.target, func(t compile.Target, key string) int { return cmp.Compare(t.Key(), key) })
	target := &at.current.targets[index]
	return &CheckView{
		HealthCheck: at.current.config.HealthCheckNamed(c.name), Kind: target.HealthCheck.Kind(), Via: target.Via(), Address: target.Address,
		Verdict: [...]string{unknown: "unknown", up: "up", down: "down"}[d.verdict], Since: d.since, Contradicting: d.streak, Last: d.last,
	}
}

// onlyService of a group; empty: it has several.
func (in *inputs) onlyService(group string) string {
	if in.servicesOf[group] != 1 {
		return ""
	}
	return in.rules[group].name
}

// warnings of the latest probes of a member.
func (h *healthState) warnings(at *step, m config.Member) []string {
	var found []string
	if len(h.warned) == 0 {
		return nil
	}
	for _, pool := range m.Pools {
		for _, c := range at.current.checks[compile.PoolBackend{Pool: pool, Backend: m.Backend.Name}] {
			if warning := h.verdicts[c.target].last.Warning; warning != "" && !slices.Contains(found, warning) {
				found = append(found, warning)
			}
		}
	}
	return found
}
