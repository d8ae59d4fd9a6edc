//! Counters of one worker, and their conservation law:
//!
//! ```text
//!  received = sent + passed + replied + redirected + held + Σ dropped{reason}
//! ```
//!
//! The device counts `received` at its ring, independently of the others. `held` counts frames
//! that wait, that waited in vain, and those that were sent on later (also counted as
//! originated, `released`); a frame that is answered or dropped in the end counts as that.
//! Frames that we originate are counted separately, by kind. Only the worker writes; other
//! threads may read at any time.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::by_flow::ByFlow;
use crate::drop_reason::DropReason;
use crate::multipath::Selection;
use crate::outbox::{Accounting, Kind};
use crate::verdict::Verdict;

/// A number that one thread counts up and others read.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds to it. One writer only, so no locked instruction is needed.
    #[inline]
    pub fn add(&self, more: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
    }

    /// Its value.
    #[inline]
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// One of each reason. Arrays have a default up to 32 alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ByReason<T>([T; DropReason::COUNT]);

impl<T: Default> Default for ByReason<T> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| T::default()))
    }
}

impl<T> Deref for ByReason<T> {
    type Target = [T; DropReason::COUNT];

    #[inline]
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<T> DerefMut for ByReason<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

/// What one worker counts, whatever the plan.
#[derive(Debug, Default)]
pub struct Counters {
    /// Frames sent to a backend.
    pub sent: Counter,
    /// Frames given to the kernel.
    pub passed: Counter,
    /// Frames answered.
    pub replied: Counter,
    /// Of these, because they were too big.
    pub too_big_answered: Counter,
    /// Frames sent to another load balancer.
    pub redirected: Counter,
    /// Of these, spilled to another cluster.
    pub spilled: Counter,
    /// Frames kept for later, that were sent on since or waited in vain.
    pub held: Counter,
    /// Frames kept for later, whatever became of them since ...
    pub waits_begun: Counter,
    /// ... and those that wait no longer.
    pub waits_ended: Counter,
    /// Frames steered to another worker than their flow's.
    pub misdirected: Counter,
    /// Frames dropped, by reason.
    pub dropped: ByReason<Counter>,
    /// Frames that we originated beyond those received, by kind.
    pub originated: [Counter; Kind::COUNT],
    /// Frames that we would have originated, had there been memory, room on
    /// the transmit ring, or an address to send them from.
    pub originated_lost: Counter,
    /// What the connection table did.
    pub connections: ConnectionCounters,
    /// Packets of connections that an earlier table may have given away.
    pub second_chances: SecondChanceCounters,
    /// What was written into the kernel flow cache.
    pub kernel_cache: CacheCounters,
    /// What became of fragments.
    pub fragments: FragmentCounters,
    /// How packets went to services with QUIC connection ids.
    pub connection_ids: ConnectionIdCounters,
    /// TCP packets to services with Multipath TCP, by what selected: in the order of
    /// [`Selection::NAMES`].
    pub multipath: [Counter; Selection::COUNT],
    /// SYNs that request Multipath TCP of services without it.
    pub multipath_unserved: Counter,
}

/// UDP packets to services that have QUIC connection ids.
#[derive(Debug, Default)]
pub struct ConnectionIdCounters {
    /// Those whose connection id decided.
    pub named: Counter,
    /// Those that went by their flow, by reason.
    pub by_flow: [Counter; ByFlow::COUNT],
}

impl ConnectionIdCounters {
    /// Counts a packet.
    #[inline]
    pub fn count<T>(&self, named: Result<T, ByFlow>) {
        match named {
            Ok(_) => self.named.add(1),
            Err(reason) => self.by_flow[reason as usize].add(1),
        }
    }

    /// Each with its name in metrics.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, &Counter)> {
        let by_flow = ByFlow::ALL.into_iter().map(ByFlow::name).zip(&self.by_flow);
        std::iter::once(("connection_id", &self.named)).chain(by_flow)
    }
}

/// Packets of connections that an earlier table may have given to another backend.
#[derive(Debug, Default)]
pub struct SecondChanceCounters {
    /// Those that named earlier backends.
    pub sent: Counter,
    /// Those that did not, because of their service's limit.
    pub limited: Counter,
}

/// What became of fragments, by action.
#[derive(Debug, Default)]
pub struct FragmentCounters {
    /// Sent to the machine in charge.
    pub redirected: Counter,
    /// First ones, which were selected for.
    pub first: Counter,
    /// Later ones that followed their first.
    pub followed: Counter,
    /// Later ones that came before it and wait.
    pub held: Counter,
    /// Of these, sent on when it came.
    pub released: Counter,
    /// Of these, given up.
    pub expired: Counter,
    /// Of these, answered, or dropped for another reason.
    pub dropped: Counter,
}

impl FragmentCounters {
    /// Each with its name in metrics.
    #[must_use]
    pub fn named(&self) -> [(&'static str, &Counter); 7] {
        [
            ("redirected", &self.redirected),
            ("first", &self.first),
            ("followed", &self.followed),
            ("held", &self.held),
            ("released", &self.released),
            ("expired", &self.expired),
            ("dropped", &self.dropped),
        ]
    }
}

/// What a connection table did.
#[derive(Debug, Default)]
pub struct ConnectionCounters {
    /// Packets whose entry decided.
    pub hits: Counter,
    /// Packets without an entry that could decide.
    pub misses: Counter,
    /// Entries made.
    pub inserts: Counter,
    /// Entries that left by expiry.
    pub expired: Counter,
    /// Unconfirmed entries that gave their place to a new one.
    pub displaced: Counter,
    /// Packets sent by hash because their bucket was full.
    pub refused_full: Counter,
    /// Packets sent by hash because their service is at its quota.
    pub refused_quota: Counter,
    /// Packets that would have confirmed an entry, whose service has its share
    /// of the table.
    pub unconfirmed_at_share: Counter,
}

/// What a worker did with its region of the kernel flow cache.
#[derive(Debug, Default)]
pub struct CacheCounters {
    /// Flows entered.
    pub entered: Counter,
    /// Entries whose flow got another target.
    pub retargeted: Counter,
    /// Entries that gave their place to another flow.
    pub displaced: Counter,
    /// Flows that found no place.
    pub refused_full: Counter,
    /// Entries taken out by a SYN, FIN or RST.
    pub closed: Counter,
    /// Entries that left because they were idle, or their connection or target is gone.
    pub expired: Counter,
}

impl CacheCounters {
    /// Entries there are.
    #[must_use]
    pub fn held(&self) -> u64 {
        let gone = self.displaced.get() + self.closed.get() + self.expired.get();
        self.entered.get().saturating_sub(gone)
    }
}

impl Counters {
    /// Counts a frame's final verdict.
    #[inline]
    pub fn count(&self, verdict: Verdict) {
        match verdict {
            Verdict::Send(_) => self.sent.add(1),
            Verdict::Pass => self.passed.add(1),
            Verdict::Reply | Verdict::ReplyBy(_) => self.replied.add(1),
            Verdict::Redirect(_) => self.redirected.add(1),
            Verdict::Hold => self.waits_begun.add(1),
            Verdict::Drop(reason) => self.dropped[reason.index()].add(1),
            // Not final: the slow path counts.
            Verdict::Slow(_) => {}
        }
    }

    /// Counts a frame that a device has taken.
    #[inline]
    pub fn count_taken(&self, accounting: Accounting) {
        match accounting {
            Accounting::Received(verdict) => self.count(verdict),
            Accounting::Originated(kind) => self.originated[kind as usize].add(1),
            Accounting::Released(Verdict::Send(_) | Verdict::Redirect(_)) => {
                self.held.add(1);
                self.originated[Kind::Released as usize].add(1);
            }
            Accounting::Released(verdict) => self.count(verdict),
        }
    }

    /// The verdicts so far.
    #[must_use]
    pub fn totals(&self) -> Totals {
        Totals {
            sent: self.sent.get(),
            passed: self.passed.get(),
            replied: self.replied.get(),
            redirected: self.redirected.get(),
            held: self.held.get(),
            waiting: self.waits_begun.get().wrapping_sub(self.waits_ended.get()),
            dropped: ByReason(std::array::from_fn(|index| self.dropped[index].get())),
            originated: std::array::from_fn(|index| self.originated[index].get()),
        }
    }
}

/// Verdicts of one or more workers at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Totals {
    /// Frames sent to a backend.
    pub sent: u64,
    /// Frames given to the kernel.
    pub passed: u64,
    /// Frames answered.
    pub replied: u64,
    /// Frames sent to another load balancer.
    pub redirected: u64,
    /// Frames kept for later, that were sent on since or waited in vain.
    pub held: u64,
    /// Frames that wait. Of one thread alone it says nothing (and wraps): one
    /// counts those that begin to wait, another those that end.
    waiting: u64,
    /// Frames dropped, by reason.
    pub dropped: ByReason<u64>,
    /// Frames that we originated beyond those received, by kind. Not part of
    /// the law.
    pub originated: [u64; Kind::COUNT],
}

impl Totals {
    /// Adds another worker's.
    pub fn add(&mut self, other: &Totals) {
        self.sent += other.sent;
        self.passed += other.passed;
        self.replied += other.replied;
        self.redirected += other.redirected;
        self.held += other.held;
        self.waiting = self.waiting.wrapping_add(other.waiting);
        for (mine, theirs) in self.dropped.iter_mut().zip(*other.dropped) {
            *mine += theirs;
        }
        for (mine, theirs) in self.originated.iter_mut().zip(other.originated) {
            *mine += theirs;
        }
    }

    /// Frames that have a verdict.
    #[must_use]
    pub fn accounted(&self) -> u64 {
        self.sent
            + self.passed
            + self.replied
            + self.redirected
            + self.held
            + self.waiting()
            + self.dropped.iter().sum::<u64>()
    }

    /// Frames that wait.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        // What ends is counted before what begins, now and then.
        self.waiting.cast_signed().max(0).cast_unsigned()
    }

    /// Frames kept for later: those that wait, too.
    #[must_use]
    pub fn held_and_waiting(&self) -> u64 {
        self.held + self.waiting()
    }

    /// The law: frames received less frames that have a verdict. Zero at
    /// rest; anything else is a bug or a device that loses frames.
    #[must_use]
    pub fn unaccounted(&self, received: u64) -> i64 {
        received as i64 - self.accounted() as i64
    }
}
