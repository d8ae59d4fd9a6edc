package plainjson_test

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
	"github.com/guideway/guideway/proto/plainjson"
)

func Test_messages_are_written_in_the_one_form(t *testing.T) {
	for _, c := range []struct {
		message proto.Message
		want    string
	}{
		{&controllerv1.GetConfigHistoryRequest{}, `{}`},
		{&controllerv1.DrainMachineRequest{WaitMax: durationpb.New(1500 * time.Millisecond)}, `{"drain":false,"force":false,"wait_max":"1.500s"}`},
		{&controllerv1.Peer{Name: "<lb-1>", Since: timestamppb.New(time.Unix(1, 0))}, `{"name":"\u003clb-1\u003e","addresses":[],"healthy":false,"since":"1970-01-01T00:00:01Z"}`},
		{&controllerv1.Peer{Reason: "\"\\ \x1b\u2028"}, `{"addresses":[],"healthy":false,"reason":"\"\\ \u001b\u2028"}`},
		{&controllerv1.Drain{PacketsPerSecond: proto.Uint64(0)}, `{"waits":false,"moved_away":false,"withdrawn":false,"packets_per_second":0}`},
		{&controllerv1.ConfigFile{Name: "a", Data: []byte("b")}, `{"name":"a","data":"Yg=="}`},
		{&controllerv1.WorkerLoad{Name: "rx", BusyRatio: math.NaN()}, `{"name":"rx","busy_ratio":null}`},
		{&controllerv1.ShareChange{ShareBefore: 0.25, ShareAfter: math.Inf(1)}, `{"share_before":0.25,"share_after":null}`},
		{&forwarderv1.Originated{Packets: math.MaxUint64}, `{"packets":18446744073709551615}`},
		{&forwarderv1.ProbeDevice{Packets: map[string]uint64{"sent": 2, "no_route": 1}}, `{"packets":{"no_route":1,"sent":2}}`},
		{&controllerv1.GetBackendResponse{Backends: []*controllerv1.Backend{{Name: "web-1"}, {}}},
			`{"backends":[{"name":"web-1","weight":0,"pools":[],"services":0,"weight_percent":0,"held":false},{"weight":0,"pools":[],"services":0,"weight_percent":0,"held":false}],"checks":[]}`},
		{&healthv1.HealthCheckResponse{Status: healthv1.HealthCheckResponse_SERVING}, `{"status":"SERVING"}`},
		{&healthv1.HealthCheckResponse{Status: 77}, `{"status":77}`},
	} {
		text, err := plainjson.Marshal(c.message)
		if err != nil || string(text) != c.want {
			t.Errorf("%v %s\nwant %s", err, text, c.want)
		}
		back := c.message.ProtoReflect().New().Interface()
		if err := protojson.Unmarshal(text, back); err != nil {
			t.Errorf("%s is no proto JSON: %v", text, err)
		}
	}
}

func Test_a_value_may_have_some_of_its_fields(t *testing.T) {
	state := &controllerv1.GetStateResponse{Version: "1", Routes: []*controllerv1.Route{}, NotReady: []string{"a"}}
	text, err := json.Marshal(map[string]any{"one": plainjson.Value{Message: state, Fields: []protoreflect.Name{"not_ready", "routes"}}, "none": plainjson.List[*controllerv1.Peer](nil)})
	if want := `{"none":[],"one":{"routes":[],"not_ready":["a"]}}`; err != nil || string(text) != want {
		t.Errorf("%v %s\nwant %s", err, text, want)
	}
}

func Test_a_message_that_cannot_be_written_is_an_error(t *testing.T) {
	for _, seconds := range []int64{math.MaxInt64, math.MinInt64} {
		history := &controllerv1.GetConfigHistoryResponse{Records: []*controllerv1.ConfigRecord{{Time: &timestamppb.Timestamp{Seconds: seconds}}}}
		if text, err := plainjson.Marshal(history); err == nil {
			t.Errorf("%s", text)
		}
	}
}
