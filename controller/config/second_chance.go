package config

import "fmt"

// checkSecondChances looks at what services with a second chance need: a packet
// names other backends in an option that only Geneve has, and agents read it.
func (b *builder) checkSecondChances() {
	for i, service := range b.config.Services {
		path := fmt.Sprintf("services[%d]", i)
		switch {
		case !service.SecondChance:
		case service.Mode == ModeStateless:
			b.errorf(path+".second_chance", "is for stateful services: a stateless one has no connections that a machine knows; remove it")
		case service.Encap != EncapGeneve:
			b.errorf(path+".second_chance", "needs geneve, and encap is %s: set `encap: geneve` and run guideway-agent, with `agents`, on every backend", service.Encap)
		}
	}
}
