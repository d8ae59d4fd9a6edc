//! All workers: started once, given one view after another, and read by any thread.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use datapath::kernel_cache::Pause;
use datapath::slow::SlowPath;
use datapath::table::TableReader;
use datapath::verdict::DeviceIndex;
use datapath::{Clock, Counters, Datapath, FlowHash, Now, Secret, Totals, View};
use nic::wait::{Waiter, Waker};
use nic::{Interface, Meter, SharedIo, WorkerIo};
use rustix::fd::OwnedFd;

use crate::dataplane::accounts::Accounts;
use crate::dataplane::capture::{self, Filter, Source, Switch};
use crate::dataplane::checksums::ChecksumSamples;
use crate::dataplane::kernel_caches::KernelCaches;
use crate::dataplane::punt;
use crate::dataplane::samples::DropSamples;
use crate::dataplane::slow_path;
use crate::dataplane::steering::{self, Hub};
use crate::dataplane::tables::Tables;
use crate::dataplane::threads::{Role, Stage, monotonic_ms};
use crate::dataplane::view_publisher::ViewPublisher;
use crate::dataplane::worker;
use sim::{SlowPathServer, Worker};
use wire::FlowKey;

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// A worker goes round at least twenty times a second; one that has not for
/// this long hangs.
const SWAP_TIMEOUT: Duration = Duration::from_secs(5);

/// Coming to rest takes as long as what is in hand: a batch, and the slow
/// path's answers.
const REST_TIMEOUT: Duration = Duration::from_secs(1);

/// What the workers are started with.
pub struct Start<'a> {
    /// Devices' queues and packet memory, one for each worker.
    pub io: Vec<WorkerIo>,
    /// The interfaces behind the devices, in their order, to which frames go
    /// back that are the kernel's; none for devices without a kernel.
    pub interfaces: Vec<Interface>,
    /// What to forward by.
    pub view: Arc<View>,
    /// The cluster's secret.
    pub secret: Secret,
    /// Where the connection tables are.
    pub tables: &'a Tables,
    /// Names the hash key in their headers.
    pub key_digest: u64,
    /// Connections over all workers.
    pub connections_max: u64,
    /// Cores to pin workers to, in turn; empty: do not pin.
    pub cpus: Vec<usize>,
    /// Never sleep.
    pub busy_poll: bool,
    /// What a predecessor that ran until just now had.
    pub inherited: Inherited,
    /// What the kernel may send by itself, a region for each worker; None: nothing.
    pub kernel_caches: Option<KernelCaches>,
}

/// What there is to go on with, beside queues and tables.
#[derive(Default)]
pub struct Inherited {
    /// Connections of each worker's table, by service; None: to be counted.
    pub connections: Option<Vec<Vec<(u16, u32)>>>,
    /// The TAPs beside the devices, in their order.
    pub taps: Vec<Option<nic::Tap>>,
}

/// Running workers.
pub struct Engine {
    publisher: Arc<ViewPublisher>,
    running: Mutex<Vec<JoinHandle<()>>>,
    /// The workers, the slow path's, and where one receives for all workers, that.
    threads: Vec<Thread>,
    /// Of the thread that gives frames back to the kernel, which forwards by no view.
    punting: Waker,
    queues: Vec<QueueMeter>,
    /// Tables that could not be taken over, and why.
    emptied: Vec<String>,
    /// The ways back to the kernel, by device.
    ports: Arc<[punt::Port]>,
    captures: Arc<Switch>,
    /// What the kernel sends by itself, while nothing is captured.
    kernel_caches: Option<KernelCaches>,
    /// None: a capture is under way, and has them.
    sources: Mutex<Option<Vec<Source>>>,
    /// Views that a hanging worker may still use.
    kept: Mutex<Vec<Arc<View>>>,
}

/// A thread that packets need, as others see it.
struct Thread {
    role: Role,
    waker: Waker,
    /// Threads live as long as the process, and so do their counters.
    counters: &'static Counters,
    /// Of frames that it drops; None: others count and keep these.
    samples: Option<&'static DropSamples>,
    worker: Option<WorkersOwn>,
}

/// What only a worker has, as others see it.
struct WorkersOwn {
    table: TableReader<'static>,
    /// How many connections the table holds, by service.
    connections: Arc<[AtomicU32]>,
    checksums: &'static ChecksumSamples,
}

/// A queue's counters, and whose they are.
pub struct QueueMeter {
    /// The device.
    pub device: usize,
    /// The queue's number there.
    pub number: usize,
    /// The counters.
    pub meter: Meter,
}

/// Some threads did not do in time what they do in each round.
#[derive(Debug, thiserror::Error)]
#[error(
    "{} did not go round the loop within {} s: restart the forwarder",
    threads.iter().map(|role| format!("thread {role}")).collect::<Vec<_>>().join(", "),
    timeout.as_secs()
)]
pub struct Hanging {
    threads: Vec<Role>,
    timeout: Duration,
}

impl Engine {
    /// Starts all workers, each on what it owns.
    pub fn start(start: Start<'_>) -> Result<Engine> {
        let mut queues = Vec::new();
        for (number, io) in start.io.iter().enumerate() {
            let meters = io.queues.iter().map(|queue| queue.meter());
            queues.extend(meters.enumerate().map(|(device, meter)| QueueMeter {
                device,
                number,
                meter,
            }));
        }
        Engine::launch(start, queues, None)
    }

    /// Starts `workers` workers behind one thread that owns all queues;
    /// `start.io` is to be empty. `ring_frames` frames may wait for each worker
    /// from each device.
    pub fn start_steered(
        start: Start<'_>,
        io: SharedIo,
        workers: usize,
        ring_frames: usize,
    ) -> Result<Engine> {
        let (hub, ends) = steering::split(io, workers, ring_frames)?;
        let meter = |(device, number, queue): (usize, usize, &dyn nic::Queue)| QueueMeter {
            device,
            number,
            meter: queue.meter(),
        };
        let queues = hub.queues().map(meter).collect();
        let mut cpus = start.cpus.clone();
        if !cpus.is_empty() {
            // The first is the steering thread's, as far as there are enough.
            cpus.rotate_left(1);
        }
        Engine::launch(
            Start { io: ends, cpus, ..start },
            queues,
            Some((hub, start.cpus.first().copied())),
        )
    }

    fn launch(
        start: Start<'_>,
        queues: Vec<QueueMeter>,
        hub: Option<(Hub, Option<usize>)>,
    ) -> Result<Engine> {
        let workers = start.io.len();
        let connections = start.connections_max.div_ceil(workers as u64);
        let slow_waiter = Waiter::new([])?;
        let Inherited { connections: counts, taps } = start.inherited;
        let (punts, punting) = punt::prepare(&start.interfaces, workers, taps)?;
        let mut engine = Engine {
            publisher: Arc::new(ViewPublisher::new(start.view, workers, hub.is_some())),
            running: Mutex::default(),
            threads: Vec::with_capacity(workers + 2),
            punting: punting.waker(),
            queues,
            emptied: Vec::new(),
            ports: punting.ports(),
            captures: Arc::default(),
            kernel_caches: start.kernel_caches,
            sources: Mutex::default(),
            kept: Mutex::default(),
        };
        let (mut parts, mut servers) = (Vec::with_capacity(workers), Vec::with_capacity(workers));
        for (index, (io, punt)) in start.io.into_iter().zip(punts).enumerate() {
            let counts =
                counts.as_ref().map(|counts| counts.get(index).map_or(&[][..], Vec::as_slice));
            let opened =
                start.tables.table(start.key_digest, index, workers, connections, counts)?;
            engine.emptied.extend(opened.emptied);
            let waiter = Waiter::new(io.queues.iter().filter_map(|queue| queue.fd()))?;
            let (slow_path, server) = sim::slow_path::pair();
            servers.push((server, waiter.waker()));
            let checksums: &'static ChecksumSamples = Box::leak(Box::default());
            let (table, connections) = (opened.reader, opened.table.counts());
            let own = WorkersOwn { table, connections, checksums };
            let (Accounts { counters, samples }, tap) =
                engine.add_receiver(Role::Worker(index), waiter.waker(), Some(own));
            let mut datapath =
                Datapath::new(&start.secret, opened.table, counters, opened.clock, index);
            if let Some(caches) = &engine.kernel_caches {
                datapath.set_kernel_cache(caches.regions(index));
            }
            parts.push(worker::Parts {
                index,
                worker: Worker::new(sim::Parts {
                    queues: io.queues,
                    pool: io.pool,
                    datapath,
                    counters,
                    slow_path,
                    platform: worker::Surroundings { samples, checksums, tap, punt },
                }),
                slow_path: slow_waiter.waker(),
                publisher: Arc::clone(&engine.publisher),
                waiter,
                cpu: (!start.cpus.is_empty()).then(|| start.cpus[index % start.cpus.len()]),
                busy_poll: start.busy_poll,
                steered: hub.is_some(),
            });
        }
        engine.start_slow_path(&start.secret, servers, slow_waiter)?;
        engine.run(punting.start(Arc::clone(&engine.publisher))?);
        for parts in parts {
            engine.run(worker::start(parts)?);
        }
        if let Some((hub, cpu)) = hub {
            engine.steer(hub, cpu, &start.secret, start.busy_poll)?;
        }
        engine.wake_and_wait()?;
        Ok(engine)
    }

    /// A thread that receives, with what it counts by and captures to.
    fn add_receiver(
        &mut self,
        role: Role,
        waker: Waker,
        worker: Option<WorkersOwn>,
    ) -> (Accounts, capture::Tap) {
        let counters: &'static Counters = Box::leak(Box::default());
        let samples: &'static DropSamples = Box::leak(Box::default());
        self.threads.push(Thread { role, waker, counters, samples: Some(samples), worker });
        let (tap, source) = capture::pair(&self.captures);
        self.lock_sources().get_or_insert_default().push(source);
        (Accounts { counters, samples }, tap)
    }

    fn start_slow_path(
        &mut self,
        secret: &Secret,
        servers: Vec<(SlowPathServer, Waker)>,
        waiter: Waiter,
    ) -> Result<()> {
        let counters: &'static Counters = Box::leak(Box::default());
        let clock = Clock::resume(Now(monotonic_ms()));
        let path = SlowPath::new(secret, self.tables(), counters, clock);
        let (role, waker) = (Role::SlowPath, waiter.waker());
        let (samples, worker) = (None, None);
        self.threads.push(Thread { role, waker, counters, samples, worker });
        let publisher = Arc::clone(&self.publisher);
        self.run(slow_path::start(slow_path::Parts { path, servers, publisher, waiter })?);
        Ok(())
    }

    /// Starts the steering thread.
    fn steer(
        &mut self,
        hub: Hub,
        cpu: Option<usize>,
        secret: &Secret,
        busy_poll: bool,
    ) -> Result<()> {
        let workers = self.threads.iter().filter(|thread| thread.worker.is_some());
        let wakers = workers.map(|thread| thread.waker.clone()).collect();
        let (accounts, tap) = self.add_receiver(Role::Steering, hub.waker(), None);
        let parts = steering::Parts {
            hub,
            hash: FlowHash::for_steering(secret),
            accounts,
            tap,
            wakers,
            publisher: Arc::clone(&self.publisher),
            cpu,
            busy_poll,
        };
        self.run(steering::start(parts)?);
        Ok(())
    }

    /// Joins it when the engine stops.
    fn run(&self, thread: JoinHandle<()>) {
        self.lock_running().push(thread);
    }

    /// Has all workers forward by `view`; returns when they do, and frees
    /// what they forwarded by before.
    pub fn swap(&self, view: Arc<View>) -> Result<(), Hanging> {
        let old = self.publisher.post(view);
        let mut kept = self.kept.lock().expect("no holder of this lock panics");
        kept.push(old);
        self.wake_and_wait()?;
        kept.clear();
        Ok(())
    }

    /// Has all threads finish what is on its way and stand still. From then
    /// on nothing is taken from devices, nor written to connection tables:
    /// a successor may go on with both. On failure all go on.
    pub fn rest(&self) -> Result<(), Hanging> {
        let (workers, behind) = (self.workers(), self.publisher.threads().len());
        let steering = workers + 1..behind;
        for (stage, threads) in [
            (Stage::Receiving, steering),
            (Stage::Workers, 0..workers),
            (Stage::All, workers..behind),
        ] {
            self.publisher.rest(stage);
            self.wake();
            let rest = self.publisher.wait_at_rest(threads, stage, REST_TIMEOUT);
            rest.map_err(|threads| {
                self.resume();
                Hanging { threads, timeout: REST_TIMEOUT }
            })?;
        }
        Ok(())
    }

    /// Ends [`Engine::rest`]; returns when all threads go on, so that none of
    /// them counts as standing still for the next rest already.
    pub fn resume(&self) {
        self.publisher.rest(Stage::Work);
        self.wake();
        if let Err(threads) = self.publisher.wait_at_work(REST_TIMEOUT) {
            tracing::error!("{}", Hanging { threads, timeout: REST_TIMEOUT });
        }
    }

    /// How many connections each worker's table holds, by service; services
    /// without any are left out.
    #[must_use]
    pub fn connections_by_service(&self) -> Vec<Vec<(u16, u32)>> {
        let of_worker = |WorkersOwn { connections, .. }: &WorkersOwn| {
            let counts = (0..).zip(connections.iter().map(|count| count.load(Ordering::Relaxed)));
            counts.filter(|(_, count)| *count > 0).collect()
        };
        self.workers_own().map(of_worker).collect()
    }

    /// Tables that could not be taken over, and why: a sentence each.
    #[must_use]
    pub fn emptied(&self) -> &[String] {
        &self.emptied
    }

    /// Copies of the TAPs, by device.
    #[must_use]
    pub fn taps(&self) -> Vec<Option<OwnedFd>> {
        self.ports.iter().map(punt::Port::tap).collect()
    }

    /// One thread receives for all workers.
    #[must_use]
    pub fn is_steered(&self) -> bool {
        self.threads.iter().any(|thread| thread.role == Role::Steering)
    }

    /// Ends all workers.
    pub fn stop(&self) {
        self.publisher.stop();
        self.wake();
        self.punting.wake();
        // A panic aborts the process, so there is none to report.
        self.lock_running().drain(..).for_each(|thread| drop(thread.join()));
    }

    /// How many workers there are.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.workers_own().count()
    }

    /// What the threads that packets need say of themselves: workers first.
    #[must_use]
    pub fn publisher(&self) -> &Arc<ViewPublisher> {
        &self.publisher
    }

    /// Each worker's counters, then the slow path's and the steering thread's.
    pub fn counters(&self) -> impl Iterator<Item = &'static Counters> {
        self.threads.iter().map(|thread| thread.counters)
    }

    /// Each worker's latest dropped frames, then the steering thread's.
    pub fn samples(&self) -> impl Iterator<Item = &'static DropSamples> {
        self.threads.iter().filter_map(|thread| thread.samples)
    }

    /// What each worker saw of checksums.
    pub fn checksums(&self) -> impl Iterator<Item = &'static ChecksumSamples> {
        self.workers_own().map(|worker| worker.checksums)
    }

    /// The ways back to the kernel, by device.
    #[must_use]
    pub fn ports(&self) -> &[punt::Port] {
        &self.ports
    }

    /// Captures packets until the session is dropped; None: another session
    /// does.
    #[must_use]
    pub fn capture(self: &Arc<Engine>, filter: Filter) -> Option<Session> {
        let mut sources = self.lock_sources().take()?;
        // What a worker was about to hand over when the last session ended.
        for source in &mut sources {
            while source.next().is_some() {}
            source.missed();
        }
        self.captures.turn_on(Arc::new(filter));
        self.pause_kernel_cache(Pause::Capture, true);
        Some(Session { engine: Arc::clone(self), sources })
    }

    /// Has all packets come to the workers for that reason, or not for it any more.
    pub fn pause_kernel_cache(&self, reason: Pause, paused: bool) {
        if let Some(caches) = &self.kernel_caches {
            caches.pause(reason, paused);
        }
    }

    /// True while packets are captured.
    #[must_use]
    pub fn is_capturing(&self) -> bool {
        self.lock_sources().is_none()
    }

    /// A flow's entry in the kernel flow cache: the device and the queue whose packets
    /// find it, and how many milliseconds it was not used.
    #[must_use]
    pub fn cached(&self, key: &FlowKey) -> Option<(DeviceIndex, u32, u64)> {
        self.kernel_caches.as_ref()?.find(key)
    }

    fn lock_sources(&self) -> std::sync::MutexGuard<'_, Option<Vec<Source>>> {
        self.sources.lock().expect("no holder of this lock panics")
    }

    /// All queues' counters.
    #[must_use]
    pub fn queues(&self) -> &[QueueMeter] {
        &self.queues
    }

    /// Each worker's connection table.
    #[must_use]
    pub fn tables(&self) -> Vec<TableReader<'static>> {
        self.workers_own().map(|worker| worker.table).collect()
    }

    fn workers_own(&self) -> impl Iterator<Item = &WorkersOwn> {
        self.threads.iter().filter_map(|thread| thread.worker.as_ref())
    }

    /// Frames that devices took off their rings, and what became of them.
    /// What is between the two counts as unaccounted: zero at rest.
    #[must_use]
    pub fn totals(&self) -> (u64, Totals) {
        let received = self.queues.iter().map(|queue| queue.meter.read().received).sum();
        (received, self.verdicts())
    }

    /// What became of frames, without asking the kernel for those that were received.
    #[must_use]
    pub fn verdicts(&self) -> Totals {
        let mut totals = Totals::default();
        self.counters().for_each(|counters| totals.add(&counters.totals()));
        totals
    }

    fn wake(&self) {
        self.threads.iter().for_each(|thread| thread.waker.wake());
    }

    fn wake_and_wait(&self) -> Result<(), Hanging> {
        self.wake();
        let waited = self.publisher.wait(SWAP_TIMEOUT);
        waited.map_err(|threads| Hanging { threads, timeout: SWAP_TIMEOUT })
    }

    fn lock_running(&self) -> std::sync::MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.running.lock().expect("no holder of this lock panics")
    }
}

/// A capture under way.
pub struct Session {
    engine: Arc<Engine>,
    /// One for each worker, then the steering thread's.
    pub sources: Vec<Source>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.engine.pause_kernel_cache(Pause::Capture, false);
        self.engine.captures.turn_off();
        *self.engine.lock_sources() = Some(std::mem::take(&mut self.sources));
    }
}
