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

use std::fmt;

use wire::{BATCH_MAX, CHUNK_BYTES};

use crate::device::Queue;
use crate::drivers::af_packet::PacketDevice;
use crate::drivers::af_xdp::{self, Mode, ModePreference, QueueOptions, Umem, XdpDevice};
use crate::error::OpenError;
use crate::filter::Filter;
use crate::interface::Interface;
use crate::memory::Pool;

/// Frames that a worker may hold beyond its rings: the batch in hand and what
/// it originates (eight times as many), those waiting on rings between threads
/// (as many again to the slow path, and as many for what that originates).
const CHUNKS_IN_HAND: usize = 32 * BATCH_MAX;

/// How frames are got from an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Driver {
    /// AF_XDP.
    #[default]
    AfXdp,
    /// AF_PACKET.
    AfPacket,
}

/// As people and programs call it.
impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Driver::AfXdp => "af_xdp",
            Driver::AfPacket => "af_packet",
        })
    }
}

/// An interface to open.
#[derive(Clone, Debug, Default)]
pub struct DeviceConfig {
    /// Its name.
    pub interface: String,
    /// How.
    pub driver: Driver,
    /// Queues to own; 0 for all it has. With AF_XDP all must be owned.
    pub queues: u32,
    /// How the XDP filter is attached.
    pub mode: ModePreference,
}

/// An open interface, as the control thread holds it. Dropping it takes the
/// filter off.
pub enum Device {
    /// By AF_XDP.
    AfXdp(XdpDevice),
    /// By AF_PACKET.
    AfPacket(PacketDevice),
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
        devices.push(Device::open(config, workers)?);
    }
    let lanes =
        (0..workers).map(|worker| lane(worker, &mut devices, options)).collect::<Result<_, _>>()?;
    Ok((devices, lanes))
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
    let mut chunks = CHUNKS_IN_HAND + chunks_in_hand;
    for (config, &count) in configs.iter().zip(&counts) {
        let device = Device::open(config, count)?;
        chunks += device.chunks(options) * count as usize;
        devices.push(device);
    }
    let no_memory = |error| OpenError::Memory { worker: 0, bytes: chunks * CHUNK_BYTES, error };
    let mut pool = Pool::new(chunks).map_err(no_memory)?;
    let mut umem = Umem::new(pool.memory());
    let mut queues = Vec::with_capacity(devices.len());
    for (device, &count) in devices.iter_mut().zip(&counts) {
        let opened = (0..count).map(|queue| device.queue(queue, &mut umem, &mut pool, options));
        queues.push(opened.collect::<Result<_, _>>()?);
    }
    Ok((devices, SharedIo { pool, queues }))
}

/// How many queues of an interface one thread owns: all, or those that
/// AF_PACKET is asked for.
fn shared_queues(config: &DeviceConfig) -> Result<u32, OpenError> {
    let Interface { name, rx_queues, .. } = Interface::find(&config.interface)?;
    match (config.driver, config.queues) {
        (Driver::AfPacket, queues) => Ok(queues.max(1)),
        (Driver::AfXdp, 0) => Ok(rx_queues),
        (Driver::AfXdp, queues) if queues == rx_queues => Ok(rx_queues),
        (Driver::AfXdp, workers) => {
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
    // AF_XDP has as many as the device; AF_PACKET takes any number.
    let fixed = wanted.iter().find(|(config, ..)| config.driver == Driver::AfXdp);
    let (_, _, workers) = *fixed.or(wanted.first()).ok_or(OpenError::NoInterface)?;
    if workers > af_xdp::QUEUES_MAX {
        return Err(OpenError::Queues { name: wanted[0].1.name.clone(), queues: workers });
    }
    for (config, interface, queues) in wanted {
        let owned = match config.driver {
            Driver::AfXdp => interface.rx_queues,
            Driver::AfPacket if config.queues == 0 => workers,
            Driver::AfPacket => queues,
        };
        if owned != workers {
            return Err(OpenError::QueuesDiffer { name: interface.name, queues: owned, workers });
        }
    }
    Ok(workers)
}

fn lane(
    worker: u32,
    devices: &mut [Device],
    options: &QueueOptions,
) -> Result<WorkerIo, OpenError> {
    let chunks =
        CHUNKS_IN_HAND + devices.iter().map(|device| device.chunks(options)).sum::<usize>();
    let no_memory = |error| OpenError::Memory { worker, bytes: chunks * CHUNK_BYTES, error };
    let mut pool = Pool::new(chunks).map_err(no_memory)?;
    let mut umem = Umem::new(pool.memory());
    let mut queues: Vec<Box<dyn Queue>> = Vec::with_capacity(devices.len());
    for device in devices {
        queues.push(device.queue(worker, &mut umem, &mut pool, options)?);
    }
    Ok(WorkerIo { pool, queues })
}

impl Device {
    fn open(config: &DeviceConfig, workers: u32) -> Result<Device, OpenError> {
        let name = &config.interface;
        Ok(match config.driver {
            Driver::AfXdp => Device::AfXdp(XdpDevice::open(name, config.mode)?),
            Driver::AfPacket => Device::AfPacket(PacketDevice::open(name, workers)?),
        })
    }

    fn queue(
        &mut self,
        queue: u32,
        umem: &mut Umem,
        pool: &mut Pool,
        options: &QueueOptions,
    ) -> Result<Box<dyn Queue>, OpenError> {
        Ok(match self {
            Device::AfXdp(device) => Box::new(device.queue(queue, umem, pool, options)?),
            Device::AfPacket(device) => Box::new(device.queue(queue)?),
        })
    }

    /// Chunks that one of its queues keeps busy.
    fn chunks(&self, options: &QueueOptions) -> usize {
        match self {
            Device::AfXdp(_) => options.chunks(),
            Device::AfPacket(_) => BATCH_MAX,
        }
    }

    /// How frames are got from it.
    #[must_use]
    pub fn driver(&self) -> Driver {
        match self {
            Device::AfXdp(_) => Driver::AfXdp,
            Device::AfPacket(_) => Driver::AfPacket,
        }
    }

    /// How the XDP filter is attached; None: the driver is AF_PACKET.
    #[must_use]
    pub fn mode(&self) -> Option<Mode> {
        match self {
            Device::AfXdp(device) => Some(device.mode()),
            Device::AfPacket(_) => None,
        }
    }

    /// The interface as it was when opened.
    #[must_use]
    pub fn interface(&self) -> &Interface {
        match self {
            Device::AfXdp(device) => device.interface(),
            Device::AfPacket(device) => device.interface(),
        }
    }

    /// What it takes from the kernel, to change.
    pub fn filter(&mut self) -> &mut Filter {
        match self {
            Device::AfXdp(device) => device.filter(),
            Device::AfPacket(device) => device.filter(),
        }
    }

    /// What it takes from the kernel, to read.
    #[must_use]
    pub fn filter_ref(&self) -> &Filter {
        match self {
            Device::AfXdp(device) => device.filter_ref(),
            Device::AfPacket(device) => device.filter_ref(),
        }
    }
}
