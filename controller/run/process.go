package run

// The process's environment: signals and the gateway.

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/guideway/guideway/controller/brain"
	"github.com/guideway/guideway/controller/sinks/prober"
)

// One that comes before the config was read is served by a reload after it.
var hangups = make(chan os.Signal, 1)

// CatchHangups keeps SIGHUP from ending the process, from now on; Run serves
// them. A program calls it as early as it can: a service manager or a script
// may reload as soon as there is a process. Calling it again changes nothing.
func CatchHangups() { signal.Notify(hangups, syscall.SIGHUP) }

// watchSignals: SIGHUP reloads.
func watchSignals(ctx context.Context, c *Controller) {
	CatchHangups()
	defer signal.Stop(hangups)
	for {
		select {
		case <-hangups:
			_ = c.configs.ReloadUnasked(ctx, "SIGHUP") // fails only where the controller stops
		case <-ctx.Done():
			return
		}
	}
}

// watchGateway reports to the brain whether the machine's own gateway answers.
func watchGateway(ctx context.Context, c *Controller) {
	prober.WatchGateway(ctx, func(address string, answers bool) {
		c.Enqueue(brain.GatewayState{Address: address, Answers: answers})
	})
}
