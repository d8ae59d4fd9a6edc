//! All devices of a forwarder, opened together: each worker gets memory of
//! its own and one queue of every interface.
//!
//! ```text
//!             eth1      eth2
//!  worker 0   queue 0   queue 0   pool 0
//!  worker 1   queue 1   queue 1   pool 1
//! ```
//!
//! **Invariant:** every RX queue of every interface has exactly one owner, or
//! nothing is opened.

use std::any::Any;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use ebpf::xdp::{Mode, ModePreference};
use wire::{BATCH_MAX, CHUNK_BYTES};

use crate::claim::Claim;
use crate::device::Queue;
use crate::drivers::{Driver, InheritedQueue, Port, QueueOwners};
use crate::error::OpenError;
use crate::filter::Filter;
use crate::interface::Interface;
use crate::memory::{Memory, Pool};

/// Queues of an interface that may have owners: entries of the XDP filter's
/// table of sockets (bpf/redirect.bpf.c).
pub const QUEUES_MAX: u32 = 64;

/// Frames that a worker may hold beyond its rings: the batch in hand and what
/// it originates (eight times as many), those waiting on rings between threads
/// (as many again to the slow path, and as many for what that originates).
const CHUNKS_IN_HAND: usize = 32 * BATCH_MAX;

/// An interface to open.
#[derive(Clone, Debug, Default)]
pub struct DeviceConfig {
    /// Its name.
    pub interface: String,
    /// How frames are got from it.
    pub driver: &'static Driver,
    /// Queues to own; 0 for all it has. Some drivers take no fewer
    /// ([`QueueOwners::Each`]).
    pub queues: u32,
    /// How an XDP filter is attached.
    pub mode: ModePreference,
}

/// How queues are made.
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

/// An open interface, as the control thread holds it. Dropping it takes the
/// filter off.
pub struct Device {
    driver: &'static Driver,
    interface: Interface,
    filter: Option<Filter>,
    claim: Claim,
    /// By queue.
    sockets: Vec<Arc<OwnedFd>>,
    port: Box<dyn Port>,
}

/// What one worker owns.
pub struct WorkerIo {
    /// Its packet memory.
    pub pool: Pool,
    /// Its queue of each interface, in the order they were configured.
    pub queues: Vec<Box<dyn Queue>>,
}

/// Opens all interfaces. Where one cannot be, all that were are closed again.
pub fn open(
    configs: &[DeviceConfig],
    options: &QueueOptions,
) -> Result<(Vec<Device>, Vec<WorkerIo>), OpenError> {
    let workers = workers(configs)?;
    let mut devices = Vec::with_capacity(configs.len());
    for config in configs {
        devices.push((config.driver.open)(config, workers)?);
    }
    let io = (0..workers).map(|worker| worker_io(worker, &mut devices, options));
    let io = io.collect::<Result<_, _>>()?;
    Ok((devices, io))
}

/// What one thread owns that receives for all workers.
pub struct SharedIo {
    /// The packet memory of all.
    pub pool: Pool,
    /// All queues of each interface, in the order they were configured.
    pub queues: Vec<Vec<Box<dyn Queue>>>,
}

/// Opens all interfaces for one thread, which owns every queue;
/// `chunks_in_hand` are kept for frames that are in no queue. Interfaces may
/// have different numbers of queues.
pub fn open_shared(
    configs: &[DeviceConfig],
    options: &QueueOptions,
    chunks_in_hand: usize,
) -> Result<(Vec<Device>, SharedIo), OpenError> {
    let counts = configs.iter().map(shared_queues).collect::<Result<Vec<u32>, _>>()?;
    let mut devices = Vec::with_capacity(configs.len());
    let mut chunks = chunks_in_hand;
    for (config, &count) in configs.iter().zip(&counts) {
        let device = (config.driver.open)(config, count)?;
        chunks += (device.driver.chunks)(options) * count as usize;
        devices.push(device);
    }
    let mut lane = Lane::new(0, &devices, chunks)?;
    let mut queues = Vec::with_capacity(devices.len());
    for (device, &count) in devices.iter_mut().zip(&counts) {
        let opened = (0..count).map(|number| device.queue(number, &mut lane, options));
        queues.push(opened.collect::<Result<_, _>>()?);
    }
    Ok((devices, SharedIo { pool: lane.pool, queues }))
}

/// How many queues of an interface one thread owns: all, or as many as are
/// configured of a driver whose queues share what is received.
fn shared_queues(config: &DeviceConfig) -> Result<u32, OpenError> {
    let Interface { name, rx_queues, .. } = Interface::find(&config.interface)?;
    match (config.driver.queues, config.queues) {
        (QueueOwners::Shared, queues) => Ok(queues.max(1)),
        (QueueOwners::Each, 0) => Ok(rx_queues),
        (QueueOwners::Each, queues) if queues == rx_queues => Ok(rx_queues),
        (QueueOwners::Each, workers) => {
            Err(OpenError::QueuesDiffer { name, queues: rx_queues, workers })
        }
    }
}

/// As many workers as the interfaces have queues, which must be the same for
/// all: found out before anything is touched.
fn workers(configs: &[DeviceConfig]) -> Result<u32, OpenError> {
    let mut wanted = Vec::with_capacity(configs.len());
    for config in configs {
        let interface = Interface::find(&config.interface)?;
        let queues = if config.queues == 0 { interface.rx_queues } else { config.queues };
        wanted.push((config, interface, queues));
    }
    // Where each queue has an owner there are as many as the device has.
    let fixed = wanted.iter().find(|(config, ..)| config.driver.queues == QueueOwners::Each);
    let (_, _, workers) = *fixed.or(wanted.first()).ok_or(OpenError::NoInterface)?;
    if workers > QUEUES_MAX {
        return Err(OpenError::Queues { name: wanted[0].1.name.clone(), queues: workers });
    }
    for (config, interface, queues) in wanted {
        let owned = match config.driver.queues {
            QueueOwners::Each => interface.rx_queues,
            QueueOwners::Shared if config.queues == 0 => workers,
            QueueOwners::Shared => queues,
        };
        if owned != workers {
            return Err(OpenError::QueuesDiffer { name: interface.name, queues: owned, workers });
        }
    }
    Ok(workers)
}

fn worker_io(
    worker: u32,
    devices: &mut [Device],
    options: &QueueOptions,
) -> Result<WorkerIo, OpenError> {
    let chunks = devices.iter().map(|device| (device.driver.chunks)(options)).sum();
    let mut lane = Lane::new(worker, devices, chunks)?;
    let queues = devices.iter_mut().map(|device| device.queue(worker, &mut lane, options));
    let queues = queues.collect::<Result<_, _>>()?;
    Ok(WorkerIo { pool: lane.pool, queues })
}

/// One worker's packet memory while its queues are opened.
pub(crate) struct Lane {
    pub(crate) pool: Pool,
    /// What drivers keep of the memory, each in a type of its own.
    registrations: Vec<Box<dyn Any>>,
}

impl Lane {
    /// Memory of the first device's driver, for that many chunks in rings and
    /// those in hand.
    fn new(worker: u32, devices: &[Device], chunks_in_rings: usize) -> Result<Lane, OpenError> {
        let chunks = CHUNKS_IN_HAND + chunks_in_rings;
        let no_memory = |error| OpenError::Memory { worker, bytes: chunks * CHUNK_BYTES, error };
        let first = devices.first().ok_or(OpenError::NoInterface)?;
        let pool = (first.driver.pool)(chunks).map_err(no_memory)?;
        Ok(Lane { pool, registrations: Vec::new() })
    }

    /// What a driver keeps of the memory for all its queues on it, made at
    /// the first one; and the pool.
    pub(crate) fn registered<T: Any>(
        &mut self,
        make: impl FnOnce(&'static Memory) -> T,
    ) -> (&mut T, &mut Pool) {
        let at = self.registrations.iter().position(|registration| registration.is::<T>());
        let at = at.unwrap_or_else(|| {
            self.registrations.push(Box::new(make(self.pool.memory())));
            self.registrations.len() - 1
        });
        let registration = self.registrations[at].downcast_mut().expect("it is of this type");
        (registration, &mut self.pool)
    }
}

impl Device {
    pub(crate) fn new(
        driver: &'static Driver,
        interface: Interface,
        filter: Option<Filter>,
        claim: Claim,
        port: Box<dyn Port>,
    ) -> Device {
        Device { driver, interface, filter, claim, sockets: Vec::new(), port }
    }

    /// Opens a queue. All must be opened, each once, in their order.
    fn queue(
        &mut self,
        number: u32,
        lane: &mut Lane,
        options: &QueueOptions,
    ) -> Result<Box<dyn Queue>, OpenError> {
        let (queue, socket) = self.port.queue(&self.interface, number, lane, options)?;
        self.sockets.push(socket);
        Ok(queue)
    }

    /// The queue on a predecessor's socket.
    pub(crate) fn inherit_queue(
        &mut self,
        number: u32,
        socket: OwnedFd,
        ring_entries: u32,
        memory: &'static Memory,
    ) -> Result<Box<dyn InheritedQueue>, OpenError> {
        let inherited =
            self.port.inherit_queue(&self.interface, number, socket, ring_entries, memory);
        let (queue, socket) = inherited?;
        self.sockets.push(socket);
        Ok(queue)
    }

    /// How frames are got from it.
    #[must_use]
    pub fn driver(&self) -> &'static Driver {
        self.driver
    }

    /// How the XDP filter is attached; None: the driver has none.
    #[must_use]
    pub fn mode(&self) -> Option<Mode> {
        self.port.mode()
    }

    /// The interface as it was when opened.
    #[must_use]
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// What it takes from the kernel, to change; None: it takes all frames.
    pub fn filter(&mut self) -> Option<&mut Filter> {
        self.filter.as_mut()
    }

    /// What it takes from the kernel, to read; None: it takes all frames.
    #[must_use]
    pub fn filter_ref(&self) -> Option<&Filter> {
        self.filter.as_ref()
    }

    /// Puts our filter in the place of the predecessor's, which did the same.
    pub fn switch(&mut self) -> Result<(), OpenError> {
        self.claim.sign();
        self.port.switch(&self.interface, &self.sockets)
    }

    /// What holds it beside its sockets, for a successor: claim and link.
    #[must_use]
    pub fn held(&self) -> (BorrowedFd<'_>, Option<BorrowedFd<'_>>) {
        (self.claim.fd(), self.port.link())
    }

    /// The sockets of its queues, in their order, for a successor.
    #[must_use]
    pub fn sockets(&self) -> &[Arc<OwnedFd>] {
        &self.sockets
    }
}
