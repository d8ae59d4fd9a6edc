//! What was learnt, and what is believed. Knows no socket and no clock.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use plan::{Plan, SpillTo};
use wire::{Family, FlowKey, Protocol, geneve, gue, icmp, ip};

use super::{Heard, PathMtuTable};

/// After this long without an error the link's MTU is tried again (RFC 1191
/// section 6.3: ten minutes).
pub const LIFETIME: Duration = Duration::from_secs(600);

/// Every IPv4 host takes so much (RFC 791); less is a forger's.
const FLOOR_V4: u16 = 576;

/// Every IPv6 link carries so much (RFC 8200).
const FLOOR_V6: u16 = 1280;

/// Whose errors are believed: the outer headers that we write.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// False: none are.
    learn: bool,
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
    learnt: BTreeMap<IpAddr, Learnt>,
    /// Errors so far.
    pub heard: Heard,
}

#[derive(Debug, Clone, Copy)]
struct Learnt {
    mtu: u16,
    until: Instant,
}

impl Wanted {
    /// What forwarding by `plan` writes.
    #[must_use]
    pub fn of(plan: &Plan) -> Wanted {
        Wanted {
            learn: plan.learn_path_mtu,
            source_v4: plan.source_v4.map(Ipv4Addr::from_bits),
            source_v6: plan.source_v6.map(Ipv6Addr::from_bits),
            source_prefix: plan.tunnel.source_prefix,
            targets: plan.tunnel_targets().into_iter().collect(),
            spills: plan.services().flat_map(|service| &service.spill).copied().collect(),
        }
    }

    /// The tunnel targets whose path a quoted packet was on; none, unless we
    /// may have sent it: from our address, by a tunnel, to somebody that we
    /// tunnel to. What is spilled goes to many addresses of another cluster,
    /// each VIP's own; it takes the way of one of them, which stands for all.
    fn targets_of(&self, quoted: &FlowKey) -> BTreeSet<IpAddr> {
        let tunnel = match quoted.protocol {
            Protocol::GRE | Protocol::IPIP | Protocol::IPV6 => true,
            Protocol::UDP => matches!(quoted.destination_port, gue::PORT | geneve::PORT),
            _ => false,
        };
        if !self.learn || !tunnel || !self.is_source(ip::address(quoted.family, quoted.source)) {
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
    /// Replaces what is believed; targets that are gone are forgotten.
    pub fn set(&mut self, wanted: Wanted) {
        self.learnt.retain(|target, _| wanted.learn && wanted.targets.contains(target));
        self.wanted = wanted;
    }

    /// Enters an ICMP message. An MTU only ever goes down until it expires
    /// (RFC 1191 section 6.3): an error that reports a larger one is about a
    /// packet that was sent before, or about another path.
    pub fn note(&mut self, family: Family, message: &[u8], now: Instant) {
        let Some(reported) = icmp::reported_mtu(family, message) else { return };
        let quoted = icmp::quoted(family, message);
        let targets = quoted.map(|quoted| self.wanted.targets_of(&quoted)).unwrap_or_default();
        if targets.is_empty() {
            self.heard.ignored += 1;
            return;
        }
        self.heard.believed += 1;
        let floor = if family == Family::V4 { FLOOR_V4 } else { FLOOR_V6 };
        // Zero (from routers that predate RFC 1191) becomes the floor.
        let mtu = u16::try_from(reported).unwrap_or(u16::MAX).max(floor);
        let fresh = Learnt { mtu, until: now + LIFETIME };
        for target in targets {
            let learnt = self.learnt.entry(target).or_insert(fresh);
            if fresh.mtu <= learnt.mtu {
                *learnt = fresh;
            }
        }
    }

    /// Enters what a predecessor learnt. How long ago it did is not known: it
    /// is as fresh as can be.
    pub fn inherit(&mut self, table: &PathMtuTable, now: Instant) {
        for (target, mtu) in table.iter().filter(|(target, _)| self.wanted.targets.contains(target))
        {
            self.learnt.insert(*target, Learnt { mtu: *mtu, until: now + LIFETIME });
        }
    }

    /// Forgets what is too old.
    pub fn expire(&mut self, now: Instant) {
        self.learnt.retain(|_, learnt| now < learnt.until);
    }

    /// All that is known now.
    #[must_use]
    pub fn table(&self) -> PathMtuTable {
        self.learnt.iter().map(|(target, learnt)| (*target, learnt.mtu)).collect()
    }
}

#[cfg(test)]
mod tests {
    use wire::{ipv4, ipv6};

    use super::*;

    const OWN: u32 = 0x0a00_0001;
    const BACKEND: u32 = 0x0a01_000b;
    const BACKEND6: u128 = 0x2001_0db8_0001 << 80 | 11;
    const OWN6: u128 = 0x2001_0db8_0001 << 80 | 1;

    fn book() -> Book {
        let mut book = Book::default();
        book.set(Wanted {
            learn: true,
            source_v4: Some(Ipv4Addr::from_bits(OWN)),
            source_v6: Some(Ipv6Addr::from_bits(OWN6)),
            source_prefix: None,
            targets: [v4(), IpAddr::V6(Ipv6Addr::from_bits(BACKEND6))].into(),
            spills: Vec::new(),
        });
        book
    }

    fn v4() -> IpAddr {
        IpAddr::V4(Ipv4Addr::from_bits(BACKEND))
    }

    /// "Fragmentation needed" about a packet of ours, and eight bytes of it.
    fn error(
        mtu: u16,
        protocol: Protocol,
        (source, destination): (u32, u32),
        start: [u8; 8],
    ) -> Vec<u8> {
        let header = ipv4::Emit {
            packet_bytes: 1524,
            traffic_class: 0,
            id: 0,
            flags: ipv4::DONT_FRAGMENT,
            ttl: 60,
            protocol,
            source,
            destination,
        };
        [&icmp::too_big(Family::V4, mtu)[..], &header.to_bytes(), &start].concat()
    }

    fn about_gre(mtu: u16) -> Vec<u8> {
        error(mtu, Protocol::GRE, (OWN, BACKEND), [0; 8])
    }

    #[test]
    fn an_mtu_goes_down_only_until_it_expires() {
        let (mut book, start) = (book(), Instant::now());
        let later = start + LIFETIME / 2;
        for (reported, known) in [(1400, 1400), (1450, 1400), (1300, 1300), (1400, 1300)] {
            book.note(Family::V4, &about_gre(reported), start);
            assert_eq!(book.table(), [(v4(), known)].into());
        }
        // The same again makes it last longer.
        book.note(Family::V4, &about_gre(1300), later);
        book.expire(start + LIFETIME);
        assert_eq!(book.table().len(), 1);
        book.expire(later + LIFETIME);
        assert_eq!(book.table(), PathMtuTable::new());
        assert_eq!(book.heard, Heard { believed: 5, ignored: 0 });
    }

    #[test]
    fn nothing_lowers_it_below_the_floor() {
        for reported in [0, 68, 575] {
            let mut book = book();
            book.note(Family::V4, &about_gre(reported), Instant::now());
            assert_eq!(book.table(), [(v4(), 576)].into());
        }
        let mut book = book();
        let header = ipv6::Emit {
            payload_bytes: 1460,
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 60,
            protocol: Protocol::GRE,
            source: OWN6,
            destination: BACKEND6,
        };
        let error = [&icmp::too_big(Family::V6, 600)[..], &header.to_bytes(), &[0; 8]].concat();
        book.note(Family::V6, &error, Instant::now());
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
            let heard = Heard { believed: u64::from(believed), ignored: u64::from(!believed) };
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

    /// Any VIP's tunnel to another cluster tells of the way that all take.
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
    fn nothing_is_learnt_where_the_plan_says_so() {
        let mut book = book();
        book.note(Family::V4, &about_gre(1400), Instant::now());
        book.set(Wanted { learn: false, ..book.wanted.clone() });
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
