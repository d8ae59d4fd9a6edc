//! AF_XDP: frames from a NIC's queue straight to user space.
//!
//! ```text
//!            ┌ redirect.bpf.c ┐ ours   socket of queue i ─► worker i
//!  queue i ─►│  destination?  ├───────►   Fill, Rx, Tx, Completion
//!            └───────┬────────┘
//!                    └ all else ─► kernel
//! ```
//!
//! One socket for each RX queue: a queue without one loses what is ours. The
//! filter goes with the process, however it ends, and frames of ours then
//! reach the kernel.
//!
//! Known traps. A sender on a veth pair leaves checksums to hardware that is
//! not there, and they arrive wrong: `ethtool -K IF tx off` on the senders'
//! side. In generic mode frames joined by GRO or TSO are longer than a chunk
//! and are dropped (`rx_dropped`): `ethtool -K IF gro off tso off gso off`.
//! A frame longer than the egress link's MTU counts as sent; the link's own
//! counter shows that it was not. Zero-copy is used where the driver has it;
//! all sockets of a worker must then have it, because they share its memory:
//! between unequal interfaces set [`QueueOptions::copy`].

mod program;
mod queue;
mod ring;
mod socket;

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

pub use ebpf::xdp::{Mode, ModePreference};
pub use program::ProgramFailure;
pub use queue::XdpQueue;
pub use socket::Umem;

use crate::claim::Claim;
use crate::error::OpenError;
use crate::filter::Filter;
use crate::interface::Interface;
use crate::memory::{Memory, Pool};
use crate::take_over::Held;
use program::Program;
use socket::{Binding, Socket};

/// The largest MTU that XDP takes without multi-buffer frames: a page less
/// the kernel's own headroom and trailer. Frames must moreover fit a chunk.
pub const MTU_MAX: u32 = 3498;

/// Queues an interface may have: entries of the filter's table of sockets.
pub const QUEUES_MAX: u32 = 64;

/// How sockets are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueOptions {
    /// Frames that each ring holds, a power of two. A queue needs three times
    /// as many chunks: free, received and being sent.
    pub ring_entries: u32,
    /// The kernel polls the device inside our calls, for cores that do
    /// nothing else.
    pub busy_poll: bool,
    /// Never zero-copy; for a driver whose zero-copy is faulty.
    pub copy: bool,
}

impl Default for QueueOptions {
    fn default() -> Self {
        QueueOptions { ring_entries: 2048, busy_poll: false, copy: false }
    }
}

impl QueueOptions {
    /// Chunks that one queue needs so that no ring ever starves.
    #[must_use]
    pub fn chunks(&self) -> usize {
        3 * self.ring_entries as usize
    }
}

/// An interface with the filter on it. Dropping it takes the filter off.
pub struct XdpDevice {
    interface: Interface,
    program: Program,
    filter: Filter,
    claim: Claim,
    /// By queue.
    sockets: Vec<Arc<OwnedFd>>,
}

impl XdpDevice {
    /// Claims an interface and attaches the filter, which lets everything
    /// pass until told otherwise.
    pub fn open(name: &str, preference: ModePreference) -> Result<XdpDevice, OpenError> {
        let interface = Interface::find(name)?;
        refuse_what_cannot_work(&interface)?;
        let claim = Claim::new(&interface)?;
        let (program, filter) = Program::attach(&interface, preference)?;
        tracing::info!(interface = name, mode = %program.mode(), queues = interface.rx_queues, "XDP filter attached");
        Ok(XdpDevice { interface, program, filter, claim, sockets: Vec::new() })
    }

    /// Shares a predecessor's claim, and loads the filter beside its own,
    /// connected to the same sockets. In `mode` it is attached.
    pub(crate) fn inherit(name: &str, mode: Mode, held: Held) -> Result<XdpDevice, OpenError> {
        let interface = Interface::find(name)?;
        let missing = || OpenError::NotHandedOver { name: name.to_owned(), what: "XDP link" };
        let (program, filter) = Program::inherit(held.link.ok_or_else(missing)?, mode)?;
        let claim = Claim::inherit(held.claim);
        Ok(XdpDevice { interface, program, filter, claim, sockets: Vec::new() })
    }

    /// Puts our filter in the place of the predecessor's.
    pub(crate) fn switch(&mut self) -> Result<(), OpenError> {
        self.claim.sign();
        Ok(self.program.switch(&self.interface)?)
    }

    /// What a successor needs besides the sockets.
    pub(crate) fn held(&self) -> (BorrowedFd<'_>, Option<BorrowedFd<'_>>) {
        (self.claim.fd(), Some(self.program.link()))
    }

    /// The sockets of its queues, in their order.
    pub(crate) fn sockets(&self) -> &[Arc<OwnedFd>] {
        &self.sockets
    }

    /// The interface as it was when opened.
    #[must_use]
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// How the filter is attached.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.program.mode()
    }

    /// The filter's tables.
    pub fn filter(&mut self) -> &mut Filter {
        &mut self.filter
    }

    /// The filter's tables, to read.
    #[must_use]
    pub fn filter_ref(&self) -> &Filter {
        &self.filter
    }

    /// Opens a queue on a worker's memory. All RX queues must be opened, each
    /// once.
    pub fn queue(
        &mut self,
        queue: u32,
        umem: &mut Umem,
        pool: &mut Pool,
        options: &QueueOptions,
    ) -> Result<XdpQueue, OpenError> {
        let failed = |error| OpenError::Socket {
            kind: "AF_XDP",
            name: self.interface.name.clone(),
            queue,
            error,
        };
        let binding = Binding {
            interface_index: self.interface.index,
            queue,
            ring_entries: options.ring_entries,
            copy: options.copy || self.program.mode() == Mode::Generic,
            busy_poll: options.busy_poll,
        };
        let socket = Socket::open(umem, &binding).map_err(failed)?;
        self.connect(queue, &socket.fd)?;
        let queue = XdpQueue::new(socket, options.ring_entries, pool);
        tracing::debug!(
            interface = self.interface.name,
            zero_copy = queue.zero_copy(),
            "queue opened"
        );
        Ok(queue)
    }

    /// The queue on a predecessor's socket, whose rings have so many entries.
    pub(crate) fn inherit_queue(
        &mut self,
        queue: u32,
        socket: OwnedFd,
        ring_entries: u32,
        memory: &'static Memory,
    ) -> Result<XdpQueue, OpenError> {
        let name = self.interface.name.clone();
        let failed = |error| OpenError::Socket { kind: "AF_XDP", name, queue, error };
        // SAFETY: the predecessor tells what it made them with, from the same
        // options; what does not fit the kernel does not map.
        let socket = unsafe { Socket::inherit(socket, ring_entries) }.map_err(failed)?;
        self.connect(queue, &socket.fd)?;
        Ok(XdpQueue::inherit(socket, ring_entries, memory))
    }

    fn connect(&mut self, queue: u32, socket: &Arc<OwnedFd>) -> Result<(), OpenError> {
        self.sockets.push(Arc::clone(socket));
        let name = self.interface.name.clone();
        self.program.connect(queue, socket.as_raw_fd()).map_err(|error| OpenError::Socket {
            kind: "AF_XDP",
            name,
            queue,
            error: io::Error::other(error),
        })
    }
}

fn refuse_what_cannot_work(interface: &Interface) -> Result<(), OpenError> {
    let name = interface.name.clone();
    if interface.mtu > MTU_MAX {
        return Err(OpenError::Mtu { name, mtu: interface.mtu });
    }
    if interface.rx_queues > QUEUES_MAX {
        return Err(OpenError::Queues { name, queues: interface.rx_queues });
    }
    let longest = interface.mtu as usize + wire::ethernet::HEADER_BYTES;
    if longest > wire::FRAME_BYTES_MAX {
        tracing::warn!(
            interface = name,
            mtu = interface.mtu,
            "frames longer than {} bytes will be dropped (rx_dropped): set an MTU of at most {}",
            wire::FRAME_BYTES_MAX,
            wire::FRAME_BYTES_MAX - wire::ethernet::HEADER_BYTES,
        );
    }
    Ok(())
}
