package keepalived

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/outside"
	configv1 "github.com/guideway/guideway/proto/guideway/config/v1"
)

// Each time what was refused is left out, which uncovers what was hidden behind it.
const settlingsMax = 20

// Of one mistake, as it is told.
const messageMax = 2 << 10

// Settle leaves out what a check of the configuration refuses, each with a note that says why, so
// that the rest is one that can be used. An error is about what cannot be left out.
func (r *Result) Settle(readFile config.ReadFile) error {
	for range settlingsMax {
		if len(r.Config.Services) == 0 {
			return nil
		}
		text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(r.Config)
		if err != nil {
			return fmt.Errorf("write the configuration: %w", err)
		}
		_, err = config.Parse([]config.Source{{Name: "imported", Data: text}}, readFile)
		var refusal *config.Refusal
		if !errors.As(err, &refusal) {
			return err
		}
		if !r.leaveOut(refusal.Each) {
			return refusal
		}
		r.sweep()
	}
	return errors.New("what was converted is no configuration that can be used: report this, with keepalived's configuration (docs/versions.md)")
}

// leaveOut what has a problem; false if that is nothing that can be.
func (r *Result) leaveOut(problems config.Problems) (any bool) {
	refused := map[proto.Message]bool{}
	for _, p := range problems {
		m, parent := r.at(p.Field)
		if m == nil || refused[m] {
			continue
		}
		refused[m] = true
		r.note(parent, LeftOut, r.origins[m], "%s", r.inWords(outside.Line(p.Message, messageMax)))
	}
	c := r.Config
	c.Services = without(c.Services, refused)
	for _, service := range c.Services {
		service.Vips = without(service.Vips, refused)
	}
	c.Pools = without(c.Pools, refused)
	for _, pool := range c.Pools {
		pool.Backends = without(pool.Backends, refused)
	}
	c.HealthChecks = without(c.HealthChecks, refused)
	return len(refused) > 0
}

var vipField = regexp.MustCompile(`services\[(\d+)\]\.vips\[\d+\](?: \(line \d+\))?`)

// inWords of people who have not seen our config: its services by name.
func (r *Result) inWords(message string) string {
	return vipField.ReplaceAllStringFunc(message, func(field string) string {
		m, _ := r.at(field[:strings.Index(field, ".")])
		service, _ := m.(*configv1.Service)
		return "service " + service.GetName()
	})
}

func without[M proto.Message](messages []M, refused map[proto.Message]bool) []M {
	return slices.DeleteFunc(messages, func(m M) bool { return refused[m] })
}

var itemField = regexp.MustCompile(`^(services|pools|health_checks)\[(\d+)\](?:\.(vips|backends)\[(\d+)\])?`)

// at a field is the innermost message that can be left out, and the one around it, if any.
func (r *Result) at(field string) (m, parent proto.Message) {
	found := itemField.FindStringSubmatch(field)
	if found == nil {
		return nil, nil
	}
	outer, _ := strconv.Atoi(found[2])
	inner, _ := strconv.Atoi(found[4])
	switch {
	case found[1] == "health_checks":
		return r.Config.HealthChecks[outer], nil
	case found[3] == "vips":
		service := r.Config.Services[outer]
		return service.Vips[inner], service
	case found[3] == "backends":
		pool := r.Config.Pools[outer]
		return pool.Backends[inner], pool
	case found[1] == "services":
		return r.Config.Services[outer], nil
	}
	return r.Config.Pools[outer], nil
}

// sweep out what nothing names any more, and what has nothing left. What is lost by that is told.
func (r *Result) sweep() {
	c := r.Config
	checks := namesOf(c.HealthChecks)
	c.Pools = slices.DeleteFunc(c.Pools, func(pool *configv1.Pool) bool {
		pool.HealthChecks = slices.DeleteFunc(pool.HealthChecks, func(name string) bool { return !checks[name] })
		if len(pool.Backends) == 0 {
			r.note(nil, LeftOut, r.origins[pool], "pool %s has no backend left", pool.Name)
		}
		return len(pool.Backends) == 0
	})
	pools := namesOf(c.Pools)
	isGone := func(name string) bool { return !pools[name] }
	c.Services = slices.DeleteFunc(c.Services, func(service *configv1.Service) bool {
		service.Pools = slices.DeleteFunc(service.Pools, isGone)
		service.BackupPools = slices.DeleteFunc(service.BackupPools, isGone)
		if len(service.Vips) > 0 && len(service.Pools) > 0 {
			return false
		}
		r.note(nil, LeftOut, r.origins[service], "service %s has no VIP or no backend left", service.Name)
		return true
	})
	usedPools, usedChecks := map[string]bool{}, map[string]bool{}
	for _, service := range c.Services {
		for _, name := range slices.Concat(service.Pools, service.BackupPools) {
			usedPools[name] = true
		}
	}
	c.Pools = slices.DeleteFunc(c.Pools, func(pool *configv1.Pool) bool { return !usedPools[pool.Name] })
	for _, pool := range c.Pools {
		for _, name := range pool.HealthChecks {
			usedChecks[name] = true
		}
	}
	c.HealthChecks = slices.DeleteFunc(c.HealthChecks, func(check *configv1.HealthCheck) bool { return !usedChecks[check.Name] })
	r.lift()
}

// lift notes above messages that are gone to the end.
func (r *Result) lift() {
	there := map[proto.Message]bool{r.Config.Machine: true}
	for _, service := range r.Config.Services {
		there[service] = true
	}
	for _, pool := range r.Config.Pools {
		there[pool] = true
		for _, backend := range pool.Backends {
			there[backend] = true
		}
	}
	for _, check := range r.Config.HealthChecks {
		there[check] = true
	}
	for i := range r.notes {
		if !there[r.notes[i].target] {
			r.notes[i].target = nil
		}
	}
}

func namesOf[M interface{ GetName() string }](messages []M) map[string]bool {
	names := make(map[string]bool, len(messages))
	for _, m := range messages {
		names[m.GetName()] = true
	}
	return names
}
