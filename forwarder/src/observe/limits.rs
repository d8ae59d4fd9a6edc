//! The forwarder's limits that refuse something when reached (docs/events.md).

use datapath::counters::{Counter, Counters};
use datapath::{DropReason, Totals};
use nic::QueueCounters;

use crate::dataplane::engine::Engine;
use crate::proto::Limit;

/// Drop reasons that are limits, and what each refuses.
const REASONS: [(DropReason, &str); 6] = [
    (DropReason::FragmentBuffer, "fragments dropped: the buffer had no room for them"),
    (DropReason::EchoLimit, "echo requests to VIPs dropped: more than are answered"),
    (DropReason::WorkerFull, "packets dropped: the ring to every worker was full"),
    (DropReason::SlowPathFull, "packets dropped: the ring to the slow path was full"),
    (DropReason::TxFull, "packets dropped: the transmit ring was full"),
    (DropReason::PassFull, "packets to this machine dropped: the queue to the kernel was full"),
];

/// What each limit refused since the start or take-over; `targets_refused` now.
pub fn limits(engine: &Engine, targets_refused: u64) -> Vec<Limit> {
    let sum = |read: fn(&Counters) -> &Counter| -> u64 {
        engine.counters().map(|counters| read(counters).get()).sum()
    };
    let lost = |queue: QueueCounters| queue.rx_dropped + queue.rx_ring_full + queue.fill_empty;
    let mut limits = vec![
        limit(
            "connections_max",
            "packets sent by hash, untracked: the connection table has no room for their connections",
            sum(|counters| &counters.connections.refused_full),
        ),
        limit(
            "connections_quota",
            "packets sent by hash, untracked: their services have their quotas of connections",
            sum(|counters| &counters.connections.refused_quota),
        ),
        limit(
            "connections_share",
            "packets that did not confirm their connections: their service has its share of the table",
            sum(|counters| &counters.connections.unconfirmed_at_share),
        ),
        limit(
            "second_chance",
            "packets that got no second chance: their services had too many",
            sum(|counters| &counters.second_chances.limited),
        ),
        limit(
            "kernel_cache_entries",
            "flows that found no place in the kernel flow cache: workers send their packets",
            sum(|counters| &counters.kernel_cache.refused_full),
        ),
        Limit {
            is_state: true,
            ..limit(
                "kernel_cache_targets",
                "pairs of a service and a backend found no room in the kernel flow cache: workers send their packets",
                targets_refused,
            )
        },
        limit(
            "receive_rings",
            "frames lost before a worker took them",
            engine.queues().iter().map(|queue| lost(queue.meter.read())).sum(),
        ),
    ];
    let mut totals = Totals::default();
    engine.counters().for_each(|counters| totals.add(&counters.totals()));
    let of_reason = |(reason, refused): (DropReason, &str)| {
        limit(reason.name(), refused, totals.dropped[reason.index()])
    };
    limits.extend(REASONS.map(of_reason));
    limits
}

fn limit(name: &str, refused: &str, count: u64) -> Limit {
    Limit { name: name.to_owned(), refused: refused.to_owned(), count, is_state: false }
}
