//! The kernel flow cache of this machine: whether there is one, how large it is, and
//! what it sent.
//!
//! ```text
//!  plan, next hops ─► KernelCache::follow ─► targets ─► kernel ─► packets, bytes by target
//!                                                                  │ collected
//!                     the View's counters, by match and member ◄───┘ CachedTraffic
//! ```
//!
//! The kernel counts by target. Targets are of a View; so before another View has them,
//! what they sent is counted there.

use std::fs::File;
use std::io::Read;
use std::sync::{Arc, Mutex};

use datapath::View;
use datapath::kernel_cache::entries::{BUCKET_ENTRIES, buckets_for};
use datapath::kernel_cache::targets::TARGETS_MAX;
use datapath::kernel_cache::{IS_SUPPORTED, Pause, TargetWriter, Targets, pause};
use nic::kernel_cache::{CacheMemory, CacheRequest};
use nic::{Device, DeviceConfig, Driver, Interface, drivers};
use plan::{Plan, proto};
use rustix::thread::{MembarrierCommand, membarrier};

use crate::netlink::veth_peer;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Why there is no cache, for people.
pub type Missing = String;

/// The memory of the cache, if there is one.
pub type Found = std::result::Result<CacheMemory, Missing>;

/// True if the plan has it off: there may be one, which is paused then.
#[must_use]
pub fn is_off(plan: &Plan) -> bool {
    let forwarder = plan.message.forwarder.as_ref();
    forwarder.is_some_and(|forwarder| forwarder.kernel_cache() == proto::KernelCache::Off)
}

/// Has the interface opened with a cache, if the plan has one and nothing is in its way.
///
/// # Errors
/// What is.
pub fn request(
    asked: &proto::Forwarder,
    connections: u64,
    configs: &mut [DeviceConfig],
) -> std::result::Result<(), Missing> {
    let Some(config) = configs.first_mut() else { return Err("there is no interface".into()) };
    let queues = Interface::find(&config.interface).map_or(1, |interface| interface.rx_queues);
    config.kernel_cache = Some(request_for(asked, connections, config.driver, queues)?);
    Ok(())
}

/// The same for an interface with that many queues that is taken over.
pub fn request_for(
    asked: &proto::Forwarder,
    connections: u64,
    driver: &Driver,
    queues: u32,
) -> std::result::Result<CacheRequest, Missing> {
    if asked.kernel_cache() == proto::KernelCache::Off {
        return Err(
            "kernel_cache was off when this forwarder started: its next start or upgrade makes one"
                .into(),
        );
    }
    refuse_what_cannot_work(asked, driver).map_err(|error| error.to_string())?;
    let failed = |error: std::io::Error| error.to_string();
    let key = [random().map_err(failed)?, random().map_err(failed)?];
    let memory_bytes = memory_bytes();
    let buckets = buckets_within(memory_bytes, connections, queues.max(1).into());
    if buckets < buckets_for(connections.div_ceil(queues.max(1).into())) {
        tracing::warn!(
            entries = u64::from(buckets) * BUCKET_ENTRIES as u64 * u64::from(queues),
            "the kernel flow cache has fewer entries than connections_max would have: it takes at most one {MEMORY_SHARE}th of the machine's memory"
        );
    }
    Ok(CacheRequest { buckets, targets: TARGETS_MAX as u32, key })
}

fn refuse_what_cannot_work(asked: &proto::Forwarder, driver: &Driver) -> Result<()> {
    if asked.interfaces.len() > 1 {
        return Err("there is more than one interface".into());
    }
    if driver != &drivers::af_xdp::DRIVER {
        return Err("the interface's driver is not af_xdp".into());
    }
    if asked.steering() != proto::Steering::Rss {
        return Err("steering is not rss".into());
    }
    if !IS_SUPPORTED {
        return Err("this processor is no x86".into());
    }
    let mut names = asked.interfaces.iter().map(|interface| &interface.name);
    names.try_for_each(|name| veth_peer::takes_what_programs_send(name))
}

/// The memory of the devices' cache, if it is to be used; else why not, which is logged.
/// Where the kernel has one that is not to be used, it sends nothing by it.
pub fn usable(
    asked: &proto::Forwarder,
    devices: &[Device],
    requested: std::result::Result<(), Missing>,
) -> Found {
    let found = requested.and_then(|()| {
        let cached = devices.iter().find_map(|device| Some((device, *device.kernel_cache()?)));
        let refused = "the kernel refuses its memory or its program: the log says why";
        let (device, memory) = cached.ok_or(refused)?;
        if asked.kernel_cache() == proto::KernelCache::Auto && device.is_zero_copy() {
            let lines = (0..memory.size.queues).map(|queue| memory.line(queue));
            lines.for_each(|line| pause(line, Pause::Off, true));
            return Err(
                "the interface has zero-copy; `kernel_cache: on` has it all the same".into()
            );
        }
        Ok(memory)
    });
    if let Err(why) = &found {
        match asked.kernel_cache() {
            proto::KernelCache::On => {
                tracing::warn!(why, "no kernel flow cache: user space sends all packets")
            }
            _ => tracing::info!(why, "no kernel flow cache: user space sends all packets"),
        }
    }
    found
}

/// The cache's entries, and what workers keep of each beside them, take at most this
/// share of the machine's memory.
const MEMORY_SHARE: u64 = 16;
/// Of a bucket: a line of the kernel's, and as much of the worker's.
const BUCKET_BYTES: u64 = 2 * 64;
const BUCKETS_MIN: u64 = 256;

/// Buckets of each queue's region.
fn buckets_within(memory_bytes: u64, connections: u64, queues: u64) -> u32 {
    let room = (memory_bytes / MEMORY_SHARE / BUCKET_BYTES / queues).max(BUCKETS_MIN);
    let rounded_down = 1 << room.ilog2().min(31);
    buckets_for(connections.div_ceil(queues)).min(rounded_down)
}

fn memory_bytes() -> u64 {
    let known = rustix::system::sysinfo();
    known.totalram.saturating_mul(known.mem_unit.into())
}

/// The cache as the control thread keeps it.
pub struct KernelCache {
    targets: TargetWriter<'static>,
    traffic: Arc<CachedTraffic>,
}

impl KernelCache {
    /// In that memory, with no target yet.
    #[must_use]
    pub fn new(memory: CacheMemory) -> KernelCache {
        let targets = TargetWriter::new(Targets::new(memory.targets()));
        let counted = Mutex::new(Counted {
            view: None,
            by_target: vec![[0; 2]; memory.size.targets as usize].into(),
            packets: 0,
        });
        KernelCache { targets, traffic: Arc::new(CachedTraffic { memory, counted }) }
    }

    /// What it sends.
    #[must_use]
    pub fn traffic(&self) -> &Arc<CachedTraffic> {
        &self.traffic
    }

    /// The View with targets: from here on the kernel sends by it, and it is to be
    /// published. What was sent by the former one is counted there when this returns.
    pub fn follow(&mut self, view: View) -> Arc<View> {
        let kernel_targets = self.targets.follow(&view.plan, &view.egress);
        let has_changes = kernel_targets.has_changes;
        let view = Arc::new(view.with_kernel_targets(kernel_targets));
        if has_changes {
            wait_for_kernel();
        }
        let mut counted = self.traffic.lock();
        counted.collect(&self.traffic.memory);
        counted.view = Some(Arc::clone(&view));
        drop(counted);
        view
    }
}

/// Returns when each processor has done with the packet that it was in the filter with:
/// this command waits for the readers of RCU, which filters are. Kernels booted with
/// `nohz_full` have it not; a packet counted too late there is its target's next
/// owner's.
fn wait_for_kernel() {
    if let Err(error) = membarrier(MembarrierCommand::Global) {
        tracing::debug!(%error, "not waited for the kernel's filter");
    }
}

/// What the kernel sent by the cache.
pub struct CachedTraffic {
    memory: CacheMemory,
    counted: Mutex<Counted>,
}

struct Counted {
    /// Whose targets these are.
    view: Option<Arc<View>>,
    /// Packets and bytes of each that are counted.
    by_target: Box<[[u64; 2]]>,
    /// Packets of all.
    packets: u64,
}

impl CachedTraffic {
    /// Counts what was sent up to now in the latest View; packets since the start.
    pub fn collect(&self) -> u64 {
        let mut counted = self.lock();
        counted.collect(&self.memory);
        counted.packets
    }

    /// Entries there is room for.
    #[must_use]
    pub fn entries_max(&self) -> u64 {
        let size = &self.memory.size;
        u64::from(size.queues) * u64::from(size.buckets) * BUCKET_ENTRIES as u64
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Counted> {
        self.counted.lock().expect("a panic aborts the process")
    }
}

impl Counted {
    fn collect(&mut self, memory: &CacheMemory) {
        let Some(view) = &self.view else { return };
        let Some(counters) = &view.kernel_counters else { return };
        for (matched, member, target) in view.kernel_targets.iter() {
            let counted = &mut self.by_target[target.number()];
            let latest = memory.traffic_of(target.number());
            let [packets, bytes] = [latest[0] - counted[0], latest[1] - counted[1]];
            *counted = latest;
            counters.count_all(&view.plan.matches[matched].matched, member, packets, bytes);
            self.packets += packets;
        }
    }
}

fn random() -> std::io::Result<u64> {
    let mut bytes = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_twice_the_connections_unless_memory_is_short() {
        let gib = 1 << 30;
        assert_eq!(buckets_within(64 * gib, 1_000_000, 1), 1 << 19);
        assert_eq!(buckets_within(64 * gib, 1_000_000, 4), 1 << 17);
        // 64 MiB at most, of 128 bytes each.
        assert_eq!(buckets_within(gib, 1_000_000, 1), 1 << 19);
        assert_eq!(buckets_within(gib, 4_000_000, 1), 1 << 19);
        assert_eq!(buckets_within(gib, 4_000_000, 2), 1 << 18);
        assert_eq!(buckets_within(0, 4_000_000, 2), 256);
    }
}
