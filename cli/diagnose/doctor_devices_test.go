package diagnose

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

func TestDoctorLooksAtMTUsStrippedTagsAndJoinedPackets(t *testing.T) {
	const good = "large-receive-offload: off\ngeneric-receive-offload: off\nrx-vlan-offload: off\n"
	joined := strings.Replace(good, "generic-receive-offload: off", "generic-receive-offload: on", 1)
	for name, c := range map[string]struct {
		mtu      uint32
		features string
		mode     string
		want     []string
	}{
		"all is well":       {1778, good, "native", []string{"ok up,"}},
		"jumbo frames":      {3000, good, "native", []string{"warn has MTU 3000, and packets longer than 1778 bytes"}},
		"one byte too many": {1779, good, "native", []string{"warn has MTU 1779"}},
		"joined later":      {1500, joined, "native", []string{"ok up,"}},
		"joined before":     {1500, joined, "generic", []string{"warn runs XDP in generic mode", "fail joins packets before we get them (gro)"}},
		"joined and cut":    {1500, joined, "-", []string{"ok up,"}},
		"tags are stripped": {1500, strings.Replace(good, "vlan-offload: off", "vlan-offload: on", 1), "native", []string{"warn strips VLAN tags before we get frames (rx-vlan-offload), so those of eth1.100"}},
	} {
		p := diagnosis{host: fakeHost{c.features}, status: &forwarderv1.GetStatusResponse{Devices: []*forwarderv1.Device{
			{Interface: "eth1", Driver: "af_xdp", Mode: c.mode, Queues: 4, Up: true, Mtu: c.mtu},
		}}}
		p.devices(t.Context())
		if len(p.findings) != len(c.want) {
			t.Errorf("%s: %v", name, p.findings)
			continue
		}
		for i, f := range p.findings {
			if !strings.HasPrefix(f.Grade+" "+f.Text, c.want[i]) {
				t.Errorf("%s: %s %s", name, f.Grade, f.Text)
			}
		}
	}
}

// What fits is the forwarder's.
func TestThePacketsThatFitAreThoseOfWire(t *testing.T) {
	source, err := os.ReadFile("../../wire/src/frame.rs")
	if err != nil {
		t.Fatal(err)
	}
	number := func(name string) int {
		found := regexp.MustCompile(name + `: usize = (\d+);`).FindSubmatch(source)
		if found == nil {
			t.Fatalf("wire/src/frame.rs has no %s", name)
		}
		n, _ := strconv.Atoi(string(found[1]))
		return n
	}
	if fits := number("CHUNK_BYTES") - number("HEADROOM_BYTES") - 14; fits != packetBytesMax {
		t.Errorf("%d bytes fit, not %d", fits, packetBytesMax)
	}
}
