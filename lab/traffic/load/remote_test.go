package load

import (
	"bufio"
	"encoding/json"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// served answers over pipes, as the process in the namespace does.
func served(t *testing.T) *Remote {
	t.Helper()
	requests, input := io.Pipe()
	output, answers := io.Pipe()
	go func() {
		if err := Serve(requests, answers); err != nil {
			t.Error(err)
		}
		answers.Close()
	}()
	t.Cleanup(func() { input.Close() })
	return &Remote{input: input, output: bufio.NewReader(output)}
}

func TestRequestsAreAnsweredInOrder(t *testing.T) {
	remote := served(t)
	spec := testSpec()
	spec.Echo, spec.Connections, spec.MessageRate = []netip.AddrPort{startEcho(t)}, 2, 50
	if _, err := remote.ask(request{Do: "start", Spec: &spec}); err != nil {
		t.Fatal(err)
	}
	for open := 0; open < 2; time.Sleep(5 * time.Millisecond) {
		report, err := remote.Progress()
		if err != nil {
			t.Fatal(err)
		}
		if report.Broken > 0 {
			t.Fatalf("report %+v", report)
		}
		open = report.Open
	}
	live, err := remote.Live()
	if err != nil || len(live) != 2 || live[0].Backend != "be-1" || live[0].Kind != KindEcho {
		t.Fatalf("live %v, %v", live, err)
	}
	if err := remote.Mark(); err != nil {
		t.Fatal(err)
	}
	report, err := remote.askReport("stop")
	if err != nil || report.Broken != 0 || report.Messages < 2 {
		t.Fatalf("report %+v, %v", report, err)
	}
}

func TestRequestsThatMakeNoSenseGetAnError(t *testing.T) {
	remote := served(t)
	if _, err := remote.Progress(); err == nil || !strings.Contains(err.Error(), "no load was started") {
		t.Errorf("error %v", err)
	}
	if _, err := remote.ask(request{Do: "start", Spec: &Spec{}}); err == nil {
		t.Error("an empty spec was taken")
	}
}

func TestFlowsAreWrittenAsTheForwarderReadsThem(t *testing.T) {
	flow := Flow{Source: netip.MustParseAddrPort("[2001:db8::1]:1234"), Destination: netip.MustParseAddrPort("[2001:db8:a::10]:80")}
	if got := flow.String(); got != "tcp 2001:db8::1 1234 2001:db8:a::10 80" {
		t.Errorf("got %q", got)
	}
	encoded, err := json.Marshal(flow)
	if err != nil {
		t.Fatal(err)
	}
	var decoded Flow
	if err := json.Unmarshal(encoded, &decoded); err != nil || decoded != flow {
		t.Errorf("%s became %v, %v", encoded, decoded, err)
	}
}
