package config

import (
	"fmt"
	"time"

	"github.com/guideway/guideway/controller/buckets"
)

// By then a connection has most likely ended, or is kept alive by something that
// opens it again.
const moveAgeMaxDefault = 24 * time.Hour

// checkBuckets looks at what stateless services need beside their own fields.
func (b *builder) checkBuckets() {
	for i, service := range b.config.Services {
		if service.Mode != ModeStateless {
			continue
		}
		path := fmt.Sprintf("services[%d]", i)
		if !buckets.Valid(service.Buckets) {
			b.errorf(path+".buckets", "is %d, which is not a power of two: give one within %d to %d", service.Buckets, buckets.Min, buckets.Max)
		} else if wanted := buckets.PerBackend * len(service.Members); int(service.Buckets) < wanted {
			b.errorf(path+".buckets", "is %d, and the service's %d backends need at least %d: give more, or spread the backends over services", service.Buckets, len(service.Members), wanted)
		}
		if service.Encap != EncapGeneve {
			b.errorf(path+".encap", "is %s, and a stateless service needs geneve: set `encap: geneve`", service.Encap)
		}
		if len(b.config.Peers) > 0 && b.config.Etcd == nil {
			b.errorf(path+".mode", "is stateless, and there are `peers`: their machines would assign buckets each by its own probes; have them agree by etcd (`etcd` in each machine's file, docs/etcd.md), use stateful, or one machine")
		}
	}
}
