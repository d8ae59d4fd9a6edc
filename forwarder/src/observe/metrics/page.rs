//! The page of the forwarder's metrics, with the names that operators know (docs/counters.md).

use std::collections::BTreeMap;
use std::time::Duration;

use daemon::metrics::Page;
use datapath::counters::{CacheCounters, ConnectionIdCounters, Counters, FragmentCounters};
use datapath::multipath::Selection;
use datapath::outbox::Kind;
use datapath::{DropReason, Totals};
use nic::{FilterCounters, QueueCounters};
use plan::{BackendId, Plan, ServiceId};

use crate::dataplane::engine::Engine;
use crate::observe::health::Health;
use crate::observe::metrics::definitions;
use crate::proto::{BackendCounters, ServiceCounters, TakenOver};

/// Connections by service, backend and class.
pub type ConnectionCounts = BTreeMap<(ServiceId, BackendId, &'static str), u64>;

/// What a page is made of, once there is a plan.
pub struct Running<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// The workers.
    pub engine: &'a Engine,
    /// Frames received, and their verdicts.
    pub totals: (u64, Totals),
    /// Packets that the kernel flow cache sent; None: there is none.
    pub cached: Option<u64>,
    /// Names of the devices' interfaces, in their order.
    pub interfaces: Vec<&'a str>,
    /// What the filters did, by interface.
    pub filters: Vec<(&'a str, FilterCounters)>,
    /// By Vip.
    pub services: Vec<ServiceCounters>,
    /// By service and backend.
    pub backends: Vec<BackendCounters>,
    /// Tracked connections.
    pub connections: ConnectionCounts,
    /// How many can be tracked.
    pub connections_max: u64,
    /// Active backends without a next hop.
    pub unresolved: usize,
    /// ICMP errors about tunnels that report an MTU.
    pub tunnel_errors: u64,
    /// Time it took to build the plan's tables.
    pub build: Duration,
    /// Health checks through the tunnels; None: the plan has none.
    pub probes: Option<Probes>,
}

/// Health checks through the tunnels.
pub struct Probes {
    /// Their device is there, and the kernel's rules for it.
    pub device_up: bool,
    /// Their packets by what became of them.
    pub packets: Vec<(&'static str, u64)>,
}

/// What is known before there is a plan, too.
pub struct Process<'a> {
    /// The running plan is on disk.
    pub plan_saved: bool,
    /// Since when there is no controller; zero: there is one.
    pub controller_absent: Duration,
    /// Where it came from, if from a predecessor.
    pub taken_over: Option<&'a TakenOver>,
    /// Of its threads.
    pub health: &'a Health,
}

/// The page.
#[must_use]
pub fn render(running: Option<&Running<'_>>, process: &Process<'_>) -> String {
    let mut page = Page::default();
    let mut info = page.metric(&definitions::BUILD_INFO);
    info.sample(&["guideway-forwarder", daemon::VERSION], 1);
    let up = page.metric(&definitions::FORWARDER_UP);
    up.value(u8::from(running.is_some()));
    let saved = page.metric(&definitions::PLAN_SAVED);
    saved.value(u8::from(process.plan_saved));
    page.metric(&definitions::FORWARDER_CONTROLLER_ABSENT_SECONDS)
        .value(process.controller_absent.as_secs_f64());
    heartbeats(&mut page, process.health);
    if let Some(note) = process.taken_over {
        take_over(&mut page, note);
    }
    if let Some(running) = running {
        running.plan(&mut page);
        running.verdicts(&mut page);
        running.too_big(&mut page);
        running.named(&mut page);
        running.connections(&mut page);
        running.devices(&mut page);
        running.given_back(&mut page);
        running.kernel_cache(&mut page);
        running.workers(&mut page);
        if let Some(probes) = &running.probes {
            probes.write(&mut page);
        }
    }
    page.into_text()
}

/// Of a process that went on in another's place.
fn take_over(page: &mut Page, note: &TakenOver) {
    page.metric(&definitions::TAKE_OVER_TIMESTAMP_SECONDS).value(note.time_ms as f64 / 1000.0);
    page.metric(&definitions::TAKE_OVER_PAUSE_SECONDS).value(note.pause_us as f64 / 1e6);
    page.metric(&definitions::TAKE_OVER_EMPTIED_TABLES).value(note.emptied.len());
}

impl Probes {
    fn write(&self, page: &mut Page) {
        let mut packets = page.metric(&definitions::TUNNEL_PROBE_PACKETS_TOTAL);
        for (result, count) in &self.packets {
            packets.sample(&[result], *count);
        }
        page.metric(&definitions::TUNNEL_PROBE_DEVICE_UP).value(u8::from(self.device_up));
    }
}

impl Running<'_> {
    fn plan(&self, page: &mut Page) {
        let generation = page.metric(&definitions::CONFIG_GENERATION);
        generation.value(self.plan.generation);
        page.metric(&definitions::NEIGHBOURS_UNRESOLVED).value(self.unresolved);
        page.metric(&definitions::TABLE_BUILD_SECONDS).value(self.build.as_secs_f64());
        let mut tables = page.metric(&definitions::TABLE_FINGERPRINT);
        for service in self.plan.services() {
            if let Some(table) = service.group.selector() {
                let fingerprint = format!("{:016x}", table.fingerprint());
                tables.sample(&[&service.name, &fingerprint], 1);
            }
        }
    }

    fn verdicts(&self, page: &mut Page) {
        let (received, totals) = (self.totals.0, &self.totals.1);
        let mut frames = page.metric(&definitions::FRAMES_TOTAL);
        for (verdict, count) in [
            ("sent", totals.sent),
            ("passed", totals.passed),
            ("replied", totals.replied),
            ("redirected", totals.redirected),
            ("held", totals.held),
            ("dropped", totals.dropped.iter().sum()),
        ] {
            frames.sample(&[verdict], count);
        }
        let mut drops = page.metric(&definitions::DROP_PACKETS_TOTAL);
        for reason in DropReason::ALL {
            drops.sample(&[reason.name()], totals.dropped[reason.index()]);
        }
        self.fragments(page, totals);
        self.connection_ids(page);
        self.multipath(page);
        page.metric(&definitions::SPILLED_PACKETS_TOTAL)
            .value(self.engine.counters().map(|counters| counters.spilled.get()).sum::<u64>());
        page.metric(&definitions::MISDIRECTED_PACKETS_TOTAL)
            .value(self.engine.counters().map(|counters| counters.misdirected.get()).sum::<u64>());
        let mut made = page.metric(&definitions::ORIGINATED_PACKETS_TOTAL);
        for kind in Kind::ALL {
            made.sample(&[kind.name()], totals.originated[*kind as usize]);
        }
        page.metric(&definitions::ORIGINATED_LOST_PACKETS_TOTAL).value(
            self.engine.counters().map(|counters| counters.originated_lost.get()).sum::<u64>(),
        );
        page.metric(&definitions::UNACCOUNTED_PACKETS).value(totals.unaccounted(received));
    }

    fn fragments(&self, page: &mut Page, totals: &Totals) {
        let mut actions = page.metric(&definitions::FRAGMENTS_TOTAL);
        for (index, (action, _)) in FragmentCounters::default().named().iter().enumerate() {
            let counters = self.engine.counters();
            let sum: u64 = counters.map(|counters| counters.fragments.named()[index].1.get()).sum();
            actions.sample(&[action], sum);
        }
        page.metric(&definitions::FRAGMENTS_WAITING).value(totals.waiting());
    }

    fn connection_ids(&self, page: &mut Page) {
        let mut packets = page.metric(&definitions::QUIC_PACKETS_TOTAL);
        for (index, (by, _)) in ConnectionIdCounters::default().all().enumerate() {
            let of = |counters: &Counters| {
                counters.connection_ids.all().nth(index).map(|(_, c)| c.get())
            };
            let sum: u64 = self.engine.counters().filter_map(of).sum();
            packets.sample(&[by], sum);
        }
    }

    fn multipath(&self, page: &mut Page) {
        let mut packets = page.metric(&definitions::MULTIPATH_PACKETS_TOTAL);
        for (index, by) in Selection::NAMES.into_iter().enumerate() {
            let counters = self.engine.counters();
            let sum: u64 = counters.map(|counters| counters.multipath[index].get()).sum();
            packets.sample(&[by], sum);
        }
        let counters = self.engine.counters();
        page.metric(&definitions::MULTIPATH_UNSERVED_SYNS_TOTAL)
            .value(counters.map(|counters| counters.multipath_unserved.get()).sum::<u64>());
    }

    fn too_big(&self, page: &mut Page) {
        let counters = self.engine.counters();
        let sent: u64 = counters.map(|counters| counters.too_big_answered.get()).sum();
        let mut errors = page.metric(&definitions::ICMP_TOO_BIG_TOTAL);
        errors.sample(&["received"], self.tunnel_errors);
        errors.sample(&["sent"], sent);
    }

    fn named(&self, page: &mut Page) {
        fn labels(line: &ServiceCounters) -> [&str; 4] {
            [&line.service, &line.vip, &line.protocol, &line.ports]
        }
        let mut packets = page.metric(&definitions::VIP_PACKETS_TOTAL);
        self.services.iter().for_each(|line| packets.sample(&labels(line), line.packets));
        let mut bytes = page.metric(&definitions::VIP_BYTES_TOTAL);
        self.services.iter().for_each(|line| bytes.sample(&labels(line), line.bytes));
        fn member(line: &BackendCounters) -> [&str; 2] {
            [&line.service, &line.backend]
        }
        let mut packets = page.metric(&definitions::BACKEND_PACKETS_TOTAL);
        self.backends.iter().for_each(|line| packets.sample(&member(line), line.packets));
        let mut bytes = page.metric(&definitions::BACKEND_BYTES_TOTAL);
        self.backends.iter().for_each(|line| bytes.sample(&member(line), line.bytes));
        let mut fresh = page.metric(&definitions::BACKEND_NEW_CONNECTIONS_TOTAL);
        self.backends.iter().for_each(|line| fresh.sample(&member(line), line.new_connections));
    }

    fn connections(&self, page: &mut Page) {
        let mut classes = BTreeMap::from([("unconfirmed", 0), ("established", 0), ("closing", 0)]);
        let mut backends = BTreeMap::<_, u64>::new();
        for ((service, backend, class), count) in &self.connections {
            *classes.entry(class).or_default() += count;
            *backends.entry((*service, *backend)).or_default() += count;
        }
        let mut all = page.metric(&definitions::CONNECTIONS);
        classes.iter().for_each(|(class, count)| all.sample(&[class], count));
        page.metric(&definitions::CONNECTIONS_MAX).value(self.connections_max);
        let mut by_backend = page.metric(&definitions::BACKEND_CONNECTIONS);
        for ((service, backend), count) in &backends {
            if let (Some(service), Some(backend)) =
                (self.plan.service(*service), self.plan.backend(*backend))
            {
                by_backend.sample(&[&service.name, &backend.name], count);
            }
        }
        self.table_events(page);
    }

    fn table_events(&self, page: &mut Page) {
        let sum = |read: fn(&datapath::counters::ConnectionCounters) -> u64| -> u64 {
            self.engine.counters().map(|counters| read(&counters.connections)).sum()
        };
        page.metric(&definitions::CONNECTIONS_HITS_TOTAL)
            .value(sum(|counters| counters.hits.get()));
        page.metric(&definitions::CONNECTIONS_MISSES_TOTAL)
            .value(sum(|counters| counters.misses.get()));
        page.metric(&definitions::CONNECTIONS_INSERTS_TOTAL)
            .value(sum(|counters| counters.inserts.get()));
        page.metric(&definitions::CONNECTIONS_EXPIRED_TOTAL)
            .value(sum(|counters| counters.expired.get()));
        page.metric(&definitions::CONNECTIONS_DISPLACED_TOTAL)
            .value(sum(|counters| counters.displaced.get()));
        let mut refused = page.metric(&definitions::CONNECTIONS_REFUSED_TOTAL);
        refused.sample(&["table_full"], sum(|counters| counters.refused_full.get()));
        refused.sample(&["quota"], sum(|counters| counters.refused_quota.get()));
        page.metric(&definitions::CONNECTIONS_UNCONFIRMED_AT_SHARE_TOTAL)
            .value(sum(|counters| counters.unconfirmed_at_share.get()));
        self.second_chances(page);
    }

    fn second_chances(&self, page: &mut Page) {
        let mut metric = page.metric(&definitions::SECOND_CHANCE_PACKETS_TOTAL);
        let counters = || self.engine.counters().map(|counters| &counters.second_chances);
        let sent = counters().map(|chances| chances.sent.get()).sum::<u64>();
        let limited = counters().map(|chances| chances.limited.get()).sum::<u64>();
        metric.sample(&["earlier_named"], sent);
        metric.sample(&["limited"], limited);
    }

    fn devices(&self, page: &mut Page) {
        let queues = self.queues();
        let mut each = |metric, read: fn(&QueueCounters) -> u64| {
            let mut metric = page.metric(metric);
            for (interface, queue, counters) in &queues {
                metric.sample(&[interface, queue], read(counters));
            }
        };
        each(&definitions::RX_PACKETS_TOTAL, |queue| queue.received);
        each(&definitions::RX_BYTES_TOTAL, |queue| queue.received_bytes);
        each(&definitions::TX_PACKETS_TOTAL, |queue| queue.transmitted);
        each(&definitions::TX_BYTES_TOTAL, |queue| queue.transmitted_bytes);
        let mut unsent = page.metric(&definitions::TX_LOST_PACKETS_TOTAL);
        for (interface, queue, counters) in &queues {
            unsent.sample(&[interface, queue], counters.tx_invalid);
        }
        let mut lost = page.metric(&definitions::RX_LOST_PACKETS_TOTAL);
        for (interface, queue, counters) in &queues {
            for (place, count) in [
                ("kernel", counters.rx_dropped),
                ("ring_full", counters.rx_ring_full),
                ("fill_empty", counters.fill_empty),
                ("too_long", counters.rx_too_long),
                ("invalid", counters.rx_invalid),
            ] {
                lost.sample(&[interface, queue, place], count);
            }
        }
        for &(interface, counters) in &self.filters {
            lost.sample(&[interface, "-", "no_socket"], counters.no_socket);
            lost.sample(&[interface, "-", "unsent"], counters.unsent);
        }
        let mut joined = page.metric(&definitions::RX_JOINED_PACKETS_TOTAL);
        for (interface, queue, counters) in &queues {
            joined.sample(&[interface, queue], counters.rx_joined);
        }
        let mut checksums = page.metric(&definitions::CHECKSUM_SAMPLES_TOTAL);
        for (device, interface) in self.interfaces.iter().enumerate() {
            let counts = self.engine.checksums().map(|samples| samples.counts(device));
            let [complete, incomplete] = counts
                .fold([0, 0], |[c, i], [complete, incomplete]| [c + complete, i + incomplete]);
            checksums.sample(&[interface, "complete"], complete);
            checksums.sample(&[interface, "incomplete"], incomplete);
        }
        let mut filtered = page.metric(&definitions::FILTER_PACKETS_TOTAL);
        for &(interface, counters) in &self.filters {
            filtered.sample(&[interface, "taken"], counters.taken);
            filtered.sample(&[interface, "passed"], counters.passed);
            filtered.sample(&[interface, "cached"], counters.cached);
        }
    }

    /// Nothing, where there is no cache.
    fn kernel_cache(&self, page: &mut Page) {
        let Some(cached) = self.cached else { return };
        page.metric(&definitions::KERNEL_CACHE_PACKETS_TOTAL).value(cached);
        let mut entries = page.metric(&definitions::KERNEL_CACHE_ENTRIES_TOTAL);
        let sum = |read: fn(&CacheCounters) -> &datapath::counters::Counter| -> u64 {
            self.engine.counters().map(|counters| read(&counters.kernel_cache).get()).sum()
        };
        for (event, count) in [
            ("entered", sum(|counters| &counters.entered)),
            ("retargeted", sum(|counters| &counters.retargeted)),
            ("displaced", sum(|counters| &counters.displaced)),
            ("refused_full", sum(|counters| &counters.refused_full)),
            ("closed", sum(|counters| &counters.closed)),
            ("expired", sum(|counters| &counters.expired)),
        ] {
            entries.sample(&[event], count);
        }
    }

    /// What `passed` frames became; the rest is on its way.
    fn given_back(&self, page: &mut Page) {
        let ports = self.engine.ports();
        let mut frames = page.metric(&definitions::PASSED_PACKETS_TOTAL);
        for port in ports {
            let labels = |result| [port.interface.as_str(), result];
            frames.sample(&labels("taken"), port.given());
            frames.sample(&labels("lost"), port.lost());
        }
        let mut up = page.metric(&definitions::TAP_UP);
        for port in ports {
            up.sample(&[&port.interface], u8::from(port.state().is_ok()));
        }
    }

    /// Interface, queue, counters.
    fn queues(&self) -> Vec<(&str, String, QueueCounters)> {
        let mut queues = Vec::new();
        for queue in self.engine.queues() {
            queues.push((
                self.interfaces[queue.device],
                queue.number.to_string(),
                queue.meter.read(),
            ));
        }
        queues
    }

    fn workers(&self, page: &mut Page) {
        let threads = self.engine.publisher().threads();
        let workers = &threads[..self.engine.workers()];
        let mut busy = page.metric(&definitions::WORKER_BUSY_RATIO);
        for (index, thread) in workers.iter().enumerate() {
            busy.sample(&[&index.to_string()], thread.busy_ratio());
        }
    }
}

/// Of threads that packets need, and of the others.
fn heartbeats(page: &mut Page, health: &Health) {
    let mut age = page.metric(&definitions::THREAD_HEARTBEAT_AGE_SECONDS);
    for thread in health.liveness.heartbeats() {
        age.sample(&[&thread.role.to_string()], thread.age.as_secs_f64());
    }
    for (name, since) in health.helpers() {
        age.sample(&[name], since.as_secs_f64());
    }
}
