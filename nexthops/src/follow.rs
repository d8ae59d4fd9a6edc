//! The thread that follows the kernel.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::sync::watch;

use crate::links::Links;
use crate::neighbours::Neighbours;
use crate::resolve::{Routes, needed, snapshot};
use crate::socket::{Notification, Notifications, Requests};
use crate::{Command, LastRound, LinksUp, Mailbox, Snapshot, Wanted, monotonic_ms, routes};

/// Changes come in bursts (a link going down takes all its routes along):
/// wait this long for the rest of one.
const COALESCE: Duration = Duration::from_millis(10);

/// A round takes time in proportion to the backends; rest this many times as
/// long afterwards, so that endless changes cost a bounded share of a core.
const REST_FACTOR: u32 = 4;

/// The longest wait: who looks at the last round is to see that the thread lives.
const WAIT_MAX: Duration = Duration::from_millis(250);

/// Refused entries (a full neighbour table) are tried again after this long.
const RETRY: Duration = Duration::from_secs(1);

pub struct Follower {
    mailbox: Arc<Mailbox>,
    publish: watch::Sender<Arc<Snapshot>>,
    links_up: LinksUp,
    last_round: LastRound,
    requests: Requests,
    notifications: Notifications,
    links: Links,
    neighbours: Neighbours,
    routes: Routes,
    wanted: Wanted,
    changes: Changes,
}

/// What has to be done anew, and not before when.
#[derive(Debug, Default)]
struct Changes {
    routes: bool,
    everything: bool,
    due: Option<Instant>,
    not_before: Option<Instant>,
}

impl Changes {
    fn note(&mut self) {
        let soon = Instant::now() + COALESCE;
        let due = self.not_before.map_or(soon, |rest| rest.max(soon));
        self.due.get_or_insert(due);
    }
}

impl Follower {
    /// Listens before it reads, so that no change falls in between.
    pub fn new(
        mailbox: Arc<Mailbox>,
        publish: watch::Sender<Arc<Snapshot>>,
        links_up: LinksUp,
    ) -> io::Result<Follower> {
        let notifications = Notifications::open()?;
        let mut requests = Requests::open()?;
        let links = Links::read(&mut requests)?;
        links_up.store(Arc::new(links.up()));
        let neighbours = Neighbours::read(&mut requests)?;
        Ok(Follower {
            mailbox,
            publish,
            links_up,
            last_round: Arc::new(AtomicU64::new(monotonic_ms())),
            requests,
            notifications,
            links,
            neighbours,
            routes: Routes::new(),
            wanted: Wanted::default(),
            changes: Changes::default(),
        })
    }

    pub fn last_round(&self) -> LastRound {
        Arc::clone(&self.last_round)
    }

    pub fn run(&mut self) {
        loop {
            self.last_round.store(monotonic_ms(), Ordering::Relaxed);
            if let Err(error) = self.wait().and_then(|()| self.listen()) {
                tracing::error!(%error, "following routes and neighbours failed; reading them anew");
                self.changes.everything = true;
                self.changes.note();
                std::thread::sleep(RETRY);
            }
            match self.mailbox.take() {
                Some(Command::Stop) => break,
                Some(Command::Set(wanted)) => self.set(wanted),
                None => {}
            }
            if self.changes.due.is_some_and(|due| due <= Instant::now()) {
                self.round();
            }
        }
        self.neighbours.release(&mut self.requests, |_| true);
    }

    fn wait(&self) -> io::Result<()> {
        let left = self.changes.due.map(|due| due.saturating_duration_since(Instant::now()));
        let left = left.map_or(WAIT_MAX, |left| left.min(WAIT_MAX));
        let timeout =
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let notifications = self.notifications.fd();
        let mut fds = [
            PollFd::new(&notifications, PollFlags::IN),
            PollFd::new(&self.mailbox.event, PollFlags::IN),
        ];
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn listen(&mut self) -> io::Result<()> {
        let Follower { notifications, links, neighbours, changes, .. } = self;
        notifications.drain(|notification| {
            match notification {
                // A link that goes down takes routes along without a word.
                Notification::Message(message) if links.note(&message) => changes.routes = true,
                Notification::Message(message) => neighbours.note(&message),
                Notification::RoutesChanged => changes.routes = true,
                Notification::Lost => changes.everything = true,
            }
            changes.note();
        })?;
        self.publish_links();
        Ok(())
    }

    /// At once: unlike a snapshot it does not wait for routes and neighbours.
    fn publish_links(&self) {
        let up = self.links.up();
        if **self.links_up.load() != up {
            self.links_up.store(Arc::new(up));
        }
    }

    /// What is new in the set is looked up at once: a plan waits for it.
    fn set(&mut self, wanted: Wanted) {
        if wanted == self.wanted {
            return;
        }
        self.wanted = wanted;
        self.changes.routes = true;
        self.changes.due = Some(Instant::now());
    }

    fn round(&mut self) {
        let start = Instant::now();
        let changes = std::mem::take(&mut self.changes);
        if let Err(error) = self.refresh(&changes) {
            tracing::error!(%error, "reading links and neighbours failed; will be tried again");
            self.changes.everything = true;
            self.changes.due = Some(start + RETRY);
            return;
        }
        self.resolve();
        let end = Instant::now();
        self.changes.not_before = Some(end + (end - start) * REST_FACTOR);
        if self.neighbours.has_refusals() {
            self.changes.due = Some(end + RETRY);
        }
    }

    fn refresh(&mut self, changes: &Changes) -> io::Result<()> {
        if changes.everything {
            self.links = Links::read(&mut self.requests)?;
            self.neighbours = Neighbours::read(&mut self.requests)?;
        }
        if changes.everything || changes.routes {
            let Follower { wanted, requests, last_round, .. } = self;
            let look_up = |backend| {
                last_round.store(monotonic_ms(), Ordering::Relaxed);
                (backend, routes::lookup(requests, backend))
            };
            self.routes = wanted.backends.iter().copied().map(look_up).collect();
        }
        Ok(())
    }

    fn resolve(&mut self) {
        self.publish_links();
        let needed = needed(&self.wanted, &self.routes, &self.links);
        self.neighbours.manage(&mut self.requests, &needed);
        let latest = snapshot(&self.wanted, &self.routes, &self.links, &self.neighbours);
        self.publish.send_if_modified(|known| {
            let changed = **known != latest;
            if changed {
                *known = Arc::new(latest);
            }
            changed
        });
    }
}
