// Package notify reports a process's state to systemd (sd_notify(3)).
package notify

import (
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Notifier speaks to the service manager; without one it is silent.
type Notifier struct{ address string }

// New takes the manager's address from the environment.
func New() Notifier {
	address := os.Getenv("NOTIFY_SOCKET")
	if address != "" && address[0] == '@' { // abstract namespace
		address = "\x00" + address[1:]
	}
	return Notifier{address: address}
}

// Ready: the process does what it is for.
func (n Notifier) Ready() { n.say("READY=1") }

// Stopping: the process is about to end.
func (n Notifier) Stopping() { n.say("STOPPING=1") }

// Reloading until the next Ready. Type=notify-reload needs the clock too, to distinguish this reload from others.
func (n Notifier) Reloading() {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) != nil {
		return
	}
	n.say(fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", now.Nano()/int64(time.Microsecond)))
}

// A failure to notify has no consequence.
func (n Notifier) say(text string) {
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
