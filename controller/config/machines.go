package config

// A config for several machines in one file: `machines` instead of `machine`. The entry of
// this machine becomes its `machine`, its other fields replace those outside, and the other
// entries become peers.

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	configv1 "github.com/guideway/guideway/proto/guideway/config/v1"
)

// HostName of this machine, by which it finds its entry of `machines`; empty: it has none.
func HostName() string {
	name, _ := os.Hostname() // nor has it a name then
	return name
}

// MachinesOf sources are the names of the entries of `machines`; none: they are one
// machine's.
func MachinesOf(sources []Source) (names []string) {
	document, _ := readDocument(sources) // what is wrong is told when they are parsed
	given, there := document.values["machines"]
	if !there {
		return nil
	}
	alone := *document
	alone.keys, alone.values = []string{"machines"}, map[string]topLevel{"machines": given}
	schema := decode(&alone, newReporter(&alone, toServe))
	for _, entry := range schema.GetMachines() {
		if name := entry.GetName(); name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// chooseMachine makes a config of several machines that of one. Mistakes in it are told
// where they stand, in its entry.
func (r Reader) chooseMachine(schema *configv1.Config, report *reporter) {
	entries := schema.GetMachines()
	if len(entries) == 0 {
		return
	}
	if schema.Machine != nil {
		report.errorf("machine", "is given beside `machines`: give this machine an entry there, or leave `machines` out")
		return
	}
	own := r.entry(entries, report)
	if own < 0 {
		schema.Machine = &configv1.Machine{Addresses: []string{""}} // nothing follows from that
		report.opaque["machine"] = true
		return
	}
	d := report.document
	at := fmt.Sprintf("machines[%d]", own)
	for i, entry := range entries {
		if i != own {
			d.alias(fmt.Sprintf("peers[%d]", len(schema.Peers)), fmt.Sprintf("machines[%d]", i))
			schema.Peers = append(schema.Peers, &configv1.Peer{Name: entry.Name, Addresses: entry.Addresses})
		}
	}
	entry := entries[own]
	d.alias("machine", at)
	schema.Machine = &configv1.Machine{Name: &entry.Name, Shard: entry.Shard, Addresses: entry.Addresses, ProbePorts: entry.ProbePorts}
	override(d, at, "forwarder", &schema.Forwarder, entry.Forwarder)
	override(d, at, "speaker", &schema.Speaker, entry.Speaker)
	override(d, at, "metrics", &schema.Metrics, entry.Metrics)
	override(d, at, "bgp", &schema.Bgp, entry.Bgp)
	override(d, at, "api", &schema.Api, entry.Api)
	override(d, at, "etcd", &schema.Etcd, entry.Etcd)
	if entry.VrrpInterface != nil && schema.Vrrp != nil {
		d.alias("vrrp.interface", at+".vrrp_interface")
		schema.Vrrp.Interface = entry.GetVrrpInterface()
	}
	if entry.SecretFile != nil {
		d.alias("cluster.secret_file", at+".secret_file")
		if schema.Cluster == nil {
			schema.Cluster = &configv1.Cluster{}
		}
		schema.Cluster.SecretFile = entry.SecretFile
	}
}

// override what stands outside by what the entry holds.
func override[M proto.Message](d *document, at, field string, outside *M, own M) {
	if own.ProtoReflect().IsValid() {
		d.alias(field, at+"."+field)
		*outside = own
	}
}

// entry of this machine; -1: it has none, which is told.
func (r Reader) entry(entries []*configv1.MachineEntry, report *reporter) int {
	named := func(name string) int {
		return slices.IndexFunc(entries, func(entry *configv1.MachineEntry) bool { return entry.GetName() == name })
	}
	if r.AnyMachine {
		return max(0, named(r.Machine))
	}
	short, _, _ := strings.Cut(r.Machine, ".")
	for _, name := range []string{r.Machine, short} {
		if at := named(name); at >= 0 && name != "" {
			return at
		}
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.GetName())
	}
	report.errorf("machines", "has no entry for this machine, %q: give it one by its host name, or say by --machine which of %s it is", r.Machine, strings.Join(names, ", "))
	return -1
}

// alias: a field is told of as another, which is where it stands.
func (d *document) alias(field, stands string) {
	d.aliases = append(d.aliases, [2]string{field, stands})
}

// real name of a field.
func (d *document) real(field string) string {
	for _, alias := range d.aliases {
		if rest, found := strings.CutPrefix(field, alias[0]); found && (rest == "" || rest[0] == '.' || rest[0] == '[') {
			return alias[1] + rest
		}
	}
	return field
}
