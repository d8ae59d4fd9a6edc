package diagnose

import (
	"bytes"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	speakerv1 "github.com/guideway/guideway/proto/guideway/speaker/v1"
)

func TestDoctorNamesWhatKeepsVIPsFromTheirOwner(t *testing.T) {
	router := func(state, reason string, vips ...string) *speakerv1.VirtualRouter {
		return &speakerv1.VirtualRouter{Vrid: 51, State: state, Reason: reason, Vips: vips}
	}
	for what, c := range map[string]struct {
		routers      []*speakerv1.VirtualRouter
		secondOwners uint64
		probes       []*speakerv1.VrrpProbe
		says         string
	}{
		"all is well":       {[]*speakerv1.VirtualRouter{router("active", ""), router("backup", "started")}, 0, nil, "ok    vrrp        this machine owns the VIPs of 1 of 2 virtual routers"},
		"no capability":     {[]*speakerv1.VirtualRouter{router("initialize", "the interface has no IPv4 address")}, 0, nil, "fail  vrrp        virtual router 51 is not running: the interface has no IPv4 address"},
		"a second owner":    {[]*speakerv1.VirtualRouter{router("active", "")}, 3, nil, "warn  vrrp        another machine claimed VIPs that this one owned (3 times)"},
		"a VIP of our own":  {[]*speakerv1.VirtualRouter{router("active", "", "203.0.113.9", "203.0.113.10")}, 0, nil, "fail  vrrp        VIP 203.0.113.10 is an address of an interface of this machine"},
		"a probe that ends": {[]*speakerv1.VirtualRouter{router("active", "")}, 0, []*speakerv1.VrrpProbe{{Address: "10.0.0.254", Gateway: true, AnsweredAt: &timestamppb.Timestamp{Seconds: 1}}}, "warn  vrrp        10.0.0.254 did not answer ARP or neighbor solicitations for "},
		"no such probe":     {[]*speakerv1.VirtualRouter{router("active", "")}, 0, []*speakerv1.VrrpProbe{{Address: "10.0.0.3"}}, "warn  vrrp        10.0.0.3 of `vrrp.probes` never answered"},
		"it is not desired": {nil, 0, nil, ""},
	} {
		p := diagnosis{host: fakeHost{}, state: &controllerv1.GetStateResponse{Vrrp: c.routers, VrrpCounts: &speakerv1.VrrpCounts{SecondOwners: c.secondOwners}, VrrpProbes: c.probes}}
		p.vrrp()
		var out bytes.Buffer
		_ = printFindings(&out, "table", p.findings)
		if !strings.Contains(out.String(), c.says) || (c.says == "") != (len(p.findings) == 0) {
			t.Errorf("%s:\n%s", what, out.String())
		}
	}
}
