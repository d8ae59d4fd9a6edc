package config

import (
	"fmt"
	"strings"
	"time"

	"github.com/guideway/guideway/controller/check"
	configv1 "github.com/guideway/guideway/proto/guideway/config/v1"
)

const (
	intervalDefault = time.Second
	timeoutDefault  = 500 * time.Millisecond
)

func (b *builder) healthChecks() {
	names := map[string]string{}
	for i, given := range b.schema.GetHealthChecks() {
		path := fmt.Sprintf("health_checks[%d]", i)
		b.uniqueName(names, path, given.GetName())
		b.config.HealthChecks = append(b.config.HealthChecks, b.healthCheck(path, given))
	}
	b.config.checkIndex = indexOf(b.healthCheckNames())
}

func (b *builder) healthCheck(path string, given *configv1.HealthCheck) HealthCheck {
	built := HealthCheck{
		Name:     given.GetName(),
		Check:    b.kindOfCheck(path, given),
		Interval: duration(given.GetInterval(), intervalDefault),
		Rise:     int(or(given.GetRise(), 2)),
		Fall:     int(or(given.GetFall(), 3)),
		Via:      Via(or(given.GetVia(), string(ViaAuto))),
	}
	if _, isICMP := built.Check.(check.ICMP); isICMP {
		if built.Via == ViaTunnel {
			b.errorf(path+".via", "is tunnel, and backends behind it are told apart by the probe's source port, which ICMP lacks: use another kind, or `via: direct`")
		}
		built.Via = ViaDirect
	}
	built.Timeout = duration(given.GetTimeout(), min(timeoutDefault, built.Interval))
	if built.Timeout > built.Interval {
		b.errorf(path+".timeout", "is %s, longer than the interval of %s: a probe must end before the next begins", short(built.Timeout), short(built.Interval))
	}
	return built
}

// kindOfCheck is nil after a mistake.
func (b *builder) kindOfCheck(path string, given *configv1.HealthCheck) check.Check {
	found := check.Read(given, checkReader{b, path})
	fields := check.Fields()
	if len(found) == 0 {
		b.missing(path+"."+fields[0], "is missing, and so are %s: give one of them, like `tcp: {port: 80}`", strings.Join(fields[1:], ", "))
		return nil
	}
	if len(found) > 1 {
		b.errorf(path+"."+found[1].Field, "is given beside %s: give one of them, and make a second check for the other", found[0].Field)
	}
	return found[0].Check
}

// checkReader is the builder as the kinds of checks know it.
type checkReader struct {
	*builder
	// Of the health check.
	path string
}

func (r checkReader) Errorf(field, format string, args ...any) {
	r.errorf(r.path+"."+field, format, args...)
}

func (r checkReader) ReadFile(field, path string) ([]byte, bool) {
	field = r.path + "." + field
	data, _, ok := r.readNamed(field, r.besideConfig(field, path), controllerGroup, "correct the path, or create it")
	return data, ok
}
