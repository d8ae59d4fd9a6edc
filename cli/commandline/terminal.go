package commandline

import (
	"os"

	"golang.org/x/sys/unix"
)

// IsTerminal says whether a person is at the other end of a stream.
func IsTerminal(stream any) bool {
	file, is := stream.(*os.File)
	if !is {
		return false
	}
	_, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	return err == nil
}
