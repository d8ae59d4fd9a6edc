//! Marked packets are forwarded and reported on, but never remembered.

use std::sync::atomic::Ordering;

use crate::common::{self, CLIENT, Machine, VIP, message};
use datapath::outbox::Kind;
use datapath::trace::{MARK_BYTES, Mark, PACKET_BYTES, sign};
use datapath::{Secret, Verdict};
use etherparse::{PacketBuilder, SlicedPacket, TransportSlice};

const UNIX_MS: u64 = 1_800_000_000_000;

fn secret() -> Secret {
    Secret::from_file_content(b"0123456789abcdef0123456789abcdef").unwrap()
}

fn machine() -> Machine {
    let machine = Machine::with_secret(message(5), 1000, secret());
    machine.view.unix_offset_ms.store(UNIX_MS as i64, Ordering::Relaxed);
    machine
}

fn mark(nonce: u64) -> Mark {
    Mark { receiver: "192.0.2.99".parse().unwrap(), port: 7777, nonce }
}

/// A UDP packet with that mark, signed at that time.
fn marked(mark: &Mark, unix_ms: u64, port: u16) -> Vec<u8> {
    let payload = usize::from(PACKET_BYTES) - 28;
    let mut frame = Vec::new();
    PacketBuilder::ethernet2([1; 6], [2; 6])
        .ipv4(CLIENT, VIP, 60)
        .udp(port, 53)
        .write(&mut frame, &vec![0; payload])
        .unwrap();
    let key = wire::headers::parse(&frame).unwrap().unwrap().key;
    let at = frame.len() - MARK_BYTES;
    frame[at..].copy_from_slice(&sign(&secret().trace_key().unwrap(), mark, unix_ms, &key));
    frame
}

fn reports(machine: &mut Machine) -> Vec<Vec<u8>> {
    machine
        .originated
        .drain(..)
        .inspect(|more| assert_eq!(more.counts, Kind::Report.into()))
        .map(|more| more.bytes)
        .collect()
}

#[test]
fn a_marked_packet_is_forwarded_and_reported_on() {
    let mut machine = machine();
    let (verdict, _, frame) = machine.forward(0, &marked(&mark(7), UNIX_MS + 20_000, 9));
    assert!(matches!(verdict, Verdict::Send(_)));
    let reports = reports(&mut machine);
    assert_eq!(reports.len(), 1);
    let packet = SlicedPacket::from_ethernet(&reports[0]).unwrap();
    let Some(etherparse::NetSlice::Ipv4(ip)) = &packet.net else { panic!() };
    assert_eq!((ip.header().source(), ip.header().destination()), ([10, 0, 0, 1], [192, 0, 2, 99]));
    let Some(TransportSlice::Udp(udp)) = &packet.transport else { panic!() };
    assert_eq!((udp.source_port(), udp.destination_port()), (6079, 7777));
    let sum = udp.to_header().calc_checksum_ipv4(&ip.header().to_header(), udp.payload()).unwrap();
    assert_eq!(udp.checksum(), sum);
    let report: serde_json::Value = serde_json::from_slice(udp.payload()).unwrap();
    assert_eq!(report["nonce"], "0000000000000007");
    assert_eq!(
        (&report["machine"], &report["service"], &report["table"]),
        (&"lb-1".into(), &"web".into(), &"miss".into())
    );
    let backend =
        machine.view.plan.backends().find(|backend| backend.name == report["backend"]).unwrap();
    assert_eq!(backend.address.to_string(), format!("10.1.0.{}", frame[33]));
    assert_eq!(machine.table(0).connections(plan::ServiceId(0)), 0, "nothing is remembered");
}

#[test]
fn a_marked_packet_leaves_the_entry_of_its_flow_as_it_was() {
    let mut machine = machine();
    let entry = |machine: &Machine, bytes: &[u8]| {
        let key = wire::headers::parse(bytes).unwrap().unwrap().key;
        let hash = datapath::FlowHash::new(&secret()).flow(&key);
        machine.table(0).find(hash, plan::ServiceId(0)).unwrap().entry()
    };
    let plain = common::udp(u32::from_be_bytes(CLIENT), 9);
    machine.forward(0, &plain);
    let before = entry(&machine, &plain);
    assert!(matches!(machine.forward(1_000, &marked(&mark(7), UNIX_MS, 9)).0, Verdict::Send(_)));
    assert_eq!(reports(&mut machine).len(), 1);
    assert_eq!(entry(&machine, &plain), before, "it confirms nothing");
}

#[test]
fn forged_stale_and_repeated_marks_are_ordinary_packets() {
    let mut machine = machine();
    let good = marked(&mark(1), UNIX_MS, 9);
    let mut forged = good.clone();
    *forged.last_mut().unwrap() ^= 1;
    let mut moved = good.clone();
    moved[29] ^= 1;
    common::sum_v4(&mut moved);
    for packet in [
        &forged,
        &moved,
        &marked(&mark(2), UNIX_MS - 31_000, 9),
        &marked(&mark(3), UNIX_MS + 31_000, 9),
    ] {
        assert!(matches!(machine.forward(0, packet).0, Verdict::Send(_)));
        assert!(reports(&mut machine).is_empty());
    }
    machine.forward(0, &good);
    assert_eq!(reports(&mut machine).len(), 1);
    machine.forward(0, &good);
    assert!(reports(&mut machine).is_empty(), "seen before");
}

#[test]
fn marks_are_judged_by_the_time_as_it_is_after_the_clock_was_set() {
    const STEP_MS: u64 = 3_600_000;
    let mut machine = machine();
    let clock = std::sync::Arc::clone(&machine.view.unix_offset_ms);
    // A view of the same plan, as after a change of next hops.
    machine.set_next_hops(|_| Vec::new());
    clock.store((UNIX_MS + STEP_MS) as i64, Ordering::Relaxed);
    for (nonce, unix_ms, reported) in [(1, UNIX_MS, 0), (2, UNIX_MS + STEP_MS, 1)] {
        machine.forward(0, &marked(&mark(nonce), unix_ms, 9));
        assert_eq!(reports(&mut machine).len(), reported);
    }
}

#[test]
fn what_cannot_be_reported_for_lack_of_memory_is_counted() {
    let mut machine = machine();
    let chunk = Vec::leak(vec![0; wire::CHUNK_BYTES]);
    let frame = wire::Frame::copy_of(chunk, &marked(&mark(1), UNIX_MS, 9)).unwrap();
    machine.forward_in_place(0, &mut [frame].into_iter().collect());
    assert_eq!(machine.totals().sent, 1, "the packet goes its way");
    assert_eq!(machine.counters(0).originated_lost.get(), 1);
}

/// From the first moment at which it may be reported on until the last.
#[test]
fn no_mark_is_reported_on_twice_while_it_lives() {
    let mut machine = machine();
    let first = marked(&mark(1), UNIX_MS + 30_000, 9);
    machine.forward(0, &first);
    assert_eq!(reports(&mut machine).len(), 1);
    // As many others as are permitted meanwhile, and twice as many.
    let mut reported = 1;
    for tick in 0..600u64 {
        for more in 0..20 {
            let nonce = 2 + tick * 20 + more;
            let unix_ms = UNIX_MS + u64::from(machine.now_ms);
            machine.forward(0, &marked(&mark(nonce), unix_ms, 9));
        }
        reported += reports(&mut machine).len();
        machine.now_ms += 100;
    }
    assert!((6000..=6100).contains(&reported), "{reported}");
    machine.forward(0, &first);
    assert_eq!(reports(&mut machine).len(), 0);
}

#[test]
fn reports_are_limited() {
    let mut machine = machine();
    let mut count = 0;
    for nonce in 0..300 {
        machine.forward(0, &marked(&mark(nonce), UNIX_MS, 9));
        count += reports(&mut machine).len();
    }
    assert_eq!(count, 100);
}

#[test]
fn without_a_secret_file_nothing_is_traced() {
    let mut machine = Machine::new(message(1), 100);
    machine.view.unix_offset_ms.store(UNIX_MS as i64, Ordering::Relaxed);
    machine.forward(0, &marked(&mark(1), UNIX_MS, 9));
    assert!(reports(&mut machine).is_empty());
    assert_eq!(Secret::derived("test").trace_key(), None);
}
