//! The programs for timestamps against a model: single segments with any options and flags, and
//! connections through hours of silence, outages and wraps of every clock. The model knows what
//! the kernel sent; it computes no offsets.

use aya::maps::{HashMap, MapData};
use wire::tcp_options::Version;
use wire::tunnel::multipath_option::MultipathOption;
use wire::{FlowKey, checksum};
use zerocopy::FromZeros;

use super::sockets::{namespace, vip};
use super::*;
use crate::records::{Flow, Opening};
use crate::timestamps::{self, Clocks};

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;
const PORT: u16 = 443;

/// Bits of the flows here.
const BITS: u16 = 0x1abc & 0x1fff;

/// With both VIPs' service.
struct Clock {
    program: Program,
    openings: HashMap<MapData, Record<Flow>, Record<Opening>>,
    clocks: Clocks,
}

/// A flow of this test program, of a port that no other has.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    pub family: Family,
    pub client_port: u16,
    pub vip_port: u16,
}

impl Clock {
    fn new(shift: u32) -> Clock {
        let mut program = Program::of_host(&[]);
        timestamps::set_shift(&mut program.object, shift).unwrap();
        let config = format!(
            "{{interface: eth0, load_balancers: [10.0.0.1], vips: [10.0.0.200, '2001:db8::c8'],
              mptcp: [{{address: 10.0.0.200, port: {PORT}}}, {{address: '2001:db8::c8', port: {PORT}}}]}}"
        );
        let config = Config::parse("config", &config).unwrap();
        program.set(&config).unwrap();
        let clocks = program.clocks(&config).unwrap();
        let openings = ebpf::table(&mut program.object, "openings").unwrap();
        Clock { program, openings, clocks }
    }

    /// As a SYN does that came with bits.
    fn open(&mut self, ends: &Ends, bits: u16) {
        let opening = Opening { bits, ..Opening::new_zeroed() };
        self.openings.insert(Record(ends.key()), Record(opening), 0).unwrap();
    }

    fn counts(&self) -> [u64; timestamps::OUTCOMES.len()] {
        self.program.counters.timestamps.read().unwrap()
    }

    /// The names of what was counted by the work.
    fn counted<T>(&self, work: impl FnOnce() -> T) -> (T, Vec<&'static str>) {
        let before = self.counts();
        let result = work();
        let grown = self.counts().into_iter().zip(before).zip(timestamps::OUTCOMES);
        (
            result,
            grown
                .flat_map(|((after, before), name)| vec![name; (after - before) as usize])
                .collect(),
        )
    }

    fn sent(&self, ends: &Ends, flags: u8, options: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let before = ends.segment(true, flags, options);
        let after = self.program.run_classifier(OUT_PROGRAM, &before);
        assert_eq!(tcp_sum(ends.family, &after[14..]), 0, "{ends:?} {options:02x?}");
        (before, after)
    }

    fn received(&self, ends: &Ends, flags: u8, options: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let before = ends.segment(false, flags, options);
        let after = self.program.run_classifier(IN_PROGRAM, &before);
        assert_eq!(tcp_sum(ends.family, &after[14..]), 0, "{ends:?} {options:02x?}");
        (before, after)
    }

    /// What the client gets as the server's timestamp.
    fn value_sent(&self, ends: &Ends, flags: u8, value: u32) -> u32 {
        let (_, after) = self.sent(ends, flags, &usual(value, 77));
        u32_at(&after, ends.options_at() + 4)
    }

    /// What the server gets as the client's echo.
    fn echo_received(&self, ends: &Ends, echo: u32) -> u32 {
        let (_, after) = self.received(ends, ACK, &usual(88, echo));
        u32_at(&after, ends.options_at() + 8)
    }
}

impl Ends {
    fn new(family: Family) -> Ends {
        use std::sync::atomic::{AtomicU16, Ordering};
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let client_port = NEXT.fetch_add(1, Ordering::Relaxed);
        Ends { family, client_port, vip_port: PORT }
    }

    fn flow(&self) -> FlowKey {
        let [source, destination] = match self.family {
            V4 => ["10.0.0.77", "10.0.0.200"],
            V6 => ["2001:db8::4d", "2001:db8::c8"],
        }
        .map(|text| wire::ip::address_bits(text.parse().unwrap()));
        FlowKey {
            family: if self.family == V4 { wire::Family::V4 } else { wire::Family::V6 },
            protocol: Protocol::TCP,
            source,
            destination,
            source_port: self.client_port,
            destination_port: self.vip_port,
        }
    }

    fn key(&self) -> Flow {
        crate::flows::flow_of(&self.flow())
    }

    fn tcp_at(&self) -> usize {
        if self.family == V4 { 34 } else { 54 }
    }

    fn options_at(&self) -> usize {
        self.tcp_at() + 20
    }

    /// From the server, or from the client, with a right checksum.
    pub fn segment(&self, is_sent: bool, flags: u8, options: &[u8]) -> Vec<u8> {
        let mut segment = vec![0; 20];
        let (source, destination) = match is_sent {
            true => (self.vip_port, self.client_port),
            false => (self.client_port, self.vip_port),
        };
        segment[..2].copy_from_slice(&source.to_be_bytes());
        segment[2..4].copy_from_slice(&destination.to_be_bytes());
        segment[12..14].copy_from_slice(&[0x50 + (options.len() as u8 / 4 * 16), flags]);
        segment.extend(options);
        segment.extend(b"odd");
        let mut packet = ip(self.family, 6, 0, 77, &segment);
        if is_sent {
            // Exchanging the addresses changes no sum.
            let (at, bytes) = if self.family == V4 { (12, 4) } else { (8, 16) };
            packet[at..at + 2 * bytes].rotate_left(bytes);
        }
        let sum = tcp_sum(self.family, &packet);
        let check = self.tcp_at() - 14 + 16;
        packet[check..check + 2].copy_from_slice(&sum.to_be_bytes());
        frame(self.family.ether_type(), &packet)
    }
}

/// The checksum that makes the segment's sum right; 0 where it is.
fn tcp_sum(family: Family, packet: &[u8]) -> u16 {
    let (addresses, header) = if family == V4 { (12, 20) } else { (8, 40) };
    let bytes = (header - addresses) / 2;
    let (source, rest) = packet[addresses..].split_at(bytes);
    let segment = &packet[header..];
    let sum =
        checksum::pseudo_header(source, &rest[..bytes], 6, segment.len()) + checksum::sum(segment);
    checksum::finish(sum)
}

fn options() -> impl Strategy<Value = Vec<u8>> {
    let one = prop_oneof![
        3 => any::<u16>().prop_map(|mss| [&[2, 4][..], &mss.to_be_bytes()].concat()),
        2 => Just(vec![1]),
        1 => Just(vec![4, 2]),
        1 => Just(vec![3, 3, 7]),
        1 => any::<[u8; 8]>().prop_map(|times| [&[8, 10][..], &times].concat()),
        1 => (any::<u8>(), any::<u8>()).prop_map(|(kind, len)| vec![kind, len]),
        1 => Just(vec![0]),
    ];
    prop::collection::vec(one, 0..6).prop_map(|list| {
        let mut options = list.concat();
        options.truncate(40);
        options.resize(options.len().next_multiple_of(4), 0);
        options
    })
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// As Linux writes them.
fn usual(value: u32, echo: u32) -> Vec<u8> {
    [&[1, 1, 8, 10][..], &value.to_be_bytes(), &echo.to_be_bytes()].concat()
}

/// Where the timestamps are among options, as the first 40 bytes have them; None: there
/// are none, or the options cannot be read up to them.
fn timestamps_at(options: &[u8]) -> Option<usize> {
    let mut at = 0;
    while at + 10 <= options.len() {
        match options[at] {
            0 => return None,
            1 => at += 1,
            8 => return (options[at + 1] == 10).then_some(at),
            _ if options[at + 1] < 2 => return None,
            _ => at += usize::from(options[at + 1]),
        }
    }
    None
}

/// The frame with a word of its option replaced, and the checksum of `after`, which is
/// looked at elsewhere.
fn with_word(ends: &Ends, before: &[u8], at: usize, word: u32, after: &[u8]) -> Vec<u8> {
    let mut expected = before.to_vec();
    let at = ends.options_at() + at;
    expected[at..at + 4].copy_from_slice(&word.to_be_bytes());
    with_checksum(ends, expected, after)
}

fn with_checksum(ends: &Ends, mut expected: Vec<u8>, after: &[u8]) -> Vec<u8> {
    let check = ends.tcp_at() + 16;
    expected[check..check + 2].copy_from_slice(&after[check..check + 2]);
    expected
}

fn clock_or_skip(test: &str) -> Option<Clock> {
    program_or_skip(test).map(|_| Clock::new(timestamps::SHIFT))
}

/// A frame's packet as a fragment, which begins there or later.
fn fragment(family: Family, frame: &[u8], is_first: bool) -> Vec<u8> {
    let mut fragment = frame.to_vec();
    match family {
        V4 => fragment[20..22].copy_from_slice(if is_first { &[0x20, 0] } else { &[0, 16] }),
        V6 => {
            let field = if is_first { [0, 1] } else { [0, 128] };
            let header = [6, 0, field[0], field[1], 0, 0, 0, 7];
            fragment[19] += 8; // of the length
            fragment[20] = 44;
            fragment.splice(54..54, header);
        }
    }
    fragment
}

#[test]
fn the_echo_of_a_first_fragment_is_restored_and_a_later_one_is_not_read() {
    let test = "the_echo_of_a_first_fragment_is_restored_and_a_later_one_is_not_read";
    let Some(mut clock) = clock_or_skip(test) else { return };
    for family in [V4, V6] {
        let ends = Ends::new(family);
        clock.open(&ends, BITS);
        let echo = clock.value_sent(&ends, SYN | ACK, 1000);
        let (before, after) = clock.received(&ends, ACK, &usual(88, echo));
        assert_ne!(after, before);
        for (is_first, expected) in [(true, &after), (false, &before)] {
            let sent = fragment(family, &before, is_first);
            let got = clock.program.run_classifier(IN_PROGRAM, &sent);
            assert_eq!(got, fragment(family, expected, is_first), "{family:?} {is_first}");
        }
    }
}

/// Of a handshake that a flood displaced the listener gets what the kernel sent, whole: from
/// other upper bits it takes a first round trip of minutes.
#[test]
fn the_echo_of_a_displaced_handshake_is_the_kernels() {
    let test = "the_echo_of_a_displaced_handshake_is_the_kernels";
    if program_or_skip(test).is_none() {
        return;
    }
    // (SYN/ACKs' values, the one that is echoed)
    let cases: [(&[u32], usize); 5] = [
        (&[5], 0),
        (&[0x1234_5678], 0),
        (&[u32::MAX - 1, 998], 0),
        (&[u32::MAX - 1, 998], 1),
        (&[0x7ff_ffff, 0x800_03e6, 0x800_0bb6], 1),
    ];
    namespace().inside(|| {
        let mut clock = Clock::new(timestamps::SHIFT);
        let mut handshakes: HashMap<MapData, Record<Flow>, [u8; 12]> =
            ebpf::table(&mut clock.program.object, "handshakes").unwrap();
        for family in [V4, V6] {
            let _listener = std::net::TcpListener::bind((vip(family), PORT)).unwrap();
            for (values, echoed) in cases {
                let ends = Ends::new(family);
                clock.open(&ends, BITS);
                let mut sent = Vec::new();
                for value in values {
                    sent.push(clock.value_sent(&ends, SYN | ACK, *value));
                    handshakes.remove(&Record(ends.key())).unwrap();
                }
                let (echo, counted) = clock.counted(|| clock.echo_received(&ends, sent[echoed]));
                assert_eq!(echo, values[echoed], "{family:?} {values:x?}");
                assert_eq!(counted, ["cookie_echo"]);
            }
        }
    });
}

/// So many SYN/ACKs after it that nothing is noted of it: its cookie is in the lower bits.
#[test]
fn of_a_handshake_that_is_forgotten_the_echo_has_its_cookies_bits() {
    let test = "of_a_handshake_that_is_forgotten_the_echo_has_its_cookies_bits";
    if program_or_skip(test).is_none() {
        return;
    }
    namespace().inside(|| {
        let clock = Clock::new(timestamps::SHIFT);
        for family in [V4, V6] {
            let _listener = std::net::TcpListener::bind((vip(family), PORT)).unwrap();
            let echo = 0x1234_5678 << timestamps::SHIFT | u32::from(BITS);
            let echo = clock.echo_received(&Ends::new(family), echo);
            assert_eq!(echo, 0x1234_5678 & 0x7_ffff);
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(3000) })]

    #[test]
    fn any_segment_becomes_what_the_model_has(
        options_of_first in options(),
        options_of_echo in options(),
        flags in prop::sample::select(vec![ACK, ACK | FIN, ACK | RST, RST, SYN, SYN | ACK, FIN]),
        is_service in prop::bool::weighted(0.9),
        has_bits in prop::bool::weighted(0.9),
        bits in 0u16..8192,
        family in prop::sample::select(vec![V4, V6]),
    ) {
        // A SYN/ACK loses an MP_CAPABLE that has no load balancer's key (handshake.h).
        prop_assume!(!options_of_first.contains(&30));
        thread_local!(static CLOCK: std::cell::RefCell<Option<Clock>> =
            std::cell::RefCell::new(clock_or_skip("any_segment_becomes_what_the_model_has")));
        CLOCK.with_borrow_mut(|clock| {
            let Some(clock) = clock else { return };
            let mut ends = Ends::new(family);
            if !is_service {
                ends.vip_port = 444;
            }
            if has_bits {
                clock.open(&ends, bits);
            }
            // A SYN/ACK.
            let at = timestamps_at(&options_of_first).filter(|_| is_service);
            let (before, after) = clock.sent(&ends, SYN | ACK, &options_of_first);
            let Some((at, value)) = at.filter(|_| has_bits).map(|at| (at, u32_at(&options_of_first, at + 2)))
            else {
                assert_eq!(after, before, "{options_of_first:02x?}");
                return;
            };
            let echo = value << 13 | u32::from(bits);
            assert_eq!(after, with_word(&ends, &before, at + 2, echo, &after), "{options_of_first:02x?}");
            // A segment of the client's that echoes it.
            let at = timestamps_at(&options_of_echo);
            let mut options = options_of_echo;
            if let Some(at) = at {
                options[at + 6..at + 10].copy_from_slice(&echo.to_be_bytes());
            }
            let (before, after) = clock.received(&ends, flags, &options);
            let at = at.filter(|_| flags & (ACK | SYN) == ACK && echo != 0);
            let expected = match at {
                Some(at) => with_word(&ends, &before, at + 6, value, &after),
                None => before,
            };
            assert_eq!(after, expected, "{options:02x?} {flags:02x}");
        });
    }
}

/// The client's side of a connection, which knows of no bits.
struct Client {
    /// The latest timestamp of the server's that it took (TS.Recent of RFC 7323).
    recent: u32,
}

impl Client {
    /// Takes a segment in unless its timestamp is an old one (RFC 7323, section 5).
    fn takes(&mut self, value: u32) -> bool {
        let is_new = value.wrapping_sub(self.recent) as i32 >= 0;
        if is_new {
            self.recent = value;
        }
        is_new
    }
}

/// What happens to a connection next.
#[derive(Clone, Debug)]
enum Step {
    /// Milliseconds pass.
    Wait(u32),
    /// The server sends something; whether it arrives.
    Send(bool),
    /// The client sends something, and it arrives.
    Echo,
}

fn step(turn_ms: u32) -> impl Strategy<Value = Step> {
    let day_ms: u32 = 24 * 3600 * 1000;
    prop_oneof![
        4 => (0..50u32).prop_map(Step::Wait),
        2 => (0..turn_ms).prop_map(Step::Wait),
        1 => (0..40 * day_ms).prop_map(Step::Wait),
        6 => prop::bool::weighted(0.7).prop_map(Step::Send),
        4 => Just(Step::Echo),
    ]
}

fn walk(shift: u32, family: Family, base: u32, steps: &[Step]) {
    thread_local!(static CLOCKS: std::cell::RefCell<std::collections::BTreeMap<u32, Clock>> =
        const { std::cell::RefCell::new(std::collections::BTreeMap::new()) });
    CLOCKS.with_borrow_mut(|clocks| {
        let clock = clocks.entry(shift).or_insert_with(|| Clock::new(shift));
        let ends = Ends::new(family);
        clock.open(&ends, BITS);
        let mut now = base;
        let first = clock.value_sent(&ends, SYN | ACK, now);
        assert_eq!(first, now << shift | u32::from(BITS));
        let mut client = Client { recent: first };
        // What was sent as which timestamp, and how often the clock had been stopped then.
        let mut sent = std::collections::BTreeMap::from([(first, (now, 0))]);
        // How often it was by now, and by the latest value that the client echoed; and
        // whether it had echoed one since the time before the last, then.
        let (mut holds, mut holds_heard, mut knows_before) = (0, 0, true);
        assert_eq!(clock.echo_received(&ends, first), now, "the third ACK");
        for step in steps {
            match step {
                Step::Wait(ms) => now = now.wrapping_add(*ms),
                Step::Send(arrives) => {
                    let (value, counted) = clock.counted(|| clock.value_sent(&ends, ACK, now));
                    if counted.contains(&"clock_held") {
                        knows_before = holds_heard == holds;
                        holds += 1;
                    }
                    assert_eq!(value & ((1 << shift) - 1), u32::from(BITS));
                    sent.insert(value, (now, holds));
                    assert!(!arrives || client.takes(value), "PAWS");
                }
                Step::Echo => {
                    let echo = clock.echo_received(&ends, client.recent);
                    let (expected, holds_then) = sent[&client.recent];
                    let is_known = holds_then == holds || knows_before;
                    assert_eq!(echo, if is_known { expected } else { 0 });
                    holds_heard = holds_heard.max(holds_then);
                }
            }
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn echoes_are_exact_and_no_segment_looks_old_through_silence_and_outages(
        shift in prop::sample::select(vec![13, 13, 20]),
        base in any::<u32>(),
        family in prop::sample::select(vec![V4, V6]),
        (shift_13, shift_20) in (prop::collection::vec(step(1 << 19), 1..60),
                                 prop::collection::vec(step(1 << 12), 1..60)),
    ) {
        if !rustix::process::geteuid().is_root() {
            program_or_skip("echoes_are_exact_and_no_segment_looks_old_through_silence_and_outages");
            return Ok(());
        }
        walk(shift, family, base, if shift == 13 { &shift_13 } else { &shift_20 });
    }
}

/// The SYN of an inner packet, with its options, in a tunnel with ours.
fn tunnelled_syn(ends: &Ends, flags: u8, options: &[u8], option: &MultipathOption) -> Vec<u8> {
    let inner = ends.segment(false, flags, options);
    let option = option.emit();
    let mut header = geneve::emit(ends.family.ether_type());
    geneve::announce_critical_options(&mut header, option.len());
    carrying(17, &datagram(geneve::PORT, &[&header[..], &option, &inner[14..]].concat()))
}

fn multipath_options() -> impl Strategy<Value = Vec<u8>> {
    let capable = |version: u8| {
        let len = if version == 0 { 12 } else { 4 };
        [vec![30, len, version, 1], vec![7; usize::from(len) - 4]].concat()
    };
    prop_oneof![
        2 => Just(capable(0)),
        4 => Just(capable(1)),
        4 => any::<[u8; 8]>().prop_map(|rest| [&[30, 12, 0x10, 0][..], &rest].concat()),
        1 => Just(vec![30, 8, 0x10, 0, 1, 2, 3, 4]),
        2 => Just(Vec::new()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    /// Through both programs: the tunnel's option with the SYN, then the kernel's SYN/ACK.
    #[test]
    fn a_connection_has_the_bits_that_load_balancers_select_it_by(
        before in prop::collection::vec(prop::sample::select(vec![&[1][..], &[2, 4, 5, 0xb4], &[4, 2]]), 0..8),
        multipath in multipath_options(),
        key in prop::option::of(1..=u64::MAX),
        bucket in 0u16..8192,
        family in prop::sample::select(vec![V4, V6]),
        owner in prop::sample::select(vec!["10.1.0.13", "2001:db8:1::13"]),
        flags in prop::sample::select(vec![SYN, SYN, SYN, SYN | ACK, ACK]),
    ) {
        thread_local!(static CLOCK: Option<Clock> =
            clock_or_skip("a_connection_has_the_bits_that_load_balancers_select_it_by"));
        let mut options = before.concat();
        options.truncate(28);
        // What is cut must not run into what follows.
        options = if timestamps_at(&[&options[..], &[8, 10, 0, 0, 0, 0, 0, 0, 0, 0]].concat()).is_some() { options } else { Vec::new() };
        options.extend(&multipath);
        options.resize(options.len().next_multiple_of(4), 1);
        let owner: IpAddr = owner.parse().unwrap();
        CLOCK.with(|clock| {
            let Some(clock) = clock else { return };
            let ends = Ends::new(family);
            let tunnelled = tunnelled_syn(&ends, flags, &options, &MultipathOption { key, bucket, address: owner });
            assert_eq!(clock.program.run(&tunnelled).2, "geneve");
            let opening = clock.openings.get(&Record(ends.key()), 0).ok();
            assert_eq!(opening.is_some(), flags == SYN);
            let Some(Record(opening)) = opening else { return };
            assert_eq!((opening.owner, opening.bucket), (mapped(owner), bucket));
            let version = match multipath.get(2) {
                Some(0) => Version::V0 { client_key: 0 },
                _ => Version::V1,
            };
            let join = multipath.len() == 12 && multipath[2] == 0x10;
            let expected = match key {
                Some(key) => datapath::multipath::token(version, key),
                None if join => u32_at(&multipath, 4),
                None => bucket.into(),
            };
            let expected = expected & 0x1fff;
            let echo = 5 << 13 | expected;
            assert_eq!(clock.value_sent(&ends, SYN | ACK, 5), echo);
            // It counts by them once the client has echoed them.
            assert_eq!(clock.clocks.bits(&ends.flow()), None);
            assert_eq!(clock.echo_received(&ends, echo), 5);
            assert_eq!(clock.clocks.bits(&ends.flow()), Some(expected as u16));
        });
    }
}
