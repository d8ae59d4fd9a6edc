//! The connection table (paper 3.3): one per worker, of fixed size, in memory that others may
//! read and a successor may take over.
//!
//! ```text
//!  mapping  | header, one page | bucket | bucket | ...      bucket: 8 entries, one cache line
//!
//!  entry    63........42 41.....28 27......12 11..10 9.....0
//!           tag          service   backend    class  time    all zero: empty
//! ```
//!
//! Arithmetic. There are two entries per connection, so 1 M connections take 16 MiB; a bucket
//! then holds 4 on average and overflows for 0.8 % of connections (Poisson), for 0.02 % with
//! twice the memory. A flow takes another's entry for its own only if bucket, tag (22 bits) and
//! service agree: 4 / 2^22 < 10^-6.
//!
//! Time has ten bits, in units that suit the class (see [`Ticks`]); the table is swept often
//! enough that no entry outlives the range of its time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use plan::{BackendId, Plan, ServiceId, Timeouts, limits};
use wire::Protocol;

use crate::clock::Now;
use crate::counters::ConnectionCounters;

/// Entries of a bucket: eight words, one cache line.
pub const BUCKET_ENTRIES: usize = 8;

/// Places of a bucket that one service does not confirm, once it has more
/// connections than the table is made for: so a flood that completes its
/// handshakes leaves the other services a quarter of the table.
pub const OPEN_PLACES: usize = 2;

/// Words in front of the buckets: one page.
pub const HEADER_WORDS: usize = 512;

/// A sweep over the whole table takes this long, so an entry is looked at
/// before its time wraps: the margins in [`limits`] are larger.
pub const SWEEP_MS: u64 = 10_000;

/// Version of the header and of the entries' layout. To be raised whenever
/// either changes its meaning.
pub const LAYOUT_VERSION: u64 = 1;

const MAGIC: u64 = u64::from_be_bytes(*b"GWTABLE\0");

type Bucket = [AtomicU64; BUCKET_ENTRIES];

/// The two places of its bucket that a flow's entry takes if one is free.
pub type Home = [AtomicU64; 2];

/// The kind of a connection's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum EntryClass {
    /// One packet seen, or several within a tick: may be a flood.
    Unconfirmed,
    /// TCP that goes on.
    Established,
    /// Any other protocol that goes on.
    Datagram,
    /// TCP after a FIN.
    Closing,
    /// TCP after a RST, which may be forged, or after a SYN on one that closes.
    Reset,
}

impl EntryClass {
    const COUNT: usize = 5;

    /// The name that people see; what closes is one class to them.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            EntryClass::Unconfirmed => "unconfirmed",
            EntryClass::Established | EntryClass::Datagram => "established",
            EntryClass::Closing | EntryClass::Reset => "closing",
        }
    }
}

/// What an entry says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Whose connection it is.
    pub service: ServiceId,
    /// The backend that was selected.
    pub backend: BackendId,
    /// Its class.
    pub class: EntryClass,
    /// When it was last written, in ticks of its class.
    pub time: u16,
}

const TAG_MASK: u64 = !0 << 42;
const SERVICE_SHIFT: u32 = 28;
const BACKEND_SHIFT: u32 = 12;
/// EntryClass and time.
const STATE_MASK: u64 = (1 << BACKEND_SHIFT) - 1;
/// Tag and service: what a packet must agree in to hit.
const MATCH_MASK: u64 = !0 << SERVICE_SHIFT;
/// Closing and reset share a class of two bits: the upper bit of the time
/// distinguishes them. So the class is read from three bits.
const CLASS_SHIFT: u32 = 9;
const CLASSES: [EntryClass; 8] = [
    EntryClass::Unconfirmed,
    EntryClass::Unconfirmed,
    EntryClass::Established,
    EntryClass::Established,
    EntryClass::Datagram,
    EntryClass::Datagram,
    EntryClass::Closing,
    EntryClass::Reset,
];
/// The bits of a class, and of its time, by class.
const CLASS_BITS: [u64; EntryClass::COUNT] = [0 << 9, 2 << 9, 4 << 9, 6 << 9, 7 << 9];
const TIME_MASKS: [u16; EntryClass::COUNT] = [0x3ff, 0x3ff, 0x3ff, 0x1ff, 0x1ff];

impl Entry {
    #[inline]
    fn to_word(self, hash: u64) -> u64 {
        match_word(hash, self.service)
            | u64::from(self.backend.0) << BACKEND_SHIFT
            | CLASS_BITS[self.class as usize]
            | u64::from(self.time)
    }

    #[inline]
    fn from_word(word: u64) -> Option<Entry> {
        if word == 0 {
            return None;
        }
        let class = CLASSES[(word >> CLASS_SHIFT) as usize & 7];
        Some(Entry {
            service: ServiceId((word >> SERVICE_SHIFT) as u16 & (limits::SERVICE_IDS as u16 - 1)),
            backend: BackendId((word >> BACKEND_SHIFT) as u16),
            class,
            time: word as u16 & TIME_MASKS[class as usize],
        })
    }
}

#[inline]
fn match_word(hash: u64, service: ServiceId) -> u64 {
    (hash & TAG_MASK) | u64::from(service.0) << SERVICE_SHIFT
}

/// The moment in the units of each class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticks {
    now: Now,
    by_class: [u16; EntryClass::COUNT],
    /// EntryClass and time of established entries written now: of other protocols,
    /// and of TCP.
    steady: [u16; 2],
}

impl Ticks {
    /// Fine, for "a tick later is confirmed": range 102 s.
    const UNCONFIRMED_MS: u64 = 100;
    /// Coarse, for hours: range 2.3 h. A busy flow's entry is written once
    /// in this time.
    const ESTABLISHED_MS: u64 = 8_192;
    /// Nine bits: range 1,024 s.
    const CLOSING_MS: u64 = 2_000;

    /// The moment `now`.
    #[must_use]
    pub fn new(now: Now) -> Ticks {
        let unconfirmed = (now.0 / Ticks::UNCONFIRMED_MS) as u16 & 0x3ff;
        let established = (now.0 / Ticks::ESTABLISHED_MS) as u16 & 0x3ff;
        let closing = (now.0 / Ticks::CLOSING_MS) as u16 & 0x1ff;
        let steady = [EntryClass::Datagram, EntryClass::Established]
            .map(|class| CLASS_BITS[class as usize] as u16 | established);
        let by_class = [unconfirmed, established, established, closing, closing];
        Ticks { now, by_class, steady }
    }

    /// The moment in milliseconds.
    #[must_use]
    pub fn now(&self) -> Now {
        self.now
    }

    /// EntryClass and time of an unconfirmed entry written now.
    fn unconfirmed(&self) -> u16 {
        CLASS_BITS[EntryClass::Unconfirmed as usize] as u16 | self.of(EntryClass::Unconfirmed)
    }

    /// The time an entry of that class gets now.
    #[inline]
    #[must_use]
    pub fn of(&self, class: EntryClass) -> u16 {
        self.by_class[class as usize]
    }

    /// The ticks since an entry was written.
    #[inline]
    #[must_use]
    pub fn since(&self, entry: &Entry) -> u16 {
        self.of(entry.class).wrapping_sub(entry.time) & TIME_MASKS[entry.class as usize]
    }

    fn unit_ms(class: EntryClass) -> u64 {
        match class {
            EntryClass::Unconfirmed => Ticks::UNCONFIRMED_MS,
            EntryClass::Established | EntryClass::Datagram => Ticks::ESTABLISHED_MS,
            EntryClass::Closing | EntryClass::Reset => Ticks::CLOSING_MS,
        }
    }
}

/// How many ticks entries live, by service: never less than configured, at
/// most a tick more.
#[derive(Debug)]
pub struct Lifetimes {
    by_service: Box<[Option<ServiceLifetimes>]>,
    /// The shortest of all services: what is younger need not be looked up.
    shortest: ServiceLifetimes,
}

/// When entries expire, at one moment.
#[derive(Debug, Clone, Copy)]
pub struct Expiry<'v> {
    /// How long they live.
    pub lifetimes: &'v Lifetimes,
    /// The moment.
    pub ticks: &'v Ticks,
}

impl Expiry<'_> {
    /// True if an entry has had no packet for too long, or if the plan no
    /// longer has its service.
    #[inline]
    #[must_use]
    pub fn expired(&self, entry: &Entry) -> bool {
        self.lifetimes.expired(entry, self.ticks)
    }
}

/// By class.
type ServiceLifetimes = [u16; EntryClass::COUNT];

impl Lifetimes {
    /// An entry after a RST lives this long without a packet.
    const RESET_MS: u32 = 10_000;

    /// Those of a plan's services.
    #[must_use]
    pub fn new(plan: &Plan) -> Lifetimes {
        let mut by_service = vec![None; plan.service_ids()].into_boxed_slice();
        let mut shortest = [u16::MAX; EntryClass::COUNT];
        for service in plan.services() {
            let lifetimes = lifetimes_of(&service.timeouts);
            by_service[service.id.index()] = Some(lifetimes);
            shortest = std::array::from_fn(|class| shortest[class].min(lifetimes[class]));
        }
        Lifetimes { by_service, shortest }
    }

    /// True if no service's entry would have expired.
    #[inline]
    fn is_young(&self, entry: &Entry, ticks: &Ticks) -> bool {
        ticks.since(entry) <= self.shortest[entry.class as usize]
    }

    #[inline]
    fn expired(&self, entry: &Entry, ticks: &Ticks) -> bool {
        self.ticks(entry).is_none_or(|ticks_max| ticks.since(entry) > ticks_max)
    }

    #[inline]
    fn ticks(&self, entry: &Entry) -> Option<u16> {
        let lifetimes = self.by_service.get(entry.service.index())?.as_ref()?;
        Some(lifetimes[entry.class as usize])
    }
}

fn lifetimes_of(timeouts: &Timeouts) -> ServiceLifetimes {
    [
        to_ticks(timeouts.unconfirmed_ms, EntryClass::Unconfirmed),
        to_ticks(timeouts.tcp_ms, EntryClass::Established),
        to_ticks(timeouts.udp_ms, EntryClass::Datagram),
        to_ticks(timeouts.closing_ms, EntryClass::Closing),
        to_ticks(Lifetimes::RESET_MS, EntryClass::Reset),
    ]
}

/// Rounded up: with more than this many ticks gone, at least `ms` are.
fn to_ticks(ms: u32, class: EntryClass) -> u16 {
    u64::from(ms).div_ceil(Ticks::unit_ms(class)) as u16
}

/// What must agree for a table to be taken over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Digest of the hash key: entries are found by its hash only.
    pub key: u64,
    /// Digest of the map of ids that the entries use.
    pub ids_epoch: u64,
    /// Which of how many workers: RSS spreads flows over all of them.
    pub worker: u32,
    /// How many.
    pub workers: u32,
}

/// Why a mapping was not taken over but emptied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Emptied {
    /// It held no table.
    NoTable,
    /// It was laid out by another version.
    Layout,
    /// It has another size.
    Size,
    /// It was filled under another key, other ids or other workers.
    Identity,
}

/// Words of the header.
mod header {
    pub const MAGIC: usize = 0;
    pub const LAYOUT_VERSION: usize = 1;
    pub const BUCKETS: usize = 2;
    pub const KEY: usize = 3;
    pub const IDS_EPOCH: usize = 4;
    pub const WORKER: usize = 5;
    /// Milliseconds of the clock when the worker last looked, so that a
    /// successor knows how old the entries are.
    pub const NOW: usize = 6;
    /// Whole sweeps so far.
    pub const SWEEPS: usize = 7;
}

/// Words of a table for that many connections.
#[must_use]
pub fn words_for(connections: u64) -> usize {
    HEADER_WORDS + buckets_for(connections) * BUCKET_ENTRIES
}

fn buckets_for(connections: u64) -> usize {
    (connections as usize * 2).div_ceil(BUCKET_ENTRIES).next_power_of_two().max(1)
}

/// One worker's connection table. Only its worker writes.
#[derive(Debug)]
pub struct ConnectionTable<'m> {
    header: &'m [AtomicU64],
    buckets: &'m [Bucket],
    by_service: Arc<[AtomicU32]>,
    swept_until: Option<Now>,
    sweep_next: usize,
    sweep_credit: u64,
    /// The plan that entries were last held against, and how many buckets are
    /// still to be.
    held_against: (u64, usize),
}

/// An entry in its place.
#[derive(Debug, Clone, Copy)]
pub struct FoundEntry<'m> {
    place: &'m AtomicU64,
    word: u64,
}

impl FoundEntry<'_> {
    /// All it says, if it was written in this tick of its class and data changes nothing
    /// in it: of an established connection, or one of TCP that data would not confirm yet.
    #[inline]
    #[must_use]
    pub fn unchanged_by_data(&self, ticks: &Ticks, is_tcp: bool) -> Option<Entry> {
        let state = (self.word & STATE_MASK) as u16;
        let is_steady = state == ticks.steady[usize::from(is_tcp)];
        (is_steady || is_tcp && state == ticks.unconfirmed()).then(|| self.entry())
    }

    /// All it says.
    #[inline]
    #[must_use]
    pub fn entry(&self) -> Entry {
        Entry::from_word(self.word).expect("a found entry is not empty")
    }
}

/// How an insert ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inserted {
    /// The connection is tracked.
    Tracked,
    /// Its bucket is full of confirmed entries.
    Full,
    /// Its service is at its quota.
    Quota,
}

impl<'m> ConnectionTable<'m> {
    /// The table in `words` (see [`words_for`]): emptied, unless it is one
    /// that `identity` may go on with.
    ///
    /// # Panics
    /// If `words` does not have the size of a table.
    pub fn open(
        words: &'m [AtomicU64],
        identity: &Identity,
    ) -> (ConnectionTable<'m>, Result<Now, Emptied>) {
        ConnectionTable::open_counted(words, identity, None)
    }

    /// The same, where a predecessor says how many connections of each
    /// service are in it; they are counted otherwise, which takes a look at
    /// every entry.
    ///
    /// # Panics
    /// As [`ConnectionTable::open`].
    pub fn open_counted(
        words: &'m [AtomicU64],
        identity: &Identity,
        counts: Option<&[(u16, u32)]>,
    ) -> (ConnectionTable<'m>, Result<Now, Emptied>) {
        let (header, entries) = words.split_at(HEADER_WORDS);
        let (buckets, rest) = entries.as_chunks::<BUCKET_ENTRIES>();
        assert!(
            rest.is_empty() && buckets.len().is_power_of_two(),
            "not the size of a table: {}",
            words.len()
        );
        let by_service = (0..limits::SERVICE_IDS).map(|_| AtomicU32::new(0)).collect();
        let table = ConnectionTable {
            header,
            buckets,
            by_service,
            swept_until: None,
            sweep_next: 0,
            sweep_credit: 0,
            held_against: (0, 0),
        };
        let resumed = table.check(identity);
        match resumed {
            Ok(_) => table.recount(counts),
            Err(_) => table.format(identity),
        }
        (table, resumed)
    }

    /// A table in memory of its own, never given back, and a reader of it;
    /// for files and tests.
    #[must_use]
    pub fn in_memory(connections: u64) -> (ConnectionTable<'static>, TableReader<'static>) {
        let words: Vec<AtomicU64> =
            (0..words_for(connections)).map(|_| AtomicU64::new(0)).collect();
        let words: &'static [AtomicU64] = Vec::leak(words);
        let identity = Identity { key: 0, ids_epoch: 0, worker: 0, workers: 1 };
        (ConnectionTable::open(words, &identity).0, TableReader::new(words))
    }

    fn word(&self, index: usize) -> u64 {
        self.header[index].load(Ordering::Relaxed)
    }

    fn check(&self, identity: &Identity) -> Result<Now, Emptied> {
        if self.word(header::MAGIC) != MAGIC {
            return Err(Emptied::NoTable);
        }
        if self.word(header::LAYOUT_VERSION) != LAYOUT_VERSION {
            return Err(Emptied::Layout);
        }
        if self.word(header::BUCKETS) != self.buckets.len() as u64 {
            return Err(Emptied::Size);
        }
        let found =
            (self.word(header::KEY), self.word(header::IDS_EPOCH), self.word(header::WORKER));
        if found != (identity.key, identity.ids_epoch, identity.worker_word()) {
            return Err(Emptied::Identity);
        }
        Ok(Now(self.word(header::NOW)))
    }

    /// Empties the table. The magic comes last: half a header is none.
    fn format(&self, identity: &Identity) {
        self.header[header::MAGIC].store(0, Ordering::Release);
        for word in self.header.iter().chain(self.buckets.as_flattened()) {
            word.store(0, Ordering::Relaxed);
        }
        let fields = [
            (header::LAYOUT_VERSION, LAYOUT_VERSION),
            (header::BUCKETS, self.buckets.len() as u64),
            (header::KEY, identity.key),
            (header::IDS_EPOCH, identity.ids_epoch),
            (header::WORKER, identity.worker_word()),
        ];
        for (index, value) in fields {
            self.header[index].store(value, Ordering::Relaxed);
        }
        self.header[header::MAGIC].store(MAGIC, Ordering::Release);
    }

    fn recount(&self, counts: Option<&[(u16, u32)]>) {
        if let Some(counts) = counts {
            for (service, count) in counts {
                if let Some(by_service) = self.by_service.get(usize::from(*service)) {
                    by_service.store(*count, Ordering::Relaxed);
                }
            }
            return;
        }
        for (entry, _) in entries(self.buckets) {
            self.by_service[entry.service.index()].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Connections by service, as they are at any time.
    #[must_use]
    pub fn counts(&self) -> Arc<[AtomicU32]> {
        Arc::clone(&self.by_service)
    }

    /// Connections of a service that are in the table.
    #[must_use]
    pub fn connections(&self, service: ServiceId) -> u32 {
        self.by_service[service.index()].load(Ordering::Relaxed)
    }

    /// Where the entry of a flow is, most likely.
    #[inline(always)]
    #[must_use]
    pub fn home(&self, hash: u64) -> &'m Home {
        home(self.bucket(hash), hash)
    }

    /// The bucket of a hash: its low bits. (The tag is its upper 22 bits.)
    #[inline(always)]
    fn bucket(&self, hash: u64) -> &'m Bucket {
        &self.buckets[hash as usize & (self.buckets.len() - 1)]
    }

    /// The entry of a flow of that service.
    #[inline(always)]
    #[must_use]
    pub fn find(&self, hash: u64, service: ServiceId) -> Option<FoundEntry<'m>> {
        let (bucket, wanted) = (self.bucket(hash), match_word(hash, service));
        // The word most like it, told without a branch for each place; in the
        // bits that do not matter, which place that is.
        let unlike = |place: &AtomicU64| place.load(Ordering::Relaxed) ^ wanted;
        let numbered = bucket.iter().zip(0..).map(|(place, at)| unlike(place) & !7 | at);
        let least = numbered.min()?;
        if !is_own(least, 0) {
            return None;
        }
        let place = &bucket[least as usize % BUCKET_ENTRIES];
        let word = place.load(Ordering::Relaxed);
        match word {
            0 => find_unlikely(bucket, wanted),
            _ => Some(FoundEntry { place, word }),
        }
    }

    /// Writes what a packet changed in an entry that [`find`] gave.
    ///
    /// [`find`]: ConnectionTable::find
    #[inline]
    pub fn update(&self, found: &FoundEntry<'_>, hash: u64, entry: Entry) {
        found.place.store(entry.to_word(hash), Ordering::Relaxed);
    }

    /// Writes an established entry as if a data packet of its flow had come now; false:
    /// the flow has none.
    pub(crate) fn refresh(&self, hash: u64, service: ServiceId, ticks: &Ticks) -> bool {
        let Some(found) = self.find(hash, service) else { return false };
        let entry = found.entry();
        if !matches!(entry.class, EntryClass::Established | EntryClass::Datagram) {
            return false;
        }
        self.update(&found, hash, Entry { time: ticks.of(entry.class), ..entry });
        true
    }

    /// True where another confirmed entry of the service would be more than its
    /// share: it has more connections than the table is made for, and in the
    /// flow's bucket no more than [`OPEN_PLACES`] would be left that others may
    /// take.
    #[inline]
    #[must_use]
    pub fn is_at_share(&self, hash: u64, service: ServiceId) -> bool {
        let made_for = self.buckets.len() * BUCKET_ENTRIES / 2;
        if (self.connections(service) as usize) <= made_for {
            return false;
        }
        let is_confirmed = |word| {
            Entry::from_word(word).is_some_and(|entry| entry.class != EntryClass::Unconfirmed)
        };
        let confirmed = places(self.bucket(hash), is_confirmed).count_ones() as usize;
        confirmed >= BUCKET_ENTRIES - OPEN_PLACES
    }

    /// Enters a new connection of a service that may have `quota`: over a
    /// `stale` entry of the same flow, which [`find`] gave but which no longer
    /// decides; or in an empty place, or over an expired entry, or over the
    /// oldest unconfirmed one.
    ///
    /// [`find`]: ConnectionTable::find
    // Into new connections' decision, which calls it once in a packet.
    #[inline(always)]
    pub fn insert(
        &self,
        hash: u64,
        stale: Option<FoundEntry<'_>>,
        entry: Entry,
        quota: u32,
        expiry: &Expiry<'_>,
        counters: &ConnectionCounters,
    ) -> Inserted {
        let word = entry.to_word(hash);
        if let Some(stale) = stale {
            counters.inserts.add(1);
            stale.place.store(word, Ordering::Relaxed);
            return Inserted::Tracked;
        }
        if self.connections(entry.service) >= quota {
            counters.refused_quota.add(1);
            return Inserted::Quota;
        }
        let is_empty = |place: &&AtomicU64| place.load(Ordering::Relaxed) == 0;
        let at_home = home(self.bucket(hash), hash).iter().find(is_empty);
        let Some(place) = at_home.or_else(|| self.make_room(hash, expiry, counters)) else {
            counters.refused_full.add(1);
            return Inserted::Full;
        };
        self.count(entry.service, 1);
        counters.inserts.add(1);
        place.store(word, Ordering::Relaxed);
        Inserted::Tracked
    }

    /// The place that a new entry takes whose home is full: an empty one, or
    /// one that it takes from another entry. None: all are confirmed.
    #[inline(never)]
    fn make_room(
        &self,
        hash: u64,
        expiry: &Expiry<'_>,
        counters: &ConnectionCounters,
    ) -> Option<&'m AtomicU64> {
        let bucket = self.bucket(hash);
        let empty = places(bucket, |there| there == 0);
        if empty != 0 {
            return Some(&bucket[empty.trailing_zeros() as usize % BUCKET_ENTRIES]);
        }
        let (place, old) = displaceable(bucket, expiry)?;
        let counter = if expiry.expired(&old) { &counters.expired } else { &counters.displaced };
        counter.add(1);
        self.count(old.service, -1);
        Some(place)
    }

    #[inline]
    fn count(&self, service: ServiceId, change: i32) {
        let count = &self.by_service[service.index()];
        count.store(count.load(Ordering::Relaxed).wrapping_add_signed(change), Ordering::Relaxed);
    }

    /// Goes on sweeping: clears entries that have expired, whose service is
    /// gone, or whose backend the service no longer has. The whole table is
    /// gone through every [`SWEEP_MS`], in steps that depend on time alone.
    pub fn sweep(
        &mut self,
        ticks: &Ticks,
        plan: &Plan,
        lifetimes: &Lifetimes,
        counters: &ConnectionCounters,
    ) {
        let before = self.swept_until.replace(ticks.now());
        self.header[header::NOW].store(ticks.now().0, Ordering::Relaxed);
        let Some(before) = before else { return };
        let elapsed_ms = ticks.now().0 - before.0;
        if elapsed_ms > SWEEP_MS {
            return self.sweep_after_gap(before, elapsed_ms, plan, lifetimes, counters);
        }
        if self.held_against.0 != plan.serial {
            // Until two sweeps have ended since there was a new plan, and so
            // every bucket was looked at.
            self.held_against = (plan.serial, 2 * self.buckets.len());
        }
        self.sweep_credit += elapsed_ms * self.buckets.len() as u64;
        let steps = self.sweep_credit / SWEEP_MS;
        self.sweep_credit %= SWEEP_MS;
        for _ in 0..steps {
            let (_, unheld) = &mut self.held_against;
            let may_have_orphans = *unheld > 0;
            *unheld = unheld.saturating_sub(1);
            let is_over = |entry: &Entry| match may_have_orphans {
                true => lifetimes.expired(entry, ticks) || is_orphan(entry, plan),
                false => !lifetimes.is_young(entry, ticks) && lifetimes.expired(entry, ticks),
            };
            self.sweep_bucket(is_over, counters);
        }
    }

    /// No packet and no idle call for longer than a sweep: ages are told from
    /// the moment before the gap, because times may have wrapped in it.
    fn sweep_after_gap(
        &mut self,
        before: Now,
        gap_ms: u64,
        plan: &Plan,
        lifetimes: &Lifetimes,
        counters: &ConnectionCounters,
    ) {
        let then = Ticks::new(before);
        let expired = |entry: &Entry| {
            let unit_ms = Ticks::unit_ms(entry.class);
            let gap = (before.0 + gap_ms) / unit_ms - before.0 / unit_ms;
            let age = u64::from(then.since(entry)) + gap;
            lifetimes.ticks(entry).is_none_or(|ticks_max| age > u64::from(ticks_max))
        };
        for _ in 0..self.buckets.len() {
            self.sweep_bucket(|entry| expired(entry) || is_orphan(entry, plan), counters);
        }
    }

    fn sweep_bucket(&mut self, is_over: impl Fn(&Entry) -> bool, counters: &ConnectionCounters) {
        for place in &self.buckets[self.sweep_next] {
            if let Some(entry) = Entry::from_word(place.load(Ordering::Relaxed))
                && is_over(&entry)
            {
                place.store(0, Ordering::Relaxed);
                self.count(entry.service, -1);
                counters.expired.add(1);
            }
        }
        self.sweep_next += 1;
        if self.sweep_next == self.buckets.len() {
            self.sweep_next = 0;
            let sweeps = &self.header[header::SWEEPS];
            sweeps.store(sweeps.load(Ordering::Relaxed) + 1, Ordering::Release);
        }
    }
}

impl Identity {
    fn worker_word(&self) -> u64 {
        u64::from(self.workers) << 32 | u64::from(self.worker)
    }
}

/// A flow's home, by bits of its hash that nothing else looks at. Nine in ten
/// are at home when the table is half full, and are found without asking all
/// places.
#[inline(always)]
fn home(bucket: &Bucket, hash: u64) -> &Home {
    let (pairs, _) = bucket.as_chunks::<2>();
    &pairs[(hash >> 32) as usize % (BUCKET_ENTRIES / 2)]
}

/// The backend in a flow's entry that is at home and steady: established, and
/// written in this tick, so that it has not expired and data changes nothing
/// in it. Most packets of busy connections have such.
#[inline(always)]
#[must_use]
pub fn steady_backend(
    home: &Home,
    hash: u64,
    service: ServiceId,
    ticks: &Ticks,
    is_tcp: bool,
) -> Option<BackendId> {
    let steady = match_word(hash, service) | u64::from(ticks.steady[usize::from(is_tcp)]);
    let is_other = |word: u64| (word ^ steady) & (MATCH_MASK | STATE_MASK) != 0;
    // Which of the two is computed, not branched on: it would be guessed
    // wrong every other time.
    let which = usize::from(is_other(home[0].load(Ordering::Relaxed)));
    let word = home[which].load(Ordering::Relaxed);
    (!is_other(word)).then_some(BackendId((word >> BACKEND_SHIFT) as u16))
}

/// True for a flow's entry; an empty one may look like it.
#[inline]
fn is_own(word: u64, wanted: u64) -> bool {
    word ^ wanted < 1 << SERVICE_SHIFT
}

/// The entry of the one flow in four million whose word begins like that of
/// an empty place.
#[cold]
fn find_unlikely(bucket: &Bucket, wanted: u64) -> Option<FoundEntry<'_>> {
    bucket.iter().find_map(|place| {
        let word = place.load(Ordering::Relaxed);
        (is_own(word, wanted) && word != 0).then_some(FoundEntry { place, word })
    })
}

/// The places of a bucket that `is_one` says yes to, one bit each. All are
/// asked before any is picked: a branch for each would be guessed wrong for
/// most packets.
#[inline]
fn places(bucket: &Bucket, is_one: impl Fn(u64) -> bool) -> u32 {
    bucket
        .iter()
        .rev()
        .fold(0, |bits, place| bits + bits + u32::from(is_one(place.load(Ordering::Relaxed))))
}

/// The place of a full bucket that an insert may take: an expired entry's, or
/// else the oldest unconfirmed one's.
fn displaceable<'b>(bucket: &'b Bucket, expiry: &Expiry<'_>) -> Option<(&'b AtomicU64, Entry)> {
    let mut best: Option<(u32, &AtomicU64, Entry)> = None;
    for place in bucket {
        let Some(entry) = Entry::from_word(place.load(Ordering::Relaxed)) else { continue };
        let rank = match entry.class {
            _ if expiry.expired(&entry) => u32::MAX,
            EntryClass::Unconfirmed => u32::from(expiry.ticks.since(&entry)),
            _ => continue,
        };
        if best.as_ref().is_none_or(|(other, _, _)| *other < rank) {
            best = Some((rank, place, entry));
        }
    }
    best.map(|(_, place, entry)| (place, entry))
}

fn is_orphan(entry: &Entry, plan: &Plan) -> bool {
    plan.service(entry.service).is_none_or(|service| service.group.member(entry.backend).is_none())
}

fn entries(buckets: &[Bucket]) -> impl Iterator<Item = (Entry, &AtomicU64)> {
    buckets
        .as_flattened()
        .iter()
        .filter_map(|place| Some((Entry::from_word(place.load(Ordering::Relaxed))?, place)))
}

/// A table as threads other than its worker see it, without stopping it.
#[derive(Debug, Clone, Copy)]
pub struct TableReader<'m> {
    words: &'m [AtomicU64],
}

impl<'m> TableReader<'m> {
    /// Reads the table in `words`, which some worker has opened.
    #[must_use]
    pub fn new(words: &'m [AtomicU64]) -> TableReader<'m> {
        TableReader { words }
    }

    /// Every entry.
    pub fn entries(&self) -> impl Iterator<Item = Entry> {
        entries(self.buckets()).map(|(entry, _)| entry)
    }

    /// Every entry, with what is known of its flow's hash: the tag, and the
    /// bits that number its bucket. Of the ten bits below the tag the highest is
    /// set, for the middle of what they may be: a Maglev table of 65,537 entries
    /// has 64 times as many tags as slots, so one slot in 128 is a wrong one
    /// beside the right one.
    pub fn entries_with_hashes(&self) -> impl Iterator<Item = (Entry, u64)> {
        const MIDDLE: u64 = (TAG_MASK & TAG_MASK.wrapping_neg()) >> 1;
        self.buckets().iter().zip(0_u64..).flat_map(|(bucket, number)| {
            bucket.iter().filter_map(move |place| {
                let word = place.load(Ordering::Relaxed);
                Some((Entry::from_word(word)?, word & TAG_MASK | MIDDLE | number))
            })
        })
    }

    /// The entry of a flow of that service, and how long ago it was written,
    /// in milliseconds, as exact as the ticks of its class.
    #[must_use]
    pub fn find(&self, hash: u64, service: ServiceId) -> Option<(Entry, u64)> {
        let wanted = match_word(hash, service);
        let buckets = self.buckets();
        let bucket = &buckets[hash as usize & (buckets.len() - 1)];
        let entry = bucket
            .iter()
            .map(|place| place.load(Ordering::Relaxed))
            .filter(|word| (word ^ wanted) & MATCH_MASK == 0)
            .find_map(Entry::from_word)?;
        Some((entry, u64::from(self.ticks().since(&entry)) * Ticks::unit_ms(entry.class)))
    }

    /// The moment when its worker last looked.
    #[must_use]
    pub fn ticks(&self) -> Ticks {
        Ticks::new(Now(self.words[header::NOW].load(Ordering::Relaxed)))
    }

    /// Whole sweeps so far. Two more than when a plan was taken: no entry
    /// names what the plan no longer has.
    #[must_use]
    pub fn sweeps(&self) -> u64 {
        self.words[header::SWEEPS].load(Ordering::Acquire)
    }

    fn buckets(&self) -> &'m [Bucket] {
        self.words[HEADER_WORDS..].as_chunks::<BUCKET_ENTRIES>().0
    }
}

/// True for the protocol whose connections have a beginning and an end.
#[inline]
pub(crate) fn is_tcp(protocol: Protocol) -> bool {
    protocol == Protocol::TCP
}
