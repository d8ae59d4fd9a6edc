package topology

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// Frames under way in one direction; more are lost, as in a full queue.
	framesMax = 1 << 16
	frameMax  = 64 << 10
	// How often a direction without frames looks whether the line was closed.
	closedCheck = 100 * time.Millisecond
)

// DelayLine is a cable between two interfaces of one namespace, in user space: frames
// come out at its other end after a delay, in the order in which they went in, or not at
// all. For kernels without netem; and unlike that with jitter it never changes their order.
type DelayLine struct {
	ends    [2]int
	running sync.WaitGroup
	closed  atomic.Bool
	delay   atomic.Int64 // of one direction, in nanoseconds
	loss    atomic.Uint32
	failed  atomic.Pointer[error]
}

// OpenDelayLine without delay or loss.
func OpenDelayLine(namespace string, interfaces [2]string) (*DelayLine, error) {
	l := &DelayLine{ends: [2]int{-1, -1}}
	err := Inside(namespace, func() (err error) {
		for i, name := range interfaces {
			if l.ends[i], err = openEnd(name); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		return nil
	})
	if err != nil {
		l.closeEnds()
		return nil, fmt.Errorf("open a delay line in %s: %w", namespace, err)
	}
	for direction := range l.ends {
		frames := make(chan frame, framesMax)
		l.running.Go(func() { l.receive(l.ends[direction], frames, rand.New(rand.NewPCG(uint64(direction), 0))) })
		l.running.Go(func() { l.send(frames, l.ends[1-direction]) })
	}
	return l, nil
}

// openEnd receives all frames that come in at an interface, and sends there.
func openEnd(name string) (int, error) {
	link, err := net.InterfaceByName(name)
	if err != nil {
		return -1, err
	}
	const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8 // in network byte order
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all)
	if err != nil {
		return -1, err
	}
	timeout := unix.NsecToTimeval(closedCheck.Nanoseconds())
	return fd, errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Index}),
	)
}

// Set the delay of each direction, and the share of frames that is lost, 0 to 1.
func (l *DelayLine) Set(delay time.Duration, loss float64) {
	l.delay.Store(int64(delay))
	l.loss.Store(uint32(loss * (1<<32 - 1)))
}

// Close the line; the error is why it had ended before.
func (l *DelayLine) Close() error {
	l.closed.Store(true)
	l.running.Wait()
	l.closeEnds()
	if failed := l.failed.Load(); failed != nil {
		return *failed
	}
	return nil
}

func (l *DelayLine) closeEnds() {
	for _, end := range l.ends {
		if end >= 0 {
			_ = unix.Close(end)
		}
	}
}

// frame and when it comes out.
type frame struct {
	due   time.Time
	bytes []byte
}

func (l *DelayLine) receive(end int, frames chan<- frame, random *rand.Rand) {
	defer close(frames)
	buffer := make([]byte, frameMax)
	for !l.closed.Load() {
		n, _, err := unix.Recvfrom(end, buffer, 0)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			l.fail(fmt.Errorf("delay line: receive: %w", err))
			return
		}
		if random.Uint32() < l.loss.Load() {
			continue
		}
		select {
		case frames <- frame{time.Now().Add(time.Duration(l.delay.Load())), append([]byte(nil), buffer[:n]...)}:
		default:
		}
	}
}

func (l *DelayLine) send(frames <-chan frame, end int) {
	for f := range frames {
		time.Sleep(time.Until(f.due))
		// What does not fit into the interface's queue is lost, as on any cable.
		if _, err := unix.Write(end, f.bytes); err != nil && !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.EMSGSIZE) {
			l.fail(fmt.Errorf("delay line: send %d bytes: %w", len(f.bytes), err))
			return
		}
	}
}

func (l *DelayLine) fail(err error) {
	l.failed.CompareAndSwap(nil, &err)
	l.closed.Store(true)
}
