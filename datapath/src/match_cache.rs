//! Matches that take several lookups: port ranges, suffixes of IPv6, addresses
//! that are no VIP. A worker keeps what it found for the latest targets, so that
//! many services cost their packets about as much as one. What was found by
//! another plan is forgotten.

use std::cell::Cell;

use plan::{Found, LookupKey, Plan};
use wire::SocketV4;

/// What was found for the latest targets.
#[derive(Debug)]
pub(crate) struct MatchCache {
    /// The serial of the plan that all was found by.
    plan: Cell<u64>,
    v4: Sets<SocketV4>,
    v6: Sets<LookupKey>,
}

/// The latest targets of one family.
struct Sets<K> {
    sets: Box<[Set<K>]>,
    /// Nothing is in it, so a new plan need not clear it.
    is_empty: Cell<bool>,
}

/// The two latest targets of a hash, the later one first. Of IPv4 it is one
/// cache line.
#[repr(align(64))]
struct Set<K>([Cell<Option<Cached<K>>>; 2]);

const _: () = assert!(size_of::<Set<SocketV4>>() == 64);

#[derive(Clone, Copy)]
struct Cached<K> {
    target: K,
    found: Found,
}

/// Sets for IPv4: 512 KiB.
const SETS_V4: usize = 8192;
/// Sets for IPv6, each three lines: 1.5 MiB, as everything was measured with.
const SETS_V6: usize = 8192;

impl MatchCache {
    /// An empty one.
    pub(crate) fn new() -> MatchCache {
        MatchCache { plan: Cell::new(0), v4: Sets::new(SETS_V4), v6: Sets::new(SETS_V6) }
    }

    /// Forgets what was found by any other plan. To be called before each
    /// batch.
    #[inline]
    pub(crate) fn follow(&self, plan: &Plan) {
        if self.plan.get() != plan.serial {
            self.plan.set(plan.serial);
            self.v4.clear();
            self.v6.clear();
        }
    }

    /// The set that [`MatchCache::find_v4`] looks in, for a prefetch.
    #[inline]
    pub(crate) fn prefetch_v4(&self, socket: SocketV4) -> (&[impl Sized], usize) {
        (&self.v4.sets, self.v4.set(hash_v4(socket)))
    }

    /// The same for IPv6.
    #[inline]
    pub(crate) fn prefetch_v6(&self, key: &LookupKey) -> (&[impl Sized], usize) {
        (&self.v6.sets, self.v6.set(key.hash()))
    }

    /// The service of a target that [`plan::Vips::lookup_v4`] did not find.
    #[inline]
    pub(crate) fn find_v4(&self, plan: &Plan, socket: SocketV4) -> Found {
        let set = self.v4.set(hash_v4(socket));
        self.v4.find(set, socket, || plan.vips.lookup_rest(&socket.target()))
    }

    /// The same for IPv6.
    #[inline]
    pub(crate) fn find_v6(&self, plan: &Plan, key: &LookupKey) -> Found {
        let set = self.v6.set(key.hash());
        self.v6.find(set, *key, || plan.vips.lookup_rest(&key.target()))
    }
}

/// The upper half of a product depends on all bits of the socket.
#[inline]
fn hash_v4(socket: SocketV4) -> u64 {
    let word = socket.word();
    (word ^ word >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}

impl<K: Copy + PartialEq> Sets<K> {
    fn new(sets: usize) -> Sets<K> {
        let sets = (0..sets).map(|_| Set([Cell::new(None), Cell::new(None)])).collect();
        Sets { sets, is_empty: Cell::new(true) }
    }

    fn clear(&self) {
        if !self.is_empty.replace(true) {
            self.sets.iter().flat_map(|set| &set.0).for_each(|entry| entry.set(None));
        }
    }

    #[inline]
    fn set(&self, hash: u64) -> usize {
        hash as usize & (self.sets.len() - 1)
    }

    #[inline]
    fn find(&self, set: usize, target: K, look_up: impl FnOnce() -> Found) -> Found {
        let Set([later, earlier]) = &self.sets[set];
        let is_it = |cached: &Cached<K>| cached.target == target;
        if let Some(cached) = later.get().filter(is_it).or_else(|| earlier.get().filter(is_it)) {
            return cached.found;
        }
        let found = look_up();
        self.is_empty.set(false);
        earlier.set(later.replace(Some(Cached { target, found })));
        found
    }
}

impl<K> std::fmt::Debug for Sets<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sets({} sets)", self.sets.len())
    }
}

#[cfg(test)]
mod tests {
    use plan::{Planner, proto};
    use wire::{Family, Protocol, Target};

    use super::*;

    fn plan(planner: &mut Planner, generation: u64, last_port: u32) -> Plan {
        let vip = |address: &str| proto::Vip {
            target: Some(proto::vip::Target::Address(address.into())),
            ports: vec![proto::PortRange { first: 80, last: last_port }],
            protocol: proto::Protocol::Tcp as i32,
        };
        let vips = vec![vip("203.0.113.1"), vip("2001:db8::")];
        let group = "none".into();
        let service = proto::Service { name: "web".into(), vips, group, ..Default::default() };
        let machine = proto::Machine {
            name: "lb-1".into(),
            addresses: vec!["10.0.0.1".into()],
            ..Default::default()
        };
        let message = proto::Plan {
            generation,
            machine: Some(machine),
            groups: vec![proto::Group { name: "none".into(), ..Default::default() }],
            services: vec![service],
            ..Default::default()
        };
        planner.plan(message).unwrap()
    }

    #[test]
    fn what_is_cached_is_what_the_plan_says() {
        let mut planner = Planner::default();
        let (first, second) = (plan(&mut planner, 1, 90), plan(&mut planner, 2, 85));
        let cache = MatchCache::new();
        for (family, network) in [(Family::V4, 0xcb00_7100), (Family::V6, 0x2001_0db8 << 96)] {
            // More targets than places, twice by each plan in turn.
            let sockets = (0..40).flat_map(|host| (0..600).map(move |port| (host, port)));
            let targets: Vec<Target> = sockets
                .map(|(host, port)| Target {
                    address: network + host,
                    family,
                    protocol: Protocol::TCP,
                    port,
                })
                .collect();
            assert!(targets.len() > 2 * SETS_V4.max(SETS_V6));
            let mut found = 0;
            for plan in [&first, &second, &first] {
                cache.follow(plan);
                for target in targets.iter().chain(&targets) {
                    let cached = match SocketV4::of(target) {
                        Some(socket) => cache.find_v4(plan, socket),
                        None => cache.find_v6(plan, &LookupKey::of(target)),
                    };
                    assert_eq!(cached, plan.vips.lookup_rest(target));
                    found += u32::from(matches!(cached, Found::Service(_)));
                }
            }
            assert_eq!(found, 2 * (11 + 6 + 11));
        }
    }
}
