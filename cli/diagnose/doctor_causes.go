package diagnose

// Each cause is reported once: if the line of a cause fails, the lines of its consequences
// are left out, or state only their effect.

import (
	"fmt"
	"slices"
	"strings"
)

// consequence of what another line tells.
type consequence struct {
	of string
	// What is told where that line fails; empty: nothing.
	effect string
}

// follows says of what the finding that was added last is a consequence; of nothing: of none.
func (p *diagnosis) follows(of, effect string) {
	if of == "" {
		return
	}
	if p.consequences == nil {
		p.consequences = map[int]consequence{}
	}
	p.consequences[len(p.findings)-1] = consequence{of, effect}
}

// causeOf a reason that controller or speaker give: the line that tells more of it.
func (p *diagnosis) causeOf(reason string) string {
	for _, d := range p.status.GetDevices() {
		if strings.Contains(reason, "device "+d.Interface+" ") {
			return d.Interface
		}
	}
	for _, known := range []struct{ begin, line string }{
		{"forwarder: ", "forwarder"}, {"speaker: ", "speaker"}, {"no BGP session up", "bgp"},
		{"this machine is cut off", "machine"}, {"every pool fails and the gateway", p.linkDown()},
		{"no backend", "service"}, {"no service is served: ", "service"},
	} {
		if strings.HasPrefix(reason, known.begin) {
			return known.line
		}
	}
	return ""
}

// linkDown is the first interface, if none is up: backends and routers cannot be reached then.
func (p *diagnosis) linkDown() string {
	devices := p.status.GetDevices()
	for _, d := range devices {
		if d.Up && !d.Gone {
			return ""
		}
	}
	if len(devices) == 0 {
		return ""
	}
	return devices[0].Interface
}

// told are the findings, each cause once.
func (p *diagnosis) told() (told []finding) {
	fails := func(what string) bool {
		return slices.ContainsFunc(p.findings, func(f finding) bool { return f.What == what && f.Grade == gradeFail })
	}
	for i, f := range p.findings {
		if c, isOne := p.consequences[i]; isOne && fails(c.of) {
			if c.effect == "" {
				continue
			}
			f.Text = fmt.Sprintf("%s: see `%s`", c.effect, c.of)
		}
		told = append(told, f)
	}
	return told
}
