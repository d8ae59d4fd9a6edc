//! AF_XDP: frames from a NIC's queue straight to user space.
//!
//! ```text
//!            ┌ redirect.bpf.c ┐ ours   socket of queue i ─► worker i
//!  queue i ─►│  destination?  ├───────►   Fill, Rx, Tx, Completion
//!            └───────┬────────┘
//!                    └ all else ─► kernel
//! ```
//!
//! There is one socket for each RX queue; a queue without one would lose our frames. The filter
//! ends with the process, however it ends, and our frames then reach the kernel.
//!
//! Known traps. A sender on a veth pair leaves checksums to hardware that does not exist, and
//! they arrive wrong: use `ethtool -K IF tx off` on the senders' side. In generic mode frames
//! joined by GRO or TSO are longer than a chunk and are dropped (`rx_dropped`): use `ethtool -K
//! IF gro off tso off gso off`. A frame longer than the egress link's MTU counts as sent; the
//! link's own counter shows that it was not. Zero-copy is used if the driver supports it. All
//! sockets of a worker must then have it, because they share its memory: between unequal
//! interfaces none has it.

pub(crate) mod program;
mod queue;
mod ring;
mod socket;

pub use queue::XdpQueue;

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use ebpf::xdp::Mode;

use crate::claim::Claim;
use crate::device::Queue;
use crate::driver::{
    Abilities, CacheSends, Device, DeviceConfig, Driver, Inheritance, InheritedQueue, Lane, Opened,
    Port, QUEUES_MAX, QueueOptions, QueueOwners,
};
use crate::error::OpenError;
use crate::interface::Interface;
use crate::memory::{Memory, Pool};
use program::Program;
use socket::{Binding, Socket, Umem};

/// AF_XDP sockets.
pub static DRIVER: Driver = Driver {
    name: "af_xdp",
    abilities: Abilities {
        filter: true,
        kernel_interface: true,
        take_over: true,
        kernel_cache: Some(CacheSends::ByDriver),
    },
    queues: QueueOwners::Each,
    // No ring ever starves: chunks that are free, received (both are lent) and being sent.
    chunks: |options| 3 * options.ring_entries as usize,
    pool: Pool::new,
    open,
    inherit,
};

/// The largest MTU that XDP takes without multi-buffer frames: a page less
/// the kernel's own headroom and trailer. Frames must moreover fit a chunk.
pub const MTU_MAX: u32 = 3498;

/// The filter on an interface.
struct XdpPort {
    program: Program,
}

/// Claims an interface and attaches the filter, which lets everything pass
/// until it is given prefixes.
fn open(config: &DeviceConfig, queues: u32) -> Result<Device, OpenError> {
    let interface = Interface::find(&config.interface)?;
    refuse_what_cannot_work(&interface)?;
    let claim = Claim::new(&interface)?;
    let cache = config.kernel_cache.clone().map(|request| request.of(queues));
    let (program, filter, cache) = Program::attach(&interface, config.mode, cache)?;
    refuse_added_queues(&interface)?;
    tracing::info!(
        interface = interface.name,
        mode = %program.mode(),
        queues = interface.rx_queues,
        "XDP filter attached"
    );
    let port = Box::new(XdpPort { program });
    let device = Device::new(&DRIVER, interface, Some(filter), claim, port);
    Ok(device.with_kernel_cache(cache))
}

/// Shares a predecessor's claim, and loads the filter beside its own,
/// connected to the same sockets.
fn inherit(inheritance: Inheritance) -> Result<Device, OpenError> {
    let Inheritance { interface, mode, held, queues, kernel_cache } = inheritance;
    let missing = |what| OpenError::NotHandedOver { name: interface.name.clone(), what };
    let link = held.link.ok_or_else(|| missing("XDP link"))?;
    let mode = mode.ok_or_else(|| missing("XDP mode"))?;
    let cache = kernel_cache.map(|request| request.of(queues));
    let (program, filter, cache) = Program::inherit(&interface, link, mode, cache)?;
    let port = Box::new(XdpPort { program });
    let device = Device::new(&DRIVER, interface, Some(filter), Claim::inherit(held.claim), port);
    Ok(device.with_kernel_cache(cache))
}

impl Port for XdpPort {
    fn mode(&self) -> Option<Mode> {
        Some(self.program.mode())
    }

    fn queue(
        &mut self,
        interface: &Interface,
        number: u32,
        lane: &mut Lane,
        options: &QueueOptions,
    ) -> Result<Opened<Box<dyn Queue>>, OpenError> {
        let binding = Binding {
            interface_index: interface.index,
            queue: number,
            ring_entries: options.ring_entries,
            copy: options.copy || self.program.mode() == Mode::Generic,
            busy_poll: options.busy_poll,
        };
        let (umem, pool) = lane.registered(Umem::new);
        let bound = Socket::open(umem, &binding).map_err(|error| match umem.is_zero_copy() {
            true => OpenError::ZeroCopyDiffers { name: interface.name.clone(), error },
            false => failed(interface, number)(error),
        })?;
        if let Some(error) = bound.refusal.as_ref().filter(|_| number == 0) {
            say_that_packets_are_copied(interface, error);
        }
        let (socket, zero_copy) = (self.connect(interface, number, &bound)?, bound.zero_copy);
        let queue = Box::new(XdpQueue::new(bound, options.ring_entries, pool));
        tracing::debug!(interface = interface.name, zero_copy, "queue opened");
        Ok(Opened { queue, socket, zero_copy })
    }

    fn inherit_queue(
        &mut self,
        interface: &Interface,
        number: u32,
        socket: OwnedFd,
        ring_entries: u32,
        memory: &'static Memory,
    ) -> Result<Opened<Box<dyn InheritedQueue>>, OpenError> {
        // SAFETY: the predecessor reports what it made them with, from the same
        // options; what does not fit the kernel does not map.
        let socket = unsafe { Socket::inherit(socket, ring_entries) };
        let bound = socket.map_err(failed(interface, number))?;
        let (socket, zero_copy) = (self.connect(interface, number, &bound)?, bound.zero_copy);
        let queue = Box::new(XdpQueue::inherit(bound, ring_entries, memory));
        Ok(Opened { queue, socket, zero_copy })
    }

    fn switch(&mut self, interface: &Interface, _: &[Arc<OwnedFd>]) -> Result<(), OpenError> {
        Ok(self.program.switch(interface)?)
    }

    fn link(&self) -> Option<BorrowedFd<'_>> {
        Some(self.program.link())
    }
}

impl XdpPort {
    fn connect(
        &mut self,
        interface: &Interface,
        number: u32,
        socket: &Socket,
    ) -> Result<Arc<OwnedFd>, OpenError> {
        let connected = self.program.connect(number, socket.fd.as_raw_fd());
        connected.map_err(|error| failed(interface, number)(io::Error::other(error)))?;
        Ok(Arc::clone(&socket.fd))
    }
}

impl InheritedQueue for XdpQueue {
    fn resume(mut self: Box<Self>, pool: &mut Pool) -> Box<dyn Queue> {
        self.take_over(pool);
        self
    }
}

fn say_that_packets_are_copied(interface: &Interface, error: &io::Error) {
    let name = &interface.name;
    if error.raw_os_error() == Some(libc::EOPNOTSUPP) {
        tracing::info!(interface = name, "its driver has no zero-copy: the kernel copies packets");
    } else {
        tracing::warn!(
            interface = name,
            mtu = interface.mtu,
            %error,
            "its driver refuses zero-copy: the kernel copies packets"
        );
    }
}

fn failed(interface: &Interface, queue: u32) -> impl Fn(io::Error) -> OpenError + Copy {
    let name = &interface.name;
    move |error| OpenError::Socket { kind: "AF_XDP", name: name.clone(), queue, error }
}

/// virtio_net adds a queue for each processor when a program is attached, where its device has as
/// many to spare. They are for what the program sends; but packets are received by them, too, and
/// no socket can send by them.
fn refuse_added_queues(before: &Interface) -> Result<(), OpenError> {
    let Interface { name, rx_queues, .. } = Interface::find(&before.name)?;
    if rx_queues > before.rx_queues {
        let (before, after, most) = (before.rx_queues, rx_queues, Interface::queues_max(&name)?);
        return Err(OpenError::QueuesAdded { name, before, after, most });
    }
    Ok(())
}

/// Drivers that run the filter, and whose packets reach no AF_XDP socket: a bond's are its
/// members', and ixgbevf drops what a program redirects.
const TAKING_NOTHING: [&str; 2] = ["bonding", "ixgbevf"];

/// The name of an interface's driver, if it is one of these.
pub fn taking_nothing(interface: &str) -> Option<String> {
    ebpf::driver_of(interface).ok().filter(|driver| TAKING_NOTHING.contains(&driver.as_str()))
}

fn refuse_what_cannot_work(interface: &Interface) -> Result<(), OpenError> {
    let name = interface.name.clone();
    if let Some(driver) = taking_nothing(&name) {
        return Err(OpenError::TakesNothing { name, driver });
    }
    if interface.mtu > MTU_MAX {
        return Err(OpenError::Mtu { name, mtu: interface.mtu, mtu_max: MTU_MAX });
    }
    if interface.rx_queues > QUEUES_MAX {
        return Err(OpenError::Queues {
            name,
            queues: interface.rx_queues,
            queues_max: QUEUES_MAX,
        });
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
