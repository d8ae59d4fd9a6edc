//! The slow-path thread: one for the machine, for what needs all workers' tables.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use datapath::slow::SlowPath;
use datapath::{NoRecorder, View};
use nic::wait::{Waiter, Waker};
use wire::BATCH_MAX;

use crate::dataplane::threads::{REST_PAUSE, Role, SLEEP_MAX, Stage, monotonic_ms};
use crate::dataplane::view_publisher::ViewPublisher;
use sim::SlowPathServer;

/// What the slow path's thread is made of.
pub struct Parts {
    /// What decides.
    pub path: SlowPath<'static>,
    /// Its ends of the rings, one for each worker, which an answer wakes.
    pub servers: Vec<(SlowPathServer, Waker)>,
    /// Where views are posted.
    pub publisher: Arc<ViewPublisher>,
    /// What it sleeps on.
    pub waiter: Waiter,
}

/// Starts the thread, which ends when the publisher says stop.
pub fn start(parts: Parts) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name(Role::SlowPath.to_string())
        .spawn(move || Thread::new(parts).run())
}

struct Thread {
    parts: Parts,
    view: Arc<View>,
    epoch: u64,
}

impl Thread {
    fn new(parts: Parts) -> Thread {
        let view = parts.publisher.view();
        Thread { parts, view, epoch: 0 }
    }

    fn run(mut self) {
        let publisher = Arc::clone(&self.parts.publisher);
        let thread = &publisher.threads()[publisher.thread_of(Role::SlowPath)];
        thread.set_cpu(None);
        while !publisher.stopped() {
            if publisher.epoch() != self.epoch {
                self.epoch = publisher.epoch();
                self.view = publisher.view();
                thread.acknowledge(self.epoch, self.view.plan.generation);
            }
            let now_ms = monotonic_ms();
            thread.beat(now_ms);
            self.parts.path.begin(now_ms as u32);
            let asked = self.round();
            // Workers rest already, so no request can follow.
            let rests = !asked && publisher.rests(Stage::All);
            thread.set_resting(if rests { Stage::All } else { Stage::Work });
            if rests {
                std::thread::sleep(REST_PAUSE);
            } else if !asked {
                self.parts.waiter.wait(SLEEP_MAX).expect("polling descriptors that are open");
            }
        }
    }

    /// Answers what was asked, at most a batch of each worker's, so that under
    /// any flood it goes round; false: nothing was.
    fn round(&mut self) -> bool {
        let Thread { parts, view, .. } = self;
        let mut asked = false;
        for (server, worker) in &mut parts.servers {
            let mut serve = || server.serve(&mut parts.path, view, &mut NoRecorder);
            if (0..BATCH_MAX).take_while(|_| serve()).count() > 0 {
                worker.wake();
                asked = true;
            }
        }
        asked
    }
}
