//! `steering: software`: a thread between the queues and the workers, on a
//! device in memory and on a veth with a single queue.

use std::collections::{BTreeMap, BTreeSet};
use std::net::UdpSocket;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::Net;
use crate::program::Forwarder;
use datapath::{DropReason, FlowHash, Secret, Totals, View};
use guideway_forwarder::dataplane::capture::Filter;
use guideway_forwarder::dataplane::engine::{Engine, Inherited, Start};
use guideway_forwarder::dataplane::liveness::Liveness;
use guideway_forwarder::dataplane::tables::Tables;
use guideway_forwarder::dataplane::threads::{self, Role};
use nic::drivers::memory::{MemoryPeer, pair};
use nic::{Pool, SharedIo};
use plan::{Planner, ServiceId};
use rustix::net::AddressFamily;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use serde_json::json;
use sim::view::next_hop;
use testnet::{raw_socket, receive, root_or_skip};
use wire::{EtherType, Family, FlowKey, MacAddress, Protocol, ethernet, ipv4};

const VIP: u32 = 0xcb00_710a;
const CLIENT: u32 = 0xc000_0201;
const OWN: u32 = 0x0a00_0001;
const ENCAPSULATOR: u32 = 0x0a00_0901;
const WORKERS: usize = 4;

/// Four workers behind one queue, and the other end of that queue.
struct Rig {
    engine: Arc<Engine>,
    peer: MemoryPeer,
    view: Arc<View>,
    service: ServiceId,
    pushed: u64,
    _folder: tempfile::TempDir,
}

impl Rig {
    fn new(ring_frames: usize) -> Rig {
        let message = json!({
            "generation": "1",
            "cluster": {"name": "test", "keyId": "derived"},
            "machine": {"name": "lb", "addresses": ["10.0.0.1"]},
            "encapsulators": ["10.0.9.0/24"],
            "backends": [{"name": "b", "address": "10.0.1.11"}],
            "groups": [{"name": "g", "members": [{"backend": "b", "weight": 1, "state": "BACKEND_STATE_ACTIVE"}]}],
            "services": [{
                "name": "dns",
                "vips": [{"address": "203.0.113.10", "protocol": "PROTOCOL_UDP"}],
                "group": "g",
            }],
        });
        let plan =
            Arc::new(Planner::default().plan(serde_json::from_value(message).unwrap()).unwrap());
        let service = plan.services().next().unwrap().id;
        let secret = Secret::derived("test");
        let view = Arc::new(sim::view::view(plan, &secret, WORKERS, |_| vec![next_hop(1600)]));
        let folder = tempfile::tempdir().unwrap();
        let (queue, peer) = pair();
        let start = Start {
            io: Vec::new(),
            interfaces: Vec::new(),
            view: Arc::clone(&view),
            secret,
            tables: &Tables::open(folder.path()).unwrap().0,
            key_digest: 1,
            connections_max: 10_000,
            cpus: Vec::new(),
            busy_poll: false,
            inherited: Inherited::default(),
            kernel_caches: None,
        };
        let io = SharedIo { pool: Pool::new(16_384).unwrap(), queues: vec![vec![Box::new(queue)]] };
        let engine = Engine::start_steered(start, io, WORKERS, ring_frames).unwrap();
        Rig { engine: Arc::new(engine), peer, view, service, pushed: 0, _folder: folder }
    }

    fn push(&mut self, frame: &[u8]) {
        self.peer.push(frame);
        self.pushed += 1;
    }

    /// Waits until every frame has its verdict.
    fn at_rest(&self) -> Totals {
        let start = Instant::now();
        loop {
            let (received, totals) = self.engine.totals();
            if received == self.pushed && totals.unaccounted(received) == 0 {
                return totals;
            }
            assert!(start.elapsed() < Duration::from_secs(10), "{received} received, {totals:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Takes `count` sent frames; nothing else may come behind them.
    fn take(&self, count: u64) -> Vec<Vec<u8>> {
        let (start, mut taken) = (Instant::now(), Vec::new());
        while (taken.len() as u64) < count {
            taken.extend(std::iter::from_fn(|| self.peer.take()));
            assert!(start.elapsed() < Duration::from_secs(10), "{} of {count}", taken.len());
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(taken.len() as u64, count);
        taken
    }

    fn misdirected(&self) -> u64 {
        self.engine.counters().map(|counters| counters.misdirected.get()).sum()
    }

    /// Packets that each worker has sent.
    fn shares(&self) -> Vec<u64> {
        let workers = self.view.counters[..WORKERS].iter();
        let sent = |traffic: &datapath::view::Traffic| traffic.packets.get();
        workers.map(|counters| counters.members.iter().map(sent).sum()).collect()
    }

    /// Workers that remember the flow from that port.
    fn remembering(&self, source_port: u16) -> Vec<usize> {
        let hash = FlowHash::new(&Secret::derived("test")).flow(&key(source_port));
        let tables = self.engine.tables();
        tables
            .iter()
            .enumerate()
            .filter(|(_, table)| table.find(hash, self.service).is_some())
            .map(|(worker, _)| worker)
            .collect()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.engine.stop();
    }
}

fn key(source_port: u16) -> FlowKey {
    FlowKey {
        family: Family::V4,
        protocol: Protocol::UDP,
        source: u128::from(CLIENT),
        destination: u128::from(VIP),
        source_port,
        destination_port: 53,
    }
}

fn packet(protocol: Protocol, (source, destination): (u32, u32), payload: &[u8]) -> Vec<u8> {
    let header = ipv4::Emit {
        packet_bytes: (20 + payload.len()) as u16,
        traffic_class: 0,
        id: 0,
        flags: 0,
        ttl: 64,
        protocol,
        source,
        destination,
    };
    [&header.to_bytes()[..], payload].concat()
}

/// A numbered datagram to the VIP.
fn datagram(source_port: u16, number: u32) -> Vec<u8> {
    let ports = [source_port.to_be_bytes(), 53u16.to_be_bytes(), 12u16.to_be_bytes(), [0; 2]];
    let udp = [&ports.concat()[..], &number.to_be_bytes()].concat();
    packet(Protocol::UDP, (CLIENT, VIP), &udp)
}

fn framed(packet: &[u8]) -> Vec<u8> {
    let ether = ethernet::emit(MacAddress([4; 6]), MacAddress([2; 6]), EtherType::IPV4);
    [&ether[..], packet].concat()
}

/// Port and number of a datagram in GRE.
fn numbered(frame: &[u8]) -> (u16, u32) {
    let udp = &frame[14 + 20 + 4 + 20..];
    (u16::from_be_bytes([udp[0], udp[1]]), u32::from_be_bytes([udp[8], udp[9], udp[10], udp[11]]))
}

/// Sends rounds of one packet of each flow, each round when the last is
/// through; checks that every flow was served by one worker, in order, and
/// that several workers took part.
fn flows_keep_worker_and_order(
    rig: &mut Rig,
    ports: std::ops::Range<u16>,
    wrap: fn(Vec<u8>) -> Vec<u8>,
) {
    for number in 0..10 {
        for port in ports.clone() {
            rig.push(&framed(&wrap(datagram(port, number))));
        }
        rig.at_rest();
    }
    let mut numbers = BTreeMap::<u16, Vec<u32>>::new();
    for frame in rig.take(10 * ports.len() as u64) {
        let (port, number) = numbered(&frame);
        numbers.entry(port).or_default().push(number);
    }
    let expected: Vec<u32> = (0..10).collect();
    let mut homes = BTreeSet::new();
    for port in ports {
        assert_eq!(numbers[&port], expected, "port {port}");
        let remembering = rig.remembering(port);
        assert_eq!(remembering.len(), 1, "port {port} is known to workers {remembering:?}");
        homes.extend(remembering);
    }
    assert_eq!(homes.len(), WORKERS, "{homes:?}");
}

#[test]
fn a_hanging_steering_thread_is_told_by_name() {
    let rig = Rig::new(64);
    let liveness = Liveness::default();
    liveness.follow(rig.engine.publisher());
    assert_eq!(liveness.heartbeats().len(), WORKERS + 2);
    let _hang = rig.peer.hang();
    let start = Instant::now();
    while liveness.oldest().unwrap().age < Duration::from_millis(500) {
        assert!(start.elapsed() < Duration::from_secs(5), "all threads go round");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(liveness.oldest().unwrap().role, Role::Steering);
}

#[test]
fn every_flow_keeps_its_worker_and_its_order() {
    let mut rig = Rig::new(256);
    flows_keep_worker_and_order(&mut rig, 1000..1100, |packet| packet);
    assert_eq!((rig.misdirected(), rig.shares().iter().sum::<u64>()), (0, 1000));
}

#[test]
fn traffic_of_one_tunnel_is_spread_by_what_is_inside() {
    let mut rig = Rig::new(256);
    flows_keep_worker_and_order(&mut rig, 1000..1100, |inner| {
        packet(Protocol::GRE, (ENCAPSULATOR, OWN), &[&[0, 0, 8, 0][..], &inner].concat())
    });
}

#[test]
fn a_flood_of_one_flow_goes_round_the_workers_and_drops_as_worker_full() {
    const FLOOD: u16 = 7;
    let mut rig = Rig::new(8);
    let reasons = vec![DropReason::WorkerFull];
    let mut capture = rig.engine.capture(Filter { reasons, ..Filter::default() }).unwrap();
    for number in 0..6400 {
        rig.push(&framed(&datagram(FLOOD, number)));
    }
    let totals = rig.at_rest();
    let mut captured = capture.sources.iter_mut().map(Iterator::count).collect::<Vec<_>>();
    assert!(captured.pop_if(|steering| *steering > 0).is_some(), "the steering thread's drops");
    assert!(captured.iter().all(|worker| *worker == 0), "{captured:?}");
    drop(capture);
    let (sent, full) = (totals.sent, totals.dropped[DropReason::WorkerFull.index()]);
    let shares = rig.shares();
    // A worker's way out is as narrow here as its way in.
    let tx_full = totals.dropped[DropReason::TxFull.index()];
    assert_eq!(sent + tx_full + full, 6400, "{totals:?}");
    assert_eq!(shares.iter().sum::<u64>(), sent + tx_full);
    assert!(totals.dropped[DropReason::WorkerFull.index()] > 0, "{totals:?}");
    assert!(rig.misdirected() > 0, "{full} dropped, none misdirected");
    assert!(shares.iter().all(|share| *share > 0), "{shares:?}");
    let home = rig.remembering(FLOOD);
    assert_eq!(home.len(), 1, "a worker does not track misdirected packets: {home:?}");
    assert_eq!(rig.misdirected(), sent + tx_full - shares[home[0]], "all others' are misdirected");
    assert_eq!(rig.take(sent).len() as u64, sent);
    // Not more at a time than fits: none of these is misdirected.
    let misdirected = rig.misdirected();
    for port in 2000..2100 {
        rig.push(&framed(&datagram(port, 0)));
        rig.at_rest();
        assert_eq!(rig.remembering(port).len(), 1);
    }
    assert_eq!(rig.misdirected(), misdirected);
}

#[test]
fn what_a_slow_device_has_no_room_for_waits_or_is_dropped_by_name() {
    let mut rig = Rig::new(8);
    rig.peer.limit_tx(4);
    for port in 0..2000 {
        rig.push(&framed(&datagram(port, 0)));
        if port % 16 == 0 {
            rig.at_rest();
        }
    }
    let totals = rig.at_rest();
    assert!(totals.dropped[DropReason::TxFull.index()] > 0, "{totals:?}");
    assert_eq!(rig.take(totals.sent).len() as u64, totals.sent, "what counts as sent comes out");
}

/// A successor goes on with the devices, not with the rings: what counts as
/// sent must have left.
#[test]
fn at_rest_every_frame_that_counts_as_sent_has_left() {
    let mut rig = Rig::new(256);
    let mut left = 0;
    for round in 0..3000 {
        for port in 0..64 {
            rig.push(&framed(&datagram(port, round)));
        }
        rig.engine.rest().unwrap();
        left += std::iter::from_fn(|| rig.peer.take()).count() as u64;
        assert_eq!(left, rig.engine.totals().1.sent, "round {round}");
        rig.engine.resume();
    }
    assert!(left > 0);
}

fn steered_on_a_single_queue(driver: &str) {
    let net = Net::new(1, 11..=11);
    let mut forwarder = Forwarder::start(&net.balancer);
    let plan = json!({
        "generation": "1",
        "requires": ["steering-software"],
        "cluster": {"name": "test", "keyId": "derived"},
        "machine": {"name": "lb", "addresses": ["10.0.1.1"]},
        "backends": [{"name": "b", "address": "10.0.1.11"}],
        "groups": [{"name": "g", "members": [{"backend": "b", "weight": 1, "state": "BACKEND_STATE_ACTIVE"}]}],
        "services": [{
            "name": "dns",
            "vips": [{"address": "203.0.113.10", "protocol": "PROTOCOL_UDP"}],
            "group": "g",
        }],
        "forwarder": {
            "connectionsMax": "10000",
            "steering": "STEERING_SOFTWARE",
            "interfaces": [{"name": "eth0", "driver": driver}, {"name": "eth1", "driver": driver}],
        },
    });
    forwarder.set_plan(&plan).unwrap();
    let backend = net.backend.inside(|| raw_socket(AddressFamily::INET, 47));
    set_socket_timeout(&backend, Timeout::Recv, Some(Duration::from_secs(3))).unwrap();
    net.client.inside(|| {
        for port in 20_000..20_100u16 {
            let socket = UdpSocket::bind(("0.0.0.0", port)).unwrap();
            socket.send_to(&port.to_be_bytes(), "203.0.113.10:53").unwrap();
        }
    });
    let mut arrived = BTreeSet::new();
    let mut bytes = [0; 2048];
    while arrived.len() < 100 {
        let length = receive(&backend, &mut bytes).expect("a packet in time");
        arrived.insert(bytes[length - 2..length].to_vec());
    }
    let counters = forwarder.counters();
    assert_eq!((counters.unaccounted, counters.received, counters.sent), (0, 100, 100));
    let status = forwarder.status();
    let workers = status.threads.iter().filter(|thread| thread.role == "worker").count();
    assert_eq!(workers, threads::cpus().len().saturating_sub(1).max(1));
    assert!(forwarder.metrics().contains("guideway_misdirected_packets_total 0\n"));
    assert_eq!(forwarder.terminate(), Some(0));
}

#[test]
fn one_queue_is_enough_over_af_xdp() {
    if root_or_skip("one_queue_is_enough_over_af_xdp") {
        steered_on_a_single_queue("DRIVER_AF_XDP");
    }
}

#[test]
fn one_queue_is_enough_over_af_packet() {
    if root_or_skip("one_queue_is_enough_over_af_packet") {
        steered_on_a_single_queue("DRIVER_AF_PACKET");
    }
}
