//! Path MTUs: what routers between us and the backends say is the longest
//! packet that fits (RFC 1191, RFC 8201).
//!
//! ```text
//!  router ─ "too big", quoting our outer header ─► raw ICMP sockets ─► Book ─► PathMtuTable ─► egress
//! ```
//!
//! Our packets bypass the kernel, so it cannot match such errors to a socket
//! of its own: we read them beside it, those alone that report an MTU (a filter
//! in the kernel sees to that). What is accepted is bounded, because errors are
//! easily forged: it must quote a tunnel packet from our address to one of the
//! plan's tunnel targets with what only holders of the cluster's key know
//! (`datapath::quoted`), and too many that do not end learning for a while; it
//! lowers an MTU to the floor at most; it is forgotten after [`LIFETIME`]; and
//! a flood costs a bounded share of one thread ([`REST`]). Workers see only
//! tables made from the whole.

mod book;

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::num::NonZero;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nic::wait::{Waiter, Waker};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_recv_buffer_size_force};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, recv, socket_with};
use tokio::sync::watch;
use wire::Family;

use book::Book;
pub use book::{LIFETIME, Wanted};

/// The longest packet that fits, by tunnel target, where it is known to be
/// less than the link's.
pub type PathMtuTable = BTreeMap<IpAddr, u16>;

/// Between two looks at the sockets: what comes meanwhile waits, and beyond
/// the sockets' buffers the kernel drops it.
const REST: Duration = Duration::from_millis(100);

/// Errors read at one look: no more than this of each family, ten times a
/// second. Each costs about two microseconds.
const ERRORS_MAX: usize = 1000;

/// What may wait meanwhile: as many errors as are read at one look, with what
/// the kernel needs to hold each.
const WAITING_BYTES: usize = 2 << 20;

/// How often what was learnt is looked through for what has expired.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(1);

/// Longer than any error that routers send (RFC 1812: 576 bytes; ICMPv6: 1280).
const ERROR_BYTES: usize = 2048;

/// Learns in a thread of its own, which ends with this value.
#[derive(Debug)]
pub struct PathMtus {
    book: Arc<Mutex<Shared>>,
    tables: watch::Receiver<Arc<PathMtuTable>>,
    waker: Option<Waker>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    book: Book,
    stop: bool,
}

/// Errors that reported an MTU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Heard {
    /// About our tunnels.
    pub believed: u64,
    /// About something else, or forged.
    pub ignored: u64,
    /// Of these, about a tunnel packet of ours but for its identification or
    /// flow label.
    pub mismatched: u64,
}

/// Errors about a tunnel target with a wrong identification or flow label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mismatched {
    /// The backend, peer or spill.
    pub target: IpAddr,
    /// How many came within [`LIFETIME`].
    pub count: u32,
    /// Nothing is learned about it for the time being.
    pub paused: bool,
}

impl PathMtus {
    /// Starts learning, in the network namespace of the calling thread.
    /// Without the right to open raw sockets (`CAP_NET_RAW`) nothing is ever
    /// learnt: the log says so.
    pub fn start() -> io::Result<PathMtus> {
        let book = Arc::new(Mutex::new(Shared::default()));
        let (publish, tables) = watch::channel(Arc::default());
        let sockets: Vec<(Family, OwnedFd)> =
            [Family::V4, Family::V6].into_iter().filter_map(open).collect();
        if sockets.is_empty() {
            return Ok(PathMtus { book, tables, waker: None, thread: None });
        }
        let waiter = Waiter::new(sockets.iter().map(|(_, socket)| socket.as_raw_fd()))?;
        let waker = waiter.waker();
        let listener = Listener { sockets, waiter, book: Arc::clone(&book), publish };
        let thread =
            std::thread::Builder::new().name("path-mtu".into()).spawn(move || listener.run())?;
        Ok(PathMtus { book, tables, waker: Some(waker), thread: Some(thread) })
    }

    /// Replaces the targets about which errors are accepted. What was learnt about targets
    /// that stay is kept.
    pub fn set(&self, wanted: Wanted) {
        lock(&self.book).book.set(wanted);
    }

    /// Takes over what a predecessor learnt about targets that are wanted.
    pub fn inherit(&self, table: &PathMtuTable) {
        lock(&self.book).book.inherit(table, Instant::now());
        self.waker.iter().for_each(Waker::wake);
    }

    /// The latest table, and news of later ones.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Arc<PathMtuTable>> {
        self.tables.clone()
    }

    /// Targets about which forged errors came.
    #[must_use]
    pub fn mismatched(&self) -> Vec<Mismatched> {
        lock(&self.book).book.mismatched(Instant::now()).collect()
    }

    /// Errors so far.
    #[must_use]
    pub fn heard(&self) -> Heard {
        lock(&self.book).book.heard
    }
}

impl Drop for PathMtus {
    fn drop(&mut self) {
        lock(&self.book).stop = true;
        self.waker.iter().for_each(Waker::wake);
        if let Some(thread) = self.thread.take() {
            // A panic has been reported by its own thread.
            let _ = thread.join();
        }
    }
}

fn lock(book: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    book.lock().expect("no holder of this lock panics")
}

/// A raw socket that gets a copy of every ICMP message to this machine.
fn open(family: Family) -> Option<(Family, OwnedFd)> {
    let (domain, protocol) = match family {
        Family::V4 => (AddressFamily::INET, wire::Protocol::ICMP),
        Family::V6 => (AddressFamily::INET6, wire::Protocol::ICMPV6),
    };
    let protocol =
        Protocol::from_raw(NonZero::new(u32::from(protocol.0)).expect("neither is zero"));
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    match socket_with(domain, SocketType::RAW, flags, Some(protocol)) {
        Ok(socket) => {
            narrow(family, &socket);
            Some((family, socket))
        }
        Err(error) => {
            tracing::warn!(%error, ?family, "no raw ICMP socket (it needs CAP_NET_RAW): path MTUs are not learnt");
            None
        }
    }
}

/// Has the kernel drop what reports no MTU, and hold more of what does.
/// Without either the errors are still read, but may be lost in a flood.
fn narrow(family: Family, socket: &OwnedFd) {
    if let Err(error) = nic::too_big::attach(socket.as_fd(), family) {
        tracing::warn!(%error, ?family, "the raw ICMP socket has no filter: a flood of other messages hides errors about path MTUs");
    }
    // Beyond the machine's limit only with CAP_NET_ADMIN.
    let held = set_socket_recv_buffer_size_force(socket, WAITING_BYTES)
        .or_else(|_| set_socket_recv_buffer_size(socket, WAITING_BYTES));
    if let Err(error) = held {
        tracing::warn!(%error, ?family, "the raw ICMP socket keeps its small buffer: floods hide errors about path MTUs");
    }
}

struct Listener {
    sockets: Vec<(Family, OwnedFd)>,
    waiter: Waiter,
    book: Arc<Mutex<Shared>>,
    publish: watch::Sender<Arc<PathMtuTable>>,
}

impl Listener {
    fn run(mut self) {
        loop {
            self.waiter.wait(EXPIRY_INTERVAL).expect("polling descriptors that are open");
            let mut shared = lock(&self.book);
            if shared.stop {
                return;
            }
            let mut read = false;
            for (family, socket) in &self.sockets {
                read |= listen(*family, socket, &mut shared.book);
            }
            shared.book.expire(Instant::now());
            let table = shared.book.table();
            drop(shared);
            self.publish.send_if_modified(|latest| {
                let changed = **latest != table;
                if changed {
                    *latest = Arc::new(table);
                }
                changed
            });
            if read {
                self.rest();
            }
        }
    }

    /// Only the end cuts a rest short.
    fn rest(&self) {
        let until = Instant::now() + REST;
        while Instant::now() < until && !lock(&self.book).stop {
            std::thread::sleep(REST / 10);
        }
    }
}

/// Reads the errors that wait; true if anything did.
fn listen(family: Family, socket: &OwnedFd, book: &mut Book) -> bool {
    let mut bytes = [0; ERROR_BYTES];
    for read in 0..ERRORS_MAX {
        // Nothing more there (EAGAIN), or an error that the next look clears.
        let Ok((length, _)) = recv(socket, &mut bytes, RecvFlags::empty()) else { return read > 0 };
        if let Some(message) = message(family, &bytes[..length]) {
            book.note(family, message, Instant::now());
        }
    }
    true
}

/// The ICMP message of what a raw socket reads: over IPv4 the IP header comes
/// with it, and the checksum is not looked at by the kernel.
fn message(family: Family, read: &[u8]) -> Option<&[u8]> {
    if family == Family::V6 {
        return Some(read);
    }
    let header_bytes = usize::from(read.first()? & 0x0f) * 4;
    read.get(header_bytes..).filter(|message| wire::checksum::is_valid(message))
}
