//! The View by which workers forward: a plan, its next hops, and counters for everything that
//! the plan names. It is swapped as a whole.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use plan::{Found, Matched, Plan};
use wire::{FlowKey, Protocol};

use crate::clock::Now;
use crate::counters::Counter;
use crate::egress::Egress;
use crate::kernel_cache::KernelTargets;
use crate::reply::ReturnPaths;
use crate::table::Lifetimes;

/// What workers forward by. Made off the workers; never changed.
#[derive(Debug)]
pub struct View {
    /// The plan.
    pub plan: Arc<Plan>,
    /// Its tunnels and next hops.
    pub egress: Egress,
    /// When entries of its services expire.
    pub lifetimes: Lifetimes,
    /// Where answers and reports go.
    pub return_paths: ReturnPaths,
    /// Unix time less our own clock, in milliseconds: marks of traced packets
    /// carry the former. Kept right while people and programs set the time;
    /// the same for all views.
    pub unix_offset_ms: Arc<AtomicI64>,
    /// One for each worker, and one for the slow path.
    pub counters: Arc<[WorkerCounters]>,
    /// Where the kernel may send packets by itself.
    pub kernel_targets: Arc<KernelTargets>,
    /// What it sent so, as far as that was collected; None: there is no kernel flow cache.
    pub kernel_counters: Option<Arc<WorkerCounters>>,
}

impl View {
    /// A new view for `workers` workers and a slow path, its counters at zero.
    #[must_use]
    pub fn new(plan: Arc<Plan>, egress: Egress, workers: usize) -> View {
        let counters = (0..=workers).map(|_| WorkerCounters::new(&plan)).collect();
        View::with_counters(plan, egress, counters)
    }

    /// The same plan with other next hops: counters go on.
    #[must_use]
    pub fn with_egress(&self, egress: Egress) -> View {
        let view = View::with_counters(Arc::clone(&self.plan), egress, Arc::clone(&self.counters));
        View {
            return_paths: self.return_paths,
            unix_offset_ms: Arc::clone(&self.unix_offset_ms),
            kernel_counters: self.kernel_counters.clone(),
            ..view
        }
    }

    /// The same with these targets of a kernel flow cache, and counters for it.
    #[must_use]
    pub fn with_kernel_targets(self, kernel_targets: Arc<KernelTargets>) -> View {
        let new = || Arc::new(WorkerCounters::new(&self.plan));
        let kernel_counters = Some(self.kernel_counters.clone().unwrap_or_else(new));
        View { kernel_targets, kernel_counters, ..self }
    }

    /// The counters of all that forward by this view.
    pub fn all_counters(&self) -> impl Iterator<Item = &WorkerCounters> {
        self.counters.iter().chain(self.kernel_counters.as_deref())
    }

    /// True for packets that are a tunnel's and not a client's: to this
    /// machine; or, as what other clusters spill, to a VIP.
    #[inline]
    #[must_use]
    pub fn takes_tunnel(&self, key: &FlowKey) -> bool {
        let ingress = &self.plan.ingress;
        ingress.is_open() && ingress.is_tunnel(key) && self.is_no_clients(key)
    }

    /// True where a packet that may be a tunnel's cannot be a client's. An
    /// address of the machine may be a VIP, too, with a port as a tunnel's; and
    /// what is spilled is GRE, from a sender that is known.
    #[cold]
    fn is_no_clients(&self, key: &FlowKey) -> bool {
        let (ingress, vips) = (&self.plan.ingress, &self.plan.vips);
        let is_sender = ingress.sender(key.family, key.source).is_some();
        if ingress.is_own(key.family, key.destination) {
            let is_served = || matches!(vips.find(&key.target()), Found::Service(_));
            return is_sender || key.protocol != Protocol::UDP || !is_served();
        }
        is_sender
            && key.protocol == Protocol::GRE
            && vips.address(key.family, key.destination).is_some()
    }

    /// Unix time in milliseconds.
    #[must_use]
    pub fn unix_ms(&self, now: Now) -> u64 {
        now.0.wrapping_add_signed(self.unix_offset_ms.load(Ordering::Relaxed))
    }

    fn with_counters(plan: Arc<Plan>, egress: Egress, counters: Arc<[WorkerCounters]>) -> View {
        let lifetimes = Lifetimes::new(&plan);
        View {
            plan,
            egress,
            lifetimes,
            return_paths: ReturnPaths::default(),
            unix_offset_ms: Arc::default(),
            counters,
            kernel_targets: Arc::default(),
            kernel_counters: None,
        }
    }
}

/// What one worker counts for each thing that a plan names.
#[derive(Debug)]
pub struct WorkerCounters {
    /// By index of the plan's matches; nothing for those that are
    /// [`Matched::alone`].
    matches: Box<[Traffic]>,
    /// Connections for which a member was selected, in the same order.
    match_connections: Box<[Counter]>,
    /// What was sent to members: by service's first member plus index of the
    /// member.
    pub members: Box<[Traffic]>,
    /// Connections for which members were selected, in the same order.
    pub new_connections: Box<[Counter]>,
}

/// What a match got.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MatchTotal {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
    /// Connections for which a member was selected.
    pub new_connections: u64,
}

/// Packets and their bytes, without Ethernet and outer headers.
#[derive(Debug, Default)]
#[repr(align(16))]
pub struct Traffic {
    /// Packets.
    pub packets: Counter,
    /// Bytes.
    pub bytes: Counter,
}

impl WorkerCounters {
    fn new(plan: &Plan) -> WorkerCounters {
        let counters = WorkerCounters {
            matches: plan.matches.iter().map(|_| Traffic::default()).collect(),
            match_connections: plan.matches.iter().map(|_| Counter::default()).collect(),
            members: (0..plan.members).map(|_| Traffic::default()).collect(),
            new_connections: (0..plan.members).map(|_| Counter::default()).collect(),
        };
        counters.fault_in();
        counters
    }

    /// Pages of zeros are not in memory until they are written: no packet is
    /// to wait for the kernel's page fault.
    fn fault_in(&self) {
        self.matches.iter().for_each(|traffic| traffic.packets.add(0));
        self.match_connections.iter().for_each(|counter| counter.add(0));
        self.members.iter().for_each(|traffic| traffic.packets.add(0));
        self.new_connections.iter().for_each(|counter| counter.add(0));
    }

    /// Counts a packet that was sent to a member of the service that wanted it.
    #[inline]
    pub fn count(&self, matched: &Matched, member: u16, packet_bytes: u16) {
        if let Some(traffic) = self.of_match(matched) {
            traffic.count(packet_bytes);
        }
        self.member(matched, member).count(packet_bytes);
    }

    /// Counts what was sent to a member of the service of a match of the plan.
    pub fn count_all(&self, matched: &Matched, member: u16, packets: u64, bytes: u64) {
        let places = self.of_match(matched).into_iter().chain([self.member(matched, member)]);
        for traffic in places {
            traffic.packets.add(packets);
            traffic.bytes.add(bytes);
        }
    }

    /// Where a match is counted that is not alone.
    #[inline(always)]
    pub(crate) fn of_match(&self, matched: &Matched) -> Option<&Traffic> {
        (!matched.alone).then(|| &self.matches[matched.matched as usize])
    }

    /// What was sent to a member of the service of a match.
    #[inline(always)]
    #[must_use]
    pub fn member(&self, matched: &Matched, member: u16) -> &Traffic {
        &self.members[matched.first_member as usize + usize::from(member)]
    }

    /// What was counted for a match of the plan.
    ///
    /// # Panics
    /// If the plan is another than these counters are for.
    #[must_use]
    pub fn match_totals(&self, plan: &Plan, index: usize) -> MatchTotal {
        let matched = &plan.matches[index].matched;
        let (traffic, connections) = match matched.alone {
            true => {
                let service = plan.service_of(matched);
                let first = service.first_member as usize;
                let members = first..first + service.group.members().len();
                (&self.members[members.clone()], &self.new_connections[members])
            }
            false => (&self.matches[index..=index], &self.match_connections[index..=index]),
        };
        MatchTotal {
            packets: traffic.iter().map(|traffic| traffic.packets.get()).sum(),
            bytes: traffic.iter().map(|traffic| traffic.bytes.get()).sum(),
            new_connections: connections.iter().map(Counter::get).sum(),
        }
    }

    /// Counts a connection for which a member of the service that wanted it
    /// was selected.
    #[inline]
    pub fn count_new_connection(&self, matched: &Matched, member: u16) {
        if !matched.alone {
            self.match_connections[matched.matched as usize].add(1);
        }
        self.new_connections[matched.first_member as usize + usize::from(member)].add(1);
    }
}

impl Traffic {
    /// Counts a packet.
    #[inline]
    pub fn count(&self, packet_bytes: u16) {
        self.packets.add(1);
        self.bytes.add(u64::from(packet_bytes));
    }
}
