package show

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/guideway/guideway/cli/commandline"
	"github.com/guideway/guideway/cli/machine"
	"github.com/guideway/guideway/cli/output"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
	"github.com/guideway/guideway/proto/plainjson"
)

func showConnectionsCommand() *cobra.Command {
	var lookup []string
	v := verb{show: func(ctx context.Context, m machine.Machine, _ io.Writer) (output.Listing, error) {
		if len(lookup) == 0 {
			return countConnections(ctx, m)
		}
		return lookUpConnection(ctx, m, lookup)
	}}
	command := &cobra.Command{
		Use:   "connections [PROTOCOL SOURCE DESTINATION]",
		Short: "Show tracked connections by service, backend and class, or a single one",
		Example: "  guideway show connections --sort connections --limit 10\n" +
			"  guideway show connections tcp 192.0.2.7:40000 203.0.113.10:80",
		Args: func(command *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return commandline.Arguments("PROTOCOL", "SOURCE", "DESTINATION")(command, args)
		},
		RunE: func(command *cobra.Command, args []string) error {
			lookup = args
			return v.run(command)
		},
	}
	v.addFlags(command)
	v.addOrder(command)
	return command
}

func askConnections(ctx context.Context, m machine.Machine, request *forwarderv1.GetConnectionsRequest) (*forwarderv1.GetConnectionsResponse, error) {
	var response *forwarderv1.GetConnectionsResponse
	err := m.AskPackets(ctx, func(ctx context.Context, client machine.Packets) (err error) {
		response, err = client.GetConnections(ctx, request)
		return err
	})
	return response, err
}

func countConnections(ctx context.Context, m machine.Machine) (output.Listing, error) {
	response, err := askConnections(ctx, m, &forwarderv1.GetConnectionsRequest{})
	if err != nil {
		return output.Listing{}, err
	}
	valueOf := func(counts []*forwarderv1.ConnectionCount) any {
		answer := &forwarderv1.GetConnectionsResponse{ConnectionsMax: response.ConnectionsMax, Counts: counts}
		return plainjson.Value{Message: answer, Fields: []protoreflect.Name{"connections_max", "counts"}}
	}
	found := output.Listing{
		Value: valueOf(response.Counts), Pick: func(rows []int) any { return valueOf(output.Picked(response.Counts, rows)) },
		Header: []string{"SERVICE", "BACKEND", "CLASS", "CONNECTIONS"}, Named: 2,
		None: fmt.Sprintf("no tracked connections; room for %d", response.ConnectionsMax),
	}
	for _, c := range response.Counts {
		found.Rows = append(found.Rows, []string{c.Service, c.Backend, c.Class, fmt.Sprint(c.Connections)})
	}
	return found, nil
}

func lookUpConnection(ctx context.Context, m machine.Machine, words []string) (output.Listing, error) {
	key, err := FlowKey(words[0], words[1], words[2])
	if err != nil {
		return output.Listing{}, err
	}
	response, err := askConnections(ctx, m, &forwarderv1.GetConnectionsRequest{Lookup: key})
	if err != nil {
		return output.Listing{}, err
	}
	found := output.Listing{
		Value:  plainjson.List(response.Found),
		Header: []string{"WORKER", "SERVICE", "BACKEND", "CLASS", "IDLE"},
		None:   "not tracked on this machine: its next packet selects a backend by hash",
	}
	for _, c := range response.Found {
		idle := time.Duration(c.IdleMs) * time.Millisecond
		found.Rows = append(found.Rows, []string{fmt.Sprint(c.Worker), c.Service, c.Backend, c.Class, idle.String()})
	}
	return found, nil
}

// FlowKey reads `tcp 192.0.2.7:40000 203.0.113.10:80`.
func FlowKey(protocol, source, destination string) (*forwarderv1.FlowKey, error) {
	number, known := map[string]uint32{"tcp": 6, "udp": 17}[strings.ToLower(protocol)]
	if !known {
		return nil, commandline.Usagef("protocol %q: use tcp or udp", protocol)
	}
	from, err := netip.ParseAddrPort(source)
	if err != nil {
		return nil, commandline.Usagef("source %q: write address:port, [address]:port for IPv6", source)
	}
	to, err := netip.ParseAddrPort(destination)
	if err != nil {
		return nil, commandline.Usagef("destination %q: write address:port, [address]:port for IPv6", destination)
	}
	if from.Addr().Is4() != to.Addr().Is4() {
		return nil, commandline.Usagef("source %s and destination %s are of different families", source, destination)
	}
	return &forwarderv1.FlowKey{
		Source: from.Addr().String(), Destination: to.Addr().String(), Protocol: number,
		SourcePort: uint32(from.Port()), DestinationPort: uint32(to.Port()),
	}, nil
}
