package top

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// Keys that are no characters.
const (
	ctrlC     = "ctrl-c"
	escape    = "esc"
	enter     = "enter"
	backspace = "backspace"
	tab       = "tab"
	left      = "left"
	right     = "right"
	up        = "up"
	down      = "down"
	pageUp    = "page up"
	pageDown  = "page down"
)

// What terminals are told, as all of the last decades understand (ECMA-48 and xterm's
// private modes): another screen than the shell's, no cursor, no lines that go on at the next
// one's start.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l"
	leaveScreen = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	home        = "\x1b[H"
	reverse     = "\x1b[7m"
	upright     = "\x1b[m"
	restOfLine  = "\x1b[K"
	restBelow   = "\x1b[J"
)

// terminal is a person's, all of it until close. One that takes nothing more holds up
// nobody but the goroutine that writes there.
type terminal struct {
	in, out *os.File
	before  *term.State
	// The next to be written; and all is.
	next    chan frame
	written chan struct{}
	// Why nothing can be written any more.
	failed chan error

	mu       sync.Mutex
	isClosed bool
}

// frame is a whole screen; it may be the first since the shell had the terminal.
type frame struct {
	text    string
	isFirst bool
}

func openTerminal(in, out *os.File) (*terminal, error) {
	before, err := term.MakeRaw(int(in.Fd()))
	if err != nil {
		return nil, fmt.Errorf("the terminal: %w", err)
	}
	t := &terminal{in: in, out: out, before: before, next: make(chan frame, 1), written: make(chan struct{}), failed: make(chan error, 1)}
	go t.write()
	return t, nil
}

func (t *terminal) write() {
	defer close(t.written)
	for f := range t.next {
		if f.isFirst {
			f.text = enterScreen + f.text
		}
		if _, err := t.out.WriteString(f.text); err != nil {
			t.failed <- err
			return
		}
	}
	_, _ = t.out.WriteString(leaveScreen) // if it is gone, there is nobody to tell
}

// How long a terminal may take for the last of it.
const closeMax = time.Second

// close makes the terminal as it was before. Any goroutine may do that.
func (t *terminal) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.isClosed {
		return
	}
	t.isClosed = true
	close(t.next)
	select {
	case <-t.written:
	case <-time.After(closeMax):
	}
	_ = term.Restore(int(t.in.Fd()), t.before) // likewise
}

// guard the terminal while f runs in a goroutine of its own: a panic ends the program where
// nobody else closes it.
func (t *terminal) guard(f func()) {
	defer func() {
		if panicked := recover(); panicked != nil {
			t.close()
			panic(panicked)
		}
	}()
	f()
}

func (t *terminal) size() (width, height int, err error) { return term.GetSize(int(t.out.Fd())) }

// raw has keys come as they are pressed, also after the shell had the terminal.
func (t *terminal) raw() error {
	_, err := term.MakeRaw(int(t.in.Fd()))
	return err
}

// draw all lines, with one write. What was drawn before and is not written yet never is.
func (t *terminal) draw(lines []line, width int, isFirst bool) {
	var b strings.Builder
	b.WriteString(home)
	for i, l := range lines {
		if i > 0 {
			b.WriteString("\r\n")
		}
		if l.isTitle {
			fmt.Fprintf(&b, "%s%-*s%s", reverse, width, l.text, upright)
		} else {
			b.WriteString(l.text)
		}
		b.WriteString(restOfLine)
	}
	b.WriteString(restBelow)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.isClosed {
		return
	}
	select {
	case late := <-t.next:
		isFirst = isFirst || late.isFirst
	default:
	}
	t.next <- frame{b.String(), isFirst} // there is room: nobody else draws
}

// How often who reads keys looks whether that is over; and how long the rest of an arrow's
// sequence may take.
const (
	keysPause     = 100
	sequencePause = 50
)

// keys that are pressed, until the context ends or the terminal.
func (t *terminal) keys(ctx context.Context, press func(string)) {
	buffer := make([]byte, 256)
	var pending string
	for ctx.Err() == nil {
		pause := keysPause
		if pending != "" {
			pause = sequencePause
		}
		fds := []unix.PollFd{{Fd: int32(t.in.Fd()), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, pause)
		if err != nil && err != unix.EINTR || n > 0 && fds[0].Revents&unix.POLLIN == 0 {
			return // hung up
		}
		if n > 0 {
			n, err := unix.Read(int(t.in.Fd()), buffer)
			if err == unix.EINTR || err == unix.EAGAIN {
				continue
			}
			if err != nil || n == 0 {
				return
			}
			pending += string(buffer[:n])
		}
		var pressed []string
		pressed, pending = parseKeys(pending, n <= 0)
		for _, key := range pressed {
			press(key)
		}
	}
}

// parseKeys that a terminal sent; what may be the beginning of a sequence is left over,
// unless it is all.
func parseKeys(sent string, isAll bool) (keys []string, rest string) {
	for sent != "" {
		if sent[0] == 0x1b {
			key, length := parseSequence(sent)
			if length == 0 && !isAll {
				return keys, sent
			}
			keys, sent = append(keys, key), sent[max(1, length):]
			continue
		}
		key := sent[:1]
		switch sent[0] {
		case 3:
			key = ctrlC
		case '\r', '\n':
			key = enter
		case '\t':
			key = tab
		case 8, 127:
			key = backspace
		}
		keys, sent = append(keys, key), sent[1:]
	}
	return keys, ""
}

// Keys by the last character of their sequence, or by its number before a tilde.
var (
	keyOfLetter = map[byte]string{'A': up, 'B': down, 'C': right, 'D': left}
	keyOfNumber = map[string]string{"5": pageUp, "6": pageDown}
)

// parseSequence of a key that is no character: ESC [ or ESC O, numbers, a letter or a
// tilde (ECMA-48, 5.4). 0: it is not complete, or the key Esc.
func parseSequence(sent string) (key string, length int) {
	if len(sent) < 2 {
		return escape, 0
	}
	if sent[1] != '[' && sent[1] != 'O' {
		return escape, 1
	}
	for i := 2; i < len(sent); i++ {
		switch {
		case sent[i] == '~':
			return keyOfNumber[sent[2:i]], i + 1
		case sent[i] >= 0x40 && sent[i] <= 0x7e:
			return keyOfLetter[sent[i]], i + 1
		}
	}
	return escape, 0
}

// resized tells when the terminal has another size, or was the shell's for a while.
func resized() (signals chan os.Signal, end func()) {
	signals = make(chan os.Signal, 2)
	signal.Notify(signals, unix.SIGWINCH, unix.SIGCONT)
	return signals, func() { signal.Stop(signals) }
}
