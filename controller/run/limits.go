package run

// Which of its limits the forwarder has reached, by what its metrics count.

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/guideway/guideway/controller/brain"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

const (
	// How often the metrics are read; but where that takes long, 10 MB of 10,000 services with
	// their backends, the rest between is so many times as long.
	limitsInterval = 10 * time.Second
	limitsRest     = 200
	limitsRestMax  = 2 * time.Minute
	limitsTimeout  = 5 * time.Second
)

// limits of the forwarder, what each refuses, and the samples that count it: of this metric, with
// one of these labels.
var limits = []struct {
	name, refused, metric string
	labels                []string
}{
	{"connections_max", "packets sent by hash, untracked: the connection table has no room for their connections", refusedMetric, []string{`cause="table_full"`}},
	{"connections_quota", "packets sent by hash, untracked: their services have their quotas of connections", refusedMetric, []string{`cause="quota"`}},
	{"connections_share", "packets that did not confirm their connections: their service has its share of the table", "guideway_connections_unconfirmed_at_share_total", []string{""}},
	{"second_chance", "packets that got no second chance: their services had too many", "guideway_second_chance_packets_total", []string{`action="limited"`}},
	{"kernel_cache_entries", "flows that found no place in the kernel flow cache: workers send their packets", "guideway_kernel_cache_entries_total", []string{`event="refused_full"`}},
	{"receive_rings", "frames lost before a worker took them", "guideway_rx_lost_packets_total", []string{`where="kernel"`, `where="ring_full"`, `where="fill_empty"`}},
	{"fragment_buffer", "fragments dropped: the buffer had no room for them", dropMetric, []string{`reason="fragment_buffer"`}},
	{"echo_limit", "echo requests to VIPs dropped: more than are answered", dropMetric, []string{`reason="echo_limit"`}},
	{"worker_full", "packets dropped: the ring to every worker was full", dropMetric, []string{`reason="worker_full"`}},
	{"slow_path_full", "packets dropped: the ring to the slow path was full", dropMetric, []string{`reason="slow_path_full"`}},
	{"tx_full", "packets dropped: the transmit ring was full", dropMetric, []string{`reason="tx_full"`}},
	{"pass_full", "packets to this machine dropped: the queue to the kernel was full", dropMetric, []string{`reason="pass_full"`}},
}

const (
	refusedMetric = "guideway_connections_refused_total"
	dropMetric    = "guideway_drop_packets_total"
)

// watchLimits until the context ends. A forwarder that does not answer reaches none.
func watchLimits(ctx context.Context, c *Controller) {
	for rest := limitsInterval; ; {
		select {
		case <-time.After(rest):
		case <-ctx.Done():
			return
		}
		began := time.Now()
		if page, status, err := c.readLimits(ctx); err == nil {
			c.Enqueue(brain.LimitsCounted{Limits: append(limitsOf(page), targetsOf(status))})
		}
		rest = min(max(limitsInterval, limitsRest*time.Since(began)), limitsRestMax)
	}
}

func (c *Controller) readLimits(ctx context.Context) (page string, status *forwarderv1.GetStatusResponse, err error) {
	ctx, cancel := context.WithTimeout(ctx, limitsTimeout)
	defer cancel()
	if page, err = c.forwarderMetrics(ctx); err == nil {
		status, err = c.forwarderStatus(ctx)
	}
	return page, status, err
}

// limitsOf a page of the forwarder's metrics. What it does not have is not limited.
func limitsOf(page string) (counted []brain.LimitCount) {
	counts := map[string]uint64{}
	for line := range strings.Lines(page) {
		for _, limit := range limits {
			isIn := func(label string) bool { return strings.Contains(line, label) }
			if strings.HasPrefix(line, limit.metric) && slices.ContainsFunc(limit.labels, isIn) {
				count, _ := strconv.ParseUint(strings.TrimSpace(line[strings.LastIndexByte(line, ' ')+1:]), 10, 64)
				counts[limit.name] += count
			}
		}
	}
	for _, limit := range limits {
		if count, isThere := counts[limit.name]; isThere {
			counted = append(counted, brain.LimitCount{Name: limit.name, Refused: limit.refused, Count: count})
		}
	}
	return counted
}

// targetsOf the kernel flow cache that found no room in it.
func targetsOf(status *forwarderv1.GetStatusResponse) brain.LimitCount {
	return brain.LimitCount{
		Name: "kernel_cache_targets", Refused: "pairs of a service and a backend found no room in the kernel flow cache: workers send their packets",
		Count: status.GetKernelCache().GetTargetsRefused(), IsState: true,
	}
}
