package load

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"sync"
)

// The load runs in a process of its own, inside the client's namespace. It is
// asked by lines of JSON on its standard input and answers each with a line.
//
//	{"do": "start", "spec": {…}}   {}
//	{"do": "progress"}             {"report": {…}}
//	{"do": "live"}                 {"live": [{…}]}
//	{"do": "mark"}                 {}
//	{"do": "stop"}                 {"report": {…}}, the last one
type request struct {
	Do   string `json:"do"`
	Spec *Spec  `json:"spec,omitempty"`
}

type response struct {
	Error  string  `json:"error,omitempty"`
	Report *Report `json:"report,omitempty"`
	Live   []Live  `json:"live,omitempty"`
}

// Serve answers until it is told to stop or the input ends.
func Serve(input io.Reader, output io.Writer) error {
	requests, responses := json.NewDecoder(input), json.NewEncoder(output)
	var l *Load
	for {
		var q request
		if err := requests.Decode(&q); errors.Is(err, io.EOF) {
			return nil // the process that asked is gone, and so are we
		} else if err != nil {
			return fmt.Errorf("read request: %w", err)
		}
		a, err := reply(&l, q)
		if err != nil {
			a.Error = err.Error()
		}
		if err := responses.Encode(a); err != nil {
			return fmt.Errorf("write response: %w", err)
		}
		if q.Do == "stop" {
			return nil
		}
	}
}

func reply(l **Load, q request) (a response, err error) {
	if q.Do == "start" && *l == nil && q.Spec != nil {
		*l, err = Start(*q.Spec)
		return a, err
	}
	if *l == nil {
		return a, fmt.Errorf("%q, but no load was started", q.Do)
	}
	switch q.Do {
	case "progress":
		report := (*l).Progress()
		a.Report = &report
	case "live":
		a.Live = (*l).Live()
	case "mark":
		(*l).Mark()
	case "stop":
		report := (*l).Stop()
		a.Report = &report
	default:
		err = fmt.Errorf("unknown request %q", q.Do)
	}
	return a, err
}

// Remote is a load in another process.
type Remote struct {
	mutex   sync.Mutex
	command *exec.Cmd
	input   io.WriteCloser
	output  *bufio.Reader
}

// StartRemote runs the command, whose input and output become ours, and
// starts the load in it.
func StartRemote(command *exec.Cmd, spec Spec) (*Remote, error) {
	input, err := command.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start load: %w", err)
	}
	output, err := command.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start load: %w", err)
	}
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("start load: %w", err)
	}
	r := &Remote{command: command, input: input, output: bufio.NewReader(output)}
	if _, err := r.ask(request{Do: "start", Spec: &spec}); err != nil {
		return nil, errors.Join(err, r.Abandon())
	}
	return r, nil
}

func (r *Remote) ask(q request) (response, error) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	var a response
	if err := json.NewEncoder(r.input).Encode(q); err != nil {
		return a, fmt.Errorf("ask load to %s: %w", q.Do, err)
	}
	line, err := r.output.ReadBytes('\n')
	if err != nil {
		return a, fmt.Errorf("ask load to %s: %w", q.Do, err)
	}
	if err := json.Unmarshal(line, &a); err != nil {
		return a, fmt.Errorf("ask load to %s: %w", q.Do, err)
	}
	if a.Error != "" {
		return a, fmt.Errorf("ask load to %s: %s", q.Do, a.Error)
	}
	return a, nil
}

func (r *Remote) askReport(do string) (Report, error) {
	a, err := r.ask(request{Do: do})
	if err != nil {
		return Report{}, err
	}
	if a.Report == nil {
		return Report{}, fmt.Errorf("ask load to %s: no report in the response", do)
	}
	return *a.Report, nil
}

// Progress so far.
func (r *Remote) Progress() (Report, error) { return r.askReport("progress") }

// Live connections now.
func (r *Remote) Live() ([]Live, error) {
	a, err := r.ask(request{Do: "live"})
	return a.Live, err
}

// Mark begins a new count of fresh connections.
func (r *Remote) Mark() error {
	_, err := r.ask(request{Do: "mark"})
	return err
}

// Stop the load, wait for its last report and for its process to end.
func (r *Remote) Stop() (Report, error) {
	report, err := r.askReport("stop")
	if err != nil {
		return report, errors.Join(err, r.Abandon())
	}
	if err := r.command.Wait(); err != nil {
		return report, fmt.Errorf("load process: %w", err)
	}
	return report, nil
}

// Abandon the load without a report.
func (r *Remote) Abandon() error {
	if err := r.command.Process.Kill(); err != nil {
		return fmt.Errorf("abandon load: %w", err)
	}
	_ = r.command.Wait() // it was killed: that is what this says
	return nil
}
