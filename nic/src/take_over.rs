//! Devices and packet memory that a running predecessor hands over.
//!
//! ```text
//!  predecessor                            successor
//!  Device::held, Queue::socket,  ───────► Successor::prepare: maps and loads, touches nothing
//!  Memory::file (copies)
//!  its pools stand still, or it  ───────► Successor::quiesced: takes the memories' locks
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

use std::os::fd::OwnedFd;

use ebpf::xdp::Mode;
use wire::CHUNK_BYTES;

use crate::driver::{Device, Driver, Held, Inheritance, InheritedQueue, QueueOwners};
use crate::error::OpenError;
use crate::interface::Interface;
use crate::kernel_cache::CacheRequest;
use crate::memory::{Memory, Pages, Pool};
use crate::open::{SharedIo, WorkerIo};

/// A device that is handed over.
#[derive(Debug)]
pub struct DeviceState {
    /// The interface's name.
    pub interface: String,
    /// How frames are got from it.
    pub driver: &'static Driver,
    /// How the XDP filter is attached, where the driver has one.
    pub mode: Option<Mode>,
    /// Claim and link.
    pub held: Held,
    /// One for each queue, in their order.
    pub sockets: Vec<OwnedFd>,
    /// Entries of each of the sockets' rings.
    pub ring_entries: u32,
    /// What may be sent without user space, from the switch on: a cache of its own.
    pub kernel_cache: Option<CacheRequest>,
}

/// Packet memory that is handed over.
#[derive(Debug)]
pub struct MemoryState {
    /// What is mapped.
    pub file: OwnedFd,
    /// Chunks in it.
    pub chunks: usize,
    /// What it is made of.
    pub pages: Pages,
}

/// All that is needed to go on as soon as the predecessor has stopped.
pub struct Successor {
    devices: Vec<Device>,
    memories: Vec<&'static Memory>,
    /// By device.
    queues: Vec<Vec<Box<dyn InheritedQueue>>>,
}

/// What a predecessor that uses nothing of it any more has left: to go on
/// with. Only [`Successor::quiesced`] makes one.
pub struct Quiesced {
    devices: Vec<Device>,
    /// All chunks are in it that the kernel does not have.
    pools: Vec<Pool>,
    queues: Vec<Vec<Box<dyn InheritedQueue>>>,
}

/// The predecessor uses what it handed over.
#[derive(Debug, thiserror::Error)]
#[error("the running forwarder still uses its packet memory")]
pub struct StillInUse;

impl Successor {
    /// Maps memory and rings, and loads the filters, while the predecessor
    /// runs. With one memory all queues are one thread's; else each worker
    /// has one of them and a queue of each device.
    pub fn prepare(
        memories: Vec<MemoryState>,
        devices: Vec<DeviceState>,
    ) -> Result<Successor, OpenError> {
        let memories = (0..).zip(memories).map(|(worker, memory)| adopt(worker, memory));
        let memories = memories.collect::<Result<Vec<_>, _>>()?;
        let (mut opened, mut queues) = (Vec::new(), Vec::new());
        for state in devices {
            let (device, of_device) = inherit(state, &memories)?;
            opened.push(device);
            queues.push(of_device);
        }
        Ok(Successor { devices: opened, memories, queues })
    }

    /// The devices, whose filters are to be set before they are switched to.
    pub fn devices(&mut self) -> &mut [Device] {
        &mut self.devices
    }

    /// Takes what the predecessor does not use any more.
    pub fn quiesced(self) -> Result<Quiesced, StillInUse> {
        let Successor { devices, memories, queues } = self;
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
                worker.queues.push(queue.resume(&mut worker.pool));
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
        let mut resume = |queue: Box<dyn InheritedQueue>| queue.resume(&mut pool);
        let queues = queues
            .into_iter()
            .map(|of_device| of_device.into_iter().map(&mut resume).collect())
            .collect();
        (devices, SharedIo { pool, queues })
    }
}

fn adopt(worker: u32, memory: MemoryState) -> Result<&'static Memory, OpenError> {
    let MemoryState { file, chunks, pages } = memory;
    let no_memory = |error| OpenError::Memory { worker, bytes: chunks * CHUNK_BYTES, error };
    Memory::adopt(file, chunks, pages).map_err(no_memory)
}

fn inherit(
    state: DeviceState,
    memories: &[&'static Memory],
) -> Result<(Device, Vec<Box<dyn InheritedQueue>>), OpenError> {
    let DeviceState { interface, driver, mode, held, sockets, ring_entries, kernel_cache } = state;
    let (interface, count) = (Interface::find(&interface)?, sockets.len() as u32);
    if driver.queues == QueueOwners::Each && interface.rx_queues != count {
        // It was given more or fewer since; those without an owner lose frames.
        let (name, queues) = (interface.name, interface.rx_queues);
        return Err(OpenError::QueuesDiffer { name, queues, workers: count });
    }
    let mut device =
        (driver.inherit)(Inheritance { interface, mode, held, queues: count, kernel_cache })?;
    let mut queues = Vec::with_capacity(sockets.len());
    for (number, socket) in sockets.into_iter().enumerate() {
        let memory = memories[number.min(memories.len() - 1)];
        queues.push(device.inherit_queue(number as u32, socket, ring_entries, memory)?);
    }
    Ok((device, queues))
}
