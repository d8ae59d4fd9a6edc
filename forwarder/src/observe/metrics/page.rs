//! The forwarder's metrics, by the names operators know (docs/counters.md).

use std::collections::BTreeMap;
use std::time::Duration;

use datapath::counters::{CacheCounters, ConnectionIdCounters, Counters, FragmentCounters};
use datapath::multipath::Selection;
use datapath::outbox::Kind;
use datapath::{DropReason, Totals};
use nic::kernel_cache::DEVICES_MAX;
use nic::{FilterCounters, QueueCounters};
use plan::{BackendId, Plan, ServiceId};

use crate::dataplane::engine::Engine;
use crate::netlink::path_mtu::{Heard, PathMtuTable};
use crate::observe::metrics::text::Kind::{Counter, Gauge};
use crate::observe::metrics::text::Page;
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
    /// Those among them that each device did not send; None: they cannot be counted.
    pub cached_lost: Option<[u64; DEVICES_MAX]>,
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
    /// What was learnt of paths.
    pub path_mtus: &'a PathMtuTable,
    /// Errors that reported path MTUs.
    pub heard: Heard,
    /// Backends about which none is learned for the time being.
    pub path_mtus_paused: usize,
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
}

/// The page.
#[must_use]
pub fn render(running: Option<&Running<'_>>, process: &Process<'_>) -> String {
    let mut page = Page::default();
    let mut info = page.metric("guideway_build_info", Gauge, "Version of the program.");
    info.sample(&[("program", "guideway-forwarder"), ("version", env!("CARGO_PKG_VERSION"))], 1);
    let up = page.metric("guideway_forwarder_up", Gauge, "1: forwarding by a plan.");
    up.value(u8::from(running.is_some()));
    let saved = page.metric("guideway_plan_saved", Gauge, "1: the running plan is on disk.");
    saved.value(u8::from(process.plan_saved));
    page.metric(
        "guideway_forwarder_controller_absent_seconds",
        Gauge,
        "How long no controller has requested anything of the forwarder: it goes on by its last plan, and nothing follows the backends' health. 0: one is there.",
    )
    .value(process.controller_absent.as_secs_f64());
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
    page.metric(
        "guideway_take_over_timestamp_seconds",
        Gauge,
        "When this process took over from its predecessor.",
    )
    .value(note.time_ms as f64 / 1000.0);
    page.metric(
        "guideway_take_over_pause_seconds",
        Gauge,
        "How long nothing was taken from the devices then; frames waited in their rings.",
    )
    .value(note.pause_us as f64 / 1e6);
    page.metric(
        "guideway_take_over_emptied_tables",
        Gauge,
        "Connection tables that had to start empty then.",
    )
    .value(note.emptied.len());
}

impl Probes {
    fn write(&self, page: &mut Page) {
        let mut packets = page.metric(
            "guideway_tunnel_probe_packets_total",
            Counter,
            "Packets of health checks through the tunnels, by what became of them.",
        );
        for (result, count) in &self.packets {
            packets.sample(&[("result", result)], *count);
        }
        page.metric(
            "guideway_tunnel_probe_device_up",
            Gauge,
            "1: health checks through the tunnels leave by their device.",
        )
        .value(u8::from(self.device_up));
    }
}

impl Running<'_> {
    fn plan(&self, page: &mut Page) {
        let generation =
            page.metric("guideway_config_generation", Gauge, "Generation of the running plan.");
        generation.value(self.plan.generation);
        page.metric(
            "guideway_neighbours_unresolved",
            Gauge,
            "Active backends whose next hop is not known.",
        )
        .value(self.unresolved);
        page.metric(
            "guideway_table_build_seconds",
            Gauge,
            "Time to decode the plan and build its changed tables.",
        )
        .value(self.build.as_secs_f64());
        let mut tables = page.metric(
            "guideway_table_fingerprint",
            Gauge,
            "Always 1; the label is equal on all machines with the same members.",
        );
        for service in self.plan.services() {
            if let Some(table) = service.group.selector() {
                let fingerprint = format!("{:016x}", table.fingerprint());
                tables.sample(&[("service", &service.name), ("fingerprint", &fingerprint)], 1);
            }
        }
    }

    fn verdicts(&self, page: &mut Page) {
        let (received, totals) = (self.totals.0, &self.totals.1);
        let mut frames = page.metric(
            "guideway_frames_total",
            Counter,
            "Received frames by their final verdict, those that the kernel flow cache sent among them.",
        );
        for (verdict, count) in [
            ("sent", totals.sent),
            ("passed", totals.passed),
            ("replied", totals.replied),
            ("redirected", totals.redirected),
            ("held", totals.held),
            ("dropped", totals.dropped.iter().sum()),
        ] {
            frames.sample(&[("verdict", verdict)], count);
        }
        let mut drops =
            page.metric("guideway_drop_packets_total", Counter, "Dropped frames by reason.");
        for reason in DropReason::ALL {
            drops.sample(&[("reason", reason.name())], totals.dropped[reason.index()]);
        }
        self.fragments(page, totals);
        self.connection_ids(page);
        self.multipath(page);
        page.metric(
            "guideway_spilled_packets_total",
            Counter,
            "Redirected ones that went to another cluster.",
        )
        .value(self.engine.counters().iter().map(|counters| counters.spilled.get()).sum::<u64>());
        page.metric(
            "guideway_misdirected_packets_total",
            Counter,
            "Packets steered to another worker than their flow's, which was full.",
        )
        .value(
            self.engine.counters().iter().map(|counters| counters.misdirected.get()).sum::<u64>(),
        );
        let mut made = page.metric(
            "guideway_originated_packets_total",
            Counter,
            "Frames made beyond those received.",
        );
        for kind in Kind::ALL {
            made.sample(&[("kind", kind.name())], totals.originated[*kind as usize]);
        }
        page.metric(
            "guideway_originated_lost_packets_total",
            Counter,
            "Those that could not be made or sent: no memory, or a full transmit ring.",
        )
        .value(
            self.engine
                .counters()
                .iter()
                .map(|counters| counters.originated_lost.get())
                .sum::<u64>(),
        );
        page.metric(
            "guideway_unaccounted_packets",
            Gauge,
            "Received frames without a verdict; 0 at rest.",
        )
        .value(totals.unaccounted(received));
    }

    fn fragments(&self, page: &mut Page, totals: &Totals) {
        let mut actions =
            page.metric("guideway_fragments_total", Counter, "Fragments by what was done.");
        for (index, (action, _)) in FragmentCounters::default().named().iter().enumerate() {
            let counters = self.engine.counters().iter();
            let sum: u64 = counters.map(|counters| counters.fragments.named()[index].1.get()).sum();
            actions.sample(&[("action", action)], sum);
        }
        page.metric(
            "guideway_fragments_waiting",
            Gauge,
            "Received fragments that wait for their first one, and have no final verdict yet.",
        )
        .value(totals.waiting());
    }

    fn connection_ids(&self, page: &mut Page) {
        let mut packets = page.metric(
            "guideway_quic_packets_total",
            Counter,
            "UDP packets to services with QUIC connection ids, by what decided: the connection \
             id, or why the flow did.",
        );
        for (index, (by, _)) in ConnectionIdCounters::default().all().enumerate() {
            let of = |counters: &Counters| {
                counters.connection_ids.all().nth(index).map(|(_, c)| c.get())
            };
            let sum: u64 = self.engine.counters().iter().filter_map(|counters| of(counters)).sum();
            packets.sample(&[("by", by)], sum);
        }
    }

    fn multipath(&self, page: &mut Page) {
        let mut packets = page.metric(
            "guideway_multipath_packets_total",
            Counter,
            "TCP packets to services with Multipath TCP, by what selected their bucket: a key, a \
             token, an echoed timestamp, or why the five-tuple did.",
        );
        for (index, by) in Selection::NAMES.into_iter().enumerate() {
            let counters = self.engine.counters().iter();
            let sum: u64 = counters.map(|counters| counters.multipath[index].get()).sum();
            packets.sample(&[("by", by)], sum);
        }
        let counters = self.engine.counters().iter();
        page.metric(
            "guideway_multipath_unserved_syns_total",
            Counter,
            "SYNs that request Multipath TCP of services without it: their connections have \
             one path.",
        )
        .value(counters.map(|counters| counters.multipath_unserved.get()).sum::<u64>());
    }

    fn too_big(&self, page: &mut Page) {
        let counters = self.engine.counters().iter();
        let sent: u64 = counters.map(|counters| counters.too_big_answered.get()).sum();
        let mut errors = page.metric(
            "guideway_icmp_too_big_total",
            Counter,
            "ICMP errors that report an MTU: received about our tunnels, sent to clients.",
        );
        errors.sample(&[("direction", "received")], self.heard.believed);
        errors.sample(&[("direction", "sent")], sent);
        page.metric(
            "guideway_icmp_too_big_ignored_total",
            Counter,
            "Received ones that are not about our tunnels, or forged.",
        )
        .value(self.heard.ignored);
        page.metric(
            "guideway_icmp_too_big_mismatched_total",
            Counter,
            "Of the ignored ones, about our tunnels but with a wrong identification or flow label: forged.",
        )
        .value(self.heard.mismatched);
        page.metric(
            "guideway_path_mtu_paused",
            Gauge,
            "Tunnel ends about which nothing is learned, because 100 forged errors came within ten minutes.",
        )
        .value(self.path_mtus_paused);
        let mut paths = page.metric(
            "guideway_path_mtu_bytes",
            Gauge,
            "Path MTUs learnt from such errors, by the tunnel's end; forgotten after ten minutes.",
        );
        for (address, mtu) in self.path_mtus {
            paths.sample(&[("address", &address.to_string())], mtu);
        }
    }

    fn named(&self, page: &mut Page) {
        fn labels(line: &ServiceCounters) -> [(&str, &str); 4] {
            [
                ("service", &line.service),
                ("vip", &line.vip),
                ("protocol", &line.protocol),
                ("port", &line.ports),
            ]
        }
        let mut packets =
            page.metric("guideway_vip_packets_total", Counter, "Packets sent to backends, by VIP.");
        self.services.iter().for_each(|line| packets.sample(&labels(line), line.packets));
        let mut bytes =
            page.metric("guideway_vip_bytes_total", Counter, "Their bytes, inner IP packets.");
        self.services.iter().for_each(|line| bytes.sample(&labels(line), line.bytes));
        fn member(line: &BackendCounters) -> [(&str, &str); 2] {
            [("service", &line.service), ("backend", &line.backend)]
        }
        let mut packets =
            page.metric("guideway_backend_packets_total", Counter, "Packets sent, by backend.");
        self.backends.iter().for_each(|line| packets.sample(&member(line), line.packets));
        let mut bytes =
            page.metric("guideway_backend_bytes_total", Counter, "Their bytes, inner IP packets.");
        self.backends.iter().for_each(|line| bytes.sample(&member(line), line.bytes));
        let mut fresh = page.metric(
            "guideway_backend_new_connections_total",
            Counter,
            "Times the backend was selected for a packet without a tracked connection.",
        );
        self.backends.iter().for_each(|line| fresh.sample(&member(line), line.new_connections));
    }

    fn connections(&self, page: &mut Page) {
        let mut classes = BTreeMap::from([("unconfirmed", 0), ("established", 0), ("closing", 0)]);
        let mut backends = BTreeMap::<_, u64>::new();
        for ((service, backend, class), count) in &self.connections {
            *classes.entry(class).or_default() += count;
            *backends.entry((*service, *backend)).or_default() += count;
        }
        let mut all = page.metric("guideway_connections", Gauge, "Tracked connections by class.");
        classes.iter().for_each(|(class, count)| all.sample(&[("class", class)], count));
        page.metric("guideway_connections_max", Gauge, "Connections that can be tracked.")
            .value(self.connections_max);
        let mut by_backend =
            page.metric("guideway_backend_connections", Gauge, "Tracked connections by backend.");
        for ((service, backend), count) in &backends {
            if let (Some(service), Some(backend)) =
                (self.plan.service(*service), self.plan.backend(*backend))
            {
                by_backend.sample(&[("service", &service.name), ("backend", &backend.name)], count);
            }
        }
        self.table_events(page);
    }

    fn table_events(&self, page: &mut Page) {
        let sum = |read: fn(&datapath::counters::ConnectionCounters) -> u64| -> u64 {
            self.engine.counters().iter().map(|counters| read(&counters.connections)).sum()
        };
        page.metric(
            "guideway_connections_hits_total",
            Counter,
            "Packets whose tracked connection decided, without those that the kernel flow cache sent.",
        )
        .value(sum(|counters| counters.hits.get()));
        page.metric(
            "guideway_connections_misses_total",
            Counter,
            "Packets without a tracked connection.",
        )
        .value(sum(|counters| counters.misses.get()));
        page.metric("guideway_connections_inserts_total", Counter, "Connections tracked anew.")
            .value(sum(|counters| counters.inserts.get()));
        page.metric(
            "guideway_connections_expired_total",
            Counter,
            "Tracked connections that expired.",
        )
        .value(sum(|counters| counters.expired.get()));
        page.metric(
            "guideway_connections_displaced_total",
            Counter,
            "Unconfirmed ones displaced by newer ones.",
        )
        .value(sum(|counters| counters.displaced.get()));
        let mut refused = page.metric(
            "guideway_connections_refused_total",
            Counter,
            "Packets sent by hash, untracked, by cause.",
        );
        refused.sample(&[("cause", "table_full")], sum(|counters| counters.refused_full.get()));
        refused.sample(&[("cause", "quota")], sum(|counters| counters.refused_quota.get()));
        page.metric(
            "guideway_connections_unconfirmed_at_share_total",
            Counter,
            "Packets that did not confirm their connection: its service has its share of the table.",
        )
        .value(sum(|counters| counters.unconfirmed_at_share.get()));
        self.second_chances(page);
    }

    fn second_chances(&self, page: &mut Page) {
        let mut metric = page.metric(
            "guideway_second_chance_packets_total",
            Counter,
            "Packets without a tracked connection that an earlier table had another backend for, by what was done.",
        );
        let counters = self.engine.counters();
        let sent = counters.iter().map(|one| one.second_chances.sent.get()).sum::<u64>();
        let limited = counters.iter().map(|one| one.second_chances.limited.get()).sum::<u64>();
        metric.sample(&[("action", "earlier_named")], sent);
        metric.sample(&[("action", "limited")], limited);
    }

    fn devices(&self, page: &mut Page) {
        let queues = self.queues();
        let mut each = |name, help, read: fn(&QueueCounters) -> u64| {
            let mut metric = page.metric(name, Counter, help);
            for (interface, queue, counters) in &queues {
                metric.sample(&[("interface", interface), ("queue", queue)], read(counters));
            }
        };
        each("guideway_rx_packets_total", "Frames taken off receive rings.", |queue| {
            queue.received
        });
        each("guideway_rx_bytes_total", "Their bytes.", |queue| queue.received_bytes);
        each("guideway_tx_packets_total", "Frames put on transmit rings.", |queue| {
            queue.transmitted
        });
        each("guideway_tx_bytes_total", "Their bytes.", |queue| queue.transmitted_bytes);
        let mut unsent = page.metric(
            "guideway_tx_lost_packets_total",
            Counter,
            "Frames the kernel refused to send; of queue -: those of the kernel flow cache that the interface did not send.",
        );
        for (interface, queue, counters) in &queues {
            unsent.sample(&[("interface", interface), ("queue", queue)], counters.tx_invalid);
        }
        for (interface, lost) in self.interfaces.iter().zip(self.cached_lost.iter().flatten()) {
            unsent.sample(&[("interface", interface), ("queue", "-")], *lost);
        }
        let mut lost = page.metric(
            "guideway_rx_lost_packets_total",
            Counter,
            "Frames lost before us, by place.",
        );
        for (interface, queue, counters) in &queues {
            for (place, count) in [
                ("kernel", counters.rx_dropped),
                ("ring_full", counters.rx_ring_full),
                ("fill_empty", counters.fill_empty),
                ("too_long", counters.rx_too_long),
                ("invalid", counters.rx_invalid),
            ] {
                lost.sample(&[("interface", interface), ("queue", queue), ("where", place)], count);
            }
        }
        for &(interface, counters) in &self.filters {
            lost.sample(
                &[("interface", interface), ("queue", "-"), ("where", "no_socket")],
                counters.no_socket,
            );
        }
        let mut filtered = page.metric(
            "guideway_filter_packets_total",
            Counter,
            "Frames at the filter, by decision: taken to user space, passed to the kernel, or cached: sent by the kernel flow cache.",
        );
        for &(interface, counters) in &self.filters {
            filtered.sample(&[("interface", interface), ("decision", "taken")], counters.taken);
            filtered.sample(&[("interface", interface), ("decision", "passed")], counters.passed);
            filtered.sample(&[("interface", interface), ("decision", "cached")], counters.cached);
        }
    }

    /// Nothing, where there is no cache.
    fn kernel_cache(&self, page: &mut Page) {
        let Some(cached) = self.cached else { return };
        page.metric(
            "guideway_kernel_cache_packets_total",
            Counter,
            "Packets that the kernel flow cache sent, without a worker.",
        )
        .value(cached);
        let mut entries = page.metric(
            "guideway_kernel_cache_entries_total",
            Counter,
            "Entries of the kernel flow cache: entered, retargeted (another target for the same flow), displaced by another flow, refused_full (no place), closed by FIN or RST, expired.",
        );
        let sum = |read: fn(&CacheCounters) -> &datapath::counters::Counter| -> u64 {
            self.engine.counters().iter().map(|counters| read(&counters.kernel_cache).get()).sum()
        };
        for (event, count) in [
            ("entered", sum(|counters| &counters.entered)),
            ("retargeted", sum(|counters| &counters.retargeted)),
            ("displaced", sum(|counters| &counters.displaced)),
            ("refused_full", sum(|counters| &counters.refused_full)),
            ("closed", sum(|counters| &counters.closed)),
            ("expired", sum(|counters| &counters.expired)),
        ] {
            entries.sample(&[("event", event)], count);
        }
    }

    /// What `passed` frames became; the rest is on its way.
    fn given_back(&self, page: &mut Page) {
        let ports = self.engine.ports();
        let mut frames = page.metric(
            "guideway_passed_packets_total",
            Counter,
            "Passed frames by whether the kernel took them back.",
        );
        for port in ports {
            let labels = |result| [("interface", port.interface.as_str()), ("result", result)];
            frames.sample(&labels("taken"), port.given());
            frames.sample(&labels("lost"), port.lost());
        }
        let mut up = page.metric(
            "guideway_tap_up",
            Gauge,
            "1: there is a TAP by which frames go back to the kernel.",
        );
        for port in ports {
            up.sample(&[("interface", &port.interface)], u8::from(port.state().is_ok()));
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
        let mut busy = page.metric(
            "guideway_worker_busy_ratio",
            Gauge,
            "Share of the latest second spent on frames.",
        );
        for (index, thread) in workers.iter().enumerate() {
            busy.sample(&[("worker", &index.to_string())], thread.busy_ratio());
        }
        let mut age = page.metric(
            "guideway_thread_heartbeat_age_seconds",
            Gauge,
            "Since the thread (a worker, the slow path, the steering thread) went round its loop.",
        );
        for thread in threads {
            let name = thread.role().to_string();
            age.sample(&[("thread", &name)], thread.heartbeat_age_ms() as f64 / 1000.0);
        }
    }
}
