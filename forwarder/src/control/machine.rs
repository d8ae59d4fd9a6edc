//! The devices named by the first plan, for the life of the process.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use datapath::{Secret, View};
use nexthops::Link;
use nic::kernel_cache::CacheMemory;
use nic::memory::Memory;
use nic::take_over::Quiesced;
use nic::{
    Device, DeviceConfig, Driver, Filter, FilterCounters, FilterError, FilterReader, IpPrefix,
    QueueOptions, SharedIo, WorkerIo, drivers,
};
use plan::{Plan, proto};
use wire::MacAddress;

use crate::control::kernel_cache;
use crate::dataplane::engine::{Engine, Inherited, Start};
use crate::dataplane::tables::{Tables, key_digest};
use crate::dataplane::{steering, threads};
use crate::options::Options;
use crate::process::memory::{self, Room, mib};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// For what plans, Views, answers and threads take from the first plan on: of usual
/// size, twice, since a plan and the next one are there together.
pub const SPARE_BYTES: u64 = 16 << 20;

/// Where a plan does not say.
const CONNECTIONS_MAX_DEFAULT: u64 = 1_000_000;

/// Open devices, and what they were opened for.
pub struct Machine {
    devices: Vec<Device>,
    /// Of each device.
    driver_reasons: Vec<String>,
    asked: proto::Forwarder,
    key_id: String,
    cluster: String,
    /// Each worker's packet memory; the one of all.
    memories: Vec<&'static Memory>,
    kernel_cache: kernel_cache::Found,
}

/// A device as status and metrics show it.
#[derive(Clone)]
pub struct ShownDevice {
    /// Name of the interface.
    pub interface: String,
    /// The kernel's number for it.
    pub index: u32,
    /// af_xdp, af_packet.
    pub driver: String,
    /// Why it has this driver.
    pub driver_reason: String,
    /// native, generic, or -.
    pub mode: String,
    /// Queues that workers own.
    pub queues: u32,
    /// All of them were granted zero-copy.
    pub zero_copy: bool,
    filter: Option<FilterReader>,
    cache: Option<CacheMemory>,
}

impl ShownDevice {
    /// What its filter did; zero where it has none.
    #[must_use]
    pub fn filter_counters(&self) -> FilterCounters {
        let counters = self.filter.as_ref().and_then(|filter| filter.counters().ok());
        let cached = self.cache.as_ref().map_or(0, CacheMemory::packets);
        FilterCounters { cached, ..counters.unwrap_or_default() }
    }
}

/// Who owns the queues.
pub enum Io {
    /// `steering: rss`: each worker its own.
    PerWorker(Vec<WorkerIo>),
    /// `steering: software`: one thread all of them, for this number of workers.
    Shared(SharedIo, usize),
}

impl Io {
    /// How many workers there will be.
    #[must_use]
    pub fn workers(&self) -> usize {
        match self {
            Io::PerWorker(io) => io.len(),
            Io::Shared(_, workers) => *workers,
        }
    }

    fn memories(&self) -> Vec<&'static Memory> {
        match self {
            Io::PerWorker(io) => io.iter().map(|io| io.pool.memory()).collect(),
            Io::Shared(io, _) => vec![io.pool.memory()],
        }
    }
}

impl Machine {
    /// Opens the devices of a first plan.
    pub fn open(plan: &Plan, tables: &Tables, options: &Options) -> Result<(Machine, Io)> {
        let asked = plan.message.forwarder.clone().unwrap_or_default();
        if asked.interfaces.is_empty() {
            return Err("forwarder.interfaces: empty; name the interfaces to forward on, as in \
                        `forwarder: {interfaces: [{name: eth1}]}`"
                .into());
        }
        let configs: Result<Vec<DeviceConfig>> =
            asked.interfaces.iter().map(device_config).collect();
        let mut configs = configs?;
        let queue_options =
            QueueOptions { busy_poll: options.busy_poll, ..QueueOptions::default() };
        let workers =
            options.steered_workers().unwrap_or_else(|| steered_workers(threads::cpus().len()));
        let connections = connections_max(&asked);
        let needed = Needed::by(&configs, &queue_options, asked.steering(), workers)?;
        let bytes = needed.fits(memory::room(), tables, connections)?;
        let requested = kernel_cache::request(&asked, connections, bytes, &mut configs);
        let (devices, io) = open(&configs, &queue_options, asked.steering(), workers)?;
        let cache = kernel_cache::usable(&asked, &devices, requested);
        Ok(Machine::of(plan, devices, io, cache))
    }

    /// Goes on with the devices of a predecessor that uses them no more; one
    /// thread receives for `shared` workers, if given.
    #[must_use]
    pub fn inherit(
        plan: &Plan,
        left: Quiesced,
        shared: Option<usize>,
        cache: kernel_cache::Found,
    ) -> (Machine, Io) {
        let (devices, io) = match shared {
            None => {
                let (devices, io) = left.into_workers();
                (devices, Io::PerWorker(io))
            }
            Some(workers) => {
                let (devices, io) = left.into_shared();
                (devices, Io::Shared(io, workers))
            }
        };
        Machine::of(plan, devices, io, cache)
    }

    fn of(
        plan: &Plan,
        devices: Vec<Device>,
        io: Io,
        kernel_cache: kernel_cache::Found,
    ) -> (Machine, Io) {
        let asked = plan.message.forwarder.clone().unwrap_or_default();
        let machine = Machine {
            memories: io.memories(),
            driver_reasons: devices.iter().map(|device| driver_reason(&asked, device)).collect(),
            asked: with_drivers_of(&devices, &asked),
            devices,
            kernel_cache,
            key_id: plan.key_id.clone(),
            cluster: plan.cluster.clone(),
        };
        (machine, io)
    }

    /// Puts our filters in the place of the predecessor's.
    pub fn switch(&mut self) -> std::result::Result<(), nic::OpenError> {
        self.devices.iter_mut().try_for_each(Device::switch)
    }

    /// What is open.
    #[must_use]
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// The kernel flow caches, or why there are none.
    pub fn kernel_cache(&self) -> kernel_cache::Found {
        self.kernel_cache.clone()
    }

    /// Each worker's packet memory; the one of all.
    #[must_use]
    pub fn memories(&self) -> &[&'static Memory] {
        &self.memories
    }

    /// Entries of each ring of an AF_XDP socket.
    #[must_use]
    pub fn ring_entries(&self) -> u32 {
        QueueOptions::default().ring_entries
    }

    /// Starts the workers on what [`Machine::open`] opened.
    pub fn start(
        &self,
        io: Io,
        view: Arc<View>,
        secret: Secret,
        tables: &Tables,
        options: &Options,
        inherited: Inherited,
    ) -> Result<Engine> {
        let start = Start {
            io: Vec::new(),
            interfaces: self.devices.iter().map(|device| device.interface().clone()).collect(),
            view,
            secret,
            tables,
            key_digest: key_digest(&self.key_id, &self.cluster),
            connections_max: self.connections_max(),
            cpus: if options.no_pin { Vec::new() } else { threads::cpus() },
            busy_poll: options.busy_poll,
            inherited,
            kernel_caches: self.kernel_cache().ok(),
        };
        match io {
            Io::PerWorker(io) => Engine::start(Start { io, ..start }),
            Io::Shared(io, workers) => {
                Engine::start_steered(start, io, workers, steering::RING_FRAMES)
            }
        }
    }

    /// What a later plan would have otherwise than it is; None: nothing.
    #[must_use]
    pub fn restart_required(&self, message: &proto::Plan) -> Option<String> {
        // The cache may come and go.
        let kernel_cache = self.asked.kernel_cache;
        if let Some(forwarder) = &message.forwarder
            && let wanted = with_drivers_of(&self.devices, forwarder)
            && (proto::Forwarder { kernel_cache, ..wanted.clone() }) != self.asked
        {
            return Some(format!(
                "the plan's forwarder section differs from what runs: {} instead of {}",
                summary(&wanted),
                summary(&self.asked)
            ));
        }
        let cluster = message.cluster.as_ref();
        let key_id = cluster.map_or("", |cluster| cluster.key_id.as_str());
        if key_id != self.key_id && !key_id.is_empty() && !self.key_id.is_empty() {
            return Some(secret_changes(&self.key_id, key_id));
        }
        let cluster = cluster.map_or("", |cluster| cluster.name.as_str());
        // Without a secret the name is the key, and another key moves every
        // connection.
        (self.key_id == "derived" && cluster != self.cluster).then(|| {
            format!(
                "the cluster's name changes from `{}` to `{cluster}`, and with it the hash key",
                self.cluster
            )
        })
    }

    /// Lets frames to the VIPs of `plan` come to us, and of `also`, if given.
    pub fn filter(
        &mut self,
        plan: &Plan,
        also: Option<&Plan>,
    ) -> std::result::Result<(), FilterError> {
        set_filters(&mut self.devices, plan, also)
    }

    /// Lets frames to the Ethernet addresses that the interfaces have by now come to us.
    pub fn follow_addresses(
        &mut self,
        links: &BTreeMap<u32, Link>,
    ) -> std::result::Result<(), FilterError> {
        for device in &mut self.devices {
            let link = links.get(&device.interface().index);
            if let (Some(mac), Some(filter)) = (link.and_then(|link| link.mac), device.filter()) {
                filter.set_address(MacAddress(mac))?;
            }
        }
        Ok(())
    }

    /// Connections to be tracked over all workers.
    #[must_use]
    pub fn connections_max(&self) -> u64 {
        connections_max(&self.asked)
    }

    /// The kernel's numbers for the interfaces, in the devices' order.
    #[must_use]
    pub fn interface_indices(&self) -> Vec<u32> {
        self.devices.iter().map(|device| device.interface().index).collect()
    }

    /// For people.
    #[must_use]
    pub fn shown(&self) -> Arc<[ShownDevice]> {
        let devices = self.devices.iter().zip(&self.driver_reasons);
        devices.map(|(device, reason)| shown(device, reason)).collect()
    }
}

/// See [`Machine::filter`].
pub fn set_filters(
    devices: &mut [Device],
    plan: &Plan,
    also: Option<&Plan>,
) -> std::result::Result<(), FilterError> {
    let plans = std::iter::once(plan).chain(also);
    let prefixes: Vec<IpPrefix> = plans
        .flat_map(Plan::vip_prefixes)
        .map(|(address, bits)| IpPrefix::new(address, bits).expect("decoding checked the length"))
        .collect();
    let own = plan.message.machine.iter().flat_map(|machine| &machine.addresses);
    let own: Vec<IpAddr> = own.map(|text| text.parse().expect("decoding checked it")).collect();
    // Tunnelled packets are the kernel's, unless we take some.
    let tunnelled = plan.ingress.is_open() || also.is_some_and(|plan| plan.ingress.is_open());
    let mut filters = devices.iter_mut().filter_map(Device::filter);
    filters.try_for_each(|filter| filter.set(&prefixes, &own, tunnelled))
}

/// Connections that a plan asks to be tracked.
#[must_use]
pub fn connections_max(asked: &proto::Forwarder) -> u64 {
    match asked.connections_max {
        0 => CONNECTIONS_MAX_DEFAULT,
        connections => connections,
    }
}

/// What workers take before the first packet comes.
struct Needed {
    workers: usize,
    packet_bytes: u64,
}

impl Needed {
    fn by(
        configs: &[DeviceConfig],
        options: &QueueOptions,
        steering: proto::Steering,
        steered: usize,
    ) -> Result<Needed> {
        if steering == proto::Steering::Rss {
            let (workers, packet_bytes) = nic::needed(configs, options)?;
            return Ok(Needed { workers: workers as usize, packet_bytes });
        }
        let chunks = steering::chunks_in_hand(steered, configs.len());
        let packet_bytes = nic::needed_shared(configs, options, chunks)?;
        Ok(Needed { workers: steered, packet_bytes })
    }

    /// Bytes that are to be taken, as far as there is room for them.
    fn fits(&self, room: Option<Room>, tables: &Tables, connections_max: u64) -> Result<u64> {
        let table_bytes = tables.missing_bytes(self.workers, connections_max);
        // Packet memory is on huge pages where enough are free.
        let packet_bytes = match memory::free_huge_pages() {
            free if free >= self.packet_bytes => 0,
            _ => self.packet_bytes,
        };
        let bytes = table_bytes + packet_bytes + SPARE_BYTES;
        match room {
            Some(room) if room.bytes < bytes => Err(format!(
                "memory: {} more are needed ({} for the tables of {connections_max} connections, \
                 {} for the packets of {} workers, {} for plans and their like), and there are {}: \
                 {}; or lower forwarder.connections_max, or the number of RX queues (`ethtool -L`)",
                mib(bytes),
                mib(table_bytes),
                mib(packet_bytes),
                self.workers,
                mib(SPARE_BYTES),
                mib(room.bytes),
                room.by
            )
            .into()),
            _ => Ok(bytes),
        }
    }
}

fn open(
    configs: &[DeviceConfig],
    options: &QueueOptions,
    steering: proto::Steering,
    workers: usize,
) -> Result<(Vec<Device>, Io)> {
    if steering == proto::Steering::Rss {
        let (devices, io) = nic::open(configs, options)?;
        return Ok((devices, Io::PerWorker(io)));
    }
    let chunks = steering::chunks_in_hand(workers, configs.len());
    let (devices, io) = nic::open_shared(configs, options, chunks)?;
    Ok((devices, Io::Shared(io, workers)))
}

/// One core is the steering thread's, the others have a worker each; on a
/// machine with one core both share it.
fn steered_workers(cpus: usize) -> usize {
    cpus.saturating_sub(1).clamp(1, plan::limits::WORKERS_MAX)
}

fn device_config(interface: &proto::Interface) -> Result<DeviceConfig> {
    let driver = match interface.auto_driver {
        true => drivers::suiting(&interface.name)?.0,
        false => named_driver(interface)?,
    };
    let (name, queues) = (interface.name.clone(), interface.queues);
    Ok(DeviceConfig { interface: name, driver, queues, ..DeviceConfig::default() })
}

/// The contract names drivers as `nic` does.
fn named_driver(interface: &proto::Interface) -> Result<&'static Driver> {
    let name = plan::word(interface.driver().as_str_name(), "DRIVER_");
    drivers::named(&name).ok_or_else(|| format!("there is no driver `{name}` here").into())
}

/// What the plan asks for, as it is: an interface that may have any driver has one.
fn with_drivers_of(devices: &[Device], forwarder: &proto::Forwarder) -> proto::Forwarder {
    let mut forwarder = forwarder.clone();
    for interface in forwarder.interfaces.iter_mut().filter(|one| one.auto_driver) {
        let device = devices.iter().find(|device| device.interface().name == interface.name);
        let name = device.map(|device| format!("DRIVER_{}", device.driver().name.to_uppercase()));
        if let Some(driver) = name.and_then(|name| proto::Driver::from_str_name(&name)) {
            interface.set_driver(driver);
            interface.auto_driver = false;
        }
    }
    forwarder
}

/// Why an interface has its driver, of which the plan may have said nothing.
fn driver_reason(asked: &proto::Forwarder, device: &Device) -> String {
    let name = &device.interface().name;
    if !asked.interfaces.iter().any(|one| one.name == *name && one.auto_driver) {
        return "the config names it".to_owned();
    }
    match drivers::suiting(name) {
        Ok((driver, reason)) if driver == device.driver() => reason,
        Ok((driver, _)) => format!("auto: the process before had it; a restart takes {driver}"),
        Err(error) => format!("auto: {error}"),
    }
}

fn shown(device: &Device, driver_reason: &str) -> ShownDevice {
    let interface = device.interface();
    ShownDevice {
        interface: interface.name.clone(),
        index: interface.index,
        driver: device.driver().to_string(),
        driver_reason: driver_reason.to_owned(),
        mode: device.mode().map_or_else(|| "-".to_owned(), |mode| mode.to_string()),
        queues: device.sockets().len() as u32,
        zero_copy: device.is_zero_copy(),
        filter: device.filter_ref().map(Filter::reader),
        cache: device.kernel_cache().copied(),
    }
}

fn secret_changes(ours: &str, wanted: &str) -> String {
    format!(
        "the cluster's secret changes (key `{ours}` to `{wanted}`), which moves every connection: on one \
         machine after the other `guideway drain machine`, put the secret in place, `systemctl restart \
         guideway-forwarder guideway-controller`, `guideway undrain machine`"
    )
}

fn summary(forwarder: &proto::Forwarder) -> String {
    let interfaces = forwarder.interfaces.iter().map(|interface| match interface.queues {
        0 => format!("{} ({})", interface.name, interface.driver().as_str_name()),
        queues => {
            format!("{} ({}, {queues} queues)", interface.name, interface.driver().as_str_name())
        }
    });
    let interfaces: Vec<String> = interfaces.collect();
    format!(
        "[{}], steering {}, connections_max {}",
        interfaces.join(", "),
        forwarder.steering().as_str_name(),
        forwarder.connections_max
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_with_its_numbers_and_the_cure() {
        let folder = tempfile::tempdir().unwrap();
        let (tables, _) = Tables::open(&folder.path().join("tables")).unwrap();
        let fits = |mib: u64, packet_mib: u64| {
            let room = Room { bytes: mib << 20, by: "the test has no more".into() };
            Needed { workers: 2, packet_bytes: packet_mib << 20 }.fits(
                Some(room),
                &tables,
                1_000_000,
            )
        };
        // More than huge pages may be there for.
        const PACKETS: u64 = 1 << 30;
        let refused = fits(80, PACKETS).unwrap_err().to_string();
        for part in [
            "1073741857 MiB more are needed",
            "(17 MiB for the tables of 1000000 connections",
            "1073741824 MiB for the packets of 2 workers",
            "there are 80 MiB: the test has no more; or lower forwarder.connections_max",
        ] {
            assert!(refused.contains(part), "{part}: {refused}");
        }
        let needed = fits(80, 0).unwrap();
        assert_eq!(needed >> 20, 32, "{needed}");
        // A predecessor's are there.
        for worker in 0..2 {
            tables.table(7, worker, 2, 500_000, None).unwrap();
        }
        assert_eq!(fits(80, 0).unwrap(), SPARE_BYTES);
    }

    #[test]
    fn every_driver_of_the_contract_is_there() {
        let numbers: Vec<i32> =
            (0..).take_while(|number| proto::Driver::try_from(*number).is_ok()).collect();
        assert!(numbers.len() > 1);
        for driver in numbers {
            let interface =
                proto::Interface { name: "eth1".into(), driver, queues: 2, auto_driver: false };
            assert_eq!(device_config(&interface).unwrap().queues, 2);
        }
    }
}
