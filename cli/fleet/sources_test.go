package fleet

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/guideway/guideway/cli/clitest"
	"github.com/guideway/guideway/cli/machine"
	"github.com/guideway/guideway/looptest"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

// relay connections to an address; from cut on it swallows everything, as a network does that
// lost the machine.
func relay(t *testing.T, to string) (address string, cut func()) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var isCut atomic.Bool
	var tasks sync.WaitGroup
	t.Cleanup(tasks.Wait)
	t.Cleanup(func() { listener.Close() })
	carry := func(from, to net.Conn) {
		buffer := make([]byte, 4096)
		for {
			n, err := from.Read(buffer)
			if err != nil {
				to.Close()
				return
			}
			if !isCut.Load() {
				_, _ = to.Write(buffer[:n]) // the other direction tells
			}
		}
	}
	tasks.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			other, err := net.Dial("tcp", to)
			if err != nil {
				conn.Close()
				continue
			}
			tasks.Go(func() { carry(conn, other) })
			tasks.Go(func() { carry(other, conn) })
		}
	})
	return listener.Addr().String(), func() { isCut.Store(true) }
}

func Test_a_stream_of_a_machine_that_is_gone_ends(t *testing.T) {
	t.Parallel()
	authority := looptest.NewAuthority(t)
	address, cut := relay(t, clitest.OverTCP(t, authority, &clitest.FakeController{Rates: &controllerv1.Rates{Machine: "lb-1"}}))
	var m machine.Machine
	command := &cobra.Command{Run: func(*cobra.Command, []string) {}}
	command.SetErr(io.Discard)
	machine.AddController(command, &m)
	command.SetArgs(append([]string{"--server", address}, clitest.Certificate(t, authority)...))
	if err := command.Execute(); err != nil {
		t.Fatal(err)
	}
	open := func(ctx context.Context, client controllerv1.ControllerClient) (grpc.ServerStreamingClient[controllerv1.Rates], error) {
		return client.WatchRates(ctx, &controllerv1.WatchRatesRequest{})
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := Stream(ctx, Source{Name: "lb-1", Machine: m}, open, func(*controllerv1.Rates) { cut() })
	if err == nil || ctx.Err() != nil {
		t.Errorf("%v, %v", err, ctx.Err())
	}
	t.Log(err)
}
