package config

// A config whose shared part is in etcd, with the other part in each machine's own files.

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	configv1 "github.com/guideway/guideway/proto/guideway/config/v1"
)

// Etcd is where the machines of a cluster share their config.
type Etcd struct {
	// The cluster's name, part of every key: the same as Cluster.Name.
	Cluster string
	// URLs, at least one, all of one scheme, http or https.
	Endpoints []string
	// Paths. Without a CA the system's authorities count; certificate and key are
	// both given or both empty.
	CAFile, CertFile, KeyFile string
	// Both given or both empty.
	User, PasswordFile string
}

// machineKeys are the top-level keys of a machine's own; all others are shared.
var machineKeys = []string{"machine", "machines", "forwarder", "speaker", "metrics", "bgp", "vrrp", "etcd", "api", "hooks"}

// EtcdOf reads `etcd` alone, in a machine's files, whose other part may still be
// there; nil: they have none. The error is a *Refusal.
func (r Reader) EtcdOf(sources []Source) (*Etcd, error) {
	document, problems := readDocument(sources)
	if len(problems) > 0 {
		return nil, &Refusal{Errors: problems.gathered()}
	}
	alone := *document
	alone.keys, alone.values = nil, map[string]topLevel{}
	for _, key := range []string{"etcd", "machines"} {
		if given, there := document.values[key]; there {
			alone.keys, alone.values[key] = append(alone.keys, key), given
		}
	}
	report := newReporter(&alone, toServe)
	schema := decode(&alone, report)
	if schema != nil && len(report.errors) == 0 {
		r.chooseMachine(schema, report)
	}
	if schema.GetEtcd() == nil {
		return nil, nil // what else is wrong is told when all is parsed
	}
	field := alone.real("etcd")
	checkRules(schema, report)
	report.errors = slices.DeleteFunc(report.errors, func(p Problem) bool { return !strings.HasPrefix(p.Field, field) })
	builder := &builder{reporter: report, schema: schema, readFile: r.ReadFile, config: &Config{}}
	if len(report.errors) == 0 {
		builder.etcd()
	}
	if len(report.errors) > 0 {
		return nil, report.refusal()
	}
	return builder.config.Etcd, nil
}

// MarkShared finds, of files of which others are a machine's own, the one with what all
// machines share, and makes it a first generation of etcd's; false: there is none, or
// more than one.
func MarkShared(sources []Source) bool {
	found := -1
	for i, source := range sources {
		document, _ := readDocument([]Source{source}) // what is wrong is told when all are parsed
		isShared := func(key string) bool { return isTopLevel(key) && !slices.Contains(machineKeys, key) }
		switch {
		case !slices.ContainsFunc(document.keys, isShared):
		case found >= 0 || slices.ContainsFunc(document.keys, func(key string) bool { return slices.Contains(machineKeys, key) }):
			return false
		default:
			found = i
		}
	}
	if found < 0 {
		return false
	}
	sources[found].Generation = 1
	return true
}

// checkHomes: each top-level key stands where it belongs, if one of the sources
// is etcd's.
func checkHomes(d *document, r *reporter) {
	if d.shared == "" {
		return
	}
	for _, key := range d.keys {
		value := d.values[key]
		machines := slices.Contains(machineKeys, key)
		switch {
		case value.file == d.shared && machines:
			r.errorf(key, "is each machine's own, and this config is for all of them: write it into the config file on each machine")
		case value.file != d.shared && !machines && isTopLevel(key):
			r.errorf(key, "is shared by the machines of the cluster and comes from etcd, because `etcd` is given: remove it here; `guideway config apply` stores it there")
		}
	}
}

// isTopLevel: there is such a key; else it is misspelt, which is said already.
func isTopLevel(key string) bool {
	return slices.Contains(fieldNames((&configv1.Config{}).ProtoReflect().Descriptor()), key)
}

func (b *builder) etcd() {
	given := b.schema.GetEtcd()
	if given == nil {
		return
	}
	etcd := &Etcd{
		Cluster: or(given.GetCluster(), "default"), Endpoints: given.GetEndpoints(), User: given.GetUser(),
		CAFile: b.etcdFile("etcd.tls.ca_file", given.GetTls().GetCaFile()), CertFile: b.etcdFile("etcd.tls.cert_file", given.GetTls().GetCertFile()),
		KeyFile: b.etcdFile("etcd.tls.key_file", given.GetTls().GetKeyFile()), PasswordFile: b.etcdFile("etcd.password_file", given.GetPasswordFile()),
	}
	if strings.Contains(etcd.Cluster, "/") {
		b.errorf("etcd.cluster", "is %q: give a name without a /, which divides etcd's keys", etcd.Cluster)
	}
	b.endpoints(etcd.Endpoints)
	if (etcd.CertFile == "") != (etcd.KeyFile == "") {
		b.errorf("etcd.tls", "has only one of cert_file and key_file: give both, or neither")
	}
	if (etcd.User == "") != (etcd.PasswordFile == "") {
		b.errorf("etcd", "has only one of user and password_file: give both, or neither where etcd knows users by certificates")
	}
	if given.GetTls() != nil && len(etcd.Endpoints) > 0 && strings.HasPrefix(etcd.Endpoints[0], "http://") {
		b.errorf("etcd.tls", "is given, and the endpoints are http: write https")
	}
	b.config.Etcd = etcd
}

// etcdFile is read when a connection is made: what is wrong with it then is no
// reason not to balance.
func (b *builder) etcdFile(field, given string) string {
	if given == "" {
		return ""
	}
	path := b.besideConfig(field, given)
	if _, _, err := b.readFile(path); err != nil {
		b.warnf(field, "%v: etcd is not reached until the controller can read it", err)
	}
	return path
}

func (b *builder) endpoints(given []string) {
	for i, endpoint := range given {
		field := fmt.Sprintf("etcd.endpoints[%d]", i)
		parsed, err := url.Parse(endpoint)
		switch {
		case err != nil || parsed.Scheme != "http" && parsed.Scheme != "https" || parsed.Host == "" || strings.Trim(parsed.Path, "/") != "" || parsed.User != nil:
			b.errorf(field, "is %q: give a URL of scheme, host and port, like https://10.0.0.5:2379", endpoint)
		case parsed.Port() == "":
			b.errorf(field, "is %q, without a port: etcd's for clients is 2379", endpoint)
		case !strings.HasPrefix(given[0], parsed.Scheme+"://"):
			b.errorf(field, "is %q, and %s has another scheme: all endpoints have one", endpoint, given[0])
		case slices.Contains(given[:i], endpoint):
			b.errorf(field, "%s is listed twice: remove one", endpoint)
		}
	}
}

// checkEtcd: the cluster whose keys are read is the one that the config is for.
func (b *builder) checkEtcd() {
	if etcd := b.config.Etcd; etcd != nil && b.document.shared != "" && etcd.Cluster != b.config.Cluster.Name {
		b.errorf("cluster.name", "is %q, and etcd.cluster in this machine's files %q: a config is for one cluster; correct one of the two", b.config.Cluster.Name, etcd.Cluster)
	}
}

// isThisMachine: a list of peers that all machines share has each of them.
func (b *builder) isThisMachine(name string, addresses []netip.Addr) bool {
	return name == b.config.Machine.Name && slices.Equal(slices.SortedFunc(slices.Values(addresses), netip.Addr.Compare),
		slices.SortedFunc(slices.Values(b.config.Machine.Addresses), netip.Addr.Compare))
}
