package config

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode"
)

// Change is one thing that two configs do not have alike.
type Change struct {
	// vip, service, pool, backend, ...: as the config's lists are called, in the
	// singular; setting for what is no list of named things.
	Kind string
	// Of the thing; a VIP's is its text and its service's name.
	Name string
	What What
	// In order of name. None of what was added or removed.
	Fields []FieldChange
}

// What became of a thing.
type What string

const (
	Added   What = "added"
	Removed What = "removed"
	Changed What = "changed"
)

// FieldChange is one field's value before and after; empty: it has none.
type FieldChange struct{ Field, Before, After string }

// Compare two configs by what they mean, not by how they are written: a default
// that is spelt out is no change. The work is done by reflection, so that a
// field of Config cannot be forgotten here. In order of kind and name.
func Compare(before, after *Config) []Change {
	old, new := things(before), things(after)
	var changes []Change
	for key := range old {
		if new[key] == nil {
			changes = append(changes, Change{Kind: key.kind, Name: key.name, What: Removed})
		}
	}
	for key, fields := range new {
		if old[key] == nil {
			changes = append(changes, Change{Kind: key.kind, Name: key.name, What: Added})
		} else if differing := old[key].compare(fields); len(differing) > 0 {
			changes = append(changes, Change{Kind: key.kind, Name: key.name, What: Changed, Fields: differing})
		}
	}
	slices.SortFunc(changes, func(a, b Change) int {
		return cmp.Or(cmp.Compare(slices.Index(kinds, a.Kind), slices.Index(kinds, b.Kind)), cmp.Compare(a.Name, b.Name))
	})
	return changes
}

// String is how people write a VIP: `203.0.113.10 tcp 80,8000-8100`.
func (v VIP) String() string {
	words := []string{v.Address.String()}
	if v.PrefixGroup != "" {
		words[0] = v.PrefixGroup + ":" + v.Suffix.String()
		if v.SuffixBits > 0 {
			words[0] += fmt.Sprintf("/%d", v.SuffixBits)
		}
	}
	if v.Protocol != ProtocolAny {
		words = append(words, string(v.Protocol))
	}
	var ports []string
	for _, p := range v.Ports {
		if p.First == p.Last {
			ports = append(ports, fmt.Sprint(p.First))
		} else {
			ports = append(ports, fmt.Sprintf("%d-%d", p.First, p.Last))
		}
	}
	if len(ports) > 0 {
		words = append(words, strings.Join(ports, ","))
	}
	return strings.Join(words, " ")
}

// In this order people are shown them.
var kinds = []string{"service", "vip", "pool", "backend", "health_check", "prefix_group", "peer", "setting"}

// The lists of named things in a Config, by field.
var kindOf = map[string]string{
	"Services": "service", "Pools": "pool", "Backends": "backend", "HealthChecks": "health_check",
	"PrefixGroups": "prefix_group", "Peers": "peer",
}

// What is no part of the config's meaning, or follows from other fields.
var notCompared = map[string]bool{
	"Config.Warnings": true, "Config.SharedDigest": true, "PoolBackend.Leaves": true, "Config.PoolViews": true, "Config.TunnelProbes": true, "Service.Group": true, "Service.Members": true,
	// VIPs are things of their own; names are what things are told apart by.
	"Service.VIPs": true, "Service.Name": true, "Pool.Name": true, "Backend.Name": true,
	"HealthCheck.Name": true, "PrefixGroup.Name": true, "Peer.Name": true,
}

// Fields whose name in the file is not their name here in small letters.
var nameInFile = map[string]string{
	"Metrics.ByService": "counters_by_service", "Service.QUICLB": "quic_lb",
	"Service.JoinPorts": "mptcp.join_ports", "Service.MultipathTCP": "mptcp",
}

type thing struct{ kind, name string }

// flat is a thing's fields by their path.
type flat map[string]string

func (f flat) compare(after flat) []FieldChange {
	var differing []FieldChange
	fields := maps.Clone(f)
	maps.Copy(fields, after)
	for _, field := range slices.Sorted(maps.Keys(fields)) {
		if f[field] != after[field] {
			differing = append(differing, FieldChange{Field: field, Before: f[field], After: after[field]})
		}
	}
	return differing
}

func things(c *Config) map[thing]flat {
	found := map[thing]flat{}
	config := reflect.ValueOf(c).Elem()
	for i := range config.NumField() {
		field := config.Type().Field(i)
		switch kind := kindOf[field.Name]; {
		case !field.IsExported() || notCompared["Config."+field.Name]:
		case kind != "":
			list := config.Field(i)
			for j := range list.Len() {
				item := flat{}
				item.add("", list.Index(j))
				found[thing{kind, keyOf(list.Index(j))}] = item
			}
		default:
			item := flat{}
			item.add("", config.Field(i))
			found[thing{"setting", fieldName(config.Type(), field)}] = item
		}
	}
	for _, service := range c.Services {
		for _, vip := range service.VIPs {
			found[thing{"vip", vip.String() + " of " + service.Name}] = flat{}
		}
	}
	return found
}

// add what a value holds, under its path.
func (f flat) add(path string, v reflect.Value) {
	if text, ok := textOf(v); ok {
		if text != "" {
			f[strings.TrimPrefix(path, ".")] = text
		}
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			f.add(path, v.Elem())
		}
	case reflect.Struct:
		f.addFields(path, v)
	case reflect.Slice:
		f.addItems(path, v)
	default:
		f[strings.TrimPrefix(path, ".")] = fmt.Sprint(v)
	}
}

func (f flat) addFields(path string, v reflect.Value) {
	for i := range v.NumField() {
		field := v.Type().Field(i)
		switch {
		case !field.IsExported() || notCompared[v.Type().Name()+"."+field.Name]:
		case field.Anonymous: // its own fields stand elsewhere, under their name
		case field.Type.Kind() == reflect.Interface:
			f.addChoice(path, v.Field(i))
		default:
			f.add(path+"."+fieldName(v.Type(), field), v.Field(i))
		}
	}
}

// addChoice: one of several kinds, which the file names.
func (f flat) addChoice(path string, v reflect.Value) {
	if !v.IsNil() {
		path += "." + snake(v.Elem().Type().Name())
		f[strings.TrimPrefix(path, ".")] = "given"
		f.add(path, v.Elem())
	}
}

// addItems: those that have a name by it, values in one line.
func (f flat) addItems(path string, list reflect.Value) {
	var texts []string
	for i := range list.Len() {
		item := list.Index(i)
		if text, ok := textOf(item); ok {
			texts = append(texts, text)
			continue
		}
		f.add(path+"["+cmp.Or(keyOf(item), fmt.Sprint(i))+"]", item)
	}
	if len(texts) > 0 {
		f[strings.TrimPrefix(path, ".")] = strings.Join(texts, ", ")
	}
}

// textOf a value that people read as one; false: it is made of others.
func textOf(v reflect.Value) (string, bool) {
	switch value := v.Interface().(type) {
	case netip.Addr:
		return textUnless(!value.IsValid(), value), true
	case netip.Prefix:
		return textUnless(!value.IsValid(), value), true
	case time.Duration:
		return value.String(), true
	case LargeCommunity:
		return value.String(), true
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface, reflect.Struct, reflect.Slice:
		return "", false
	}
	return fmt.Sprint(v), true
}

func textUnless(absent bool, value fmt.Stringer) string {
	if absent {
		return ""
	}
	return value.String()
}

// keyOf a thing in a list: its name, or else its address or prefix.
func keyOf(v reflect.Value) string {
	for v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct {
		return ""
	}
	for _, name := range []string{"Name", "Address", "Prefix"} {
		if field := v.FieldByName(name); field.IsValid() {
			text, _ := textOf(field)
			return text
		}
	}
	return ""
}

func fieldName(of reflect.Type, field reflect.StructField) string {
	if name := nameInFile[of.Name()+"."+field.Name]; name != "" {
		return name
	}
	return snake(field.Name)
}

// snake writes TCPUnconfirmed as tcp_unconfirmed.
func snake(name string) string {
	runes := []rune(name)
	var b strings.Builder
	for i, r := range runes {
		begins := i > 0 && unicode.IsUpper(r) &&
			(!unicode.IsUpper(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1]))
		if begins {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
