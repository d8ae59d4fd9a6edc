// Package blackbox probes VIPs as clients do: by real connections from many source ports,
// without help from any of Guideway's processes (the Maglev paper, section 4.4).
//
//	targets ─► rounds ─► an attempt from each source port ─┬─► metrics
//	                                                       └─► what changed, in words
//
// Each round uses other source ports, which the router's ECMP and Maglev hashing distribute
// over all load balancers and backends. So the share of failed attempts indicates how much
// of either is broken. Package check defines what is exchanged with a server.
package blackbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"buf.build/go/protovalidate"

	"github.com/guideway/guideway/controller/check"
	"github.com/guideway/guideway/controller/config"
	configv1 "github.com/guideway/guideway/proto/guideway/config/v1"
)

// Target is one port of one VIP, and how it is tried.
type Target struct {
	// As people write it: http://203.0.113.10:80/healthz. With the address it is
	// unique.
	Name string
	// The service of the config that it is from; empty: none.
	Service string
	Address netip.Addr
	Port    uint16
	// Of its connections: tcp or udp.
	Protocol string
	Check    check.Check
}

// Title names a target in one word or a few.
func (t Target) Title() string {
	if strings.Contains(t.Name, t.Address.String()) {
		return t.Name
	}
	return t.Name + " at " + t.Address.String()
}

// Parser makes targets of what people write.
type Parser struct {
	// File with certificates of authorities, for https and tls. Empty: the system's.
	CAFile string
	// Any certificate passes.
	Unverified bool
	// Lookup a host's addresses.
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error)
}

// Examples of targets, for messages.
const Examples = "http://203.0.113.10/, https://www.example.com/, tcp://203.0.113.10:5432, tls://203.0.113.10:636, dns://203.0.113.53/www.example.com or udp://203.0.113.10:7000?payload=ping"

// scheme of a target: its default port (0: none), what follows the port, and
// the check that it stands for.
type scheme struct {
	protocol string
	port     uint16
	path     bool
	query    []string // parameters; nil with path: any query
	check    func(p Parser, at parts) *configv1.HealthCheck
}

// parts of a target as it was written.
type parts struct {
	port uint16
	// With the port if one was given; empty: an address was.
	host, hostName string
	path           string
	query          url.Values
}

var schemes = map[string]scheme{
	"http":  {protocol: "tcp", port: 80, path: true, check: httpCheck},
	"https": {protocol: "tcp", port: 443, path: true, check: httpsCheck},
	"tcp":   {protocol: "tcp", query: []string{}, check: tcpCheck},
	"tls":   {protocol: "tcp", query: []string{}, check: tlsCheck},
	"dns":   {protocol: "udp", port: 53, path: true, query: []string{"type"}, check: dnsCheck},
	"udp":   {protocol: "udp", query: []string{"payload", "payload_hex", "answer", "answer_hex"}, check: udpCheck},
}

// ErrSyntax is a target that means nothing.
var ErrSyntax = errors.New("is no target")

// Parse a target. A host's name is one for each of its addresses.
func (p Parser) Parse(ctx context.Context, text string) ([]Target, error) {
	refuse := func(format string, args ...any) ([]Target, error) {
		return nil, fmt.Errorf("%q %w: it %s", text, ErrSyntax, fmt.Sprintf(format, args...))
	}
	word, _, found := strings.Cut(text, "://")
	kind, known := schemes[word]
	if !found || !known {
		return refuse("does not begin with a scheme that is known: write it like %s", Examples)
	}
	written, err := url.Parse(text)
	if err != nil {
		return refuse("cannot be read (%v): write an IPv6 address in brackets, and other characters than letters and digits as %%xx", reasonOfURL(err))
	}
	at, problem := kind.partsOf(written)
	if problem != "" {
		return refuse("%s", problem)
	}
	checked, err := readCheck(kind.check(p, at))
	if err != nil {
		return refuse("cannot be tried: %v", err)
	}
	addresses, err := p.addresses(ctx, written.Hostname())
	if err != nil {
		return nil, err
	}
	var targets []Target
	for _, address := range addresses {
		targets = append(targets, Target{Name: written.String(), Address: address, Port: at.port, Protocol: kind.protocol, Check: checked})
	}
	return targets, nil
}

func reasonOfURL(err error) error {
	var inURL *url.Error
	if errors.As(err, &inURL) {
		return inURL.Err
	}
	return err
}

// partsOf a target, or what is wrong with it.
func (s scheme) partsOf(written *url.URL) (at parts, problem string) {
	at = parts{port: s.port, path: written.EscapedPath(), query: written.Query()}
	if written.RawQuery != "" && s.query == nil {
		at.path = cmp.Or(at.path, "/") + "?" + written.RawQuery
	}
	if given := written.Port(); given != "" {
		port, err := strconv.ParseUint(given, 10, 16)
		if err != nil || port == 0 {
			return at, fmt.Sprintf("has port %s: give 1 to 65535", given)
		}
		at.port = uint16(port)
	}
	if _, err := netip.ParseAddr(written.Hostname()); err != nil {
		at.host, at.hostName = written.Host, written.Hostname()
	}
	switch {
	case written.Hostname() == "":
		return at, "has no address: write it like " + Examples
	case at.port == 0:
		return at, fmt.Sprintf("has no port: write %s://%s:PORT", written.Scheme, written.Host)
	case written.User != nil || written.Fragment != "":
		return at, "has a user or a fragment (`#`), which are never sent: leave them out"
	case !s.path && strings.Trim(at.path, "/") != "":
		return at, fmt.Sprintf("has a path, which %s has not: leave it out", written.Scheme)
	}
	return at, s.problemOfQuery(written.Scheme, at.query)
}

func (s scheme) problemOfQuery(word string, query url.Values) string {
	for name := range query {
		switch {
		case s.query == nil:
		case len(s.query) == 0:
			return fmt.Sprintf("has parameters (`?`), which %s has not: leave them out", word)
		case !slices.Contains(s.query, name):
			return fmt.Sprintf("has the parameter %q, and %s has %s", name, word, strings.Join(s.query, ", "))
		case len(query[name]) > 1:
			return fmt.Sprintf("has the parameter %q twice: give it once", name)
		}
	}
	return ""
}

// addresses of a host: its own, or all that its name has.
func (p Parser) addresses(ctx context.Context, host string) ([]netip.Addr, error) {
	if address, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{address.Unmap()}, nil
	}
	addresses, err := p.Lookup(ctx, host)
	if err != nil {
		return nil, fmt.Errorf("look up the address of %s: %w: give an address, or a name that DNS has", host, err)
	}
	for i := range addresses {
		addresses[i] = addresses[i].Unmap()
	}
	slices.SortFunc(addresses, netip.Addr.Compare)
	return slices.Compact(addresses), nil
}

// LookupHost by the system's resolver.
func LookupHost(ctx context.Context, host string) ([]netip.Addr, error) {
	addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	var inDNS *net.DNSError
	if errors.As(err, &inDNS) {
		return nil, errors.New(inDNS.Err) // the name is said beside it
	}
	return addresses, err
}

// readCheck as the config reads it, with the same rules.
func readCheck(given *configv1.HealthCheck) (check.Check, error) {
	given.Name = "probe"
	var invalid *protovalidate.ValidationError
	if err := protovalidate.Validate(given); errors.As(err, &invalid) {
		first := invalid.Violations[0].Proto
		return nil, fmt.Errorf("%s %s", protovalidate.FieldPathString(first.GetField()), first.GetMessage())
	} else if err != nil {
		return nil, err
	}
	var reader checkReader
	found := check.Read(given, &reader)
	if reader.problem != nil {
		return nil, reader.problem
	}
	return found[0].Check, nil
}

// checkReader keeps the first mistake.
type checkReader struct{ problem error }

func (r *checkReader) Errorf(field, format string, args ...any) {
	if r.problem == nil {
		r.problem = fmt.Errorf(field+" "+format, args...)
	}
}

func (r *checkReader) ReadFile(field, path string) ([]byte, bool) {
	data, _, err := config.ReadFromDisk(path)
	if err != nil {
		r.Errorf(field, "cannot be read: %v", err)
	}
	return data, err == nil
}

// answered: statuses by which a server shows that it is reached and serves.
func answered() (statuses []uint32) {
	for status := uint32(200); status < 400; status++ {
		statuses = append(statuses, status)
	}
	return statuses
}

func httpCheck(_ Parser, at parts) *configv1.HealthCheck {
	return &configv1.HealthCheck{Http: &configv1.HttpCheck{
		Port: uint32(at.port), Path: given(at.path), Host: given(at.host), Status: answered(),
	}}
}

func httpsCheck(p Parser, at parts) *configv1.HealthCheck {
	return &configv1.HealthCheck{Https: &configv1.HttpsCheck{
		Port: uint32(at.port), Path: given(at.path), Host: given(at.host), Status: answered(),
		Tls: &configv1.Tls{ServerName: given(at.hostName), CaFile: given(p.CAFile), Verify: p.verify()},
	}}
}

func tcpCheck(_ Parser, at parts) *configv1.HealthCheck {
	return &configv1.HealthCheck{Tcp: &configv1.TcpCheck{Port: uint32(at.port)}}
}

func tlsCheck(p Parser, at parts) *configv1.HealthCheck {
	return &configv1.HealthCheck{Tls: &configv1.TlsCheck{
		Port: uint32(at.port), ServerName: given(at.hostName), CaFile: given(p.CAFile), Verify: p.verify(),
	}}
}

func dnsCheck(_ Parser, at parts) *configv1.HealthCheck {
	port := uint32(at.port)
	return &configv1.HealthCheck{Dns: &configv1.DnsCheck{
		Port: &port, Name: strings.Trim(at.path, "/"), Type: given(strings.ToUpper(at.query.Get("type"))),
	}}
}

func udpCheck(_ Parser, at parts) *configv1.HealthCheck {
	return &configv1.HealthCheck{Udp: &configv1.UdpCheck{
		Port: uint32(at.port), Payload: given(at.query.Get("payload")), PayloadHex: given(at.query.Get("payload_hex")),
		Answer: given(at.query.Get("answer")), AnswerHex: given(at.query.Get("answer_hex")),
	}}
}

// given is nil for what was not.
func given(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

func (p Parser) verify() *bool {
	if !p.Unverified {
		return nil
	}
	return new(bool)
}
