package diagnose

import (
	"bytes"
	"strings"
	"testing"

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
		says         string
	}{
		"all is well":       {[]*speakerv1.VirtualRouter{router("active", ""), router("backup", "started")}, 0, "ok    vrrp        this machine owns the VIPs of 1 of 2 virtual routers"},
		"no capability":     {[]*speakerv1.VirtualRouter{router("initialize", "the interface has no IPv4 address")}, 0, "fail  vrrp        virtual router 51 is not running: the interface has no IPv4 address"},
		"a second owner":    {[]*speakerv1.VirtualRouter{router("active", "")}, 3, "warn  vrrp        another machine claimed VIPs that this one owned (3 times)"},
		"a VIP of our own":  {[]*speakerv1.VirtualRouter{router("active", "", "203.0.113.9", "203.0.113.10")}, 0, "fail  vrrp        VIP 203.0.113.10 is an address of an interface of this machine"},
		"it is not desired": {nil, 0, ""},
	} {
		p := diagnosis{host: fakeHost{}, state: &controllerv1.GetStateResponse{Vrrp: c.routers, VrrpCounts: &speakerv1.VrrpCounts{SecondOwners: c.secondOwners}}}
		p.vrrp()
		var out bytes.Buffer
		_ = printFindings(&out, "table", p.findings)
		if !strings.Contains(out.String(), c.says) || (c.says == "") != (len(p.findings) == 0) {
			t.Errorf("%s:\n%s", what, out.String())
		}
	}
}
