package bgp

// Attributes that differ between neighbors: an export policy of GoBGP with one statement for
// each neighbor.

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"

	"github.com/osrg/gobgp/v4/api"
)

// Attributes of all routes to a neighbor.
type Attributes struct {
	// Sent only if WithMED.
	MED     uint32
	WithMED bool
	// 0 for a neighbor of another AS.
	LocalPref uint32
	// How many times more than once our AS number is in the path.
	Prepend uint8
}

// slowMED is added to the MED of routes of a slow machine. Larger than what configs
// order machines by, so that a slow one comes last.
const slowMED = 1000

// Worse are the attributes of routes that routers are to prefer others to. A router of
// our own AS would take a path with that AS in it for a loop.
func (a Attributes) Worse(ownAS bool) Attributes {
	a.MED, a.WithMED = a.MED+min(slowMED, math.MaxUint32-a.MED), true
	if !ownAS && a.Prepend < math.MaxUint8 {
		a.Prepend++
	}
	return a
}

// Strings in the words of the config.
func (a Attributes) Strings() []string {
	var texts []string
	if a.WithMED {
		texts = append(texts, fmt.Sprintf("med %d", a.MED))
	}
	if a.LocalPref > 0 {
		texts = append(texts, fmt.Sprintf("local_pref %d", a.LocalPref))
	}
	if a.Prepend > 0 {
		texts = append(texts, fmt.Sprintf("prepend %d", a.Prepend))
	}
	return texts
}

// setAttributes puts a policy for these neighbors into the place of the former
// one, and announces all routes again to those whose attributes changed.
func (s *Speaker) setAttributes(ctx context.Context, want []Neighbor) error {
	attributes := map[netip.Addr]Attributes{}
	for _, n := range want {
		if n.Attributes != (Attributes{}) {
			attributes[n.Address] = n.Attributes
		}
	}
	if maps.Equal(attributes, s.attributes) {
		return nil
	}
	policy, err := s.assignExport(ctx, attributes)
	if err != nil {
		return fmt.Errorf("set the attributes of BGP routes: %w", err)
	}
	failed := []error{s.deleteExport(ctx, s.export)}
	before := s.attributes
	s.attributes, s.export = attributes, policy
	for address := range s.neighbors {
		if attributes[address] != before[address] {
			request := &api.ResetPeerRequest{Address: address.String(), Soft: true, Direction: api.ResetPeerRequest_DIRECTION_OUT}
			failed = append(failed, s.server.ResetPeer(ctx, request))
		}
	}
	return errors.Join(failed...)
}

// exportPolicy is what must be deleted once it is no longer assigned.
type exportPolicy struct {
	policy *api.Policy
	sets   []*api.DefinedSet
}

func (s *Speaker) assignExport(ctx context.Context, attributes map[netip.Addr]Attributes) (exportPolicy, error) {
	s.exports++
	name := fmt.Sprintf("export-%d", s.exports)
	export := exportPolicy{policy: &api.Policy{Name: name}}
	for _, address := range slices.SortedFunc(maps.Keys(attributes), netip.Addr.Compare) {
		set := &api.DefinedSet{
			DefinedType: api.DefinedType_DEFINED_TYPE_NEIGHBOR,
			Name:        name + " " + address.String(),
			List:        []string{netip.PrefixFrom(address, address.BitLen()).String()},
		}
		if err := s.server.AddDefinedSet(ctx, &api.AddDefinedSetRequest{DefinedSet: set}); err != nil {
			return export, err
		}
		export.sets = append(export.sets, set)
		export.policy.Statements = append(export.policy.Statements, &api.Statement{
			Name:       set.Name,
			Conditions: &api.Conditions{NeighborSet: &api.MatchSet{Type: api.MatchSet_TYPE_ANY, Name: set.Name}},
			Actions:    s.actionsOf(attributes[address]),
		})
	}
	if err := s.server.AddPolicy(ctx, &api.AddPolicyRequest{Policy: export.policy}); err != nil {
		return export, err
	}
	assignment := &api.PolicyAssignment{
		Name:          "global",
		Direction:     api.PolicyDirection_POLICY_DIRECTION_EXPORT,
		Policies:      []*api.Policy{{Name: name}},
		DefaultAction: api.RouteAction_ROUTE_ACTION_ACCEPT,
	}
	return export, s.server.SetPolicyAssignment(ctx, &api.SetPolicyAssignmentRequest{Assignment: assignment})
}

func (s *Speaker) actionsOf(a Attributes) *api.Actions {
	actions := &api.Actions{RouteAction: api.RouteAction_ROUTE_ACTION_ACCEPT}
	if a.WithMED {
		actions.Med = &api.MedAction{Type: api.MedAction_TYPE_REPLACE, Value: int64(a.MED)}
	}
	if a.LocalPref > 0 {
		actions.LocalPref = &api.LocalPrefAction{Value: a.LocalPref}
	}
	if a.Prepend > 0 {
		actions.AsPrepend = &api.AsPrependAction{Asn: s.identity.ASN, Repeat: uint32(a.Prepend)}
	}
	return actions
}

func (s *Speaker) deleteExport(ctx context.Context, export exportPolicy) error {
	if export.policy == nil {
		return nil
	}
	failed := []error{s.server.DeletePolicy(ctx, &api.DeletePolicyRequest{Policy: export.policy, All: true})}
	for _, set := range export.sets {
		failed = append(failed, s.server.DeleteDefinedSet(ctx, &api.DeleteDefinedSetRequest{DefinedSet: set, All: true}))
	}
	return errors.Join(failed...)
}
