//! The rules by which connections keep their backend, tested with packets.

use crate::common::{Machine, Tcp, message, tcp, udp};
use datapath::recorder::Lookup;
use datapath::{DropReason, EntryClass};
use plan::proto;
use plan::proto::BackendState::{Active, Disabled, Down, Draining};

const CLIENT: u32 = 0xc000_0201;

/// A machine with an established connection, and the backend it has.
fn established(message: proto::Plan) -> (Machine, String) {
    let mut machine = Machine::new(message, 1000);
    let backend = machine.backend(0, &tcp(CLIENT, 5, Tcp::Syn)).unwrap();
    assert_eq!(machine.backend(150, &tcp(CLIENT, 5, Tcp::Ack)).unwrap(), backend);
    assert_eq!(class(&mut machine), EntryClass::Established);
    (machine, backend)
}

/// The class of the connection's entry.
fn class(machine: &mut Machine) -> EntryClass {
    entry(machine).expect("an entry").class
}

fn entry(machine: &mut Machine) -> Option<datapath::table::Entry> {
    let headers = wire::headers::parse(&tcp(CLIENT, 5, Tcp::Ack)).unwrap().unwrap();
    let hash = datapath::FlowHash::new(&datapath::Secret::derived("test")).flow(&headers.key);
    machine
        .table(0)
        .find(hash, machine.view.plan.services().next().unwrap().id)
        .map(|found| found.entry())
}

/// `before`, with that backend in another state.
fn with_state(mut before: proto::Plan, backend: &str, state: proto::BackendState) -> proto::Plan {
    before.generation += 1;
    before.groups[0]
        .members
        .iter_mut()
        .find(|member| member.backend == backend)
        .unwrap()
        .set_state(state);
    before
}

#[test]
fn a_journey_has_the_flow_hash_whether_tracked_or_selected() {
    let mut machine = Machine::new(message(3), 1000);
    let (_, miss, _) = machine.forward(0, &tcp(CLIENT, 5, Tcp::Syn));
    let (_, hit, _) = machine.forward(150, &tcp(CLIENT, 5, Tcp::Ack));
    assert_eq!((miss.lookup, hit.lookup), (Lookup::Miss, Lookup::Hit));
    assert!(miss.hash.is_some() && miss.hash == hit.hash, "{miss:?} {hit:?}");
    assert_eq!((miss.selector, hit.selector), (miss.hash, None), "nothing was selected");
}

#[test]
fn a_connection_keeps_its_backend_when_a_pool_grows() {
    let mut machine = Machine::new(message(3), 10_000);
    let flows: Vec<u16> = (1..500).collect();
    let before: Vec<String> = flows
        .iter()
        .map(|port| machine.backend(0, &tcp(CLIENT, *port, Tcp::Syn)).unwrap())
        .collect();
    machine.set(message(6));
    let after: Vec<String> = flows
        .iter()
        .map(|port| machine.backend(0, &tcp(CLIENT, *port, Tcp::Ack)).unwrap())
        .collect();
    assert_eq!(before, after);
    let fresh: Vec<String> = flows
        .iter()
        .map(|port| machine.backend(0, &tcp(CLIENT + 1, *port, Tcp::Syn)).unwrap())
        .collect();
    assert!(fresh.iter().any(|backend| backend == "b006"), "new connections use the new backends");
}

#[test]
fn a_second_packet_within_a_tick_confirms_nothing() {
    let mut machine = Machine::new(message(2), 1000);
    machine.backend(0, &tcp(CLIENT, 5, Tcp::Syn)).unwrap();
    machine.backend(50, &tcp(CLIENT, 5, Tcp::Ack)).unwrap();
    assert_eq!(class(&mut machine), EntryClass::Unconfirmed);
    machine.backend(60, &tcp(CLIENT, 5, Tcp::Syn)).unwrap();
    assert_eq!(class(&mut machine), EntryClass::Unconfirmed, "a repeated SYN neither");
    machine.backend(100, &tcp(CLIENT, 5, Tcp::Ack)).unwrap();
    assert_eq!(class(&mut machine), EntryClass::Established);
}

#[test]
fn a_draining_backend_keeps_its_connections_and_gets_no_new_ones() {
    let (mut machine, backend) = established(message(4));
    machine.set(with_state(message(4), &backend, Draining));
    assert_eq!(machine.backend(1000, &tcp(CLIENT, 5, Tcp::Ack)).unwrap(), backend);
    for port in 100..600 {
        assert_ne!(machine.backend(0, &tcp(CLIENT, port, Tcp::Syn)).unwrap(), backend);
    }
}

#[test]
fn a_backend_that_is_down_loses_its_connections_unless_told_to_keep_them() {
    for (on_down, stays) in [(proto::OnDown::Move, false), (proto::OnDown::Keep, true)] {
        let (mut machine, backend) = established(message(4));
        let mut down = with_state(message(4), &backend, Down);
        down.services[0].set_on_down(on_down);
        machine.set(down);
        assert_eq!(machine.backend(10, &tcp(CLIENT, 5, Tcp::Ack)).unwrap() == backend, stays);
    }
}

#[test]
fn a_disabled_or_removed_backend_loses_its_connections() {
    let (mut machine, backend) = established(message(4));
    machine.set(with_state(message(4), &backend, Disabled));
    assert_ne!(machine.backend(10, &tcp(CLIENT, 5, Tcp::Ack)).unwrap(), backend);

    let (mut machine, backend) = established(message(4));
    let mut without = message(4);
    without.groups[0].members.retain(|member| member.backend != backend);
    machine.set(without);
    assert_ne!(machine.backend(10, &tcp(CLIENT, 5, Tcp::Ack)).unwrap(), backend);
}

#[test]
fn a_syn_never_moves_an_established_connection_of_an_active_backend() {
    let (mut machine, backend) = established(message(2));
    machine.set(message(40));
    for _ in 0..3 {
        assert_eq!(machine.backend(10, &tcp(CLIENT, 5, Tcp::Syn)).unwrap(), backend);
        assert_eq!(class(&mut machine), EntryClass::Established);
    }
}

#[test]
fn a_fin_closes_and_a_syn_then_selects_anew_where_the_backend_drains() {
    let (mut machine, backend) = established(message(2));
    machine.backend(10, &tcp(CLIENT, 5, Tcp::Fin)).unwrap();
    machine.backend(10, &tcp(CLIENT, 5, Tcp::Ack)).unwrap();
    assert_eq!(
        class(&mut machine),
        EntryClass::Closing,
        "what follows a FIN does not open it again"
    );
    machine.set(with_state(message(2), &backend, Draining));
    assert_ne!(machine.backend(10, &tcp(CLIENT, 5, Tcp::Syn)).unwrap(), backend);
    assert_eq!(class(&mut machine), EntryClass::Unconfirmed);
}

#[test]
fn a_syn_goes_where_its_connection_is_after_a_fin_too() {
    let (mut machine, backend) = established(message(2));
    machine.set(message(40));
    machine.backend(10, &tcp(CLIENT, 5, Tcp::Fin)).unwrap();
    assert_eq!(machine.backend(10, &tcp(CLIENT, 5, Tcp::Syn)).unwrap(), backend);
    assert_eq!(
        class(&mut machine),
        EntryClass::Reset,
        "gone in ten seconds, unless packets follow"
    );
    assert_eq!(machine.backend(10, &tcp(CLIENT, 5, Tcp::Ack)).unwrap(), backend);
    assert_eq!(class(&mut machine), EntryClass::Established, "a new connection on the same port");
}

#[test]
fn a_forged_rst_and_syn_move_no_connection_after_weights_changed() {
    for forged in [&[Tcp::Rst, Tcp::Syn] as &[Tcp], &[Tcp::Rst, Tcp::Rst, Tcp::Syn, Tcp::Syn]] {
        let (mut machine, backend) = established(message(2));
        machine.set(message(40));
        for kind in forged {
            assert_eq!(machine.backend(300, &tcp(CLIENT, 5, *kind)).unwrap(), backend);
        }
        assert_eq!(machine.backend(5_000, &tcp(CLIENT, 5, Tcp::Ack)).unwrap(), backend);
        assert_eq!(class(&mut machine), EntryClass::Established);
    }
}

#[test]
fn a_forged_syn_moves_no_connection_while_its_backend_drains() {
    for forged in [&[Tcp::Syn] as &[Tcp], &[Tcp::Rst, Tcp::Syn], &[Tcp::Syn, Tcp::Rst, Tcp::Syn]] {
        let (mut machine, backend) = established(message(4));
        machine.set(with_state(message(4), &backend, Draining));
        for kind in forged {
            assert_eq!(machine.backend(300, &tcp(CLIENT, 5, *kind)).unwrap(), backend);
        }
        assert_eq!(machine.backend(300, &tcp(CLIENT, 5, Tcp::Ack)).unwrap(), backend);
        assert_eq!(class(&mut machine), EntryClass::Established);
    }
}

#[test]
fn a_repeated_syn_reaches_a_backend_that_began_to_drain() {
    let mut machine = Machine::new(message(4), 1000);
    let backend = machine.backend(0, &tcp(CLIENT, 5, Tcp::Syn)).unwrap();
    machine.set(with_state(message(4), &backend, Draining));
    assert_eq!(machine.backend(1_000, &tcp(CLIENT, 5, Tcp::Syn)).unwrap(), backend);
}

/// What remains possible for who forges, and is documented: docs/journey.md.
#[test]
fn a_forged_fin_and_syn_move_a_connection_while_its_backend_drains() {
    let (mut machine, backend) = established(message(4));
    machine.set(with_state(message(4), &backend, Draining));
    assert_eq!(machine.backend(10, &tcp(CLIENT, 5, Tcp::Fin)).unwrap(), backend);
    assert_ne!(machine.backend(10, &tcp(CLIENT, 5, Tcp::Syn)).unwrap(), backend);
}

#[test]
fn a_backend_that_is_down_loses_only_syns_of_what_was_never_confirmed() {
    let down = |backend: &str| {
        let mut down = with_state(message(4), backend, Down);
        down.services[0].set_on_down(proto::OnDown::Keep);
        down
    };
    let mut machine = Machine::new(message(4), 1000);
    let backend = machine.backend(0, &tcp(CLIENT, 5, Tcp::Syn)).unwrap();
    machine.set(down(&backend));
    assert_eq!(machine.backend(200, &tcp(CLIENT, 5, Tcp::Rst)).unwrap(), backend, "no SYN");
    assert_ne!(machine.backend(200, &tcp(CLIENT, 5, Tcp::Syn)).unwrap(), backend);

    for forged in [Tcp::Syn, Tcp::Rst, Tcp::Fin] {
        let (mut machine, backend) = established(message(4));
        machine.set(down(&backend));
        for kind in [forged, Tcp::Syn, Tcp::Ack] {
            assert_eq!(machine.backend(300, &tcp(CLIENT, 5, kind)).unwrap(), backend);
        }
    }
}

#[test]
fn a_forged_rst_does_no_harm_when_packets_go_on() {
    let (mut machine, backend) = established(message(2));
    machine.set(message(40));
    machine.backend(10, &tcp(CLIENT, 5, Tcp::Rst)).unwrap();
    assert_eq!(class(&mut machine), EntryClass::Reset);
    assert_eq!(machine.backend(5_000, &tcp(CLIENT, 5, Tcp::Ack)).unwrap(), backend);
    assert_eq!(class(&mut machine), EntryClass::Established);
}

#[test]
fn entries_expire_by_their_class_and_not_before() {
    let lives = |prepare: &[Tcp], idle_ms: u32| {
        let mut machine = Machine::new(message(2), 1000);
        for kind in prepare {
            machine.backend(150, &tcp(CLIENT, 5, *kind)).unwrap();
        }
        machine.now_ms += idle_ms;
        machine.wait(0);
        entry(&mut machine).is_some()
    };
    let (syn, ack, fin, rst) = (Tcp::Syn, Tcp::Ack, Tcp::Fin, Tcp::Rst);
    for (packets, timeout_ms, tick_ms) in [
        (&[syn] as &[Tcp], 30_000, 100),
        (&[syn, ack], 900_000, 8_192),
        (&[syn, ack, fin], 120_000, 2_000),
        (&[syn, ack, rst], 10_000, 2_000),
        (&[syn, ack, fin, syn], 10_000, 2_000),
    ] {
        assert!(lives(packets, timeout_ms), "{timeout_ms}: too early");
        // A tick of rounding up, a tick of rounding the time down, a sweep.
        assert!(!lives(packets, timeout_ms + 2 * tick_ms + 10_000), "{timeout_ms}: too late");
    }
}

#[test]
fn an_entry_lives_for_its_timeout_however_long_no_packet_came() {
    let (mut machine, backend) = established(message(2));
    // The last packet, at the end of a tick; and another's, in the next.
    machine.now_ms = 8_191;
    assert_eq!(machine.backend(0, &tcp(CLIENT, 5, Tcp::Ack)).unwrap(), backend);
    machine.backend(1, &tcp(CLIENT, 6, Tcp::Ack)).unwrap();
    machine.set_time(8_191 + 899_000);
    assert_eq!(entry(&mut machine).map(|entry| entry.class), Some(EntryClass::Established));
}

#[test]
fn udp_is_tracked_and_expires_as_udp() {
    let mut machine = Machine::new(message(3), 1000);
    let backend = machine.backend(0, &udp(CLIENT, 9)).unwrap();
    machine.backend(200, &udp(CLIENT, 9)).unwrap();
    machine.set(message(30));
    assert_eq!(machine.backend(59_000, &udp(CLIENT, 9)).unwrap(), backend);
    let (_, journey, _) = machine.forward(90_000, &udp(CLIENT, 9));
    assert_eq!(journey.lookup, Lookup::Miss);
}

#[test]
fn client_affinity_puts_all_flows_of_a_client_on_one_backend() {
    let mut plan = message(50);
    plan.services[0].set_affinity(proto::Affinity::Client);
    let mut machine = Machine::new(plan, 10_000);
    let mut seen = std::collections::BTreeSet::new();
    for client in 0..100 {
        let first = machine.backend(0, &tcp(CLIENT + client, 1, Tcp::Syn)).unwrap();
        for port in 2..5 {
            assert_eq!(machine.backend(0, &tcp(CLIENT + client, port, Tcp::Syn)).unwrap(), first);
        }
        seen.insert(first);
    }
    assert!(seen.len() > 30, "clients spread over {} of 50 backends", seen.len());
}

#[test]
fn a_service_holds_at_most_its_quota_and_counts_the_rest() {
    let mut plan = message(3);
    plan.services[0].connections_quota = 10;
    let mut machine = Machine::new(plan, 1000);
    for port in 1..=25 {
        machine.backend(0, &tcp(CLIENT, port, Tcp::Syn)).unwrap();
    }
    let connections = &machine.counters(0).connections;
    assert_eq!((connections.inserts.get(), connections.refused_quota.get()), (10, 15));
}

#[test]
fn a_flood_displaces_only_unconfirmed_entries() {
    let mut machine = Machine::new(message(3), 64);
    let mut kept = Vec::new();
    for port in 1..=32 {
        machine.backend(0, &tcp(CLIENT, port, Tcp::Syn)).unwrap();
    }
    for port in 1..=32 {
        kept.push(
            machine.backend(if port == 1 { 200 } else { 0 }, &tcp(CLIENT, port, Tcp::Ack)).unwrap(),
        );
    }
    for client in 1..2000 {
        machine.backend(0, &tcp(CLIENT + client, 7, Tcp::Syn)).unwrap();
    }
    machine.set(message(60));
    for port in 1..=32u16 {
        assert_eq!(
            machine.backend(0, &tcp(CLIENT, port, Tcp::Ack)).unwrap(),
            kept[usize::from(port) - 1]
        );
    }
    assert!(machine.counters(0).connections.displaced.get() > 1000);
}

#[test]
fn a_service_without_backends_drops_by_that_name() {
    let mut plan = message(2);
    plan.groups[0].members.iter_mut().for_each(|member| member.set_state(Down));
    let mut machine = Machine::new(plan.clone(), 100);
    assert_eq!(machine.backend(0, &tcp(CLIENT, 1, Tcp::Syn)).unwrap_err(), DropReason::NoBackend);
    plan.groups[0].members[0].set_state(Active);
    machine.set(plan);
    assert_eq!(machine.backend(0, &tcp(CLIENT, 1, Tcp::Syn)).unwrap(), "b001");
}
