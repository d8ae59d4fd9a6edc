//! The workers and the slow path on a device in memory: their counters, with a working device
//! and with a faulty one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use datapath::{DropReason, Secret, Totals};
use guideway_forwarder::dataplane::engine::{Engine, Inherited, Start};
use guideway_forwarder::dataplane::liveness::Liveness;
use guideway_forwarder::dataplane::tables::Tables;
use guideway_forwarder::dataplane::threads::Role;
use nic::drivers::memory::{MemoryPeer, pair};
use nic::{Pool, WorkerIo};
use plan::Planner;
use serde_json::json;
use sim::view::next_hop;
use wire::{EtherType, MacAddress, Protocol, checksum, ethernet, ipv4};

const VIP: u32 = 0xcb00_710a;
const CLIENT: u32 = 0xc000_0201;

/// One worker on one device, and the other end of that device.
struct Rig {
    engine: Engine,
    peer: MemoryPeer,
    _folder: tempfile::TempDir,
}

impl Rig {
    fn new() -> Rig {
        let message = json!({
            "generation": "1",
            "cluster": {"name": "test", "keyId": "derived"},
            "machine": {"name": "lb", "addresses": ["10.0.0.1"]},
            "backends": [{"name": "b", "address": "10.0.1.11"}],
            "groups": [{"name": "g", "members": [{"backend": "b", "weight": 1, "state": "BACKEND_STATE_ACTIVE"}]}],
            "services": [{
                "name": "dns",
                "fragments": "FRAGMENTS_ON",
                "vips": [{"address": "203.0.113.10", "protocol": "PROTOCOL_UDP"}],
                "group": "g",
            }],
        });
        let plan =
            Arc::new(Planner::default().plan(serde_json::from_value(message).unwrap()).unwrap());
        let secret = Secret::derived("test");
        let view = sim::view::view(plan, &secret, 1, |_| vec![next_hop(1600)]);
        let folder = tempfile::tempdir().unwrap();
        let (queue, peer) = pair();
        let engine = Engine::start(Start {
            io: vec![WorkerIo { pool: Pool::new(2048).unwrap(), queues: vec![Box::new(queue)] }],
            interfaces: Vec::new(),
            view: Arc::new(view),
            secret,
            tables: &Tables::open(folder.path()).unwrap().0,
            key_digest: 1,
            connections_max: 1000,
            cpus: Vec::new(),
            busy_poll: false,
            inherited: Inherited::default(),
            kernel_caches: None,
        });
        Rig { engine: engine.unwrap(), peer, _folder: folder }
    }

    /// Waits until `received` frames were received and `done` holds.
    fn until(&self, received: u64, done: impl Fn(&Totals) -> bool) -> (u64, Totals) {
        let start = Instant::now();
        loop {
            let (now, totals) = self.engine.totals();
            if now == received && done(&totals) {
                return (now, totals);
            }
            assert!(start.elapsed() < Duration::from_secs(5), "{now} received, {totals:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn sent(&self) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| self.peer.take()).collect()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.engine.stop();
    }
}

/// Waits until it is so.
fn until(is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(5), "it does not become so");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A frame with an IPv4 packet to the VIP.
fn frame(protocol: Protocol, fragment: (u16, u16), payload: &[u8]) -> Vec<u8> {
    let (id, flags_and_offset) = fragment;
    let header = ipv4::Emit {
        packet_bytes: (20 + payload.len()) as u16,
        traffic_class: 0,
        id,
        flags: flags_and_offset,
        ttl: 64,
        protocol,
        source: CLIENT,
        destination: VIP,
    };
    let ether = ethernet::emit(MacAddress([4; 6]), MacAddress([2; 6]), EtherType::IPV4);
    [&ether[..], &header.to_bytes(), payload].concat()
}

fn datagram(source_port: u16, length: usize) -> Vec<u8> {
    let mut udp = vec![0; 8 + length];
    udp[..2].copy_from_slice(&source_port.to_be_bytes());
    udp[2..4].copy_from_slice(&53u16.to_be_bytes());
    udp[4..6].copy_from_slice(&((8 + length) as u16).to_be_bytes());
    udp
}

#[test]
fn every_frame_of_a_sound_device_is_accounted_for() {
    let rig = Rig::new();
    (0..500).for_each(|port| rig.peer.push(&frame(Protocol::UDP, (0, 0), &datagram(port, 10))));
    rig.peer.push(b"short");
    rig.peer.push(&frame(Protocol::TCP, (0, 0), &[0; 20]));
    let (received, totals) = rig.until(502, |totals| totals.accounted() == 502);
    assert_eq!(totals.unaccounted(received), 0);
    assert_eq!((totals.sent, rig.sent().len()), (500, 500));
    assert_eq!(totals.dropped.iter().sum::<u64>(), 2);
}

#[test]
fn a_leaking_device_shows_as_unaccounted_frames() {
    let rig = Rig::new();
    rig.peer.leak(3);
    (0..10).for_each(|port| rig.peer.push(&frame(Protocol::UDP, (0, 0), &datagram(port, 10))));
    let (received, totals) = rig.until(10, |totals| totals.sent == 7);
    assert_eq!(totals.unaccounted(received), 3);
}

#[test]
fn a_full_transmit_ring_drops_by_name() {
    let rig = Rig::new();
    rig.peer.limit_tx(4);
    (0..10).for_each(|port| rig.peer.push(&frame(Protocol::UDP, (0, 0), &datagram(port, 10))));
    let (received, totals) = rig.until(10, |totals| totals.accounted() == 10);
    assert_eq!(totals.unaccounted(received), 0);
    assert_eq!((totals.sent, totals.dropped[DropReason::TxFull.index()]), (4, 6));
}

#[test]
fn an_echo_request_is_answered_by_way_of_the_slow_path() {
    let rig = Rig::new();
    let mut echo = [8, 0, 0, 0, 0, 7, 0, 1, b'p', b'i', b'n', b'g'];
    let sum = checksum::finish(checksum::sum(&echo));
    echo[2..4].copy_from_slice(&sum.to_be_bytes());
    for _ in 0..100 {
        rig.peer.push(&frame(Protocol::ICMP, (0, 0), &echo));
    }
    let (received, totals) = rig.until(100, |totals| totals.accounted() == 100);
    assert_eq!((totals.replied, totals.unaccounted(received)), (100, 0));
    let replies = rig.sent();
    assert_eq!(replies.len(), 100);
    for reply in replies {
        assert_eq!(
            (&reply[..6], &reply[6..12]),
            (&[4; 6][..], &[2; 6][..]),
            "back to where it came from"
        );
        assert_eq!(
            (&reply[26..30], &reply[30..34]),
            (&VIP.to_be_bytes()[..], &CLIENT.to_be_bytes()[..])
        );
        assert_eq!((reply[34], &reply[42..]), (0, &b"ping"[..]));
    }
}

#[test]
fn fragments_that_came_early_follow_their_first_one() {
    const MORE: u16 = 0x2000;
    let rig = Rig::new();
    let whole = datagram(4000, 40 * 8);
    for id in 0..20 {
        // The last pieces first, each of 80 bytes, then the one with the ports.
        for piece in (0..4u16).rev() {
            let bytes = &whole[usize::from(piece) * 80..][..80];
            let more = if piece < 3 { MORE } else { 0 };
            rig.peer.push(&frame(Protocol::UDP, (id, more | (piece * 10)), bytes));
        }
    }
    let (received, totals) = rig.until(80, |totals| {
        totals.accounted() == 80 && totals.originated.iter().sum::<u64>() == 60
    });
    assert_eq!((totals.unaccounted(received), totals.sent, totals.held), (0, 20, 60));
    assert_eq!(rig.sent().len(), 80, "every piece went to the backend");
}

#[test]
fn a_hanging_worker_is_told_by_name_while_the_others_live() {
    let rig = Rig::new();
    let liveness = Liveness::default();
    assert_eq!(liveness.oldest(), None, "nothing runs yet");
    liveness.follow(rig.engine.publisher());
    let roles = || liveness.heartbeats().iter().map(|heartbeat| heartbeat.role).collect::<Vec<_>>();
    assert_eq!(roles(), [Role::Worker(0), Role::SlowPath]);
    let hang = rig.peer.hang();
    until(|| liveness.oldest().unwrap().age > Duration::from_millis(500));
    assert_eq!(liveness.oldest().unwrap().role, Role::Worker(0));
    assert!(liveness.heartbeats()[1].age < Duration::from_millis(400), "the slow path lives");
    let stuck = rig.engine.rest().unwrap_err().to_string();
    assert_eq!(
        stuck,
        "thread worker-0 did not go round the loop within 1 s: restart the forwarder"
    );
    drop(hang);
    until(|| liveness.oldest().unwrap().age < Duration::from_millis(100));
}

#[test]
fn what_is_not_for_a_vip_cannot_be_given_back_and_is_counted() {
    let rig = Rig::new();
    rig.peer.push(&ethernet::emit(MacAddress([255; 6]), MacAddress([2; 6]), EtherType(0x0806)));
    let (received, totals) = rig.until(1, |totals| totals.accounted() == 1);
    assert_eq!((totals.unaccounted(received), totals.passed), (0, 0));
    assert_eq!(totals.dropped[DropReason::NotPassed.index()], 1);
}

#[test]
fn a_flood_of_requests_to_the_slow_path_is_dropped_by_name_and_blocks_no_thread() {
    let rig = Rig::new();
    let echo = frame(Protocol::ICMP, (0, 0), &[8, 0, 0xf7, 0xff, 0, 0, 0, 0]);
    let start = Instant::now();
    let mut pushed = 0;
    while rig.engine.totals().1.dropped[DropReason::SlowPathFull.index()] == 0 {
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "the slow path keeps up with {pushed} frames"
        );
        (0..2000).for_each(|_| rig.peer.push(&echo));
        pushed += 2000;
    }
    let (received, totals) = rig.until(pushed, |totals| totals.accounted() == pushed);
    assert_eq!(totals.unaccounted(received), 0);
    assert!(totals.dropped[DropReason::SlowPathFull.index()] > 0);
    let reasons = [DropReason::SlowPathFull, DropReason::EchoLimit, DropReason::TxFull];
    let dropped: u64 = reasons.iter().map(|reason| totals.dropped[reason.index()]).sum();
    assert_eq!(totals.replied + dropped, pushed);
}
