package members

// Prometheus' file_sd format: a list of groups, each with targets and labels.

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/guideway/guideway/controller/config"
)

const (
	// Reading is cheap and, unlike inotify, sees through the links that orchestrators swap.
	fileInterval = time.Second
	// A change counts when it is there twice: a file that is being written is read in part.
	fileReads = 5
)

type file struct {
	path string
	port uint16
	// What was read last, and what was parsed last.
	seen, parsed []byte
	set          []config.PoolMember
	err          error
}

func (f *file) read(ctx context.Context) ([]config.PoolMember, time.Duration, error) {
	for range fileReads {
		data, _, err := config.ReadInTime(ctx, f.path)
		if err != nil {
			return nil, fileInterval, err
		}
		isSettled := f.seen == nil || bytes.Equal(data, f.seen)
		f.seen = data
		if isSettled {
			f.parse(data)
			return f.set, fileInterval, f.err
		}
		select {
		case <-time.After(fileInterval):
		case <-ctx.Done():
			return nil, 0, ctx.Err()
		}
	}
	return nil, fileInterval, fmt.Errorf("%s differs each time it is read: write it in one step, to another name, and rename that", f.path)
}

// parse what differs from what was parsed last.
func (f *file) parse(data []byte) {
	if f.parsed == nil || !bytes.Equal(data, f.parsed) {
		f.set, f.err = parseTargets(f.path, data, f.port)
		f.parsed = data
	}
}

// parseTargets of a file.
func parseTargets(path string, data []byte, port uint16) ([]config.PoolMember, error) {
	root, err := config.ParseYAML(config.Source{Name: path, Data: data})
	if err != nil {
		return nil, err
	}
	groups, err := items(path, root, "a list of groups, like `[{\"targets\": [\"10.1.0.11:80\"]}]`")
	if err != nil {
		return nil, err
	}
	p := &targets{path: path, port: port}
	for _, group := range groups {
		if err := p.addGroup(group); err != nil {
			return nil, err
		}
	}
	return p.members, nil
}

type targets struct {
	set
	path string
	port uint16
	// Also those that are listed again.
	count int
}

func (t *targets) addGroup(group *yaml.Node) error {
	fields, err := mapping(t.path, group, "a group with `targets` and `labels`")
	if err != nil {
		return err
	}
	for name, node := range fields {
		if name != "targets" && name != "labels" {
			return at(t.path, node, "there is no field %q in a group: give `targets` and `labels`", name)
		}
	}
	if fields["targets"] == nil {
		return at(t.path, group, "the group has no `targets`")
	}
	list, err := items(t.path, fields["targets"], "a list of targets")
	if err != nil {
		return err
	}
	labels := map[string]*yaml.Node{}
	if fields["labels"] != nil {
		if labels, err = mapping(t.path, fields["labels"], "labels"); err != nil {
			return err
		}
	}
	for _, node := range list {
		if err := t.addTarget(node, labels, len(list)); err != nil {
			return err
		}
	}
	return nil
}

func (t *targets) addTarget(node *yaml.Node, labels map[string]*yaml.Node, inGroup int) error {
	if t.count++; t.count > config.MembersMax {
		return at(t.path, node, "the file has more than %d targets, the limit", config.MembersMax)
	}
	node = resolve(node)
	if node.Kind != yaml.ScalarNode {
		return at(t.path, node, "there is no target here: give an address and a port, like \"10.1.0.11:80\"")
	}
	name, weight := "", ""
	if label := labels["name"]; label != nil {
		if inGroup > 1 {
			return at(t.path, label, "the group has the label `name` and %d targets: one name has one address, give each target a group of its own", inGroup)
		}
		name = resolve(label).Value
	}
	if label := labels["weight"]; label != nil {
		weight = resolve(label).Value
	}
	address, port := node.Value, uint16(0)
	if both, err := netip.ParseAddrPort(address); err == nil {
		address, port = both.Addr().String(), both.Port()
	}
	m, err := config.ParseMember(name, address, weight)
	if err == nil {
		err = samePort(t.port, port)
	}
	if err == nil {
		err = t.add(m)
	}
	if err != nil {
		return at(t.path, node, "target %q: %w", node.Value, err)
	}
	return nil
}

// items of a list.
func items(path string, node *yaml.Node, wanted string) ([]*yaml.Node, error) {
	if node == nil {
		return nil, fmt.Errorf("%s is empty: for no members write `[]`", path)
	}
	if node = resolve(node); node.Kind != yaml.SequenceNode {
		return nil, at(path, node, "there is no list here: give %s", wanted)
	}
	return node.Content, nil
}

// mapping of a node, its values by name.
func mapping(path string, node *yaml.Node, wanted string) (map[string]*yaml.Node, error) {
	if node = resolve(node); node.Kind != yaml.MappingNode {
		return nil, at(path, node, "there are no fields here: give %s", wanted)
	}
	fields := map[string]*yaml.Node{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		name := node.Content[i].Value
		if fields[name] != nil {
			return nil, at(path, node.Content[i], "%q is given twice", name)
		}
		fields[name] = node.Content[i+1]
	}
	return fields, nil
}

// resolve follows an alias to what it stands for.
func resolve(node *yaml.Node) *yaml.Node {
	if node.Kind == yaml.AliasNode {
		return node.Alias
	}
	return node
}

func at(path string, node *yaml.Node, format string, args ...any) error {
	return fmt.Errorf("%s:%d: %w", path, node.Line, fmt.Errorf(format, args...))
}
