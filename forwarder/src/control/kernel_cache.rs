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
use datapath::kernel_cache::entries::buckets_for;
use datapath::kernel_cache::targets::TARGETS_MAX;
use datapath::kernel_cache::{IS_SUPPORTED, TargetWriter, Targets};
use nic::kernel_cache::{CacheMemory, CacheRequest};
use nic::{DeviceConfig, Driver, Interface, drivers};
use plan::proto;
use rustix::thread::{MembarrierCommand, membarrier};

use crate::netlink::veth_peer;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Has the one interface opened with a cache, if the plan has one and nothing is in its
/// way; else a warning says what.
pub fn request(asked: &proto::Forwarder, connections: u64, configs: &mut [DeviceConfig]) {
    let [config] = configs else { return warn_of_several(asked) };
    let queues = Interface::find(&config.interface).map_or(1, |interface| interface.rx_queues);
    config.kernel_cache = request_for(asked, connections, config.driver, queues);
}

/// The same for an interface with that many queues that is taken over.
#[must_use]
pub fn request_for(
    asked: &proto::Forwarder,
    connections: u64,
    driver: &Driver,
    queues: u32,
) -> Option<CacheRequest> {
    if asked.kernel_cache() != proto::KernelCache::On {
        return None;
    }
    if asked.interfaces.len() != 1 {
        warn_of_several(asked);
        return None;
    }
    match sized(asked, connections, driver, queues) {
        Ok(request) => Some(request),
        Err(why) => {
            warn(&why.to_string());
            None
        }
    }
}

fn warn_of_several(asked: &proto::Forwarder) {
    if asked.kernel_cache() == proto::KernelCache::On {
        warn("there is more than one interface");
    }
}

fn warn(why: &str) {
    tracing::warn!(why, "no kernel flow cache: user space sends all packets");
}

fn sized(
    asked: &proto::Forwarder,
    connections: u64,
    driver: &Driver,
    queues: u32,
) -> Result<CacheRequest> {
    if driver != &drivers::af_xdp::DRIVER {
        return Err("the interface's driver is not af_xdp".into());
    }
    if asked.steering() != proto::Steering::Rss {
        return Err("steering is not rss".into());
    }
    if !IS_SUPPORTED {
        return Err("this processor is no x86".into());
    }
    for interface in &asked.interfaces {
        veth_peer::takes_what_programs_send(&interface.name)?;
    }
    let buckets = buckets_for(connections.div_ceil(queues.max(1).into()));
    Ok(CacheRequest { buckets, targets: TARGETS_MAX as u32, key: [random()?, random()?] })
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

fn random() -> Result<u64> {
    let mut bytes = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}
