//! The forwarder's limits that refuse something when reached (docs/events.md).

use datapath::DropReason;
use datapath::counters::{Counter, Counters};
use nic::QueueCounters;

use crate::dataplane::engine::Engine;
use crate::proto::Limit;

/// Limits by what counts their refusals, and what each refuses.
type Counted = (&'static str, &'static str, fn(&Counters) -> &Counter);
const COUNTED: [Counted; 5] = [
    (
        "connections_max",
        "packets sent by hash, untracked: the connection table has no room for their connections",
        |counters| &counters.connections.refused_full,
    ),
    (
        "connections_quota",
        "packets sent by hash, untracked: their services have their quotas of connections",
        |counters| &counters.connections.refused_quota,
    ),
    (
        "connections_share",
        "packets that did not confirm their connections: their service has its share of the table",
        |counters| &counters.connections.unconfirmed_at_share,
    ),
    (
        "second_chance",
        "packets that got no second chance: their services had too many",
        |counters| &counters.second_chances.limited,
    ),
    (
        "kernel_cache_entries",
        "flows that found no place in the kernel flow cache: workers send their packets",
        |counters| &counters.kernel_cache.refused_full,
    ),
];

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
    let dropped = engine.verdicts().dropped;
    let mut limits: Vec<Limit> =
        COUNTED.map(|(name, refused, read)| limit(name, refused, sum(read))).into();
    limits.push(Limit {
        is_state: true,
        ..limit(
            "kernel_cache_targets",
            "pairs of a service and a backend found no room in the kernel flow cache: workers send their packets",
            targets_refused,
        )
    });
    limits.push(limit(
        "receive_rings",
        "frames lost before a worker took them",
        engine.queues().iter().map(|queue| lost(queue.meter.read())).sum(),
    ));
    let of_reason = |(reason, refused): (DropReason, &str)| {
        limit(reason.name(), refused, dropped[reason.index()])
    };
    limits.extend(REASONS.map(of_reason));
    limits
}

fn limit(name: &str, refused: &str, count: u64) -> Limit {
    Limit { name: name.to_owned(), refused: refused.to_owned(), count, is_state: false }
}
