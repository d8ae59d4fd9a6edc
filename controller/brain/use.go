package brain

// Which backends of a group get new connections: its own, those of the backup pools, or, if
// both are too few, those chosen by spill and when_none. Decided only for groups in which a
// backend changed.

import (
	"fmt"
	"net/netip"

	"github.com/guideway/guideway/controller/compile"
	"github.com/guideway/guideway/controller/config"
)

// groupUse is how a group is used, and by which numbers of active backends.
type groupUse struct {
	how         compile.Use
	own, backup int
}

// groupRule is what the services of a group have in common.
type groupRule struct {
	min       int
	hasBackup bool
	failOpen  bool
	spill     []netip.Prefix
	// The only service, or how many there are.
	name string
}

func ruleOf(service *config.Service) groupRule {
	rule := groupRule{min: service.BackendsMin, hasBackup: len(service.BackupPools) > 0, name: service.Name}
	for _, spill := range service.Spill {
		rule.spill = append(rule.spill, spill.Prefix)
	}
	rule.failOpen = service.WhenNone == config.WhenNoneFailOpen && len(rule.spill) == 0
	return rule
}

// decideUse of groups in which something changed.
func (h *healthState) decideUse(at *step, peers *peersState, groups map[string][]config.Member) {
	for name, members := range groups {
		now := groupUse{}
		for _, m := range members {
			switch state, _ := h.stateOf(m); {
			case state != stateActive:
			case m.IsBackup:
				now.backup++
			default:
				now.own++
			}
		}
		rule := at.current.rules[name]
		active := useOf(rule, &now, peers)
		h.noteUse(at, name, rule, now)
		h.use[name], h.active[name] = now, active
	}
}

// useOf decides how, and returns how many backends then take new connections.
// With none at all the forwarder does by itself what spill and when_none say.
func useOf(rule groupRule, u *groupUse, peers *peersState) int {
	active := u.own
	if u.own < rule.min && rule.hasBackup {
		u.how, active = compile.UseBackup, u.own+u.backup
	}
	switch {
	case active == 0 || active >= rule.min:
	case peers.canSpill(rule):
		u.how, active = compile.UseNone, 0
	case rule.failOpen:
		u.how = compile.UseDown
	}
	return active
}

// canSpill: what is left serves better than clusters that are all down.
func (p *peersState) canSpill(rule groupRule) bool {
	for _, prefix := range rule.spill {
		if !p.spillDown(prefix) {
			return true
		}
	}
	return false
}

// spillChanged: groups that spill with backends left are to be decided anew.
func (h *healthState) spillChanged(at *step) {
	if at.current == nil {
		return
	}
	for _, group := range at.current.spilling {
		for _, m := range at.current.groups[group] {
			h.due.add(m.Pools...)
		}
	}
}

func (h *healthState) noteUse(at *step, group string, rule groupRule, now groupUse) {
	former, known := h.use[group]
	if former.how == now.how || !known && now.how == compile.UseOwn {
		return
	}
	from := "new"
	if known {
		from = useName(former.how)
	}
	name := rule.name
	if n := at.current.servicesOf[group]; n > 1 {
		name = fmt.Sprintf("%d services of %s", n, group)
	}
	at.note("service", name, from, useName(now.how), now.numbers(rule))
}

// numbers that the decision was made by.
func (u groupUse) numbers(rule groupRule) string {
	text := fmt.Sprintf("%d of its own backends active", u.own)
	if rule.hasBackup {
		text += fmt.Sprintf(", %d of its backup pools", u.backup)
	}
	return text + fmt.Sprintf("; backends_min %d", rule.min)
}

func useName(how compile.Use) string {
	return [...]string{
		compile.UseOwn: "on its own pools", compile.UseBackup: "on its backup pools",
		compile.UseNone: "spilling", compile.UseDown: "failing open",
	}[how]
}

// enough active backends for the service.
func enough(service *config.Service, active int) bool {
	return active >= service.BackendsMin || active > 0 && service.WhenNone == config.WhenNoneKeep && len(service.Spill) == 0
}

// tooFew active backends for the service; with how many, in words.
func (h *healthState) tooFew(service *config.Service) (reason string, isSo bool) {
	active := h.active[service.Group]
	if enough(service, active) {
		return "", false
	}
	if service.BackendsMin == 1 && len(service.BackupPools) == 0 {
		return "", true
	}
	return h.use[service.Group].numbers(ruleOf(service)), true
}

// takesNew connections: by its state and by the use of its group.
func (h *healthState) takesNew(group string, m config.Member) bool {
	state, _ := h.stateOf(m)
	return h.use[group].how.State(m, state) == stateActive
}

// memberUse says what a member does that its own state does not; and that state in
// other words, if there are any.
func (h *healthState) memberUse(at *step, group string, m config.Member, state string) (shown, reason string) {
	use := h.use[group]
	if use.how == compile.UseOwn && !m.IsBackup {
		return state, ""
	}
	rule := at.current.rules[group]
	switch {
	case state == "active" && use.how == compile.UseOwn && m.IsBackup:
		return "standby", fmt.Sprintf("backup, used while fewer than %d of the own are active", rule.min)
	case state == "active" && use.how == compile.UseNone:
		return "draining", "new connections are spilled: " + use.numbers(rule)
	case state == "down" && use.how == compile.UseDown:
		return state, "used nevertheless: " + use.numbers(rule)
	}
	return state, ""
}
