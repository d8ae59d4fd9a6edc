//! Packets that name other agents: accepted, sent on or dropped, against a model of the rules
//! in plain Rust, with real sockets.

use std::net::IpAddr;

use nexthops::NextHop;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use wire::tunnel::geneve;
use wire::tunnel::multipath_option::MultipathOption;
use wire::tunnel::route_option::RouteOption;
use wire::{EtherType, MacAddress, Protocol, ethernet, ipv4, ipv6};

use super::flows::Datagram;
use super::sockets::{
    Closed, Connection, Cookie, Established, FastOpen, Handshake, STATES, Sockets, State, Unknown,
    Wide, namespace,
};
use super::*;
use crate::records::{Flow, Opening};

/// Of all agents, as the others reach them.
pub const NEXT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
const OWN_MAC: [u8; 6] = [2, 0, 0, 0, 0, 8];
const MTU: u32 = 1400;

const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;
const FLAGS: [u8; 7] = [SYN, SYN | ACK, ACK, RST, RST | ACK, 0x11, 0];

/// Agents of the config: with a next hop, and without one.
pub const REACHED: [&str; 3] = ["10.1.0.12", "2001:db8:1::12", "10.1.0.13"];
pub const UNREACHED: &str = "10.1.0.14";
/// Behind a link that carries less than any of these packets.
pub const NARROW: &str = "10.1.0.15";
pub const UNCONFIGURED: &str = "10.1.0.99";
pub const NEXT: [&str; 6] = [REACHED[0], REACHED[1], REACHED[2], UNREACHED, NARROW, UNCONFIGURED];

pub const CONFIG: &str = "
interface: eth0
load_balancers: [10.0.0.1, 2001:db8::1]
vips: [10.0.0.200, 2001:db8::c8]
name: a
agents:
  a: [10.1.0.11, '2001:db8:1::11']
  b: [10.1.0.12, '2001:db8:1::12']
  c: 10.1.0.13
  d: 10.1.0.14
  e: 10.1.0.15
";

pub fn program() -> Program {
    program_of(&Config::parse("config", CONFIG).unwrap())
}

pub fn program_of(config: &Config) -> Program {
    let own: Vec<IpAddr> =
        config.other_agents().filter_map(|agent| config.own_address(agent)).collect();
    let mut program = Program::of_host(&own);
    program.set(config).unwrap();
    let mut agents = program.agents().unwrap();
    for agent in config.other_agents() {
        let mtu = if agent == address(NARROW) { 80 } else { MTU };
        let hop = NextHop {
            device: 0,
            source: OWN_MAC,
            destination: NEXT_MAC,
            mtu,
            weight: 1,
            is_backend: true,
        };
        let reached = agent != address(UNREACHED);
        agents.set(agent, config.own_address(agent).unwrap(), reached.then_some(&hop)).unwrap();
    }
    program
}

pub fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// What a load balancer or an agent sends.
#[derive(Clone, Debug)]
pub struct Packet {
    pub outer: Family,
    pub traffic_class: u8,
    /// Options in front of the route option and behind it.
    pub before: Vec<u8>,
    pub after: Vec<u8>,
    pub route: RouteOption,
    pub inner: Family,
    pub segment: Segment,
    /// In place of the segment.
    pub datagram: Option<Datagram>,
    /// Behind the outer packet, as Ethernet pads.
    pub padding: usize,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Segment {
    pub ports: (u16, u16),
    pub flags: u8,
    pub sequence: u32,
    pub acknowledged: u32,
    pub data: usize,
}

impl Segment {
    fn bytes(self) -> Vec<u8> {
        let mut bytes = vec![0; 20 + self.data];
        bytes[..2].copy_from_slice(&self.ports.0.to_be_bytes());
        bytes[2..4].copy_from_slice(&self.ports.1.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.sequence.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.acknowledged.to_be_bytes());
        bytes[12..14].copy_from_slice(&[0x50, self.flags]);
        bytes
    }

    fn has(self, flags: u8) -> bool {
        self.flags & flags == flags
    }
}

impl Packet {
    /// A data segment of a connection, with these addresses to try.
    fn of(connection: &Connection, addresses: &[&str]) -> Packet {
        let addresses = addresses.iter().map(|text| address(text)).collect();
        let route =
            RouteOption { returns: false, hop_limit: 4, bucket: Some(5), generation: 6, addresses };
        let segment = Segment {
            ports: connection.ports(),
            flags: ACK,
            sequence: connection.sequence,
            acknowledged: connection.acknowledged,
            data: 0,
        };
        Packet {
            outer: V4,
            traffic_class: 0xb8,
            before: Vec::new(),
            after: Vec::new(),
            route,
            inner: connection.family,
            segment,
            datagram: None,
            padding: 0,
        }
    }

    fn inner(&self, ecn: u8) -> Vec<u8> {
        if let Some(datagram) = &self.datagram {
            return datagram.packet(self.inner, 0x28 | ecn);
        }
        ip(self.inner, 6, 0x28 | ecn, 77, &self.segment.bytes())
    }

    fn geneve(&self, route: &[u8]) -> Vec<u8> {
        let options = [&self.before[..], route, &self.after].concat();
        let mut header = geneve::emit(self.inner.ether_type());
        geneve::announce_critical_options(&mut header, options.len());
        [&header[..], &options, &self.inner(0b10)].concat()
    }

    pub fn frame(&self) -> Vec<u8> {
        let payload = datagram(geneve::PORT, &self.geneve(&self.route.emit()));
        let packet = ip(self.outer, 17, self.traffic_class, SOURCE, &payload);
        [frame(self.outer.ether_type(), &packet), vec![0xee; self.padding]].concat()
    }

    /// Packet inside, alone: RFC 6040 with ECT(0) inside.
    pub fn delivered(&self) -> Vec<u8> {
        let ecn = match self.traffic_class & 3 {
            outer @ (0b01 | 0b11) => outer,
            _ => 0b10,
        };
        let frame = frame(self.inner.ether_type(), &self.inner(ecn));
        [frame, vec![0xee; self.padding]].concat()
    }

    /// Without its first address, from this agent to that one; where it is to come
    /// back, with this agent's address as the last one.
    pub fn sent_on(&self, comes_back: bool) -> Vec<u8> {
        let mut route = self.route.emit().to_vec();
        let address_bytes = if route[4] & 0x80 == 0 { 4 } else { 16 };
        route.drain(12..12 + address_bytes);
        if comes_back {
            let own =
                if self.route.addresses[0].is_ipv4() { "10.1.0.11" } else { "2001:db8:1::11" };
            route.extend(&mapped(address(own))[16 - address_bytes..]);
            route[4] |= 0x40;
        } else {
            route[3] -= (address_bytes / 4) as u8;
            route[4] -= 1;
        }
        route[5] -= 1;
        let payload = datagram(geneve::PORT, &self.geneve(&route));
        let packet = match self.route.addresses[0] {
            IpAddr::V4(next) => [
                &ipv4::Emit {
                    packet_bytes: payload.len() as u16 + 20,
                    traffic_class: self.traffic_class,
                    id: 0,
                    flags: 0x4000,
                    ttl: 64,
                    protocol: Protocol::UDP,
                    source: u32::from_be_bytes([10, 1, 0, 11]),
                    destination: next.to_bits(),
                }
                .to_bytes()[..],
                &payload,
            ]
            .concat(),
            IpAddr::V6(next) => [
                &ipv6::Emit {
                    payload_bytes: payload.len() as u16,
                    traffic_class: self.traffic_class,
                    flow_label: 0,
                    hop_limit: 64,
                    protocol: Protocol::UDP,
                    source: 0x2001_0db8_0001_0000_0000_0000_0000_0011,
                    destination: next.to_bits(),
                }
                .to_bytes()[..],
                &payload,
            ]
            .concat(),
        };
        let ether_type = EtherType::of(wire::Family::of(self.route.addresses[0]));
        let header = ethernet::emit(MacAddress(OWN_MAC), MacAddress(NEXT_MAC), ether_type);
        [&header[..], &packet, &vec![0xee; self.padding]].concat()
    }
}

/// Beyond any tolerance that a socket without large buffers has.
const FAR: u32 = 1 << 28;

/// The rules, in order: what becomes of a packet of this connection.
fn model(packet: &Packet, connection: &Connection) -> (u32, Vec<u8>, &'static str) {
    let here = (PASS, packet.delivered(), "geneve");
    let Some(next) = packet.route.addresses.first() else { return here };
    if packet.segment.has(SYN) && !packet.segment.has(ACK) {
        return here;
    }
    let Err(reason) = place(packet.segment, connection) else { return here };
    let dropped = |reason| (DROP, packet.frame(), reason);
    if packet.route.hop_limit == 0 {
        return dropped("hop_limit");
    }
    match next.to_string().as_str() {
        UNCONFIGURED => dropped("not_agent"),
        UNREACHED => dropped("no_neighbour"),
        NARROW => dropped("too_big"),
        _ => (TX, packet.sent_on(false), reason),
    }
}

/// Whether the backend's socket has use for the segment; else why not.
fn place(segment: Segment, connection: &Connection) -> Result<(), &'static str> {
    let sequence = segment.sequence.wrapping_sub(connection.sequence) as i32;
    let acknowledged = segment.acknowledged.wrapping_sub(connection.acknowledged) as i32;
    let (is_here, reason) = match connection.state {
        Established => {
            let is_far = |distance: i32| distance.unsigned_abs() > FAR;
            let is_other = is_far(sequence) && (!segment.has(ACK) || is_far(acknowledged));
            (!is_other, "other_connection")
        }
        Handshake if segment.has(ACK) => (acknowledged == 0, "other_handshake"),
        Handshake => (sequence == 0, "other_handshake"),
        Closed => {
            let is_in_window = sequence.unsigned_abs() < 30_000;
            let is_of_ours = !segment.has(ACK) || (-(1 << 30)..=0).contains(&acknowledged);
            (is_in_window && is_of_ours, "other_time_wait")
        }
        Cookie => {
            let is_ack = segment.has(ACK) && segment.flags & (SYN | RST) == 0;
            // The kernel subtracts one number from the other; what is left is
            // an index into a table of four segment sizes, here 0.
            let index = acknowledged.wrapping_sub(sequence);
            (is_ack && (0..4).contains(&index), "no_socket")
        }
        Unknown => (false, "no_socket"),
        Wide | FastOpen => unreachable!("not among those of the model"),
    };
    if is_here { Ok(()) } else { Err(reason) }
}

fn check(program: &Program, packet: &Packet, connection: &Connection) {
    let expected = model(packet, connection);
    let (action, out, outcome) = program.run(&packet.frame());
    let at = format!("{packet:?} of {connection:?}");
    assert_eq!((action, outcome), (expected.0, expected.2), "{at}");
    assert_eq!(out, expected.1, "{at}");
}

/// Runs a test in a namespace with sockets of all states.
fn with_sockets(test: &str, work: impl FnOnce(&Program, &Sockets) + Send) {
    if !testnet::root_or_skip(test) {
        return;
    }
    let namespace = namespace();
    namespace.inside(|| {
        let sockets = Sockets::new(&namespace);
        work(&program(), &sockets);
    });
}

pub fn other_option() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        Just(Vec::new()),
        (0..4_usize, 0..0x80_u8).prop_map(|(words, kind)| {
            let header = geneve::emit_option_header(0x0101, kind, words * 4);
            [&header[..], &vec![0xee; words * 4]].concat()
        }),
    ]
}

pub fn route() -> impl Strategy<Value = RouteOption> {
    let addresses = prop::collection::vec(prop::sample::select(&NEXT[..]), 0..=3);
    (any::<bool>(), 0..=5_u8, 0..0xffff_u16, any::<u32>(), addresses).prop_map(
        |(returns, hop_limit, bucket, generation, addresses)| RouteOption {
            returns,
            hop_limit,
            bucket: Some(bucket),
            generation,
            addresses: addresses.into_iter().map(address).collect(),
        },
    )
}

/// What a number may be off by: as a retransmission, as new data, as another
/// connection's. The far ones are outside of every window.
fn difference() -> impl Strategy<Value = u32> {
    let differences = [0, 0, 0, 1, 1000, 1_u32.wrapping_neg(), 1000_u32.wrapping_neg(), 1 << 31];
    let far = [(1 << 30) + 5, 3 << 29];
    prop::sample::select([&differences[..], &far].concat())
}

fn packets() -> impl Strategy<Value = (usize, Packet)> {
    let numbers = (difference(), difference(), prop::sample::select(&FLAGS[..]), 0..40_usize);
    let outer = (prop::bool::ANY, any::<u8>(), other_option(), other_option(), 0..9_usize);
    (0..2 * STATES.len(), route(), numbers, outer).prop_map(
        |(which, route, (sequence, acknowledged, flags, data), outer)| {
            let (is_v4, traffic_class, before, after, padding) = outer;
            let segment = Segment { ports: (0, 0), flags, sequence, acknowledged, data };
            let outer = if is_v4 { V4 } else { V6 };
            let packet = Packet {
                outer,
                traffic_class,
                before,
                after,
                route,
                inner: V4,
                segment,
                datagram: None,
                padding,
            };
            (which, packet)
        },
    )
}

#[test]
fn packets_go_where_the_model_has_them() {
    with_sockets("packets_go_where_the_model_has_them", |program, sockets| {
        let config =
            ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(5000) };
        let mut seen = std::collections::BTreeMap::new();
        let seen_cell = std::cell::RefCell::new(&mut seen);
        TestRunner::new(config)
            .run(&packets(), |(which, mut packet)| {
                let connection = &sockets.connections[which];
                packet.inner = connection.family;
                packet.segment.ports = connection.ports();
                let Segment { sequence, acknowledged, .. } = packet.segment;
                packet.segment.sequence = connection.sequence.wrapping_add(sequence);
                packet.segment.acknowledged = connection.acknowledged.wrapping_add(acknowledged);
                let outcome = model(&packet, connection).2;
                *seen_cell.borrow_mut().entry(outcome).or_insert(0) += 1;
                check(program, &packet, connection);
                Ok(())
            })
            .unwrap();
        let outcomes = [
            "geneve",
            "no_socket",
            "other_handshake",
            "other_time_wait",
            "other_connection",
            "hop_limit",
            "not_agent",
            "no_neighbour",
            "too_big",
        ];
        assert!(outcomes.iter().all(|outcome| seen.contains_key(outcome)), "{seen:?}");
    });
}

fn connection(sockets: &Sockets, family: Family, state: State) -> Connection {
    let found = |c: &&Connection| c.family == family && c.state == state;
    *sockets.connections.iter().chain(&sockets.unmodelled).find(found).unwrap()
}

/// The cases that the rules are there for, each by its own name.
#[test]
fn only_what_is_right_to_be_here_stays() {
    with_sockets("only_what_is_right_to_be_here_stays", |program, sockets| {
        for family in [V4, V6] {
            let outcome = |state, change: fn(&mut Segment)| {
                let mut packet = Packet::of(&connection(sockets, family, state), &[REACHED[0]]);
                change(&mut packet.segment);
                program.run(&packet.frame()).2
            };
            assert_eq!(outcome(Established, |_| ()), "geneve", "a connection of ours");
            let moved = |s: &mut Segment, sequence, acknowledged| {
                s.sequence = s.sequence.wrapping_add(sequence);
                s.acknowledged = s.acknowledged.wrapping_add(acknowledged);
            };
            // Keepalives, old duplicates, a window ahead, and what one side has lost count of.
            for (sequence, acknowledged) in
                [(!0, 0), (!99_999, !9_999), (900_000, 0), (1 << 30, 5), (5, 1 << 30)]
            {
                let mut packet =
                    Packet::of(&connection(sockets, family, Established), &[REACHED[0]]);
                moved(&mut packet.segment, sequence, acknowledged);
                assert_eq!(program.run(&packet.frame()).2, "geneve", "{sequence} {acknowledged}");
            }
            // A client that vanished uses its port again, to another backend.
            assert_eq!(
                outcome(Established, |s| {
                    s.sequence = s.sequence.wrapping_add(1 << 30);
                    s.acknowledged = s.acknowledged.wrapping_sub(1 << 30);
                }),
                "other_connection"
            );
            assert_eq!(
                outcome(Established, |s| {
                    (s.flags, s.sequence) = (RST, s.sequence.wrapping_add(1 << 30));
                }),
                "other_connection"
            );
            assert_eq!(outcome(Established, |s| s.flags = RST), "geneve");
            // As far ahead as a server with a large buffer may have announced.
            for (sequence, expected) in [(32 << 20, "geneve"), (1 << 30, "other_connection")] {
                let mut packet = Packet::of(&connection(sockets, family, Wide), &[REACHED[0]]);
                moved(&mut packet.segment, sequence, 1 << 30);
                assert_eq!(program.run(&packet.frame()).2, expected, "{sequence}");
            }
            // Its handshake has not ended, so nothing says yet which segments are its own.
            for change in [|_: &mut Segment| (), |s: &mut Segment| s.flags = RST] {
                assert_eq!(outcome(FastOpen, change), "geneve");
            }
            assert_eq!(outcome(Unknown, |_| ()), "no_socket", "one of another backend");
            assert_eq!(outcome(Unknown, |s| s.flags = SYN), "geneve", "a new one");
            assert_eq!(outcome(Unknown, |s| s.flags = RST), "no_socket");
            assert_eq!(outcome(Handshake, |_| ()), "geneve", "the end of a handshake");
            // A SYN was forged, or came late, for a connection that lives elsewhere.
            assert_eq!(
                outcome(Handshake, |s| s.acknowledged = s.acknowledged.wrapping_add(5)),
                "other_handshake"
            );
            assert_eq!(outcome(Handshake, |s| s.flags = RST), "geneve", "RST without ACK");
            assert_eq!(outcome(Cookie, |_| ()), "geneve", "a SYN cookie of ours");
            assert_eq!(
                outcome(Cookie, |s| s.acknowledged = s.acknowledged.wrapping_add(5)),
                "no_socket"
            );
            // Its last segment, sent again.
            assert_eq!(
                outcome(Closed, |s| (s.flags, s.sequence) = (0x11, s.sequence.wrapping_sub(1))),
                "geneve"
            );
            // The client uses its port again, to another backend.
            assert_eq!(
                outcome(Closed, |s| s.sequence = s.sequence.wrapping_add(1 << 29)),
                "other_time_wait"
            );
        }
    });
}

/// An ICMP error about a segment of the backend's with this sequence number.
fn icmp_error(connection: &Connection, sequence: u32) -> Vec<u8> {
    let (client, vip) = connection.ports();
    let mut quoted = [vip.to_be_bytes(), client.to_be_bytes()].concat();
    quoted.extend(sequence.to_be_bytes());
    // From the VIP to the client: the helper's packet, with both swapped.
    let mut quoted = ip(connection.family, 6, 0, 77, &quoted);
    let (at, bytes) = if connection.family == V4 { (12, 4) } else { (8, 16) };
    let (source, destination) = quoted[at..at + 2 * bytes].split_at_mut(bytes);
    source.swap_with_slice(destination);
    let (protocol, kind) = if connection.family == V4 { (1, 3) } else { (58, 2) };
    ip(connection.family, protocol, 0, 78, &[&[kind, 4, 0, 0, 0, 0, 5, 0][..], &quoted].concat())
}

/// An error belongs to the connection whose segment it quotes; any router on
/// the way may have sent it.
#[test]
fn icmp_errors_go_where_the_connection_is() {
    with_sockets("icmp_errors_go_where_the_connection_is", |program, sockets| {
        for connection in &sockets.connections {
            let options = Packet::of(connection, &[REACHED[0]]).route.emit();
            let outcome = |inner: &[u8]| {
                let mut header = geneve::emit(connection.family.ether_type());
                geneve::announce_critical_options(&mut header, options.len());
                let payload = [&header[..], &options, inner].concat();
                program.run(&carrying(17, &datagram(geneve::PORT, &payload))).2
            };
            // Its last segment, and one that it never sent.
            let last = connection.acknowledged.wrapping_sub(1);
            let (of_last, of_none) = match connection.state {
                Established | Wide | FastOpen => ("geneve", "geneve"),
                Handshake => ("geneve", "other_handshake"),
                Closed => ("geneve", "other_time_wait"),
                Cookie | Unknown => ("no_socket", "no_socket"),
            };
            let at = format!("{connection:?}");
            let error = icmp_error(connection, last);
            assert_eq!(outcome(&error), of_last, "{at}");
            assert_eq!(outcome(&icmp_error(connection, last.wrapping_add(9))), of_none, "{at}");
            if connection.state == Established {
                let error = icmp_error(connection, last.wrapping_add(1 << 30));
                assert_eq!(outcome(&error), "other_connection", "{at}");
            }
            // What names no connection is taken here: an echo request, a quotation
            // that is cut off. A quoted datagram goes where its flow is.
            let (icmp, protocol) = if connection.family == V4 { (20, 37) } else { (40, 54) };
            let mut echo = error.clone();
            echo[icmp] = if connection.family == V4 { 8 } else { 128 };
            let mut of_datagram = error.clone();
            of_datagram[protocol] = 17;
            for other in [&echo[..], &error[..error.len() - 1]] {
                assert_eq!(outcome(other), "geneve", "{at}");
            }
            assert_eq!(outcome(&of_datagram), "no_flow", "{at}");
        }
    });
}

/// A geneve packet from a load balancer with these options around a segment of
/// no connection.
pub fn with_options(is_critical: bool, options: &[u8], inner: &[u8]) -> Vec<u8> {
    let mut header = geneve::emit(EtherType::IPV4);
    geneve::announce_critical_options(&mut header, options.len());
    if !is_critical {
        header[1] = 0;
    }
    carrying(17, &datagram(geneve::PORT, &[&header[..], options, inner].concat()))
}

#[test]
fn malformed_options_are_dropped_by_name() {
    let Some(program) = program_or_skip("malformed_options_are_dropped_by_name") else { return };
    let inner = inner(V4, 0);
    let good = RouteOption {
        returns: false,
        hop_limit: 4,
        bucket: None,
        generation: 1,
        addresses: [address("10.1.0.12"), address("10.1.0.13")].into_iter().collect(),
    }
    .emit();
    let changed = |at: usize, byte: u8| {
        let mut option = good.to_vec();
        option[at] = byte;
        option
    };
    let critical = |options: &[u8]| with_options(true, options, &inner);
    let cases = [
        ("not_agent", critical(&good)),
        ("geneve_header", with_options(false, &good, &inner)),
        ("geneve_header", critical(&[1, 1, 0x01, 0])),
        ("geneve_header", critical(&[&good[..], &[1, 1, 1, 5]].concat())),
        ("geneve_option", critical(&changed(2, 0x83))),
        ("geneve_option", critical(&changed(0, 0xfe))),
        ("geneve_option", critical(&[&good[..], &[1, 1, 0x80, 0]].concat())),
        ("route_option", critical(&[&good[..], &good].concat())),
        ("route_option", critical(&changed(4, 0x01))),
        ("route_option", critical(&changed(4, 0x03))),
        ("route_option", critical(&changed(4, 0x82))),
        ("route_option", critical(&changed(4, 0x06))),
        ("route_option", critical(&changed(4, 0x22))),
        ("route_option", critical(&changed(3, 5))),
        ("route_option", critical(&[0xff, 0x47, 0x81, 1, 0, 4, 0, 0])),
        ("geneve", critical(&[0xff, 0x47, 0x81, 2, 0, 4, 0, 0, 0, 0, 0, 0])),
    ];
    for (index, (expected, frame)) in cases.iter().enumerate() {
        assert_eq!(program.run(frame).2, *expected, "case {index}");
    }
}

/// What cannot be told from the packet alone is not guessed.
#[test]
fn segments_that_cannot_be_read_are_dropped_by_name() {
    let test = "segments_that_cannot_be_read_are_dropped_by_name";
    let Some(program) = program_or_skip(test) else { return };
    let unknown =
        Connection { family: V4, state: Unknown, client_port: 9, sequence: 1, acknowledged: 1 };
    let packet = Packet::of(&unknown, &["10.1.0.12"]);
    let whole = packet.inner(0);
    let options = packet.route.emit();
    // The header's checksum is the kernel's to verify.
    let changed = |at: usize, byte: u8| {
        let mut inner = whole.clone();
        inner[at] = byte;
        with_options(true, &options, &inner)
    };
    let cases = [
        ("not_agent", with_options(true, &options, &whole)),
        // A later fragment, before and behind its first one.
        ("inner_fragment", changed(7, 0x01)),
        ("not_agent", changed(6, 0x20)),
        ("not_agent", changed(7, 0x01)),
        ("inner_header", changed(32, 0x40)),
        ("inner_header", changed(32, 0x60)),
        ("inner_header", changed(3, 19)),
        ("inner_header", with_options(true, &options, &whole[..39])),
        ("not_agent", changed(9, 17)),
        ("geneve", changed(9, 1)),
    ];
    for (index, (expected, frame)) in cases.iter().enumerate() {
        assert_eq!(program.run(frame).2, *expected, "case {index}");
    }
}

/// Behind extension headers a segment is found, too.
#[test]
fn a_segment_behind_extension_headers_is_looked_up() {
    with_sockets("a_segment_behind_extension_headers_is_looked_up", |program, sockets| {
        for (state, expected) in [(Established, "geneve"), (Unknown, "no_socket")] {
            let packet = Packet::of(&connection(sockets, V6, state), &[REACHED[0]]);
            let segment = packet.segment.bytes();
            for extensions in 0..=4_u8 {
                // Destination options: next header, length, PadN.
                let headers: Vec<u8> = (1..=extensions)
                    .flat_map(|n| [if n == extensions { 6 } else { 60 }, 0, 1, 4, 0, 0, 0, 0])
                    .collect();
                let first = if extensions == 0 { 6 } else { 60 };
                let inner = ip(V6, first, 0, 77, &[headers, segment.clone()].concat());
                let mut header = geneve::emit(EtherType::IPV6);
                let options = packet.route.emit();
                geneve::announce_critical_options(&mut header, options.len());
                let payload = [&header[..], &options, &inner].concat();
                let outcome = program.run(&carrying(17, &datagram(geneve::PORT, &payload))).2;
                let expected = if extensions == 4 { "inner_header" } else { expected };
                assert_eq!(outcome, expected, "{extensions} of {state:?}");
            }
        }
    });
}

/// A join is a join for every rule, also behind a destination option: of no connection here it
/// goes on; of one here it is taken, with what its tunnel says.
#[test]
fn a_join_behind_a_destination_option_is_one() {
    if program_or_skip("a_join_behind_a_destination_option_is_one").is_none() {
        return;
    }
    let config = format!("{CONFIG}mptcp: [{{address: '2001:db8::c8', port: 443}}]\n");
    let mut program = program_of(&Config::parse("config", &config).unwrap());
    let mut tokens: HashMap<MapData, [u8; 4], u32> =
        ebpf::table(&mut program.object, "tokens").unwrap();
    let openings: HashMap<MapData, Record<Flow>, Record<Opening>> =
        ebpf::table(&mut program.object, "openings").unwrap();
    for (number, is_behind) in [(1, false), (2, true)] {
        let token = [1, 2, 3, number];
        let join = [&[30, 12, 0x10, 0][..], &token, &[0; 4]].concat();
        let ports = [0x9c, number, 1, 0xbb];
        let mut segment = [&ports[..], &[0; 8], &[0x80, SYN], &[0; 6], &join].concat();
        if is_behind {
            segment.splice(0..0, [6, 0, 1, 4, 0, 0, 0, 0]);
        }
        let inner = ip(V6, if is_behind { 60 } else { 6 }, 0, 77, &segment);
        let route = RouteOption {
            returns: false,
            hop_limit: 4,
            bucket: Some(7),
            generation: 1,
            addresses: [address(REACHED[0])].into_iter().collect(),
        };
        let opening = MultipathOption { key: None, bucket: 7, address: address(REACHED[0]) };
        let options = [&route.emit()[..], &opening.emit()].concat();
        let mut header = geneve::emit(EtherType::IPV6);
        geneve::announce_critical_options(&mut header, options.len());
        let tunnel = [&header[..], &options, &inner].concat();
        let frame = carrying(17, &datagram(geneve::PORT, &tunnel));
        assert_eq!(program.run(&frame).2, "no_token", "{is_behind}");
        tokens.insert(token, 1, 0).unwrap();
        assert_eq!(program.run(&frame).2, "geneve", "{is_behind}");
        assert_eq!(openings.keys().count(), usize::from(number), "{is_behind}");
    }
}
