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

use ebpf::xdp::Mode;
use wire::BATCH_MAX;

use crate::claim::Claim;
use crate::device::Queue;
use crate::driver::{
    Abilities, Device, DeviceConfig, Driver, Inheritance, InheritedQueue, Lane, Opened, Port,
    QueueOptions, QueueOwners,
};
use crate::error::OpenError;
use crate::interface::Interface;
use crate::memory::{Memory, Pool};
use program::Program;
use socket::Group;

/// Packet sockets.
pub static DRIVER: Driver = Driver {
    name: "af_packet",
    abilities: Abilities { filter: true, kernel_interface: true, take_over: true },
    queues: QueueOwners::Shared,
    chunks: |_| BATCH_MAX,
    pool: Pool::new,
    open,
    inherit,
};

/// The filters on an interface, and its sockets' group.
struct PacketPort {
    program: Program,
    group: Option<Group>,
    queues: u32,
}

/// Claims an interface and attaches the filters, which let everything pass
/// until they are given prefixes.
fn open(config: &DeviceConfig, queues: u32) -> Result<Device, OpenError> {
    let interface = Interface::find(&config.interface)?;
    let claim = Claim::new(&interface)?;
    let (program, filter) = Program::attach(&interface)?;
    tracing::info!(interface = interface.name, queues, "packet filter attached");
    let port = Box::new(PacketPort { program, group: None, queues });
    Ok(Device::new(&DRIVER, interface, Some(filter), claim, port))
}

/// Shares a predecessor's claim, and loads the filters beside its own.
fn inherit(inheritance: Inheritance) -> Result<Device, OpenError> {
    let Inheritance { interface, held, queues, .. } = inheritance;
    let (program, filter) = Program::inherit(held.link)?;
    let port = Box::new(PacketPort { program, group: None, queues });
    Ok(Device::new(&DRIVER, interface, Some(filter), Claim::inherit(held.claim), port))
}

impl Port for PacketPort {
    fn mode(&self) -> Option<Mode> {
        None
    }

    fn queue(
        &mut self,
        interface: &Interface,
        number: u32,
        _: &mut Lane,
        _: &QueueOptions,
    ) -> Result<Opened<Box<dyn Queue>>, OpenError> {
        let failed = failed(interface, number);
        let fd = socket::open(interface, |fd| self.program.guard(fd)).map_err(failed)?;
        if self.queues > 1 {
            let by_queue = self.queues == interface.rx_queues;
            self.group = Some(socket::join(&fd, self.group, by_queue).map_err(failed)?);
        }
        let queue = PacketQueue::new(fd);
        let socket = Arc::clone(queue.socket());
        Ok(Opened { queue: Box::new(queue), socket, zero_copy: false })
    }

    fn inherit_queue(
        &mut self,
        _: &Interface,
        _: u32,
        socket: OwnedFd,
        _: u32,
        _: &'static Memory,
    ) -> Result<Opened<Box<dyn InheritedQueue>>, OpenError> {
        let queue = PacketQueue::new(socket);
        let socket = Arc::clone(queue.socket());
        Ok(Opened { queue: Box::new(queue), socket, zero_copy: false })
    }

    fn switch(&mut self, interface: &Interface, sockets: &[Arc<OwnedFd>]) -> Result<(), OpenError> {
        for (number, socket) in (0..).zip(sockets) {
            self.program.guard(socket.as_fd()).map_err(failed(interface, number))?;
        }
        self.program.switch(interface)
    }

    fn link(&self) -> Option<BorrowedFd<'_>> {
        self.program.link()
    }
}

/// A packet socket has nothing of its predecessor's to learn.
impl InheritedQueue for PacketQueue {
    fn resume(self: Box<Self>, _: &mut Pool) -> Box<dyn Queue> {
        self
    }
}

fn failed(interface: &Interface, queue: u32) -> impl Fn(std::io::Error) -> OpenError + Copy {
    let name = &interface.name;
    move |error| OpenError::Socket { kind: "AF_PACKET", name: name.clone(), queue, error }
}
