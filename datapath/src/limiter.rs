//! Limits on the packets that we originate.
//!
//! [`Limiter`] is one token bucket. [`FairLimiter`] is fair by source prefix, so that a flood
//! takes nothing from others:
//!
//! ```text
//!  source prefix ─► seen within seconds? ─ yes ─► one of its two cells has a token? ─ yes ─► allowed
//!                      └ no ───────────────────────────┴ no ─► the spare bucket has one? ─► allowed
//! ```
//!
//! Half of the rate belongs to 256 cells, and each prefix has two of them: a flood from few
//! prefixes empties few cells. Cells are for prefixes that come again, such as hosts that wait
//! for an answer (they send again). Forged random sources do not come again, and get only the
//! other half, which all share. Nothing is allocated after the start, and the same packets at
//! the same times get the same answers; which prefixes share cells depends on the cluster's
//! key.

use std::cell::Cell;

use plan::{Matched, limits};

use crate::clock::Now;
use crate::counters::Counters;
use crate::view::View;

/// A token bucket: `per_second` tokens a second, a second's worth at once.
#[derive(Debug)]
pub struct Limiter {
    per_second: u64,
    /// Thousandths of a token: a millisecond adds `per_second` of them.
    credit: Cell<u64>,
    seen: Cell<Now>,
}

impl Limiter {
    /// Allows `per_second`, the first second's at once.
    #[must_use]
    pub fn new(per_second: u64) -> Limiter {
        Limiter { per_second, credit: Cell::new(per_second * 1000), seen: Cell::new(Now(0)) }
    }

    /// Takes a token; false: there is none.
    pub fn allows(&self, now: Now) -> bool {
        let elapsed_ms = now.0.saturating_sub(self.seen.replace(now).0).min(1000);
        let credit = (self.credit.get() + elapsed_ms * self.per_second).min(self.per_second * 1000);
        let allowed = credit >= 1000;
        self.credit.set(if allowed { credit - 1000 } else { credit });
        allowed
    }
}

/// A token bucket for each service's second chances, a second's worth at once: each
/// worker has its share of the machine's limit, the slow path as much as one of them.
/// 16 bytes for each id, of which those that are used are in memory.
#[derive(Debug)]
pub struct SecondChances(Box<[SpentTokens]>);

#[derive(Debug, Clone, Default)]
struct SpentTokens {
    /// Thousandths of a token.
    spent: Cell<u64>,
    seen: Cell<Now>,
}

impl Default for SecondChances {
    fn default() -> SecondChances {
        SecondChances(vec![SpentTokens::default(); limits::SERVICE_IDS].into())
    }
}

impl SecondChances {
    /// Takes a token of a service; false: there is none. Counts both.
    #[inline(never)]
    pub fn allow(&self, view: &View, matched: &Matched, now: Now, counters: &Counters) -> bool {
        let Some(limit) = view.plan.service_of(matched).second_chance else { return false };
        let workers = view.counters.len().saturating_sub(1).max(1) as u64;
        let per_second = (limit.packets_per_second.get() / workers).max(1);
        let allowed = self.0[matched.service.index()].take(per_second, now);
        let counters = &counters.second_chances;
        if allowed { &counters.sent } else { &counters.limited }.add(1);
        allowed
    }
}

impl SpentTokens {
    fn take(&self, per_second: u64, now: Now) -> bool {
        let SpentTokens { spent, seen } = self;
        let full = per_second.saturating_mul(1000);
        let elapsed_ms = now.0.saturating_sub(seen.replace(now).0).min(1000);
        let left = spent.get().min(full).saturating_sub(elapsed_ms * per_second);
        let allowed = left + 1000 <= full;
        spent.set(if allowed { left + 1000 } else { left });
        allowed
    }
}

/// Cells that prefixes share by hash. 1000 a second make two tokens a second in
/// each.
const CELLS: usize = 256;

/// Tokens that a cell holds at most.
const CELL_TOKENS_MAX: u64 = 4;

/// See the module.
#[derive(Debug)]
pub struct FairLimiter {
    spare: Limiter,
    /// Millionths of a token that a cell gets in a millisecond.
    cell_rate: u64,
    cells: Box<[TokenCell]>,
    seen: RecentPrefixes,
}

#[derive(Debug)]
struct TokenCell {
    /// Millionths of a token.
    credit: Cell<u64>,
    since: Cell<Now>,
}

impl FairLimiter {
    /// Allows about `per_second` in all, half of them whatever the source.
    #[must_use]
    pub fn new(per_second: u64) -> FairLimiter {
        let full =
            || TokenCell { credit: Cell::new(CELL_TOKENS_MAX * 1_000_000), since: Cell::default() };
        FairLimiter {
            spare: Limiter::new(per_second / 2),
            cell_rate: per_second * 1_000_000 / 2 / CELLS as u64 / 1000,
            cells: (0..CELLS).map(|_| full()).collect(),
            seen: RecentPrefixes::new(),
        }
    }

    /// Takes a token for a packet whose source prefix has that hash
    /// ([`crate::FlowHash::source_prefix`]); false: there is none.
    pub fn allows(&self, now: Now, prefix: u64) -> bool {
        let comes_again = self.seen.insert(now, prefix);
        let mut cells = [prefix >> 40, prefix >> 48].into_iter();
        comes_again && cells.any(|cell| self.take(now, cell as usize % CELLS))
            || self.spare.allows(now)
    }

    fn take(&self, now: Now, cell: usize) -> bool {
        const TOKEN: u64 = 1_000_000;
        let TokenCell { credit, since } = &self.cells[cell];
        let elapsed_ms = now.0.saturating_sub(since.replace(now).0).min(1_000_000);
        let full = (credit.get() + elapsed_ms * self.cell_rate).min(CELL_TOKENS_MAX * TOKEN);
        let allowed = full >= TOKEN;
        credit.set(if allowed { full - TOKEN } else { full });
        allowed
    }
}

/// Bits of each of two Bloom filters with two bits for a prefix: 64 KiB. While
/// 10,000 prefixes a second come at random, at most one of 25 is taken for one
/// that comes again, fewer than the cells have tokens for.
const FILTER_BITS: u64 = 1 << 19;

/// How long a filter takes new prefixes: one is remembered for once to twice as
/// long, which covers the first repetitions of TCP and of ping.
const FILTER_MS: u64 = 3000;

/// Prefixes of the last seconds.
#[derive(Debug)]
struct RecentPrefixes {
    filters: [Box<[Cell<u64>]>; 2],
    period: Cell<u64>,
}

impl RecentPrefixes {
    fn new() -> RecentPrefixes {
        let empty = || (0..FILTER_BITS / 64).map(|_| Cell::new(0)).collect();
        RecentPrefixes { filters: [empty(), empty()], period: Cell::new(0) }
    }

    /// Remembers the prefix; true if it was there already.
    fn insert(&self, now: Now, prefix: u64) -> bool {
        let period = now.0 / FILTER_MS;
        let passed = period.saturating_sub(self.period.replace(period));
        for back in 0..passed.min(2) {
            let filter = &self.filters[((period - back) % 2) as usize];
            filter.iter().for_each(|word| word.set(0));
        }
        let bits = [prefix % FILTER_BITS, (prefix >> 20) % FILTER_BITS];
        let has = |filter: &[Cell<u64>]| {
            bits.iter().all(|bit| filter[(bit / 64) as usize].get() >> (bit % 64) & 1 == 1)
        };
        let seen = self.filters.iter().any(|filter| has(filter));
        for bit in bits {
            let word = &self.filters[(period % 2) as usize][(bit / 64) as usize];
            word.set(word.get() | 1 << (bit % 64));
        }
        seen
    }
}

#[cfg(test)]
mod tests {
    use wire::{Family, FlowKey, Protocol};

    use super::*;
    use crate::flow_hash::FlowHash;
    use crate::secret::Secret;

    #[test]
    fn a_second_of_tokens_then_as_time_goes() {
        let limiter = Limiter::new(10);
        assert_eq!((0..20).filter(|_| limiter.allows(Now(5))).count(), 10);
        assert_eq!((0..20).filter(|_| limiter.allows(Now(205))).count(), 2);
        assert_eq!((0..20).filter(|_| limiter.allows(Now(100_000))).count(), 10);
    }

    #[test]
    fn each_service_has_a_second_of_tokens_of_its_own() {
        let (chances, [a, b]) = (SecondChances::default(), [0, 9999]);
        let allowed = |service: usize, per_second, ms| {
            (0..30).filter(|_| chances.0[service].take(per_second, Now(ms))).count()
        };
        assert_eq!(allowed(a, 10, 5), 10);
        assert_eq!(allowed(b, 20, 5), 20);
        assert_eq!(allowed(a, 10, 205), 2);
        // A plan changed the rate.
        assert_eq!(allowed(a, 20, 405), 14);
        assert_eq!(allowed(a, 10, 100_000), 10);
    }

    fn prefix(hash: &FlowHash, source: u32) -> u64 {
        hash.source_prefix(&FlowKey {
            family: Family::V4,
            protocol: Protocol::TCP,
            source: source.into(),
            destination: 0xcb00_710a,
            source_port: 1,
            destination_port: 80,
        })
    }

    /// How many of 60 victims, each in a /24 of its own and asking once a
    /// second, get an answer in at least nine of ten seconds; and how many
    /// answers a second there are in all, while `flood` sources a second ask.
    fn victims_served(per_second: u32, mut flood: impl FnMut(u32) -> u32) -> (usize, u64) {
        let hash = FlowHash::new(&Secret::derived("test"));
        let limiter = FairLimiter::new(1000);
        let victims: Vec<u64> = (0..60).map(|at| prefix(&hash, 0xc612_0007 + (at << 8))).collect();
        let (mut served, mut answers, mut sent) = ([0; 60], 0, 0);
        for ms in 0..12_000 {
            while sent < per_second * ms / 1000 {
                answers += u64::from(limiter.allows(Now(ms.into()), prefix(&hash, flood(sent))));
                sent += 1;
            }
            // The first answers come out of the shared half; then they count.
            if ms % 1000 >= 900 && ms % 1000 < 960 {
                let at = (ms % 1000 - 900) as usize;
                let allowed = limiter.allows(Now(ms.into()), victims[at]);
                served[at] += u32::from(allowed && ms >= 2000);
            }
        }
        (served.iter().filter(|seconds| **seconds >= 9).count(), answers / 12)
    }

    #[test]
    fn sources_at_random_over_all_of_ipv4_starve_none_that_come_again() {
        for per_second in [1000, 5000, 10_000] {
            let mut random = 1u64;
            let (served, answers) = victims_served(per_second, |_| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (random >> 32) as u32
            });
            assert!(served >= 57, "{served} of 60 beside {per_second} a second");
            assert!(answers <= 1100, "{answers} a second");
        }
    }

    #[test]
    fn a_few_prefixes_starve_only_those_that_share_their_cells() {
        let (served, answers) = victims_served(20_000, |sent| 0x0a00_0000 + ((sent % 16) << 8));
        assert!(served >= 57, "{served} of 60");
        assert!(answers <= 1100, "{answers} a second");
    }

    #[test]
    fn a_lone_prefix_gets_what_no_other_uses() {
        let limiter = FairLimiter::new(1000);
        let allowed = |from_ms: u64| {
            (from_ms..from_ms + 1000)
                .map(|ms| (0..5).filter(|_| limiter.allows(Now(ms), 7)).count())
                .sum::<usize>()
        };
        assert!(allowed(0) >= 1000, "the first second's at once");
        assert!((500..=510).contains(&allowed(1000)));
    }
}
