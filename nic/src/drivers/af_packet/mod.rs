//! AF_PACKET: frames through the kernel's packet sockets, on any interface.
//!
//! ```text
//!            ┌ socket: guideway_take ┐ ours: a copy ─► worker
//!  receive ─►├───────────────────────┤
//!            └ traffic control       ┘ cached: sent; ours: dropped; all else ─► kernel
//! ```
//!
//! A packet socket sees frames before traffic control does, so the same choice is made twice,
//! except for flows in the kernel flow cache (bpf/packet.bpf.c). It needs no XDP and works with
//! every driver. Each frame for a worker is copied, and the kernel has allocated a buffer for
//! it before.
//!
//! Unlike XDP, this sees frames as the kernel has them: segments joined by GRO or TSO, and
//! checksums left to hardware. The cache sends them so; for workers they are cut and completed
//! here ([`joined`]).

mod joined;
pub(crate) mod program;
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
    Abilities, CacheSends, Device, DeviceConfig, Driver, Inheritance, InheritedQueue, Lane, Opened,
    Port, QueueOptions, QueueOwners,
};
use crate::error::OpenError;
use crate::interface::Interface;
use crate::kernel_cache::{CacheConfig, CacheRequest};
use crate::memory::{Memory, Pool};
use program::Program;
use socket::Group;

/// Packet sockets.
pub static DRIVER: Driver = Driver {
    name: "af_packet",
    abilities: Abilities {
        filter: true,
        kernel_interface: true,
        take_over: true,
        kernel_cache: Some(CacheSends::ByKernel),
    },
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
    let cache = cache_for(&interface, config.kernel_cache.clone(), queues);
    let (program, filter, cache) = Program::attach(&interface, cache)?;
    tracing::info!(interface = interface.name, queues, "packet filter attached");
    let port = Box::new(PacketPort { program, group: None, queues });
    let device = Device::new(&DRIVER, interface, Some(filter), claim, port);
    Ok(device.with_kernel_cache(cache))
}

/// Shares a predecessor's claim, and loads the filters beside its own.
fn inherit(inheritance: Inheritance) -> Result<Device, OpenError> {
    let Inheritance { interface, held, queues, kernel_cache, .. } = inheritance;
    let cache = cache_for(&interface, kernel_cache, queues);
    let (program, filter, cache) = Program::inherit(&interface, held.link, cache)?;
    let port = Box::new(PacketPort { program, group: None, queues });
    let device = Device::new(&DRIVER, interface, Some(filter), Claim::inherit(held.claim), port);
    Ok(device.with_kernel_cache(cache))
}

/// A cache of as many regions as there are sockets, if frames go to these by their queue: the
/// filter has to know whose region a flow is in.
fn cache_for(
    interface: &Interface,
    request: Option<CacheRequest>,
    queues: u32,
) -> Option<CacheConfig> {
    let is_known = queues == 1 || queues == interface.rx_queues;
    if request.is_some() && !is_known {
        tracing::warn!(
            interface = interface.name,
            queues,
            "no kernel flow cache: set `queues: 1`, or {}, as many as the interface has",
            interface.rx_queues
        );
    }
    request.filter(|_| is_known).map(|request| request.of(queues))
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
