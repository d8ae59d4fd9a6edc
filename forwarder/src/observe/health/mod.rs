//! Whether this process forwards: for the processes that announce routes to it, and for the
//! service manager. `proto/guideway/forwarder/v1/health.proto` is the contract.
//!
//! ```text
//!  threads: heartbeats ──┐
//!  netlink: links ───────┼─► Health (atomics) ─► thread `health`: health.sock
//!  control: plan, phase ─┘                    └► thread `watchdog`: systemd
//! ```
//!
//! **Invariant:** reading [`Health`] takes no lock and waits for nothing: no gRPC call, no
//! metrics page, no capture, no change of plan.

mod answering;
mod watchdog;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;

use crate::dataplane::liveness::Liveness;
use crate::dataplane::threads::Heartbeat;
use crate::dataplane::{probe, punt};
use crate::netlink::next_hops::{self, LinksUp};
use crate::process::successor;
use crate::proto;
pub use answering::{CLIENTS_MAX, answer};
pub use watchdog::watch;

/// What is known of this process without asking anybody.
#[derive(Debug)]
pub struct Health {
    /// Heartbeats of the threads that packets need.
    pub liveness: Arc<Liveness>,
    /// Of threads that packets do not need at once.
    pub helpers: Helpers,
    /// Of what every worker forwards by; 0: no plan yet.
    generation: AtomicU64,
    /// Active backends without a next hop.
    next_hops_unresolved: AtomicU32,
    /// A successor is about to go on.
    handing_over: AtomicBool,
    stopping: AtomicBool,
    /// Name and kernel index of the interfaces that are forwarded on.
    interfaces: ArcSwapOption<Vec<(String, u32)>>,
    links_up: LinksUp,
}

/// Threads that packets do not need at once. Without `next-hops` MAC addresses, routes,
/// MTUs and the devices' links are as they were; without the others less is lost.
#[derive(Debug, Default)]
pub struct Helpers {
    /// Follows the kernel's links, routes and neighbours.
    pub next_hops: Heartbeat,
    /// Sends health checks through the tunnels.
    pub probes: Heartbeat,
    /// Waits for a successor.
    pub take_over: Heartbeat,
}

impl Health {
    /// Of a process without a plan; links are read from `links_up`.
    #[must_use]
    pub fn new(links_up: LinksUp, helpers: Helpers) -> Health {
        Health {
            liveness: Arc::default(),
            helpers,
            generation: AtomicU64::new(0),
            next_hops_unresolved: AtomicU32::new(0),
            handing_over: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            interfaces: ArcSwapOption::empty(),
            links_up,
        }
    }

    /// Every worker forwards by the plan of this generation.
    pub fn set_generation(&self, generation: u64) {
        self.generation.store(generation, Ordering::Release);
    }

    /// Active backends that have no next hop.
    pub fn set_next_hops_unresolved(&self, count: usize) {
        self.next_hops_unresolved
            .store(u32::try_from(count).unwrap_or(u32::MAX), Ordering::Release);
    }

    /// What is forwarded on, from the first plan to the end.
    pub fn set_interfaces(&self, interfaces: impl Iterator<Item = (String, u32)>) {
        if self.interfaces.load().is_none() {
            self.interfaces.store(Some(Arc::new(interfaces.collect())));
        }
    }

    /// A successor is about to go on in our place; or it does not after all.
    pub fn set_handing_over(&self, handing_over: bool) {
        self.handing_over.store(handing_over, Ordering::Release);
    }

    /// No more packets are taken.
    pub fn set_stopping(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// The helpers that there are now, by name, and since when each has not gone round.
    pub fn helpers(&self) -> impl Iterator<Item = (&'static str, Duration)> {
        let ages = [
            (next_hops::THREAD, self.helpers.next_hops.age()),
            (punt::THREAD, self.liveness.punt_age()),
            (probe::THREAD, self.helpers.probes.age()),
            (successor::THREAD, self.helpers.take_over.age()),
        ];
        ages.into_iter().filter_map(|(name, age)| Some((name, age?)))
    }

    fn phase(&self) -> proto::HealthPhase {
        if self.stopping.load(Ordering::Acquire) {
            proto::HealthPhase::Stopping
        } else if self.handing_over.load(Ordering::Acquire) {
            proto::HealthPhase::HandingOver
        } else {
            proto::HealthPhase::Running
        }
    }

    /// How we are now.
    #[must_use]
    pub fn report(&self, sequence: u64) -> proto::Health {
        let heartbeats = self.liveness.heartbeats().into_iter();
        let thread = |name: String, age: Duration| proto::ThreadHealth {
            name,
            heartbeat_age_ms: age.as_millis() as u64,
        };
        let (interfaces, links_up) = (self.interfaces.load(), self.links_up.load());
        let device = |(interface, index): &(String, u32)| proto::DeviceHealth {
            interface: interface.clone(),
            up: links_up.contains(index),
        };
        proto::Health {
            sequence,
            pid: std::process::id(),
            generation: self.generation.load(Ordering::Acquire),
            threads: heartbeats.map(|of| thread(of.role.to_string(), of.age)).collect(),
            probes: self.helpers.probes.age().map(|age| thread(probe::THREAD.to_owned(), age)),
            devices: interfaces.iter().flat_map(|known| known.iter()).map(device).collect(),
            phase: self.phase().into(),
            next_hops_unresolved: self.next_hops_unresolved.load(Ordering::Acquire),
            helpers: self.helpers().map(|(name, age)| thread(name.to_owned(), age)).collect(),
        }
    }
}
