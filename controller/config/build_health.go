package config

import (
	"fmt"
	"strings"
	"time"

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
	check := HealthCheck{
		Name:     given.GetName(),
		HTTP:     b.httpCheck(path+".http", given.GetHttp()),
		Interval: duration(given.GetInterval(), intervalDefault),
		Rise:     int(or(given.GetRise(), 2)),
		Fall:     int(or(given.GetFall(), 3)),
		Via:      Via(or(given.GetVia(), string(ViaDirect))),
	}
	if tcp := given.GetTcp(); tcp != nil {
		check.TCP = &TCPCheck{Port: uint16(tcp.GetPort())}
	}
	switch {
	case given.GetHttp() == nil && given.GetTcp() == nil:
		b.missing(path+".http", "is missing, and so is tcp: give one of them, like `tcp: {port: 80}`")
	case given.GetHttp() != nil && given.GetTcp() != nil:
		b.errorf(path+".tcp", "is given beside http: give one of them, and make a second check for the other")
	}
	check.Timeout = duration(given.GetTimeout(), min(timeoutDefault, check.Interval))
	if check.Timeout > check.Interval {
		b.errorf(path+".timeout", "is %s, longer than the interval of %s: a probe must end before the next begins", short(check.Timeout), short(check.Interval))
	}
	return check
}

func (b *builder) httpCheck(path string, given *configv1.HttpCheck) *HTTPCheck {
	if given == nil {
		return nil
	}
	check := &HTTPCheck{Port: uint16(given.GetPort()), Path: or(given.GetPath(), "/"), Host: given.GetHost()}
	if !strings.HasPrefix(check.Path, "/") || hasSpace(check.Path) {
		b.errorf(path+".path", "is %q: begin with a slash, and write spaces as %%20", check.Path)
	}
	if hasSpace(check.Host) {
		b.errorf(path+".host", "is %q: give a host name, without spaces", check.Host)
	}
	for _, status := range given.GetStatus() {
		check.Status = append(check.Status, int(status))
	}
	if len(check.Status) == 0 {
		check.Status = []int{200}
	}
	return check
}

// hasSpace finds what would split or end a line of an HTTP request.
func hasSpace(text string) bool {
	return strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r == 0x7f })
}
