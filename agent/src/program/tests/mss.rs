//! The program at the egress against a model: segments with any flags and options, from VIPs
//! and other addresses.

use proptest::prelude::*;
use wire::checksum;

use super::*;

const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

/// What fits into a tunnel at an MTU of 1500: IPv4, IPv6.
const LARGEST: [u16; 2] = [1364 - 20, 1344 - 20];

/// Frames that it leaves alone go to the programs behind it.
const UNSPECIFIED: i32 = -1;

fn clamping() -> Program {
    let config =
        "{interface: eth0, load_balancers: ['2001:db8::1'], vips: [10.0.0.200, 2001:db8::c8]}";
    let mut program = Program::new();
    let config = Config::parse("config", config).unwrap();
    program.set(&config).unwrap();
    program.clamps().unwrap().set(&config, 1500).unwrap();
    program
}

impl Program {
    /// What the program at the egress makes of a frame.
    fn run_egress(&self, frame: &[u8]) -> Vec<u8> {
        self.run_classifier(MSS_PROGRAM, frame)
    }

    /// What a program of traffic control makes of a frame.
    pub fn run_classifier(&self, name: &str, frame: &[u8]) -> Vec<u8> {
        let (verdict, out) = self.test_run(name, frame);
        assert_eq!(verdict as i32, UNSPECIFIED);
        assert_eq!(out.len(), frame.len());
        out
    }
}

/// A segment from this host, with a right checksum.
fn segment(family: Family, host: u8, flags: u8, options: &[u8]) -> Vec<u8> {
    let mut segment = vec![0; 20];
    segment[12..14].copy_from_slice(&[0x50 + (options.len() as u8 / 4 * 16), flags]);
    segment.extend(options);
    segment.extend(b"data");
    let mut packet = ip(family, 6, 0, 77, &segment);
    // `ip` has the VIP as destination: the other way round, from any host.
    let (source, header) = match family {
        V4 => (12..16, 20),
        V6 => (8..24, 40),
    };
    let bytes = source.len();
    packet[source.start..source.end + bytes].rotate_left(bytes);
    packet[source.end - 1] = host;
    if family == V4 {
        packet[10..12].fill(0);
        let sum = checksum::finish(checksum::sum(&packet[..20]));
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    let sum = tcp_sum(family, &packet);
    packet[header + 16..header + 18].copy_from_slice(&sum.to_be_bytes());
    frame(family.ether_type(), &packet)
}

/// The checksum that makes the segment's sum right; 0 where it is.
pub fn tcp_sum(family: Family, packet: &[u8]) -> u16 {
    let (addresses, header) = if family == V4 { (12, 20) } else { (8, 40) };
    let bytes = (header - addresses) / 2;
    let (source, rest) = packet[addresses..].split_at(bytes);
    let segment = &packet[header..];
    let sum =
        checksum::pseudo_header(source, &rest[..bytes], 6, segment.len()) + checksum::sum(segment);
    checksum::finish(sum)
}

/// Where the value of the MSS option is among options; None: there is none.
fn mss_at(options: &[u8]) -> Option<usize> {
    let mut at = 0;
    // As many as the program looks at.
    for _ in 0..10 {
        match (*options.get(at)?, options.get(at + 1)) {
            (0, _) => return None,
            (1, _) => at += 1,
            (2, Some(4)) => return Some(at + 2),
            (2, _) => return None,
            (_, Some(len)) if *len >= 2 => at += usize::from(*len),
            _ => return None,
        }
    }
    None
}

pub fn options() -> impl Strategy<Value = Vec<u8>> {
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

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(5000) })]

    #[test]
    fn an_mss_is_lowered_where_the_model_has_it(
        options in options(),
        flags in prop::sample::select(vec![SYN | ACK, SYN | ACK | 0x40, SYN, ACK, SYN | ACK | 0x04]),
        is_vip in prop::bool::weighted(0.8),
        family in prop::sample::select(vec![V4, V6]),
    ) {
        thread_local!(static PROGRAM: Option<Program> =
            program_or_skip("an_mss_is_lowered_where_the_model_has_it").map(|_| clamping()));
        // Cut off inside an option the kernel's own reading is not the model's.
        let before = segment(family, if is_vip { 200 } else { 201 }, flags, &options);
        let largest = LARGEST[family as usize];
        let is_answer = flags & (SYN | ACK) == SYN | ACK;
        let at = mss_at(&options).filter(|at| at + 2 <= options.len());
        let clamped = at.filter(|at| {
            is_vip && is_answer && u16::from_be_bytes([options[*at], options[at + 1]]) > largest
        });
        PROGRAM.with(|program| {
            let Some(program) = program else { return };
            let counted = || program.counters.clamped.read().unwrap()[family as usize];
            let count = counted();
            let after = program.run_egress(&before);
            assert_eq!(counted() - count, u64::from(clamped.is_some()), "{options:02x?}");
            let mut expected = before.clone();
            if let Some(at) = clamped {
                let tcp_at = if family == V4 { 34 } else { 54 };
                let mss_at = tcp_at + 20 + at;
                expected[mss_at..mss_at + 2].copy_from_slice(&largest.to_be_bytes());
                // Its own value is looked at below.
                expected[tcp_at + 16..tcp_at + 18].copy_from_slice(&after[tcp_at + 16..tcp_at + 18]);
            }
            assert_eq!(after, expected, "{options:02x?}");
            assert_eq!(tcp_sum(family, &after[14..]), 0, "{options:02x?}");
        });
    }
}
