//! Next hops: how frames reach each backend, according to the kernel's routes and neighbours.
//! Used by the forwarder, and by agents among themselves.
//!
//! ```text
//!  set(backends, devices) ─► routes.rs (lookup) ─► neighbours.rs (managed) ─┐
//!  netlink multicast ─► links, neighbours, "routes changed" ────────────────┴► resolve.rs ─► Snapshot
//! ```
//!
//! Only our frames go to the next hops, and they bypass the kernel, so the kernel would never
//! resolve them by itself: each is entered as a *managed* neighbour (`ip neigh … managed`),
//! which the kernel keeps resolved without traffic.
//!
//! Guarantees: a [`Snapshot`] is complete and immutable; every wanted backend is in it,
//! resolved or with the reason why not; our entries are removed when we end. One thread does
//! all of it; workers see only tables made from snapshots.

mod follow;
pub mod links;
mod neighbours;
mod resolve;
pub mod routes;
pub mod socket;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::watch;

pub use links::Link;

/// A hardware address.
pub type Mac = [u8; 6];

/// What is wanted: the whole of it, each time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Backends, by address.
    pub backends: Vec<IpAddr>,
    /// Kernel indices of the interfaces that the forwarder owns. The position
    /// in this list is [`NextHop::device`].
    pub devices: Vec<u32>,
    /// A default route's own MTU is for what it leads to beyond the fabric: the
    /// interface's counts for backends that it leads to.
    pub ignores_default_mtu: bool,
}

/// One next hop of a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextHop {
    /// The device to send by: a position in [`Wanted::devices`].
    pub device: u32,
    /// The device's own address.
    pub source: Mac,
    /// The next hop's address.
    pub destination: Mac,
    /// Largest IP packet that this next hop carries: the link's MTU, or the
    /// route's where it is smaller.
    pub mtu: u32,
    /// Share among the next hops of a multipath route; at least 1.
    pub weight: u16,
    /// The backend is on the link, and reached through no gateway.
    pub is_backend: bool,
}

/// Why nothing can be sent to a backend.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unresolved {
    /// The kernel has no route.
    #[error("no route")]
    NoRoute,
    /// A route that says so.
    #[error("the route is {0}")]
    Refused(&'static str),
    /// The backend's address is one of this machine.
    #[error("the address is this machine's own")]
    Local,
    /// The route leaves by an interface that the plan does not list.
    #[error("the route leaves by {0}, which is none of the forwarder's interfaces")]
    NotOurs(String),
    /// The interface is down.
    #[error("{0} is down")]
    LinkDown(String),
    /// The neighbour does not answer, or has not yet.
    #[error("neighbour {address} on {interface} is {state}")]
    Neighbour {
        /// The gateway, or the backend itself.
        address: IpAddr,
        /// Where it should be.
        interface: String,
        /// The kernel's word: incomplete, failed, ...
        state: &'static str,
    },
    /// The kernel refused.
    #[error("{0}")]
    Kernel(String),
}

/// The state of every wanted backend at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// At least one next hop, or the reason.
    pub backends: BTreeMap<IpAddr, Result<Vec<NextHop>, Unresolved>>,
    /// The owned interfaces that exist, by kernel index.
    pub links: BTreeMap<u32, Link>,
}

/// The kernel indices of the links that are up, as of their last change: read
/// without a lock.
pub type LinksUp = Arc<ArcSwap<BTreeSet<u32>>>;

/// When the thread last went round its loop, in milliseconds of the monotonic clock.
/// It goes round at least four times a second; a round itself takes time in proportion
/// to the backends.
pub type LastRound = Arc<AtomicU64>;

/// The thread's name, as the operating system shows it.
pub const THREAD: &str = "next-hops";

/// Without a round for this long the thread hangs.
const HANGS_AFTER_MS: u64 = 5000;

/// Between two looks whether the thread has ended.
const END_PAUSE: Duration = Duration::from_millis(1);

/// Follows the kernel in a thread of its own, which ends with this value.
#[derive(Debug)]
pub struct NextHops {
    commands: Arc<Mailbox>,
    snapshots: watch::Receiver<Arc<Snapshot>>,
    links_up: LinksUp,
    last_round: LastRound,
    thread: Option<JoinHandle<()>>,
}

impl NextHops {
    /// Starts following, in the network namespace of the calling thread.
    pub fn start() -> io::Result<NextHops> {
        let commands = Arc::new(Mailbox::new()?);
        let (publish, snapshots) = watch::channel(Arc::new(Snapshot::default()));
        let links_up = LinksUp::default();
        let mut follower =
            follow::Follower::new(Arc::clone(&commands), publish, Arc::clone(&links_up))?;
        let last_round = follower.last_round();
        let thread =
            std::thread::Builder::new().name(THREAD.into()).spawn(move || follower.run())?;
        Ok(NextHops { commands, snapshots, links_up, last_round, thread: Some(thread) })
    }

    /// Replaces what is wanted.
    pub fn set(&self, wanted: Wanted) {
        self.commands.post(Command::Set(wanted));
    }

    /// The links that are up, now and later.
    #[must_use]
    pub fn links_up(&self) -> LinksUp {
        Arc::clone(&self.links_up)
    }

    /// When the thread went round, now and later.
    #[must_use]
    pub fn last_round(&self) -> LastRound {
        Arc::clone(&self.last_round)
    }

    /// The latest snapshot, and news of later ones.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.snapshots.clone()
    }
}

impl Drop for NextHops {
    fn drop(&mut self) {
        self.commands.post(Command::Stop);
        let Some(thread) = self.thread.take() else { return };
        while !thread.is_finished() {
            // A process that is to end does not wait for it.
            let age_ms = monotonic_ms().saturating_sub(self.last_round.load(Ordering::Relaxed));
            if age_ms > HANGS_AFTER_MS {
                return tracing::error!(thread = THREAD, "it hangs and is left behind");
            }
            std::thread::sleep(END_PAUSE);
        }
        // A panic of the follower has been reported by its own thread.
        let _ = thread.join();
    }
}

#[derive(Debug)]
enum Command {
    Set(Wanted),
    Stop,
}

/// Room for the latest command, with a file descriptor to wait on beside the
/// netlink socket.
#[derive(Debug)]
struct Mailbox {
    latest: Mutex<Option<Command>>,
    event: OwnedFd,
}

impl Mailbox {
    fn new() -> io::Result<Mailbox> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Mailbox { latest: Mutex::new(None), event })
    }

    /// A later command replaces an earlier one that was not taken yet: only
    /// the whole of the latest counts, and nothing follows Stop.
    fn post(&self, command: Command) {
        *self.latest.lock().expect("no holder of this lock panics") = Some(command);
        // Full (EAGAIN) means that a wake-up is pending already.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    fn take(&self) -> Option<Command> {
        let mut count = [0u8; 8];
        // Empty (EAGAIN) means that no message came.
        let _ = rustix::io::read(&self.event, &mut count);
        self.latest.lock().expect("no holder of this lock panics").take()
    }
}

fn monotonic_ms() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}
