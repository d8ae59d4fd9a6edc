// Package events has `guideway events`, which shows what changed.
package events

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/guideway/guideway/cli/commandline"
	"github.com/guideway/guideway/cli/machine"
	"github.com/guideway/guideway/cli/output"
	"github.com/guideway/guideway/controller/events"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	"github.com/spf13/cobra"
)

type options struct {
	m            machine.Machine
	since, until string
	request      *controllerv1.WatchEventsRequest
	fleet        bool
	format       string
}

// Command is `guideway events`.
func Command() *cobra.Command {
	o := options{request: &controllerv1.WatchEventsRequest{}}
	command := &cobra.Command{
		Use:   "events",
		Short: "Show what changed: backends, services, routes, sessions, configurations, who did it",
		Long: "Shows the latest 10,000 events of this machine, the oldest first: changes of the states of\n" +
			"backends, services, routes, BGP sessions, owners of VIPs, configurations and processes, with\n" +
			"the cause and, if known, the user. An event that repeats within 10 s is one line with a count.\n" +
			"Times are those of this terminal's time zone.",
		Example: "  guideway events --since 03:00 --until 03:30\n" +
			"  guideway events --service web --since 10m --follow\n" +
			"  guideway events --object backend --since 2026-11-29T03:00:00+01:00 -o json",
		Args: commandline.NoArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := o.readTimes(time.Now()); err != nil {
				return err
			}
			return o.run(command)
		},
	}
	flags := command.Flags()
	flags.StringVar(&o.since, "since", "", "from this `TIME` on: 15:04, RFC 3339, or how long ago, like 10m [with --follow: now]")
	flags.StringVar(&o.until, "until", "", "up to this `TIME`")
	flags.StringVar(&o.request.Service, "service", "", "of this `SERVICE`, its pools, backends, routes and VIPs, as configured now")
	flags.StringVar(&o.request.Object, "object", "", "of this `OBJECT` or kind of objects, like \"backend web-1\" or route")
	flags.BoolVarP(&o.request.Follow, "follow", "f", false, "go on with those that come; Ctrl-C ends it")
	flags.BoolVar(&o.fleet, "fleet", false, "of every machine of the cluster, through the API of each (api.listen), in order of time")
	commandline.AddOutput(command, &o.format, []string{"table", "json"})
	machine.AddController(command, &o.m)
	_ = command.RegisterFlagCompletionFunc("service", machine.CompleteNames(&o.m, machine.ServiceNames)) // the flag exists
	_ = command.RegisterFlagCompletionFunc("object", cobra.FixedCompletions(events.Kinds, cobra.ShellCompDirectiveNoFileComp))
	return command
}

func (o *options) run(command *cobra.Command) error {
	sources, missing, err := o.sources(command.Context())
	if err != nil {
		return err
	}
	stderr := command.ErrOrStderr()
	for _, text := range missing {
		fmt.Fprintf(stderr, "warning: %s\n", text)
	}
	p := &printer{out: command.OutOrStdout(), json: o.format == "json", withMachine: o.fleet}
	if o.request.Follow {
		err = followAll(command.Context(), sources, o.request, p, stderr)
	} else {
		err = listAll(command.Context(), sources, o.request, p, stderr)
	}
	if err == nil && len(missing) > 0 {
		return commandline.ErrReported
	}
	return err
}

// printer of events.
type printer struct {
	out         io.Writer
	json        bool
	withMachine bool
}

func (p *printer) all(records []events.Record) error {
	if len(records) == 0 && !p.json {
		_, err := fmt.Fprintln(p.out, "no events")
		return err
	}
	for i := range records {
		if err := p.one(&records[i]); err != nil {
			return err
		}
	}
	return nil
}

func (p *printer) one(r *events.Record) error {
	if p.json {
		return json.NewEncoder(p.out).Encode(r)
	}
	when := clock(r.Time, time.Now()) + "  "
	lines := output.Wrap(p.sentence(r), output.WidthMax-len(when))
	_, err := fmt.Fprintln(p.out, when+strings.Join(lines, "\n"+strings.Repeat(" ", len(when))))
	return err
}

// sentence of an event; objects' names may be long, and so may causes.
func (p *printer) sentence(r *events.Record) string {
	var b strings.Builder
	if p.withMachine {
		b.WriteString(r.Machine + ": ")
	}
	b.WriteString(r.Object.String() + ": ")
	if r.From != "" {
		b.WriteString(r.From + " to ")
	}
	b.WriteString(r.To)
	if r.Count > 1 {
		fmt.Fprintf(&b, ", %d times until %s", r.Count, clock(r.Last, r.Time))
	}
	if r.Cause != "" {
		b.WriteString(": " + r.Cause)
	}
	if r.Who != "" {
		b.WriteString(" (by " + r.Who + ")")
	}
	return b.String()
}

// clock has the day where it is another one.
func clock(t, day time.Time) string {
	t = t.Local()
	if t.Format(time.DateOnly) == day.Local().Format(time.DateOnly) {
		return t.Format(time.TimeOnly)
	}
	return t.Format("01-02 15:04:05")
}

// merged lists of several machines: each in its own order, whatever its clock did, and
// all by time as far as that goes.
func merged(lists [][]events.Record) (all []events.Record) {
	for {
		first := -1
		for i, list := range lists {
			if len(list) > 0 && (first < 0 || cmp.Or(list[0].Time.Compare(lists[first][0].Time), strings.Compare(list[0].Machine, lists[first][0].Machine)) < 0) {
				first = i
			}
		}
		if first < 0 {
			return all
		}
		all = append(all, lists[first][0])
		lists[first] = lists[first][1:]
	}
}
