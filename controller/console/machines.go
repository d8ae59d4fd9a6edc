package console

import (
	"strings"

	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	fleetv1 "github.com/guideway/guideway/proto/guideway/fleet/v1"
)

func (b *builder) machines() (*content, error) {
	c := &content{Title: "Machines"}
	t := &table{ID: "machines", Title: "Machines", Head: heads("Machine", "Addresses", "State", "Reason", "Config", "Version", "#Packets/s", "#Bytes", "Said"), None: "none"}
	c.Tables = append(c.Tables, t)
	if b.fleet.GetFleetResponse == nil { // this one alone
		s := b.view.state
		c.Notes = append(c.Notes, styled(b.fleet.problem, dim))
		t.Rows = []row{{"", []cell{
			plain(s.GetMachine().GetName()), {}, styled(s.GetMachine().GetState(), serviceClass(s.GetMachine().GetState())), plain(s.GetMachine().GetReason()),
			{}, plain(s.Version), styled(perSecond(b.view.rates.Sent), number), styled(bytesPerSecond(b.view.rates.Bytes), number), {},
		}}}
		return c, nil
	}
	if b.fleet.Away != "" {
		c.Notes = append(c.Notes, styled(b.fleet.Away, bad))
	}
	for _, alarm := range b.fleet.Alarms {
		c.Notes = append(c.Notes, styled(alarm, bad))
	}
	if canary := b.fleet.Canary; canary != nil {
		c.Notes = append(c.Notes, styled("Machine "+canary.GetMachine()+" alone runs a config of its own.", mid))
	}
	for _, m := range b.fleet.Machines {
		t.Rows = append(t.Rows, row{m.Name, machineCells(m, m.Registered)})
	}
	if peers := b.peersTable(); len(peers.Rows) > 0 {
		c.Tables = append(c.Tables, peers)
	}
	return c, nil
}

func machineCells(m *controllerv1.FleetMachine, r *fleetv1.Machine) []cell {
	name, addresses := plain(m.Name), plain(strings.Join(m.Addresses, ", "))
	if r == nil {
		return []cell{name, addresses, styled("absent", bad), plain(m.Reason), {}, {}, {}, {}, {}}
	}
	config := r.ConfigDigest
	if config == "" && r.Config > 0 {
		config = count(r.Config)
	}
	return []cell{
		name, addresses, styled(r.State, serviceClass(r.State)), plain(r.Reason), plain(config[:min(len(config), 12)]), plain(r.Version),
		styled(count(r.PacketsPerSecond), number), styled(bytesPerSecond(float64(r.BytesPerSecond)), number), since(r.Time),
	}
}

// peersTable of load balancers as this one finds them through the tunnel.
func (b *builder) peersTable() *table {
	t := &table{ID: "peers", Title: "Through the tunnel", Head: heads("Peer", "Addresses", "State", "Since", "Reason")}
	for _, p := range b.view.state.Peers {
		state := styled("healthy", good)
		if !p.Healthy {
			state = styled("unhealthy", bad)
		}
		t.Rows = append(t.Rows, row{p.Name, []cell{plain(p.Name), plain(strings.Join(p.Addresses, ", ")), state, since(p.Since), plain(p.Reason)}})
	}
	return t
}
