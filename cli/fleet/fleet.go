// Package fleet has the verbs for all load balancers that share a config.
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
	fleetv1 "github.com/guideway/guideway/proto/guideway/fleet/v1"
	"github.com/guideway/guideway/proto/plainjson"
)

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
	list := output.Listing{
		Value: plainjson.Value{Message: response},
		Header: []string{"MACHINE", "STATE", "CONFIG", "CONFIGURED", "LIVE", "PACKETS/S", "BYTES/S", "VERSION", "SHARD", "REASON",
			"FORWARDER", "SPEAKER", "API", "WRITTEN", "DIGEST", "BACKENDS UP", "OWN DRAINS"},
		WideFrom: 10, None: "no machine is known",
	}
	for _, m := range response.Machines {
		list.Rows = append(list.Rows, rowOf(m, m.Registered))
	}
	return list
}

// The beginning of a fingerprint is enough to compare by eye.
const fingerprintShown = 8

func rowOf(m *controllerv1.FleetMachine, r *fleetv1.Machine) []string {
	if r == nil {
		return []string{m.Name, "absent", "-", "-", "-", "-", "-", "-", "-", output.Dash(m.Reason), "-", "-", "-", "-", "-", "-", "-"}
	}
	state := r.State
	if r.Drained && state != "drained" && state != "draining" {
		state += ", drained"
	}
	short := func(fingerprint string) string {
		return output.Dash(fingerprint[:min(len(fingerprint), fingerprintShown)])
	}
	up := "-" // with etcd nobody says so
	if r.Backends > 0 {
		up = fmt.Sprintf("%d/%d", r.BackendsUp, r.Backends)
	}
	return []string{
		m.Name, state, fmt.Sprint(r.Config), short(r.ConfiguredFingerprint), short(r.LiveFingerprint),
		fmt.Sprint(r.PacketsPerSecond), fmt.Sprint(r.BytesPerSecond), output.Dash(r.Version), output.Dash(r.Shard), output.Dash(r.Reason),
		output.Dash(r.ForwarderVersion), output.Dash(r.SpeakerVersion), output.Dash(r.Api), output.Ago(r.Time),
		short(r.ConfigDigest), up, ownDrains(r),
	}
}

// ownDrains of what other machines may use.
func ownDrains(r *fleetv1.Machine) string {
	var drains []string
	for _, backend := range r.DrainedBackends {
		drains = append(drains, "backend "+backend)
	}
	for _, service := range r.DrainedServices {
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
	if response.Canary != nil {
		fmt.Fprintf(stderr, "note: %s\n", show.CanaryText(response.Canary))
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
