package check

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"syscall"
	"time"

	"github.com/guideway/guideway/controller/outside"
)

// earlyEnd says what an end that comes before an answer means.
func earlyEnd(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("the server closed the connection without an answer")
	}
	return err
}

// Reason says in few words why a probe failed that could last for timeout: the
// address is beside it anyway, and Go's errors repeat it twice. Servers have a say in it.
func Reason(err error, timeout time.Duration) string {
	var errno syscall.Errno
	var timeouts net.Error
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded),
		errors.As(err, &timeouts) && timeouts.Timeout():
		return fmt.Sprintf("no answer within %v", timeout)
	case errors.As(err, &errno):
		return errno.Error()
	}
	var inURL *url.Error
	if errors.As(err, &inURL) {
		return outside.Text(inURL.Err.Error())
	}
	return outside.Text(err.Error())
}
