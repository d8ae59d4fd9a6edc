//! Compares the prediction of a change of plan with what then happens to each connection's next
//! packet.

use crate::common::{Machine, Tcp, message, tcp, udp};
use datapath::compare::{Outcome, PlanChange};
use plan::{Planner, proto};

const CONNECTIONS: u32 = 4_000;

/// Connections by what is told of them: kept, moved, broken, unknown.
type Counts = [usize; 4];

fn client(connection: u32) -> u32 {
    0xc000_0200 + connection
}

/// A machine with established connections, some of which a former plan had
/// given to other backends than the table does now.
fn busy(before: &proto::Plan) -> Machine {
    let mut machine = Machine::new(before.clone(), 64 * u64::from(CONNECTIONS));
    let mut former = before.clone();
    former.groups[0].members.pop();
    former.backends.pop();
    machine.set(former);
    for (kind, after_ms) in [(Tcp::Syn, 0), (Tcp::Ack, 150)] {
        machine.now_ms += after_ms;
        for connection in 0..CONNECTIONS {
            machine.backend(0, &tcp(client(connection), 40_000, kind)).unwrap();
        }
    }
    machine.set(before.clone());
    machine
}

fn told(machine: &Machine, before: &proto::Plan, after: &proto::Plan) -> Counts {
    // Ids are the same by any planner that was given the plans in this order.
    let mut planner = Planner::default();
    planner.plan(before.clone()).unwrap();
    let after = planner.plan(after.clone()).unwrap();
    let change = PlanChange::new(&machine.view.plan, &after);
    let mut counts = [0; 4];
    for table in &machine.tables {
        let ticks = table.ticks();
        for (entry, hash) in table.entries_with_hashes() {
            let Some(outcome) = change.outcome(entry, hash, &ticks) else { continue };
            counts[outcome as usize] += 1;
        }
    }
    counts
}

/// Connections that stay where they are by the other plan, and those that do
/// not.
fn met(machine: &mut Machine, after: &proto::Plan, packet: impl Fn(u32) -> Vec<u8>) -> [usize; 2] {
    let backend =
        |machine: &mut Machine, connection| machine.backend(0, &packet(client(connection))).ok();
    let before: Vec<_> = (0..CONNECTIONS).map(|connection| backend(machine, connection)).collect();
    machine.set(after.clone());
    let kept = (0..CONNECTIONS)
        .zip(&before)
        .filter(|(connection, before)| backend(machine, *connection) == **before)
        .count();
    [kept, before.len() - kept]
}

fn ack(client: u32) -> Vec<u8> {
    tcp(client, 40_000, Tcp::Ack)
}

/// Four backends, by a table of the default size.
fn web() -> proto::Plan {
    let mut plan = message(4);
    plan.services[0].table_size = 0;
    plan
}

fn changed(change: impl FnOnce(&mut proto::Plan)) -> proto::Plan {
    let mut plan = web();
    change(&mut plan);
    plan
}

fn set_state(plan: &mut proto::Plan, member: usize, state: proto::BackendState) {
    plan.groups[0].members[member].set_state(state);
}

fn for_udp(plan: &mut proto::Plan) {
    for vip in &mut plan.services[0].vips {
        vip.set_protocol(proto::Protocol::Udp);
    }
}

#[test]
fn what_is_told_of_connections_is_what_their_next_packets_meet() {
    let changes: [(&str, proto::Plan); 8] = [
        ("nothing", web()),
        ("weight", changed(|plan| plan.groups[0].members[1].weight = 7)),
        ("drained", changed(|plan| plan.groups[0].members[1].weight = 0)),
        ("down", changed(|plan| set_state(plan, 1, proto::BackendState::Down))),
        (
            "kept while down",
            changed(|plan| {
                set_state(plan, 1, proto::BackendState::Down);
                plan.services[0].set_on_down(proto::OnDown::Keep);
            }),
        ),
        ("removed", changed(|plan| drop(plan.groups[0].members.remove(1)))),
        ("another address", changed(|plan| plan.backends[1].address = "10.9.9.9".into())),
        ("no service", changed(for_udp)),
    ];
    for (change, after) in changes {
        let before = web();
        let mut machine = busy(&before);
        let [kept, moved, broken, unknown] = told(&machine, &before, &after);
        assert_eq!((moved, unknown), (0, 0), "{change}");
        // A backend at another address is met by the same name.
        if change != "another address" {
            assert_eq!([kept, broken], met(&mut machine, &after, ack), "{change}");
        }
        let breaks = !["nothing", "weight", "drained", "kept while down"].contains(&change);
        assert_eq!(broken > 900, breaks, "{change}: {broken}");
    }
}

/// All but one slot in 128 are known from an entry.
fn assert_close(told: usize, met: usize, change: &str) {
    let error_max = CONNECTIONS as usize / 64;
    assert!(told.abs_diff(met) <= error_max, "{change}: {told} told, {met} met");
}

#[test]
fn a_service_of_another_name_keeps_those_that_the_hash_selects() {
    let after = changed(|plan| plan.services[0].name = "shop".into());
    let before = web();
    let mut machine = busy(&before);
    let [kept, moved, broken, unknown] = told(&machine, &before, &after);
    let [stay, others] = met(&mut machine, &after, ack);
    assert_eq!((broken, unknown), (0, 0));
    assert!(moved > 200 && kept > 2_000, "{moved} move, {kept} are kept");
    assert_close(kept, stay, "kept");
    assert_close(moved, others, "moved");
}

#[test]
fn a_shorter_timeout_moves_what_it_lets_expire() {
    let after = changed(|plan| {
        plan.services[0].idle_timeouts =
            Some(proto::IdleTimeouts { tcp_ms: 1_000, ..Default::default() });
    });
    let before = web();
    let mut machine = busy(&before);
    assert_eq!(told(&machine, &before, &after), [CONNECTIONS as usize, 0, 0, 0]);
    machine.now_ms += 60_000;
    // The table's clock is its worker's.
    machine.backend(0, &udp(1, 1)).unwrap();
    let [kept, moved, broken, unknown] = told(&machine, &before, &after);
    assert_eq!((broken, unknown), (0, 0));
    assert!(moved > 200 && kept > 2_000, "{moved} move, {kept} are kept");
}

#[test]
fn what_entries_do_not_tell_is_unknown() {
    let before = web();
    let machine = busy(&before);
    // Half of the VIPs go to another service.
    let after = changed(|plan| {
        let mut other = plan.services[0].clone();
        other.name = "shop".into();
        other.vips = plan.services[0].vips.split_off(1);
        plan.services.push(other);
    });
    let [kept, moved, broken, unknown] = told(&machine, &before, &after);
    assert_eq!((moved, broken, kept + unknown), (0, 0, CONNECTIONS as usize));
    assert!(unknown > 200, "{unknown}: those that the other service's table would move");
    // Whose client selects is not in an entry either.
    let after = changed(|plan| {
        plan.services[0].name = "shop".into();
        plan.services[0].set_affinity(proto::Affinity::Client);
    });
    assert_eq!(told(&machine, &before, &after), [0, 0, 0, CONNECTIONS as usize]);
}

#[test]
fn what_decides_nothing_now_is_no_live_connection() {
    let before = changed(|plan| set_state(plan, 1, proto::BackendState::Down));
    let mut machine = busy(&web());
    let mut planner = Planner::default();
    planner.plan(web()).unwrap();
    machine.set(before.clone());
    let [kept, _, broken, _] = told(&machine, &before, &before);
    assert_eq!(broken, 0);
    assert!(kept < CONNECTIONS as usize - 900, "{kept} of those that do not belong to b002");
}

#[test]
fn outcomes_are_in_the_order_of_the_counts() {
    let all = [Outcome::Stays, Outcome::Moves, Outcome::Breaks, Outcome::Unknown];
    assert_eq!(all.map(|outcome| outcome as usize), [0, 1, 2, 3]);
}
