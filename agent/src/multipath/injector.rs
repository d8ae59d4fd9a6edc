//! Passes SYNs to the kernel one at a time, and enables SYN cookies for those that get a
//! key from the load balancer.
//!
//! ```text
//!  program ─ the ring ─►│ MP_CAPABLE, with a key: tcp_syncookies 2, TUN, 1 │─► kernel
//!                       │ others:                              TUN         │
//!                       │ no answer after 1, 2, 4, 8 s: again              │
//! ```
//!
//! With a cookie the kernel keeps no state of the handshake, and adopts the key that the
//! client's ACK echoes. The injector keeps none either while many handshakes are
//! unanswered: the program finds what it needs in the ACK. The kernel does not repeat a
//! SYN/ACK with a cookie, so the injector gives it the SYN again. A write to the TUN
//! returns when TCP has the SYN: no other SYN of these services can come in between, as all
//! of them take this path.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use aya::maps::{Array, HashMap as Table, MapData, RingBuf};
use datapath::multipath::token;
use ebpf::{Record, with_causes};
use nic::Tun;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use wire::tcp_options::Version;
use zerocopy::FromBytes;

use super::counts::{Counts, Injected};
use super::guard::Guard;
use super::kernel::{self, Kernel, SYN_COOKIES};
use super::syn::Syn;
use super::tokens::Tokens;
use crate::config::Config;
use crate::records::{self, Flow, HandedSyn, InjectedSyn, KeyedHandshake};
use crate::sockets;

/// The device by which the kernel gets SYNs.
pub const DEVICE: &str = "gw-mptcp";

/// What its packets may have; SYNs are shorter.
const DEVICE_MTU: u32 = 1500;

/// SYNs a second that we take: each costs some 10 us. Beyond them, connections are plain.
const RATE: u64 = 20_000;

/// Windows of the rate in a second: each has 2^26 ns (`RATE_WINDOW_BITS`).
const WINDOW_NANOSECONDS: u64 = 1 << 26;

/// Between two heartbeats.
const HEARTBEAT: Duration = Duration::from_millis(200);

/// After as many ns without one the program takes us for gone: `HEARTBEAT_MAX` there.
const HEARTBEAT_MAX: u64 = 1_000_000_000;

/// How often the kernel's list of connections is read.
const TOKENS_INTERVAL: Duration = Duration::from_secs(10);

/// How often we try again where the kernel lacks something.
const RETRY: Duration = Duration::from_secs(5);

/// Between times that a SYN/ACK is sent. The first is for clients without timestamps alone:
/// the rule that such a client's ACK goes by may have come after it.
const PAUSES: [Duration; 5] = [
    Duration::from_millis(30),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
    Duration::from_secs(8),
];

/// Handshakes that may wait to be repeated for the first time.
const PENDING_MAX: usize = 16_384;

/// Handshakes that may be repeated: with as many that nobody answers it is a flood. Of others
/// nothing is remembered, and the client repeats the SYN.
const SILENT_MAX: usize = 1000;

/// For how long the program goes on to hand over SYNs to a successor, beyond the second that
/// it waits for a heartbeat. An agent starts in less than a second where nothing else runs.
const SUCCESSION: Duration = Duration::from_secs(2);

/// The program's tables that handshakes are made by.
pub struct Tables {
    /// SYNs from the program.
    pub syns: RingBuf<MapData>,
    /// The SYN whose SYN/ACK it is to give its key.
    pub injected: Array<MapData, Record<InjectedSyn>>,
    /// Handshakes whose ACKs are to echo their keys.
    pub handshakes: Table<MapData, Record<Flow>, Record<KeyedHandshake>>,
    /// What it knows of us.
    pub injector: Array<MapData, Record<records::Injector>>,
    /// Tokens of connections that live here.
    pub tokens: Tokens,
}

/// The running threads; they end when it is dropped.
pub struct Injector {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Injector {
    /// Starts them, for the network namespace of the calling thread; returns when the
    /// tokens of the connections that live here are known.
    pub fn start(config: &Config, tables: Tables, counts: &Counts) -> Result<Injector, String> {
        let Tables { mut syns, injected: injected_syn, handshakes, injector, tokens } = tables;
        let (stop, injected) = (Arc::<AtomicBool>::default(), &counts.injected);
        let tokens = Arc::new(Mutex::new(tokens));
        follow_tokens(&tokens, injected);
        let heart = Heart(injector);
        let inherited = inherited(&mut syns, heart.beats());
        let mut life = Life {
            config: config.clone(),
            heart,
            inherited,
            injected_syn,
            handshakes,
            tokens: Arc::clone(&tokens),
            pending: Pending::default(),
            injected: Arc::clone(injected),
            problem: Arc::clone(&counts.problem),
            stop: Arc::clone(&stop),
        };
        let injecting = std::thread::Builder::new()
            .name("mptcp-syns".to_string())
            .spawn(move || life.run(syns));
        let (stops, injected) = (Arc::clone(&stop), Arc::clone(injected));
        let following = std::thread::Builder::new()
            .name("mptcp-tokens".to_string())
            .spawn(move || follow_until(&stops, &tokens, &injected));
        let problem = |error: io::Error| format!("cannot start the injector: {error}");
        let threads = vec![injecting.map_err(problem)?, following.map_err(problem)?];
        Ok(Injector { stop, threads })
    }
}

impl Drop for Injector {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// What the injecting thread has.
struct Life {
    config: Config,
    heart: Heart,
    /// SYNs that came before this agent, until they are injected.
    inherited: Vec<Vec<u8>>,
    injected_syn: Array<MapData, Record<InjectedSyn>>,
    handshakes: Table<MapData, Record<Flow>, Record<KeyedHandshake>>,
    tokens: Arc<Mutex<Tokens>>,
    pending: Pending,
    injected: Arc<Injected>,
    problem: Arc<Mutex<Option<String>>>,
    stop: Arc<AtomicBool>,
}

impl Life {
    fn run(&mut self, mut syns: RingBuf<MapData>) {
        while !self.is_stopped() {
            match Kernels::open(&self.config) {
                Ok(mut kernels) => {
                    self.report(None);
                    for record in std::mem::take(&mut self.inherited) {
                        self.take_one(&record, &mut kernels);
                    }
                    let ended = self.inject(&mut syns, &mut kernels);
                    match (&ended, &self.config.pin) {
                        (Ok(()), Some(_)) => self.heart.bequeath(),
                        _ => self.heart.stop(),
                    }
                    // What was handed over until then.
                    self.take(&mut syns, &mut kernels);
                    self.report(ended.err());
                }
                Err(problem) => self.report(Some(problem)),
            }
            let retry = Instant::now() + RETRY;
            while Instant::now() < retry && !self.is_stopped() {
                std::thread::sleep(HEARTBEAT);
            }
        }
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn report(&self, problem: Option<String>) {
        let mut last = self.problem.lock().expect("no thread panics with it");
        if let Some(problem) = problem.as_ref().filter(|problem| Some(*problem) != last.as_ref()) {
            tracing::warn!("connections of Multipath TCP become plain ones: {problem}");
        }
        *last = problem;
    }

    /// Until it is stopped, or something is missing.
    fn inject(&mut self, syns: &mut RingBuf<MapData>, kernels: &mut Kernels) -> Result<(), String> {
        while !self.is_stopped() {
            kernels.check()?;
            self.heart.beat()?;
            let wait = self.pending.next_due().map_or(HEARTBEAT, |due| {
                due.saturating_duration_since(Instant::now()).min(HEARTBEAT)
            });
            let wait = Timespec { tv_sec: 0, tv_nsec: wait.subsec_nanos().into() };
            match poll(&mut [PollFd::new(syns, PollFlags::IN)], Some(&wait)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(format!("cannot wait for SYNs: {error}")),
            }
            self.take(syns, kernels);
            self.repeat(kernels);
        }
        Ok(())
    }

    /// All SYNs that are there now.
    fn take(&mut self, syns: &mut RingBuf<MapData>, kernels: &mut Kernels) {
        let mut taken = 0;
        while let Some(record) = syns.next() {
            let record = record.to_vec();
            self.take_one(&record, kernels);
            taken += 1;
            // A flood must not look like our death.
            if taken % 1024 == 0 && self.heart.beat().is_err() {
                return;
            }
        }
    }

    fn take_one(&mut self, record: &[u8], kernels: &mut Kernels) {
        let Some((key, packet)) = parse(record) else { return };
        let Some(mut syn) = Syn::read(packet) else { return };
        if key == 0 || !syn.is_capable {
            return self.done(&self.injected.plain, kernels.receive(&syn));
        }
        let is_flood = self.pending.is_flood();
        if is_flood && !syn.is_timed {
            // Its ACK says nothing by which its handshake is recognised.
            syn.strip();
            return self.done(&self.injected.stripped_flood, kernels.receive(&syn));
        }
        if !self.claim(token(Version::V1, key), &syn, is_flood) {
            syn.strip();
            return self.done(&self.injected.stripped_token, kernels.receive(&syn));
        }
        if let Err(problem) = self.enter(key, &syn, is_flood) {
            syn.strip();
            tracing::warn!("{problem}");
            return self.done(&self.injected.failed, kernels.receive(&syn));
        }
        self.receive_with_cookie(key, &syn, kernels);
        if !is_flood {
            self.pending.add(syn);
        }
    }

    /// True if no other connection has the token. In a flood the kernel's list says of
    /// connections soon enough.
    fn claim(&self, token: u32, syn: &Syn, is_flood: bool) -> bool {
        let mut tokens = self.tokens.lock().expect("no thread panics with it");
        let is_free = tokens.is_free(token, &syn.flow, syn.sequence);
        if is_free && !is_flood {
            tokens.claim(token, &syn.flow, syn.sequence);
        }
        is_free
    }

    fn receive_with_cookie(&mut self, key: u64, syn: &Syn, kernels: &Kernels) {
        let record = InjectedSyn { flow: syn.flow, sequence: syn.sequence, key: key.into() };
        let entered = self.injected_syn.set(0, Record(record), 0).map_err(io::Error::other);
        let begun = Instant::now();
        self.done(
            &self.injected.with_cookie,
            entered.and_then(|()| kernels.receive_with_cookie(syn)),
        );
        self.injected.cookies_on.fetch_add(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }

    fn done(&self, count: &AtomicU64, result: io::Result<()>) {
        match result {
            Ok(()) => count.fetch_add(1, Ordering::Relaxed),
            Err(_) => self.injected.failed.fetch_add(1, Ordering::Relaxed),
        };
    }

    /// Says to the programs which key the ACK is to echo. A SYN that is repeated leaves alone
    /// what they have noted; in a flood there is nothing of this flow.
    fn enter(&mut self, key: u64, syn: &Syn, is_flood: bool) -> Result<(), String> {
        if self.known(syn).is_some() {
            return Ok(());
        }
        if is_flood {
            let _ = self.handshakes.remove(&Record(syn.flow));
            return Ok(());
        }
        let value = KeyedHandshake { key: key.into(), sequence: syn.sequence, progress: 0 };
        let entered = self.handshakes.insert(Record(syn.flow), Record(value), 0);
        entered.map_err(|error| format!("cannot enter a handshake: {}", with_causes(&error)))
    }

    /// What the programs have noted of a SYN's handshake.
    fn known(&self, syn: &Syn) -> Option<KeyedHandshake> {
        let Record(known) = self.handshakes.get(&Record(syn.flow), 0).ok()?;
        (known.sequence == syn.sequence).then_some(known)
    }

    /// Has SYN/ACKs repeated whose time has come.
    fn repeat(&mut self, kernels: &mut Kernels) {
        let now = Instant::now();
        while let Some((syn, pause)) = self.pending.take_due(now) {
            let Some(known) = self.known(&syn).filter(|known| known.progress == 0) else {
                continue;
            };
            if self.pending.is_flood() {
                continue;
            }
            self.injected.repeated.fetch_add(1, Ordering::Relaxed);
            self.receive_with_cookie(known.key.get(), &syn, kernels);
            self.pending.schedule(syn, pause + 1, now);
        }
    }
}

/// What the ring has of the time before: the last SYN of each flow, as the kernel would answer
/// two that differ by two handshakes. Without a heartbeat nothing: their clients have repeated
/// them since, or have given up.
fn inherited(syns: &mut RingBuf<MapData>, beats: bool) -> Vec<Vec<u8>> {
    let mut by_flow = HashMap::new();
    while let Some(record) = syns.next() {
        if let Some(syn) = parse(&record).and_then(|(_, packet)| Syn::read(packet)) {
            by_flow.insert(syn.flow, record.to_vec());
        }
    }
    if beats { by_flow.into_values().collect() } else { Vec::new() }
}

/// Key and packet of a record.
fn parse(record: &[u8]) -> Option<(u64, &[u8])> {
    let (header, packet) = HandedSyn::read_from_prefix(record).ok()?;
    Some((header.key.get(), packet.get(..header.bytes as usize)?))
}

/// The program's clock, in ns.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// What the program knows of us.
struct Heart(Array<MapData, Record<records::Injector>>);

impl Heart {
    fn beat(&mut self) -> Result<(), String> {
        self.set(now())
            .map_err(|error| format!("cannot write the heartbeat: {}", with_causes(&error)))
    }

    /// True if the program takes us for alive, or a predecessor.
    fn beats(&self) -> bool {
        self.0.get(&0, 0).is_ok_and(|Record(last)| {
            last.heartbeat != 0 && now().saturating_sub(last.heartbeat) <= HEARTBEAT_MAX
        })
    }

    /// Has the program hand over SYNs for a while yet, to who takes our place.
    fn bequeath(&mut self) {
        let _ = self.set(now() + SUCCESSION.as_nanos() as u64);
    }

    fn stop(&mut self) {
        // Without it the program notices a second later.
        let _ = self.set(0);
    }

    fn set(&mut self, heartbeat: u64) -> Result<(), aya::maps::MapError> {
        let syns_max = RATE * WINDOW_NANOSECONDS / 1_000_000_000;
        self.0.set(0, Record(records::Injector { heartbeat, syns_max }), 0)
    }
}

/// The ways into the kernel.
struct Kernels {
    tun: Tun,
    cookies: File,
    guard: Guard,
}

impl Kernels {
    fn open(config: &Config) -> Result<Kernels, String> {
        let problems = Kernel::read().problems(config);
        if let Some(problem) = problems.iter().find(|problem| problem.is_fatal) {
            return Err(format!("{}: {}", problem.text, problem.cure));
        }
        let cookies = OpenOptions::new().write(true).open(SYN_COOKIES);
        let cookies = cookies.map_err(|error| format!("cannot open {SYN_COOKIES}: {error}"))?;
        let guard = Guard::start();
        let guard = guard.map_err(|error| format!("cannot start the guard: {error}"))?;
        // A predecessor that was killed, with its guard, may have left them on.
        if kernel::syn_cookies() == Some(2) {
            tracing::warn!("tcp_syncookies was 2, and is 1 now");
        }
        cookies.write_at(b"1", 0).map_err(|error| format!("cannot set {SYN_COOKIES}: {error}"))?;
        let tun = Tun::open(DEVICE, DEVICE_MTU).map_err(|error| error.to_string())?;
        for (setting, value) in [
            (format!("ipv4/conf/{DEVICE}/rp_filter"), "0"),
            // No address of its own, and no messages of one.
            (format!("ipv6/conf/{DEVICE}/addr_gen_mode"), "1"),
        ] {
            // A kernel without IPv6 has not both.
            let _ = std::fs::write(format!("/proc/sys/net/{setting}"), value);
        }
        tun.set_up().map_err(|error| error.to_string())?;
        Ok(Kernels { tun, cookies, guard })
    }

    /// Whether all is there still.
    fn check(&mut self) -> Result<(), String> {
        if !self.guard.lives() {
            return Err("the guard of tcp_syncookies has ended".to_string());
        }
        Ok(())
    }

    fn receive(&self, syn: &Syn) -> io::Result<()> {
        self.tun.write(syn.packet())
    }

    fn receive_with_cookie(&self, syn: &Syn) -> io::Result<()> {
        self.cookies.write_at(b"2", 0)?;
        let received = self.receive(syn);
        self.cookies.write_at(b"1", 0)?;
        received
    }
}

/// When, of which flow, of which sequence number, after which of the pauses.
type Due = (Instant, Flow, u32, usize);

/// Handshakes without an answer.
#[derive(Default)]
struct Pending {
    by_flow: HashMap<Flow, Syn>,
    /// By time, the soonest first.
    due: BinaryHeap<Reverse<Due>>,
    /// Those that were not answered for a second.
    silent: usize,
}

impl Pending {
    fn add(&mut self, syn: Syn) {
        let known = self.by_flow.get(&syn.flow);
        if known.is_some_and(|known| known.sequence == syn.sequence) {
            return;
        }
        let first = usize::from(syn.is_timed);
        self.schedule(syn, first, Instant::now());
    }

    /// Not after the last pause.
    fn schedule(&mut self, syn: Syn, pause: usize, now: Instant) {
        let Some(length) = PAUSES.get(pause) else { return };
        self.silent += usize::from(is_silent(pause));
        self.due.push(Reverse((now + *length, syn.flow, syn.sequence, pause)));
        self.by_flow.insert(syn.flow, syn);
    }

    /// True if more handshakes are not answered than losses explain.
    fn is_flood(&self) -> bool {
        self.silent >= SILENT_MAX || self.due.len() >= PENDING_MAX
    }

    fn next_due(&self) -> Option<Instant> {
        self.due.peek().map(|next| next.0.0)
    }

    /// One whose time has come, with the pause that is over.
    fn take_due(&mut self, now: Instant) -> Option<(Syn, usize)> {
        while self.next_due().is_some_and(|due| due <= now) {
            let Reverse((_, flow, sequence, pause)) = self.due.pop()?;
            self.silent -= usize::from(is_silent(pause));
            // The client's port may have another handshake by now.
            if self.by_flow.get(&flow).is_some_and(|syn| syn.sequence == sequence) {
                return self.by_flow.remove(&flow).map(|syn| (syn, pause));
            }
        }
        None
    }
}

/// True of a handshake that was not answered for a second, and waits for the end of this pause.
fn is_silent(pause: usize) -> bool {
    pause > 1
}

fn follow_until(stop: &AtomicBool, tokens: &Mutex<Tokens>, injected: &Injected) {
    let mut next = Instant::now() + TOKENS_INTERVAL;
    let first = kernel::cookies_sent().unwrap_or_default();
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(HEARTBEAT);
        // Ours are read first: what is sent in between is counted next time.
        let ours = injected.with_cookie.load(Ordering::Relaxed);
        let sent = kernel::cookies_sent().unwrap_or(first).saturating_sub(first);
        injected.other_cookies.fetch_max(sent.saturating_sub(ours), Ordering::Relaxed);
        if Instant::now() >= next {
            follow_tokens(tokens, injected);
            next = Instant::now() + TOKENS_INTERVAL;
        }
    }
}

fn follow_tokens(tokens: &Mutex<Tokens>, injected: &Injected) {
    let listed: HashSet<u32> = match sockets::tokens() {
        Ok(listed) => listed,
        Err(error) => {
            tracing::warn!("cannot list connections of Multipath TCP: {error}");
            return;
        }
    };
    let mut tokens = tokens.lock().expect("no thread panics with it");
    tokens.follow(&listed);
    injected.tokens.store(tokens.count() as u64, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each second another thousand that nobody answers.
    #[test]
    fn a_thousand_silent_handshakes_are_a_flood_until_they_are_given_up() {
        let begun = Instant::now();
        let mut pending = Pending::default();
        for number in 0..SILENT_MAX as u32 + 1 {
            pending.schedule(Syn::numbered(number), 1, begun);
        }
        assert!(!pending.is_flood(), "they may be answered yet");
        let mut repeated = 0;
        for seconds in 1..=16 {
            let now = begun + Duration::from_secs(seconds);
            while let Some((syn, pause)) = pending.take_due(now) {
                if !pending.is_flood() {
                    repeated += 1;
                    pending.schedule(syn, pause + 1, now);
                }
            }
            assert_eq!(pending.is_flood(), seconds < 15, "{seconds}");
        }
        assert_eq!((repeated, pending.silent), (4 * SILENT_MAX, 0));
    }
}
