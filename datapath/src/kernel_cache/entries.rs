//! The entries of one worker's region, and their only writer.
//!
//! ```text
//!  region   | bucket | bucket | ...              bucket: 4 entries, one cache line;
//!                                                each flow may be in one of two
//!
//!  word 0   63 ................. 17   16   15 ...... 0
//!           tag; zero: free       of this  time of use
//!                                 tick
//!  word 1   63 ...... 52 51 ..... 32 31 ...... 0
//!           generation   target      low half of the flow hash
//! ```
//!
//! **Writing.** The worker stores zero to word 0, then word 1, then word 0. The kernel
//! loads word 0, word 1, and word 0 again; a tag that differs is a miss. The kernel
//! stores the time halfword of word 0 and nothing else. With stores and loads in order
//! these races are left, and harmless:
//!
//! - The kernel stores the time into a word that the worker has just zeroed, or
//!   written for another flow. So a free place is known by its tag and not by
//!   word 0, and a new entry may seem used at the moment it was made.
//! - The worker removes an entry that the kernel has just accepted: one packet of each
//!   processor's is sent as if it had come before.
//! - Between the kernel's two loads of word 0 the place goes to another flow *and back
//!   to the first*: the kernel would send by the other's word 1. So a place takes
//!   another flow at the earliest [`REUSE_TICKS`] after it was written, which makes
//!   that at least four ticks for what takes the kernel nanoseconds.
//!
//! The first of these is tried in all interleavings by this module's tests.
//!
//! **Time.** The worker stores the tick (100 ms) beside its region in each round, and
//! the kernel copies it into entries that it sends by. Sweeping, the worker sees which
//! entries were used since it came by the last time, and writes their connections'
//! own entries: so these live at least as long as without a cache, and at most a tick
//! and a sweep longer. An entry whose connection is not confirmed yet is good for the tick
//! of its time alone ([`Validity::ThisTick`]): that is how long data changes nothing in the
//! connection's own one. The kernel leaves that time as it is; and a time that it stores into
//! such an entry by mistake (above) is no later, as it reads the tick before the entry.
//!
//! A service with an idle timeout shorter than [`super::limits::IDLE_TIMEOUT_MS_MIN`] is not
//! cached: an entry here could outlive its connection's, and send by what that one said.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use plan::ServiceId;
use siphasher::sip::SipHasher13;
use wire::FlowKey;

use super::LINE_WORDS;
use super::limits::{IDLE_MS_MAX, SWEEP_MS};
use super::targets::{TargetRef, Targets};
use super::tuple::TupleHash;
use crate::clock::Now;
use crate::counters::CacheCounters;

/// Entries of a bucket.
pub const BUCKET_ENTRIES: usize = 4;
const ENTRY_WORDS: usize = LINE_WORDS / BUCKET_ENTRIES;

/// A tick of the time of use: 16 bits of it are 1.8 hours, and no entry is idle for
/// longer than [`IDLE_TICKS_MAX`] and a sweep.
pub const TICK_MS: u64 = 100;

/// A place takes another flow this many ticks after it was written.
const REUSE_TICKS: u16 = 2;
/// An entry gives its place to another flow where it was not used for as long.
const DISPLACE_TICKS: u16 = 50;
/// An entry that was not used for as long goes.
const IDLE_TICKS_MAX: u16 = (IDLE_MS_MAX / TICK_MS) as u16;

/// One in this number of data packets is entered, if data changes nothing in its connection's
/// entry: a flow with its first or second, and few of those that send a datagram and no more.
/// TCP's are entered with their SYN before.
const ENTER_INTERVAL: u32 = 2;

/// The same where a batch has entered [`ENTER_MAX`], or little of the region is free: busy
/// flows come first.
const ENTER_INTERVAL_SPARSE: u32 = 32;

/// Flows that a batch enters, so that one of new flows costs little more than another.
const ENTER_MAX: u32 = 8;

/// Buckets of a region for that many flows, which is half full then: fewer than one in a
/// thousand find no place in two of them.
#[must_use]
pub fn buckets_for(flows: u64) -> u32 {
    // 2^28 connections are the most.
    (flows * 2).div_ceil(BUCKET_ENTRIES as u64).next_power_of_two().min(1 << 28) as u32
}

/// The key of the hash, chosen at each start.
pub type CacheKey = [u64; 2];

/// How long the kernel may send by an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Validity {
    /// As long as it is used.
    WhileUsed,
    /// In the tick in which it is written.
    ThisTick,
}

impl Validity {
    /// In word 0.
    const THIS_TICK: u64 = 1 << 16;

    fn of_word(word_0: u64) -> Validity {
        if word_0 & Validity::THIS_TICK == 0 { Validity::WhileUsed } else { Validity::ThisTick }
    }

    fn bits(self) -> u64 {
        match self {
            Validity::WhileUsed => 0,
            Validity::ThisTick => Validity::THIS_TICK,
        }
    }

    /// False: the kernel sends nothing by an entry with that time of use any more.
    fn holds(self, used: u16, tick: u16) -> bool {
        self == Validity::WhileUsed || used == tick
    }
}

type Bucket = [AtomicU64; LINE_WORDS];

/// Words of the line beside a region that the kernel reads.
mod line {
    pub const TICK: usize = 0;
    /// Not zero: nothing is sent by the region's entries, for these reasons
    /// ([`super::Pause`]). Threads that change plans and captures write it.
    pub const PAUSED: usize = 1;
}

/// Why nothing is sent by a region's entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pause {
    /// Packets are captured, which is done in user space.
    Capture = 1,
    /// It is not to be used.
    Off = 2,
    /// Its filters are not in their places yet: a predecessor's are, which know none of its flows.
    TakeOver = 4,
}

/// Has the kernel send nothing by the entries of the region that this line is beside, or
/// go on where no other reason is left. Entries stay; while user space gets their
/// packets, they look as if not used.
pub fn pause(line: &[AtomicU64; LINE_WORDS], reason: Pause, paused: bool) {
    let bit = reason as u64;
    match paused {
        true => line[line::PAUSED].fetch_or(bit, Ordering::Relaxed),
        false => line[line::PAUSED].fetch_and(!bit, Ordering::Relaxed),
    };
}

/// How long ago the kernel last sent by a flow's entry in the region, in milliseconds;
/// None: it has none that is valid.
#[must_use]
pub fn idle_ms(region: &CacheRegion<'_>, key: &FlowKey) -> Option<u64> {
    let [key_0, key_1] = region.key;
    let tuple = TupleHash::of(&SipHasher13::new_with_keys(key_0, key_1), key);
    let (buckets, _) = region.entries.as_chunks::<LINE_WORDS>();
    let [word_0, word_1] = [tuple, tuple.second()].into_iter().find_map(|tuple| {
        let (entries, _) = buckets[tuple.bucket(buckets.len())].as_chunks::<ENTRY_WORDS>();
        let mut entries =
            entries.iter().map(|words| [0, 1].map(|at: usize| words[at].load(Ordering::Relaxed)));
        entries.find(|[word_0, _]| word_0 & TupleHash::TAG_MASK == tuple.tag())
    })?;
    let tick = region.line[line::TICK].load(Ordering::Relaxed) as u16;
    let is_valid = Validity::of_word(word_0).holds(word_0 as u16, tick)
        && target_of(word_1).is_some_and(|target| region.targets.is_valid(target));
    is_valid.then(|| u64::from(tick.wrapping_sub(word_0 as u16)) * TICK_MS)
}

/// The memory of one worker's cache.
#[derive(Debug, Clone, Copy)]
pub struct CacheRegion<'m> {
    /// Its entries: words of a power of two of buckets.
    pub entries: &'m [AtomicU64],
    /// The line beside them.
    pub line: &'m [AtomicU64; LINE_WORDS],
    /// The targets, which the control thread writes.
    pub targets: Targets<'m>,
    /// The key of the hash.
    pub key: CacheKey,
}

/// What the worker knows of an entry, beside what the kernel sees.
#[derive(Debug, Clone, Copy, Default)]
struct Owner {
    hash: u64,
    service: ServiceId,
    /// When the place was last written, in ticks.
    written: u16,
    /// The time of use when the sweep last came by.
    used: u16,
}

/// The entries of one queue's region. Only its worker writes, but for the time of use.
#[derive(Debug)]
pub struct EntryWriter<'m> {
    buckets: &'m [Bucket],
    line: &'m Bucket,
    targets: Targets<'m>,
    hasher: SipHasher13,
    owners: Box<[Cell<Owner>]>,
    counters: &'m CacheCounters,
    tick: u16,
    /// Data packets since the last one that was due.
    since_due: Cell<u32>,
    /// Flows that this batch may enter yet.
    budget: Cell<u32>,
    /// Entries in the region: without any there is nothing to sweep.
    held: Cell<usize>,
    sweep: Sweep,
}

#[derive(Debug, Default)]
struct Sweep {
    before: Option<Now>,
    next: usize,
    credit: u64,
}

impl<'m> EntryWriter<'m> {
    /// The writer of an empty region.
    ///
    /// # Panics
    /// If the words are no power of two of buckets.
    #[must_use]
    pub fn new(region: CacheRegion<'m>, counters: &'m CacheCounters) -> EntryWriter<'m> {
        let CacheRegion { entries, line, targets, key } = region;
        let (buckets, rest) = entries.as_chunks::<LINE_WORDS>();
        assert!(rest.is_empty() && buckets.len().is_power_of_two(), "{} words", entries.len());
        let places = buckets.len() * BUCKET_ENTRIES;
        EntryWriter {
            buckets,
            line,
            targets,
            hasher: SipHasher13::new_with_keys(key[0], key[1]),
            owners: std::iter::repeat_with(Cell::default).take(places).collect(),
            counters,
            tick: 0,
            since_due: Cell::new(0),
            budget: Cell::new(0),
            held: Cell::new(0),
            sweep: Sweep::default(),
        }
    }

    /// True for a data packet whose flow is to be entered, if it is steady.
    #[inline(always)]
    pub(crate) fn is_due(&self) -> bool {
        let interval = if self.budget.get() == 0 { ENTER_INTERVAL_SPARSE } else { ENTER_INTERVAL };
        let since = self.since_due.get() + 1;
        self.since_due.set(if since >= interval { 0 } else { since });
        since >= interval
    }

    /// True where flows may be entered that are not confirmed yet. In a flood they never
    /// are: so half of the region is left to others.
    pub(crate) fn takes_unconfirmed(&self) -> bool {
        self.budget.get() != 0 && self.held.get() < self.owners.len() / 2
    }

    /// Enters a flow, whose hash that is, or gives it another target. Buckets whose
    /// entries are all in use stay as they are: no flow displaces another that goes on.
    pub fn enter(
        &self,
        key: &FlowKey,
        hash: u64,
        service: ServiceId,
        target: TargetRef,
        validity: Validity,
    ) {
        if !self.targets.is_valid(target) {
            // The kernel cannot send there from this device, or no longer.
            return;
        }
        let tuple = TupleHash::of(&self.hasher, key);
        let decision = decision(hash, target);
        if let Some(place) = self.find(tuple) {
            let is_other = place.decision() != decision;
            if is_other || place.validity() != validity || !self.holds(&place) {
                self.counters.retargeted.add(is_other.into());
                let tag = place.tag_and_time().0;
                self.write(&place, tag | validity.bits(), decision, hash, service);
            }
            return;
        }
        let Some((place, tag, displaces)) = self.place_for_another(tuple) else {
            return self.counters.refused_full.add(1);
        };
        self.budget.update(|left| left.saturating_sub(1));
        self.counters.entered.add(1);
        self.counters.displaced.add(displaces.into());
        self.held.update(|held| held + usize::from(!displaces));
        self.write(&place, tag | validity.bits(), decision, hash, service);
    }

    /// Takes a flow's entry out: its connection ends, or another begins in its place.
    pub(crate) fn remove(&self, key: &FlowKey) {
        if self.held.get() == 0 {
            return;
        }
        let tuple = TupleHash::of(&self.hasher, key);
        let Some(place) = self.find(tuple) else { return };
        self.clear(&place);
        self.counters.closed.add(1);
    }

    /// Sets the time, and sweeps the region a little further. `refresh` is called for
    /// flows that the kernel has sent packets of since the sweep last came by; false:
    /// the connection table has no such flow.
    pub fn begin(&mut self, now: Now, refresh: impl Fn(u64, ServiceId) -> bool) {
        self.tick = (now.0 / TICK_MS) as u16;
        self.line[line::TICK].store(self.tick.into(), Ordering::Relaxed);
        let has_room = self.held.get() < self.owners.len() / 4 * 3;
        self.budget.set(if has_room { ENTER_MAX } else { 0 });
        let Some(before) = self.sweep.before.replace(now) else { return };
        self.sweep.credit += (now.0 - before.0).min(SWEEP_MS) * self.buckets.len() as u64;
        let steps = self.sweep.credit / SWEEP_MS;
        self.sweep.credit %= SWEEP_MS;
        if self.held.get() == 0 {
            return;
        }
        for _ in 0..steps {
            (0..BUCKET_ENTRIES).for_each(|entry| {
                self.sweep_place(&self.place(self.sweep.next, entry), &refresh);
            });
            self.sweep.next = (self.sweep.next + 1) % self.buckets.len();
        }
    }

    fn sweep_place(&self, place: &Place<'_>, refresh: impl Fn(u64, ServiceId) -> bool) {
        let (tag, used) = place.tag_and_time();
        if tag == 0 {
            return;
        }
        let owner = place.owner.get();
        let is_gone = owner.used != used && !refresh(owner.hash, owner.service);
        place.owner.set(Owner { used, ..owner });
        let is_over = self.idle_ticks(used) > IDLE_TICKS_MAX || !self.holds(place);
        if is_gone || is_over || !self.is_valid(place) {
            self.clear(place);
            self.counters.expired.add(1);
        }
    }

    /// True if the kernel would send by this entry's target.
    fn is_valid(&self, place: &Place<'_>) -> bool {
        target_of(place.decision()).is_some_and(|target| self.targets.is_valid(target))
    }

    /// False: its tick is over.
    fn holds(&self, place: &Place<'_>) -> bool {
        place.validity().holds(place.tag_and_time().1, self.tick)
    }

    fn idle_ticks(&self, used: u16) -> u16 {
        self.tick.wrapping_sub(used)
    }

    fn find(&self, tuple: TupleHash) -> Option<Place<'_>> {
        let in_bucket = |tuple: TupleHash| {
            self.places(tuple).find(|place| place.tag_and_time().0 == tuple.tag())
        };
        in_bucket(tuple).or_else(|| in_bucket(tuple.second()))
    }

    /// A free place, or else the one that was not used for the longest time, if that is
    /// long; the tag there, and whether it displaces an entry. The second bucket, which
    /// costs the kernel another cache line, has a flow where the first has one place left
    /// or none: so nine in ten are in their first when as many are here as are meant to be.
    fn place_for_another(&self, first: TupleHash) -> Option<(Place<'_>, u64, bool)> {
        let is_ready =
            |place: &Place<'_>| self.tick.wrapping_sub(place.owner.get().written) >= REUSE_TICKS;
        let is_free = |place: &Place<'_>| place.tag_and_time().0 == 0;
        let free = |tuple| self.places(tuple).filter(|place| is_free(place) && is_ready(place));
        let second = first.second();
        let [left, left_in_second] = [first, second].map(|tuple| free(tuple).count());
        let tuple = if left > 1 || left >= left_in_second { first } else { second };
        if let Some(free) = free(tuple).next() {
            return Some((free, tuple.tag(), false));
        }
        let idle = |place: &Place<'_>| match self.holds(place) {
            true => self.idle_ticks(place.tag_and_time().1),
            false => u16::MAX,
        };
        let taken = [first, second].into_iter().flat_map(|tuple| {
            let taken = self.places(tuple).filter(|place| !is_free(place) && is_ready(place));
            taken.map(move |place| (place, tuple.tag(), true))
        });
        let longest = taken.max_by_key(|(place, ..)| idle(place))?;
        (idle(&longest.0) >= DISPLACE_TICKS).then_some(longest)
    }

    /// Those of the tuple's bucket.
    fn places(&self, tuple: TupleHash) -> impl Iterator<Item = Place<'_>> {
        let bucket = tuple.bucket(self.buckets.len());
        (0..BUCKET_ENTRIES).map(move |entry| self.place(bucket, entry))
    }

    fn place(&self, bucket: usize, entry: usize) -> Place<'_> {
        let (words, _) = self.buckets[bucket].as_chunks::<ENTRY_WORDS>();
        Place { words: &words[entry], owner: &self.owners[bucket * BUCKET_ENTRIES + entry] }
    }

    /// The tag with the validity.
    fn write(&self, place: &Place<'_>, tag: u64, decision: u64, hash: u64, service: ServiceId) {
        place.store(&stores_to_write(tag | u64::from(self.tick), decision));
        let (written, used) = (self.tick, self.tick);
        place.owner.set(Owner { hash, service, written, used });
    }

    fn clear(&self, place: &Place<'_>) {
        place.store(&[STORE_FREE]);
        self.held.update(|held| held - 1);
        place.owner.set(Owner { written: self.tick, ..place.owner.get() });
    }
}

/// An entry's place.
struct Place<'m> {
    words: &'m [AtomicU64; ENTRY_WORDS],
    owner: &'m Cell<Owner>,
}

impl Place<'_> {
    fn tag_and_time(&self) -> (u64, u16) {
        let word = self.words[0].load(Ordering::Relaxed);
        (word & TupleHash::TAG_MASK, word as u16)
    }

    fn validity(&self) -> Validity {
        Validity::of_word(self.words[0].load(Ordering::Relaxed))
    }

    fn decision(&self) -> u64 {
        self.words[1].load(Ordering::Relaxed)
    }

    /// Each is seen after those before it.
    fn store(&self, stores: &[Store]) {
        for (word, value) in stores {
            self.words[*word].store(*value, Ordering::Release);
        }
    }
}

const TARGET_SHIFT: u32 = 32;

/// Word 1.
fn decision(hash: u64, target: TargetRef) -> u64 {
    u64::from(target.bits()) << TARGET_SHIFT | hash & 0xffff_ffff
}

/// Of word 1.
fn target_of(decision: u64) -> Option<TargetRef> {
    TargetRef::from_bits((decision >> TARGET_SHIFT) as u32)
}

/// A word of an entry, and what is stored there.
type Store = (usize, u64);

const STORE_FREE: Store = (0, 0);

/// What makes an entry, in order.
fn stores_to_write(word_0: u64, word_1: u64) -> [Store; 3] {
    [STORE_FREE, (1, word_1), (0, word_0)]
}

#[cfg(test)]
mod tests;
