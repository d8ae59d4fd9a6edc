package show

// `show … --watch`: repeats the output over one connection, with rates.

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/guideway/guideway/cli/commandline"
	"github.com/guideway/guideway/cli/machine"
	"github.com/guideway/guideway/cli/output"
	"github.com/spf13/cobra"
)

// watching is what the flags say.
type watching struct {
	on       bool
	interval time.Duration
}

const (
	watchIntervalMin = 100 * time.Millisecond
	// The time from one to the next is at least this many times what the first took:
	// who watches costs the processes a tenth of a core at most.
	watchPause = 9
)

func addWatch(command *cobra.Command, w *watching) {
	command.Flags().BoolVar(&w.on, "watch", false, "show it again each --interval, with what happens per second; Ctrl-C ends it")
	w.interval = 2 * time.Second
	command.Flags().Var((*intervalValue)(&w.interval), "interval", "how often --watch shows it")
}

// intervalValue is a duration that is not too short.
type intervalValue time.Duration

func (v *intervalValue) Type() string   { return "DURATION" }
func (v *intervalValue) String() string { return time.Duration(*v).String() }
func (v *intervalValue) Set(text string) error {
	d, err := time.ParseDuration(text)
	if err != nil || d < watchIntervalMin {
		return fmt.Errorf("give a duration of %v or more, like 2s", watchIntervalMin)
	}
	*v = intervalValue(d)
	return nil
}

// observation is a listing at a time.
type observation struct {
	at time.Time
	output.Listing
	// By a row's name and a counter's; what is not known is missing.
	perSecond map[string]map[string]float64
}

// since one before: what happened per second. A counter that went back began
// anew.
func (l *observation) since(former observation) {
	l.perSecond = map[string]map[string]float64{}
	before, seconds := former.Counts(), l.at.Sub(former.at).Seconds()
	for row, counts := range l.Counts() {
		for name, now := range counts {
			if was, known := before[row][name]; known && now >= was && seconds > 0 {
				if l.perSecond[row] == nil {
					l.perSecond[row] = map[string]float64{}
				}
				l.perSecond[row][name] = float64(now-was) / seconds
			}
		}
	}
}

// withRates has them in place of the counters.
func (l observation) withRates() output.Listing {
	shown := l.Listing
	shown.Header, shown.Rows = slices.Clone(l.Header), nil
	for _, counter := range l.Counters {
		shown.Header[counter.Column] += output.PerSecond
	}
	for _, row := range l.Rows {
		row, name := slices.Clone(row), l.NameOf(row)
		for _, counter := range l.Counters {
			if rate, known := l.perSecond[name][counter.Name]; known {
				row[counter.Column] = strconv.FormatFloat(rate, 'f', 0, 64)
			} else if name != "" {
				row[counter.Column] = "-"
			}
		}
		shown.Rows = append(shown.Rows, row)
	}
	return shown
}

// watch until the context ends; show's failures are reported and tried again.
func (w watching) watch(ctx context.Context, show func(context.Context) (output.Listing, error), print func(observation) error, report func(error)) error {
	var former observation
	for {
		began := time.Now()
		found, err := show(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			if former.at.IsZero() {
				return err // a mistake, more likely than a restart
			}
			report(err)
		} else {
			now := observation{at: time.Now(), Listing: found}
			now.since(former)
			if err := print(now); err != nil {
				return err
			}
			former = now
		}
		took := time.Since(began)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(max(w.interval-took, watchPause*took)):
		}
	}
}

// run a verb again and again.
func (w watching) run(command *cobra.Command, m machine.Machine, show showFunc, format string, choice output.Choice) error {
	defer m.KeepConnections()()
	stderr := &changedLines{w: command.ErrOrStderr()}
	out := command.OutOrStdout()
	print := func(l observation) error { return l.printTo(out, format, choice) }
	return w.watch(command.Context(), func(ctx context.Context) (output.Listing, error) {
		defer stderr.endObservation()
		found, err := show(ctx, m, stderr)
		if err == nil {
			_, err = found.Choose(choice) // what is not there now may come again
		}
		return found, err
	}, print, func(err error) { fmt.Fprintf(stderr.w, "warning: %v\n", err) })
}

// tick is an observation as JSON, one object in a line.
type tick struct {
	Time      string                        `json:"time"`
	Shown     any                           `json:"shown"`
	PerSecond map[string]map[string]float64 `json:"per_second"`
}

func (l observation) printTo(w io.Writer, format string, choice output.Choice) error {
	if format == "json" || format == "yaml" {
		return l.printValue(w, format, choice)
	}
	shown, err := l.withRates().Choose(choice)
	if err != nil {
		return err
	}
	begin := ""
	if commandline.IsTerminal(w) {
		begin = "\x1b[H\x1b[2J" // home, and clear
	}
	if _, err := fmt.Fprintf(w, "%s%s\n", begin, l.at.Format(time.DateTime)); err != nil {
		return err
	}
	if err := shown.Print(w, format); err != nil {
		return err
	}
	_, err = fmt.Fprintln(w)
	return err
}

func (l observation) printValue(w io.Writer, format string, choice output.Choice) error {
	shown, err := l.Choose(choice)
	if err != nil {
		return err
	}
	value := tick{l.at.Format(time.RFC3339Nano), shown.Value, map[string]map[string]float64{}}
	for _, row := range shown.Rows {
		name := shown.NameOf(row)
		if rates, known := l.perSecond[name]; known {
			value.PerSecond[name] = rates
		}
	}
	if format == "json" {
		return json.NewEncoder(w).Encode(value)
	}
	if _, err := fmt.Fprintln(w, "---"); err != nil {
		return err
	}
	return commandline.PrintValue(w, format, value)
}

// changedLines writes what an observation brought unless the one before brought the same.
type changedLines struct {
	w            io.Writer
	now, written string
}

func (c *changedLines) Write(data []byte) (int, error) {
	c.now += string(data)
	return len(data), nil
}

func (c *changedLines) endObservation() {
	if c.now != c.written {
		_, _ = io.WriteString(c.w, c.now) // there is no other place to say it
	}
	c.written, c.now = c.now, ""
}
