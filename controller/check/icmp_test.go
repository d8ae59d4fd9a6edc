package check

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	configv1 "github.com/guideway/guideway/proto/guideway/config/v1"
)

// Many at once: each takes its own reply.
func TestEchoRequestsAreAnswered(t *testing.T) {
	none, most := uint32(0), uint32(1400)
	for _, address := range []string{"127.0.0.1", "127.0.0.2", "::1"} {
		for _, given := range []*configv1.IcmpCheck{{}, {Size: &none}, {Size: &most}} {
			var group sync.WaitGroup
			for range 20 {
				group.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
					defer cancel()
					answer, err := readICMP(given, reader{t: t}).Probe(ctx, Dialer{Address: netip.MustParseAddr(address)})
					switch {
					case errors.Is(err, os.ErrPermission):
						t.Skipf("needs root: %v", err)
					case err != nil || answer.Text != "echo reply":
						t.Errorf("%s: %q, %v", address, answer.Text, err)
					}
				})
			}
			group.Wait()
		}
	}
}
