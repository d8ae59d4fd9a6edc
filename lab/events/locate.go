package events

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/lab/traffic/load"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

// tracker is a worker that has a flow in its connection table.
type tracker struct {
	machine string
	worker  uint32
	backend string
	class   string
}

// locate asks every machine's workers for each flow.
func locate(ctx context.Context, l *hosts.Lab, machines []string, flows []load.Flow) (map[load.Flow][]tracker, error) {
	found := map[load.Flow][]tracker{}
	for _, machine := range machines {
		if err := locateOn(ctx, l, machine, flows, found); err != nil {
			return nil, fmt.Errorf("look flows up on %s: %w", machine, err)
		}
	}
	return found, nil
}

func locateOn(ctx context.Context, l *hosts.Lab, machine string, flows []load.Flow, found map[load.Flow][]tracker) error {
	client, connection, err := l.Forwarder(machine)
	if err != nil {
		return err
	}
	defer connection.Close()
	var mutex sync.Mutex
	group, ctx := errgroup.WithContext(ctx)
	// Side by side, only to hide the time each question is under way.
	for part := range slices.Chunk(flows, max(1, len(flows)/4+1)) {
		group.Go(func() error {
			for _, flow := range part {
				reply, err := client.GetConnections(ctx, &forwarderv1.GetConnectionsRequest{Lookup: flowKey(flow)})
				if err != nil {
					return err
				}
				mutex.Lock()
				for _, entry := range reply.GetFound() {
					found[flow] = append(found[flow], tracker{machine: machine, worker: entry.GetWorker(), backend: entry.GetBackend(), class: entry.GetClass()})
				}
				mutex.Unlock()
			}
			return nil
		})
	}
	return group.Wait()
}

func flowKey(flow load.Flow) *forwarderv1.FlowKey {
	const tcp = 6
	return hosts.FlowKey(tcp, flow.Source, flow.Destination)
}

// selectBackends returns where a plan sends flows that no table knows. Only the
// forwarder hashes: its program answers, from the plan as a file.
func selectBackends(ctx context.Context, l *hosts.Lab, plan *planv1.Plan, flows []load.Flow) (map[load.Flow]string, error) {
	content, err := protojson.Marshal(plan)
	if err != nil {
		return nil, fmt.Errorf("select backends: %w", err)
	}
	file := filepath.Join(l.Options().RunDir, "select-plan.json")
	if err := os.WriteFile(file, content, 0o600); err != nil {
		return nil, fmt.Errorf("select backends: %w", err)
	}
	defer os.Remove(file)
	var lines strings.Builder
	for _, flow := range flows {
		fmt.Fprintln(&lines, flow)
	}
	command := exec.CommandContext(ctx, filepath.Join(l.Options().BinDir, "guideway-forwarder"), "select", "--plan", file, "--secret-file", l.SecretFile())
	var errs bytes.Buffer
	command.Stdin, command.Stderr = strings.NewReader(lines.String()), &errs
	out, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("select backends: %w: %s", err, strings.TrimSpace(errs.String()))
	}
	return parseSelected(out, flows)
}

// parseSelected reads one line of JSON per flow, in the flows' order.
func parseSelected(out []byte, flows []load.Flow) (map[load.Flow]string, error) {
	selected := map[load.Flow]string{}
	answers := json.NewDecoder(bytes.NewReader(out))
	for _, flow := range flows {
		var answer struct{ Flow, Backend string }
		if err := answers.Decode(&answer); err != nil {
			return nil, fmt.Errorf("select backends: answer for %s: %w", flow, err)
		}
		if answer.Flow != flow.String() || answer.Backend == "" {
			return nil, fmt.Errorf("select backends: answer for %s is %+v", flow, answer)
		}
		selected[flow] = hosts.NodeOf(answer.Backend)
	}
	return selected, nil
}

// mayBreak are the lasting connections that die with a machine, as far as can
// be known before it does.
//
// The machines that take over know none of them (a table is one machine's
// own), so they select by the present plan: a connection that is served by another
// backend than selected breaks. With two machines, or without a router, only flows
// of the dying one move: othersStay. A router spreads over more than two in a way of
// its own, so then any flow may.
func mayBreak(live []load.Live, trackedBy map[load.Flow][]tracker, selected map[load.Flow]string, dying string, othersStay bool) map[load.Flow]bool {
	list := map[load.Flow]bool{}
	for _, l := range live {
		elsewhere := slices.ContainsFunc(trackedBy[l.Flow], func(p tracker) bool { return p.machine != dying })
		if othersStay && elsewhere {
			continue
		}
		if selected[l.Flow] != l.Backend {
			list[l.Flow] = true
		}
	}
	return list
}
