//! Any bytes as Geneve options, for the program and for a plain implementation of RFC 8926 and
//! docs/formats.md: both give the same outcome, and exactly one.

use proptest::prelude::*;
use wire::tunnel::geneve;
use wire::tunnel::multipath_option::MultipathOption;
use wire::tunnel::route_option::RouteOption;

use super::onward::{program, route};
use super::*;

/// What becomes of a SYN behind these options; `rest` follows them in the frame.
fn oracle(is_critical: bool, options: &[u8], rest: &[u8]) -> &'static str {
    let frame = [options, rest].concat();
    let (mut at, mut has_critical) = (0, false);
    let (mut has_route, mut has_multipath) = (false, false);
    for _ in 0..63 {
        if at >= options.len() {
            break;
        }
        let Some(header) = frame.get(at..at + 4) else { return "geneve_header" };
        let body_bytes = usize::from(header[3] & 0x1f) * 4;
        has_critical |= header[2] & 0x80 != 0;
        if header[..3] == [0xff, 0x47, 0x81] {
            if has_route || !is_route(&frame[at + 4..], body_bytes) {
                return "route_option";
            }
            has_route = true;
        } else if header[..3] == [0xff, 0x47, 0x82] {
            if has_multipath || !is_multipath(&frame[at + 4..], body_bytes) {
                return "multipath_option";
            }
            has_multipath = true;
        } else if header[2] & 0x80 != 0 {
            return "geneve_option";
        }
        at += 4 + body_bytes;
    }
    if at == options.len() && has_critical == is_critical { "geneve" } else { "geneve_header" }
}

/// True for a body that says how long it is; only the first address is looked at.
fn is_route(body: &[u8], body_bytes: usize) -> bool {
    let [flags, ..] = body else { return false };
    let (count, address) = (usize::from(flags & 3), if flags & 0x80 == 0 { 4 } else { 16 });
    let needed = 8 + if count == 0 { 0 } else { address };
    flags & 0x3c == 0 && body_bytes == 8 + count * address && body.len() >= needed
}

/// True for a body that says how long it is.
fn is_multipath(body: &[u8], body_bytes: usize) -> bool {
    let address_bytes = match body.get(..12) {
        Some([.., 0, 0]) => 4,
        Some([.., 0x80, 0]) => 16,
        _ => return false,
    };
    body_bytes == 12 + address_bytes
}

/// An option that is right, or of a length of its own, or damaged.
fn option() -> impl Strategy<Value = Vec<u8>> {
    let ours = route().prop_map(|route| route.emit().to_vec());
    let classes = prop::sample::select(vec![0xff47_u16, 0x0101, 0xfe47]);
    let kinds = prop::sample::select(vec![0x01_u8, 0x81, 0x82, 0x80, 0x7f, 0xff]);
    let other =
        (classes, kinds, 0..32_usize, any::<u8>()).prop_map(|(class, kind, words, fill)| {
            let header = geneve::emit_option_header(class, kind, words * 4);
            [&header[..], &vec![fill; words * 4]].concat()
        });
    let damaged = (route(), 0..72_usize, any::<u8>()).prop_map(|(route, at, byte)| {
        let mut bytes = route.emit().to_vec();
        let at = at % bytes.len();
        bytes[at] = byte;
        bytes
    });
    let damaged_multipath =
        (multipath(), 0..64_usize, any::<u8>()).prop_map(|(option, at, byte)| {
            let mut bytes = option.emit().to_vec();
            if let Some(damaged) = bytes.get_mut(at) {
                *damaged = byte;
            }
            bytes
        });
    let noise =
        (0..8_usize, any::<[u8; 32]>()).prop_map(|(words, bytes)| bytes[..words * 4].to_vec());
    prop_oneof![4 => ours, 2 => other, 3 => damaged, 3 => damaged_multipath, 1 => noise]
}

fn multipath() -> impl Strategy<Value = MultipathOption> {
    let addresses = ["10.1.0.13", "2001:db8:1::13"].map(|text| text.parse().unwrap());
    (any::<u64>(), any::<u16>(), prop::sample::select(addresses.to_vec())).prop_map(
        |(key, bucket, address)| MultipathOption {
            key: Some(key).filter(|key| *key != 0),
            bucket,
            address,
        },
    )
}

/// A client's first packet, which is taken wherever it comes.
fn syn() -> Vec<u8> {
    let mut segment = vec![0; 20];
    segment[12..14].copy_from_slice(&[0x50, 0x02]);
    ip(V4, 6, 0, 77, &segment)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(10_000) })]

    #[test]
    fn any_options_have_the_outcome_of_the_formats(
        options in prop::collection::vec(option(), 0..4),
        is_critical in prop::bool::weighted(0.8),
        cut in 0..4_usize,
    ) {
        thread_local!(static PROGRAM: Option<Program> =
            program_or_skip("any_options_have_the_outcome_of_the_formats").map(|_| program()));
        let mut options = options.concat();
        options.truncate(options.len().min(252).saturating_sub(cut * 4));
        let rest = syn();
        let mut header = geneve::emit(EtherType::IPV4);
        header[0] = (options.len() / 4) as u8;
        header[1] = if is_critical { 0x40 } else { 0 };
        let expected = oracle(is_critical, &options, &rest);
        let frame = carrying(17, &datagram(geneve::PORT, &[&header[..], &options, &rest].concat()));
        PROGRAM.with(|program| {
            let Some(program) = program else { return };
            let (action, out, outcome) = program.run(&frame);
            assert_eq!(outcome, expected, "{is_critical} {options:02x?}");
            assert_ne!(action, TX, "a SYN is taken here, or dropped");
            if outcome == "geneve" {
                assert_eq!(out, super::frame(EtherType::IPV4, &rest));
            }
        });
        // What load balancers write is what the oracle takes for right.
        if let Some(option) = geneve_option(&options).filter(|_| expected == "geneve") {
            assert!(option.is_ok(), "{options:02x?}");
        }
    }
}

/// The first option as the crate that load balancers use reads it.
fn geneve_option(options: &[u8]) -> Option<Result<RouteOption, ()>> {
    let header = options.first_chunk::<4>()?;
    let body = options.get(4..4 + usize::from(header[3] & 0x1f) * 4)?;
    let class = u16::from_be_bytes([header[0], header[1]]);
    let option = geneve::GeneveOption { class, kind: header[2], body };
    Some(RouteOption::parse(&option)?.map_err(drop))
}
