//! Control: accepts plans, keeps the workers on the latest, and answers requests about both.
//!
//! ```text
//!  set_plan ─► decode ─► (first: open devices, start workers) ─► next hops ─► filter + ─► swap ─► filter − ─► save
//!  next hops changed ─► egress ─► swap
//! ```
//!
//! Changes are made one at a time, under a lock. Requests are answered from [`Shown`], which is
//! swapped as a whole, and never wait for a change.

mod capture;
mod egress;
pub mod handover;
mod kernel_cache;
mod lend;
mod machine;
mod requests;
mod returned;
mod totals;
mod view;

use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use datapath::kernel_cache::Pause;
use datapath::{FlowHash, Secret, View};
use nic::folder::Folder;
use plan::{Plan, Planner, proto as plan_proto};
use tokio::sync::watch;

use crate::dataplane::engine::{Engine, Inherited};
use crate::dataplane::probe::{self, Probing};
use crate::dataplane::tables::Tables;
use crate::dataplane::threads::{Heartbeat, monotonic_ms};
use crate::netlink::next_hops::{NextHops, Snapshot, Wanted};
use crate::netlink::tunnel_errors::TunnelErrors;
use crate::observe::controller::ControllerPresence;
use crate::observe::health::{Health, Helpers};
use crate::options::Options;
use crate::process::secret;
use crate::proto::{TakenOver, UnresolvedBackend};
pub use capture::Capture;
use kernel_cache::{CachedTraffic, KernelCache, Missing};
pub use lend::{Handover, Prepared};
use machine::{Machine, ShownDevice};
use returned::Returned;
use totals::NamedTotals;
use view::Network;

/// The longest plan, and so the longest message of gRPC and of a take-over. A
/// plan of 10,000 services and 65,000 backends with all their members takes
/// some tens of megabytes.
pub const PLAN_BYTES_MAX: usize = 256 << 20;

/// The last plan, in the state directory.
const PLAN_FILE: &str = "plan.json";

/// A plan that was refused because it needs a restart: the next start tries it
/// before the last plan. Without it, that start would open the last plan's
/// devices, and the controller's plan would need a restart again.
const RESTART_PLAN_FILE: &str = "plan.restart.json";

/// How long a plan waits for the next hops of backends that are new in it, so
/// that nothing is sent to one that cannot be reached yet. The kernel asks
/// three times, a second apart; who answers at all answers the first time.
const NEXT_HOPS_TIMEOUT: Duration = Duration::from_secs(1);

/// Why a plan is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The plan itself is wrong: field and cure.
    Invalid(String),
    /// It does not fit what runs.
    Precondition(String),
    /// Nothing is wrong with it: the same will be taken later.
    Later(String),
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Refusal::Invalid(why) | Refusal::Precondition(why) | Refusal::Later(why)) = self;
        f.write_str(why)
    }
}

/// A plan that every worker forwards by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted {
    /// Its generation.
    pub generation: u64,
    /// What an operator should know.
    pub warnings: Vec<String>,
}

/// See the module.
pub struct Control {
    options: Options,
    tables: Tables,
    /// Has the last plan.
    state: Folder,
    started: Instant,
    next_hops: NextHops,
    tunnel_errors: TunnelErrors,
    probing: Probing,
    changes: Mutex<Changes>,
    shown: ArcSwap<Shown>,
    /// What others are told of us without asking anything here.
    health: Arc<Health>,
    presence: ControllerPresence,
    /// All views'.
    unix_offset_ms: Arc<AtomicI64>,
    returned: Mutex<Returned>,
    stopping: AtomicBool,
    /// A successor is about to go on in our place.
    handing_over: watch::Sender<bool>,
    /// What we got from a predecessor.
    taken_over: OnceLock<TakenOver>,
}

/// What changes need, one at a time.
struct Changes {
    planner: Planner,
    machine: Option<Machine>,
    kernel_cache: Option<KernelCache>,
    /// Generations whose retired ids entries may still hold, with the
    /// tables' sweeps at the time.
    unswept: VecDeque<(u64, Vec<u64>)>,
}

impl Changes {
    /// What the cache that was found sends.
    fn traffic(&self, found: kernel_cache::Found) -> Result<Arc<CachedTraffic>, Missing> {
        let cache = self.kernel_cache.as_ref();
        found.map(|_| Arc::clone(cache.expect("made of what was found").traffic()))
    }
}

/// What requests are answered from.
#[derive(Clone, Default)]
struct Shown {
    running: Option<Forwarding>,
    /// Not empty: what needs a restart, and why.
    restart_required: String,
    /// The last plan is on disk.
    plan_saved: bool,
    /// Not empty: why it is not.
    plan_unsaved: String,
}

/// What is forwarded, by whom.
#[derive(Clone)]
struct Forwarding {
    engine: Arc<Engine>,
    devices: Arc<[ShownDevice]>,
    hash: FlowHash,
    connections_max: u64,
    view: Arc<View>,
    /// What earlier plans' views counted.
    before: Arc<NamedTotals>,
    unresolved: Arc<[UnresolvedBackend]>,
    snapshot: Arc<Snapshot>,
    /// Time it took to decode the plan and to build the tables that changed.
    build: Duration,
    /// What the kernel sends by itself, or why it does not.
    cached: Result<Arc<CachedTraffic>, Missing>,
}

impl Control {
    /// Ready for a plan.
    pub fn new(options: &Options) -> Result<Control, Box<dyn std::error::Error>> {
        // One that cannot be used is told now; plans say whether they need one.
        if let (Some(path), None) =
            (&options.secret_file, secret::read_if_there(options.secret_file.as_deref())?)
        {
            tracing::info!(path = %path.display(), "no secret there: plans that were made with one are refused");
        }
        let state = Folder::open(&options.state_dir)?;
        let (tables, ids) = Tables::open(&options.tables_dir())?;
        let planner = Planner::with_ids(ids);
        let next_hops = NextHops::start()?;
        let probing = Probing::default();
        let helpers = Helpers {
            next_hops: Heartbeat::of(next_hops.last_round()),
            probes: probing.heartbeat(),
            take_over: Heartbeat::default(),
        };
        let health = Arc::new(Health::new(next_hops.links_up(), helpers));
        Ok(Control {
            options: options.clone(),
            tables,
            state,
            started: Instant::now(),
            presence: ControllerPresence::new(monotonic_ms()),
            next_hops,
            tunnel_errors: TunnelErrors::open(),
            probing,
            changes: Mutex::new(Changes {
                planner,
                machine: None,
                kernel_cache: None,
                unswept: VecDeque::new(),
            }),
            shown: ArcSwap::default(),
            health,
            unix_offset_ms: Arc::new(AtomicI64::new(unix_offset_ms())),
            returned: Mutex::default(),
            stopping: AtomicBool::new(false),
            handing_over: watch::Sender::new(false),
            taken_over: OnceLock::new(),
        })
    }

    /// Notifies those who watch that a successor is about to go on in our place,
    /// or that it does not after all.
    pub fn announce(&self, handing_over: bool) {
        self.health.set_handing_over(handing_over);
        self.handing_over.send_replace(handing_over);
    }

    /// Whether a successor is about to go on, and news of it.
    #[must_use]
    pub fn handing_over(&self) -> watch::Receiver<bool> {
        self.handing_over.subscribe()
    }

    /// Remembers, for people, what came from a predecessor.
    pub fn note_taken_over(&self, note: TakenOver) {
        let _ = self.taken_over.set(note);
    }

    /// Names the secret of the running plan; without a plan, that of the file.
    #[must_use]
    pub fn key_id(&self) -> String {
        match &self.shown.load().running {
            Some(running) if !running.view.plan.key_id.is_empty() => {
                running.view.plan.key_id.clone()
            }
            _ => secret::key_id_of(self.options.secret_file.as_deref()),
        }
    }

    /// Forwards by a plan on disk, if there is one that can be used: the one
    /// that waits for this restart, else the last one.
    pub fn start_from_disk(&self) {
        if self.start_from(RESTART_PLAN_FILE) {
            // Until it is the last plan on disk, the next start needs it here.
            if self.save_plan().is_none() {
                self.forget_restart_plan();
            }
            return;
        }
        self.forget_restart_plan();
        if self.start_from(PLAN_FILE) {
            self.update(|shown| shown.plan_saved = true);
        } else {
            tracing::info!("no plan on disk that can be used: waiting for one");
        }
    }

    /// Whether the plan in this file is there and forwards now.
    fn start_from(&self, file: &str) -> bool {
        let message = match self.read_plan(file) {
            Ok(Some(message)) => message,
            Ok(None) => return false,
            Err(error) => {
                tracing::warn!(file, %error, "a plan on disk cannot be read");
                return false;
            }
        };
        if self.secret_came_since(&message) {
            tracing::warn!(
                file,
                "the plan on disk was made without a secret, and --secret-file has one: waiting for the controller, which knows whether the config names it"
            );
            return false;
        }
        match self.take(&mut self.lock(), message) {
            Ok(Accepted { generation, .. }) => {
                tracing::info!(file, generation, "forwarding by the plan on disk");
                true
            }
            Err(refusal) => {
                tracing::error!(file, %refusal, "the plan on disk cannot be used");
                false
            }
        }
    }

    /// Takes a whole plan; returns when every worker forwards by it.
    pub fn set_plan(&self, message: plan_proto::Plan) -> Result<Accepted, Refusal> {
        let mut changes = self.lock();
        let generation = message.generation;
        match self.take(&mut changes, message) {
            Ok(mut accepted) => {
                accepted.warnings.extend(self.save_plan());
                tracing::info!(generation, warnings = accepted.warnings.len(), "plan taken");
                Ok(accepted)
            }
            Err(refusal) => {
                tracing::warn!(generation, %refusal, "plan refused");
                Err(refusal)
            }
        }
    }

    /// News of the kernel's next hops, for who calls
    /// [`Control::adopt_next_hops`].
    #[must_use]
    pub fn next_hops(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.next_hops.watch()
    }

    /// Has the workers send by the kernel's latest next hops.
    pub fn adopt_next_hops(&self) {
        let mut changes = self.lock();
        let Some(running) = self.shown.load_full().running.clone() else { return };
        let snapshot = Arc::clone(&self.next_hops.watch().borrow());
        if *snapshot == *running.snapshot {
            return;
        }
        let machine = changes.machine.as_mut();
        if let Some(Err(error)) = machine.map(|one| one.follow_addresses(&snapshot.links)) {
            tracing::error!(%error, "frames to the interfaces' present addresses may be the kernel's");
        }
        let network = Network { hash: &running.hash, snapshot: &snapshot };
        let view = view::renewed(&running.view, &network);
        let view = view::with_targets(view, changes.kernel_cache.as_mut());
        if let Err(error) = running.engine.swap(Arc::clone(&view)) {
            tracing::error!(%error, "next hops changed, but not every worker knows");
        }
        let unresolved = egress::unresolved(&view.plan, &snapshot).into();
        self.show(Forwarding { view, unresolved, snapshot, ..running });
    }

    /// Counts the ICMP errors about our tunnels that came since the last call: to be called
    /// now and then.
    pub fn count_tunnel_errors(&self) {
        if let Some(running) = &self.shown.load().running {
            self.tunnel_errors.read(&running.view.plan, Instant::now());
        }
    }

    /// Whether interfaces that were gone are there again, so that this process is to start
    /// anew: to be called now and then. Never while a plan is taken or handed over.
    pub fn is_to_start_anew(&self) -> bool {
        let Ok(_changes) = self.changes.try_lock() else { return false };
        let Some(running) = self.shown.load().running.clone() else { return false };
        let latest = Arc::clone(&self.next_hops.watch().borrow());
        let opened = running.devices.iter().map(|device| {
            let name = device.interface.as_str();
            // It may have another name by now; links may not have been read yet.
            let is_there = latest.links.contains_key(&device.index)
                || returned::index_of(name) == Some(device.index);
            (name, is_there)
        });
        let mut returned = self.returned.lock().expect("no holder of this lock panics");
        returned.look(opened, returned::is_up)
    }

    /// Looks at the clock that people and programs set: to be called now and
    /// then.
    pub fn keep_time(&self) {
        self.unix_offset_ms.store(unix_offset_ms(), Ordering::Relaxed);
    }

    /// Ends the workers; frames of ours go to the kernel from then on.
    pub fn stop(&self) {
        // A plan that is being taken need not wait for next hops any more.
        self.stopping.store(true, Ordering::Relaxed);
        self.health.set_stopping();
        let mut changes = self.lock();
        self.probing.end();
        if let Some(running) = self.shown.load_full().running.clone() {
            running.engine.stop();
        }
        self.update(|shown| shown.running = None);
        self.health.liveness.forget();
        changes.machine = None;
    }

    /// Everything but the disk.
    fn take(&self, changes: &mut Changes, message: plan_proto::Plan) -> Result<Accepted, Refusal> {
        self.check(changes, &message)?;
        self.release_ids(changes);
        let start = Instant::now();
        let plan = Arc::new(changes.planner.plan(message).map_err(refusal)?);
        let build = start.elapsed();
        let mut warnings = Vec::new();
        if let Err(error) = self.tables.save(changes.planner.ids()) {
            tracing::error!(%error, "ids not written down: after a restart the connection tables start empty");
            warnings.push(format!(
                "ids not written down ({error}): a restart would lose the connection tables"
            ));
        }
        let running = match self.shown.load_full().running.clone() {
            Some(running) => self.swap(changes, running, Arc::clone(&plan), build)?,
            None => self.start(changes, Arc::clone(&plan), build)?,
        };
        warnings.extend(egress::mtu_warnings(&plan, &running.snapshot));
        warnings.extend(narrow_texts(&plan, &running.snapshot, &running.devices));
        warnings.extend(egress::way_back_warning(&plan, &running.snapshot));
        self.note_unswept(changes, &running, plan.generation);
        self.show(running);
        warnings.extend(
            self.probing.problem().map(|problem| {
                format!("health checks through the tunnels cannot be sent: {problem}")
            }),
        );
        Ok(Accepted { generation: plan.generation, warnings })
    }

    /// What decoding cannot know: what runs, and under which key.
    fn check(&self, changes: &Changes, message: &plan_proto::Plan) -> Result<(), Refusal> {
        let cluster =
            message.cluster.as_ref().ok_or_else(|| Refusal::Invalid("cluster: missing".into()))?;
        let running =
            self.shown.load().running.as_ref().map_or(0, |running| running.view.plan.generation);
        if is_jump(running, message.generation) {
            return Err(Refusal::Precondition(format!(
                "generation: {} does not follow {running} by steps: later plans would find no room",
                message.generation
            )));
        }
        let Some(machine) = &changes.machine else {
            return self.secret(&cluster.key_id, &cluster.name).map(drop);
        };
        if message.generation < running {
            return Err(Refusal::Precondition(format!(
                "generation: {} is older than {running}, by which this forwarder forwards",
                message.generation
            )));
        }
        let change = machine.restart_required(message);
        self.update(|shown| shown.restart_required = change.clone().unwrap_or_default());
        let Some(change) = change else {
            self.forget_restart_plan();
            return Ok(());
        };
        self.keep_for_restart(message);
        Err(Refusal::Precondition(format!("restart required: {change}")))
    }

    /// The first plan: opens its devices and starts the workers.
    fn start(
        &self,
        changes: &mut Changes,
        plan: Arc<Plan>,
        build: Duration,
    ) -> Result<Forwarding, Refusal> {
        let failed = |error: Box<dyn std::error::Error + Send + Sync>| {
            Refusal::Precondition(error.to_string())
        };
        let secret = self.secret(&plan.key_id, &plan.cluster)?;
        let hash = FlowHash::new(&secret);
        let (mut machine, io) =
            Machine::open(&plan, &self.tables, &self.options).map_err(failed)?;
        let snapshot = self.resolve(&plan, &machine.interface_indices(), &BTreeSet::new());
        refuse_narrow(&plan, &snapshot, &machine.shown(), None)?;
        let network = Network { hash: &hash, snapshot: &snapshot };
        let view = view::of_plan(&plan, &network, io.workers(), &self.unix_offset_ms);
        let cache = machine.kernel_cache();
        changes.kernel_cache = cache.clone().ok().map(|caches| KernelCache::new(caches, &secret));
        let view = view::with_targets(view, changes.kernel_cache.as_mut());
        let connections_max = machine.connections_max();
        let engine = machine
            .start(io, Arc::clone(&view), secret, &self.tables, &self.options, Inherited::default())
            .map_err(failed)?;
        let running = Forwarding {
            devices: machine.shown(),
            engine: Arc::new(engine),
            hash,
            connections_max,
            view,
            before: Arc::new(NamedTotals::new(Arc::clone(&plan))),
            unresolved: egress::unresolved(&plan, &snapshot).into(),
            snapshot,
            build,
            cached: changes.traffic(cache),
        };
        // Only now that the workers run do frames come to them.
        if let Err(error) = machine.filter(&plan, None) {
            running.engine.stop();
            return Err(failed(error.into()));
        }
        changes.machine = Some(machine);
        Ok(running)
    }

    /// A later plan. The filter lets through what either plan needs while
    /// workers change over, so that nothing is lost.
    fn swap(
        &self,
        changes: &mut Changes,
        running: Forwarding,
        plan: Arc<Plan>,
        build: Duration,
    ) -> Result<Forwarding, Refusal> {
        let failed = |error: &dyn std::error::Error| Refusal::Precondition(error.to_string());
        let machine = changes.machine.as_mut().expect("what runs has devices");
        let devices = machine.interface_indices();
        let snapshot = self.resolve(&plan, &devices, &BTreeSet::new());
        let before = &running.view.plan;
        refuse_narrow(&plan, &snapshot, &running.devices, Some(before)).inspect_err(|_| {
            // The running plan's next hops are followed again.
            self.resolve(before, &devices, &BTreeSet::new());
        })?;
        let network = Network { hash: &running.hash, snapshot: &snapshot };
        let workers = running.engine.workers();
        let view = view::of_plan(&plan, &network, workers, &self.unix_offset_ms);
        machine.filter(&plan, Some(&running.view.plan)).map_err(|error| failed(&error))?;
        let view = view::with_targets(view, changes.kernel_cache.as_mut());
        running.engine.swap(Arc::clone(&view)).map_err(|error| failed(&error))?;
        running.engine.pause_kernel_cache(Pause::Off, kernel_cache::is_off(&plan));
        if let Err(error) = machine.filter(&plan, None) {
            tracing::error!(%error, "the filter still lets through what the former plan wanted");
        }
        let mut before = (*running.before).clone();
        before.add(&running.view);
        let before = Arc::new(before.carried_to(&plan));
        let unresolved = egress::unresolved(&plan, &snapshot).into();
        Ok(Forwarding { view, before, unresolved, snapshot, build, ..running })
    }

    /// Follows the next hops of the plan's backends, and waits for those that
    /// were not followed before, but for `hopeless` ones.
    fn resolve(&self, plan: &Plan, devices: &[u32], hopeless: &BTreeSet<IpAddr>) -> Arc<Snapshot> {
        let watch = self.next_hops.watch();
        let known = Arc::clone(&watch.borrow());
        let backends = plan.tunnel_targets();
        let mut wanted = backends.clone();
        wanted.extend(egress::routers(plan));
        self.next_hops.set(Wanted {
            backends: wanted,
            devices: devices.to_vec(),
            ignores_default_mtu: false,
        });
        let start = Instant::now();
        loop {
            let now = Arc::clone(&watch.borrow());
            let complete = backends.iter().all(|address| match now.backends.get(address) {
                Some(found) => {
                    found.is_ok()
                        || known.backends.contains_key(address)
                        || hopeless.contains(address)
                }
                None => false,
            });
            let stopping = self.stopping.load(Ordering::Relaxed);
            if complete || stopping || start.elapsed() > NEXT_HOPS_TIMEOUT {
                return now;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// The secret that a plan was made with. The plan says whether there is
    /// one, so that a config without forwards on a machine that has a file.
    fn secret(&self, key_id: &str, cluster: &str) -> Result<Secret, Refusal> {
        let secret = match (key_id, self.options.secret_file.as_deref()) {
            ("derived", _) => Ok(Secret::derived(cluster)),
            (_, file) => secret::for_key(key_id, cluster, file),
        };
        secret.map_err(|error| Refusal::Precondition(format!("cluster.key_id: {error}")))
    }

    /// A forwarder that went on without could not take the plan with it.
    fn secret_came_since(&self, message: &plan_proto::Plan) -> bool {
        let is_derived =
            message.cluster.as_ref().is_some_and(|cluster| cluster.key_id == "derived");
        let file = self.options.secret_file.as_deref();
        is_derived && secret::read_if_there(file).is_ok_and(|secret| secret.is_some())
    }

    /// Ids that no entry can hold any more: two whole sweeps of every table
    /// have gone by since the plan that retired them was taken.
    fn release_ids(&self, changes: &mut Changes) {
        let Some(running) = self.shown.load_full().running.clone() else { return };
        let tables = running.engine.tables();
        while let Some((generation, sweeps)) = changes.unswept.front() {
            if !tables.iter().zip(sweeps).all(|(table, then)| table.sweeps() >= then + 2) {
                return;
            }
            changes.planner.release(*generation);
            changes.unswept.pop_front();
        }
    }

    fn note_unswept(&self, changes: &mut Changes, running: &Forwarding, generation: u64) {
        let sweeps = running.engine.tables().iter().map(|table| table.sweeps()).collect();
        changes.unswept.push_back((generation, sweeps));
    }

    fn read_plan(
        &self,
        file: &str,
    ) -> Result<Option<plan_proto::Plan>, Box<dyn std::error::Error>> {
        let Some(bytes) = self.state.read(file)? else { return Ok(None) };
        let message = serde_json::from_slice(&bytes).map_err(|error| {
            let path = self.options.state_dir.join(file);
            format!("{} is corrupt ({error}); remove it or push a plan", path.display())
        })?;
        Ok(Some(message))
    }

    /// A start without it would run the last plan until the controller's is
    /// refused once more, so a failure is a warning.
    fn keep_for_restart(&self, message: &plan_proto::Plan) {
        let saved = serde_json::to_vec(message)
            .map_err(std::io::Error::from)
            .and_then(|bytes| self.state.replace(RESTART_PLAN_FILE, &bytes));
        if let Err(error) = saved {
            tracing::warn!(%error, "the plan that needs a restart is not saved: make room, then restart twice");
        }
    }

    /// Removes a plan that waits for a restart: it was tried, or a later one
    /// needs none.
    fn forget_restart_plan(&self) {
        if let Err(error) = self.state.remove(RESTART_PLAN_FILE) {
            tracing::warn!(%error, "a plan that no longer counts is still on disk: remove it");
        }
    }

    /// Saves a plan that came from a predecessor, or that could not be saved: a
    /// disk that was full may have room. To be called now and then.
    pub fn retry_saving(&self) {
        let Ok(_changes) = self.changes.try_lock() else { return };
        let shown = self.shown.load();
        let is_due = shown.running.is_some() && !shown.plan_saved;
        if is_due && self.save_plan().is_none() {
            tracing::info!("the plan is saved now");
        }
    }

    /// A plan that cannot be saved is served nevertheless; the warning says
    /// so.
    fn save_plan(&self) -> Option<String> {
        let running = self.shown.load_full().running.clone()?;
        let saved = serde_json::to_vec(&running.view.plan.message)
            .map_err(std::io::Error::from)
            .and_then(|bytes| self.state.replace(PLAN_FILE, &bytes));
        let why = saved.as_ref().err().map(ToString::to_string).unwrap_or_default();
        let known = self.shown.load().plan_unsaved.clone();
        self.update(|shown| {
            shown.plan_saved = saved.is_ok();
            shown.plan_unsaved.clone_from(&why);
        });
        let error = saved.err()?;
        if why != known {
            tracing::error!(%error, "the plan is served but not saved: a restart would start from an older one");
        }
        Some(format!(
            "the plan is served but not saved ({error}): a restart would start from an older one"
        ))
    }

    fn lock(&self) -> MutexGuard<'_, Changes> {
        self.changes.lock().expect("a panic aborts the process")
    }

    fn show(&self, running: Forwarding) {
        self.health.liveness.follow(running.engine.publisher());
        let interfaces = running.devices.iter();
        self.health.set_interfaces(interfaces.map(|d| (d.interface.clone(), d.index)));
        // Before the plan: an answer that names it says what it lacks.
        self.health.set_next_hops_unresolved(running.unresolved.len());
        self.health.set_generation(running.view.plan.generation);
        self.probing.set(probe::Sending {
            view: Arc::clone(&running.view),
            hash: running.hash.clone(),
            interfaces: running.devices.iter().map(|device| device.index).collect(),
        });
        self.update(|shown| shown.running = Some(running.clone()));
    }

    fn update(&self, change: impl Fn(&mut Shown)) {
        self.shown.rcu(|shown| {
            let mut shown = (**shown).clone();
            change(&mut shown);
            shown
        });
    }
}

/// Refuses services with IPv6 VIPs behind devices that carry too little for
/// them. Those of the running plan that have got into this since are warned
/// about: refusing every later plan would help no service.
fn refuse_narrow(
    plan: &Plan,
    snapshot: &Snapshot,
    devices: &[ShownDevice],
    running: Option<&Plan>,
) -> Result<(), Refusal> {
    let running = running.map(|plan| egress::narrow_for_ipv6(plan, snapshot)).unwrap_or_default();
    let is_new = |narrow: &egress::Narrow| running.iter().all(|old| old.service != narrow.service);
    let new = egress::narrow_for_ipv6(plan, snapshot).into_iter().find(is_new);
    new.map_or(Ok(()), |narrow| Err(Refusal::Precondition(narrow_text(&narrow, devices))))
}

fn narrow_texts(plan: &Plan, snapshot: &Snapshot, devices: &[ShownDevice]) -> Vec<String> {
    let narrow = egress::narrow_for_ipv6(plan, snapshot);
    narrow.iter().map(|narrow| narrow_text(narrow, devices)).collect()
}

/// Generations count plans, ten a second at most. One that lies more than 2^32 ahead of what runs
/// (13 years; of nothing: 2^48) was made up, and none could ever follow 2^64 - 1.
fn is_jump(running: u64, wanted: u64) -> bool {
    if running == 0 { wanted > 1 << 48 } else { wanted > running.saturating_add(1 << 32) }
}

fn narrow_text(narrow: &egress::Narrow, devices: &[ShownDevice]) -> String {
    narrow.text(|position| {
        devices.get(position).map_or("a device".to_owned(), |device| device.interface.clone())
    })
}

fn refusal(error: plan::PlanError) -> Refusal {
    // A feature that we lack is no fault of the plan.
    if error.path.starts_with("requires") {
        Refusal::Precondition(error.to_string())
    } else if error.later {
        Refusal::Later(error.to_string())
    } else {
        Refusal::Invalid(error.to_string())
    }
}

/// Unix time less our own clock, in milliseconds.
fn unix_offset_ms() -> i64 {
    let unix =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    unix.as_millis() as i64 - monotonic_ms() as i64
}
