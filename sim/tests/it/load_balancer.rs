//! The load balancer in memory itself: several workers, its clock, a restart.

use std::sync::Arc;

use crate::common::{CLIENT, Machine, Tcp, VIP, message, secret, tcp};
use datapath::{DropReason, Verdict};
use etherparse::{Icmpv4Type, PacketBuilder, icmpv4};
use plan::{Planner, proto};
use sim::view::{next_hop, view};
use sim::{LoadBalancer, Path, Setup};

const CLIENT_BITS: u32 = u32::from_be_bytes(CLIENT);

fn balancer(workers: usize, path: Path, message: proto::Plan) -> LoadBalancer {
    let plan = Arc::new(Planner::default().plan(message).unwrap());
    let view = view(plan, &secret(), workers, |_| vec![next_hop(1600)]);
    let setup =
        Setup { workers: 0..workers, devices: 1, connections: 1000, secret: secret(), path };
    LoadBalancer::new(Arc::new(view), setup).unwrap()
}

/// "Time exceeded" about an answer to that client's port.
fn error_about(port: u16) -> Vec<u8> {
    let mut quoted = Vec::new();
    let answer = PacketBuilder::ipv4(VIP, CLIENT, 60).tcp(80, port, 7, 1024);
    answer.write(&mut quoted, b"").unwrap();
    let exceeded = Icmpv4Type::TimeExceeded(icmpv4::TimeExceededCode::TtlExceededInTransit);
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2([1; 6], [2; 6]).ipv4([198, 51, 100, 1], VIP, 60);
    builder.icmpv4(exceeded).write(&mut frame, &quoted).unwrap();
    frame
}

fn backend(frame: &[u8]) -> &[u8] {
    &frame[30..34]
}

#[test]
fn the_slow_path_reads_the_tables_of_all_workers() {
    let mut machine = balancer(2, Path::Batch, message(8));
    machine.set_time(0);
    let packets: Vec<Vec<u8>> = (1..40).map(|port| tcp(CLIENT_BITS, port, Tcp::Syn)).collect();
    let sent = machine.forward(0, 0, &packets);
    let grown = Planner::default().plan(message(80)).unwrap();
    machine.view = Arc::new(view(Arc::new(grown), &secret(), 2, |_| vec![next_hop(1600)]));
    let errors: Vec<Vec<u8>> = (1..40).map(error_about).collect();
    // The other worker receives them.
    let followed = machine.forward(1, 0, &errors);
    assert_eq!(machine.table(1).connections(plan::ServiceId(0)), 0);
    for (sent, followed) in sent.iter().zip(&followed) {
        assert!(matches!(followed.verdict, Verdict::Send(_)), "{:?}", followed.verdict);
        assert_eq!(backend(&followed.frame), backend(&sent.frame));
    }
    assert_eq!((machine.received(), machine.totals().sent), (78, 78));
}

#[test]
fn more_frames_than_a_batch_keep_their_order() {
    let mut machine = balancer(1, Path::Batch, message(8));
    machine.set_time(0);
    let frames: Vec<Vec<u8>> = (1..300)
        .map(|port| match port % 3 {
            0 => error_about(port),
            _ => tcp(CLIENT_BITS, port, Tcp::Ack),
        })
        .collect();
    for (frame, outcome) in frames.iter().zip(machine.forward(0, 0, &frames)) {
        assert!(outcome.frame.ends_with(&frame[14..]), "each outcome is its frame's");
    }
}

#[test]
fn after_a_restart_nothing_is_tracked_and_counters_go_on() {
    let mut machine = balancer(1, Path::Specification, message(8));
    machine.set_time(5_000_000);
    let syn = [tcp(CLIENT_BITS, 5, Tcp::Syn)];
    machine.forward(0, 0, &syn);
    assert_eq!(machine.tables[0].entries().count(), 1);
    let view = Arc::clone(&machine.view);
    machine.restart(view);
    assert_eq!(machine.tables[0].entries().count(), 0);
    machine.set_time(1);
    machine.forward(0, 0, &syn);
    assert_eq!((machine.totals().sent, machine.tables[0].entries().count()), (2, 1));
}

#[test]
fn time_never_goes_back_and_a_month_is_one_step() {
    const MONTH_MS: u32 = 30 * 24 * 3_600_000;
    let mut machine = Machine::new(message(8), 1000);
    machine.backend(1_000, &tcp(CLIENT_BITS, 5, Tcp::Syn)).unwrap();
    machine.set_time(0);
    assert_eq!(machine.forward(0, &tcp(CLIENT_BITS, 5, Tcp::Ack)).1.lookup.name(), "hit");
    let (_, journey, _) = machine.forward(MONTH_MS, &tcp(CLIENT_BITS, 5, Tcp::Ack));
    assert_eq!(journey.lookup.name(), "miss");
}

#[test]
fn what_no_device_received_is_counted_with_its_reason() {
    let mut machine = balancer(1, Path::Batch, message(1));
    machine.refuse(DropReason::Truncated);
    machine.set_time(0);
    machine.forward(0, 0, &[tcp(CLIENT_BITS, 5, Tcp::Syn)]);
    let totals = machine.totals();
    assert_eq!((machine.received(), totals.unaccounted(2)), (2, 0));
    assert_eq!(totals.dropped[DropReason::Truncated.index()], 1);
}
