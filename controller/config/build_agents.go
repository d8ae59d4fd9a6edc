package config

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
