//! Answers requests from what is shown (`Shown`), without waiting for a change.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use datapath::counters::CacheCounters;
use datapath::explain::Details;
use datapath::kernel_cache::targets::TARGETS_MAX;
use datapath::outbox::Kind;
use datapath::table::EntryClass;
use datapath::{DropReason, NotCached, Totals, View};
use plan::{BackendId, Found, Plan, ServiceId};
use wire::{Family, Protocol, ip};

use crate::control::{Control, Forwarding, Refusal, kernel_cache, plan_proto, refusal};
use crate::dataplane::probe;
use crate::dataplane::punt::Port;
use crate::dataplane::samples::Sample;
use crate::dataplane::threads::{ThreadStatus, monotonic_ms};
use crate::netlink::tunnel_errors::{Seen, TunnelError};
use crate::observe::compared::compared;
use crate::observe::controller::Change;
use crate::observe::explained::explained;
use crate::observe::health::Health;
use crate::observe::limits::limits;
use crate::observe::metrics::page::{self, ConnectionCounts, Probes};
use crate::proto;

impl Control {
    /// The running plan.
    #[must_use]
    pub fn plan_message(&self) -> Option<plan_proto::Plan> {
        Some(self.shown.load().running.as_ref()?.view.plan.message.clone())
    }

    /// One line for the service manager.
    #[must_use]
    pub fn summary(&self) -> String {
        match &self.shown.load().running {
            Some(running) => format!("forwarding by plan {}", running.view.plan.generation),
            None => "waiting for the first plan".to_owned(),
        }
    }

    /// What others are told of us without asking anything here.
    #[must_use]
    pub fn health(&self) -> &Arc<Health> {
        &self.health
    }

    /// How the forwarder is.
    #[must_use]
    pub fn status(&self) -> proto::GetStatusResponse {
        let shown = self.shown.load_full();
        let empty = proto::GetStatusResponse {
            version: daemon::VERSION.to_owned(),
            features: plan::features(),
            key_id: self.key_id(),
            restart_required: shown.restart_required.clone(),
            plan_unsaved: shown.plan_unsaved.clone(),
            uptime_ms: self.started.elapsed().as_millis() as u64,
            pid: std::process::id(),
            controller_absent_ms: self.controller_absent().as_millis() as u64,
            taken_over: self.taken_over.get().cloned(),
            helpers: self.health.helpers().map(helper).collect(),
            ..Default::default()
        };
        let Some(running) = &shown.running else { return empty };
        proto::GetStatusResponse {
            generation: running.view.plan.generation,
            threads: running
                .engine
                .publisher()
                .threads()
                .iter()
                .map(ThreadStatus::status)
                .collect(),
            devices: running.devices(),
            unresolved: running.unresolved.to_vec(),
            unresolved_peers: crate::control::egress::unresolved_peers(
                &running.view.plan,
                &running.snapshot,
            ),
            tunnel_errors: tunnel_errors(&self.tunnel_errors.seen(), &running.view.plan),
            probe_device: self.probe_device(),
            limits: limits(&running.engine, running.view.kernel_targets.refused_full),
            kernel_cache: Some(running.kernel_cache()),
            ..empty
        }
    }

    /// A request came from the controller.
    pub fn heard_controller(&self) {
        self.presence.heard(monotonic_ms());
    }

    /// Since when there is no controller; zero: there is one.
    fn controller_absent(&self) -> Duration {
        self.presence.absent(monotonic_ms())
    }

    /// Logs that the controller is away, or back. To be called now and then.
    pub fn log_controller(&self) {
        match self.presence.change(monotonic_ms()) {
            Some(Change::Absent(since)) => tracing::error!(
                seconds = since.as_secs(),
                "no request of a controller: going on by the last plan, and nothing follows the backends' health; start it"
            ),
            Some(Change::Back) => tracing::info!("the controller is back"),
            None => {}
        }
    }

    fn probe_device(&self) -> Option<proto::ProbeDevice> {
        let counts = self.probing.counts().into_iter();
        self.probing.is_on().then(|| proto::ProbeDevice {
            name: probe::DEVICE.to_owned(),
            problem: self.probing.problem().unwrap_or_default(),
            packets: counts.map(|(result, count)| (result.to_owned(), count)).collect(),
        })
    }

    /// The counters of the conservation law and those by name.
    #[must_use]
    pub fn counters(&self) -> proto::GetCountersResponse {
        let shown = self.shown.load_full();
        let Some(running) = &shown.running else {
            return proto::GetCountersResponse {
                dropped: drops(&Totals::default()),
                ..Default::default()
            };
        };
        let (received, totals) = running.totals();
        let named = running.named_totals();
        proto::GetCountersResponse {
            received,
            sent: totals.sent,
            passed: totals.passed,
            replied: totals.replied,
            redirected: totals.redirected,
            held: totals.held_and_waiting(),
            dropped: drops(&totals),
            originated: originated(&totals),
            unaccounted: totals.unaccounted(received),
            services: named.services(),
            backends: named.backends(),
        }
    }

    /// Counts of tracked connections, or the entries of one flow.
    pub fn connections(
        &self,
        lookup: Option<proto::FlowKey>,
    ) -> Result<proto::GetConnectionsResponse, Refusal> {
        let shown = self.shown.load_full();
        let Some(running) = &shown.running else {
            return Ok(proto::GetConnectionsResponse::default());
        };
        let connections_max = running.connections_max;
        let Some(lookup) = lookup else {
            let counts = running.connection_lines();
            return Ok(proto::GetConnectionsResponse {
                connections_max,
                counts,
                found: Vec::new(),
            });
        };
        let found = running.find(&flow_key("lookup", &lookup).map_err(Refusal::Invalid)?);
        Ok(proto::GetConnectionsResponse { connections_max, counts: Vec::new(), found })
    }

    /// What becomes of a flow, and why.
    pub fn explain<'a>(
        &self,
        request: &'a proto::ExplainRequest,
    ) -> Result<proto::ExplainResponse, Refusal> {
        let flow = request.flow.as_ref();
        let flow = flow.ok_or_else(|| Refusal::Invalid("flow: missing".to_owned()))?;
        let key = flow_key("flow", flow).map_err(Refusal::Invalid)?;
        let shown = self.shown.load_full();
        let Some(running) = &shown.running else {
            return Err(Refusal::Precondition("no plan yet: nothing is forwarded".to_owned()));
        };
        let devices: Vec<&str> =
            running.devices.iter().map(|device| device.interface.as_str()).collect();
        let tables = running.engine.tables();
        let given = |bytes: &'a [u8]| (!bytes.is_empty()).then_some(bytes);
        let details = Details {
            connection_id: given(&request.connection_id),
            tcp_header: given(&request.tcp_header),
        };
        let cached = running.engine.cached(&key);
        let told = explained(&running.view, &running.hash, &tables, &devices, &key, details);
        let is_off = kernel_cache::is_off(&running.view.plan);
        Ok(proto::ExplainResponse {
            cached_by_bucket: told.cached_by_bucket && !is_off,
            cached: cached.map(|(device, queue, idle_ms)| {
                let interface = devices.get(usize::from(device.0)).map_or("", |name| *name);
                proto::CachedFlow { queue, idle_ms, interface: interface.to_owned() }
            }),
            ..told
        })
    }

    /// What a plan would change. It is decoded by a copy of the planner, and
    /// the tables are read, without the lock that changes take: what runs may
    /// be replaced meanwhile, and goes on to be what is compared with. It ends
    /// early when `is_wanted` returns false.
    pub fn compare_plan(
        &self,
        message: plan_proto::Plan,
        is_wanted: impl Fn() -> bool,
    ) -> Result<proto::ComparePlanResponse, Refusal> {
        let (mut planner, running, restart_required) = {
            let changes = self.lock();
            let running = self.shown.load_full().running.clone();
            let machine = changes.machine.as_ref();
            let restart_required = machine.and_then(|machine| machine.restart_required(&message));
            (changes.planner.clone(), running, restart_required.unwrap_or_default())
        };
        let Some(running) = running else {
            let problem = "no plan yet: there is nothing to compare with";
            return Err(Refusal::Precondition(problem.to_owned()));
        };
        let after = planner.plan(message).map_err(refusal)?;
        let before = &running.view.plan;
        let mut held: HashMap<u16, u32> = HashMap::new();
        for (service, count) in running.engine.connections_by_service().into_iter().flatten() {
            let most = held.entry(service).or_default();
            *most = count.max(*most);
        }
        let quota_reached = |service: &plan::Service| {
            held.get(&service.id.0).is_some_and(|count| *count >= service.quota)
        };
        let tables = running.engine.tables();
        let services = compared(before, &after, &tables, quota_reached, is_wanted);
        let ended = || Refusal::Later("who asked has left".to_owned());
        let untracked = |count: fn(&datapath::counters::ConnectionCounters) -> u64| {
            let counters = running.engine.counters();
            counters.map(|counters| count(&counters.connections)).sum()
        };
        Ok(proto::ComparePlanResponse {
            generation: before.generation,
            services: services.ok_or_else(ended)?,
            restart_required,
            untracked_table_full: untracked(|counters| counters.refused_full.get()),
            untracked_quota: untracked(|counters| counters.refused_quota.get()),
        })
    }

    /// The latest dropped frames of each reason.
    #[must_use]
    pub fn drop_samples(&self) -> proto::GetDropSamplesResponse {
        let shown = self.shown.load_full();
        let Some(running) = &shown.running else { return Default::default() };
        let now_ms = monotonic_ms();
        let mut samples: Vec<(Sample, u32)> = Vec::new();
        for (worker, kept) in (0..).zip(running.engine.samples()) {
            samples.extend(kept.read().into_iter().map(|sample| (sample, worker)));
        }
        samples.sort_by_key(|(sample, _)| (sample.reason.index(), Reverse(sample.at_ms)));
        let line = |(sample, worker): (Sample, u32)| proto::DropSample {
            reason: sample.reason.name().to_owned(),
            worker,
            age_ms: now_ms.saturating_sub(sample.at_ms),
            frame_bytes: sample.frame_bytes,
            start: sample.start,
        };
        proto::GetDropSamplesResponse { samples: samples.into_iter().map(line).collect() }
    }

    /// Logs which interfaces' packets begin to come without checksums, and which end to;
    /// `told` are those that did.
    pub fn tell_checksums(&self, told: &mut Vec<String>) {
        let shown = self.shown.load_full();
        let Some(running) = &shown.running else { return };
        for proto::Device { interface, checksums_incomplete, .. } in running.devices() {
            match (checksums_incomplete, told.contains(&interface)) {
                (true, false) => {
                    tracing::warn!(
                        interface,
                        "packets come without checksums, and backends drop them: their sender leaves these to a device that they do not pass; there, `ethtool -K INTERFACE tx off`"
                    );
                    told.push(interface);
                }
                (false, true) => {
                    tracing::info!(interface, "packets come with checksums again");
                    told.retain(|known| *known != interface);
                }
                _ => {}
            }
        }
    }

    /// The metrics page.
    #[must_use]
    pub fn metrics(&self) -> String {
        let shown = self.shown.load_full();
        let running = shown.running.as_ref().map(|running| page::Running {
            plan: &running.view.plan,
            engine: &running.engine,
            // Before what is by name: it collects what the kernel sent.
            totals: running.totals(),
            cached: running.cached.as_ref().ok().map(|cached| cached.collect()),
            interfaces: running.devices.iter().map(|device| device.interface.as_str()).collect(),
            filters: running
                .devices
                .iter()
                .map(|device| (device.interface.as_str(), device.filter_counters()))
                .collect(),
            services: running.named_totals().services(),
            backends: running.named_totals().backends(),
            connections: running.connection_counts(),
            connections_max: running.connections_max,
            unresolved: running.unresolved.len(),
            tunnel_errors: self.tunnel_errors.seen().count,
            build: running.build,
            probes: self.probing.is_on().then(|| Probes {
                device_up: self.probing.problem().is_none(),
                packets: self.probing.counts(),
            }),
        });
        let process = page::Process {
            plan_saved: shown.plan_saved,
            controller_absent: self.controller_absent(),
            taken_over: self.taken_over.get(),
            health: &self.health,
        };
        page::render(running.as_ref(), &process)
    }
}

fn helper((name, age): (&str, Duration)) -> proto::HelperThread {
    proto::HelperThread { name: name.to_owned(), heartbeat_age_ms: age.as_millis() as u64 }
}

/// What was counted, with the backend's name.
fn tunnel_errors(seen: &Seen, plan: &Plan) -> Option<proto::TunnelErrors> {
    let TunnelError { from, target, mtu, at } = seen.last?;
    let backend = plan.backends().find(|backend| backend.address == target);
    Some(proto::TunnelErrors {
        count: seen.count,
        from: from.to_string(),
        about: backend.map_or_else(|| target.to_string(), |backend| backend.name.clone()),
        mtu,
        age_ms: at.elapsed().as_millis() as u64,
    })
}

/// Backends by service to which the kernel sends nothing by itself.
fn not_cached(view: &View) -> Vec<proto::NotCached> {
    let line = |(service, reason, backends): &(ServiceId, NotCached, u32)| {
        let service = view.plan.service(*service)?;
        let (service, reason) = (service.name.clone(), reason.meaning().to_owned());
        Some(proto::NotCached { service, reason, backends: *backends })
    };
    view.kernel_targets.not_cached.iter().filter_map(line).collect()
}

impl Forwarding {
    /// Frames that devices received, and what became of them: those, too, that the kernel
    /// sent by itself.
    fn totals(&self) -> (u64, Totals) {
        let cached = self.cached.as_ref().map_or(0, |cached| cached.collect());
        let (received, mut totals) = self.engine.totals();
        totals.sent += cached;
        (received + cached, totals)
    }

    fn kernel_cache(&self) -> proto::KernelCache {
        let is_off = kernel_cache::is_off(&self.view.plan);
        let traffic = match &self.cached {
            Ok(traffic) => traffic,
            Err(why) if !is_off => {
                let (state, reason) = ("none".to_owned(), why.clone());
                return proto::KernelCache { state, reason, ..Default::default() };
            }
            Err(_) => return proto::KernelCache { state: "off".to_owned(), ..Default::default() },
        };
        let state = match self.engine.is_capturing() {
            _ if is_off => "off",
            true => "paused",
            false => "on",
        };
        let caches = self.engine.counters().map(|counters| &counters.kernel_cache);
        let targets = &self.view.kernel_targets;
        proto::KernelCache {
            state: state.to_owned(),
            reason: traffic.problems(),
            packets: traffic.collect(),
            entries: caches.map(CacheCounters::held).sum(),
            entries_max: traffic.entries_max(),
            targets: targets.used.len() as u64,
            targets_max: TARGETS_MAX as u64,
            targets_refused: targets.refused_full,
            not_cached: not_cached(&self.view),
        }
    }

    fn named_totals(&self) -> crate::control::NamedTotals {
        let mut totals = (*self.before).clone();
        totals.add(&self.view);
        totals
    }

    fn devices(&self) -> Vec<proto::Device> {
        let device = |(number, (device, port)): (usize, (&crate::control::ShownDevice, &Port))| {
            let (tap, tap_missing) = match port.state() {
                Ok(name) => (name, String::new()),
                Err(why) => (String::new(), why),
            };
            let link = self.snapshot.links.get(&device.index);
            proto::Device {
                interface: device.interface.clone(),
                driver: device.driver.clone(),
                mode: device.mode.clone(),
                queues: device.queues,
                up: link.is_some_and(|link| link.up),
                mtu: link.map_or(0, |link| link.mtu),
                tap,
                tap_missing,
                zero_copy: device.zero_copy,
                gone: link.is_none(),
                driver_reason: device.driver_reason.clone(),
                checksums_incomplete: self
                    .engine
                    .checksums()
                    .any(|samples| samples.are_incomplete(number)),
            }
        };
        self.devices.iter().zip(self.engine.ports()).enumerate().map(device).collect()
    }

    fn connection_counts(&self) -> ConnectionCounts {
        let mut counts = ConnectionCounts::new();
        for entry in self.engine.tables().iter().flat_map(|table| table.entries()) {
            *counts.entry((entry.service, entry.backend, entry.class.name())).or_default() += 1;
        }
        counts
    }

    /// Entries of services or backends that are gone wait for the sweep; they
    /// have no name any more.
    fn connection_lines(&self) -> Vec<proto::ConnectionCount> {
        let plan = &self.view.plan;
        let line =
            |((service, backend, class), connections): ((ServiceId, BackendId, &str), u64)| {
                Some(proto::ConnectionCount {
                    service: plan.service(service)?.name.clone(),
                    backend: plan.backend(backend)?.name.clone(),
                    class: class.to_owned(),
                    connections,
                })
            };
        self.connection_counts().into_iter().filter_map(line).collect()
    }

    fn find(&self, key: &wire::FlowKey) -> Vec<proto::Connection> {
        let Found::Service(matched) = self.view.plan.vips.find(&key.target()) else {
            return Vec::new();
        };
        let hash = self.hash.flow(key);
        let found = |(worker, table): (usize, &datapath::table::TableReader<'_>)| {
            let (entry, idle_ms) = table.find(hash, matched.service)?;
            Some(connection(
                &self.view.plan,
                worker,
                entry.service,
                entry.backend,
                entry.class,
                idle_ms,
            ))
        };
        self.engine.tables().iter().enumerate().filter_map(found).collect()
    }
}

fn connection(
    plan: &Plan,
    worker: usize,
    service: ServiceId,
    backend: BackendId,
    class: EntryClass,
    idle_ms: u64,
) -> proto::Connection {
    proto::Connection {
        worker: worker as u32,
        service: plan.service(service).map_or_else(String::new, |service| service.name.clone()),
        backend: plan.backend(backend).map_or_else(String::new, |backend| backend.name.clone()),
        class: class.name().to_owned(),
        idle_ms,
    }
}

/// Every reason there is, zeros included: what does not happen is news too.
fn drops(totals: &Totals) -> Vec<proto::Drop> {
    let line = |reason: &DropReason| proto::Drop {
        reason: reason.name().to_owned(),
        packets: totals.dropped[reason.index()],
        meaning: reason.meaning().to_owned(),
        usual_cause: reason.usual_cause().to_owned(),
    };
    DropReason::ALL.iter().map(line).collect()
}

fn originated(totals: &Totals) -> Vec<proto::Originated> {
    let line = |kind: &Kind| proto::Originated {
        kind: kind.name().to_owned(),
        packets: totals.originated[*kind as usize],
    };
    Kind::ALL.iter().map(line).collect()
}

/// Reads a five-tuple; an error names `place` and the field.
fn flow_key(place: &str, lookup: &proto::FlowKey) -> Result<wire::FlowKey, String> {
    let address = |field: &str, text: &str| -> Result<IpAddr, String> {
        text.parse().map_err(|_| format!("{place}.{field}: `{text}` is not an IP address"))
    };
    let (source, destination) =
        (address("source", &lookup.source)?, address("destination", &lookup.destination)?);
    if source.is_ipv4() != destination.is_ipv4() {
        return Err(format!("{place}: source and destination are of different families"));
    }
    let port = |field: &str, port: u32| {
        u16::try_from(port).map_err(|_| format!("{place}.{field}: {port} is not a port"))
    };
    let protocol = u8::try_from(lookup.protocol).map_err(|_| {
        format!("{place}.protocol: {} is not an IP protocol; TCP is 6, UDP 17", lookup.protocol)
    })?;
    Ok(wire::FlowKey {
        family: Family::of(destination),
        protocol: Protocol(protocol),
        source: ip::address_bits(source),
        destination: ip::address_bits(destination),
        source_port: port("source_port", lookup.source_port)?,
        destination_port: port("destination_port", lookup.destination_port)?,
    })
}
