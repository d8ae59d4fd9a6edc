//! Targets that took several lookups to find: suffixes under prefixes, port
//! ranges, addresses that are no VIP. A worker remembers what it found for the
//! latest of them, so that many services cost their packets as little as one.
//! What was found by another plan is not believed.

use std::cell::Cell;

use plan::{Found, Plan, Whereabouts};

/// Places of the memory, one for each target by its hash: 80 KiB.
const PLACES: usize = 1024;

/// What was found for the latest targets.
pub(crate) struct Resolved(Box<[Cell<Option<Place>>]>);

#[derive(Clone, Copy)]
struct Place {
    /// The plan's serial.
    plan: u64,
    whereabouts: Whereabouts,
    found: Found,
}

impl std::fmt::Debug for Resolved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Resolved")
    }
}

impl Resolved {
    /// An empty memory.
    pub(crate) fn new() -> Resolved {
        Resolved(vec![Cell::new(None); PLACES].into())
    }

    /// Who wants a packet to that target, which is no port of its own.
    pub(crate) fn find(&self, plan: &Plan, whereabouts: &Whereabouts) -> Found {
        let place = &self.0[whereabouts.hash() as usize % PLACES];
        if let Some(known) = place.get()
            && known.plan == plan.serial
            && known.whereabouts == *whereabouts
        {
            return known.found;
        }
        let found = plan.vips.find_further(whereabouts);
        place.set(Some(Place { plan: plan.serial, whereabouts: *whereabouts, found }));
        found
    }
}

#[cfg(test)]
mod tests {
    use plan::{Planner, proto};
    use wire::{Family, Protocol, Target};

    use super::*;

    fn plan(planner: &mut Planner, generation: u64, last_port: u32) -> Plan {
        let vip = proto::Vip {
            target: Some(proto::vip::Target::Address("203.0.113.1".into())),
            ports: vec![proto::PortRange { first: 80, last: last_port }],
            protocol: proto::Protocol::Tcp as i32,
        };
        let service = proto::Service { name: "web".into(), vips: vec![vip], ..Default::default() };
        let machine = proto::Machine {
            name: "lb-1".into(),
            addresses: vec!["10.0.0.1".into()],
            ..Default::default()
        };
        let message = proto::Plan {
            generation,
            machine: Some(machine),
            services: vec![service],
            ..Default::default()
        };
        planner.plan(message).unwrap()
    }

    fn target(address: u128, port: u16) -> Whereabouts {
        let (family, protocol) = (Family::V4, Protocol::TCP);
        Whereabouts::of(&Target { address, family, protocol, port })
    }

    #[test]
    fn what_is_remembered_is_what_the_plan_says() {
        let mut planner = Planner::default();
        let (first, second) = (plan(&mut planner, 1, 90), plan(&mut planner, 2, 85));
        let resolved = Resolved::new();
        // More targets than places, twice by each plan in turn.
        let targets = (0..3u128).flat_map(|host| (0..600).map(move |port| (host, port)));
        let targets: Vec<Whereabouts> =
            targets.map(|(host, port)| target(0xcb00_7100 + host, port)).collect();
        let mut found = 0;
        for plan in [&first, &second, &first] {
            for whereabouts in targets.iter().chain(&targets) {
                let remembered = resolved.find(plan, whereabouts);
                assert_eq!(remembered, plan.vips.find_further(whereabouts));
                found += u32::from(matches!(remembered, Found::Service(_)));
            }
        }
        assert_eq!(found, 2 * (11 + 6 + 11));
    }
}
