package show

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

func TestBackendsHaveTheirLoadWhereAgentsMeasureIt(t *testing.T) {
	listed := listBackends([]*controllerv1.Backend{
		{Name: "web-1", Answers: &controllerv1.Answers{Measured: 900, P99Seconds: proto.Float64(0.0143), Open: 12.5}, Load: proto.Float64(2.04)},
		{Name: "web-2"},
	})
	from := slices.Index(listed.Header, "99 % WITHIN")
	for row, want := range [][]string{{"14.3ms", "12.5", "2.0"}, {"-", "-", "-"}} {
		if got := listed.Rows[row][from : from+3]; !slices.Equal(got, want) {
			t.Errorf("%s: %q instead of %q", listed.Rows[row][1], got, want)
		}
	}
}
