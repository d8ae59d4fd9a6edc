package diagnose

// Finds connections without answers. The load balancer sees only clients' packets, and a
// client sends no second one until its server has answered.

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/guideway/guideway/cli/machine"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

const (
	// Fewer may have begun just now.
	unconfirmedMin = 4
	// Within it a client repeats a SYN; entries of clients that are gone stay for half a minute.
	unconfirmedPause = 3 * time.Second
	// No SYN is longer, IPv6's with all options that TCP has room for. A connection that begins
	// and ends within a tenth of a second is never confirmed, but its request is longer.
	synBytesMax = 100
)

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

// lookAgain at connections that are all unconfirmed: what gets packets meanwhile that may all be
// SYNs, and is confirmed by none, is unanswered.
func (p *diagnosis) lookAgain(ctx context.Context, m machine.Machine) {
	p.unanswered = unanswered(p.counts)
	if len(p.unanswered) == 0 {
		return
	}
	time.Sleep(unconfirmedPause)
	err := m.AskForwarder(ctx, func(ctx context.Context, client forwarderv1.ForwarderClient) error {
		connections, err := client.GetConnections(ctx, &forwarderv1.GetConnectionsRequest{})
		if err != nil {
			return err
		}
		counters, err := client.GetCounters(ctx, &forwarderv1.GetCountersRequest{})
		if err != nil {
			return err
		}
		now := unanswered(connections.GetCounts())
		maps.DeleteFunc(p.unanswered, func(m member, _ uint64) bool {
			packets, bytes := receivedBy(counters, m)
			packetsBefore, bytesBefore := receivedBy(p.counters, m)
			return now[m] == 0 || packets == packetsBefore || bytes-bytesBefore > synBytesMax*(packets-packetsBefore)
		})
		return nil
	})
	if err != nil {
		clear(p.unanswered) // that the forwarder does not answer is told
	}
}

// receivedBy a service, or by a backend, whose counters may be those of several services.
func receivedBy(counters *forwarderv1.GetCountersResponse, m member) (packets, bytes uint64) {
	if m.backend == "" {
		for _, service := range counters.GetServices() {
			if service.Service == m.service {
				packets, bytes = packets+service.Packets, bytes+service.Bytes
			}
		}
		return packets, bytes
	}
	for _, backend := range counters.GetBackends() {
		if backend.Backend == m.backend && (backend.Service == "" || backend.Service == m.service) {
			packets, bytes = packets+backend.Packets, bytes+backend.Bytes
		}
	}
	return packets, bytes
}

// connections that nothing answers; true for services of which that is told.
func (p *diagnosis) connections() map[string]bool {
	told := map[string]bool{}
	members := slices.SortedFunc(maps.Keys(p.unanswered), func(a, b member) int {
		return cmp.Or(cmp.Compare(a.service, b.service), cmp.Compare(a.backend, b.backend))
	})
	var subjects []string
	sum := uint64(0)
	for _, m := range members {
		told[m.service] = true
		subject := m.service
		if m.backend != "" {
			subject += " at " + m.backend
		}
		subjects, sum = append(subjects, subject), sum+p.unanswered[m]
	}
	if len(subjects) > 0 {
		p.add(gradeFail, "connections", "of %s: none of %d is confirmed by its client, so no answer of a server arrives, or each ends within 0.1 s. %s", few(subjects), sum, p.unansweredCauses())
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
