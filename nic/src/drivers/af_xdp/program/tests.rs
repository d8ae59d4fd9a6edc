//! Tests the filter in the kernel on frames of ours (BPF_PROG_TEST_RUN). No socket is
//! connected, so our frames are dropped and counted as `no_socket`.

use std::io::{self, Write};

use aya::programs::{Program as Loaded, TestRun, TestRunOptions};
use wire::{IpPrefix, MacAddress};

use super::*;
use crate::kernel_cache::{CacheSize, Settings};

#[path = "../../../../../ebpf/every_compiler.rs"]
mod every_compiler;

const OWN: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
const DROP: u32 = 1;
const PASS: u32 = 2;

struct Loose {
    object: Ebpf,
    filter: Filter,
}

/// Loading a program needs root; a test that is skipped says so by name, past
/// the harness's capture.
fn filter_or_skip(test: &str) -> Option<Loose> {
    // SAFETY: a call without arguments.
    if unsafe { libc::geteuid() } != 0 {
        let line = format!("SKIPPED {test}: needs root to load a BPF program\n");
        io::stderr().write_all(line.as_bytes()).unwrap();
        return None;
    }
    let (object, mut filter, _) = load(None, &[]).unwrap();
    filter.set_address(OWN).unwrap();
    Some(Loose { object, filter })
}

impl Loose {
    fn set(&mut self, prefixes: &[&str], own: &[&str], tunnelled: bool) {
        let prefixes: Vec<IpPrefix> = prefixes.iter().map(|text| text.parse().unwrap()).collect();
        let own: Vec<_> = own.iter().map(|text| text.parse().unwrap()).collect();
        self.filter.set(&prefixes, &own, tunnelled).unwrap();
    }

    /// Whether a frame is ours; the counters agree with the verdict.
    fn is_ours(&self, frame: &[u8]) -> bool {
        let before = self.filter.reader().counters().unwrap();
        let Some(Loaded::Xdp(xdp)) = self.object.program(FILTER) else { panic!() };
        let options = TestRunOptions { data_in: Some(frame), ..TestRunOptions::new() };
        let verdict = xdp.test_run(options).unwrap().return_value;
        let after = self.filter.reader().counters().unwrap();
        assert!(verdict == DROP || verdict == PASS, "verdict {verdict}");
        assert_eq!(after.no_socket - before.no_socket, u64::from(verdict == DROP));
        assert_eq!(after.passed - before.passed, u64::from(verdict == PASS));
        verdict == DROP
    }
}

#[test]
fn every_compilers_programs_are_loaded() {
    if filter_or_skip("every_compilers_programs_are_loaded").is_none() {
        return;
    }
    let size = CacheSize { queues: 1, buckets: 64, targets: 64, service_buckets: 64 };
    let settings = Settings::new(CacheConfig { size, key: [1, 2], devices: Vec::new() }).unwrap();
    let with_cache = |bytes: &[u8]| ebpf::load_with(bytes, |loader| settings.apply(loader));
    for name in ["redirect", "packet"] {
        every_compiler::load_with_every_compiler(name, |bytes| with_cache(bytes).unwrap());
    }
    for name in ["redirect", "packet", "reflect"] {
        every_compiler::load_with_every_compiler(name, |bytes| ebpf::load(bytes).unwrap());
    }
}

fn ethernet(ether_type: u16, packet: &[u8]) -> Vec<u8> {
    [&OWN.0[..], &[2, 0, 0, 0, 0, 2], &ether_type.to_be_bytes(), packet].concat()
}

/// Only the fields that the filter may look at are right.
fn v4(destination: [u8; 4], protocol: u8, first: u8, fragment: [u8; 2], rest: &[u8]) -> Vec<u8> {
    let mut header = [0xee; 20];
    header[0] = first;
    header[6..8].copy_from_slice(&fragment);
    header[9] = protocol;
    header[16..].copy_from_slice(&destination);
    ethernet(0x0800, &[&header, rest].concat())
}

fn v6(destination: &str, next_header: u8, rest: &[u8]) -> Vec<u8> {
    let mut header = [0xee; 40];
    header[0] = 0x60;
    header[6] = next_header;
    header[24..].copy_from_slice(&destination.parse::<std::net::Ipv6Addr>().unwrap().octets());
    ethernet(0x86dd, &[&header, rest].concat())
}

const WHOLE: [u8; 2] = [0x40, 0];

#[test]
fn a_frame_to_another_address_than_the_devices_is_the_kernels() {
    let Some(mut loose) =
        filter_or_skip("a_frame_to_another_address_than_the_devices_is_the_kernels")
    else {
        return;
    };
    loose.set(&["203.0.113.0/24", "2001:db8:a::/64"], &["10.0.0.1"], true);
    let frames = [
        v4([203, 0, 113, 10], 6, 0x45, WHOLE, &[0; 20]),
        v6("2001:db8:a::1", 6, &[0; 20]),
        v4([10, 0, 0, 1], 47, 0x45, WHOLE, &[0; 20]),
    ];
    let moved = MacAddress([2, 0, 0, 0, 7, 1]);
    for own in [OWN, moved] {
        loose.filter.set_address(own).unwrap();
        for frame in &frames {
            for to in [OWN, moved, MacAddress([0xff; 6]), MacAddress([2, 0, 0, 0, 0, 9])] {
                let mut frame = frame.clone();
                frame[..6].copy_from_slice(&to.0);
                assert_eq!(loose.is_ours(&frame), to == own, "{to:?} at {own:?}");
            }
        }
    }
}

#[test]
fn only_the_destination_prefix_decides() {
    let Some(mut loose) = filter_or_skip("only_the_destination_prefix_decides") else { return };
    loose.set(&["203.0.113.0/24", "198.51.100.7", "2001:db8:a::/64"], &[], false);
    let vip = [203, 0, 113, 10];
    let ours = [
        v4(vip, 6, 0x45, WHOLE, &[0; 20]),
        v4(vip, 17, 0x4f, [0x20, 0], &[]),
        v4(vip, 255, 0x40, [0, 0xff], b"lying header length, later fragment"),
        v4([198, 51, 100, 7], 1, 0x45, WHOLE, &[]),
        v6("2001:db8:a::ffff", 6, &[]),
        v6("2001:db8:a::1", 0, b"hop by hop options"),
        v6("2001:db8:a::1", 44, b"a fragment"),
    ];
    for (index, frame) in ours.iter().enumerate() {
        assert!(loose.is_ours(frame), "case {index}");
    }
    let tagged = [&[0, 5][..], &v4(vip, 6, 0x45, WHOLE, &[])[12..]].concat();
    let passed = [
        v4([203, 0, 114, 10], 6, 0x45, WHOLE, &[]),
        v4([198, 51, 100, 8], 6, 0x45, WHOLE, &[]),
        v6("2001:db8:b::1", 6, &[]),
        ethernet(0x8100, &tagged),
        ethernet(0x0806, &[0; 28]),
        ethernet(0x0800, &v4(vip, 6, 0x45, WHOLE, &[])[14..33]),
        ethernet(0x86dd, &v6("2001:db8:a::1", 6, &[])[14..53]),
        ethernet(0x0800, &[]),
    ];
    for (index, frame) in passed.iter().enumerate() {
        assert!(!loose.is_ours(frame), "case {index}");
    }
}

/// The owner of a VIP on the segment answers them, which is the speaker.
#[test]
fn neighbour_solicitations_are_the_kernels() {
    let Some(mut loose) = filter_or_skip("neighbour_solicitations_are_the_kernels") else { return };
    loose.set(&["2001:db8:a::/64"], &[], false);
    let icmp = |hop_limit: u8, rest: &[u8]| {
        let mut frame = v6("2001:db8:a::1", 58, rest);
        frame[14 + 7] = hop_limit;
        frame
    };
    assert!(!loose.is_ours(&icmp(255, &[135, 0, 0, 0])));
    let ours = [
        icmp(254, &[135, 0, 0, 0]), // from beyond a router: none
        icmp(255, &[128, 0, 0, 0]),
        icmp(255, &[136, 0, 0, 0]),
        icmp(255, &[2, 0, 0, 0]),
        icmp(255, &[]),
    ];
    for (index, frame) in ours.iter().enumerate() {
        assert!(loose.is_ours(frame), "case {index}");
    }
}

#[test]
fn of_our_own_addresses_only_tunnels_are_ours() {
    let Some(mut loose) = filter_or_skip("of_our_own_addresses_only_tunnels_are_ours") else {
        return;
    };
    let own = [10, 0, 0, 1];
    let port = |port: u16| [&[0, 0][..], &port.to_be_bytes(), &[0; 4]].concat();
    let tunnels = [
        v4(own, 47, 0x45, WHOLE, &[]),
        v4(own, 4, 0x45, WHOLE, &[]),
        v4(own, 41, 0x45, WHOLE, &[]),
        v4(own, 17, 0x45, WHOLE, &port(6080)),
        v4(own, 17, 0x46, WHOLE, &[&[0; 4][..], &port(6081)].concat()),
        v6("fd00::1", 47, &[]),
        v6("fd00::1", 17, &port(6081)),
        // As Linux's ip6gre: a Tunnel Encapsulation Limit of 4, and padding.
        v6("fd00::1", 60, &[47, 0, 4, 1, 4, 1, 1, 0]),
        v6("fd00::1", 60, &[47, 255]),
        v6("fd00::1", 60, &[&[17, 0][..], &[0; 6], &port(6080)].concat()),
        v6("fd00::1", 60, &[&[17, 255][..], &[0; 2046], &port(6081)].concat()),
    ];
    let others = [
        v4(own, 6, 0x45, WHOLE, &port(179)),
        v4(own, 17, 0x45, WHOLE, &port(53)),
        v4(own, 17, 0x45, [0, 1], &port(6080)),
        v4(own, 17, 0x45, WHOLE, &[0; 7]),
        v4([10, 0, 0, 2], 47, 0x45, WHOLE, &[]),
        v6("fd00::2", 47, &[]),
        v6("fd00::1", 58, &[]),
        v6("fd00::2", 60, &[47, 0, 4, 1, 4, 1, 1, 0]),
        v6("fd00::1", 60, &[&[6, 0][..], &[0; 6], &port(179)].concat()),
        v6("fd00::1", 60, &[&[17, 0][..], &[0; 6], &port(53)].concat()),
        v6("fd00::1", 60, &[&[17, 1][..], &[0; 6], &port(6080)].concat()),
        v6("fd00::1", 60, &[&[60, 0][..], &[0; 6], &[47, 0], &[0; 6]].concat()),
        v6("fd00::1", 0, &[47, 0, 1, 4, 0, 0, 0, 0]),
        v6("fd00::1", 60, &[47]),
        v6("fd00::1", 60, &[]),
    ];
    for (asked, addresses) in
        [(false, &["10.0.0.1", "fd00::1"][..]), (true, &[]), (true, &["10.0.0.1", "fd00::1"])]
    {
        loose.set(&[], addresses, asked);
        for (index, frame) in tunnels.iter().enumerate() {
            assert_eq!(loose.is_ours(frame), asked && !addresses.is_empty(), "tunnel {index}");
        }
        assert!(others.iter().all(|frame| !loose.is_ours(frame)));
    }
}

#[test]
fn prefixes_come_and_go_by_difference() {
    let Some(mut loose) = filter_or_skip("prefixes_come_and_go_by_difference") else { return };
    let probe = |loose: &Loose| {
        [[10, 1, 0, 1], [10, 2, 0, 1], [10, 3, 0, 1]]
            .map(|to| loose.is_ours(&v4(to, 6, 0x45, WHOLE, &[])))
    };
    assert_eq!(probe(&loose), [false, false, false], "a new filter takes nothing");
    loose.set(&["10.1.0.0/16", "10.2.0.0/16"], &[], false);
    assert_eq!(probe(&loose), [true, true, false]);
    loose.set(&["10.2.0.0/16", "10.3.0.0/16"], &[], false);
    assert_eq!(probe(&loose), [false, true, true]);
    // The shorter prefix stays when the longer one inside it goes.
    loose.set(&["10.0.0.0/8", "10.3.0.0/16"], &[], false);
    loose.set(&["10.0.0.0/8"], &[], false);
    assert_eq!(probe(&loose), [true, true, true]);
    loose.set(&[], &[], false);
    assert_eq!(probe(&loose), [false, false, false]);
}

#[test]
fn too_many_own_addresses_are_refused_by_name() {
    let Some(mut loose) = filter_or_skip("too_many_own_addresses_are_refused_by_name") else {
        return;
    };
    let own: Vec<_> =
        (0..65_u8).map(|last| std::net::Ipv4Addr::new(10, 0, 0, last).into()).collect();
    let error = loose.filter.set(&[], &own, true).unwrap_err().to_string();
    assert!(error.contains("10.0.0.64") && error.contains("at most 64"), "{error}");
    loose.filter.set(&[], &own[..64], true).unwrap();
}
