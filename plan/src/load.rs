//! What services got lately. Plans are laid out by it: where few of many
//! services are busy, what their packets need stands side by side. Spread
//! among the rest it would be on more pages of memory than a processor
//! remembers the places of.

use std::cmp::Reverse;
use std::collections::HashSet;

use crate::ids::ServiceId;
use crate::limits;

/// Packets of each service, the latest counting most.
#[derive(Debug, Default)]
pub(crate) struct Load {
    /// By service id.
    packets: Vec<u64>,
}

/// Fewer packets than this tell nothing.
const PACKETS_MIN: u64 = 1_000_000;
/// Fewer services are on few pages anyway.
const SERVICES_MIN: usize = 256;

impl Load {
    /// Adds what services got since the last call.
    pub(crate) fn add(&mut self, packets: impl Iterator<Item = (ServiceId, u64)>) {
        self.packets.resize(limits::SERVICE_IDS, 0);
        self.packets.iter_mut().for_each(|before| *before /= 2);
        for (service, packets) in packets {
            self.packets[service.index()] += packets;
        }
    }

    /// Those services by their index, the busiest first.
    pub(crate) fn order(&self, services: &[ServiceId]) -> Vec<usize> {
        let mut order: Vec<usize> = (0..services.len()).collect();
        order.sort_by_key(|index| Reverse(self.of(services[*index])));
        order
    }

    /// Those services without which 999 of 1,000 packets would still come;
    /// none if there is not much to choose from.
    pub(crate) fn quiet(&self, services: &[ServiceId]) -> HashSet<ServiceId> {
        let all: u64 = services.iter().map(|service| self.of(*service)).sum();
        if all < PACKETS_MIN || services.len() < SERVICES_MIN {
            return HashSet::new();
        }
        let mut without = 0;
        let is_quiet = |service: &ServiceId| {
            without += self.of(*service);
            without <= all / 1_000
        };
        let quietest_first = self.order(services).into_iter().rev().map(|index| services[index]);
        quietest_first.take_while(is_quiet).collect()
    }

    fn of(&self, service: ServiceId) -> u64 {
        self.packets.get(service.index()).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(packets: &[(u16, u64)]) -> Load {
        let mut load = Load::default();
        load.add(packets.iter().map(|(id, packets)| (ServiceId(*id), *packets)));
        load
    }

    fn services(count: u16) -> Vec<ServiceId> {
        (0..count).map(ServiceId).collect()
    }

    #[test]
    fn the_busiest_come_first_and_others_in_their_order() {
        let all = [7, 2, 9, 4].map(ServiceId);
        assert_eq!(load(&[]).order(&all), [0, 1, 2, 3]);
        assert_eq!(load(&[(4, 10), (2, 30)]).order(&all), [1, 3, 0, 2]);
    }

    #[test]
    fn the_latest_counts_most() {
        let mut load = load(&[(0, 3_000)]);
        load.add([(ServiceId(1), 2_000)].into_iter());
        assert_eq!(load.order(&services(2)), [1, 0]);
    }

    #[test]
    fn a_thousandth_of_the_packets_is_for_quiet_services() {
        let busy = (2, 1_998_000);
        let all = services(SERVICES_MIN as u16);
        let is_quiet = |load: &Load, id| load.quiet(&all).contains(&ServiceId(id));
        let some = load(&[busy, (3, 1_500), (4, 500)]);
        assert_eq!([1, 2, 3, 4].map(|id| is_quiet(&some, id)), [true, false, true, true]);
        let more = load(&[busy, (3, 1_600), (4, 500)]);
        assert_eq!([1, 2, 3, 4].map(|id| is_quiet(&more, id)), [true, false, false, true]);
    }

    #[test]
    fn nobody_is_quiet_among_few_or_after_little_traffic() {
        let (few, many) = (services(SERVICES_MIN as u16 - 1), services(SERVICES_MIN as u16));
        assert_eq!(load(&[(2, 2 * PACKETS_MIN)]).quiet(&few), HashSet::new());
        assert_eq!(load(&[(2, PACKETS_MIN - 1)]).quiet(&many), HashSet::new());
        assert_eq!(load(&[(2, PACKETS_MIN)]).quiet(&many).len(), many.len() - 1);
    }
}
