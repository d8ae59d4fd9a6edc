//! An expired entry decides nothing, even before the sweep reaches it: not for ICMP errors, not
//! for fragments, not for `explain`.

use crate::common::{CLIENT, Machine, VIP, message, udp};
use datapath::explain::{Details, Explanation, explain};
use datapath::{FlowHash, Secret};
use etherparse::{Icmpv4Type, PacketBuilder, icmpv4};
use plan::proto;

/// Beyond this, and not much beyond, so that the sweep of ten seconds has not
/// come far.
const EXPIRED_MS: u32 = 1_300;
const FLOWS: std::ops::Range<u16> = 1..200;

fn client() -> u32 {
    u32::from_be_bytes(CLIENT)
}

/// A plan in which what is not confirmed expires after a second.
fn plan(backends: usize) -> proto::Plan {
    let mut plan = message(backends);
    plan.services[0].idle_timeouts =
        Some(proto::IdleTimeouts { tcp_unconfirmed_ms: 1_000, ..Default::default() });
    plan.services[0].set_fragments(proto::Fragments::On);
    plan
}

/// Entries of flows to eight backends have just expired, when there are eighty;
/// and where each flow goes without an entry.
fn expired() -> (Machine, Vec<(u16, String)>) {
    let mut machine = Machine::new(plan(8), 1000);
    let before: Vec<String> =
        FLOWS.map(|port| machine.backend(0, &udp(client(), port)).unwrap()).collect();
    machine.set(plan(80));
    machine.now_ms += EXPIRED_MS;
    machine.wait(0);
    let left = machine.tables[0].entries().count();
    assert!(left > FLOWS.len() * 3 / 4, "the sweep has left {left} entries");
    let mut fresh = Machine::new(plan(80), 1000);
    let by_hash: Vec<(u16, String)> =
        FLOWS.map(|port| (port, fresh.backend(0, &udp(client(), port)).unwrap())).collect();
    let moved = by_hash.iter().zip(&before).filter(|((_, after), before)| after != *before);
    assert!(moved.count() > FLOWS.len() / 2, "most flows would go elsewhere");
    (machine, by_hash)
}

/// An error about a datagram that a backend sent from the VIP.
fn error_about(port: u16) -> Vec<u8> {
    let (mut quoted, mut frame) = (Vec::new(), Vec::new());
    let packet = PacketBuilder::ipv4(VIP, CLIENT, 60).udp(53, port);
    packet.write(&mut quoted, &[0; 8]).unwrap();
    let unreachable = icmpv4::DestUnreachableHeader::FragmentationNeeded { next_hop_mtu: 1400 };
    PacketBuilder::ethernet2([1; 6], [2; 6])
        .ipv4([198, 18, 0, 1], VIP, 60)
        .icmpv4(Icmpv4Type::DestinationUnreachable(unreachable))
        .write(&mut frame, &quoted)
        .unwrap();
    frame
}

/// The same flow's packet, as the first fragment of a larger one.
fn first_fragment(port: u16) -> Vec<u8> {
    const MORE_FRAGMENTS: u8 = 0x20;
    let mut frame = udp(client(), port);
    frame[20] |= MORE_FRAGMENTS;
    crate::common::sum_v4(&mut frame);
    frame
}

fn explained(machine: &Machine, port: u16) -> Explanation {
    let key = wire::headers::parse(&udp(client(), port)).unwrap().unwrap().key;
    explain(
        &machine.view,
        &FlowHash::new(&Secret::derived("test")),
        &machine.tables,
        &key,
        Details::default(),
    )
}

#[test]
fn an_icmp_error_about_a_flow_whose_entry_has_expired_follows_the_hash() {
    let (mut machine, by_hash) = expired();
    for (port, backend) in by_hash {
        assert_eq!(machine.backend(0, &error_about(port)).unwrap(), backend, "port {port}");
    }
}

#[test]
fn fragments_of_a_flow_whose_entry_has_expired_follow_the_hash() {
    let (mut machine, by_hash) = expired();
    for (port, backend) in by_hash {
        assert_eq!(machine.backend(0, &first_fragment(port)).unwrap(), backend, "port {port}");
    }
}

#[test]
fn explain_shows_an_expired_entry_and_that_it_does_not_decide() {
    let (machine, by_hash) = expired();
    let mut shown = 0;
    for (port, backend) in by_hash {
        let told = explained(&machine, port);
        let name = &machine.view.plan.backend(told.backend.unwrap()).unwrap().name;
        assert_eq!((name, told.backend), (&backend, told.by_hash), "port {port}");
        if let Some(tracked) = told.tracked {
            assert!(!tracked.decides, "port {port}: {tracked:?}");
            shown += 1;
        }
    }
    assert!(shown > FLOWS.len() / 2, "{shown} expired entries are shown");
}

#[test]
fn an_entry_that_has_not_expired_decides_for_all_of_them() {
    let mut machine = Machine::new(plan(8), 1000);
    let before: Vec<(u16, String)> =
        FLOWS.map(|port| (port, machine.backend(0, &udp(client(), port)).unwrap())).collect();
    machine.set(plan(80));
    machine.now_ms += 800;
    for (port, backend) in before {
        assert_eq!(machine.backend(0, &error_about(port)).unwrap(), backend, "port {port}");
        assert_eq!(machine.backend(0, &first_fragment(port)).unwrap(), backend, "port {port}");
        assert!(explained(&machine, port).tracked.is_some_and(|tracked| tracked.decides));
    }
}

#[test]
fn an_expired_entry_in_one_table_hides_none_that_decides_in_another() {
    let (mut machine, _) = expired();
    // Another worker has the same flows, fresh.
    let mut other = Machine::new(plan(8), 1000);
    let fresh: Vec<(u16, String)> =
        FLOWS.map(|port| (port, other.backend(0, &udp(client(), port)).unwrap())).collect();
    machine.tables.push(other.tables[0]);
    for (port, backend) in fresh {
        let told = explained(&machine, port);
        assert_eq!(told.tracked.map(|tracked| (tracked.worker, tracked.decides)), Some((1, true)));
        assert_eq!(machine.view.plan.backend(told.backend.unwrap()).unwrap().name, backend);
    }
}
