//! Compares plain packets with the general parser: what is read in one go equals what the
//! headers say, and unusual packets are left to the general parser.

use etherparse::PacketBuilder;
use proptest::prelude::*;
use wire::plain::{self, Plain};
use wire::{Headers, Target, headers};

const CLIENT_V6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 0xc, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
const VIP_V6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 0xf, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];

/// TCP or UDP over either IP.
fn frame(v6: bool, udp: bool, payload: &[u8]) -> Vec<u8> {
    let ethernet = PacketBuilder::ethernet2([1; 6], [2; 6]);
    let ip = match v6 {
        true => ethernet.ipv6(CLIENT_V6, VIP_V6, 60),
        false => ethernet.ipv4([192, 0, 2, 9], [203, 0, 113, 7], 60),
    };
    let mut bytes = Vec::new();
    match udp {
        true => ip.udp(1234, 443).write(&mut bytes, payload).unwrap(),
        false => ip.tcp(1234, 443, 7, 9).syn().write(&mut bytes, payload).unwrap(),
    }
    bytes
}

/// With the IPv4 checksum made right again.
fn reseal(mut frame: Vec<u8>) -> Vec<u8> {
    frame[24..26].fill(0);
    let sum = wire::checksum::finish(wire::checksum::sum(&frame[14..34]));
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// True if the frame is plain; then what was read is what the headers say.
fn is_plain(frame: &[u8]) -> bool {
    let headers = || headers::parse(frame).expect("well-formed").expect("an IP packet");
    if let Some(read) = plain::read_v4(frame) {
        let headers = headers();
        assert_agree(&read, read.target().target(), &headers);
        assert_eq!(read.blocks(), [headers.key.block_v4()]);
        return true;
    }
    if let Some(read) = plain::read_v6(frame) {
        let headers = headers();
        assert_agree(&read, read.target(), &headers);
        assert_eq!(read.blocks(), headers.key.blocks_v6());
        return true;
    }
    false
}

fn assert_agree<const HEAD: usize>(read: &Plain<'_, HEAD>, target: Target, headers: &Headers) {
    assert_eq!(read.meta, headers.meta());
    assert_eq!(headers.fragment, wire::Fragment::Whole);
    assert_eq!(target, headers.key.target());
}

#[test]
fn what_nearly_all_packets_are_is_plain() {
    for (v6, udp) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut frame = frame(v6, udp, b"twelve bytes");
        assert!(is_plain(&frame), "v6 {v6}, udp {udp}");
        frame.extend([0; 9]);
        assert!(is_plain(&frame), "with padding: v6 {v6}, udp {udp}");
    }
}

#[test]
fn every_cut_is_left_to_the_general_parser() {
    for (v6, udp) in [(false, false), (false, true), (true, false), (true, true)] {
        let whole = frame(v6, udp, b"twelve bytes");
        for cut in 0..whole.len() {
            assert!(!is_plain(&whole[..cut]), "v6 {v6}, udp {udp}, cut at {cut}");
        }
    }
}

#[test]
fn what_is_unusual_is_left_to_the_general_parser() {
    let v4 = |at: usize, value: u8| {
        let mut frame = frame(false, false, b"payload");
        frame[at] = value;
        reseal(frame)
    };
    for (what, frame) in [
        ("another EtherType", v4(13, 6)),
        ("options", v4(14, 0x46)),
        ("more fragments", v4(20, 0x20)),
        ("a fragment offset", v4(21, 1)),
        ("another protocol", v4(23, 47)),
        ("a data offset too small", v4(46, 0x40)),
        ("a data offset too large", v4(46, 0xf0)),
        ("longer than the frame", v4(17, 0xff)),
        ("a length without a TCP header", v4(17, 39)),
    ] {
        assert!(!is_plain(&frame), "{what}");
    }
    let mut wrong = frame(false, false, b"");
    wrong[24] ^= 1;
    assert!(!is_plain(&wrong), "a wrong checksum");
    for port in [wire::tunnel::gue::PORT, wire::tunnel::geneve::PORT] {
        for v6 in [false, true] {
            let mut tunnel = frame(v6, true, b"twelve bytes");
            let at = if v6 { 56 } else { 36 };
            tunnel[at..at + 2].copy_from_slice(&port.to_be_bytes());
            assert!(!is_plain(&tunnel), "a tunnel's port {port}");
        }
    }
    let mut extended = frame(true, true, b"twelve bytes");
    extended[20] = 60;
    assert!(!is_plain(&extended), "an extension header");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(50_000))]

    #[test]
    fn both_parsers_agree(flips in proptest::collection::vec((12usize..74, any::<u8>()), 0..3), v6: bool, udp: bool) {
        let mut frame = frame(v6, udp, b"twelve bytes");
        for (at, value) in flips {
            let at = at.min(frame.len() - 1);
            frame[at] = value;
        }
        is_plain(&if v6 { frame } else { reseal(frame) });
    }
}
