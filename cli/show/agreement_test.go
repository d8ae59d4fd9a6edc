package show

import (
	"strings"
	"testing"

	"github.com/guideway/guideway/cli/output"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

func TestShowBucketsSaysWhoAssignsAndWhoIsWaitedFor(t *testing.T) {
	services := []*controllerv1.Service{
		{Name: "alone", Buckets: &controllerv1.Buckets{Generation: 3, GenerationAcknowledged: 3}},
		{Name: "web", Buckets: &controllerv1.Buckets{Generation: 18, GenerationAcknowledged: 18, Agreement: &controllerv1.BucketAgreement{
			Leader: "lb-2", Lags: []*controllerv1.BucketLag{{Machine: "lb-3", Generation: 17}, {Machine: "lb-4", Silent: true}},
		}}},
		{Name: "dns", Buckets: &controllerv1.Buckets{Agreement: &controllerv1.BucketAgreement{Problem: "etcd does not answer", MadeAlone: true}}},
	}
	var out strings.Builder
	if err := (output.Listing{None: "no bucket moves", Notes: agreementNotes(services)}).Print(&out, "table"); err != nil {
		t.Fatal(err)
	}
	want := `no bucket moves

web: lb-2 assigns the buckets; moves wait for lb-3, which has not acknowledged the latest map; moves wait for lb-4, which has said nothing in etcd
dns: no machine assigns the buckets; etcd does not answer; this machine has moved buckets of dead backends by itself
`
	if out.String() != want {
		t.Errorf("printed\n%s\nwant\n%s", out.String(), want)
	}
}
