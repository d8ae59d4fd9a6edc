package config

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/guideway/guideway/cli/commandline"
	"github.com/guideway/guideway/cli/machine"
	"github.com/guideway/guideway/cli/output"
	"github.com/guideway/guideway/controller/api"
	"github.com/guideway/guideway/controller/config"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	"github.com/guideway/guideway/proto/plainjson"
)

// Building a large plan's tables and reading all connections takes seconds on
// a slow machine.
const planTimeout = 90 * time.Second

// Of each table, unless all are wanted: what a plan changes is to fit a screen.
const planRowsMax = 20

func configPlanCommand() *cobra.Command {
	var m machine.Machine
	var format string
	var all bool
	command := &cobra.Command{
		Use:   "plan FILE...",
		Short: "Show what a configuration would change, without applying it",
		Long: "Compares files, or directories of *.yaml, *.yml and *.json, with the configuration\n" +
			"that runs here: services, VIPs, pools and backends; each backend's share of new\n" +
			"connections; tracked connections that would break (their backend is gone or refuses\n" +
			"them) or move (another backend gets them); BGP sessions that end; routes; which of\n" +
			"the probes that it adds fail, by trying each once. Rows that say the same are one, and\n" +
			"long tables end early, but for --all; -o json has everything.\n" +
			"Exit status: 0 if nothing would change, 2 if something would, 1 on error.",
		Example: "  guideway config plan new.yaml",
		Args:    configFiles,
		RunE: func(command *cobra.Command, files []string) error {
			sources, err := readSources(files)
			if err != nil {
				return err
			}
			response, err := planConfig(command.Context(), m, sources)
			if err != nil {
				return err
			}
			printWarningLines(command, response.Warnings)
			if err := printPlan(command.OutOrStdout(), format, all, response); err != nil {
				return err
			}
			if c, err := config.Load(files...); err == nil { // with etcd the files are a part
				printNotes(command.ErrOrStderr(), notesOnOtherWays(command.Context(), m, c))
			}
			if response.Changed {
				return commandline.ErrChanges
			}
			return nil
		},
	}
	commandline.AddOutput(command, &format, commandline.TextFormats)
	command.Flags().BoolVar(&all, "all", false, "show each row of each table")
	machine.AddController(command, &m)
	commandline.FailsByUsage(command)
	return command
}

// readSources by absolute names: the controller works in another directory.
func readSources(files []string) ([]config.Source, error) {
	sources, err := config.Read(files...)
	if err != nil {
		return nil, err
	}
	for i := range sources {
		if sources[i].Name, err = filepath.Abs(sources[i].Name); err != nil {
			return nil, fmt.Errorf("read config %s: %w", files[0], err)
		}
	}
	return sources, nil
}

func planConfig(ctx context.Context, m machine.Machine, sources []config.Source) (*controllerv1.PlanConfigResponse, error) {
	var response *controllerv1.PlanConfigResponse
	err := m.Ask(ctx, planTimeout, m.ControllerDoor(api.OperateGroup), func(ctx context.Context, conn *grpc.ClientConn) (err error) {
		response, err = controllerv1.NewControllerClient(conn).PlanConfig(ctx, &controllerv1.PlanConfigRequest{Files: filesOf(sources)})
		return err
	})
	return response, err
}

func filesOf(sources []config.Source) []*controllerv1.ConfigFile {
	files := make([]*controllerv1.ConfigFile, len(sources))
	for i, source := range sources {
		files[i] = &controllerv1.ConfigFile{Name: source.Name, Data: source.Data}
	}
	return files
}

// lost to their backends are connections that break or move.
func lost(c *controllerv1.ConnectionChange) uint64 { return c.GetBreaking() + c.GetMoving() }

func printPlan(w io.Writer, format string, all bool, r *controllerv1.PlanConfigResponse) error {
	if format != "table" {
		return commandline.PrintValue(w, format, plainjson.Value{Message: r})
	}
	if !r.Changed {
		_, err := fmt.Fprintf(w, "no change: the config means what runs (config %d)\n", r.Number)
		return err
	}
	fmt.Fprintf(w, "changes to what runs (config %d):\n", r.Number)
	var err error
	for _, table := range []output.Listing{changesTable(r.Changes), servicesTable(r, all), sharesTable(r), sessionsTable(r), routesTable(r), failuresTable(r)} {
		if len(table.Rows) > 0 {
			if !all {
				table = table.Folded(planRowsMax)
			}
			fmt.Fprintln(w)
			err = errors.Join(err, table.PrintTable(w, false))
		}
	}
	if notes := planNotes(r); len(notes) > 0 {
		fmt.Fprintln(w)
		printNotes(w, notes)
	}
	return err
}

func printNotes(w io.Writer, notes []string) {
	for _, note := range notes {
		fmt.Fprintln(w, "note: "+note)
	}
}

func changesTable(changes []*controllerv1.ConfigChange) output.Listing {
	table := output.Listing{Header: []string{"KIND", "NAME", "CHANGE"}, Wrapped: true, Alike: []int{1}}
	for _, c := range changes {
		if len(c.Fields) == 0 {
			table.Rows = append(table.Rows, []string{c.Kind, c.Name, c.What})
		}
		for _, f := range c.Fields {
			text := fmt.Sprintf("%s to %s", output.Dash(f.Before), output.Dash(f.After))
			if f.Field != "" {
				text = f.Field + ": " + text
			}
			table.Rows = append(table.Rows, []string{c.Kind, c.Name, text})
		}
	}
	return table
}

// servicesTable begins with those of which most connections break or move, unless it has all
// of them; those that nothing happens to are one row then.
func servicesTable(r *controllerv1.PlanConfigResponse, all bool) output.Listing {
	table := output.Listing{Header: []string{"SERVICE", "TABLE CHANGES", "CONNECTIONS", "STAY", "BREAK", "MOVE", "NOT KNOWN"}, Alike: []int{0}}
	var services, others []*controllerv1.ServiceChange
	for _, s := range r.Services {
		if all || api.IsChanged(s) {
			services = append(services, s)
		} else {
			others = append(others, s)
		}
	}
	if !all {
		slices.SortStableFunc(services, func(a, b *controllerv1.ServiceChange) int {
			return cmp.Compare(lost(b.Established), lost(a.Established))
		})
	}
	if len(others) == 1 {
		services, others = append(services, others...), nil
	}
	add := func(name, share string, c *controllerv1.ConnectionChange) {
		row := []string{name, share}
		for _, n := range []uint64{c.GetStaying() + lost(c) + c.GetUnknown(), c.GetStaying(), c.GetBreaking(), c.GetMoving(), c.GetUnknown()} {
			row = append(row, fmt.Sprint(n))
		}
		table.Rows = append(table.Rows, row)
	}
	for _, s := range services {
		add(s.Service, perCent(tableShare(s)), s.Established)
	}
	if len(others) > 0 {
		sum := &controllerv1.ConnectionChange{}
		for _, s := range others {
			sum.Staying += s.Established.GetStaying()
		}
		add(fmt.Sprintf("%d others", len(others)), perCent(0), sum)
	}
	return table
}

func sharesTable(r *controllerv1.PlanConfigResponse) output.Listing {
	table := output.Listing{Header: []string{"SERVICE", "BACKEND", "SHARE NOW", "SHARE THEN"}, Alike: []int{1, 0}}
	for _, s := range r.Services {
		if s.SharesAs != "" {
			table.Rows = append(table.Rows, []string{s.Service, "as those of " + s.SharesAs, "", ""})
		}
		for _, b := range s.Backends {
			table.Rows = append(table.Rows, []string{s.Service, b.Backend, perCent(b.ShareBefore), perCent(b.ShareAfter)})
		}
	}
	return table
}

func sessionsTable(r *controllerv1.PlanConfigResponse) output.Listing {
	table := output.Listing{Header: []string{"BGP SESSION", "CHANGE", "ROUTES", "REASON"}, Wrapped: true}
	for _, s := range r.BgpSessions {
		what := "ends, begins anew"
		if s.Removed {
			what = "ends"
		}
		table.Rows = append(table.Rows, []string{fmt.Sprintf("%s (AS %d)", s.Address, s.Asn), what, fmt.Sprint(s.Routes), s.Reason})
	}
	return table
}

func failuresTable(r *controllerv1.PlanConfigResponse) output.Listing {
	table := output.Listing{Header: []string{"BACKEND", "NEW PROBE", "VIA", "FAILS NOW"}, Wrapped: true, Alike: []int{0}}
	for _, failed := range r.NewProbes.GetFailed() {
		table.Rows = append(table.Rows, []string{failed.Backend, failed.HealthCheck, failed.Via, failed.Reason})
	}
	return table
}

func routesTable(r *controllerv1.PlanConfigResponse) output.Listing {
	table := output.Listing{Header: []string{"ROUTE", "CHANGE", "REASON"}, Wrapped: true, Alike: []int{0}}
	for _, route := range r.Routes {
		what := "withdrawn"
		if route.Announced {
			what = "announced"
		}
		table.Rows = append(table.Rows, []string{route.Prefix, what, route.Reason})
	}
	return table
}

func tableShare(s *controllerv1.ServiceChange) float64 {
	if s.TableEntries == 0 {
		return 0
	}
	return float64(s.TableEntriesChanged) / float64(s.TableEntries)
}

func perCent(share float64) string { return fmt.Sprintf("%.1f %%", 100*share) }

// planNotes are what the tables alone would hide.
func planNotes(r *controllerv1.PlanConfigResponse) (notes []string) {
	note := func(format string, values ...any) { notes = append(notes, fmt.Sprintf(format, values...)) }
	if r.RestartRequired != "" {
		note("the forwarder refuses this until it is restarted: %s", r.RestartRequired)
	}
	if len(r.AssumedActive) > 0 {
		note("not yet probed, and taken for active: %s", strings.Join(r.AssumedActive, ", "))
	}
	if tried := r.NewProbes; tried.GetPassed()+tried.GetUntried() > 0 || len(tried.GetFailed()) > 0 {
		note("new probes, tried once from this machine: %d passed, %d failed, %d could not be tried", tried.Passed, len(tried.Failed), tried.Untried)
		if tried.Untried > 0 {
			note("probes that could not be tried: %s", tried.UntriedReason)
		}
	}
	if r.LastBgpSessionEnds {
		note("every BGP session of this machine ends: its routes go, and its connections come to other machines, or break where there is none")
	}
	for _, s := range r.Services {
		if c := s.OpeningOrClosing; api.IsAffected(c) {
			note("%s: of connections that open or close, %d would break, %d move, %d are not known", s.Service, c.Breaking, c.Moving, c.Unknown)
		}
		if s.Established.GetUnknown()+s.OpeningOrClosing.GetUnknown() > 0 {
			note("%s: not known is what moves with some of its VIPs only, or would be selected by the client's address", s.Service)
		}
		if s.QuotaReached {
			note("%s holds its connections_quota: its other connections are not counted; of them %s move, those on table entries that change", s.Service, perCent(tableShare(s)))
		}
	}
	if n := r.UntrackedTableFull + r.UntrackedQuota; n > 0 {
		note("%s since the forwarder started are not tracked (%d without room in the table, %d beyond a quota), and not counted: they move with the table entries that change",
			output.Counted(int(n), "new flow"), r.UntrackedTableFull, r.UntrackedQuota)
	}
	return notes
}
