package diagnose

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/guideway/guideway/cli/commandline"
	"github.com/guideway/guideway/cli/machine"
	"github.com/guideway/guideway/controller/config"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

type captureOptions struct {
	request forwarderv1.CaptureRequest
	sample  string
	count   uint64
	file    string
}

// CaptureCommand is `guideway capture`.
func CaptureCommand() *cobra.Command {
	var m machine.Machine
	var o captureOptions
	command := &cobra.Command{
		Use:   "capture -w FILE",
		Short: "Capture packets, each with what became of it, as pcapng",
		Long: "Writes packets as they were received to a pcapng file, each with a comment that\n" +
			"names its verdict, service and backend. What AF_XDP takes, tcpdump does not see;\n" +
			"this does. Ends with Ctrl-C, or after --count packets. Packets that come faster than\n" +
			"they can be written are missed and counted, never held up. The file is written\n" +
			"beside its place (FILE.PID.part) and moved there at the end; a former one stays\n" +
			"until then.",
		Example: "  guideway capture --verdict dropped -w drops.pcapng\n" +
			"  guideway capture --service web --client 192.0.2.0/24 --count 100 -w web.pcapng\n" +
			"  guideway capture --sample 1/1000 -w - | wireshark -k -i -",
		Args: commandline.NoArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			return runCapture(command.Context(), m, &o, command.OutOrStdout(), command.ErrOrStderr())
		},
	}
	flags := command.Flags()
	flags.StringVar(&o.request.Service, "service", "", "packets for this service only")
	flags.StringVar(&o.request.Client, "client", "", "packets from or to this prefix only")
	flags.StringSliceVar(&o.request.Reasons, "reason", nil, "packets dropped for this reason only (may repeat; docs/counters.md lists them)")
	flags.StringSliceVar(&o.request.Verdicts, "verdict", nil, "sent, passed, replied, redirected, held or dropped packets only (may repeat)")
	flags.StringVar(&o.sample, "sample", "1/1", "capture 1 of N packets, as in 1/100")
	flags.Uint64Var(&o.count, "count", 0, "end after N packets")
	flags.StringVarP(&o.file, "write", "w", "", "the file to write; - is standard output")
	flags.StringVar(&m.RunDir, "run-dir", machine.RunDirDefault, "directory of the sockets")
	err := errors.Join(
		command.MarkFlagRequired("write"),
		command.RegisterFlagCompletionFunc("service", machine.CompleteNames(&m, machine.ServiceNames)),
	)
	if err != nil {
		panic(err) // flags that were just defined
	}
	return command
}

func runCapture(ctx context.Context, m machine.Machine, o *captureOptions, stdout, stderr io.Writer) (err error) {
	if o.request.Sample, err = parseSample(o.sample); err != nil {
		return err
	}
	if o.file == "-" {
		return writeCapture(ctx, m, o, stdout, stderr)
	}
	file, err := newCaptureFile(o.file)
	if err != nil {
		return fmt.Errorf("create the capture: %w", err)
	}
	defer file.discard()
	if err = writeCapture(ctx, m, o, file, stderr); !file.used {
		return err // what was there stays
	}
	return errors.Join(err, file.keep())
}

func writeCapture(ctx context.Context, m machine.Machine, o *captureOptions, out, stderr io.Writer) (err error) {
	buffer := bufio.NewWriter(out)
	capture := &capture{options: o, flush: buffer.Flush}
	if capture.writer, err = newPcapngWriter(buffer); err != nil {
		return err
	}
	err = m.StreamForwarder(ctx, capture.run)
	if r := (machine.Refused{}); errors.As(err, &r) && r.Code == codes.InvalidArgument && o.request.Service != "" {
		err = suggestService(ctx, m, err, o.request.Service)
	}
	if err != nil && capture.written == 0 {
		return err
	}
	if flushed := buffer.Flush(); flushed != nil {
		err = errors.Join(err, fmt.Errorf("write the capture: %w", flushed))
	}
	fmt.Fprintf(stderr, "%d packets captured, %d missed\n", capture.written, capture.missed)
	return err
}

// suggestService adds to a refusal which services there are, if it is that.
func suggestService(ctx context.Context, m machine.Machine, refusal error, name string) error {
	var names []string
	_ = m.AskForwarder(ctx, func(ctx context.Context, client forwarderv1.ForwarderClient) error {
		counters, err := client.GetCounters(ctx, &forwarderv1.GetCountersRequest{})
		for _, c := range counters.GetServices() {
			names = append(names, c.Service)
		}
		return err
	})
	if len(names) == 0 || slices.Contains(names, name) {
		return refusal
	}
	return fmt.Errorf("%w: %s", refusal, config.DidYouMean(name, names))
}

// captureFile is written beside its place and moved there at the end: until
// there is a capture, the former one stays.
type captureFile struct {
	file *os.File
	path string
	// Something was written.
	used bool
}

func newCaptureFile(path string) (*captureFile, error) {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	// A pipe or a device is written to, not replaced.
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		file, err := os.OpenFile(path, os.O_WRONLY, 0)
		return &captureFile{file: file, path: path}, err
	}
	file, err := os.OpenFile(fmt.Sprintf("%s.%d.part", path, os.Getpid()), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	return &captureFile{file: file, path: path}, err
}

func (c *captureFile) Write(bytes []byte) (int, error) {
	c.used = true
	return c.file.Write(bytes)
}

func (c *captureFile) keep() error {
	if err := c.file.Close(); err != nil {
		return fmt.Errorf("write the capture: %w", err)
	}
	if c.file.Name() == c.path {
		return nil
	}
	return os.Rename(c.file.Name(), c.path)
}

// discard does nothing to what was kept.
func (c *captureFile) discard() {
	_ = c.file.Close()
	if c.file.Name() != c.path {
		_ = os.Remove(c.file.Name())
	}
}

// parseSample reads 1/N.
func parseSample(text string) (uint32, error) {
	digits, found := strings.CutPrefix(text, "1/")
	n, err := strconv.ParseUint(digits, 10, 32)
	if !found || err != nil || n == 0 {
		return 0, commandline.Usagef("--sample %s: write 1/N, as in 1/100", text)
	}
	return uint32(n), nil
}

type capture struct {
	options         *captureOptions
	writer          *pcapngWriter
	flush           func() error
	written, missed uint64
}

func (c *capture) run(ctx context.Context, client forwarderv1.ForwarderClient) error {
	stream, err := client.Capture(ctx, &c.options.request)
	if err != nil {
		return err
	}
	for {
		response, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return errors.New("the forwarder stopped; the capture ends here")
		case status.Code(err) == codes.Canceled:
			return nil // ^C
		case err != nil:
			return err
		}
		c.missed += response.Missed
		done, err := c.write(response.Packets)
		if err != nil || done {
			return err
		}
	}
}

// write reports whether enough was written. Flushed each time: a program may be
// watching.
func (c *capture) write(packets []*forwarderv1.CapturedPacket) (done bool, err error) {
	for _, p := range packets {
		if err := c.writer.write(p.Interface, p.TimeNs, p.Frame, captureComment(p)); err != nil {
			return false, err
		}
		c.written++
		if c.options.count > 0 && c.written >= c.options.count {
			return true, nil
		}
	}
	return false, c.flush()
}

// captureComment: `sent; service web; backend web-1; worker 0`.
func captureComment(p *forwarderv1.CapturedPacket) string {
	words := []string{p.Verdict}
	if p.Reason != "" {
		words[0] += ": " + p.Reason
	}
	if p.Service != "" {
		words = append(words, "service "+p.Service)
	}
	if p.Backend != "" && p.Verdict == "redirected" {
		words = append(words, "to "+p.Backend)
	} else if p.Backend != "" {
		words = append(words, "backend "+p.Backend)
	}
	if p.AsLeft {
		words = append(words, "by the slow path, shown as it left it")
	}
	return strings.Join(append(words, fmt.Sprintf("worker %d", p.Worker)), "; ")
}
