//! Devices and packet memory that a running predecessor hands over.
//!
//! ```text
//!  predecessor                            successor
//!  Device::held, Queue::socket,  ───────► Heir::prepare: maps and loads, touches nothing
//!  Memory::file (copies)
//!  its pools stand still, or it  ───────► Heir::quiesced: takes the memories' locks
//!  is no more                             Quiesced::into_workers: frees chunks, goes on with the rings
//!                                         Device::switch: our filter instead of its
//! ```
//!
//! [`Quiesced`] is the witness that the predecessor uses nothing any more. The
//! kernel gives it, by the lock of each memory; no message of any process, and
//! no promise of a caller, takes its place.
//! Until the second arrow the predecessor may change its mind and go on: what
//! was prepared is dropped without a trace. In between frames wait in the
//! sockets' rings or buffers. Nothing is opened anew, so nothing can be lost
//! but what finds them full.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use wire::CHUNK_BYTES;

use crate::device::Queue;
use crate::drivers::af_packet::{PacketDevice, PacketQueue};
use crate::drivers::af_xdp::{Mode, XdpDevice, XdpQueue};
use crate::error::OpenError;
use crate::interface::Interface;
use crate::memory::{Memory, Pages, Pool};
use crate::open::{Device, SharedIo, WorkerIo};

/// What holds a device beside its sockets.
#[derive(Debug)]
pub struct Held {
    /// The right to use the interface.
    pub claim: OwnedFd,
    /// What keeps the filter attached; None where nothing does.
    pub link: Option<OwnedFd>,
}

/// A device that is handed over.
#[derive(Debug)]
pub struct DeviceEstate {
    /// The interface's name.
    pub interface: String,
    /// How the XDP filter is attached; None: the driver is AF_PACKET.
    pub mode: Option<Mode>,
    /// Claim and link.
    pub held: Held,
    /// One for each queue, in their order.
    pub sockets: Vec<OwnedFd>,
    /// Entries of each of the sockets' rings.
    pub ring_entries: u32,
}

/// Packet memory that is handed over.
#[derive(Debug)]
pub struct MemoryEstate {
    /// What is mapped.
    pub file: OwnedFd,
    /// Chunks in it.
    pub chunks: usize,
    /// What it is made of.
    pub pages: Pages,
}

/// All that is needed to go on as soon as the predecessor has stopped.
pub struct Heir {
    devices: Vec<Device>,
    memories: Vec<&'static Memory>,
    /// By device.
    queues: Vec<Vec<HeirQueue>>,
}

/// What a predecessor that uses nothing of it any more has left: to go on
/// with. Only [`Heir::quiesced`] makes one.
pub struct Quiesced {
    devices: Vec<Device>,
    /// All chunks are in it that the kernel does not have.
    pools: Vec<Pool>,
    queues: Vec<Vec<HeirQueue>>,
}

/// The predecessor uses what it handed over.
#[derive(Debug, thiserror::Error)]
#[error("the running forwarder still uses its packet memory")]
pub struct StillInUse;

enum HeirQueue {
    Xdp(Box<XdpQueue>),
    Packet(PacketQueue),
}

impl Heir {
    /// Maps memory and rings, and loads the filters, while the predecessor
    /// runs. With one memory all queues are one thread's; else each worker
    /// has one of them and a queue of each device.
    pub fn prepare(
        memories: Vec<MemoryEstate>,
        devices: Vec<DeviceEstate>,
    ) -> Result<Heir, OpenError> {
        let memories = (0..).zip(memories).map(|(worker, memory)| adopt(worker, memory));
        let memories = memories.collect::<Result<Vec<_>, _>>()?;
        let (mut opened, mut queues) = (Vec::new(), Vec::new());
        for estate in devices {
            let (device, of_device) = inherit(estate, &memories)?;
            opened.push(device);
            queues.push(of_device);
        }
        Ok(Heir { devices: opened, memories, queues })
    }

    /// The devices, whose filters are to be set before they are switched to.
    pub fn devices(&mut self) -> &mut [Device] {
        &mut self.devices
    }

    /// Takes what the predecessor does not use any more.
    pub fn quiesced(self) -> Result<Quiesced, StillInUse> {
        let Heir { devices, memories, queues } = self;
        let pools = memories.into_iter().map(Pool::of).collect::<Option<Vec<Pool>>>();
        Ok(Quiesced { devices, pools: pools.ok_or(StillInUse)?, queues })
    }
}

impl Quiesced {
    /// Goes on with what each worker owns.
    #[must_use]
    pub fn into_workers(self) -> (Vec<Device>, Vec<WorkerIo>) {
        let Quiesced { devices, pools, queues } = self;
        let mut io: Vec<WorkerIo> = pools
            .into_iter()
            .map(|pool| WorkerIo { pool, queues: Vec::with_capacity(devices.len()) })
            .collect();
        for of_device in queues {
            for (queue, worker) in of_device.into_iter().zip(&mut io) {
                let queue = queue.take_over(&mut worker.pool);
                worker.queues.push(queue);
            }
        }
        (devices, io)
    }

    /// Goes on with what one thread owns for all workers.
    ///
    /// # Panics
    /// If there is not one memory for all.
    #[must_use]
    pub fn into_shared(self) -> (Vec<Device>, SharedIo) {
        let Quiesced { devices, mut pools, queues } = self;
        assert_eq!(pools.len(), 1, "one thread has one memory");
        let mut pool = pools.remove(0);
        let mut take_over = |queue: HeirQueue| queue.take_over(&mut pool);
        let queues = queues
            .into_iter()
            .map(|of_device| of_device.into_iter().map(&mut take_over).collect())
            .collect();
        (devices, SharedIo { pool, queues })
    }
}

impl HeirQueue {
    fn take_over(self, pool: &mut Pool) -> Box<dyn Queue> {
        match self {
            HeirQueue::Xdp(mut queue) => {
                queue.take_over(pool);
                queue
            }
            HeirQueue::Packet(queue) => Box::new(queue),
        }
    }
}

fn adopt(worker: u32, memory: MemoryEstate) -> Result<&'static Memory, OpenError> {
    let MemoryEstate { file, chunks, pages } = memory;
    let no_memory = |error| OpenError::Memory { worker, bytes: chunks * CHUNK_BYTES, error };
    Memory::adopt(file, chunks, pages).map_err(no_memory)
}

fn inherit(
    estate: DeviceEstate,
    memories: &[&'static Memory],
) -> Result<(Device, Vec<HeirQueue>), OpenError> {
    let DeviceEstate { interface, mode, held, sockets, ring_entries } = estate;
    let Some(mode) = mode else {
        let mut device = PacketDevice::inherit(&interface, sockets.len() as u32, held)?;
        let queue = |socket| HeirQueue::Packet(device.inherit_queue(socket));
        let queues = sockets.into_iter().map(queue).collect();
        return Ok((Device::AfPacket(device), queues));
    };
    refuse_other_queues(&interface, sockets.len() as u32)?;
    let mut device = XdpDevice::inherit(&interface, mode, held)?;
    let mut queues = Vec::with_capacity(sockets.len());
    for (number, socket) in sockets.into_iter().enumerate() {
        let memory = memories[number.min(memories.len() - 1)];
        let queue = device.inherit_queue(number as u32, socket, ring_entries, memory)?;
        queues.push(HeirQueue::Xdp(Box::new(queue)));
    }
    Ok((Device::AfXdp(device), queues))
}

/// The interface may have been given more queues since, which lose frames.
fn refuse_other_queues(name: &str, workers: u32) -> Result<(), OpenError> {
    let Interface { name, rx_queues, .. } = Interface::find(name)?;
    match rx_queues == workers {
        true => Ok(()),
        false => Err(OpenError::QueuesDiffer { name, queues: rx_queues, workers }),
    }
}

impl Device {
    /// Puts our filter in the place of the predecessor's, which did the same.
    pub fn switch(&mut self) -> Result<(), OpenError> {
        match self {
            Device::AfXdp(device) => device.switch(),
            Device::AfPacket(device) => device.switch(),
        }
    }

    /// What holds it beside its sockets, for a successor: claim and link.
    #[must_use]
    pub fn held(&self) -> (BorrowedFd<'_>, Option<BorrowedFd<'_>>) {
        match self {
            Device::AfXdp(device) => device.held(),
            Device::AfPacket(device) => device.held(),
        }
    }

    /// The sockets of its queues, in their order, for a successor.
    #[must_use]
    pub fn sockets(&self) -> &[Arc<OwnedFd>] {
        match self {
            Device::AfXdp(device) => device.sockets(),
            Device::AfPacket(device) => device.sockets(),
        }
    }
}
