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

use crate::device::Queue;
use crate::driver::{Device, DeviceConfig, Lane, QUEUES_MAX, QueueOptions, QueueOwners};
use crate::error::OpenError;
use crate::interface::Interface;
use crate::memory::Pool;

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
    all_alike(options, |options| open_each(configs, options))
}

/// Opens by copies what is zero-copy on some interfaces only.
fn all_alike<T>(
    options: &QueueOptions,
    open: impl Fn(&QueueOptions) -> Result<T, OpenError>,
) -> Result<T, OpenError> {
    match open(options) {
        Err(error @ OpenError::ZeroCopyDiffers { .. }) if !options.copy => {
            tracing::warn!(%error, "the kernel copies packets on all interfaces");
            open(&QueueOptions { copy: true, ..*options })
        }
        result => result,
    }
}

fn open_each(
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

/// How many workers [`open`] makes, and the bytes of packet memory of all.
pub fn needed(configs: &[DeviceConfig], options: &QueueOptions) -> Result<(u32, u64), OpenError> {
    let workers = workers(configs)?;
    let chunks = configs.iter().map(|config| (config.driver.chunks)(options)).sum();
    Ok((workers, u64::from(workers) * Lane::bytes(chunks)))
}

/// The bytes of packet memory that [`open_shared`] has.
pub fn needed_shared(
    configs: &[DeviceConfig],
    options: &QueueOptions,
    chunks_in_hand: usize,
) -> Result<u64, OpenError> {
    let mut chunks = chunks_in_hand;
    for config in configs {
        chunks += (config.driver.chunks)(options) * shared_queues(config)? as usize;
    }
    Ok(Lane::bytes(chunks))
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
    all_alike(options, |options| open_each_shared(configs, options, chunks_in_hand))
}

fn open_each_shared(
    configs: &[DeviceConfig],
    options: &QueueOptions,
    chunks_in_hand: usize,
) -> Result<(Vec<Device>, SharedIo), OpenError> {
    let counts = configs.iter().map(shared_queues).collect::<Result<Vec<u32>, _>>()?;
    let mut devices = Vec::with_capacity(configs.len());
    let mut chunks = chunks_in_hand;
    for (config, &count) in configs.iter().zip(&counts) {
        let device = (config.driver.open)(config, count)?;
        chunks += (device.driver().chunks)(options) * count as usize;
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
        return Err(OpenError::Queues {
            name: wanted[0].1.name.clone(),
            queues: workers,
            queues_max: QUEUES_MAX,
        });
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
    let chunks = devices.iter().map(|device| (device.driver().chunks)(options)).sum();
    let mut lane = Lane::new(worker, devices, chunks)?;
    let queues = devices.iter_mut().map(|device| device.queue(worker, &mut lane, options));
    let queues = queues.collect::<Result<_, _>>()?;
    Ok(WorkerIo { pool: lane.pool, queues })
}
