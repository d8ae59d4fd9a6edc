package run

// Stores the members of pools with a source in the state directory, so that a restart while
// the source fails changes nothing.

import (
	"github.com/guideway/guideway/controller/brain"
)

func (c *Controller) restoreMembers() error {
	pools, err := c.store.Members()
	if err != nil {
		return err
	}
	c.Step(brain.MembersRestored{Pools: pools})
	return nil
}

func (c *Controller) keepMembers(want brain.Desired) {
	if !want.MembersChanged {
		return
	}
	c.keeper.Keep("the members of pools", c.store.SetMembers(want.Members), c.tellNotKept(
		"the members of pools are not kept, which is tried again: a restart has those kept before until their source answers"))
}
