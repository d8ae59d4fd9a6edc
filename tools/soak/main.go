// Soak repeats every test that builds network namespaces, and the lab's scenarios. It lists
// those that failed, how often of how many runs, and where the logs of the failed runs are.
//
//	soak [-times 20] [-minutes 0] [-only REGEXP] [-load 0] [-limit 10m]
//
// Everything is built once; bin/ must exist (`make soak` builds it). Programs run one after the
// other, in rounds, so that an interrupted run has tried all of them about equally often. With
// -minutes, no program is started later than that after the first, and rounds continue until
// then unless -times is given, too. With -load, that many busy loops run beside the tests.
//
// The exit status is 0 if no test failed in any run, 1 if one did, and 2 if
// nothing could be run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"syscall"
	"time"
)

// logs of failed runs; those of an earlier soak are removed.
const logs = ".cache/soak"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	o, only, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	var programs []program
	if err == nil {
		programs, err = prepare(ctx, only)
	}
	var failed bool
	if err == nil {
		failed, err = soak(ctx, programs, o)
	}
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(2)
	case failed:
		os.Exit(1)
	}
}

func parse(args []string) (o options, only *regexp.Regexp, err error) {
	o = options{output: os.Stdout, logs: logs}
	flags := flag.NewFlagSet("soak", flag.ContinueOnError)
	flags.IntVar(&o.times, "times", 20, "rounds")
	minutes := flags.Float64("minutes", 0, "start nothing after this number of minutes; 0: no limit")
	flags.DurationVar(&o.limit, "limit", 10*time.Minute, "of one run of one program")
	flags.IntVar(&o.load, "load", 0, "busy loops beside the tests")
	pattern := flags.String("only", "", "programs whose name matches, as `forwarder/|TestFloods`")
	if err := flags.Parse(args); err != nil {
		return o, nil, err
	}
	timesGiven := false
	flags.Visit(func(f *flag.Flag) { timesGiven = timesGiven || f.Name == "times" })
	if *minutes > 0 {
		o.lasting = time.Duration(*minutes * float64(time.Minute))
		if !timesGiven {
			o.times = int(^uint(0) >> 1)
		}
	}
	if flags.NArg() > 0 || o.times < 1 || *minutes < 0 || o.load < 0 || o.limit <= 0 {
		return o, nil, errors.New("times and limit have to be positive, minutes and load not negative, and nothing else is taken")
	}
	only, err = regexp.Compile(*pattern)
	if err != nil {
		return o, nil, fmt.Errorf("-only: %w", err)
	}
	return o, only, nil
}

// prepare builds, and chooses what is run.
func prepare(ctx context.Context, only *regexp.Regexp) ([]program, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("tests in network namespaces need root")
	}
	programs, err := build(ctx)
	if err != nil {
		return nil, err
	}
	programs = slices.DeleteFunc(programs, func(p program) bool { return !only.MatchString(p.name) })
	if len(programs) == 0 {
		return nil, fmt.Errorf("no program's name matches %q", only)
	}
	return programs, nil
}
