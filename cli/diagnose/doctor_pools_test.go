package diagnose

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

func TestSourcesThatFailOrShrinkAPoolAreTold(t *testing.T) {
	p := &diagnosis{state: &controllerv1.GetStateResponse{MemberSources: []*controllerv1.MemberSource{
		{Name: "well", Source: "file /a.json", Backends: 3},
		{Name: "fails", Source: "dns web.internal", Backends: 3, Problem: "answered by SERVFAIL"},
		{Name: "shrinks", Source: "file /b.json", Backends: 4, Waiting: 2, WaitingUntil: &timestamppb.Timestamp{Seconds: 1}},
	}}}
	p.memberSources()
	want := []finding{
		{gradeWarn, "pool", "fails keeps its 3 backends: dns web.internal fails: answered by SERVFAIL; its latest success: -"},
		{gradeWarn, "pool", "shrinks: file /b.json lacks 2 of its 4 backends, which stay until 1970-01-01T00:00:01Z (shrink_delay): correct the source if they live"},
	}
	if fmt.Sprint(p.findings) != fmt.Sprint(want) {
		t.Errorf("found\n%v\nwant\n%v", p.findings, want)
	}
}
