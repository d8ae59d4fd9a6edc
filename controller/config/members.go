package config

// Pools whose backends come from a file or DNS. The config names the source; the backends
// are found at runtime and give another Config, by the same rules.

import (
	"fmt"
	"io/fs"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/guideway/guideway/controller/check"
	configv1 "github.com/guideway/guideway/proto/guideway/config/v1"
)

const (
	shrinkDelayDefault = 5 * time.Minute
	drainTimeDefault   = 5 * time.Minute
	ttlMinDefault      = 5 * time.Second
	ttlMaxDefault      = 30 * time.Second
)

// MemberSource is where a pool's members come from: a file or a domain name.
type MemberSource struct {
	// Absolute where the config file's path is; empty: DNS.
	File string
	// Without the dot at its end; empty: a file.
	DNS string
	// 0: any.
	Port uint16
	// Of DNS.
	TTLMin, TTLMax time.Duration
}

func (s MemberSource) String() string {
	if s.File != "" {
		return "file " + s.File
	}
	return "dns " + s.DNS
}

// PoolMember is a backend that a source lists.
type PoolMember struct {
	Name    string     `json:"name"`
	Address netip.Addr `json:"address"`
	Weight  uint32     `json:"weight"`
	// The source does not list it any more: it gets no new connections.
	Leaves bool `json:"-"`
}

// MemberSet of a pool, as it outlives a restart.
type MemberSet struct {
	// By the source, in order of name.
	Listed []PoolMember `json:"listed"`
	// That the source does not list any more, in order of name.
	Leaving []LeavingMember `json:"leaving,omitempty"`
	// When the source gave a set last; zero: never.
	LastSuccess time.Time `json:"last_success,omitzero"`
}

// LeavingMember drains.
type LeavingMember struct {
	PoolMember
	Until time.Time `json:"until"`
}

var memberName = regexp.MustCompile(`^[\x21-\x7e]{1,128}$`)

// ParseMember by the rules of `backends`; an empty name is the address, an empty weight 1.
func ParseMember(name, address, weight string) (PoolMember, error) {
	parsed, problem := parseAddress(address)
	if problem != "" {
		return PoolMember{}, fmt.Errorf("the address %s", problem)
	}
	m := PoolMember{Name: or(name, parsed.String()), Address: parsed, Weight: 1}
	if !memberName.MatchString(m.Name) {
		return PoolMember{}, fmt.Errorf("the name is %.140q: give 1 to 128 ASCII characters without spaces", name)
	}
	if weight != "" {
		n, err := strconv.ParseUint(weight, 10, 32)
		if err != nil || n > MemberWeightMax {
			return PoolMember{}, fmt.Errorf("the weight is %.20q: give a number from 0 to %d", weight, MemberWeightMax)
		}
		m.Weight = uint32(n)
	}
	return m, nil
}

// decoded is what a config was made of, for making it again with other members.
type decoded struct {
	schema   *configv1.Config
	digest   string // of what is shared
	document *document
	purpose  purpose
	// Of decoding.
	warnings Problems
	files    map[string]content
}

func (p *decoded) builder(report *reporter, readFile ReadFile) *builder {
	return &builder{reporter: report, schema: p.schema, readFile: readFile, config: &Config{SharedDigest: p.digest}}
}

// WithMembers is this config with other members in the pools that have a source, by the
// pools' names. The error is a *Refusal: they do not fit what the config says. Files that it
// names are not read again.
func (c *Config) WithMembers(members map[string][]PoolMember) (*Config, error) {
	if c.decoded == nil {
		return c, nil
	}
	report := newReporter(c.decoded.document, c.decoded.purpose)
	report.warnings = slices.Clone(c.decoded.warnings)
	again := func(path string) ([]byte, fs.FileMode, error) {
		read := c.decoded.files[path]
		return read.data, read.mode, read.err
	}
	b := c.decoded.builder(report, again)
	b.members = members
	return build(b)
}

// remembering what a config's files held.
func (p *decoded) remembering(readFile ReadFile) ReadFile {
	return func(path string) ([]byte, fs.FileMode, error) {
		data, mode, err := readFile(path)
		p.files[path] = content{data, mode, err}
		return data, mode, err
	}
}

// MemberPools are those that have a source, in order of the file.
func (c *Config) MemberPools() []*Pool {
	var pools []*Pool
	for i := range c.Pools {
		if c.Pools[i].From != nil {
			pools = append(pools, &c.Pools[i])
		}
	}
	return pools
}

// memberSource of a pool; nil: it has none.
func (b *builder) memberSource(path string, given *configv1.Pool) *MemberSource {
	from := given.GetFrom()
	if from == nil {
		for name, isGiven := range map[string]bool{"shrink_delay": given.ShrinkDelay != nil, "drain_time": given.DrainTime != nil} {
			if isGiven {
				b.errorf(path+"."+name, "is for pools with `from`: remove it")
			}
		}
		return nil
	}
	if len(given.GetBackends()) > 0 {
		b.errorf(path+".backends", "is given beside from: give one of them, or name a pool that has the others in `pools`")
	}
	path += ".from"
	source := &MemberSource{Port: uint16(from.GetPort())}
	switch {
	case from.GetFile() == "" && from.GetDns() == "":
		b.missing(path, "needs a source: give `file: /etc/guideway/web.json` or `dns: web.internal`")
	case from.GetFile() != "" && from.GetDns() != "":
		b.errorf(path+".dns", "is given beside file: give one of them")
	case from.GetFile() != "":
		source.File = b.besideConfig(path+".file", from.GetFile())
		if from.TtlMin != nil || from.TtlMax != nil {
			b.errorf(path, "has ttl_min or ttl_max, which are for `dns`: remove them")
		}
	default:
		b.dnsSource(path, from, source)
	}
	return source
}

func (b *builder) dnsSource(path string, from *configv1.MemberSource, source *MemberSource) {
	source.DNS = strings.TrimSuffix(from.GetDns(), ".")
	if problem := check.ProblemOfName(source.DNS); problem != "" || source.DNS == "" {
		b.errorf(path+".dns", "is %q, which %s: give a domain name, like web.internal", from.GetDns(), or(problem, "has no label"))
	}
	if _, err := netip.ParseAddr(source.DNS); err == nil {
		b.errorf(path+".dns", "is an address: give it in `backends`")
	}
	source.TTLMin, source.TTLMax = duration(from.GetTtlMin(), ttlMinDefault), duration(from.GetTtlMax(), ttlMaxDefault)
	if source.TTLMin > source.TTLMax {
		b.errorf(path+".ttl_min", "is %s, longer than ttl_max, %s: give a shorter one", short(source.TTLMin), short(source.TTLMax))
	}
}

// backendsOf a pool, in the config or by its source.
func (b *builder) backendsOf(given *configv1.Pool) []*configv1.Backend {
	if given.GetFrom() == nil {
		return given.GetBackends()
	}
	var backends []*configv1.Backend
	for _, m := range b.members[given.GetName()] {
		weight := m.Weight
		if m.Leaves {
			weight = 0
		}
		backends = append(backends, &configv1.Backend{Name: &m.Name, Address: m.Address.String(), Weight: &weight})
	}
	return backends
}

// markLeaving those of a pool that its source does not list any more.
func (b *builder) markLeaving(pool *Pool) {
	leaving := map[string]bool{}
	for _, m := range b.members[pool.Name] {
		leaving[m.Name] = m.Leaves
	}
	for i := range pool.Backends {
		pool.Backends[i].Leaves = leaving[pool.Backends[i].Name]
	}
}

// hasSource: a pool of the service, or one that these name, has one.
func (b *builder) hasSource(service *Service) bool {
	seen := map[string]bool{}
	var visit func(names []string) bool
	visit = func(names []string) bool {
		return slices.ContainsFunc(names, func(name string) bool {
			pool := b.config.PoolNamed(name)
			if pool == nil || seen[name] {
				return false
			}
			seen[name] = true
			return pool.From != nil || visit(pool.Pools)
		})
	}
	return visit(service.Pools) || visit(service.BackupPools)
}

// checkSources refuses what machines cannot find out each by itself.
func (b *builder) checkSources() {
	for i := range b.config.Services {
		if service := &b.config.Services[i]; service.Mode == ModeStateless && b.config.Etcd != nil && b.hasSource(service) {
			b.errorf(fmt.Sprintf("services[%d].pools", i), "has a pool with `from`, and the machines agree on the service's bucket map by etcd: they would have to agree on its backends, too; list the backends in the config, or use stateful")
		}
	}
}
