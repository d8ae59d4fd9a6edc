//! What was learned, and what is accepted. Knows no socket and no clock.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use datapath::{FlowHash, quoted};
use plan::{Plan, SpillTo};
use wire::{Encap, Family, FlowKey, icmp, ip};

use crate::netlink::path_mtu::{Heard, Mismatched, PathMtuTable};

/// After this long without an error the link's MTU is tried again (RFC 1191
/// section 6.3: ten minutes).
pub const LIFETIME: Duration = Duration::from_secs(600);

/// Less than these no link carries (RFC 8200) and no host takes (RFC 791). What
/// is accepted of it for packets inside, see `datapath::encapsulate`.
const FLOOR_V4: u16 = 576;
const FLOOR_V6: u16 = 1280;

/// Errors with a wrong identification about one target within [`LIFETIME`],
/// after which nothing is learned about it until that time is over. A forger
/// guesses one of 65,536: a hundred tries hit it with a chance of 0.15 %.
pub const MISMATCHES_MAX: u32 = 100;

/// Between two changes of what is known of one target: each has the headers of
/// all tunnels made anew.
pub const CHANGE_INTERVAL: Duration = Duration::from_secs(1);

/// Whose errors are accepted: the outer headers that we write.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// Absent: nothing is learned.
    hash: Option<FlowHash>,
    source_v4: Option<Ipv4Addr>,
    source_v6: Option<Ipv6Addr>,
    /// Network and host bits that outer IPv4 sources are drawn from instead.
    source_prefix: Option<(u32, u32)>,
    targets: BTreeSet<IpAddr>,
    spills: Vec<SpillTo>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Book {
    wanted: Wanted,
    learned: BTreeMap<IpAddr, Learned>,
    mismatches: BTreeMap<IpAddr, Mismatches>,
    /// Errors so far.
    pub heard: Heard,
}

#[derive(Debug, Clone, Copy)]
struct Learned {
    mtu: u16,
    changed: Instant,
    until: Instant,
}

/// Errors that quoted a packet to a target which we did not send.
#[derive(Debug, Clone, Copy)]
struct Mismatches {
    since: Instant,
    count: u32,
}

impl Wanted {
    /// What forwarding by `plan` writes, under the key of `hash`.
    #[must_use]
    pub fn of(plan: &Plan, hash: FlowHash) -> Wanted {
        Wanted {
            hash: plan.learn_path_mtu.then_some(hash),
            source_v4: plan.source_v4.map(Ipv4Addr::from_bits),
            source_v6: plan.source_v6.map(Ipv6Addr::from_bits),
            source_prefix: plan.tunnel.source_prefix,
            targets: plan.tunnel_targets().into_iter().collect(),
            spills: plan.services().flat_map(|service| &service.spill).copied().collect(),
        }
    }

    /// The tunnel targets whose path a quoted packet was on; none, unless we
    /// may have sent it: from our address, by a tunnel, to a tunnel target.
    /// What is spilled goes to many addresses of another cluster, each VIP's
    /// own; it takes the path of one of them, which stands for all.
    fn targets_of(&self, quoted: &FlowKey) -> BTreeSet<IpAddr> {
        if Encap::of(quoted).is_none() || !self.is_source(ip::address(quoted.family, quoted.source))
        {
            return BTreeSet::new();
        }
        let exact = self.targets.get(&ip::address(quoted.family, quoted.destination));
        let covers = |spill: &&SpillTo| {
            spill.family == quoted.family && quoted.destination & !spill.host_mask == spill.network
        };
        let spills = self.spills.iter().filter(covers).map(|spill| &spill.address);
        exact.into_iter().chain(spills).copied().collect()
    }

    fn is_source(&self, source: IpAddr) -> bool {
        match (source, self.source_prefix) {
            (IpAddr::V4(source), Some((network, host_mask))) => {
                source.to_bits() & !host_mask == network & !host_mask
            }
            (IpAddr::V4(source), None) => Some(source) == self.source_v4,
            (IpAddr::V6(source), _) => Some(source) == self.source_v6,
        }
    }
}

impl Book {
    /// Replaces the targets whose errors are accepted; targets that are gone are forgotten.
    pub fn set(&mut self, wanted: Wanted) {
        let stays = |target: &IpAddr| wanted.hash.is_some() && wanted.targets.contains(target);
        self.learned.retain(|target, _| stays(target));
        self.mismatches.retain(|target, _| stays(target));
        self.wanted = wanted;
    }

    /// Enters an ICMP message.
    pub fn note(&mut self, family: Family, message: &[u8], now: Instant) {
        let Some(reported) = icmp::reported_mtu(family, message) else { return };
        let quoted = icmp::quoted(family, message);
        let targets = quoted.map(|quoted| self.wanted.targets_of(&quoted)).unwrap_or_default();
        let Wanted { hash: Some(hash), source_v4, .. } = &self.wanted else {
            self.heard.ignored += 1;
            return;
        };
        let own = source_v4.map(Ipv4Addr::to_bits);
        if targets.is_empty() {
            self.heard.ignored += 1;
        } else if !quoted::is_ours(hash, own, family, message) {
            self.heard.ignored += 1;
            self.heard.mismatched += 1;
            targets.into_iter().for_each(|target| self.mismatch(target, now));
        } else if targets.iter().all(|target| self.is_paused(target, now)) {
            self.heard.ignored += 1;
        } else {
            self.heard.believed += 1;
            let floor = if family == Family::V4 { FLOOR_V4 } else { FLOOR_V6 };
            // Zero (from routers that predate RFC 1191) becomes the floor.
            let mtu = u16::try_from(reported).unwrap_or(u16::MAX).max(floor);
            for target in targets {
                if !self.is_paused(&target, now) {
                    self.learn(target, mtu, now);
                }
            }
        }
    }

    /// An MTU only ever goes down until it expires (RFC 1191 section 6.3): an
    /// error that reports a larger one is about a packet that was sent before,
    /// or about another path.
    fn learn(&mut self, target: IpAddr, mtu: u16, now: Instant) {
        let fresh = Learned { mtu, changed: now, until: now + LIFETIME };
        let learned = self.learned.entry(target).or_insert(fresh);
        if mtu == learned.mtu {
            learned.until = fresh.until;
        } else if mtu < learned.mtu && now >= learned.changed + CHANGE_INTERVAL {
            *learned = fresh;
        }
    }

    fn mismatch(&mut self, target: IpAddr, now: Instant) {
        let fresh = Mismatches { since: now, count: 0 };
        let mismatches = self.mismatches.entry(target).or_insert(fresh);
        mismatches.count = mismatches.count.saturating_add(1);
        if mismatches.count == MISMATCHES_MAX {
            tracing::warn!(
                %target,
                "{MISMATCHES_MAX} ICMP errors within ten minutes quoted a tunnel packet to this address that was not sent from here: \
                 they are forged; for the time being nothing is learned about its path"
            );
        }
    }

    fn is_paused(&self, target: &IpAddr, now: Instant) -> bool {
        self.mismatches
            .get(target)
            .is_some_and(|seen| seen.count >= MISMATCHES_MAX && now < seen.since + LIFETIME)
    }

    /// Enters what a predecessor learned. How long ago it did is not known: it
    /// is as fresh as can be.
    pub fn inherit(&mut self, table: &PathMtuTable, now: Instant) {
        for (target, mtu) in table.iter().filter(|(target, _)| self.wanted.targets.contains(target))
        {
            let learned = Learned { mtu: *mtu, changed: now, until: now + LIFETIME };
            self.learned.insert(*target, learned);
        }
    }

    /// Forgets what is too old; but what is known of a target stays while
    /// nothing more is learned about it.
    pub fn expire(&mut self, now: Instant) {
        let mut learned = std::mem::take(&mut self.learned);
        learned.retain(|target, learned| now < learned.until || self.is_paused(target, now));
        self.learned = learned;
        self.mismatches.retain(|_, seen| now < seen.since + LIFETIME);
    }

    /// All that is known now.
    #[must_use]
    pub fn table(&self) -> PathMtuTable {
        self.learned.iter().map(|(target, learned)| (*target, learned.mtu)).collect()
    }

    /// Targets about which errors with a wrong identification came.
    pub fn mismatched(&self, now: Instant) -> impl Iterator<Item = Mismatched> {
        self.mismatches.iter().map(move |(target, seen)| Mismatched {
            target: *target,
            count: seen.count,
            paused: self.is_paused(target, now),
        })
    }
}

#[cfg(test)]
mod tests {
    use datapath::Secret;
    use wire::{Protocol, ipv4, ipv6};

    use super::*;

    const OWN: u32 = 0x0a00_0001;
    const BACKEND: u32 = 0x0a01_000b;
    const BACKEND6: u128 = 0x2001_0db8_0001 << 80 | 11;
    const OWN6: u128 = 0x2001_0db8_0001 << 80 | 1;
    const VIP6: u128 = 0x2001_0db8_000a << 80 | 10;
    const CLIENT6: u128 = 0x2001_0db8_0009 << 80 | 9;

    fn hash() -> FlowHash {
        FlowHash::new(&Secret::derived("test"))
    }

    fn book() -> Book {
        let mut book = Book::default();
        book.set(Wanted {
            hash: Some(hash()),
            source_v4: Some(Ipv4Addr::from_bits(OWN)),
            source_v6: Some(Ipv6Addr::from_bits(OWN6)),
            source_prefix: None,
            targets: [v4(), v6()].into(),
            spills: Vec::new(),
        });
        book
    }

    fn v4() -> IpAddr {
        IpAddr::V4(Ipv4Addr::from_bits(BACKEND))
    }

    fn v6() -> IpAddr {
        IpAddr::V6(Ipv6Addr::from_bits(BACKEND6))
    }

    /// "Fragmentation needed" about a packet of that identification, and eight
    /// bytes of it.
    fn error_with(
        id: u16,
        mtu: u16,
        protocol: Protocol,
        (source, destination): (u32, u32),
        start: [u8; 8],
    ) -> Vec<u8> {
        let header = ipv4::Emit {
            packet_bytes: 1524,
            traffic_class: 0,
            id,
            flags: ipv4::DONT_FRAGMENT,
            ttl: 60,
            protocol,
            source,
            destination,
        };
        [&icmp::too_big(Family::V4, mtu)[..], &header.to_bytes(), &start].concat()
    }

    /// The same about a packet of ours.
    fn error(mtu: u16, protocol: Protocol, addresses: (u32, u32), start: [u8; 8]) -> Vec<u8> {
        error_with(hash().outer_id(OWN, addresses.1), mtu, protocol, addresses, start)
    }

    fn about_gre(mtu: u16) -> Vec<u8> {
        error(mtu, Protocol::GRE, (OWN, BACKEND), [0; 8])
    }

    fn forged(id: u16) -> Vec<u8> {
        let id = hash().outer_id(OWN, BACKEND).wrapping_add(id);
        error_with(id, 1000, Protocol::GRE, (OWN, BACKEND), [0; 8])
    }

    /// "Packet too big" about a GRE packet with a client's inside, of which
    /// `quoted` bytes are there.
    fn error6(mtu: u16, quoted: usize, flow_label: Option<u32>) -> Vec<u8> {
        let inner = ipv6::Emit {
            payload_bytes: 1300,
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 60,
            protocol: Protocol::TCP,
            source: CLIENT6,
            destination: VIP6,
        };
        let key = FlowKey {
            family: Family::V6,
            protocol: Protocol::TCP,
            source: CLIENT6,
            destination: VIP6,
            source_port: 40_000,
            destination_port: 80,
        };
        let outer = ipv6::Emit {
            payload_bytes: 1344,
            traffic_class: 0,
            flow_label: flow_label.unwrap_or(hash().flow(&key) as u32 & 0xf_ffff),
            hop_limit: 60,
            protocol: Protocol::GRE,
            source: OWN6,
            destination: BACKEND6,
        };
        let packet = [
            &outer.to_bytes()[..],
            &[0, 0, 0x86, 0xdd],
            &inner.to_bytes(),
            &[0x9c, 0x40, 0, 80, 0, 0, 0, 0],
        ]
        .concat();
        [&icmp::too_big(Family::V6, mtu)[..], &packet[..quoted.min(packet.len())]].concat()
    }

    #[test]
    fn an_mtu_goes_down_only_until_it_expires() {
        let (mut book, start) = (book(), Instant::now());
        let later = start + LIFETIME / 2;
        for (second, (reported, known)) in
            (0..).zip([(1400, 1400), (1450, 1400), (1300, 1300), (1400, 1300)])
        {
            book.note(Family::V4, &about_gre(reported), start + CHANGE_INTERVAL * second);
            assert_eq!(book.table(), [(v4(), known)].into());
        }
        // The same again makes it last longer.
        book.note(Family::V4, &about_gre(1300), later);
        book.expire(start + LIFETIME);
        assert_eq!(book.table().len(), 1);
        book.expire(later + LIFETIME);
        assert_eq!(book.table(), PathMtuTable::new());
        assert_eq!(book.heard, Heard { believed: 5, ..Heard::default() });
    }

    #[test]
    fn a_target_changes_once_a_second_at_most() {
        let (mut book, start) = (book(), Instant::now());
        for (after_ms, reported, known) in
            [(0, 1400, 1400), (999, 1300, 1400), (1000, 1200, 1200), (1500, 1100, 1200)]
        {
            book.note(Family::V4, &about_gre(reported), start + Duration::from_millis(after_ms));
            assert_eq!(book.table(), [(v4(), known)].into(), "{after_ms}");
        }
    }

    #[test]
    fn errors_with_another_identification_are_forged() {
        let mut book = book();
        for id in [1, 2, 0x8000] {
            book.note(Family::V4, &forged(id), Instant::now());
        }
        assert_eq!(book.table(), PathMtuTable::new());
        assert_eq!(book.heard, Heard { believed: 0, ignored: 3, mismatched: 3 });
    }

    #[test]
    fn errors_over_ipv6_quote_the_flow_label_of_the_packet_inside() {
        const WHOLE: usize = 1232;
        let right = hash();
        for (error, believed) in [
            (error6(1400, WHOLE, None), true),
            // As little as has the five-tuple.
            (error6(1400, 40 + 4 + 40 + 4, None), true),
            // The machine cannot know.
            (error6(1400, 40 + 4 + 40 + 3, None), false),
            (error6(1400, 40 + 8, None), false),
            (error6(1400, WHOLE, Some(0)), false),
            (error6(1400, WHOLE, Some(right.outer_id(OWN, BACKEND).into())), false),
        ] {
            let mut book = book();
            book.note(Family::V6, &error, Instant::now());
            let expected = if believed { PathMtuTable::from([(v6(), 1400)]) } else { [].into() };
            assert_eq!(book.table(), expected, "{error:?}");
            assert_eq!(book.heard.mismatched, u64::from(!believed));
        }
    }

    #[test]
    fn after_a_hundred_forged_ones_what_is_known_stays_and_nothing_is_learned() {
        let (mut book, start) = (book(), Instant::now());
        book.note(Family::V4, &about_gre(1400), start);
        let forge = |book: &mut Book, count: u32, at| {
            (1..=count).for_each(|id| book.note(Family::V4, &forged(id as u16), at));
        };
        forge(&mut book, MISMATCHES_MAX - 1, start);
        book.note(Family::V4, &about_gre(1390), start + CHANGE_INTERVAL);
        assert_eq!(book.table(), [(v4(), 1390)].into());
        forge(&mut book, 1, start + CHANGE_INTERVAL);
        let later = start + LIFETIME - Duration::from_secs(1);
        book.note(Family::V4, &about_gre(1300), later);
        book.note(Family::V6, &error6(1400, 1232, None), later);
        book.expire(later);
        assert_eq!(book.table(), [(v4(), 1390), (v6(), 1400)].into(), "the other learns on");
        let paused: Vec<Mismatched> = book.mismatched(later).collect();
        assert_eq!(paused, [Mismatched { target: v4(), count: MISMATCHES_MAX, paused: true }]);
        // Ten minutes after the first forged one it is over.
        book.expire(start + LIFETIME);
        book.note(Family::V4, &about_gre(1300), start + LIFETIME);
        assert_eq!(book.table(), [(v4(), 1300), (v6(), 1400)].into());
        assert_eq!(book.mismatched(start + LIFETIME).count(), 0);
    }

    #[test]
    fn what_is_known_stays_as_long_as_learning_pauses() {
        let (mut book, start) = (book(), Instant::now());
        book.note(Family::V4, &about_gre(1400), start);
        let later = start + LIFETIME / 2;
        (1..=MISMATCHES_MAX).for_each(|id| book.note(Family::V4, &forged(id as u16), later));
        book.expire(start + LIFETIME);
        assert_eq!(book.table(), [(v4(), 1400)].into());
        book.expire(later + LIFETIME);
        assert_eq!(book.table(), PathMtuTable::new());
    }

    #[test]
    fn nothing_lowers_it_below_the_floor() {
        for reported in [0, 68, 575] {
            let mut book = book();
            book.note(Family::V4, &about_gre(reported), Instant::now());
            assert_eq!(book.table(), [(v4(), 576)].into());
        }
        let mut book = book();
        book.note(Family::V6, &error6(600, 1232, None), Instant::now());
        assert_eq!(book.table().into_values().collect::<Vec<_>>(), [1280]);
    }

    #[test]
    fn errors_about_what_we_did_not_write_are_ignored() {
        let gue = [0x12, 0x34, 0x17, 0xc0, 0, 0, 0, 0];
        let dns = [0x12, 0x34, 0, 53, 0, 0, 0, 0];
        for (error, believed) in [
            (about_gre(1400), true),
            (error(1400, Protocol::UDP, (OWN, BACKEND), gue), true),
            (error(1400, Protocol::IPIP, (OWN, BACKEND), [0; 8]), true),
            (error(1400, Protocol::UDP, (OWN, BACKEND), dns), false),
            (error(1400, Protocol::TCP, (OWN, BACKEND), gue), false),
            (error(1400, Protocol::GRE, (OWN + 1, BACKEND), [0; 8]), false),
            (error(1400, Protocol::GRE, (OWN, BACKEND + 1), [0; 8]), false),
            (about_gre(1400)[..20].to_vec(), false),
        ] {
            let mut book = book();
            book.note(Family::V4, &error, Instant::now());
            let heard = Heard {
                believed: u64::from(believed),
                ignored: u64::from(!believed),
                mismatched: 0,
            };
            assert_eq!(
                (book.heard, book.table().len()),
                (heard, usize::from(believed)),
                "{error:?}"
            );
        }
    }

    #[test]
    fn sources_drawn_from_a_prefix_are_ours() {
        let mut book = book();
        book.wanted.source_prefix = Some((0x0a40_0000, 0xff));
        book.note(
            Family::V4,
            &error(1400, Protocol::GRE, (0x0a40_0077, BACKEND), [0; 8]),
            Instant::now(),
        );
        book.note(
            Family::V4,
            &error(1300, Protocol::GRE, (0x0a40_0177, BACKEND), [0; 8]),
            Instant::now(),
        );
        assert_eq!((book.heard.believed, book.table()), (1, [(v4(), 1400)].into()));
    }

    /// Any VIP's tunnel to another cluster is about the path that all take.
    #[test]
    fn an_error_about_a_spilled_packet_is_about_its_clusters_prefix() {
        let there: IpAddr = "198.51.100.10".parse().unwrap();
        let spill = SpillTo {
            family: Family::V4,
            network: 0xc633_6400,
            host_mask: 0xff,
            address: there,
            down: false,
        };
        for (destination, believed) in
            [(0xc633_640a_u32, true), (0xc633_6477, true), (0xc633_6577, false)]
        {
            let mut book = book();
            book.wanted.spills = vec![spill];
            let error = error(1400, Protocol::GRE, (OWN, destination), [0; 8]);
            book.note(Family::V4, &error, Instant::now());
            let expected = if believed { PathMtuTable::from([(there, 1400)]) } else { [].into() };
            assert_eq!((book.table(), book.heard.believed), (expected, u64::from(believed)));
        }
    }

    #[test]
    fn nothing_is_learned_where_the_plan_says_so() {
        let mut book = book();
        book.note(Family::V4, &about_gre(1400), Instant::now());
        book.set(Wanted { hash: None, ..book.wanted.clone() });
        assert_eq!(book.table(), PathMtuTable::new());
        book.note(Family::V4, &about_gre(1400), Instant::now());
        assert_eq!((book.table(), book.heard.ignored), (PathMtuTable::new(), 1));
    }

    #[test]
    fn targets_that_are_gone_are_forgotten() {
        let mut book = book();
        book.note(Family::V4, &about_gre(1400), Instant::now());
        book.set(Wanted::default());
        assert_eq!(book.table(), PathMtuTable::new());
    }
}
