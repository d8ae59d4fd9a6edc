package api

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

func TestAViewerSeesOneBackendAndAnUnknownOneIsNamed(t *testing.T) {
	_, viewer := dial(t, &host{})
	found, err := viewer.GetBackend(t.Context(), &controllerv1.GetBackendRequest{Name: "web-1"})
	if err != nil || found.Backends[0].Name != "web-1" {
		t.Errorf("%v %v", found, err)
	}
	_, err = viewer.GetBackend(t.Context(), &controllerv1.GetBackendRequest{Name: "web-9"})
	if status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), "web-9: no service of this machine has this backend") {
		t.Errorf("an unknown one: %v", err)
	}
}
