//! The kernel flow caches of this machine: one for each device that has one.

use std::sync::Arc;

use datapath::kernel_cache::{self, CacheRegion, Pause, Targets, pause};
use datapath::verdict::DeviceIndex;
use nic::kernel_cache::CacheMemory;
use wire::FlowKey;

/// The cache in front of each device that has one.
#[derive(Clone, Debug)]
pub struct KernelCaches {
    /// One at least.
    pub by_device: Arc<[DeviceCache]>,
    /// Why packets of some devices cannot leave by others, for people.
    pub problems: Arc<[String]>,
}

/// One device's.
#[derive(Clone, Debug)]
pub struct DeviceCache {
    /// The device that its packets come in by.
    pub device: DeviceIndex,
    /// What its filter reads.
    pub memory: CacheMemory,
    /// By device: whether its filter can send by it.
    pub sends_by: Box<[bool]>,
}

impl KernelCaches {
    /// Each device's.
    pub fn iter(&self) -> impl Iterator<Item = &DeviceCache> {
        self.by_device.iter()
    }

    /// A worker's part of each: that of the queue it owns.
    pub fn regions(
        &self,
        worker: usize,
    ) -> impl Iterator<Item = (DeviceIndex, CacheRegion<'static>)> {
        self.iter().map(move |cache| (cache.device, cache.region(worker as u32)))
    }

    /// Has the kernel send nothing by them, or go on where no other reason is left.
    pub fn pause(&self, reason: Pause, paused: bool) {
        self.iter().for_each(|cache| pause_all(&cache.memory, reason, paused));
    }

    /// A flow's entry: the device and the queue whose packets find it, and how many
    /// milliseconds it was not used.
    pub fn find(&self, key: &FlowKey) -> Option<(DeviceIndex, u32, u64)> {
        self.iter().find_map(|cache| {
            let idle_ms = |queue| kernel_cache::idle_ms(&cache.region(queue), key);
            let mut queues = 0..cache.memory.size.queues;
            queues.find_map(|queue| Some((cache.device, queue, idle_ms(queue)?)))
        })
    }
}

impl DeviceCache {
    fn region(&self, queue: u32) -> CacheRegion<'static> {
        let DeviceCache { memory, .. } = self;
        CacheRegion {
            entries: memory.region(queue),
            line: memory.line(queue),
            targets: Targets::new(memory.targets()),
            key: memory.key,
        }
    }
}

/// The same of all queues of one cache.
pub fn pause_all(memory: &CacheMemory, reason: Pause, paused: bool) {
    (0..memory.size.queues).for_each(|queue| pause(memory.line(queue), reason, paused));
}
