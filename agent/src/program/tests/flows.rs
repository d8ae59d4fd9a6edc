//! Datagrams, fragments and ICMP errors about datagrams, which have no sockets: compares what
//! the program remembers of them with a model that remembers everything.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU16, Ordering};

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use wire::{Protocol, ipv4, ipv6};

use super::onward::{self, NARROW, Packet, REACHED, UNCONFIGURED, UNREACHED, address};
use super::*;

const UDP: u8 = 17;
const TCP: u8 = 6;

/// What is in a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    /// A whole datagram.
    Whole,
    /// The first fragment of one, or of a TCP segment.
    First(u8),
    /// A later one.
    Later(u8),
    /// An ICMP error about a datagram that this backend sent.
    Error,
}
use Content::{Error, First, Later, Whole};

const CONTENTS: [Content; 6] = [Whole, First(UDP), First(TCP), Later(UDP), Later(TCP), Error];

/// A client's datagram, a fragment, or an error about one.
#[derive(Clone, Copy, Debug)]
pub struct Datagram {
    content: Content,
    client_port: u16,
    /// Of fragments.
    id: u16,
}

impl Datagram {
    /// The IP packet.
    pub fn packet(&self, family: Family, traffic_class: u8) -> Vec<u8> {
        match (self.content, family) {
            (Whole, _) => ip(family, UDP, traffic_class, 77, &self.ports()),
            (Error, V4) => {
                let quoted = reversed(family, UDP, &self.ports());
                ip(V4, 1, traffic_class, 78, &[&[3, 3, 0, 0, 0, 0, 0, 0][..], &quoted].concat())
            }
            (Error, V6) => {
                let quoted = reversed(family, UDP, &self.ports());
                ip(V6, 58, traffic_class, 78, &[&[1, 4, 0, 0, 0, 0, 0, 0][..], &quoted].concat())
            }
            (First(protocol), _) => self.fragment(family, traffic_class, protocol, 0),
            (Later(protocol), _) => self.fragment(family, traffic_class, protocol, 16),
        }
    }

    /// Ports and what is behind them, of UDP or (with an ACK alone) of TCP.
    fn ports(&self) -> Vec<u8> {
        let mut bytes = vec![0; 20];
        bytes[..2].copy_from_slice(&self.client_port.to_be_bytes());
        bytes[2..4].copy_from_slice(&53_u16.to_be_bytes());
        bytes[12..14].copy_from_slice(&[0x50, 0x10]);
        bytes
    }

    fn fragment(&self, family: Family, traffic_class: u8, protocol: u8, offset: u16) -> Vec<u8> {
        // Of a later fragment the same place holds data: no ports.
        let payload = if offset == 0 { self.ports() } else { vec![0xdd; 24] };
        let has_more = offset == 0;
        match family {
            V4 => {
                let header = ipv4::Emit {
                    packet_bytes: payload.len() as u16 + 20,
                    traffic_class,
                    id: self.id,
                    flags: (u16::from(has_more) << 13) | (offset / 8),
                    ttl: 64,
                    protocol: Protocol(protocol),
                    source: u32::from_be_bytes([10, 0, 0, 77]),
                    destination: u32::from_be_bytes([10, 0, 0, 200]),
                };
                [&header.to_bytes()[..], &payload].concat()
            }
            V6 => {
                let mut header = vec![protocol, 0];
                header.extend((offset | u16::from(has_more)).to_be_bytes());
                header.extend(u32::from(self.id).to_be_bytes());
                ip(V6, 44, traffic_class, 77, &[header, payload].concat())
            }
        }
    }
}

/// As an error quotes it: what the VIP sent to the client.
fn reversed(family: Family, protocol: u8, ports: &[u8]) -> Vec<u8> {
    let mut payload = ports.to_vec();
    payload[..4].rotate_left(2);
    let (v4, v6) = ([10, 0, 0, 200], 0x2001_0db8_0000_0000_0000_0000_0000_00c8);
    let header = match family {
        V4 => ipv4::Emit {
            packet_bytes: payload.len() as u16 + 20,
            traffic_class: 0,
            id: 9,
            flags: 0,
            ttl: 64,
            protocol: Protocol(protocol),
            source: u32::from_be_bytes(v4),
            destination: u32::from_be_bytes([10, 0, 0, 77]),
        }
        .to_bytes()
        .to_vec(),
        V6 => ipv6::Emit {
            payload_bytes: payload.len() as u16,
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 64,
            protocol: Protocol(protocol),
            source: v6,
            destination: 0x2001_0db8_0000_0000_0000_0000_0000_004d,
        }
        .to_bytes()
        .to_vec(),
    };
    [header, payload].concat()
}

/// Where a first fragment went: taken here, or why not; and whether it comes back.
type Went = (Option<&'static str>, bool);

/// Everything that was taken or sent on.
#[derive(Default)]
struct Model {
    flows: HashSet<(u8, u16)>,
    fragments: HashMap<(u8, u16, u8), Went>,
}

impl Model {
    /// What becomes of a packet: action, frame, outcome.
    fn run(&mut self, packet: &Packet) -> (u32, Vec<u8>, &'static str) {
        let datagram = packet.datagram.unwrap();
        let family = packet.inner as u8;
        let flow = (family, datagram.client_port);
        let fragment = |protocol| (family, datagram.id, if family == 0 { protocol } else { 0 });
        let is_named = !packet.route.addresses.is_empty();
        let by_flow = if self.flows.contains(&flow) { None } else { Some("no_flow") };
        let (place, comes_back): Went = match datagram.content {
            Whole | Error | First(UDP) => (by_flow, true),
            First(_) => (Some("no_socket"), false),
            Later(protocol) => match self.fragments.get(&fragment(protocol)) {
                Some(went) => *went,
                None => (Some("inner_fragment"), false),
            },
        };
        let place = place.filter(|_| is_named);
        if let First(protocol) = datagram.content {
            self.fragments.insert(fragment(protocol), (place, comes_back));
        }
        if place.is_none() && matches!(datagram.content, Whole | First(UDP)) {
            self.flows.insert(flow);
        }
        let Some(reason) = place else { return (PASS, packet.delivered(), "geneve") };
        self.sent_on(packet, reason, comes_back)
    }

    fn sent_on(
        &self,
        packet: &Packet,
        reason: &'static str,
        comes_back: bool,
    ) -> (u32, Vec<u8>, &'static str) {
        let dropped = |reason| (DROP, packet.frame(), reason);
        if reason == "inner_fragment" {
            return dropped(reason);
        }
        if packet.route.hop_limit == 0 {
            return dropped("hop_limit");
        }
        match packet.route.addresses[0].to_string().as_str() {
            UNCONFIGURED => dropped("not_agent"),
            UNREACHED => dropped("no_neighbour"),
            NARROW => dropped("too_big"),
            _ => (TX, packet.sent_on(comes_back && !packet.route.returns), reason),
        }
    }
}

/// A packet of few flows and fragmented packets, numbered from here on.
fn packets() -> impl Strategy<Value = Packet> {
    let inside = (prop::sample::select(&CONTENTS[..]), 0..3_u16, 0..3_u16, any::<bool>());
    let outer =
        (any::<bool>(), any::<u8>(), onward::other_option(), onward::other_option(), 0..9_usize);
    (inside, onward::route(), outer).prop_map(|((kind, port, id, is_v4), route, outer)| {
        let (outer_v4, traffic_class, before, after, padding) = outer;
        let family = |is_v4| if is_v4 { V4 } else { V6 };
        Packet {
            outer: family(outer_v4),
            traffic_class,
            before,
            after,
            route,
            inner: family(is_v4),
            segment: Default::default(),
            datagram: Some(Datagram { content: kind, client_port: port, id }),
            padding,
        }
    })
}

/// Numbers that no packet of another case or test has: the tables outlive them.
fn unused() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(1);
    NEXT.fetch_add(3, Ordering::Relaxed)
}

#[test]
fn datagrams_and_fragments_go_where_the_model_has_them() {
    let test = "datagrams_and_fragments_go_where_the_model_has_them";
    if program_or_skip(test).is_none() {
        return;
    }
    let program = onward::program();
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1000) };
    let seen = RefCell::new(BTreeMap::new());
    TestRunner::new(config)
        .run(&prop::collection::vec(packets(), 1..16), |packets| {
            let (first, mut model) = (unused(), Model::default());
            for mut packet in packets {
                let datagram = packet.datagram.as_mut().unwrap();
                datagram.client_port += first;
                datagram.id += first;
                let expected = model.run(&packet);
                let (action, out, outcome) = program.run(&packet.frame());
                let at = format!("{packet:?}");
                assert_eq!((action, outcome), (expected.0, expected.2), "{at}");
                assert_eq!(out, expected.1, "{at}");
                *seen.borrow_mut().entry(outcome).or_insert(0) += 1;
            }
            Ok(())
        })
        .unwrap();
    let outcomes = ["geneve", "no_flow", "no_socket", "inner_fragment", "hop_limit", "not_agent"];
    let seen = seen.into_inner();
    assert!(outcomes.iter().all(|outcome| seen.contains_key(outcome)), "{seen:?}");
}

/// A packet that names these agents, to the first one.
fn naming(datagram: Datagram, family: Family, addresses: &[&str]) -> Packet {
    let route = wire::tunnel::route_option::RouteOption {
        returns: false,
        hop_limit: 4,
        bucket: Some(5),
        generation: 6,
        addresses: addresses.iter().map(|text| address(text)).collect(),
    };
    Packet {
        outer: V4,
        traffic_class: 0,
        before: Vec::new(),
        after: Vec::new(),
        route,
        inner: family,
        segment: Default::default(),
        datagram: Some(datagram),
        padding: 0,
    }
}

/// Agent b of the same config, which has a for another one.
fn agent_b() -> Program {
    let config = onward::CONFIG.replace("name: a", "name: b");
    onward::program_of(&Config::parse("config", &config).unwrap())
}

/// The whole way: first agent, the named one, and back.
#[test]
fn a_flow_that_nobody_has_comes_back_and_stays() {
    let test = "a_flow_that_nobody_has_comes_back_and_stays";
    if program_or_skip(test).is_none() {
        return;
    }
    let (a, b) = (onward::program(), agent_b());
    for (family, next) in [(V4, REACHED[0]), (V6, REACHED[0]), (V4, REACHED[1]), (V6, REACHED[1])] {
        let number = unused();
        let datagram =
            |kind, port| Datagram { content: kind, client_port: number + port, id: number };
        let frame = |kind, port| naming(datagram(kind, port), family, &[next]).frame();
        // b had it before the move: it goes there, and stays there.
        let of_b = naming(datagram(Whole, 0), family, &[]).frame();
        assert_eq!(b.run(&of_b).2, "geneve");
        for kind in [Whole, First(UDP), Later(UDP), Error] {
            let (action, on, outcome) = a.run(&frame(kind, 0));
            assert_eq!((action, outcome), (TX, "no_flow"), "{kind:?}");
            assert_eq!(b.run(&on).2, "geneve", "{kind:?}");
        }
        // A new one: to b, back to a, and from then on it is a's.
        for (kind, expected) in
            [(Error, "no_flow"), (First(UDP), "no_flow"), (Later(UDP), "geneve"), (Whole, "geneve")]
        {
            let mut frame = frame(kind, 1);
            if expected == "no_flow" {
                let (_, to_b, outcome) = a.run(&frame);
                assert_eq!(outcome, "no_flow", "{kind:?}");
                let (action, back, outcome) = b.run(&to_b);
                assert_eq!((action, outcome), (TX, "no_flow"), "{kind:?}");
                frame = back;
            }
            assert_eq!(a.run(&frame).2, "geneve", "{kind:?}");
        }
        assert_eq!(a.run(&frame(Whole, 1)).2, "geneve");
    }
}

/// Agents that name each other, over and over: every packet has an end.
#[test]
fn agents_that_name_each_other_send_nothing_in_circles() {
    let test = "agents_that_name_each_other_send_nothing_in_circles";
    if program_or_skip(test).is_none() {
        return;
    }
    let programs = [onward::program(), agent_b()];
    let (a, b) = ("10.1.0.11", "10.1.0.12");
    for kind in [Whole, First(TCP)] {
        for hop_limit in [0, 1, 2, 3, 4, 255] {
            for addresses in [&[b][..], &[b, a], &[b, a, b]] {
                let number = unused();
                let datagram = Datagram { content: kind, client_port: number, id: number };
                let mut packet = naming(datagram, V4, addresses);
                packet.route.hop_limit = hop_limit;
                let mut frame = packet.frame();
                let mut hops = 0;
                let outcome = loop {
                    let (action, out, outcome) = programs[hops % 2].run(&frame);
                    if action != TX {
                        break outcome;
                    }
                    (frame, hops) = (out, hops + 1);
                };
                // A datagram comes back to its first agent, which for [b, a] it is at.
                let hops_max = addresses.len() + usize::from(kind == Whole);
                assert!(hops <= hops_max && hops <= usize::from(hop_limit), "{hops} hops");
                let is_stopped = hops == usize::from(hop_limit) && outcome == "hop_limit";
                // No agent sends to itself: load balancers do not name the one in charge.
                let names_itself = addresses.contains(&a) && outcome == "not_agent";
                let at = format!("{kind:?} {hop_limit} {addresses:?}: {outcome}");
                assert!(outcome == "geneve" || is_stopped || names_itself, "{at}");
            }
        }
    }
}

/// What was taken long ago is as good as unknown, and is not counted.
#[test]
fn flows_are_listed_until_they_are_idle() {
    let test = "flows_are_listed_until_they_are_idle";
    if program_or_skip(test).is_none() {
        return;
    }
    let mut program = onward::program();
    let mut flows = program.flows().unwrap();
    for family in [V4, V6] {
        let number = unused();
        let datagram = Datagram { content: Whole, client_port: number, id: 0 };
        assert_eq!(program.run(&naming(datagram, family, &[]).frame()).2, "geneve");
        let listed: Vec<wire::FlowKey> =
            flows.recent().unwrap().into_iter().filter(|flow| flow.source_port == number).collect();
        let [flow] = listed.as_slice() else { panic!("{listed:?}") };
        let (client, vip): (IpAddr, IpAddr) = match family {
            V4 => (address("10.0.0.77"), address("10.0.0.200")),
            V6 => (address("2001:db8::4d"), address("2001:db8::c8")),
        };
        assert_eq!(
            (flow.source, flow.destination),
            (wire::ip::address_bits(client), wire::ip::address_bits(vip))
        );
        assert_eq!((flow.protocol, flow.destination_port), (Protocol::UDP, 53));
        let named = naming(datagram, family, &[REACHED[0]]).frame();
        assert_eq!(program.run(&named).2, "geneve");
        flows.age(number);
        assert!(!flows.recent().unwrap().contains(flow));
        assert_eq!(program.run(&named).2, "no_flow");
    }
}
