//! Sends the controller's health checks through the tunnels.
//!
//! ```text
//!  controller's socket ─ mark ─► kernel ─► gw-probe (TUN) ─► this thread ─► packet socket ─► backend
//!        ▲                                                                                     │
//!        └───────────────────── kernel ◄──────── from the VIP to our address ──────────────────┘
//! ```
//!
//! A probe should meet the same conditions as a client's packet: outer headers, next hop and
//! MAC are made by the same code from the same View. Only the backend is not selected but given
//! by the source port, which the plan assigns. Packets that are not probes are dropped and
//! counted; nothing from the network ever gets here.
//!
//! The thread runs while the plan has probes. Clients' packets do not need it, and it shares
//! only the View with the threads that they need.

mod encapsulate;
mod settings;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use datapath::{FlowHash, View};
use nic::wait::Waiter;
use nic::{LinkSender, Tun};
use rustix::fd::OwnedFd;
use wire::{BATCH_MAX, CHUNK_BYTES, HEADROOM_BYTES, ethernet};

use crate::dataplane::threads::{Heartbeat, SLEEP_MAX};
use crate::netlink::probe_routes::{ProbeRoutes, Settings};
pub use encapsulate::Unsent;
use encapsulate::encapsulate;

/// The thread's name, as the operating system shows it.
pub const THREAD: &str = "probes";

/// Between two looks whether the thread has ended.
const END_PAUSE: Duration = Duration::from_millis(1);

/// The device's name.
pub const DEVICE: &str = "gw-probe";

/// How often the device and its routes are looked after.
const CARE_INTERVAL: Duration = Duration::from_secs(1);

/// Without a round for this long the thread hangs: what it does besides waiting takes
/// milliseconds.
const HANGS_AFTER: Duration = Duration::from_secs(1);

/// What probes are sent by.
pub struct Sending {
    /// Plan, tunnels and next hops.
    pub view: Arc<View>,
    /// The flow hash of traffic.
    pub hash: FlowHash,
    /// The kernel's numbers for the interfaces behind the devices, in their
    /// order.
    pub interfaces: Vec<u32>,
}

impl Sending {
    fn settings(&self) -> Option<Settings> {
        let plan = &self.view.plan;
        let ports = plan.probing.as_ref()?.ports;
        let source_v4 = plan.source_v4.map(Ipv4Addr::from_bits);
        let source_v6 = plan.source_v6.map(Ipv6Addr::from_bits);
        Some(Settings { source_v4, source_v6, ports })
    }
}

/// The probes' thread and device, while the plan has probes.
#[derive(Default)]
pub struct Probing {
    shared: Arc<Shared>,
    thread: Mutex<Option<Running>>,
}

/// The thread, and what ends it: its own, so that one that hangs can be left behind.
struct Running {
    handle: JoinHandle<()>,
    stop: Arc<AtomicBool>,
}

/// Between the thread and who posts what to send by.
#[derive(Default)]
struct Shared {
    sending: ArcSwapOption<Sending>,
    heartbeat: Heartbeat,
    sent: AtomicU64,
    unsent: [AtomicU64; Unsent::ALL.len()],
    device: Mutex<Device>,
}

#[derive(Default)]
struct Device {
    tun: Option<Arc<Tun>>,
    routes: ProbeRoutes,
    /// Not empty: why probes do not get here, or their answers back.
    problem: String,
    /// Nothing is left of it, neither of an earlier process's.
    is_removed: bool,
}

impl Probing {
    /// Sends by this from now on; when it returns, the device is there, or it is
    /// known why not ([`Probing::problem`]). Without probes in the plan there is
    /// none.
    pub fn set(&self, sending: Sending) {
        if sending.view.plan.probing.is_none() {
            self.end();
            return self.shared.lock().remove();
        }
        self.shared.sending.store(Some(Arc::new(sending)));
        self.shared.care();
        let mut thread = self.lock_thread();
        if thread.is_none() {
            match Running::start(&self.shared) {
                Ok(started) => *thread = Some(started),
                Err(error) => self.shared.lock().problem = format!("no thread: {error}"),
            }
        }
    }

    /// Ends the thread. The device goes; the rules stay, so that no probe goes to
    /// a VIP by another way.
    pub fn end(&self) {
        let has_ended = match self.lock_thread().take() {
            Some(thread) => thread.end(&self.shared.heartbeat),
            None => true,
        };
        if let (false, Some(tun)) = (has_ended, &self.shared.lock().tun) {
            // It has the device open: probes would go there, and nowhere.
            let set_down = tun.set_down();
            set_down.unwrap_or_else(|error| tracing::error!(%error, "health checks get lost"));
        }
        self.shared.sending.store(None);
        self.shared.lock().tun = None;
    }

    /// Goes on with a predecessor's device.
    pub fn inherit(&self, tun: OwnedFd) {
        self.shared.lock().tun = Some(Arc::new(Tun::inherit(tun, DEVICE)));
    }

    /// A copy of the device's descriptor, for a successor.
    #[must_use]
    pub fn device(&self) -> Option<OwnedFd> {
        self.shared.lock().tun.as_ref()?.copy().ok()
    }

    /// When the thread went round its loop.
    #[must_use]
    pub fn heartbeat(&self) -> Heartbeat {
        self.shared.heartbeat.clone()
    }

    /// Why probes cannot be sent, or their answers not come; None: they can, or
    /// the plan has none.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        if let Some(age) = self.shared.heartbeat.age().filter(|age| *age > HANGS_AFTER) {
            // It may hold the lock below.
            return Some(format!(
                "the forwarder's thread `{THREAD}` hangs, no heartbeat for {} s: `systemctl reload guideway-forwarder` has a new process take over",
                age.as_secs()
            ));
        }
        Some(self.shared.lock().problem.clone()).filter(|problem| !problem.is_empty())
    }

    /// Whether the plan has probes.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.shared.sending.load().is_some()
    }

    /// Packets by what became of them: sent, or why not.
    #[must_use]
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let unsent = Unsent::ALL.iter().zip(&self.shared.unsent);
        let unsent = unsent.map(|(reason, counter)| (reason.name(), count(counter)));
        std::iter::once(("sent", count(&self.shared.sent))).chain(unsent).collect()
    }

    fn lock_thread(&self) -> MutexGuard<'_, Option<Running>> {
        self.thread.lock().expect("no holder of this lock panics")
    }
}

impl Running {
    fn start(shared: &Arc<Shared>) -> io::Result<Running> {
        let stop = Arc::new(AtomicBool::new(false));
        shared.heartbeat.beat();
        let (shared, stopped) = (Arc::clone(shared), Arc::clone(&stop));
        let spawned = std::thread::Builder::new().name(THREAD.into());
        Ok(Running { handle: spawned.spawn(move || run(shared, &stopped))?, stop })
    }

    /// Ends it. One that hangs ends by itself, if ever it goes on: neither a change
    /// of plan nor the process's end waits for it. False: it hangs.
    fn end(self, heartbeat: &Heartbeat) -> bool {
        self.stop.store(true, Ordering::Relaxed);
        while !self.handle.is_finished() {
            if heartbeat.age().is_some_and(|age| age > HANGS_AFTER) {
                tracing::error!(thread = THREAD, "it hangs and is left behind");
                break;
            }
            std::thread::sleep(END_PAUSE);
        }
        heartbeat.end();
        self.handle.is_finished()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Device> {
        self.device.lock().expect("no holder of this lock panics")
    }

    /// Makes the device and its routes, as far as they are missing.
    fn care(&self) {
        let sending = self.sending.load();
        let settings = sending.as_ref().and_then(|sending| sending.settings());
        if let Some(settings) = settings {
            self.lock().keep(&settings);
        }
    }

    fn count(&self, result: Result<(), Unsent>) {
        let counter = match result {
            Ok(()) => &self.sent,
            Err(reason) => &self.unsent[reason as usize],
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

impl Device {
    fn keep(&mut self, settings: &Settings) {
        self.is_removed = false;
        let problem = self.make(settings).err().unwrap_or_default();
        if !problem.is_empty() && problem != self.problem {
            tracing::warn!(%problem, "health checks through the tunnel cannot be sent");
        }
        self.problem = problem;
    }

    fn make(&mut self, settings: &Settings) -> Result<(), String> {
        if self.tun.as_ref().is_some_and(|tun| !tun.is_up()) {
            tracing::warn!(device = DEVICE, "it is gone or down: making it anew");
            self.tun = None;
        }
        if self.tun.is_none() {
            self.tun = Some(Arc::new(settings::make(DEVICE).map_err(|error| error.to_string())?));
            tracing::info!(device = DEVICE, "device for health checks through the tunnel made");
        }
        let interface = nic::Interface::find(DEVICE).map_err(|error| error.to_string())?;
        let kept = self.routes.keep(settings, interface.index);
        kept.map_err(|error| format!("the routing rules of {DEVICE} cannot be made: {error}"))
    }

    fn remove(&mut self) {
        if !self.is_removed {
            self.routes.remove();
        }
        *self = Device { is_removed: true, ..Device::default() };
    }
}

/// The thread.
fn run(shared: Arc<Shared>, stop: &AtomicBool) {
    let mut senders = Senders::default();
    let mut chunk = [0; CHUNK_BYTES];
    while !stop.load(Ordering::Relaxed) {
        let tun = shared.lock().tun.clone();
        let fds = tun.iter().map(|tun| tun.fd());
        let mut waiter = Waiter::new(fds).expect("a descriptor more");
        let begun = Instant::now();
        while begun.elapsed() < CARE_INTERVAL && !stop.load(Ordering::Relaxed) {
            shared.heartbeat.beat();
            let sent = tun.as_ref().map(|tun| round(&shared, tun, &mut senders, &mut chunk));
            match sent {
                Some(Ok(true)) => {}
                Some(Ok(false)) => {
                    waiter.wait(SLEEP_MAX).expect("polling descriptors that are open");
                }
                // Another thread made one: what the kernel hands to it waits for us.
                None if shared.lock().tun.is_some() => break,
                None => std::thread::sleep(SLEEP_MAX),
                // Another program removed the device.
                Some(Err(_)) => break,
            }
        }
        drop(tun);
        shared.care();
    }
}

/// Sends what waits, a batch at most; false: nothing did.
fn round(
    shared: &Shared,
    tun: &Tun,
    senders: &mut Senders,
    chunk: &mut [u8; CHUNK_BYTES],
) -> io::Result<bool> {
    const PACKET: usize = HEADROOM_BYTES + ethernet::HEADER_BYTES;
    for at in 0..BATCH_MAX {
        let bytes = match tun.read(&mut chunk[PACKET..]) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(at > 0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let Some(sending) = shared.sending.load_full() else { return Ok(false) };
        shared.count(send(&sending, senders, &mut chunk[..PACKET + bytes]));
    }
    Ok(true)
}

fn send(sending: &Sending, senders: &mut Senders, chunk: &mut [u8]) -> Result<(), Unsent> {
    let (frame, device) = encapsulate(&sending.view, &sending.hash, chunk)?;
    let interface = sending.interfaces.get(usize::from(device.0)).ok_or(Unsent::Failed)?;
    senders.send(*interface, frame.bytes()).map_err(|_| Unsent::Failed)
}

/// A packet socket for each interface that probes left by.
#[derive(Default)]
struct Senders(BTreeMap<u32, LinkSender>);

impl Senders {
    fn send(&mut self, interface: u32, frame: &[u8]) -> io::Result<()> {
        match self.0.entry(interface) {
            Entry::Occupied(open) => open.into_mut(),
            Entry::Vacant(missing) => missing.insert(LinkSender::open(interface)?),
        }
        .send(frame)
    }
}
