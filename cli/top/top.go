// Package top has `guideway top`, which shows the traffic per second on a full screen.
//
//	controller, one of each machine ── WatchRates ──► update ─► model ─► screen ─► terminal
//	                                                   keys ─────┘
//
// The model is everything that the screen shows; model.go and screen.go use neither the
// clock nor the terminal.
package top

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/guideway/guideway/cli/commandline"
	"github.com/guideway/guideway/cli/fleet"
	"github.com/guideway/guideway/cli/machine"
	"github.com/guideway/guideway/cli/output"
	"github.com/guideway/guideway/controller/rates"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	"github.com/guideway/guideway/proto/plainjson"
)

type options struct {
	machine machine.Machine
	model   model
	once    bool
	format  string
}

// Command is `guideway top`.
func Command() *cobra.Command {
	var o options
	command := &cobra.Command{
		Use:   "top",
		Short: "Show rates on a full screen: packets, bits, connections, drops",
		Long: "Shows on a full screen, each second anew, what the forwarder receives, sends and drops per\n" +
			"second, how busy its workers are, and the busiest services and backends. Press ? for the\n" +
			"keys. The controller reads the counters once for all who watch.",
		Example: "  guideway top\n" +
			"  guideway top --fleet --sort new_connections\n" +
			"  guideway top --once -o json --filter web",
		Args: commandline.NoArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			return o.run(command)
		},
	}
	flags := command.Flags()
	flags.BoolVar(&o.once, "once", false, "print the rates once, of the last second (or of the last ten, if nobody watched before)")
	commandline.AddChoice(command, &o.model.sort, "sort", "", "the most of these first", sorts...)
	flags.StringVar(&o.model.filter, "filter", "", "show services and backends with this `TEXT` in their names")
	flags.IntVar(&o.model.limit, "limit", rates.RowsUsual, fmt.Sprintf("show no more than `N` services and N backends; at most %d", rates.RowsMax))
	flags.BoolVar(&o.model.isFleet, "fleet", false, "sums of every machine of the cluster, through the API of each (api.listen)")
	commandline.AddOutput(command, &o.format, commandline.TextFormats)
	machine.AddController(command, &o.machine)
	return command
}

func (o *options) run(command *cobra.Command) error {
	if o.model.limit < 1 || o.model.limit > rates.RowsMax {
		return commandline.Usagef("--limit %d: give 1 to %d", o.model.limit, rates.RowsMax)
	}
	if len(o.model.filter) > filterMax {
		return commandline.Usagef("--filter: give at most %d bytes, as many as names have", filterMax)
	}
	if o.once {
		return o.printOnce(command)
	}
	in, out := command.InOrStdin(), command.OutOrStdout()
	if !commandline.IsTerminal(in) || !commandline.IsTerminal(out) {
		return commandline.Usagef("this is no terminal, which a full screen needs: give --once, and -o json for programs")
	}
	if o.format != "table" {
		return commandline.Usagef("-o %s requires --once", o.format)
	}
	t, err := openTerminal(in.(*os.File), out.(*os.File)) // terminals are files
	if err != nil {
		return err
	}
	defer t.close()
	return watchOn(command.Context(), t, &o.model, o.machine)
}

func (o *options) printOnce(command *cobra.Command) error {
	m := &o.model
	m.now = observation{machines: map[string]watched{}}
	ctx, cancel := context.WithTimeout(command.Context(), onceTimeout)
	defer cancel()
	if err := m.readOnce(ctx, o.machine); err != nil {
		return err
	}
	m.now.at = time.Now()
	_, current := m.now.sum()
	isIncomplete := m.now.incomplete != "" || current < len(m.now.machines)
	if !m.isFleet && isIncomplete {
		return errors.New(m.now.machines[""].wrong(m.now.at))
	}
	if err := m.printAs(command.OutOrStdout(), o.format); err != nil {
		return err
	}
	if !isIncomplete {
		return nil
	}
	m.warn(command.ErrOrStderr())
	return commandline.ErrReported
}

// The first rates come within a second or two, or within the time that a forwarder has to
// answer.
const onceTimeout = 10 * time.Second

// readOnce from each machine what comes first.
func (m *model) readOnce(ctx context.Context, at machine.Machine) error {
	sources := []fleet.Source{{Machine: at}}
	if m.isFleet {
		var missing []fleet.Missing
		var err error
		if sources, missing, err = fleet.Sources(ctx, at); err != nil {
			return err
		}
		for _, one := range missing {
			m.now.take(update{name: one.Name, trouble: one.Why}, true)
		}
	}
	updates, failures := make([]update, len(sources)), make([]error, len(sources))
	var tasks sync.WaitGroup
	for i, s := range sources {
		tasks.Go(func() {
			updates[i].name = s.Name
			one, cancel := context.WithCancel(ctx)
			defer cancel()
			err := fleet.Stream(one, s, opening(m.request()), func(r *controllerv1.Rates) {
				if updates[i].rates == nil {
					updates[i].rates = r
				}
				cancel()
			})
			if updates[i].rates == nil && err != nil {
				failures[i], updates[i].trouble = err, err.Error()
			}
		})
	}
	tasks.Wait()
	if !m.isFleet && failures[0] != nil {
		return failures[0]
	}
	m.now.at = time.Now()
	for _, u := range updates {
		m.now.take(u, m.isFleet)
	}
	return nil
}

// printAs a value, or as lines that are as long as they are.
func (m *model) printAs(w io.Writer, format string) error {
	if format != "table" {
		return commandline.PrintValue(w, format, plainjson.Value{Message: m.value()})
	}
	m.width = output.WidthMax
	sum, current := m.now.sum()
	lines := append(m.head(m.now, sum, current), dropLines(sum, math.MaxInt)...)
	sum = m.chosen(sum)
	lines = append(append(lines, line{}), m.table("service", sum.Services, sum.ServicesBusy)...)
	lines = append(append(lines, line{}), m.table("backend", sum.Backends, sum.BackendsBusy)...)
	if m.isFleet {
		lines = append(append(lines, line{}), m.machineTable(m.now)...)
	}
	for _, l := range lines {
		if _, err := fmt.Fprintln(w, output.Printable(l.text)); err != nil {
			return err
		}
	}
	return nil
}

func (m *model) value() *controllerv1.Rates {
	sum, _ := m.now.sum()
	value := m.chosen(sum)
	if !m.isFleet {
		return value
	}
	value.Machine, value.Time, value.Seconds = "", nil, 0
	for _, w := range m.now.inOrder() {
		one := &controllerv1.Rates{Problem: w.wrong(m.now.at)}
		if w.isCurrent(m.now.at) {
			one = rates.Choose(w.rates, rates.Orders[m.sort], m.filter, 0)
		}
		one.Machine = w.name
		value.Machines = append(value.Machines, one)
	}
	return value
}

// warn of machines that are missing.
func (m *model) warn(stderr io.Writer) {
	if m.now.incomplete != "" {
		fmt.Fprintf(stderr, "warning: %s\n", m.now.incomplete)
	}
	for _, w := range m.now.inOrder() {
		if !w.isCurrent(m.now.at) {
			fmt.Fprintf(stderr, "warning: %s\n", w.why(m.now.at))
		}
	}
}
