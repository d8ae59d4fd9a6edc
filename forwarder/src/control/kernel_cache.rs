//! The kernel flow cache of this machine: whether there is one, its size, and its traffic.
//!
//! ```text
//!  plan, next hops ─► KernelCache::follow ─► targets ─► kernel ─► packets, bytes by target
//!                                                                  │ collected
//!                     the View's counters, by match and member ◄───┘ CachedTraffic
//! ```
//!
//! The kernel counts by target, and targets belong to a View. So before another View gets them,
//! their traffic is added to the present one's counters.

use std::fs::File;
use std::io::Read;
use std::sync::{Arc, Mutex};

use datapath::kernel_cache::entries::{BUCKET_ENTRIES, buckets_for};
use datapath::kernel_cache::services::SERVICE_BUCKETS_MAX;
use datapath::kernel_cache::targets::TARGETS_MAX;
use datapath::kernel_cache::{
    IS_SUPPORTED, Pause, TargetMemory, TargetWriter, Targets, write_hash,
};
use datapath::verdict::DeviceIndex;
use datapath::{Secret, View};
use nic::kernel_cache::{CacheRequest, DEVICES_MAX};
use nic::{CacheSends, Device, DeviceConfig, Driver, Interface, Mode};
use plan::{Plan, proto};
use rustix::thread::{MembarrierCommand, membarrier};

use crate::dataplane::kernel_caches::{DeviceCache, KernelCaches, pause_all};
use crate::netlink::xdp_egress;
use crate::process::memory::{self, mib};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Why there is no cache, for people.
pub type Missing = String;

/// The devices' caches, if there are any.
pub type Found = std::result::Result<KernelCaches, Missing>;

/// True if the plan has it off: there may be one, which is paused then.
#[must_use]
pub fn is_off(plan: &Plan) -> bool {
    let forwarder = plan.message.forwarder.as_ref();
    forwarder.is_some_and(|forwarder| forwarder.kernel_cache() == proto::KernelCache::Off)
}

/// An interface that may have a cache.
pub struct Candidate<'a> {
    /// Its name.
    pub interface: &'a str,
    /// Its driver.
    pub driver: &'static Driver,
    /// RX queues.
    pub queues: u32,
}

/// Has the interfaces opened with caches, if the plan has them and nothing is in the way.
///
/// # Errors
/// What is.
pub fn request(
    asked: &proto::Forwarder,
    connections: u64,
    taken_bytes: u64,
    configs: &mut [DeviceConfig],
) -> std::result::Result<(), Missing> {
    let candidate = |config| {
        let DeviceConfig { interface, driver, .. }: &DeviceConfig = config;
        let queues = Interface::find(interface).map_or(1, |found| found.rx_queues);
        Candidate { interface, driver, queues }
    };
    let candidates: Vec<Candidate<'_>> = configs.iter().map(candidate).collect();
    let requests = requests(asked, connections, taken_bytes, &candidates)?;
    for (config, request) in configs.iter_mut().zip(requests) {
        config.kernel_cache = Some(request);
    }
    Ok(())
}

/// What each of these is to have, where `taken_bytes` of memory are about to be taken for
/// else.
///
/// # Errors
/// What is in the way.
pub fn requests(
    asked: &proto::Forwarder,
    connections: u64,
    taken_bytes: u64,
    candidates: &[Candidate<'_>],
) -> std::result::Result<Vec<CacheRequest>, Missing> {
    if asked.kernel_cache() == proto::KernelCache::Off {
        return Err(
            "kernel_cache was off when this forwarder started: its next start or upgrade makes one"
                .into(),
        );
    }
    refuse_what_cannot_work(asked, candidates).map_err(|error| error.to_string())?;
    let failed = |error: std::io::Error| error.to_string();
    let key = [random().map_err(failed)?, random().map_err(failed)?];
    let index = |one: &Candidate<'_>| Interface::find(one.interface).map(|found| found.index);
    let devices = candidates.iter().map(index).collect::<std::result::Result<Vec<u32>, _>>();
    let devices = devices.map_err(|error| error.to_string())?;
    let room = memory::room();
    let memory_bytes =
        room.as_ref().map_or_else(memory_bytes, |room| room.bytes.min(memory_bytes()));
    let memory_bytes = memory_bytes / candidates.len() as u64;
    let request = |candidate: &Candidate<'_>| {
        let queues = u64::from(candidate.queues.max(1));
        let buckets = buckets_within(memory_bytes, connections, queues);
        if buckets < buckets_for(connections.div_ceil(queues)) {
            tracing::warn!(
                interface = candidate.interface,
                entries = u64::from(buckets) * BUCKET_ENTRIES as u64 * queues,
                "the kernel flow cache has fewer entries than connections_max would have: it takes at most one {MEMORY_SHARE}th of the memory that there is"
            );
        }
        let (targets, service_buckets) = (TARGETS_MAX as u32, SERVICE_BUCKETS_MAX as u32);
        CacheRequest { buckets, targets, service_buckets, key, devices: devices.clone() }
    };
    let requests: Vec<CacheRequest> = candidates.iter().map(request).collect();
    let bytes: u64 =
        requests.iter().zip(candidates).map(|(one, of)| bytes_of(one, of.queues)).sum();
    match room {
        Some(room) if room.bytes < taken_bytes + bytes => Err(format!(
            "memory: it takes {} beside {} for all else, and there are {}: {}",
            mib(bytes),
            mib(taken_bytes),
            mib(room.bytes),
            room.by
        )),
        _ => Ok(requests),
    }
}

/// What a cache takes, and what workers keep beside its entries.
fn bytes_of(request: &CacheRequest, queues: u32) -> u64 {
    let of_workers = u64::from(queues) * u64::from(request.buckets) * BUCKET_BYTES / 2;
    request.bytes(queues) + of_workers
}

fn refuse_what_cannot_work(asked: &proto::Forwarder, candidates: &[Candidate<'_>]) -> Result<()> {
    if !(1..=DEVICES_MAX).contains(&candidates.len()) {
        return Err(format!("there are {} interfaces", candidates.len()).into());
    }
    if let Some(other) = candidates.iter().find(|one| one.driver.abilities.kernel_cache.is_none()) {
        let Candidate { interface, driver, .. } = other;
        return Err(format!("the driver of {interface}, {driver}, has none").into());
    }
    if asked.steering() != proto::Steering::Rss {
        return Err("steering is not rss".into());
    }
    if !IS_SUPPORTED {
        return Err("this processor is no x86".into());
    }
    // One that can be sent by is enough.
    let mut sends = candidates.iter().map(|one| match one.driver.abilities.kernel_cache {
        Some(CacheSends::ByDriver) => xdp_egress::takes_what_programs_send(one.interface),
        _ => Ok(()),
    });
    let first = sends.next().expect("there is one");
    first.or_else(|error| if sends.any(|other| other.is_ok()) { Ok(()) } else { Err(error) })
}

/// The devices' caches, if they are to be used; else why not, which is logged. Where the
/// kernel has one that is not to be used, it sends nothing by it.
pub fn usable(
    asked: &proto::Forwarder,
    devices: &[Device],
    requested: std::result::Result<(), Missing>,
) -> Found {
    let found = requested.and_then(|()| caches(asked, devices));
    match (&found, asked.kernel_cache()) {
        (Ok(caches), _) => caches.problems.iter().for_each(|problem| {
            tracing::warn!(problem, "the kernel flow cache cannot send by this interface from all others: user space does");
        }),
        (Err(why), proto::KernelCache::On) => {
            tracing::warn!(why, "no kernel flow cache: user space sends all packets");
        }
        (Err(why), _) => {
            tracing::info!(why, "no kernel flow cache: user space sends all packets");
        }
    }
    found
}

fn caches(asked: &proto::Forwarder, devices: &[Device]) -> Found {
    let mut refused = "the kernel refuses its memory or its program: the log says why";
    let from_itself: Vec<_> = devices.iter().map(takes_what_drivers_send).collect();
    let from_others: Vec<_> = devices
        .iter()
        .zip(&from_itself)
        .map(|(device, taken)| taken.clone().and_then(|()| takes_what_drivers_redirect(device)))
        .collect();
    let mut by_device = Vec::new();
    for (number, device) in (0..).zip(devices) {
        let Some(memory) = device.kernel_cache().copied() else { continue };
        if asked.kernel_cache() == proto::KernelCache::Auto && device.is_zero_copy() {
            pause_all(&memory, Pause::Off, true);
            refused = "the interface has zero-copy; `kernel_cache: on` has it all the same";
            continue;
        }
        // Outside drivers packets are sent as the kernel's own are.
        let is_outside = device.mode() != Some(Mode::Native);
        let own = usize::from(number);
        let taken = |by| if by == own { &from_itself[by] } else { &from_others[by] };
        let sends_by = (0..devices.len()).map(|by| is_outside || taken(by).is_ok()).collect();
        by_device.push(DeviceCache { device: DeviceIndex(number), memory, sends_by });
    }
    if by_device.is_empty() {
        return Err(refused.into());
    }
    let is_missed = by_device.iter().any(|cache| cache.sends_by.contains(&false));
    let taken = if devices.len() == 1 { from_itself } else { from_others };
    let problems = taken.into_iter().filter_map(|taken| taken.err().filter(|_| is_missed));
    Ok(KernelCaches { problems: problems.collect(), by_device: by_device.into() })
}

/// Whether a program in that device's driver can send by it: such a packet passes the
/// driver alone.
fn takes_what_drivers_send(device: &Device) -> std::result::Result<(), String> {
    let interface = &device.interface().name;
    if device.mode() != Some(Mode::Native) {
        return Err(format!(
            "{interface} has no XDP program in its driver, so that those in drivers cannot send by it"
        ));
    }
    // Trap: a frame of zero-copy memory is copied without headroom for what the program sends
    // (`xdp_convert_zc_to_xdp_frame`), and virtio_net drops one without room for its header.
    if device.is_zero_copy() && nic::driver_of(interface).is_ok_and(|name| name == "virtio_net") {
        return Err(format!(
            "{interface} has zero-copy, with which virtio_net drops what programs send"
        ));
    }
    xdp_egress::takes_what_programs_send(interface).map_err(|error| error.to_string())
}

/// Whether programs in other devices' drivers can send by a device that its own can send
/// by: its driver takes such a packet.
fn takes_what_drivers_redirect(device: &Device) -> std::result::Result<(), String> {
    xdp_egress::takes_what_is_redirected(&device.interface().name)
        .map_err(|error| error.to_string())
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
    /// In their memory, with no target yet.
    #[must_use]
    pub fn new(caches: KernelCaches, secret: &Secret) -> KernelCache {
        caches.iter().for_each(|cache| write_hash(cache.memory.hash(), secret));
        let memory = |cache: &DeviceCache| TargetMemory {
            targets: Targets::new(cache.memory.targets()),
            service_buckets: cache.memory.service_buckets(),
            device: cache.device,
            sends_by: cache.sends_by.clone(),
        };
        let targets = TargetWriter::new(caches.iter().map(memory).collect());
        let counted = Mutex::new(Counted {
            view: None,
            by_target: vec![[0; 2]; TARGETS_MAX].into(),
            packets: 0,
        });
        KernelCache { targets, traffic: Arc::new(CachedTraffic { caches, counted }) }
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
        self.traffic.caches.iter().for_each(|cache| {
            let services = kernel_targets.services.iter().copied();
            if let Err(error) = cache.memory.set_services(services) {
                tracing::warn!(error, "the kernel flow cache cannot have all stateless services: user space sends packets to the others");
            }
        });
        let has_changes = kernel_targets.has_changes;
        let view = Arc::new(view.with_kernel_targets(kernel_targets));
        if has_changes {
            wait_for_kernel();
        }
        let mut counted = self.traffic.lock();
        counted.collect(&self.traffic.caches);
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
    caches: KernelCaches,
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
        counted.collect(&self.caches);
        counted.packets
    }

    /// Entries there is room for.
    #[must_use]
    pub fn entries_max(&self) -> u64 {
        let sizes = self.caches.iter().map(|cache| cache.memory.size);
        let buckets = sizes.map(|size| u64::from(size.queues) * u64::from(size.buckets));
        buckets.sum::<u64>() * BUCKET_ENTRIES as u64
    }

    /// Why packets of some devices cannot leave by others, for people.
    #[must_use]
    pub fn problems(&self) -> String {
        self.caches.problems.join("; ")
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Counted> {
        self.counted.lock().expect("a panic aborts the process")
    }
}

impl Counted {
    fn collect(&mut self, caches: &KernelCaches) {
        let Some(view) = &self.view else { return };
        let Some(counters) = &view.kernel_counters else { return };
        for (matched, member, target) in &view.kernel_targets.used {
            let counted = &mut self.by_target[target.number()];
            let latest = caches.iter().map(|cache| cache.memory.traffic_of(target.number()));
            let latest = latest.fold([0; 2], |sum, more| [0, 1].map(|word| sum[word] + more[word]));
            let [packets, bytes] = [latest[0] - counted[0], latest[1] - counted[1]];
            *counted = latest;
            let matched = &view.plan.matches[*matched as usize].matched;
            counters.count_all(matched, *member, packets, bytes);
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
