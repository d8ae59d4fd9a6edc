package planv1

// Members returns the members of the plan's groups by the group's name, for
// those who look at many services.
func (p *Plan) Members() map[string][]*Member {
	members := make(map[string][]*Member, len(p.GetGroups()))
	for _, group := range p.GetGroups() {
		members[group.GetName()] = group.GetMembers()
	}
	return members
}
