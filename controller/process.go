package controller

// The process's ties to its surroundings: signals, the service manager, the
// gateway.

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guideway/guideway/controller/brain"
	"github.com/guideway/guideway/controller/prober"
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
			_, _ = c.reload(ctx) // its outcome is in the log and the state
		case <-ctx.Done():
			return
		}
	}
}

// watchGateway reports to the brain whether the machine's own gateway answers.
func watchGateway(ctx context.Context, c *Controller) {
	prober.WatchGateway(ctx, func(address string, answers bool) {
		c.enqueue(brain.GatewayState{Address: address, Answers: answers})
	})
}

// notifier speaks to systemd (sd_notify(3)); without one it is silent.
type notifier struct{ address string }

func newNotifier() notifier {
	address := os.Getenv("NOTIFY_SOCKET")
	if address != "" && address[0] == '@' { // abstract namespace
		address = "\x00" + address[1:]
	}
	return notifier{address: address}
}

func (n notifier) ready()    { n.say("READY=1") }
func (n notifier) stopping() { n.say("STOPPING=1") }

// Type=notify-reload needs the clock too, to distinguish this reload from others.
func (n notifier) reloading() {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) != nil {
		return
	}
	n.say(fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", now.Nano()/int64(time.Microsecond)))
}

// A failure to notify has no consequence.
func (n notifier) say(text string) {
	if n.address == "" {
		return
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: n.address, Net: "unixgram"})
	if err != nil {
		return
	}
	defer conn.Close()
	_, _ = conn.Write([]byte(text))
}
