//! Returns frames to the kernel that the filter took by their destination's prefix, but that
//! are to no VIP.
//!
//! ```text
//!  worker ─ copy ─► ring ─► this thread ─► TAP beside the device it came from ─► kernel
//! ```
//!
//! There is one TAP for each interface (`gw-eth1` for eth1), so that firewall rules show where
//! a packet came from. It has the interface's hardware address, or the kernel would take the
//! frames for another host's. Nothing that we send, and nothing for a VIP, ever arrives by a
//! TAP, and it is not one of our devices, so there is no loop. The kernel's answers leave by
//! its own routes, not by the TAP.
//!
//! For such a frame a worker pays a copy, and for a batch one wake-up; a full ring drops and
//! counts (`pass_full`). The thread's low priority leaves the cores to the workers in a flood.
//! If no TAP can be made, frames are dropped (`not_passed`), the log says why, and it is tried
//! again.

mod settings;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use datapath::DropReason;
use nic::wait::{Waiter, Waker};
use nic::{Interface, Tap};
use rtrb::{Consumer, Producer, RingBuffer};
use rustix::fd::OwnedFd;
use wire::{BATCH_MAX, FRAME_BYTES_MAX, Frame};

use crate::dataplane::threads::SLEEP_MAX;
use crate::dataplane::view_publisher::ViewPublisher;

/// The thread's name, as the operating system shows it.
pub const THREAD: &str = "punt";

/// Frames of one worker that may wait: two MiB, touched only when used. A TCP
/// sender's window may come in one burst.
const RING: usize = 1024;

/// How often TAPs are looked after.
const CARE_INTERVAL: Duration = Duration::from_secs(1);

/// Nice value of the thread: a tenth of what a worker gets that needs the same
/// core.
const NICE: i32 = 10;

/// What anybody may know of the TAP beside one device.
#[derive(Debug)]
pub struct Port {
    /// The device's interface.
    pub interface: String,
    open: AtomicBool,
    given: AtomicU64,
    lost: AtomicU64,
    /// The TAP's name, or why there is none.
    state: Mutex<Result<String, String>>,
    /// A copy of its descriptor, for a successor.
    tap: Mutex<Option<OwnedFd>>,
}

impl Port {
    fn new(interface: &Interface) -> Port {
        Port {
            interface: interface.name.clone(),
            open: AtomicBool::new(false),
            given: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            state: Mutex::new(Err("not made yet".to_owned())),
            tap: Mutex::default(),
        }
    }

    /// Frames that the kernel got.
    #[must_use]
    pub fn given(&self) -> u64 {
        self.given.load(Ordering::Relaxed)
    }

    /// Frames that it would not take.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// The TAP's name, or why there is none.
    pub fn state(&self) -> Result<String, String> {
        self.state.lock().expect("no holder of this lock panics").clone()
    }

    /// A copy of the TAP's descriptor.
    #[must_use]
    pub fn tap(&self) -> Option<OwnedFd> {
        self.lock_tap().as_ref()?.try_clone().ok()
    }

    fn lend(&self, tap: Option<&Tap>) {
        *self.lock_tap() = tap.and_then(|tap| tap.copy().ok());
    }

    fn lock_tap(&self) -> std::sync::MutexGuard<'_, Option<OwnedFd>> {
        self.tap.lock().expect("no holder of this lock panics")
    }

    fn enter(&self, state: Result<String, String>) {
        self.open.store(state.is_ok(), Ordering::Release);
        *self.state.lock().expect("no holder of this lock panics") = state;
    }
}

/// A frame on its way back.
struct Passed {
    device: usize,
    bytes: ArrayVec<u8, FRAME_BYTES_MAX>,
}

/// A worker's end.
pub struct Punt {
    ring: Producer<Passed>,
    ports: Arc<[Port]>,
    thread: Waker,
    passed: bool,
}

impl Punt {
    /// Copies a frame from `device` to where it goes back to the kernel from.
    pub fn pass(&mut self, frame: &Frame<'_>, device: usize) -> Result<(), DropReason> {
        if !self.ports.get(device).is_some_and(|port| port.open.load(Ordering::Acquire)) {
            return Err(DropReason::NotPassed);
        }
        if self.ring.is_full() {
            return Err(DropReason::PassFull);
        }
        let mut bytes = ArrayVec::new();
        // A chunk holds no longer ones.
        bytes.try_extend_from_slice(frame.bytes()).map_err(|_| DropReason::FrameTooLong)?;
        let pushed = self.ring.push(Passed { device, bytes });
        assert!(pushed.is_ok(), "there was room, and this is the only producer");
        self.passed = true;
        Ok(())
    }

    /// Wakes the thread, if anything was passed since the last call.
    #[inline]
    pub fn wake(&mut self) {
        if std::mem::take(&mut self.passed) {
            self.thread.wake();
        }
    }
}

/// The thread's side, not running yet.
pub struct Parts {
    rings: Vec<Consumer<Passed>>,
    ports: Arc<[Port]>,
    waiter: Waiter,
    /// A predecessor's, by device.
    taps: Vec<Option<Tap>>,
}

/// For the devices behind these interfaces, in their order; and as many
/// workers. Makes the TAPs that a predecessor has not left (`taps`), as far as
/// that can be done.
pub fn prepare(
    interfaces: &[Interface],
    workers: usize,
    mut taps: Vec<Option<Tap>>,
) -> io::Result<(Vec<Punt>, Parts)> {
    taps.resize_with(interfaces.len(), || None);
    let ports: Arc<[Port]> = interfaces.iter().map(Port::new).collect();
    let waiter = Waiter::new([])?;
    let (mut passers, mut rings) = (Vec::with_capacity(workers), Vec::with_capacity(workers));
    for _ in 0..workers {
        let (ring, end) = RingBuffer::new(RING);
        rings.push(end);
        let (ports, thread) = (Arc::clone(&ports), waiter.waker());
        passers.push(Punt { ring, ports, thread, passed: false });
    }
    Ok((passers, Parts { rings, ports, waiter, taps }))
}

impl Parts {
    /// What anybody may know, in the devices' order.
    #[must_use]
    pub fn ports(&self) -> Arc<[Port]> {
        Arc::clone(&self.ports)
    }

    /// Ends the thread's sleep.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.waiter.waker()
    }

    /// Starts the thread, in the network namespace of the calling one; it ends
    /// when the publisher says stop.
    pub fn start(mut self, publisher: Arc<ViewPublisher>) -> io::Result<JoinHandle<()>> {
        let taps = std::mem::take(&mut self.taps);
        let mut thread = Thread { parts: self, taps, publisher, cared: None };
        // The first plan is answered when they are there.
        thread.care();
        std::thread::Builder::new().name(THREAD.into()).spawn(move || thread.run())
    }
}

struct Thread {
    parts: Parts,
    /// By device.
    taps: Vec<Option<Tap>>,
    publisher: Arc<ViewPublisher>,
    cared: Option<Instant>,
}

impl Thread {
    fn run(mut self) {
        // Zero is the calling thread. Without it all works, only less politely.
        let _ = rustix::process::setpriority_process(None, NICE);
        while !self.publisher.stopped() {
            self.publisher.punt().beat();
            if self.cared.is_none_or(|cared| cared.elapsed() >= CARE_INTERVAL) {
                self.care();
            }
            if !self.round() {
                let timeout = if self.parts.ports.is_empty() { CARE_INTERVAL } else { SLEEP_MAX };
                self.parts.waiter.wait(timeout).expect("polling descriptors that are open");
            }
        }
    }

    /// Makes TAPs that are missing, and keeps the others like their
    /// interfaces.
    fn care(&mut self) {
        for (port, tap) in self.parts.ports.iter().zip(&mut self.taps) {
            let had = tap.as_ref().map(Tap::id);
            let kept = keep(&port.interface, tap);
            if tap.as_ref().map(Tap::id) != had || self.cared.is_none() {
                port.lend(tap.as_ref());
            }
            if let Err(why) = &kept
                && port.state().as_ref() != Err(why)
            {
                tracing::warn!(
                    interface = port.interface, %why,
                    "no TAP: packets to addresses inside VIP prefixes that are no VIP are dropped \
                     (not_passed) instead of going back to the kernel"
                );
            }
            port.enter(kept);
        }
        self.cared = Some(Instant::now());
    }

    /// Hands over what waits, a batch of each worker's; false: nothing did.
    fn round(&mut self) -> bool {
        let mut passed = false;
        for ring in &mut self.parts.rings {
            for _ in 0..BATCH_MAX {
                let Ok(frame) = ring.pop() else { break };
                passed = true;
                give(&self.parts.ports[frame.device], &mut self.taps[frame.device], &frame.bytes);
            }
        }
        passed
    }
}

/// A TAP beside the interface that is like it; its name, or why there is none.
fn keep(interface: &str, tap: &mut Option<Tap>) -> Result<String, String> {
    let interface = Interface::find(interface).map_err(|error| error.to_string())?;
    if let Some(open) = tap
        && let Err(error) = open.be_like(&interface)
    {
        tracing::warn!(tap = open.name(), %error, "making the TAP anew");
        *tap = None;
    }
    if tap.is_none() {
        *tap = Some(make(&interface).map_err(|error| error.to_string())?);
    }
    Ok(Tap::name_for(&interface))
}

fn make(interface: &Interface) -> Result<Tap, nic::TapError> {
    let tap = Tap::open(interface)?;
    for problem in settings::adopt(tap.name(), &interface.name) {
        tracing::warn!(
            tap = tap.name(), %problem,
            "the kernel may drop what is given back to it by this TAP"
        );
    }
    tap.set_up()?;
    tracing::info!(tap = tap.name(), interface = interface.name, "TAP made");
    Ok(tap)
}

fn give(port: &Port, tap: &mut Option<Tap>, frame: &[u8]) {
    let given = tap.as_ref().is_some_and(|tap| tap.give(frame).is_ok());
    let counter = if given { &port.given } else { &port.lost };
    counter.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use wire::{CHUNK_BYTES, MacAddress};

    use super::*;

    fn punt(open: bool) -> (Punt, Parts) {
        let mac = MacAddress([2; 6]);
        let interface =
            Interface { name: "eth1".into(), index: 7, mac, mtu: 1500, rx_queues: 1, up: true };
        let (mut passers, parts) = prepare(&[interface], 1, Vec::new()).unwrap();
        if open {
            parts.ports[0].enter(Ok("gw-eth1".into()));
        }
        (passers.remove(0), parts)
    }

    fn pass(punt: &mut Punt, device: usize) -> Result<(), DropReason> {
        let mut chunk = [0; CHUNK_BYTES];
        punt.pass(&Frame::copy_of(&mut chunk, &[7; 60]).unwrap(), device)
    }

    #[test]
    fn without_a_tap_nothing_is_passed() {
        let (mut closed, _parts) = punt(false);
        assert_eq!(pass(&mut closed, 0), Err(DropReason::NotPassed));
        let (mut open, _parts) = punt(true);
        assert_eq!(pass(&mut open, 1), Err(DropReason::NotPassed), "a device that has none");
    }

    #[test]
    fn a_full_ring_takes_no_more_and_what_is_in_it_is_whole() {
        let (mut punt, mut parts) = punt(true);
        for _ in 0..RING {
            assert_eq!(pass(&mut punt, 0), Ok(()));
        }
        assert_eq!(pass(&mut punt, 0), Err(DropReason::PassFull));
        let first = parts.rings[0].pop().unwrap();
        assert_eq!((first.device, &first.bytes[..]), (0, &[7; 60][..]));
        assert_eq!(pass(&mut punt, 0), Ok(()));
    }
}
