// Package fleet has the verbs about all load balancers that share a config.
package fleet

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/guideway/guideway/cli/commandline"
	"github.com/guideway/guideway/cli/machine"
	"github.com/guideway/guideway/cli/output"
	"github.com/guideway/guideway/cli/show"
	"github.com/guideway/guideway/controller/brain"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

type shownFleet struct {
	Cluster  string         `json:"cluster"`
	Machines []shownMachine `json:"machines"`
	Alarms   []string       `json:"alarms"`
	// Why etcd could not be read, or peers are not heard; machines are those of ReadAt then.
	Away   string `json:"away,omitempty"`
	ReadAt string `json:"read_at,omitempty"`
	// Absent: all machines are to run the same config.
	Canary *show.Canary `json:"canary,omitempty"`
}

type shownMachine struct {
	Name      string   `json:"name"`
	Addresses []string `json:"addresses"`
	// Else the fields below are empty, but for state and reason.
	Registered       bool   `json:"registered"`
	State            string `json:"state"`
	Reason           string `json:"reason,omitempty"`
	Drained          bool   `json:"drained"`
	Shard            string `json:"shard,omitempty"`
	Version          string `json:"version,omitempty"`
	ForwarderVersion string `json:"forwarder_version,omitempty"`
	SpeakerVersion   string `json:"speaker_version,omitempty"`
	// Its number in the history.
	Config uint64 `json:"config"`
	// Of machines without etcd, whose histories have numbers of their own.
	ConfigDigest          string `json:"config_digest,omitempty"`
	ConfiguredFingerprint string `json:"configured_fingerprint,omitempty"`
	LiveFingerprint       string `json:"live_fingerprint,omitempty"`
	PacketsPerSecond      uint64 `json:"packets_per_second"`
	BytesPerSecond        uint64 `json:"bytes_per_second"`
	API                   string `json:"api,omitempty"`
	WrittenAt             string `json:"written_at,omitempty"`
	// By command on this machine alone.
	DrainedBackends []string `json:"drained_backends,omitempty"`
	DrainedServices []string `json:"drained_services,omitempty"`
	// Of machines without etcd.
	Backends     uint32   `json:"backends,omitempty"`
	BackendsUp   uint32   `json:"backends_up,omitempty"`
	BackendsDown []string `json:"backends_down,omitempty"`

	ago string
}

// Command is `guideway fleet`.
func Command() *cobra.Command {
	var m machine.Machine
	var format string
	command := &cobra.Command{
		Use:   "fleet",
		Short: "Show every load balancer of the cluster",
		Long: "Shows every machine that is registered in etcd or named under `peers`: version, shard,\n" +
			"number of the configuration, fingerprints, state, rates. Without etcd, peers send this\n" +
			"to each other every second. Machines that are not registered, or have been silent for\n" +
			"10 s, are shown as absent, with what is known of them.\n" +
			"Exit status: 1 if a machine is absent, or does not serve though it is not drained; if\n" +
			"machines of one shard and configuration choose different backends for the same flows\n" +
			"(as configured, or for more than 30 s by their tables); if machines without etcd run\n" +
			"different configurations for more than 30 s; else 0.",
		Args: commandline.NoArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			return showFleet(command, m, format)
		},
	}
	show.AddFlags(command, &m, &format)
	command.AddCommand(fleetRestartCommand())
	return command
}

func showFleet(command *cobra.Command, m machine.Machine, format string) error {
	response, err := Read(command.Context(), m)
	if err != nil {
		return err
	}
	if err := fleetListing(response).Print(command.OutOrStdout(), format); err != nil {
		return err
	}
	return reportFleet(response, command.ErrOrStderr())
}

// Read the machines of a fleet, as one of its controllers knows them.
func Read(ctx context.Context, m machine.Machine) (response *controllerv1.GetFleetResponse, err error) {
	err = m.AskController(ctx, func(ctx context.Context, client controllerv1.ControllerClient) (err error) {
		response, err = client.GetFleet(ctx, &controllerv1.GetFleetRequest{})
		return err
	})
	return response, err
}

func fleetListing(response *controllerv1.GetFleetResponse) output.Listing {
	shown := shownFleet{
		Cluster: response.Cluster, Machines: []shownMachine{}, Alarms: append([]string{}, response.Alarms...),
		Away: response.Away, ReadAt: output.At(response.ReadAt), Canary: show.CanaryOf(response.Canary),
	}
	list := output.Listing{
		Header: []string{"MACHINE", "STATE", "CONFIG", "CONFIGURED", "LIVE", "PACKETS/S", "BYTES/S", "VERSION", "SHARD", "REASON",
			"FORWARDER", "SPEAKER", "API", "WRITTEN", "DIGEST", "BACKENDS UP", "OWN DRAINS"},
		WideFrom: 10, None: "no machine is known",
	}
	for _, m := range response.Machines {
		machine := shownMachineOf(m)
		shown.Machines = append(shown.Machines, machine)
		list.Rows = append(list.Rows, machine.row())
	}
	list.Value = shown
	return list
}

func shownMachineOf(m *controllerv1.FleetMachine) shownMachine {
	r := m.Registered
	if r == nil {
		return shownMachine{Name: m.Name, Addresses: append([]string{}, m.Addresses...), State: "absent", Reason: m.Reason}
	}
	return shownMachine{
		Name: m.Name, Addresses: append([]string{}, m.Addresses...), Registered: true, State: r.State, Reason: r.Reason, Drained: r.Drained, Shard: r.Shard,
		Version: r.Version, ForwarderVersion: r.ForwarderVersion, SpeakerVersion: r.SpeakerVersion,
		Config: r.Generation, ConfiguredFingerprint: r.ConfiguredFingerprint, LiveFingerprint: r.LiveFingerprint,
		ConfigDigest: r.ConfigDigest, Backends: r.Backends, BackendsUp: r.BackendsUp, BackendsDown: r.BackendsDown,
		PacketsPerSecond: r.PacketsPerSecond, BytesPerSecond: r.BytesPerSecond, API: r.Api, DrainedBackends: r.DrainedBackends, DrainedServices: r.DrainedServices, WrittenAt: output.At(r.Time), ago: output.Ago(r.Time),
	}
}

// The beginning of a fingerprint is enough to compare by eye.
const fingerprintShown = 8

func (m shownMachine) row() []string {
	if !m.Registered {
		return []string{m.Name, m.State, "-", "-", "-", "-", "-", "-", "-", output.Dash(m.Reason), "-", "-", "-", "-", "-", "-", "-"}
	}
	state := m.State
	if m.Drained && state != "drained" && state != "draining" {
		state += ", drained"
	}
	short := func(fingerprint string) string {
		return output.Dash(fingerprint[:min(len(fingerprint), fingerprintShown)])
	}
	return []string{
		m.Name, state, fmt.Sprint(m.Config), short(m.ConfiguredFingerprint), short(m.LiveFingerprint),
		fmt.Sprint(m.PacketsPerSecond), fmt.Sprint(m.BytesPerSecond), output.Dash(m.Version), output.Dash(m.Shard), output.Dash(m.Reason),
		output.Dash(m.ForwarderVersion), output.Dash(m.SpeakerVersion), output.Dash(m.API), m.ago,
		short(m.ConfigDigest), m.backends(), m.ownDrains(),
	}
}

// backends that are up, of how many.
func (m shownMachine) backends() string {
	if m.Backends == 0 {
		return "-" // with etcd nobody says so
	}
	return fmt.Sprintf("%d/%d", m.BackendsUp, m.Backends)
}

// ownDrains of what other machines may use.
func (m shownMachine) ownDrains() string {
	var drains []string
	for _, backend := range m.DrainedBackends {
		drains = append(drains, "backend "+backend)
	}
	for _, service := range m.DrainedServices {
		drains = append(drains, "service "+service)
	}
	return output.Dash(strings.Join(drains, ", "))
}

// reportFleet says what the table does not, and fails where something is wrong.
func reportFleet(response *controllerv1.GetFleetResponse, stderr io.Writer) error {
	if response.Away != "" {
		read := "never"
		if response.ReadAt != nil {
			read = output.Ago(response.ReadAt) + " ago"
		}
		fmt.Fprintf(stderr, "warning: %s\nwarning: machines are shown as they were read last, %s\n", response.Away, read)
	}
	for _, alarm := range response.Alarms {
		fmt.Fprintf(stderr, "alarm: %s\n", alarm)
	}
	if canary := show.CanaryOf(response.Canary); canary != nil {
		fmt.Fprintf(stderr, "note: %s\n", canary.Text())
	}
	if versions := versionsOf(response); len(versions) > 1 {
		fmt.Fprintf(stderr, "note: %d versions run: %q\n", len(versions), versions)
	}
	if len(response.Alarms) > 0 || slices.ContainsFunc(response.Machines, isMissed) {
		return commandline.ErrReported
	}
	return nil
}

// isMissed: clients are to be served there, and are not.
func isMissed(m *controllerv1.FleetMachine) bool {
	switch r := m.GetRegistered(); {
	case r == nil:
		return true
	case r.GetDrained():
		return false
	default:
		return !slices.Contains([]string{brain.ServingAll, brain.ServingPart, brain.Draining, brain.Drained}, r.GetState())
	}
}

// versionsOf controllers that run, each once.
func versionsOf(response *controllerv1.GetFleetResponse) []string {
	var versions []string
	for _, m := range response.Machines {
		if m.Registered != nil {
			versions = append(versions, m.Registered.Version)
		}
	}
	slices.Sort(versions)
	return slices.Compact(versions)
}
