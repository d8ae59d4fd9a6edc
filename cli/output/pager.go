package output

import (
	"bytes"
	"cmp"
	"io"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/guideway/guideway/cli/commandline"
)

// Paged prints what is longer than a terminal through $PAGER, or `less`, as git does.
func Paged(out io.Writer, print func(io.Writer) error) error {
	if !commandline.IsTerminal(out) {
		return print(out)
	}
	var text bytes.Buffer
	if err := print(&text); err != nil {
		return err
	}
	size, err := unix.IoctlGetWinsize(int(out.(*os.File).Fd()), unix.TIOCGWINSZ) // a terminal is a file
	pager := pagerCommand()
	if err != nil || pager.Err != nil || bytes.Count(text.Bytes(), []byte("\n")) < int(size.Row) {
		_, err := out.Write(text.Bytes())
		return err
	}
	pager.Stdin, pager.Stdout, pager.Stderr = &text, out, os.Stderr
	return pager.Run()
}

// pagerCommand runs no other one: who may run `guideway show` by sudo may do no more.
func pagerCommand() *exec.Cmd {
	words := strings.Fields(os.Getenv("PAGER"))
	if len(words) == 0 || os.Getenv("SUDO_UID") != "" {
		words = []string{"less"}
	}
	pager := exec.Command(words[0], words[1:]...)
	pager.Env = append(os.Environ(), "LESSSECURE=1", "LESS="+cmp.Or(os.Getenv("LESS"), "FSX"))
	return pager
}
