//! AF_PACKET: frames through the kernel's packet sockets, on any interface.
//!
//! ```text
//!            ┌ socket: guideway_take ┐ ours: a copy ─► worker
//!  receive ─►├───────────────────────┤
//!            └ tc: guideway_drop     ┘ ours: dropped; all else ─► kernel
//! ```
//!
//! A packet socket sees frames before traffic control does, so the same
//! choice is made twice. Needs no XDP and works on every driver; each frame is
//! copied, and the kernel has allocated for it before we see it.
//!
//! Unlike XDP this sees frames as the kernel has them: checksums that the
//! sender left to hardware are completed here, and frames that GRO or TSO
//! joined are taken if they fit a chunk and still are one packet, else
//! dropped and counted (`rx_too_long`): `ethtool -K IF gro off`.

mod program;
mod queue;
mod socket;

pub use queue::PacketQueue;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::claim::Claim;
use crate::error::OpenError;
use crate::filter::Filter;
use crate::interface::Interface;
use crate::take_over::Held;
use program::Program;
use socket::Group;

/// An interface with the filters on it. Dropping it takes them off.
pub struct PacketDevice {
    interface: Interface,
    program: Program,
    filter: Filter,
    group: Option<Group>,
    queues: u32,
    claim: Claim,
    /// By queue.
    sockets: Vec<Arc<OwnedFd>>,
}

impl PacketDevice {
    /// Claims an interface for `queues` queues and attaches the filters,
    /// which let everything pass until told otherwise.
    pub fn open(name: &str, queues: u32) -> Result<PacketDevice, OpenError> {
        let interface = Interface::find(name)?;
        let claim = Claim::new(&interface)?;
        let (program, filter) = Program::attach(&interface)?;
        tracing::info!(interface = name, queues, "packet filter attached");
        let sockets = Vec::new();
        Ok(PacketDevice { interface, program, filter, group: None, queues, claim, sockets })
    }

    /// Shares a predecessor's claim, and loads the filters beside its own.
    pub(crate) fn inherit(name: &str, queues: u32, held: Held) -> Result<PacketDevice, OpenError> {
        let interface = Interface::find(name)?;
        let (program, filter) = Program::inherit(held.link)?;
        let (claim, sockets) = (Claim::inherit(held.claim), Vec::new());
        Ok(PacketDevice { interface, program, filter, group: None, queues, claim, sockets })
    }

    /// Has the filters do what the predecessor's did, on its sockets.
    pub(crate) fn switch(&mut self) -> Result<(), OpenError> {
        self.claim.sign();
        for (queue, socket) in (0..).zip(&self.sockets) {
            let name = self.interface.name.clone();
            let failed = |error| OpenError::Socket { kind: "AF_PACKET", name, queue, error };
            self.program.guard(socket.as_fd()).map_err(failed)?;
        }
        self.program.switch(&self.interface)
    }

    /// What a successor needs besides the sockets.
    pub(crate) fn held(&self) -> (BorrowedFd<'_>, Option<BorrowedFd<'_>>) {
        (self.claim.fd(), self.program.link())
    }

    /// The queue on a predecessor's socket.
    pub(crate) fn inherit_queue(&mut self, socket: OwnedFd) -> PacketQueue {
        self.keep(PacketQueue::new(socket))
    }

    fn keep(&mut self, queue: PacketQueue) -> PacketQueue {
        self.sockets.push(Arc::clone(queue.socket()));
        queue
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

    /// The filter's tables.
    pub fn filter(&mut self) -> &mut Filter {
        &mut self.filter
    }

    /// The filter's tables, to read.
    #[must_use]
    pub fn filter_ref(&self) -> &Filter {
        &self.filter
    }

    /// Opens one of the queues. All must be opened, each once.
    pub fn queue(&mut self, queue: u32) -> Result<PacketQueue, OpenError> {
        let failed = |error| OpenError::Socket {
            kind: "AF_PACKET",
            name: self.interface.name.clone(),
            queue,
            error,
        };
        let fd = socket::open(&self.interface, |fd| self.program.guard(fd)).map_err(failed)?;
        if self.queues > 1 {
            let by_queue = self.queues == self.interface.rx_queues;
            self.group = Some(socket::join(&fd, self.group, by_queue).map_err(failed)?);
        }
        Ok(self.keep(PacketQueue::new(fd)))
    }
}
