package diagnose

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/guideway/guideway/cli/clitest"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

func TestANICsLimitsAreNamed(t *testing.T) {
	all := xdpFeatureNames
	without := func(feature string) []string {
		return slices.DeleteFunc(slices.Clone(all), func(name string) bool { return name == feature })
	}
	for name, c := range map[string]struct {
		report nicReport
		device *forwarderv1.Device
		want   []string
	}{
		"as it should be": {nicReport{XDP: all, MTU: 1500}, &forwarderv1.Device{Driver: "af_xdp", ZeroCopy: true}, nil},
		"no XDP":          {nicReport{}, nil, []string{"its driver has no native XDP"}},
		"no redirects":    {nicReport{XDP: without("redirect")}, nil, []string{"its driver drops what XDP redirects"}},
		"no zero-copy":    {nicReport{XDP: without("xsk-zerocopy")}, nil, []string{"its driver has no zero-copy in this kernel"}},
		"no sending":      {nicReport{XDP: without("ndo-xmit")}, nil, []string{"its driver sends nothing for XDP programs as things are"}},
		"none granted":    {nicReport{XDP: all}, &forwarderv1.Device{Driver: "af_xdp"}, []string{"its driver has zero-copy, and the forwarder got none"}},
		"an older kernel": {nicReport{XDPUnknown: "this kernel does not say"}, &forwarderv1.Device{Driver: "af_xdp"}, nil},
		"many queues":     {nicReport{XDP: all, ReceiveQueues: 65}, nil, []string{"it has 65 receive queues, and the forwarder takes 64"}},
		"jumbo frames":    {nicReport{XDP: all, MTU: 9000}, nil, []string{"its MTU is 9000"}},
		"LRO":             {nicReport{XDP: all, Ethtool: map[string]string{"-k": "large-receive-offload: on"}}, nil, []string{"it joins packets before we get them"}},
		"a bond's":        {nicReport{XDP: all, Master: "bond0"}, nil, []string{"it belongs to bond0"}},
	} {
		limits := c.report.limits(c.device)
		if len(limits) != len(c.want) {
			t.Errorf("%s: %q", name, limits)
			continue
		}
		for i, limit := range limits {
			if !strings.HasPrefix(limit, c.want[i]) {
				t.Errorf("%s: %s", name, limit)
			}
		}
	}
}

// Of the loopback interface, which every machine has.
func TestDoctorReportsOnAnInterfaceByTheKernelsWord(t *testing.T) {
	runDir := clitest.Both(t, nil, &clitest.FakeForwarder{})
	out, _, err := guideway(t, "doctor", "--nic", "lo", "--run-dir", runDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Linux ", "forwarder: answers, version 1", "lo: device, MTU ", "limit: its driver has no native XDP", "ethtool -i"} {
		if !strings.Contains(out, want) {
			t.Errorf("lacks %q:\n%s", want, out)
		}
	}
	out, _, err = guideway(t, "doctor", "--nic", "lo", "-o", "json", "--run-dir", runDir)
	if err != nil {
		t.Fatal(err)
	}
	var reports nicReports
	if err := json.Unmarshal([]byte(out), &reports); err != nil || len(reports.Interfaces) != 1 || reports.Interfaces[0].XDPUnknown != "" {
		t.Errorf("%v\n%s", err, out)
	}
	if _, _, err = guideway(t, "doctor", "--nic", "nothere0", "--run-dir", runDir); err == nil || !strings.Contains(err.Error(), "interface nothere0") {
		t.Errorf("an interface that is not there: %v", err)
	}
	if _, _, err = guideway(t, "doctor", "lo"); err == nil {
		t.Error("an interface without --nic")
	}
}
