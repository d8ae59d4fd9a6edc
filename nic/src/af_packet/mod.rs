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

use std::os::fd::BorrowedFd;

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
}

impl PacketDevice {
    /// Claims an interface for `queues` queues and attaches the filters,
    /// which let everything pass until told otherwise.
    pub fn open(name: &str, queues: u32) -> Result<PacketDevice, OpenError> {
        let interface = Interface::find(name)?;
        let claim = Claim::new(name)?;
        let (program, filter) = Program::attach(&interface)?;
        tracing::info!(interface = name, queues, "packet filter attached");
        Ok(PacketDevice { interface, program, filter, group: None, queues, claim })
    }

    /// Shares a predecessor's claim, and loads the filters beside its own.
    pub(crate) fn inherit(name: &str, queues: u32, held: Held) -> Result<PacketDevice, OpenError> {
        let interface = Interface::find(name)?;
        let (program, filter) = Program::inherit(&interface, held.link)?;
        let claim = Claim::inherit(held.claim);
        Ok(PacketDevice { interface, program, filter, group: None, queues, claim })
    }

    /// Has the filters do what the predecessor's did, on these sockets.
    pub(crate) fn switch<'s>(
        &mut self,
        sockets: impl IntoIterator<Item = BorrowedFd<'s>>,
    ) -> Result<(), OpenError> {
        for (queue, socket) in (0..).zip(sockets) {
            let name = self.interface.name.clone();
            let failed = |error| OpenError::Socket { kind: "AF_PACKET", name, queue, error };
            self.program.guard(socket).map_err(failed)?;
        }
        self.program.switch(&self.interface)
    }

    /// What a successor needs besides the sockets.
    pub(crate) fn held(&self) -> (BorrowedFd<'_>, Option<BorrowedFd<'_>>) {
        (self.claim.fd(), self.program.link())
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
        Ok(PacketQueue::new(fd))
    }
}
