use super::*;
use crate::kernel_cache::TARGET_WORDS;

/// What the kernel accepts where it loads the words after that many of the stores: the
/// word that it goes by, if the tag is its packet's.
fn accepted(history: &[[u64; 2]], loads: [usize; 3], tag: u64) -> Option<u64> {
    let word = |load: usize, word: usize| history[loads[load]][word];
    let is_own = |word: u64| word & TupleHash::TAG_MASK == tag;
    (is_own(word(0, 0)) && is_own(word(2, 0))).then(|| word(1, 1))
}

/// The memory before the first store, and after each.
fn history(first: [u64; 2], stores: &[Store]) -> Vec<[u64; 2]> {
    let after = |words: &mut [u64; 2], (at, value): &Store| {
        words[*at] = *value;
        Some(*words)
    };
    std::iter::once(first).chain(stores.iter().scan(first, after)).collect()
}

/// Loads in order: each sees what the one before saw, or later.
fn interleavings(stores: usize) -> impl Iterator<Item = [usize; 3]> {
    (0..=stores)
        .flat_map(move |a| (a..=stores).flat_map(move |b| (b..=stores).map(move |c| [a, b, c])))
}

const A: [u64; 2] = [0xa << 17 | 7, 0xaaaa];
const B: [u64; 2] = [0xb << 17 | 9, 0xbbbb];

fn tag(entry: [u64; 2]) -> u64 {
    entry[0] & TupleHash::TAG_MASK
}

#[test]
fn a_packet_is_sent_by_its_own_entry_or_none_however_stores_and_loads_interleave() {
    let make = |entry: [u64; 2]| stores_to_write(entry[0], entry[1]);
    let histories = [
        // Made in a free place, removed, made by another.
        history([0, 0], &[make(A).as_slice(), &[STORE_FREE], &make(B)].concat()),
        // Displaced without being removed.
        history(A, &make(B)),
        history(A, &[STORE_FREE]),
    ];
    let mut tried = 0;
    for history in &histories {
        for loads in interleavings(history.len() - 1) {
            tried += 1;
            for entry in [A, B] {
                let word = accepted(history, loads, tag(entry));
                assert!(word.is_none_or(|word| word == entry[1]), "{loads:?} of {history:x?}");
            }
        }
    }
    assert!(tried > 100, "{tried}");
}

#[test]
fn another_target_of_the_same_flow_is_the_old_or_the_new_one() {
    let new = [A[0], 0xa2a2];
    let history = history(A, &stores_to_write(new[0], new[1]));
    for loads in interleavings(history.len() - 1) {
        let word = accepted(&history, loads, tag(A));
        assert!(word.is_none_or(|word| word == A[1] || word == new[1]), "{loads:?}");
    }
}

/// The race that [`REUSE_TICKS`] keeps out: it exists, and needs a place that changes
/// twice between two loads.
#[test]
fn only_a_place_that_another_flow_takes_and_gives_back_deceives_the_kernel() {
    let [to_b, to_a] = [B, A].map(|entry| stores_to_write(entry[0], entry[1]));
    let history = history(A, &[to_b, to_a].concat());
    let deceived = |loads: &[usize; 3]| accepted(&history, *loads, tag(A)) == Some(B[1]);
    let all: Vec<[usize; 3]> = interleavings(history.len() - 1).filter(deceived).collect();
    assert!(!all.is_empty());
    assert!(all.iter().all(|[first, _, last]| *first == 0 && *last == 6), "{all:?}");
}

struct Region {
    writer: EntryWriter<'static>,
    words: &'static [AtomicU64],
    counters: &'static CacheCounters,
    target_words: &'static [AtomicU64],
    memory: CacheRegion<'static>,
}

fn words(count: usize) -> &'static [AtomicU64] {
    Vec::leak((0..count).map(|_| AtomicU64::new(0)).collect())
}

const NUMBER: usize = 3;

fn region(buckets: usize) -> Region {
    let (entries, lines) = (words(buckets * LINE_WORDS), words(LINE_WORDS));
    let target_words = words(16 * TARGET_WORDS);
    target_words[NUMBER * TARGET_WORDS].store(1, Ordering::Relaxed);
    let counters = Box::leak(Box::default());
    let memory = CacheRegion {
        entries,
        line: &lines.as_chunks().0[0],
        targets: Targets::new(target_words),
        key: [1, 2],
    };
    let writer = EntryWriter::new(memory, counters);
    Region { writer, words: entries, counters, target_words, memory }
}

fn key(port: u16) -> FlowKey {
    FlowKey {
        family: wire::Family::V4,
        protocol: wire::Protocol::TCP,
        source: 0x0a00_0001,
        destination: 0xcb00_710a,
        source_port: port,
        destination_port: 443,
    }
}

fn target() -> TargetRef {
    TargetRef::from_bits(1 << 20 | NUMBER as u32).unwrap()
}

impl Region {
    fn at(&mut self, ms: u64) {
        self.writer.begin(Now(ms), |_, _| true);
    }

    fn enter(&self, port: u16) {
        self.enter_for(port, Validity::WhileUsed);
    }

    fn enter_for(&self, port: u16, validity: Validity) {
        let hash = 1000 + u64::from(port);
        self.writer.enter(&key(port), hash, ServiceId(5), target(), validity);
    }

    /// The kernel would send by its entry.
    fn has(&self, port: u16) -> bool {
        idle_ms(&self.memory, &key(port)).is_some()
    }

    fn entries(&self) -> usize {
        self.words
            .iter()
            .step_by(2)
            .filter(|word| word.load(Ordering::Relaxed) & TupleHash::TAG_MASK != 0)
            .count()
    }

    /// As the kernel does: the time of use alone.
    fn use_all(&self) {
        for word in self.words.iter().step_by(2) {
            let tick = self.writer.line[line::TICK].load(Ordering::Relaxed);
            word.store(word.load(Ordering::Relaxed) & !0xffff | tick, Ordering::Relaxed);
        }
    }
}

#[test]
fn an_entry_is_laid_out_as_the_kernel_reads_it() {
    let mut region = region(1);
    region.at(4_700);
    region.writer.enter(
        &key(1),
        0x1234_5678_9abc_def0,
        ServiceId(5),
        target(),
        Validity::WhileUsed,
    );
    let words: Vec<u64> = region.words.iter().map(|word| word.load(Ordering::Relaxed)).collect();
    let hash =
        SipHasher13::new_with_keys(1, 2).hash(&[10, 0, 0, 1, 203, 0, 113, 10, 0, 1, 1, 187, 6]);
    assert_eq!(words[0], hash & !0x1_ffff | 47);
    assert_eq!(words[1], 0x0010_0003_9abc_def0);
    assert_eq!(words[2..], [0; 6]);
}

#[test]
fn a_place_takes_another_flow_two_ticks_after_it_was_written() {
    let mut region = region(1);
    region.at(10_000);
    (0..5).for_each(|port| region.enter(port));
    assert_eq!((region.entries(), region.counters.refused_full.get()), (4, 1));
    (0..4).for_each(|port| region.writer.remove(&key(port)));
    assert_eq!((region.entries(), region.counters.closed.get()), (0, 4));
    region.at(10_100);
    region.enter(9);
    assert_eq!(region.entries(), 0);
    region.at(10_200);
    region.enter(9);
    assert_eq!(region.entries(), 1);
}

#[test]
fn only_an_entry_that_is_not_used_gives_its_place() {
    let mut region = region(1);
    region.at(10_000);
    (0..4).for_each(|port| region.enter(port));
    for ms in (10_100..14_900).step_by(100) {
        region.at(ms);
        region.use_all();
        region.enter(9);
    }
    assert_eq!(region.counters.displaced.get(), 0);
    region.at(14_900 + 5_000);
    region.enter(9);
    assert_eq!((region.entries(), region.counters.displaced.get()), (4, 1));
    region.enter(9);
    assert_eq!(region.counters.displaced.get(), 1, "it is there");
}

#[test]
fn what_is_not_confirmed_is_sent_in_its_tick_and_holds_no_place_for_long() {
    let mut region = region(1);
    region.at(10_000);
    (0..4).for_each(|port| region.enter_for(port, Validity::ThisTick));
    assert!((0..4).all(|port| region.has(port)));
    region.at(10_100);
    assert!(!(0..4).any(|port| region.has(port)));
    region.enter(1);
    assert!(region.has(1), "confirmed");
    region.enter(9);
    assert_eq!(region.counters.displaced.get(), 0, "so soon");
    region.at(10_200);
    assert!(region.has(1));
    (9..13).for_each(|port| region.enter(port));
    assert_eq!((region.counters.displaced.get(), region.counters.refused_full.get()), (3, 2));
    assert!([1, 9, 10, 11].into_iter().all(|port| region.has(port)));
    assert_eq!(region.counters.retargeted.get(), 0);
}

#[test]
fn the_sweep_takes_out_what_was_not_confirmed_and_asks_no_connection() {
    let mut region = region(1);
    let sweep = |region: &mut Region, ms| {
        region.writer.begin(Now(ms), |_, _| panic!("of a connection that is not confirmed"));
        region.entries()
    };
    sweep(&mut region, 10_000);
    region.enter_for(7, Validity::ThisTick);
    assert_eq!(sweep(&mut region, 20_000), 0);
    assert_eq!(region.counters.expired.get(), 1);
}

#[test]
fn half_of_the_region_is_left_to_connections_that_are_confirmed() {
    let mut region = region(1024);
    let half = region.writer.owners.len() / 2;
    region.at(10_000);
    region.writer.held.set(half - 1);
    assert!(region.writer.takes_unconfirmed());
    (0..ENTER_MAX as u16).for_each(|port| region.enter_for(port, Validity::ThisTick));
    assert!(!region.writer.takes_unconfirmed(), "enough of this batch");
    region.at(10_000);
    assert!(!region.writer.takes_unconfirmed(), "half is taken");
}

#[test]
fn the_sweep_refreshes_what_was_used_and_clears_what_is_over() {
    let mut region = region(4);
    let refreshed = Cell::new(0);
    let begin = |region: &mut Region, ms, exists: bool| {
        region.writer.begin(Now(ms), |hash, service| {
            assert_eq!((hash, service), (1007, ServiceId(5)));
            refreshed.set(refreshed.get() + 1);
            exists
        });
        refreshed.take()
    };
    begin(&mut region, 10_000, true);
    region.enter(7);
    begin(&mut region, 20_000, true);
    region.use_all();
    assert_eq!(begin(&mut region, 30_000, true), 1);
    assert_eq!(begin(&mut region, 40_000, true), 0, "not used since");
    region.use_all();
    assert_eq!((begin(&mut region, 50_000, false), region.entries()), (1, 0), "no connection");

    region.enter(7);
    assert_eq!(begin(&mut region, 60_000, true), 0);
    region.target_words[NUMBER * TARGET_WORDS].store(2, Ordering::Relaxed);
    begin(&mut region, 70_000, true);
    assert_eq!(region.entries(), 0, "its target is another");

    region.target_words[NUMBER * TARGET_WORDS].store(1, Ordering::Relaxed);
    region.enter(7);
    for ms in [80_000, 90_000, 100_000] {
        assert_eq!(begin(&mut region, ms, true), 0);
    }
    assert_eq!(region.entries(), 1);
    begin(&mut region, 110_000, true);
    assert_eq!(region.entries(), 0, "idle for longer than 30 s");
}

#[test]
fn a_time_that_the_kernel_stores_into_a_free_place_makes_no_entry() {
    let mut region = region(1);
    region.at(10_000);
    region.use_all();
    region.enter(7);
    assert_eq!(region.entries(), 1);
    region.writer.remove(&key(7));
    region.use_all();
    assert_eq!(region.entries(), 0);
    region.at(20_000);
    assert_eq!(region.counters.expired.get(), 0);
}

/// At as many flows as a region is made for.
#[test]
fn of_all_flows_fewer_than_one_in_a_thousand_find_no_place() {
    const FLOWS: u32 = 60_000;
    let mut region = region(buckets_for(FLOWS.into()) as usize);
    let places = region.writer.owners.len();
    assert!(places >= 2 * FLOWS as usize, "{places}");
    region.at(10_000);
    // Half of the places, as the power of two may be more than twice the flows.
    let flows = places / 2;
    for number in 0..flows as u128 {
        let key = FlowKey { source: number, ..key(1) };
        region.writer.enter(&key, number as u64, ServiceId(5), target(), Validity::WhileUsed);
    }
    let refused = region.counters.refused_full.get();
    assert!(refused * 1000 < flows as u64, "{refused} of {flows}");
    let in_first = (0..flows as u128).filter(|number| {
        let key = FlowKey { source: *number, ..key(1) };
        let tuple = TupleHash::of(&region.writer.hasher, &key);
        region.writer.places(tuple).any(|place| place.tag_and_time().0 == tuple.tag())
    });
    let in_first = in_first.count();
    assert!(in_first * 100 > flows * 88, "{in_first} of {flows} in their first bucket");
}

#[test]
fn a_batch_enters_a_few_flows_at_once_and_then_one_in_many() {
    let mut region = region(1024);
    region.at(10_000);
    let enter = |region: &Region, ports: std::ops::Range<u16>| {
        ports.filter(|port| region.writer.is_due().then(|| region.enter(*port)).is_some()).count()
    };
    assert_eq!(enter(&region, 0..64), (ENTER_MAX + 1) as usize);
    region.at(10_001);
    assert_eq!(enter(&region, 64..80), ENTER_MAX as usize, "the next batch");
    // Where three quarters are taken, busy flows alone.
    region.writer.held.set(region.writer.owners.len());
    region.at(10_002);
    assert_eq!(enter(&region, 80..144), 2);
}
