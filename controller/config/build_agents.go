package config

import "fmt"

// AgentsPortDefault is where controllers receive agents' messages.
const AgentsPortDefault = 9475

func (b *builder) agents() {
	given := b.schema.GetAgents()
	if given == nil {
		return
	}
	if b.schema.GetCluster().GetSecretFile() == "" {
		b.errorf("agents", "need `cluster.secret_file`, which their keys come from: write `cluster: {secret_file: %s}`, and copy that file to all machines of the cluster", DefaultSecretFile)
	}
	b.config.Agents = &Agents{Port: uint16(or(given.GetPort(), AgentsPortDefault))}
}

// checkAgents are there where connections outlive a change by them alone: without,
// a packet for a backend that has not its connection ends it.
func (b *builder) checkAgents() {
	if b.config.Agents != nil {
		return
	}
	const cure = "run guideway-agent on every backend and write `agents: {}`"
	for i, service := range b.config.Services {
		path := fmt.Sprintf("services[%d]", i)
		switch {
		case service.Mode == ModeStateless:
			b.breaks(path+".mode", "is stateless, and there are no `agents`, so connections break when their buckets move: %s, or use `mode: stateful`", cure)
		case service.SecondChance:
			b.breaks(path+".second_chance", "is given, and there are no `agents`, which find the backend that has a connection: %s, or remove it", cure)
		}
	}
}

// warnAgentsNotProbed of services whose connections agents keep alive.
func (b *builder) warnAgentsNotProbed() {
	if b.schema.GetAgents() == nil {
		return
	}
	for i := range b.config.Services {
		service := &b.config.Services[i]
		if (service.Mode == ModeStateless || service.SecondChance) && len(b.tunnelChecked(service)) == 0 {
			b.warnf(fmt.Sprintf("services[%d].pools", i), "have no health check through the tunnel: a backend without an agent passes the others, and drops all that it is sent; add one")
		}
	}
}
