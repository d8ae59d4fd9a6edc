//! One AF_XDP socket: made, bound to a queue of an interface, its rings
//! mapped.
//!
//! All sockets of a worker share its packet memory (XDP_SHARED_UMEM): the
//! first registers it, the others refer to the first. Each has fill and
//! completion rings of its own, because each is on another queue.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use libc::{c_int, sockaddr_xdp, xdp_mmap_offsets, xdp_statistics, xdp_umem_reg};
use wire::CHUNK_BYTES;

use super::ring::{CompletionRing, FillRing, RxRing, TxRing};
use crate::device::{KernelCounters, QueueCounters};
use crate::memory::Memory;

/// How many frames one system call may send in copy mode (Linux 6.18). The
/// headers of older systems lack it. Without it the budget is 32.
const XDP_MAX_TX_SKB_BUDGET: c_int = 9;

/// Options of busy polling that libc lacks.
const SO_PREFER_BUSY_POLL: c_int = 69;
const SO_BUSY_POLL_BUDGET: c_int = 70;

/// Frames on their way through the kernel count against the socket's send
/// buffer, each with the size of its skb; the default holds about a hundred.
const SEND_BUFFER_BYTES: c_int = 32 << 20;

/// After a socket of the queue was closed, by us or by a predecessor, the
/// kernel frees the queue some milliseconds later.
const BIND_TRIES: u32 = 50;
const BIND_PAUSE: Duration = Duration::from_millis(20);

/// A worker's packet memory as its sockets share it.
pub struct Umem {
    memory: &'static Memory,
    first: Option<Arc<OwnedFd>>,
    zero_copy: bool,
}

impl Umem {
    /// Memory that no socket has registered yet.
    #[must_use]
    pub fn new(memory: &'static Memory) -> Umem {
        Umem { memory, first: None, zero_copy: false }
    }

    /// Whether the first socket has zero-copy: then all must have it.
    pub(super) fn is_zero_copy(&self) -> bool {
        self.zero_copy
    }
}

/// What to bind to, and how.
pub(super) struct Binding {
    pub(super) interface_index: u32,
    pub(super) queue: u32,
    pub(super) ring_entries: u32,
    pub(super) copy: bool,
    pub(super) busy_poll: bool,
}

/// A bound socket and its rings.
pub(super) struct Socket {
    pub(super) fd: Arc<OwnedFd>,
    pub(super) fill: FillRing,
    pub(super) rx: RxRing,
    pub(super) tx: TxRing,
    pub(super) completion: CompletionRing,
    pub(super) zero_copy: bool,
    /// Why the driver did not grant zero-copy, where it was asked for it.
    pub(super) refusal: Option<io::Error>,
}

impl Socket {
    /// Makes a socket on the memory and binds it. The error names the step.
    pub(super) fn open(umem: &mut Umem, binding: &Binding) -> io::Result<Socket> {
        let fd = new_socket()?;
        if umem.first.is_none() {
            register(&fd, umem.memory)?;
        }
        for ring in [
            libc::XDP_UMEM_FILL_RING,
            libc::XDP_UMEM_COMPLETION_RING,
            libc::XDP_RX_RING,
            libc::XDP_TX_RING,
        ] {
            set_option(&fd, ring, &binding.ring_entries).map_err(step("cannot make a ring"))?;
        }
        // SAFETY: the rings were just made with that number of entries.
        let rings = unsafe { Rings::map(&fd, binding.ring_entries) }?;
        widen(&fd, binding)?;
        let refusal = bind(&fd, umem, binding).map_err(step("bind"))?;
        let socket = Socket { refusal, ..Socket::of(fd, rings)? };
        umem.zero_copy = socket.zero_copy;
        umem.first.get_or_insert_with(|| Arc::clone(&socket.fd));
        Ok(socket)
    }

    /// The socket of a predecessor, bound and in use, with rings of `entries`
    /// entries. What is in them may be looked at when the predecessor has
    /// stopped.
    ///
    /// # Safety
    /// The rings must have been made with `entries` entries.
    pub(super) unsafe fn inherit(fd: OwnedFd, entries: u32) -> io::Result<Socket> {
        // SAFETY: the caller's promise.
        let rings = unsafe { Rings::map(&fd, entries) }.map_err(|error| match error.raw_os_error() {
            Some(libc::EBUSY) => step("this kernel does not let a second process map the rings of a socket in use (Linux 6.4 does)")(error),
            _ => step("mapping the rings")(error),
        })?;
        Socket::of(fd, rings)
    }

    fn of(fd: OwnedFd, rings: Rings) -> io::Result<Socket> {
        let options: libc::xdp_options = option(&fd, libc::XDP_OPTIONS)?;
        let zero_copy = options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0;
        let Rings { fill, rx, tx, completion } = rings;
        Ok(Socket { fd: Arc::new(fd), fill, rx, tx, completion, zero_copy, refusal: None })
    }
}

struct Rings {
    fill: FillRing,
    rx: RxRing,
    tx: TxRing,
    completion: CompletionRing,
}

impl Rings {
    /// # Safety
    /// The socket's rings must have been made with `entries` entries.
    unsafe fn map(fd: &OwnedFd, entries: u32) -> io::Result<Rings> {
        let layout: xdp_mmap_offsets =
            option(fd, libc::XDP_MMAP_OFFSETS).map_err(step("XDP_MMAP_OFFSETS"))?;
        let socket = fd.as_fd();
        let (fill, completion) =
            (libc::XDP_UMEM_PGOFF_FILL_RING, libc::XDP_UMEM_PGOFF_COMPLETION_RING);
        // SAFETY: the layout is what the kernel just returned for each of the
        // rings; the entries are the caller's promise.
        unsafe {
            Ok(Rings {
                fill: FillRing::map(socket, fill as libc::off_t, &layout.fr, entries)?,
                completion: CompletionRing::map(
                    socket,
                    completion as libc::off_t,
                    &layout.cr,
                    entries,
                )?,
                rx: RxRing::map(socket, libc::XDP_PGOFF_RX_RING, &layout.rx, entries)?,
                tx: TxRing::map(socket, libc::XDP_PGOFF_TX_RING, &layout.tx, entries)?,
            })
        }
    }
}

fn new_socket() -> io::Result<OwnedFd> {
    // SAFETY: a call without pointers; the result is checked.
    let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        let error = io::Error::last_os_error();
        return Err(match error.raw_os_error() {
            Some(libc::EPERM) => step("AF_XDP needs CAP_NET_RAW")(error),
            Some(libc::EAFNOSUPPORT) => {
                step("this kernel has no AF_XDP (CONFIG_XDP_SOCKETS)")(error)
            }
            _ => step("socket")(error),
        });
    }
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Registers the memory with the kernel. It keeps 256 bytes of each chunk free in
/// front of a frame by itself (XDP_PACKET_HEADROOM): our headroom.
fn register(fd: &OwnedFd, memory: &Memory) -> io::Result<()> {
    let registration = xdp_umem_reg {
        addr: memory.base().addr().get() as u64,
        len: memory.len() as u64,
        chunk_size: CHUNK_BYTES as u32,
        headroom: 0,
        flags: 0,
        tx_metadata_len: 0,
    };
    set_option(fd, libc::XDP_UMEM_REG, &registration).map_err(|error| match error.raw_os_error() {
        Some(libc::ENOBUFS | libc::ENOMEM) => {
            step("cannot lock the packet memory: give CAP_IPC_LOCK or raise the limit (LimitMEMLOCK=, ulimit -l)")(error)
        }
        _ => step("XDP_UMEM_REG")(error),
    })
}

/// Lifts the limits that would hold a batch back.
fn widen(fd: &OwnedFd, binding: &Binding) -> io::Result<()> {
    match set_option(fd, XDP_MAX_TX_SKB_BUDGET, &binding.ring_entries) {
        // An older kernel sends 32 per call: we call until all are taken.
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => {}
        result => result.map_err(step("XDP_MAX_TX_SKB_BUDGET"))?,
    }
    // Without CAP_NET_ADMIN net.core.wmem_max limits it: slower, not wrong.
    let _ = set_socket_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &SEND_BUFFER_BYTES);
    if binding.busy_poll {
        for (name, value) in
            [(SO_PREFER_BUSY_POLL, 1), (libc::SO_BUSY_POLL, 20), (SO_BUSY_POLL_BUDGET, 64)]
        {
            set_socket_option(fd, libc::SOL_SOCKET, name, &(value as c_int))
                .map_err(step("busy polling"))?;
        }
    }
    Ok(())
}

/// With zero-copy, or by copies where the driver refuses that: then with its reason, which the
/// kernel keeps for itself if the choice is left to it.
fn bind(fd: &OwnedFd, umem: &Umem, binding: &Binding) -> io::Result<Option<io::Error>> {
    if let Some(first) = &umem.first {
        // The other flags are then those of the first socket.
        let bound = bind_when_free(fd, binding, libc::XDP_SHARED_UMEM, first.as_raw_fd());
        return bound.map(|()| None);
    }
    let mut refusal = None;
    if !binding.copy {
        match bind_when_free(fd, binding, libc::XDP_USE_NEED_WAKEUP | libc::XDP_ZEROCOPY, 0) {
            Ok(()) => return Ok(None),
            Err(error) => refusal = Some(error),
        }
    }
    bind_when_free(fd, binding, libc::XDP_USE_NEED_WAKEUP | libc::XDP_COPY, 0)?;
    Ok(refusal)
}

fn bind_when_free(fd: &OwnedFd, binding: &Binding, flags: u16, umem_fd: c_int) -> io::Result<()> {
    let address = sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: flags,
        sxdp_ifindex: binding.interface_index,
        sxdp_queue_id: binding.queue,
        sxdp_shared_umem_fd: umem_fd as u32,
    };
    for _ in 1..BIND_TRIES {
        match try_bind(fd, &address) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => thread::sleep(BIND_PAUSE),
            result => return result,
        }
    }
    try_bind(fd, &address).map_err(step("another AF_XDP socket owns the queue"))
}

fn try_bind(fd: &OwnedFd, address: &sockaddr_xdp) -> io::Result<()> {
    let len = size_of::<sockaddr_xdp>() as libc::socklen_t;
    // SAFETY: the address lives through the call and is as long as said.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const *address).cast(), len) })
}

/// What the kernel counts for the socket, until the queue is closed.
pub(super) struct Statistics(pub(super) std::sync::Weak<OwnedFd>);

impl KernelCounters for Statistics {
    fn read(&self, counters: &mut QueueCounters) {
        let Some(fd) = self.0.upgrade() else { return };
        let Ok(kernel) = option::<xdp_statistics>(&fd, libc::XDP_STATISTICS) else { return };
        counters.rx_dropped += kernel.rx_dropped;
        counters.rx_ring_full += kernel.rx_ring_full;
        counters.fill_empty += kernel.rx_fill_ring_empty_descs;
        counters.rx_invalid += kernel.rx_invalid_descs;
        counters.tx_invalid += kernel.tx_invalid_descs;
    }
}

/// Names the step that failed, and keeps the kind of error.
fn step(what: &'static str) -> impl Fn(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{what}: {error}"))
}

fn check(result: c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn set_option<T: Copy>(fd: &OwnedFd, name: c_int, value: &T) -> io::Result<()> {
    set_socket_option(fd, libc::SOL_XDP, name, value)
}

fn set_socket_option<T: Copy>(
    fd: &OwnedFd,
    level: c_int,
    name: c_int,
    value: &T,
) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the value lives through the call and is as long as said.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const *value).cast(), len) })
}

/// Structures that the kernel fills in, for which zero bytes are a value.
///
/// # Safety
/// Any bytes must be a valid value.
unsafe trait Filled: Copy {}
// SAFETY: unsigned integers only.
unsafe impl Filled for xdp_mmap_offsets {}
// SAFETY: unsigned integers only.
unsafe impl Filled for xdp_statistics {}
// SAFETY: an unsigned integer only.
unsafe impl Filled for libc::xdp_options {}

fn option<T: Filled>(fd: &OwnedFd, name: c_int) -> io::Result<T> {
    // SAFETY: `Filled` types may be zero.
    let mut value: T = unsafe { std::mem::zeroed() };
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, which the value has.
    check(unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_XDP, name, (&raw mut value).cast(), &raw mut len)
    })?;
    Ok(value)
}
