//! Tests the program itself at each place where it can be attached (PLACE): the kernel runs it
//! on our frames (BPF_PROG_TEST_RUN), and the tests check its output and counts.

use std::io::{self, Write};
use std::ops::{Deref, DerefMut};

use aya::programs::{TestRun, TestRunOptions};
use proptest::prelude::*;
use wire::tunnel::{geneve, gre, gue};
use wire::{EtherType, MacAddress, Protocol, ethernet, ipv4, ipv6, udp};

use super::*;
use crate::outcome::{Kind, OUTCOMES};

#[path = "../../../../ebpf/every_compiler.rs"]
mod every_compiler;
mod flows;
mod onward;
mod options;
mod records;
mod responses;
mod sockets;
mod timestamps;

/// This host, and the VIPs on it.
const OWN: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);
const OWN_ADDRESSES: [&str; 2] = ["10.0.0.200", "2001:db8::c8"];
const SOURCE: u8 = 1;
const UNKNOWN_SOURCE: u8 = 99;

/// Loading a program needs root; a test that is skipped says so by name, past
/// the harness's capture.
fn program_or_skip(test: &str) -> Option<Program> {
    if !rustix::process::geteuid().is_root() {
        let line = format!("SKIPPED {test}: needs root to load a BPF program\n");
        io::stderr().write_all(line.as_bytes()).unwrap();
        return None;
    }
    let mut program = Program::of_host(&[]);
    let config = "{interface: eth0, load_balancers: [10.0.0.1, 2001:db8::1], vips: [10.0.0.200, 2001:db8::c8]}";
    program.set(&Config::parse("config", config).unwrap()).unwrap();
    Some(program)
}

/// The program at this place.
struct Program(super::Program);

impl Deref for Program {
    type Target = super::Program;

    fn deref(&self) -> &super::Program {
        &self.0
    }
}

impl DerefMut for Program {
    fn deref_mut(&mut self) -> &mut super::Program {
        &mut self.0
    }
}

impl Program {
    fn new() -> Program {
        Program(super::Program::load(PLACE, None).unwrap())
    }

    /// Loaded, on a host that is addressed as the frames of load balancers are here, and
    /// as that agent.
    fn of_host(agent: &[IpAddr]) -> Program {
        let mut program = Program::new();
        let addresses = OWN_ADDRESSES.iter().map(|text| text.parse().unwrap());
        let addresses: Vec<IpAddr> = addresses.chain(agent.iter().copied()).collect();
        program.own().unwrap().set(&addresses, &[OWN.0, onward::NEXT_MAC]).unwrap();
        program
    }

    /// What the program makes of a frame: action, frame, outcome. Exactly one
    /// outcome is counted for each frame.
    fn run(&self, frame: &[u8]) -> (u32, Vec<u8>, &'static str) {
        let before = self.counters.read().unwrap();
        let (action, out) = self.test_run(PROGRAM, frame);
        let after = self.counters.read().unwrap();
        let grown: Vec<usize> =
            (0..after.len()).filter(|&index| after[index] > before[index]).collect();
        assert_eq!(grown.len(), 1, "one outcome for each frame");
        assert_eq!(after[grown[0]], before[grown[0]] + 1);
        (action, out, OUTCOMES[grown[0]].name)
    }

    /// What a program of the object makes of a frame: its verdict, and the frame.
    fn test_run(&self, name: &str, frame: &[u8]) -> (u32, Vec<u8>) {
        let mut out = vec![0; frame.len() + 64];
        let options = TestRunOptions {
            data_in: Some(frame),
            data_out: Some(&mut out),
            ..TestRunOptions::new()
        };
        let result = match self.object.program(name) {
            Some(aya::programs::Program::Xdp(program)) => program.test_run(options),
            Some(aya::programs::Program::SchedClassifier(program)) => program.test_run(options),
            _ => panic!("no program"),
        };
        let result = result.unwrap();
        out.truncate(result.data_size_out as usize);
        (result.return_value, out)
    }

    /// What a program of traffic control makes of a frame.
    pub fn run_classifier(&self, name: &str, frame: &[u8]) -> Vec<u8> {
        let (verdict, out) = self.test_run(name, frame);
        assert_eq!(verdict as i32, UNSPECIFIED);
        assert_eq!(out.len(), frame.len());
        out
    }

    fn outcome(&self, frame: &[u8]) -> &'static str {
        let (action, _, outcome) = self.run(frame);
        let kind = OUTCOMES.iter().find(|known| known.name == outcome).unwrap().kind;
        assert_eq!(action, if kind == Kind::Dropped { DROP } else { PASS }, "{outcome}");
        outcome
    }
}

#[test]
fn every_compilers_programs_are_loaded() {
    if program_or_skip("every_compilers_programs_are_loaded").is_some() {
        every_compiler::load_with_every_compiler(OBJECT, |bytes| ebpf::load(bytes).unwrap());
        every_compiler::load_with_every_compiler("pass", |bytes| ebpf::load(bytes).unwrap());
    }
}

/// Frames that programs of traffic control leave alone go to those behind them.
const UNSPECIFIED: i32 = -1;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Family {
    V4,
    V6,
}
use Family::{V4, V6};

const FAMILIES: [(Family, Family); 4] = [(V4, V4), (V4, V6), (V6, V4), (V6, V6)];
const TUNNELS: [&str; 4] = ["gre", "ipip", "gue", "geneve"];

impl Family {
    fn ether_type(self) -> EtherType {
        if self == V4 { EtherType::IPV4 } else { EtherType::IPV6 }
    }

    /// As the protocol number of an IP packet inside.
    fn protocol(self) -> u8 {
        if self == V4 { 4 } else { 41 }
    }
}

/// An IP packet around a payload; the last byte of its source is given.
fn ip(family: Family, protocol: u8, traffic_class: u8, source: u8, payload: &[u8]) -> Vec<u8> {
    let protocol = Protocol(protocol);
    let header = match family {
        V4 => ipv4::Emit {
            packet_bytes: payload.len() as u16 + 20,
            traffic_class,
            id: 7,
            flags: 0x4000,
            ttl: 64,
            protocol,
            source: u32::from_be_bytes([10, 0, 0, source]),
            destination: u32::from_be_bytes([10, 0, 0, 200]),
        }
        .to_bytes()
        .to_vec(),
        V6 => ipv6::Emit {
            payload_bytes: payload.len() as u16,
            traffic_class,
            flow_label: 0xabcde,
            hop_limit: 64,
            protocol,
            source: u128::from_be_bytes([
                0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, source,
            ]),
            destination: 0x2001_0db8_0000_0000_0000_0000_0000_00c8,
        }
        .to_bytes()
        .to_vec(),
    };
    [header, payload.to_vec()].concat()
}

fn frame(ether_type: EtherType, packet: &[u8]) -> Vec<u8> {
    let header = ethernet::emit(MacAddress([2, 0, 0, 0, 0, 1]), OWN, ether_type);
    [&header[..], packet].concat()
}

/// A client's packet, as the load balancer received it.
fn inner(family: Family, ecn: u8) -> Vec<u8> {
    ip(family, 17, 0xb8 | ecn, 77, &[0x30, 0x39, 0, 53, 0, 12, 0, 0, 1, 2, 3, 4])
}

/// A packet to an address that is no VIP.
fn other_destination(family: Family) -> Vec<u8> {
    let mut packet = inner(family, 0);
    packet[if family == V4 { 19 } else { 39 }] ^= 1;
    packet
}

fn datagram(port: u16, payload: &[u8]) -> Vec<u8> {
    [&udp::emit(50_000, port, payload.len() as u16 + 8, 0)[..], payload].concat()
}

/// What the outer IP header carries, and its protocol number.
fn encapsulated(tunnel: &str, family: Family, inner: &[u8]) -> (u8, Vec<u8>) {
    let wrapped = |header: &[u8]| [header, inner].concat();
    match tunnel {
        "gre" => {
            (47, wrapped(&gre::Header { recursion: 0, ether_type: family.ether_type() }.to_bytes()))
        }
        "ipip" => (family.protocol(), inner.to_vec()),
        "gue" => (17, datagram(gue::PORT, &wrapped(&gue::emit(Protocol(family.protocol()))))),
        _ => (17, datagram(geneve::PORT, &wrapped(&geneve::emit(family.ether_type())))),
    }
}

/// The frame that a load balancer sends.
fn tunnelled(tunnel: &str, outer: Family, outer_ecn: u8, family: Family, inner: &[u8]) -> Vec<u8> {
    let (protocol, payload) = encapsulated(tunnel, family, inner);
    frame(outer.ether_type(), &ip(outer, protocol, outer_ecn, SOURCE, &payload))
}

/// A frame from a load balancer whose outer header carries these bytes.
fn carrying(protocol: u8, payload: &[u8]) -> Vec<u8> {
    frame(EtherType::IPV4, &ip(V4, protocol, 0, SOURCE, payload))
}

#[test]
fn every_tunnel_is_opened_in_all_four_families() {
    let Some(program) = program_or_skip("every_tunnel_is_opened_in_all_four_families") else {
        return;
    };
    for tunnel in TUNNELS {
        for (outer, family) in FAMILIES {
            let inner = inner(family, 0);
            let (action, out, outcome) = program.run(&tunnelled(tunnel, outer, 0, family, &inner));
            assert_eq!((action, outcome), (PASS, tunnel), "{outer:?} {family:?}");
            assert_eq!(out, frame(family.ether_type(), &inner), "{tunnel} {outer:?} {family:?}");
        }
    }
}

#[test]
fn what_is_for_another_host_stays_the_kernels() {
    let Some(program) = program_or_skip("what_is_for_another_host_stays_the_kernels") else {
        return;
    };
    for tunnel in TUNNELS {
        for (outer, family) in FAMILIES {
            let ours = tunnelled(tunnel, outer, 0, family, &inner(family, 0));
            assert_eq!(program.outcome(&ours), tunnel);
            // The last bytes of MAC and outer destination; a broadcast.
            let destination_at = if outer == V4 { 33 } else { 53 };
            let mut others = [ours.clone(), ours.clone(), ours.clone()];
            others[0][5] ^= 7;
            others[1][..6].fill(0xff);
            others[2][destination_at] ^= 7;
            if outer == V4 {
                others[2][24..26].fill(0);
                let sum = wire::checksum::finish(wire::checksum::sum(&others[2][14..34]));
                others[2][24..26].copy_from_slice(&sum.to_be_bytes());
            }
            for other in others {
                let (action, out, outcome) = program.run(&other);
                assert_eq!((action, outcome), (PASS, "other_host"), "{tunnel} {outer:?}");
                assert_eq!(out, other);
            }
        }
    }
}

/// RFC 6040, figure 4: rows are the inner field, columns the outer one, both
/// in the order Not-ECT, ECT(0), ECT(1), CE; None is a drop.
#[test]
fn congestion_marks_are_kept_as_rfc_6040_says() {
    let Some(program) = program_or_skip("congestion_marks_are_kept_as_rfc_6040_says") else {
        return;
    };
    const NOT: u8 = 0b00;
    const ECT0: u8 = 0b10;
    const ECT1: u8 = 0b01;
    const CE: u8 = 0b11;
    let figure = [
        (NOT, [Some(NOT), Some(NOT), Some(NOT), None]),
        (ECT0, [Some(ECT0), Some(ECT0), Some(ECT1), Some(CE)]),
        (ECT1, [Some(ECT1), Some(ECT1), Some(ECT1), Some(CE)]),
        (CE, [Some(CE), Some(CE), Some(CE), Some(CE)]),
    ];
    for (inner_ecn, row) in figure {
        for (outer_ecn, expected) in [NOT, ECT0, ECT1, CE].into_iter().zip(row) {
            for (outer, family) in FAMILIES {
                let frame_in =
                    tunnelled("gre", outer, outer_ecn, family, &inner(family, inner_ecn));
                let (action, out, outcome) = program.run(&frame_in);
                let at =
                    format!("outer {outer:?} {outer_ecn:02b}, inner {family:?} {inner_ecn:02b}");
                match expected {
                    None => assert_eq!((action, outcome), (DROP, "ecn"), "{at}"),
                    // Emitting sets the checksum anew: it must be right.
                    Some(ecn) => {
                        assert_eq!(out, frame(family.ether_type(), &inner(family, ecn)), "{at}")
                    }
                }
            }
        }
    }
}

#[test]
fn what_is_no_tunnel_of_ours_is_left_alone() {
    let Some(program) = program_or_skip("what_is_no_tunnel_of_ours_is_left_alone") else { return };
    let gre = encapsulated("gre", V4, &inner(V4, 0)).1;
    let tagged = [&[0, 5, 8, 0][..], &ip(V4, 47, 0, SOURCE, &gre)].concat();
    let mut udp_fragment = carrying(17, &datagram(gue::PORT, b"first part"));
    udp_fragment[20] = 0x20;
    let cases = [
        ("no_tunnel", frame(EtherType::IPV4, &inner(V4, 0))),
        ("no_tunnel", frame(EtherType::IPV6, &inner(V6, 0))),
        ("no_tunnel", frame(EtherType(0x0806), &[0; 28])),
        ("no_tunnel", frame(EtherType(0x8100), &tagged)),
        ("no_tunnel", frame(EtherType::IPV4, &[0x45; 10])),
        ("no_tunnel", carrying(17, &datagram(53, b"an answer"))),
        ("no_tunnel", carrying(17, b"short")),
        ("no_tunnel", udp_fragment),
        ("no_tunnel", carrying(6, &[0; 20])),
        ("unknown_source", frame(EtherType::IPV4, &ip(V4, 47, 0, UNKNOWN_SOURCE, &gre))),
        ("unknown_source", frame(EtherType::IPV6, &ip(V6, 47, 0, UNKNOWN_SOURCE, &gre))),
        (
            "unknown_source",
            frame(
                EtherType::IPV4,
                &ip(V4, 17, 0, UNKNOWN_SOURCE, &datagram(geneve::PORT, b"else's")),
            ),
        ),
    ];
    let run = cases.iter().filter(|(_, frame)| frame.len() >= FRAME_BYTES_MIN);
    for (index, (expected, frame)) in run.enumerate() {
        let (action, out, outcome) = program.run(frame);
        assert_eq!((action, outcome), (PASS, *expected), "case {index}");
        assert_eq!(out, *frame, "case {index}: changed");
    }
}

#[test]
fn what_is_ours_and_wrong_is_dropped_by_name() {
    let Some(program) = program_or_skip("what_is_ours_and_wrong_is_dropped_by_name") else {
        return;
    };
    let inner_v4 = inner(V4, 0);
    let gre = |flags: u16, ether_type: u16| {
        carrying(47, &[&flags.to_be_bytes(), &ether_type.to_be_bytes(), &inner_v4[..]].concat())
    };
    let gue =
        |header: [u8; 4]| carrying(17, &datagram(gue::PORT, &[&header, &inner_v4[..]].concat()));
    let geneve =
        |header: [u8; 8]| carrying(17, &datagram(geneve::PORT, &[&header, &inner_v4[..]].concat()));
    let changed = |at: usize, byte: u8| {
        let mut frame = gre(0, 0x0800);
        frame[at] = byte;
        frame
    };
    let cases = [
        ("gre_flags", gre(0x8000, 0x0800)),
        ("gre_flags", gre(0x2000, 0x0800)),
        ("gre_flags", gre(0x1000, 0x0800)),
        ("gre_flags", gre(0x0001, 0x0800)),
        ("gre_flags", gre(0x0800, 0x0800)),
        ("gre_flags", carrying(47, &[0, 0])),
        ("gre_recursion", gre(0x0100, 0x0800)),
        ("gre_recursion", gre(0x0200, 0x0800)),
        ("inner_protocol", gre(0, 0x6558)),
        ("inner_protocol", gue([0, 6, 0, 0])),
        ("inner_protocol", geneve([0, 0, 0x65, 0x58, 0, 0, 0, 0])),
        ("inner_header", gre(0, 0x86dd)),
        ("inner_header", carrying(4, &inner_v4[..19])),
        ("inner_header", carrying(41, &inner(V6, 0)[..39])),
        ("inner_header", carrying(4, &[0x44; 20])),
        ("not_vip", carrying(4, &other_destination(V4))),
        ("not_vip", carrying(41, &other_destination(V6))),
        ("gue_header", gue([0x40, 4, 0, 0])),
        ("gue_header", gue([0x20, 4, 0, 0])),
        ("gue_header", gue([0x01, 4, 0, 0])),
        ("gue_header", gue([0, 4, 0x80, 0])),
        ("gue_header", carrying(17, &datagram(gue::PORT, &[0; 3]))),
        ("geneve_header", geneve([0x40, 0, 8, 0, 0, 0, 0, 0])),
        ("geneve_header", geneve([0, 0x80, 8, 0, 0, 0, 0, 0])),
        ("geneve_header", geneve([0, 0x40, 8, 0, 0, 0, 0, 0])),
        ("geneve_header", geneve([0x3f, 0, 8, 0, 0, 0, 0, 0])),
        ("geneve_header", carrying(17, &datagram(geneve::PORT, &[0; 7]))),
        ("outer_fragment", changed(20, 0x20)),
        ("outer_fragment", changed(21, 0x01)),
        ("outer_header", changed(14, 0x46)),
        ("outer_header", changed(24, 0xff)),
    ];
    for (index, (expected, frame)) in cases.iter().enumerate() {
        assert_eq!(program.outcome(frame), *expected, "case {index}");
    }
}

#[test]
fn unknown_options_of_geneve_are_passed_over() {
    let Some(program) = program_or_skip("unknown_options_of_geneve_are_passed_over") else {
        return;
    };
    let inner = inner(V6, 0);
    for words in 0..=63_u8 {
        for option_words in 1..=32_usize {
            // The last one is as long as there is room.
            let mut options = vec![0xee; usize::from(words) * 4];
            for option in options.chunks_mut(option_words * 4) {
                let body = option.len() - 4;
                option[..4].copy_from_slice(&geneve::emit_option_header(0xeeee, 0x6e, body));
            }
            let header = [words, 0, 0x86, 0xdd, 0, 0, 9, 0];
            let payload = datagram(geneve::PORT, &[&header[..], &options, &inner].concat());
            let (_, out, outcome) = program.run(&carrying(17, &payload));
            assert_eq!(outcome, "geneve", "{words} words, options of {option_words}");
            assert_eq!(out, frame(EtherType::IPV6, &inner), "{words} words");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Cut anywhere and with any bytes changed, a frame has one outcome, and
    /// one that is not taken out of a tunnel stays as it was.
    #[test]
    fn damaged_frames_have_one_outcome(
        tunnel in prop::sample::select(&TUNNELS[..]),
        families in prop::sample::select(&FAMILIES[..]),
        cut in FRAME_BYTES_MIN..120_usize,
        changes in prop::collection::vec((0..80_usize, any::<u8>()), 0..4),
    ) {
        thread_local!(static PROGRAM: Option<Program> = program_or_skip("damaged_frames_have_one_outcome"));
        let mut damaged = tunnelled(tunnel, families.0, 3, families.1, &inner(families.1, 2));
        damaged.truncate(cut);
        for (at, byte) in changes {
            if let Some(place) = damaged.get_mut(at) {
                *place = byte;
            }
        }
        PROGRAM.with(|program| {
            let Some(program) = program else { return };
            let (action, out, outcome) = program.run(&damaged);
            let kind = OUTCOMES.iter().find(|known| known.name == outcome).unwrap().kind;
            assert_eq!(action, if kind == Kind::Dropped { DROP } else { PASS });
            if kind == Kind::Passed {
                assert_eq!(out, damaged);
            }
        });
    }
}
