//! Workers neither allocate nor free once they run: real workers, and a steering thread, on a
//! device in memory, with packets for every code path and changes of plan.
//!
//! ```text
//!  this program's allocator ── called on a watched thread? ─► counts, keeps the first call's backtrace
//!  watched: threads named worker-… and steering, from their first round on
//! ```
//!
//! The slow path is not watched: it is not a worker, and keeps early fragments in memory of its
//! own, within limits.

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::Cell;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use datapath::outbox::Kind;
use datapath::trace::{MARK_BYTES, Mark, PACKET_BYTES, sign};
use datapath::{Counters, DropReason, Secret, View};
use guideway_forwarder::dataplane::capture;
use guideway_forwarder::dataplane::engine::{Engine, Inherited, Start};
use guideway_forwarder::dataplane::tables::Tables;
use guideway_forwarder::dataplane::threads::monotonic_ms;
use nic::{Meter, Pool, Queue, SharedIo, WorkerIo};
use plan::Planner;
use rustix::thread::gettid;
use serde_json::json;
use sim::view::next_hop;
use wire::{Batch, EtherType, MacAddress, Protocol, checksum, ethernet, ipv4, tcp};

#[global_allocator]
static ALLOCATOR: Watchman = Watchman;

/// The system's allocator, which reports calls on watched threads.
struct Watchman;

/// Kernel ids of the watched threads; zero: a free place.
static WATCHED: [AtomicI32; 16] = [const { AtomicI32::new(0) }; 16];
static CALLS: AtomicU64 = AtomicU64::new(0);
static FIRST: Mutex<Option<Backtrace>> = Mutex::new(None);

// SAFETY: needed to see allocations at all. Every call goes to the system's
// allocator as it came, whose guarantees these then are; looking at the
// thread's id and counting touch no memory that is handed out.
#[allow(unsafe_code, reason = "an allocator is unsafe to implement")]
unsafe impl GlobalAlloc for Watchman {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: the caller's promises are passed on unchanged.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        note();
        // SAFETY: as above; `memory` came from `System.alloc`.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// Counts the call if its thread is watched.
fn note() {
    // Taking a backtrace allocates.
    thread_local!(static LOOKING: Cell<bool> = const { Cell::new(false) });
    let thread = gettid().as_raw_nonzero().get();
    if LOOKING.get() || WATCHED.iter().all(|watched| watched.load(Ordering::Relaxed) != thread) {
        return;
    }
    if CALLS.fetch_add(1, Ordering::Relaxed) == 0 {
        LOOKING.set(true);
        *FIRST.lock().unwrap() = Some(Backtrace::force_capture());
        LOOKING.set(false);
    }
}

/// Watches the workers of the one engine that runs. One at a time.
struct Watch {
    _alone: MutexGuard<'static, ()>,
}

impl Watch {
    fn alone() -> Watch {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        CALLS.store(0, Ordering::Relaxed);
        Watch { _alone: alone }
    }

    /// From now on these threads are watched; there have to be `expected`.
    fn begin(&self, expected: usize) {
        let mut places = WATCHED.iter();
        for task in fs::read_dir("/proc/self/task").unwrap() {
            let task = task.unwrap();
            let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            if name.starts_with("worker-") || name.starts_with("steering") {
                let thread = task.file_name().to_str().unwrap().parse().unwrap();
                places.next().unwrap().store(thread, Ordering::Relaxed);
            }
        }
        assert_eq!(WATCHED.len() - places.len(), expected, "threads by these names");
    }

    /// Calls of the allocator by watched threads, and where the first was.
    fn end(&self) -> (u64, String) {
        WATCHED.iter().for_each(|place| place.store(0, Ordering::Relaxed));
        let first = FIRST.lock().unwrap().take();
        (CALLS.load(Ordering::Relaxed), first.map_or_else(String::new, |first| first.to_string()))
    }
}

/// A queue that hands out copies of the same frames as often as it is told.
struct Loop {
    frames: Arc<[Vec<u8>]>,
    at: usize,
    shared: Arc<Shared>,
    turns: u32,
    /// Allocates, to see that this is told of.
    careless: bool,
}

#[derive(Default)]
struct Shared {
    /// Frames that may still be handed out.
    left: AtomicU64,
    sent: AtomicU64,
}

impl Shared {
    /// False: none is left for this queue.
    fn take_one(&self) -> bool {
        let less = |left: u64| left.checked_sub(1);
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }
}

impl Queue for Loop {
    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch<'static>) {
        while !batch.is_full() && pool.free() > 0 && self.shared.take_one() {
            let frame = pool.frame_of(&self.frames[self.at]).expect("it fits a free chunk");
            self.at = (self.at + 1) % self.frames.len();
            if self.careless {
                std::hint::black_box(Box::new(self.at));
            }
            batch.push(frame);
        }
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch<'static>) {
        self.turns += 1;
        // Now and then the ring is full.
        if !self.turns.is_multiple_of(50) {
            self.shared.sent.fetch_add(batch.len() as u64, Ordering::Relaxed);
            batch.drain(..).for_each(|frame| pool.give_frame(frame));
        }
    }

    fn fd(&self) -> Option<RawFd> {
        None
    }

    fn meter(&self) -> Meter {
        Meter::default()
    }
}

const VIP: u32 = 0xcb00_710a;
const VIP_WITHOUT_BACKENDS: u32 = 0xcb00_710b;
const OWN: u32 = 0x0a00_0001;
const ENCAPSULATOR: u32 = 0x0a00_0901;
const CLIENT: u32 = 0xc000_0201;
/// Of the path to one of the backends.
const NARROW: u16 = 600;
const MORE: u16 = 0x2000;
/// Frames that are fed at once: what a ring between threads holds.
const PORTION: u64 = 2000;

fn secret() -> Secret {
    Secret::from_file_content(b"0123456789abcdef0123456789abcdef").unwrap()
}

fn view(planner: &mut Planner, generation: u64, workers: usize) -> Arc<View> {
    let state = |backend: u64| match backend == generation % 4 {
        true => "BACKEND_STATE_DRAINING",
        false => "BACKEND_STATE_ACTIVE",
    };
    let member = |backend: u64| json!({"backend": format!("b{backend}"), "weight": 1, "state": state(backend)});
    let message = json!({
        "generation": generation.to_string(),
        "cluster": {"name": "test", "keyId": "derived"},
        "machine": {"name": "lb", "addresses": ["10.0.0.1"]},
        "peers": [{"name": "lb-2", "addresses": ["10.0.0.2"], "healthy": true}],
        "encapsulators": ["10.0.9.0/24"],
        "backends": (0..4).map(|backend| json!({"name": format!("b{backend}"), "address": format!("10.0.1.{backend}")})).collect::<Vec<_>>(),
        "groups": [{"name": "web", "members": (0..4).map(member).collect::<Vec<_>>()}, {"name": "none"}],
        "services": [{
            "name": "web",
            "group": "web",
            "fragments": "FRAGMENTS_ON",
            "vips": [{"address": "203.0.113.10"}],
            "idleTimeouts": {"tcpMs": 1000, "tcpUnconfirmedMs": 1000, "tcpClosingMs": 1000, "udpMs": 1000},
        }, {
            "name": "empty",
            "group": "none",
            "vips": [{"address": "203.0.113.11", "protocol": "PROTOCOL_TCP"}],
        }],
    });
    let plan = Arc::new(planner.plan(serde_json::from_value(message).unwrap()).unwrap());
    let view = sim::view::view(plan, &secret(), workers, |address| {
        let narrow = address == IpAddr::from(Ipv4Addr::new(10, 0, 1, 3));
        vec![next_hop(if narrow { NARROW } else { 1600 })]
    });
    Arc::new(view)
}

/// Everything that has a path of its own, again and again among ordinary
/// packets; and more flows than the tables hold.
fn frames() -> Arc<[Vec<u8>]> {
    let mut frames = Vec::new();
    for round in 0..100u16 {
        for flow in 0..40 {
            frames.push(segment(flow, tcp::Flags::ACK));
            frames.push(segment(1000 + round * 40 + flow, tcp::Flags::SYN));
        }
        frames.push(segment(round % 40, tcp::Flags::FIN));
        frames.push(segment(round % 40, tcp::Flags::RST));
        frames.push(packet(Protocol::UDP, (round, 0), &datagram(round, 900)));
        frames.push(packet(Protocol::UDP, (round, ipv4::DONT_FRAGMENT), &datagram(round, 900)));
        frames.extend(pieces(round));
        frames.push(echo());
        frames.push(icmp_error(&segment(round % 40, tcp::Flags::ACK)));
        frames.push(icmp_error(&segment(50_000 + round, tcp::Flags::ACK)));
        frames.push(tunnelled(&segment(round, tcp::Flags::ACK)));
        frames.push(to(VIP_WITHOUT_BACKENDS, Protocol::TCP, (0, 0), &[0x50; 20]));
        frames.push(to(CLIENT, Protocol::TCP, (0, 0), &[0x50; 20]));
        frames.push(b"short".to_vec());
        frames.push(marked(u64::from(round)));
    }
    frames.into()
}

fn to(destination: u32, protocol: Protocol, (id, flags): (u16, u16), payload: &[u8]) -> Vec<u8> {
    between((CLIENT, destination), protocol, (id, flags), payload)
}

fn packet(protocol: Protocol, fragment: (u16, u16), payload: &[u8]) -> Vec<u8> {
    to(VIP, protocol, fragment, payload)
}

fn between(
    (source, destination): (u32, u32),
    protocol: Protocol,
    (id, flags): (u16, u16),
    payload: &[u8],
) -> Vec<u8> {
    let packet_bytes = (ipv4::HEADER_BYTES + payload.len()) as u16;
    let header = ipv4::Emit {
        packet_bytes,
        traffic_class: 0,
        id,
        flags,
        ttl: 64,
        protocol,
        source,
        destination,
    };
    let ether = ethernet::emit(MacAddress([4; 6]), MacAddress([2; 6]), EtherType::IPV4);
    [&ether[..], &header.to_bytes(), payload].concat()
}

fn segment(port: u16, flags: tcp::Flags) -> Vec<u8> {
    let mut header = [0; 20];
    header[..2].copy_from_slice(&(port + 1024).to_be_bytes());
    header[2..4].copy_from_slice(&80u16.to_be_bytes());
    (header[12], header[13]) = (5 << 4, flags.0);
    packet(Protocol::TCP, (0, ipv4::DONT_FRAGMENT), &header)
}

fn datagram(port: u16, payload_bytes: usize) -> Vec<u8> {
    let mut udp = vec![0; 8 + payload_bytes];
    udp[..2].copy_from_slice(&(port + 1024).to_be_bytes());
    udp[2..4].copy_from_slice(&53u16.to_be_bytes());
    udp[4..6].copy_from_slice(&((8 + payload_bytes) as u16).to_be_bytes());
    udp
}

/// A datagram in two pieces, the later one first. Which machine is in charge
/// of it depends on the client.
fn pieces(id: u16) -> [Vec<u8>; 2] {
    let (whole, addresses) = (datagram(id, 152), (CLIENT + u32::from(id), VIP));
    [(80, 10), (0, MORE)]
        .map(|(at, flags)| between(addresses, Protocol::UDP, (id, flags), &whole[at..at + 80]))
}

fn echo() -> Vec<u8> {
    packet(Protocol::ICMP, (0, 0), &[8, 0, 0xf7, 0xff, 0, 0, 0, 0])
}

/// "Fragmentation needed" about the answer to that packet.
fn icmp_error(of: &[u8]) -> Vec<u8> {
    let mut quoted = between((VIP, CLIENT), Protocol::TCP, (0, 0), &of[34..]);
    let (to, from) = (of[34..36].to_vec(), of[36..38].to_vec());
    quoted[34..36].copy_from_slice(&from);
    quoted[36..38].copy_from_slice(&to);
    let mut message = [&[3, 4, 0, 0, 0, 0, 2, 0][..], &quoted[14..]].concat();
    let sum = checksum::finish(checksum::sum(&message));
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    packet(Protocol::ICMP, (0, 0), &message)
}

fn tunnelled(frame: &[u8]) -> Vec<u8> {
    let gre = [&[0, 0, 8, 0], &frame[14..]].concat();
    between((ENCAPSULATOR, OWN), Protocol::GRE, (0, 0), &gre)
}

/// A packet that the tracer reports on.
fn marked(nonce: u64) -> Vec<u8> {
    let mut frame = packet(Protocol::UDP, (0, 0), &datagram(9, usize::from(PACKET_BYTES) - 28));
    let key = wire::headers::parse(&frame).unwrap().unwrap().key;
    let mark = Mark { receiver: "192.0.2.99".parse().unwrap(), port: 7777, nonce };
    let at = frame.len() - MARK_BYTES;
    // Views made here take the machine's own clock for the time of day.
    let signed = sign(&secret().trace_key().unwrap(), &mark, monotonic_ms(), &key);
    frame[at..].copy_from_slice(&signed);
    frame
}

/// Workers, and what they are fed with.
struct Rig {
    engine: Arc<Engine>,
    planner: Planner,
    workers: usize,
    shared: Arc<Shared>,
    frames: u64,
    _folder: tempfile::TempDir,
}

#[derive(Clone, Copy, PartialEq)]
enum Steering {
    Rss,
    Software,
}

impl Rig {
    fn new(steering: Steering, workers: usize, careless: bool) -> Rig {
        let (mut planner, folder) = (Planner::default(), tempfile::tempdir().unwrap());
        let (frames, shared) = (frames(), Arc::<Shared>::default());
        let queue = || -> Box<dyn Queue> {
            let (frames, shared) = (Arc::clone(&frames), Arc::clone(&shared));
            Box::new(Loop { frames, at: 0, shared, turns: 0, careless })
        };
        let io = || WorkerIo { pool: Pool::new(4096).unwrap(), queues: vec![queue()] };
        let rss = steering == Steering::Rss;
        let start = Start {
            io: if rss { (0..workers).map(|_| io()).collect() } else { Vec::new() },
            interfaces: Vec::new(),
            view: view(&mut planner, 1, workers),
            secret: secret(),
            tables: &Tables::open(folder.path()).unwrap().0,
            key_digest: 1,
            connections_max: 1000,
            cpus: Vec::new(),
            busy_poll: false,
            inherited: Inherited::default(),
            kernel_caches: None,
        };
        let engine = if rss {
            Engine::start(start)
        } else {
            let io = SharedIo { pool: Pool::new(16_384).unwrap(), queues: vec![vec![queue()]] };
            Engine::start_steered(start, io, workers, 2 * PORTION as usize)
        };
        let (engine, frames) = (Arc::new(engine.unwrap()), frames.len() as u64);
        Rig { engine, planner, workers, shared, frames, _folder: folder }
    }

    /// Feeds all frames, no faster than rings are emptied, and changes the plan
    /// meanwhile.
    fn round(&mut self, number: u64) {
        let (start, mut left) = (Instant::now(), self.frames);
        while left > 0 {
            let portion = left.min(PORTION);
            self.shared.left.fetch_add(portion, Ordering::Relaxed);
            left -= portion;
            if left < self.frames / 2 && left + PORTION >= self.frames / 2 {
                self.engine.swap(view(&mut self.planner, number + 1, self.workers)).unwrap();
            }
            while self.shared.left.load(Ordering::Relaxed) > 0 {
                assert!(start.elapsed() < Duration::from_secs(30), "workers take no more frames");
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        // More than a tick of the connection table.
        std::thread::sleep(Duration::from_millis(110));
    }

    fn sum(&self, of: impl Fn(&Counters) -> u64) -> u64 {
        self.engine.counters().map(of).sum()
    }

    /// Waits until sweeping has found what to clear.
    fn wait_for_expiry(&self) {
        let (start, before) =
            (Instant::now(), self.sum(|counters| counters.connections.expired.get()));
        while self.sum(|counters| counters.connections.expired.get()) == before {
            assert!(start.elapsed() < Duration::from_secs(30), "nothing expires");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Everything has to have happened, or nothing is shown.
    fn check_that_all_was_done(&self) {
        let (_, totals) = self.engine.totals();
        let done = |what: &str, count: u64| assert!(count > 0, "no packet was {what}: {totals:?}");
        done("sent", totals.sent.min(self.shared.sent.load(Ordering::Relaxed)));
        done("answered", totals.replied);
        done("answered as too big", self.sum(|counters| counters.too_big_answered.get()));
        done("redirected", totals.redirected);
        done("held", totals.held);
        for kind in Kind::ALL {
            done(kind.name(), totals.originated[*kind as usize]);
        }
        for reason in [DropReason::NoBackend, DropReason::NotPassed, DropReason::EthernetHeader] {
            done(reason.name(), totals.dropped[reason.index()]);
        }
        done("tracked", self.sum(|counters| counters.connections.hits.get()));
        done("inserted", self.sum(|counters| counters.connections.inserts.get()));
        done("displacing another", self.sum(|counters| counters.connections.displaced.get()));
        done("expired", self.sum(|counters| counters.connections.expired.get()));
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.engine.stop();
    }
}

fn nothing_is_allocated(steering: Steering, workers: usize, watched: usize) {
    let watch = Watch::alone();
    let mut rig = Rig::new(steering, workers, false);
    watch.begin(watched);
    for number in 1..=4 {
        rig.round(number);
    }
    let mut session =
        rig.engine.capture(capture::Filter::default()).expect("no other capture runs");
    rig.round(5);
    let captured: usize = session.sources.iter_mut().map(|source| source.by_ref().count()).sum();
    drop(session);
    rig.round(6);
    rig.wait_for_expiry();
    let (calls, first) = watch.end();
    assert_eq!(calls, 0, "workers called the allocator; first here:\n{first}");
    assert!(captured > 0, "nothing was captured");
    rig.check_that_all_was_done();
    let full = rig.engine.totals().1.dropped[DropReason::TxFull.index()];
    assert!(full > 0 || steering == Steering::Software, "the ring was never full");
}

#[test]
fn workers_allocate_and_free_nothing_once_they_run() {
    nothing_is_allocated(Steering::Rss, 2, 2);
}

#[test]
fn nor_does_a_steering_thread() {
    nothing_is_allocated(Steering::Software, 2, 3);
}

#[test]
fn an_allocation_in_a_worker_would_be_told_with_its_place() {
    let watch = Watch::alone();
    let mut rig = Rig::new(Steering::Rss, 1, true);
    watch.begin(1);
    rig.round(1);
    let (calls, first) = watch.end();
    // Each box is made and freed.
    assert!(calls >= 2 * rig.frames, "{calls} calls");
    assert!(first.contains(": rx\n"), "{first}");
}
