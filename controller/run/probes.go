package run

// Connects the prober and the brain: which of the brain's targets a probe is for, and
// warnings of what will make probes fail.

import (
	"maps"
	"slices"
	"time"

	"github.com/guideway/guideway/controller/brain"
	"github.com/guideway/guideway/controller/compile"
	"github.com/guideway/guideway/controller/sinks/prober"
)

// probed is one probe; of the goroutine that owns the brain.
type probed struct {
	// Of the brain's targets, which differ in rise and fall.
	keys []string
	// Whom it concerns, by backend and check.
	concerns []concern
	// The latest, so that it is logged once.
	warning string
}

type concern struct{ backend, check string }

func (c *Controller) setTargets(targets []compile.Target) {
	former := c.targets
	c.targets = make(map[compile.Probe]*probed, len(targets))
	for _, t := range targets {
		p := c.targets[t.Probe]
		if p == nil {
			p = &probed{}
			c.targets[t.Probe] = p
		}
		p.keys = append(p.keys, t.Key())
		for _, at := range t.For {
			if who := (concern{at.Backend, t.HealthCheck.Name}); !slices.Contains(p.concerns, who) {
				p.concerns = append(p.concerns, who)
			}
		}
		if f := former[t.Probe]; f != nil {
			p.warning = f.warning
		}
	}
	c.metrics.ForgetCertificates()
	c.prober.Set(slices.Collect(maps.Keys(c.targets)))
}

func (c *Controller) takeResult(result prober.Result) {
	if result.Unsent {
		c.probeUnsent(result)
		return
	}
	c.metrics.Probed(result.OK, result.Duration, result.Delay)
	p := c.targets[result.Probe]
	if p == nil {
		return // no longer wanted
	}
	c.warnOfCertificate(p, result)
	for _, key := range p.keys {
		c.Step(brain.ProbeResult{
			Target: key, OK: result.OK, Reason: result.Reason, Tunnelled: result.Probe.Tunnel.End.IsValid(), Took: result.Duration,
			Warning: result.Answer.Warning, Expires: result.Answer.Expires,
		})
	}
}

// probeUnsent: people see it with the backends, and the first of a kind in the log.
func (c *Controller) probeUnsent(result prober.Result) {
	p := c.targets[result.Probe]
	if p == nil {
		return // no longer wanted
	}
	c.metrics.ProbeUnsent()
	if result.Reason != c.unsent {
		c.unsent = result.Reason
		c.log.Warn("a health check through the tunnel cannot be sent, which says nothing about the backend",
			"backend", result.Probe.Tunnel.Backend, "vip", result.Probe.Address, "reason", result.Reason)
	}
	for _, key := range p.keys {
		c.Step(brain.ProbeUnsent{Target: key, Reason: result.Reason})
	}
}

// warnOfCertificate: each text is logged once; it has the days that are left.
func (c *Controller) warnOfCertificate(p *probed, result prober.Result) {
	if !result.OK {
		return // the failure says it
	}
	for _, who := range p.concerns {
		if !result.Answer.Expires.IsZero() {
			c.metrics.Certificate(who.backend, who.check, result.Answer.Expires)
		}
		if result.Answer.Warning != "" && result.Answer.Warning != p.warning {
			c.log.Warn("certificate expires", "backend", who.backend, "check", who.check,
				"at", result.Answer.Expires.UTC().Format(time.RFC3339), "reason", result.Answer.Warning)
		}
	}
	p.warning = result.Answer.Warning
}
