package diagnose

// Connections that nothing answers: the load balancer sees only clients' packets, and a client
// sends no second one until its server has answered.

import (
	"cmp"
	"slices"

	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

// Fewer may have begun just now.
const unconfirmedMin = 4

// member is a backend of a service; of the whole service its name is empty.
type member struct{ service, backend string }

// unanswered are the services, and the backends of others, all of whose connections are
// unconfirmed, with their number.
func unanswered(counts []*forwarderv1.ConnectionCount) map[member]uint64 {
	unconfirmed, confirmed := map[member]uint64{}, map[member]uint64{}
	for _, count := range counts {
		sums := confirmed
		if count.GetClass() == "unconfirmed" {
			sums = unconfirmed
		}
		sums[member{count.GetService(), ""}] += count.GetConnections()
		sums[member{count.GetService(), count.GetBackend()}] += count.GetConnections()
	}
	found := map[member]uint64{}
	for m, n := range unconfirmed {
		if n >= unconfirmedMin && confirmed[m] == 0 {
			found[m] = n
		}
	}
	for m := range found {
		if _, all := found[member{m.service, ""}]; all && m.backend != "" {
			delete(found, m) // told of the service
		}
	}
	return found
}

// connections that stay unconfirmed; true for services of which that is told.
func (p *diagnosis) connections() map[string]bool {
	told := map[string]bool{}
	found := unanswered(p.counts)
	members := make([]member, 0, len(found))
	for m := range found {
		members = append(members, m)
	}
	slices.SortFunc(members, func(a, b member) int {
		return cmp.Or(cmp.Compare(a.service, b.service), cmp.Compare(a.backend, b.backend))
	})
	for _, m := range members {
		told[m.service] = true
		subject := m.service
		if m.backend != "" {
			subject += " at " + m.backend
		}
		p.add(gradeFail, "connections", "of %s: none of %d is confirmed by its client, so no answer of a server arrives. %s", subject, found[m], p.unansweredCauses())
	}
	return told
}

// unansweredCauses in the order of their likelihood.
func (p *diagnosis) unansweredCauses() string {
	causes := "Usually a server's way back to clients, or a firewall or rp_filter there, drops the answers; else the SYNs are a flood"
	for _, check := range p.tunnelChecks {
		if check.GetLast().GetPassed() {
			return "Health checks through the tunnel pass. " + causes
		}
	}
	return "Usually the VIP is not on lo of a server, or nothing opens the tunnel there: `guideway config backend NAME` prints what it needs. " + causes
}
