//! Control's part in a take-over: what a predecessor lends, and how a successor continues with
//! it. `takeover` carries the conversation.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use datapath::kernel_cache::Pause;
use datapath::{FlowHash, Secret, View};
use nic::driver::Held;
use nic::kernel_cache::CacheRequest;
use nic::memory::Pages;
use nic::take_over::{DeviceState, MemoryState, Successor};
use nic::{Driver, Mode, Tap, drivers};
use plan::Plan;
use rustix::fd::{BorrowedFd, OwnedFd};

use crate::control::handover::{Device, Memory, QuiescedState, Requirements, Running, Xdp};
use crate::control::kernel_cache::{self, Candidate, KernelCache};
use crate::control::machine::{Machine, SPARE_BYTES, connections_max, set_filters};
use crate::control::view::{self, Network};
use crate::control::{Changes, Control, Forwarding, egress};
use crate::dataplane::engine::{Hanging, Inherited};
use crate::dataplane::threads::monotonic_ns;
use crate::netlink::next_hops::Snapshot;
use crate::options::Options;
use crate::process::secret;

/// Nice value while the predecessor still forwards.
const NICE: i32 = 10;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// What runs, while a successor looks at it: nothing changes meanwhile.
pub struct Handover<'c> {
    changes: MutexGuard<'c, Changes>,
    running: Option<Forwarding>,
    unresolved: Arc<Snapshot>,
    probe_device: Option<OwnedFd>,
}

impl Control {
    /// What a successor with these options requires of a predecessor.
    pub fn requirements(options: &Options) -> Result<Requirements> {
        secret::read_if_there(options.secret_file.as_deref())?;
        Ok(Requirements {
            key_id: secret::key_id_of(options.secret_file.as_deref()),
            tables_dir: real_path(&options.tables_dir()),
            busy_poll: options.busy_poll,
            steered_workers: options.steered_workers(),
            chunk_bytes: wire::CHUNK_BYTES,
        })
    }

    /// Holds every change back for a successor that requires this; the error
    /// says what would not fit.
    pub fn lend(&self, requirements: &Requirements) -> std::result::Result<Handover<'_>, String> {
        // Without a secret the plan itself has all that the key is made of.
        let is_derived = self.key_id() == "derived";
        let ours = Requirements {
            key_id: if is_derived { requirements.key_id.clone() } else { self.key_id() },
            tables_dir: real_path(self.tables.path()),
            busy_poll: self.options.busy_poll,
            steered_workers: self.options.steered_workers(),
            chunk_bytes: wire::CHUNK_BYTES,
        };
        refuse_what_differs(&ours, requirements)?;
        let changes = self.lock();
        let running = self.shown.load_full().running.clone();
        let unresolved = Arc::clone(&self.next_hops.watch().borrow());
        Ok(Handover { changes, running, unresolved, probe_device: self.probing.device() })
    }

    /// Gets ready to go on with what a predecessor lends, and touches nothing
    /// of it.
    pub fn prepare(
        &self,
        running: Option<Running>,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Prepared<'_>> {
        let mut changes = self.lock();
        let Some(running) = running else {
            return Ok(Prepared { control: self, changes, ready: None });
        };
        let mut lent = politely(|| successor(&running, descriptors))?;
        if let Some(device) = lent.probe_device.take() {
            self.probing.inherit(device);
        }
        let ready = self.make_ready(&mut changes, running, lent)?;
        Ok(Prepared { control: self, changes, ready: Some(ready) })
    }

    fn make_ready(&self, changes: &mut Changes, running: Running, lent: Lent) -> Result<Ready> {
        let Lent { mut successor, taps, cache_requested, .. } = lent;
        self.check(changes, &running.plan).map_err(|refusal| refusal.to_string())?;
        let start = Instant::now();
        let plan = Arc::new(changes.planner.plan(running.plan)?);
        let build = start.elapsed();
        set_filters(successor.devices(), &plan, None)?;
        let indices: Vec<u32> =
            successor.devices().iter().map(|device| device.interface().index).collect();
        let secret =
            self.secret(&plan.key_id, &plan.cluster).map_err(|refusal| refusal.to_string())?;
        let hash = FlowHash::new(&secret);
        let snapshot = self.resolve(&plan, &indices, &running.unresolved);
        let network = Network { hash: &hash, snapshot: &snapshot };
        let view = view::of_plan(&plan, &network, running.workers, &self.unix_offset_ms);
        let asked = plan.message.forwarder.clone().unwrap_or_default();
        // Its own, and empty: entries name the predecessor's targets.
        let cache = kernel_cache::usable(&asked, successor.devices(), cache_requested);
        changes.kernel_cache = cache.clone().ok().map(|caches| KernelCache::new(caches, &secret));
        let view = view::with_targets(view, changes.kernel_cache.as_mut());
        self.tables.map_ahead(running.workers, connections_max(&asked));
        let shared = running.shared.then_some(running.workers);
        Ok(Ready { plan, secret, build, successor, taps, snapshot, view, shared, cache })
    }
}

/// Without links in it, where it is there: two names may mean one directory.
fn real_path(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

fn refuse_what_differs(
    ours: &Requirements,
    theirs: &Requirements,
) -> std::result::Result<(), String> {
    let differs = |what: &str, ours: &str, theirs: &str, cure: &str| {
        Err(format!("{what}: it has {ours}, the successor {theirs}; {cure}"))
    };
    if ours.key_id != theirs.key_id {
        let cure = "give the successor the same --secret-file (another key moves every connection, which takes a restart)";
        return differs("hash key", &ours.key_id, &theirs.key_id, cure);
    }
    if ours.tables_dir != theirs.tables_dir {
        let (ours, theirs) = (ours.tables_dir.display(), theirs.tables_dir.display());
        let cure = "give the successor the same --tables-dir, or restart without --take-over";
        return differs("connection tables", &ours.to_string(), &theirs.to_string(), cure);
    }
    if ours.busy_poll != theirs.busy_poll {
        let words = |busy| if busy { "busy polling" } else { "no busy polling" };
        let cure = "its sockets are made for that: restart without --take-over to change it";
        return differs("--busy-poll", words(ours.busy_poll), words(theirs.busy_poll), cure);
    }
    if ours.steered_workers != theirs.steered_workers {
        let words = |workers: Option<usize>| workers.map_or("none given".into(), |n| n.to_string());
        let (ours, theirs) = (words(ours.steered_workers), words(theirs.steered_workers));
        let cure = "each worker has a table of its own: restart without --take-over to change it";
        return differs("--steered-workers", &ours, &theirs, cure);
    }
    if ours.chunk_bytes != theirs.chunk_bytes {
        let (ours, theirs) = (ours.chunk_bytes.to_string(), theirs.chunk_bytes.to_string());
        let cure = "this version needs a restart without --take-over";
        return differs("bytes of a chunk of packet memory", &ours, &theirs, cure);
    }
    Ok(())
}

impl Handover<'_> {
    /// What there is, with copies of the TAPs and of the probes' device; None: no
    /// plan yet.
    #[must_use]
    pub fn running(&self) -> Option<(Running, Vec<OwnedFd>)> {
        let (forwarding, machine) = (self.running.as_ref()?, self.changes.machine.as_ref()?);
        let taps = forwarding.engine.taps();
        let memory = |memory: &&nic::memory::Memory| Memory {
            chunks: memory.chunks(),
            huge: memory.pages() == Pages::Huge,
        };
        let devices = machine.devices().iter().enumerate();
        let device = |(index, device): (usize, &nic::Device)| Device {
            interface: device.interface().name.clone(),
            driver: Some(device.driver().name.to_owned()),
            xdp: device.mode().map(|mode| match mode {
                Mode::Native => Xdp::Native,
                Mode::Generic => Xdp::Generic,
            }),
            has_link: device.held().1.is_some(),
            sockets: device.sockets().len(),
            has_tap: taps.get(index).is_some_and(Option::is_some),
        };
        let unresolved = self.unresolved.backends.iter();
        let running = Running {
            plan: forwarding.view.plan.message.clone(),
            workers: forwarding.engine.workers(),
            shared: forwarding.engine.is_steered(),
            memories: machine.memories().iter().map(memory).collect(),
            devices: devices.map(device).collect(),
            ring_entries: machine.ring_entries(),
            unresolved: unresolved
                .filter_map(|(address, hops)| hops.is_err().then_some(*address))
                .collect(),
            path_mtus: BTreeMap::new(),
            has_probe_device: self.probe_device.is_some(),
        };
        let probe_device = self.probe_device.iter().filter_map(|device| device.try_clone().ok());
        Some((running, taps.into_iter().flatten().chain(probe_device).collect()))
    }

    /// The descriptors of memory and devices, in the order of [`Running`].
    #[must_use]
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let Some(machine) = &self.changes.machine else { return Vec::new() };
        let mut descriptors: Vec<BorrowedFd<'_>> =
            machine.memories().iter().map(|memory| memory.file()).collect();
        for device in machine.devices() {
            let (claim, link) = device.held();
            descriptors.push(claim);
            descriptors.extend(link);
            descriptors.extend(device.sockets().iter().map(rustix::fd::AsFd::as_fd));
        }
        descriptors
    }

    /// Has everything come to rest; see [`crate::dataplane::engine::Engine::rest`].
    pub fn rest(&self) -> std::result::Result<QuiescedState, Hanging> {
        let since_ns = monotonic_ns();
        let Some(running) = &self.running else {
            return Ok(QuiescedState { since_ns, ..QuiescedState::default() });
        };
        running.engine.rest()?;
        let connections = Some(running.engine.connections_by_service());
        Ok(QuiescedState { since_ns, connections })
    }

    /// Goes on as if nothing had been.
    pub fn resume(&self) {
        if let Some(running) = &self.running {
            running.engine.resume();
        }
    }
}

/// On a thread of low priority: loading filters keeps a core busy for some
/// hundred milliseconds, in which the predecessor's workers need it.
fn politely<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // Zero is the calling thread. Without it all works, only less politely.
            let _ = rustix::process::setpriority_process(None, NICE);
            work().map_err(|error| error.to_string())
        });
        let done = thread.join().expect("a panic aborts the process");
        done.map_err(Into::into)
    })
}

/// What a predecessor lends.
struct Lent {
    successor: Successor,
    taps: Vec<Option<Tap>>,
    probe_device: Option<OwnedFd>,
    /// Whether the devices are to have a kernel flow cache.
    cache_requested: std::result::Result<(), kernel_cache::Missing>,
}

/// The kernel flow cache of each device.
fn cache_requests(
    running: &Running,
) -> std::result::Result<Vec<CacheRequest>, kernel_cache::Missing> {
    let candidates = running.devices.iter().map(candidate).collect::<Result<Vec<_>>>();
    let candidates = candidates.map_err(|error| error.to_string())?;
    let asked = running.plan.forwarder.clone().unwrap_or_default();
    kernel_cache::requests(&asked, connections_max(&asked), SPARE_BYTES, &candidates)
}

fn candidate(device: &Device) -> Result<Candidate<'_>> {
    let (interface, queues) = (device.interface.as_str(), device.sockets as u32);
    Ok(Candidate { interface, driver: driver_of(device)?, queues })
}

/// Takes the descriptors apart, in the order of [`Running`].
fn successor(running: &Running, descriptors: Vec<OwnedFd>) -> Result<Lent> {
    let mut descriptors = descriptors.into_iter();
    let mut next = || descriptors.next().ok_or("the predecessor left descriptors out");
    let mut memories = Vec::new();
    for Memory { chunks, huge } in running.memories.iter().copied() {
        let pages = if huge { Pages::Huge } else { Pages::Normal };
        memories.push(MemoryState { file: next()?, chunks, pages });
    }
    let mut devices = Vec::new();
    let (cache_requested, requests) = match cache_requests(running) {
        Ok(requests) => (Ok(()), requests),
        Err(why) => (Err(why), Vec::new()),
    };
    let mut requests = requests.into_iter();
    for device in &running.devices {
        let claim = next()?;
        let link = if device.has_link { Some(next()?) } else { None };
        let sockets: Vec<OwnedFd> =
            (0..device.sockets).map(|_| next()).collect::<std::result::Result<_, _>>()?;
        devices.push(DeviceState {
            kernel_cache: requests.next(),
            interface: device.interface.clone(),
            driver: driver_of(device)?,
            mode: device.xdp.map(|xdp| match xdp {
                Xdp::Native => Mode::Native,
                Xdp::Generic => Mode::Generic,
            }),
            held: Held { claim, link },
            sockets,
            ring_entries: running.ring_entries,
        });
    }
    let mut taps = Vec::new();
    for device in &running.devices {
        taps.push(if device.has_tap {
            Some(Tap::inherit(next()?, &device.interface)?)
        } else {
            None
        });
    }
    let probe_device = if running.has_probe_device { Some(next()?) } else { None };
    check_shape(running)?;
    let successor = Successor::prepare(memories, devices)?;
    Ok(Lent { successor, taps, probe_device, cache_requested })
}

/// A build before drivers had names says by the XDP mode which one it is.
fn driver_of(device: &Device) -> Result<&'static Driver> {
    let Some(name) = &device.driver else {
        let is_xdp = device.xdp.is_some();
        return Ok(if is_xdp { &drivers::af_xdp::DRIVER } else { &drivers::af_packet::DRIVER });
    };
    let known = drivers::named(name).filter(|driver| driver.abilities.take_over);
    known.ok_or_else(|| {
        format!("interface {}: driver {name} cannot be taken over", device.interface).into()
    })
}

/// Each worker has a memory and a socket of each device; or one thread has
/// them all.
fn check_shape(running: &Running) -> Result<()> {
    let memories = if running.shared { 1 } else { running.workers };
    let fits = running.memories.len() == memories
        && !running.devices.is_empty()
        && (running.shared || running.devices.iter().all(|device| device.sockets == memories));
    match fits {
        true => Ok(()),
        false => Err("the predecessor's sockets and memory do not match its workers".into()),
    }
}

/// Everything that can be done while the predecessor forwards is done.
pub struct Prepared<'c> {
    control: &'c Control,
    changes: MutexGuard<'c, Changes>,
    /// None: the predecessor has no plan.
    ready: Option<Ready>,
}

struct Ready {
    plan: Arc<Plan>,
    secret: Secret,
    build: Duration,
    successor: Successor,
    taps: Vec<Option<Tap>>,
    snapshot: Arc<Snapshot>,
    view: Arc<View>,
    /// One thread receives for this number of workers.
    shared: Option<usize>,
    cache: kernel_cache::Found,
}

impl Prepared<'_> {
    /// Goes on, if the predecessor uses nothing any more. Gives how long
    /// no process forwarded, and which tables had to start empty.
    pub fn go(mut self, quiesced: QuiescedState) -> Result<(Duration, Vec<String>)> {
        let Some(ready) = self.ready.take() else { return Ok(Default::default()) };
        let control = self.control;
        let Ready { plan, secret, build, successor, taps, snapshot, view, shared, cache } = ready;
        // Where there are two filters, what one of ours leaves for the other to send, the
        // predecessor's would drop.
        if let Ok(caches) = &cache {
            caches.pause(Pause::TakeOver, true);
        }
        let (mut machine, io) = Machine::inherit(&plan, successor.quiesced()?, shared, cache);
        let hash = FlowHash::new(&secret);
        let inherited = Inherited { connections: quiesced.connections, taps };
        let (tables, options) = (&control.tables, &control.options);
        let started = machine.start(io, Arc::clone(&view), secret, tables, options, inherited);
        let engine = started.map_err(|error| error.to_string())?;
        let pause = Duration::from_nanos(monotonic_ns().saturating_sub(quiesced.since_ns));
        let emptied = engine.emptied().to_vec();
        // Packets flow again; both processes' filters do the same.
        machine.switch()?;
        engine.pause_kernel_cache(Pause::TakeOver, false);
        let running = Forwarding {
            devices: machine.shown(),
            engine: Arc::new(engine),
            hash,
            connections_max: machine.connections_max(),
            view,
            before: Arc::new(crate::control::NamedTotals::new(Arc::clone(&plan))),
            unresolved: egress::unresolved(&plan, &snapshot).into(),
            snapshot,
            build,
            cached: self.changes.traffic(machine.kernel_cache()),
        };
        control.note_unswept(&mut self.changes, &running, plan.generation);
        self.changes.machine = Some(machine);
        // The caller of `retry_saving` saves the plan: a disk may be slow.
        control.show(running);
        Ok((pause, emptied))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_must_be_the_same_is_refused_by_name_and_with_a_cure() {
        let ours = Requirements {
            key_id: "derived".into(),
            tables_dir: "/run/guideway/tables".into(),
            busy_poll: false,
            steered_workers: None,
            chunk_bytes: 2048,
        };
        assert_eq!(refuse_what_differs(&ours, &ours), Ok(()));
        for (theirs, names, cure) in [
            (Requirements { key_id: "a1b2".into(), ..ours.clone() }, "a1b2", "--secret-file"),
            (
                Requirements { tables_dir: "/dev/shm".into(), ..ours.clone() },
                "/dev/shm",
                "--tables-dir",
            ),
            (
                Requirements { busy_poll: true, ..ours.clone() },
                "busy polling",
                "without --take-over",
            ),
            (Requirements { steered_workers: Some(3), ..ours.clone() }, "3", "without --take-over"),
            (Requirements { chunk_bytes: 4096, ..ours.clone() }, "4096", "without --take-over"),
        ] {
            let why = refuse_what_differs(&ours, &theirs).unwrap_err();
            assert!(why.contains(names) && why.contains(cure), "{why}");
        }
    }
}
