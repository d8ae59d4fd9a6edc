//! Stateless services, by packets: each is decided alone, by its bucket.

mod common;

use common::{Machine, Tcp, make_stateless, message, tcp, udp};
use datapath::DropReason;
use datapath::recorder::Lookup;
use plan::proto;

const BUCKETS: u32 = 256;

/// With buckets shared out in turn among that many backends.
fn stateless(backends: u32) -> proto::Plan {
    let mut message = message(backends as usize);
    let by_bucket: Vec<u32> = (0..BUCKETS).map(|bucket| bucket % backends).collect();
    make_stateless(&mut message, &by_bucket);
    message
}

fn flows() -> impl Iterator<Item = (u32, u16)> {
    (0..500).map(|flow| (0xc000_0200 + flow, 1024 + flow as u16))
}

#[test]
fn a_packet_goes_by_its_bucket_and_leaves_no_entry() {
    let mut machine = Machine::new(stateless(3), 1000);
    for (client, port) in flows() {
        let (_, opened, _) = machine.forward(1, &tcp(client, port, Tcp::Syn));
        let (_, later, _) = machine.forward(500, &tcp(client, port, Tcp::Ack));
        assert_eq!(opened.lookup, Lookup::None);
        assert_eq!((opened.slot, opened.backend), (later.slot, later.backend));
        let selected = machine.view.plan.services().next().unwrap();
        let selected = selected.group.select(opened.selector.unwrap()).unwrap();
        assert_eq!((Some(selected.slot), Some(selected.backend)), (opened.slot, opened.backend));
        assert_ne!(opened.selector, opened.hash, "agents have the key of buckets only");
    }
    assert_eq!(machine.tables[0].entries().count(), 0);
    let connections = &machine.counters(0).connections;
    assert_eq!((connections.hits.get(), connections.misses.get()), (0, 0));
}

#[test]
fn another_machine_decides_alike_and_every_backend_gets_its_share() {
    let mut machines = [Machine::new(stateless(4), 10), Machine::new(stateless(4), 10_000)];
    let mut shares = std::collections::BTreeMap::new();
    for (client, port) in flows() {
        let [first, second] =
            machines.each_mut().map(|machine| machine.backend(1, &udp(client, port)).unwrap());
        assert_eq!(first, second);
        *shares.entry(first).or_insert(0) += 1;
    }
    // 500 flows over 4 backends: 125, and five times the deviation of 9.7.
    assert_eq!(shares.len(), 4);
    assert!(shares.values().all(|count| (76..=174).contains(count)), "{shares:?}");
}

#[test]
fn only_flows_of_buckets_that_move_change_their_backend() {
    let before = stateless(4);
    let mut after = before.clone();
    after.generation += 1;
    let moved = |bucket: usize| bucket.is_multiple_of(16);
    let map = after.services[0].bucket_map.as_mut().unwrap();
    map.generation += 1;
    for (bucket, backend) in map.by_bucket.iter_mut().enumerate() {
        if moved(bucket) {
            *backend = (*backend + 1) % 4;
        }
    }
    let mut machine = Machine::new(before, 1000);
    let old: Vec<_> =
        flows().map(|(client, port)| machine.forward(1, &tcp(client, port, Tcp::Ack)).1).collect();
    machine.set(after);
    let mut changed = 0;
    for ((client, port), old) in flows().zip(old) {
        let (_, new, _) = machine.forward(1, &tcp(client, port, Tcp::Ack));
        assert_eq!(new.slot, old.slot);
        let has_moved = moved(old.slot.unwrap() as usize);
        assert_eq!(new.backend != old.backend, has_moved);
        changed += u32::from(has_moved);
    }
    assert!(changed > 0);
}

#[test]
fn a_service_without_a_backend_drops_by_name() {
    let mut message = stateless(2);
    message.services[0].bucket_map.as_mut().unwrap().by_bucket.clear();
    let mut machine = Machine::new(message, 1000);
    assert_eq!(machine.backend(0, &tcp(1, 5, Tcp::Syn)), Err(DropReason::NoBackend));
}
