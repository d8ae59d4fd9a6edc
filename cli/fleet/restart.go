package fleet

// Restarts a fleet one machine at a time. The next machine follows only when the one before
// is as healthy as it was.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/guideway/guideway/cli/commandline"
	"github.com/guideway/guideway/cli/machine"
	"github.com/guideway/guideway/controller/api"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

const (
	// Longer than the controller waits for its forwarder's successor.
	restartCallTimeout = 90 * time.Second
	// How long a machine may take to be as well as before: its backends are probed
	// anew.
	recoverTimeout = 60 * time.Second
	// How long it may take to be well before.
	settleTimeout = 5 * time.Second
	// How often that is looked at.
	recoverInterval = 500 * time.Millisecond
	// Over which drops are counted before and after.
	dropsInterval = 3 * time.Second
	// Drops are higher when they are more than this many times those before, and
	// more than some per second: a scan of ports is no reason to stop.
	dropsTimesMax     = 2
	dropsPerSecondMin = 10
)

func fleetRestartCommand() *cobra.Command {
	var m machine.Machine
	var oneAtATime bool
	command := &cobra.Command{
		Use:   "restart --one-at-a-time",
		Short: "Restart the programs of every machine with their installed versions, one machine at a time",
		Long: "Restarts the programs through the API of each machine (api.listen; role admin): the\n" +
			"installed forwarder takes over from the running one, then the controller executes the\n" +
			"installed program. No packet is lost and no route changes. The next machine follows\n" +
			"only if plan, routes and BGP sessions are as before and drops have not risen; else it\n" +
			"stops there. You install the programs before. Speakers are not restarted; version\n" +
			"mismatches are reported, with the commands.",
		Example: "  guideway fleet restart --one-at-a-time --cert-file alice.crt --key-file alice.key --ca-file api-ca.crt",
		Args:    commandline.NoArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			if !oneAtATime {
				return commandline.Usagef("give --one-at-a-time: machines are restarted one after the other, and in no other way")
			}
			return restartFleet(command.Context(), m, command.OutOrStdout())
		},
	}
	command.Flags().BoolVar(&oneAtATime, "one-at-a-time", false, "the next machine only when the one before is well")
	machine.AddController(command, &m)
	return command
}

func restartFleet(ctx context.Context, m machine.Machine, out io.Writer) error {
	fleet, err := Read(ctx, m)
	if err != nil {
		return err
	}
	if err := mayBeRestarted(fleet); err != nil {
		return err
	}
	for i, one := range fleet.Machines {
		if err := restartMachine(ctx, m.At(one.Registered.Api), one.Name, out); err != nil {
			rest := "no machine is left after it"
			if names := namesOf(fleet.Machines[i+1:]); len(names) > 0 {
				rest = "not restarted: " + strings.Join(names, ", ")
			}
			return fmt.Errorf("%s: %w; %s. See `guideway doctor` on %s, and when it is well, begin again", one.Name, err, rest, one.Name)
		}
	}
	return nil
}

func namesOf(machines []*controllerv1.FleetMachine) (names []string) {
	for _, m := range machines {
		names = append(names, m.Name)
	}
	return names
}

// mayBeRestarted: each machine can be reached, and is well together with the others.
func mayBeRestarted(fleet *controllerv1.GetFleetResponse) error {
	var why []string
	if fleet.Away != "" {
		why = append(why, fleet.Away)
	}
	why = append(why, fleet.Alarms...)
	for _, m := range fleet.Machines {
		switch {
		case m.Registered == nil:
			why = append(why, fmt.Sprintf("%s is absent: %s: bring it up, or take it out of `peers`", m.Name, m.Reason))
		case m.Registered.Api == "":
			why = append(why, m.Name+" has no API over TCP: give it `api` in its config (docs/api.md)")
		}
	}
	if len(fleet.Machines) == 0 {
		why = append(why, "no machine is known")
	}
	if len(why) > 0 {
		return errors.New("no machine is restarted: " + strings.Join(why, "; "))
	}
	return nil
}

// restartMachine and see that it is as well as before.
func restartMachine(ctx context.Context, m machine.Machine, name string, out io.Writer) error {
	before, err := settled(ctx, m)
	if err != nil {
		return err
	}
	var done *controllerv1.RestartResponse
	err = m.Ask(ctx, restartCallTimeout, m.ControllerDoor(api.OperateGroup), func(ctx context.Context, conn *grpc.ClientConn) (err error) {
		done, err = controllerv1.NewControllerClient(conn).Restart(ctx, &controllerv1.RestartRequest{})
		return err
	})
	if err != nil {
		return err
	}
	for _, table := range done.Emptied {
		fmt.Fprintf(out, "%s: a connection table started empty (%s): its connections go by hash\n", name, table)
	}
	began := time.Now()
	after, err := recovered(ctx, m, before, began)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s: forwarder %s to %s, packets waited for %v; controller %s to %s; well after %v\n", name, done.ForwarderVersionBefore, done.ForwarderVersion,
		time.Duration(done.PauseUs)*time.Microsecond, before.state.Version, after.state.Version, time.Since(began).Round(time.Millisecond))
	if speaker := after.state.GetSpeaker().GetVersion(); speaker != after.state.Version {
		fmt.Fprintf(out, "%s: its speaker goes on as %s. Its sessions begin anew with another, so drain first: on %s `guideway drain machine --wait`, `systemctl restart guideway-speaker`, `guideway undrain machine`\n", name, speaker, name)
	}
	return nil
}

// settled when the machine is well. For a moment it may not be: where backends change, a plan
// is often on its way to the forwarder.
func settled(ctx context.Context, m machine.Machine) (observed, error) {
	before, err := observeMachine(ctx, m, dropsInterval)
	for began := time.Now(); err == nil; {
		why := before.unwell(before)
		if why == "" {
			return before, nil
		}
		if time.Since(began) > settleTimeout {
			return before, fmt.Errorf("it is not restarted, as it is not well: %s", why)
		}
		if err := commandline.Pause(ctx, recoverInterval); err != nil {
			return before, err
		}
		var now observed
		now, err = observeMachine(ctx, m, 0)
		before.state = now.state
	}
	return before, err
}

// recovered when the machine is as well as before, by another controller.
func recovered(ctx context.Context, m machine.Machine, before observed, began time.Time) (observed, error) {
	for {
		// Its counters began at zero: all of its drops count.
		after, err := observeMachine(ctx, m, 0)
		why := "its controller has not restarted yet"
		switch {
		case err != nil:
			why = err.Error()
		case after.state.Config.GetLoadedAt().AsTime().After(before.state.Config.GetLoadedAt().AsTime()):
			if why = after.unwell(before); why == "" {
				after, err = observeMachine(ctx, m, dropsInterval)
				if err == nil {
					why = higherDrops(before.dropsPerSecond, after.dropsPerSecond)
				}
				if err == nil && why == "" {
					return after, nil
				}
			}
		}
		if ctx.Err() != nil {
			return after, ctx.Err()
		}
		if time.Since(began) > recoverTimeout {
			return after, fmt.Errorf("it was restarted, and is not well after %v: %s", recoverTimeout, why)
		}
		if err := commandline.Pause(ctx, recoverInterval); err != nil {
			return after, err
		}
	}
}

// observed is a machine at one moment.
type observed struct {
	state          *controllerv1.GetStateResponse
	dropsPerSecond float64
}

// observeMachine counts drops over an interval, and then the state; 0: the state alone.
func observeMachine(ctx context.Context, m machine.Machine, interval time.Duration) (o observed, err error) {
	if interval > 0 {
		first, err := countDrops(ctx, m)
		if err != nil {
			return o, err
		}
		if err := commandline.Pause(ctx, interval); err != nil {
			return o, err
		}
		second, err := countDrops(ctx, m)
		if err != nil {
			return o, err
		}
		o.dropsPerSecond = float64(second-min(first, second)) / interval.Seconds()
	}
	err = m.AskController(ctx, func(ctx context.Context, client controllerv1.ControllerClient) (err error) {
		o.state, err = client.GetState(ctx, &controllerv1.GetStateRequest{WithoutBackends: true})
		return err
	})
	return o, err
}

func countDrops(ctx context.Context, m machine.Machine) (packets uint64, err error) {
	err = m.AskController(ctx, func(ctx context.Context, client controllerv1.ControllerClient) error {
		counters, err := client.GetCounters(ctx, &forwarderv1.GetCountersRequest{})
		for _, drop := range counters.GetDropped() {
			packets += drop.GetPackets()
		}
		return err
	})
	return packets, err
}

func higherDrops(before, after float64) string {
	if after <= before*dropsTimesMax+dropsPerSecondMin {
		return ""
	}
	return fmt.Sprintf("it drops %.0f packets a second, and dropped %.0f before: `guideway show drops` has the reasons", after, before)
}

// unwell is why a machine is not as well as before; empty: it is. One that was
// drained stays so.
func (o observed) unwell(before observed) string {
	s := o.state
	f := s.GetForwarder()
	switch {
	case !f.GetHealthy():
		return "forwarder: " + f.GetReason()
	case s.GetConfig().GetStale():
		return "its config is refused: " + s.GetConfig().GetProblem()
	case f.GetRefusal() != "":
		return "its forwarder refuses the plan: " + f.GetRefusal()
	case f.GetGenerationAccepted() == 0 || f.GetGenerationAccepted() != f.GetGenerationWanted():
		return "its forwarder has not accepted the plan yet"
	case !s.GetSpeaker().GetAnswers():
		return "its speaker does not answer: " + s.GetSpeaker().GetReason()
	case s.GetSpeaker().GetWithheld() != "" && before.state.GetSpeaker().GetWithheld() == "":
		return "its speaker announces nothing: " + s.GetSpeaker().GetWithheld()
	}
	for _, neighbor := range before.state.GetNeighbors() {
		i := slices.IndexFunc(s.GetNeighbors(), func(n *controllerv1.Neighbor) bool { return n.Address == neighbor.Address })
		// One that BFD finds down has no session either.
		if i < 0 || s.Neighbors[i].State != "established" {
			return fmt.Sprintf("no BGP session with %s", neighbor.Address)
		}
	}
	return missingRoute(before.state.GetRoutes(), s.GetRoutes())
}

func missingRoute(before, after []*controllerv1.Route) string {
	for _, route := range before {
		i := slices.IndexFunc(after, func(r *controllerv1.Route) bool { return r.Prefix == route.Prefix })
		if route.Announced && (i < 0 || !after[i].Announced) {
			reason := ""
			if i >= 0 {
				reason = ": " + after[i].Reason
			}
			return fmt.Sprintf("%s is not announced any more%s", route.Prefix, reason)
		}
	}
	return ""
}
