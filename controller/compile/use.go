package compile

import (
	"github.com/guideway/guideway/controller/config"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

// Use is which members of a group take new connections.
type Use int

const (
	// UseOwn: those that the pools have; those of the backup pools stand by.
	UseOwn Use = iota
	// UseBackup: those of the backup pools, too.
	UseBackup
	// UseNone: those that are active keep their connections, new ones are spilled.
	UseNone
	// UseDown: those that are down, too.
	UseDown
)

// State of a member in the plan, where its pools give it another. One that
// stands by drains: it keeps the connections that it has.
func (u Use) State(member config.Member, state planv1.BackendState) planv1.BackendState {
	switch {
	case state == planv1.BackendState_BACKEND_STATE_ACTIVE && (u == UseNone || u == UseOwn && member.IsBackup):
		return planv1.BackendState_BACKEND_STATE_DRAINING
	case state == planv1.BackendState_BACKEND_STATE_DOWN && u == UseDown && member.Weight > 0:
		return planv1.BackendState_BACKEND_STATE_ACTIVE
	}
	return state
}
