package output

import (
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// terminal of so many rows, and what is written to it once it was closed.
func terminal(t *testing.T, rows uint16) (slave *os.File, shown func() string) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no pseudo terminals here: ", err)
	}
	t.Cleanup(func() { _ = master.Close() })
	fd := int(master.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: 80})
	}
	if err == nil {
		slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	return slave, func() string {
		_ = slave.Close()
		text, _ := io.ReadAll(master) // ends with an error when all have closed the other side
		return string(text)
	}
}

func TestWhatIsLongerThanATerminalIsPaged(t *testing.T) {
	t.Setenv("SUDO_UID", "")
	five := func(w io.Writer) error {
		_, err := io.WriteString(w, strings.Repeat("a row\n", 5))
		return err
	}
	for name, c := range map[string]struct {
		rows  uint16
		pager string
		want  int
	}{
		"it fits":           {6, "tail -n 1", 5},
		"it does not fit":   {5, "tail -n 1", 1},
		"there is no pager": {5, "there-is-none", 5},
	} {
		t.Setenv("PAGER", c.pager)
		slave, shown := terminal(t, c.rows)
		err := Paged(slave, five)
		if text := shown(); err != nil || strings.Count(text, "a row") != c.want {
			t.Errorf("%s: %v %q", name, err, text)
		}
	}
}

// By sudo a user's own pager would run with more rights than the user has.
func TestAPagerRunsNoCommands(t *testing.T) {
	t.Setenv("PAGER", "more -x")
	t.Setenv("SUDO_UID", "")
	if pager := pagerCommand(); !reflect.DeepEqual(pager.Args, []string{"more", "-x"}) {
		t.Error(pager.Args)
	}
	t.Setenv("SUDO_UID", "1000")
	if pager := pagerCommand(); !reflect.DeepEqual(pager.Args, []string{"less"}) || !strings.Contains(strings.Join(pager.Env, " "), "LESSSECURE=1") {
		t.Error(pager.Args, pager.Env)
	}
}
