//! However many connections one service has, it leaves room for other services in the
//! connection table; a service alone may fill it.

use crate::common::{self, Machine, Tcp, message, tcp, tcp_to};
use datapath::EntryClass;
use plan::proto;

/// Connections that the table is made for: half of its entries.
const CONNECTIONS: u64 = 1024;
const OTHER_VIP: [u8; 4] = [203, 0, 113, 11];
/// Of 8,192 flows in buckets of eight, some meet a full one.
const CLIENTS: u32 = 64;
const PORTS: std::ops::RangeInclusive<u16> = 1..=128;

/// `web`, and `other` with a VIP of its own, for all protocols and ports.
fn two_services() -> proto::Plan {
    let mut plan = message(4);
    let mut other = plan.services[0].clone();
    other.name = "other".into();
    other.vips = vec![common::vip("203.0.113.11")];
    plan.services.push(other);
    plan
}

/// Opens eight times as many connections of `web` as the table is made for,
/// each with a SYN and, `confirm_after_ms` later, an ACK.
fn flood(machine: &mut Machine, confirm_after_ms: u32) {
    for client in 0..CLIENTS {
        for (kind, after_ms) in [(Tcp::Syn, 0), (Tcp::Ack, confirm_after_ms)] {
            machine.now_ms += after_ms;
            for port in PORTS {
                machine.backend(0, &tcp(client, port, kind)).unwrap();
            }
        }
    }
}

/// How many of a hundred connections to `vip` are established after a SYN and
/// an ACK.
fn established(machine: &mut Machine, service: usize, vip: [u8; 4]) -> usize {
    let before = in_class(machine, service, EntryClass::Established);
    for kind in [Tcp::Syn, Tcp::Ack] {
        machine.now_ms += 150;
        for port in 1..=100 {
            machine.backend(0, &tcp_to(vip, 0xc000_0201, port, kind)).unwrap();
        }
    }
    in_class(machine, service, EntryClass::Established) - before
}

fn in_class(machine: &Machine, service: usize, class: EntryClass) -> usize {
    let id = machine.view.plan.services().nth(service).unwrap().id;
    machine.tables[0].entries().filter(|entry| (entry.service, entry.class) == (id, class)).count()
}

#[test]
fn a_flood_that_confirms_itself_leaves_other_services_room() {
    let mut machine = Machine::new(two_services(), CONNECTIONS);
    flood(&mut machine, 150);
    assert!(machine.counters(0).connections.unconfirmed_at_share.get() > 1_000);
    let tracked = established(&mut machine, 1, OTHER_VIP);
    assert!(tracked >= 90, "{tracked} of 100 connections of the other service are tracked");
    let room = in_class(&machine, 0, EntryClass::Established);
    assert!(room > CONNECTIONS as usize, "{room} of the flooded one: more than the table is for");
}

#[test]
fn half_open_connections_hinder_no_service_at_all() {
    let mut machine = Machine::new(two_services(), CONNECTIONS);
    flood(&mut machine, 0);
    for (service, vip) in [(0, common::VIP), (1, OTHER_VIP)] {
        let tracked = established(&mut machine, service, vip);
        assert_eq!(tracked, 100, "of service {service}");
    }
}

#[test]
fn a_service_alone_may_fill_the_table() {
    let mut machine = Machine::new(message(4), CONNECTIONS);
    flood(&mut machine, 150);
    let entries = 2 * CONNECTIONS as usize;
    let confirmed = in_class(&machine, 0, EntryClass::Established);
    assert!(confirmed > entries * 99 / 100, "{confirmed} of {entries} places");
    assert_eq!(machine.counters(0).connections.unconfirmed_at_share.get(), 0);
}

#[test]
fn what_the_table_is_made_for_is_confirmed_beside_other_services_too() {
    let mut machine = Machine::new(two_services(), CONNECTIONS);
    for kind in [Tcp::Syn, Tcp::Ack] {
        machine.now_ms += 150;
        for flow in 0..CONNECTIONS as u32 {
            machine.backend(0, &tcp(flow, 7, kind)).unwrap();
        }
    }
    assert_eq!(machine.counters(0).connections.unconfirmed_at_share.get(), 0);
    let confirmed = in_class(&machine, 0, EntryClass::Established);
    assert!(confirmed as u64 > CONNECTIONS * 98 / 100, "{confirmed} of {CONNECTIONS}");
}

#[test]
fn a_flow_that_is_not_confirmed_keeps_its_backend_while_packets_come() {
    let mut machine = Machine::new(two_services(), CONNECTIONS);
    flood(&mut machine, 150);
    // Flows of the last client that are tracked, but not confirmed.
    let client = CLIENTS - 1;
    let before = in_class(&machine, 0, EntryClass::Unconfirmed);
    assert!(before > 10, "{before} flows are tracked unconfirmed");
    for _ in 0..8 {
        machine.now_ms += 9_000;
        for port in PORTS {
            machine.backend(0, &tcp(client, port, Tcp::Ack)).unwrap();
        }
    }
    // Seventy seconds later, well beyond the 30 of what is unconfirmed.
    let misses = machine.counters(0).connections.misses.get();
    let expired = machine.counters(0).connections.expired.get();
    assert!(expired > 0, "others had no packets");
    for port in PORTS {
        machine.backend(0, &tcp(client, port, Tcp::Ack)).unwrap();
    }
    assert!(machine.counters(0).connections.misses.get() - misses < 16, "they are found");
}
