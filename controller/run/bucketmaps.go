package run

// Stores the bucket maps of stateless services in the state directory, one file each, in
// bucket-maps/. A map is written before the plan with it is pushed, so the file is never
// older than what the forwarder runs, unless the disk hangs. Before etcd is told that the other load balancers
// need not wait for this one, this is stored, too: from then on the maps here may be older
// than theirs by any number of steps, also after a restart while etcd is unreachable.

import (
	"time"

	"github.com/guideway/guideway/controller/brain"
	"github.com/guideway/guideway/controller/store"
)

// restoreBucketMaps that can be read. Of another service the brain goes on from the
// plan that the forwarder runs.
func (c *Controller) restoreBucketMaps() {
	maps, problems := c.store.BucketMaps()
	for _, problem := range problems {
		c.log.Warn("a bucket map cannot be used; the service's buckets stay as in the forwarder's plan, and its open moves close by their age", "error", problem)
	}
	c.restoreWithdrawn()
	c.Step(brain.BucketMapsKept{Maps: maps, Withdrawn: c.withdrawn})
}

func (c *Controller) restoreWithdrawn() {
	kept, err := c.store.Withdrawn()
	if err != nil {
		c.log.Error("it cannot be read whether moves wait for this machine: stateless services are announced when etcd says so", "error", err)
		kept.Withdrawn = true
	}
	c.withdrawn = kept.Withdrawn
}

// How long what connections depend on waits for the disk. One that hangs has this once.
const settleMax = 500 * time.Millisecond

// keepAgreed keeps what a next controller must know of what this one told the forwarder and other
// machines: before it is told, unless the disk hangs.
func (c *Controller) keepAgreed(want brain.Desired) {
	if want.Withdrawn == c.withdrawn && len(want.MapsChanged) == 0 {
		return
	}
	c.keepBucketMaps(want)
	c.keepWithdrawn(want)
	c.keeper.Settle(settleMax)
}

// keepWithdrawn before etcd has it.
func (c *Controller) keepWithdrawn(want brain.Desired) {
	if want.Withdrawn == c.withdrawn {
		return
	}
	c.withdrawn = want.Withdrawn
	c.keeper.Keep("whether moves wait for this machine", c.store.SetWithdrawn(store.Withdrawn{Withdrawn: want.Withdrawn}), c.tellNotKept(
		"whether moves wait for this machine is not kept, which is tried again: leave the controller running until etcd answers and the machine is not drained"))
}

func (c *Controller) keepBucketMaps(want brain.Desired) {
	for _, service := range want.MapsChanged {
		c.keeper.Keep("the bucket map of "+service, c.store.SetBucketMap(service, want.Maps[service]), c.tellNotKept(
			"a bucket map is not kept, which is tried again: after a restart its open moves close by their age", "service", service))
	}
}
