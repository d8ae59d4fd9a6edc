//! Route options: what is written is read, also among other options in a Geneve header, and
//! bytes with another meaning are refused.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::collection::vec;
use proptest::prelude::*;
use wire::tunnel::geneve::{self, GeneveOption};
use wire::tunnel::route_option::{self, CLASS, KIND, Malformed, RouteOption};
use wire::{EtherType, HEADROOM_BYTES};

fn addresses() -> impl Strategy<Value = IpAddr> {
    let v6 = any::<[u8; 16]>().prop_map(|bytes| IpAddr::from(Ipv6Addr::from(bytes)).to_canonical());
    prop_oneof![any::<[u8; 4]>().prop_map(|bytes| Ipv4Addr::from(bytes).into()), v6]
}

prop_compose! {
    fn route_options()(
        returns: bool,
        hop_limit: u8,
        bucket in proptest::option::of(0..u16::MAX),
        generation: u32,
        addresses in vec(addresses(), 0..=route_option::ADDRESSES_MAX),
    ) -> RouteOption {
        let addresses = addresses.into_iter().collect();
        RouteOption { returns, hop_limit, bucket, generation, addresses }
    }
}

fn only_option(bytes: &[u8]) -> GeneveOption<'_> {
    let mut options = geneve::options(bytes);
    let option = options.next().expect("there is one").expect("it is whole");
    assert_eq!(options.next(), None);
    option
}

proptest! {
    #[test]
    fn what_is_written_is_read(option in route_options()) {
        let bytes = option.emit();
        let emitted = only_option(&bytes);
        prop_assert!(emitted.is_critical());
        prop_assert_eq!(RouteOption::parse(&emitted), Some(Ok(option)));
        for cut in 0..bytes.len() {
            let whole = geneve::options(&bytes[..cut]).next().is_none_or(|option| option.is_some());
            prop_assert!(cut == 0 || !whole, "{cut} bytes");
        }
    }

    #[test]
    fn what_is_read_is_what_would_be_written(mut body in vec(any::<u8>(), 0..80), flags in 0..4u8) {
        if let Some(first) = body.first_mut() {
            *first = *first & 0b1100_0000 | flags;
        }
        let option = GeneveOption { class: CLASS, kind: KIND, body: &body };
        if let Some(Ok(read)) = RouteOption::parse(&option) {
            let again = read.emit();
            // Mapped ones alone are written as IPv4.
            let is_shorter = body[0] >> 7 == 1 && read.addresses.iter().all(IpAddr::is_ipv4);
            prop_assert!(is_shorter || again[4..] == body);
            prop_assert_eq!(RouteOption::parse(&only_option(&again)), Some(Ok(read)));
        }
    }

    #[test]
    fn other_lengths_and_unknown_flags_are_refused(option in route_options(), more in 1..8usize, unknown in 2u32..6) {
        let bytes = option.emit();
        let read = |body: &[u8]| RouteOption::parse(&GeneveOption { class: CLASS, kind: KIND, body });
        let mut body = bytes[geneve::OPTION_HEADER_BYTES..].to_vec();
        prop_assert_eq!(read(&body[..body.len() - more]), Some(Err(Malformed)));
        body.extend(vec![0; more]);
        prop_assert_eq!(read(&body), Some(Err(Malformed)));
        body.truncate(body.len() - more);
        body[0] |= 1u8 << unknown;
        prop_assert_eq!(read(&body), Some(Err(Malformed)));
        for (class, kind) in [(CLASS, 0x01), (CLASS, 0x82), (0x0101, KIND)] {
            prop_assert_eq!(RouteOption::parse(&GeneveOption { class, kind, body: &body }), None);
        }
    }

    #[test]
    fn it_is_found_among_other_options(option in route_options(), before in 0..4usize, behind in 0..4usize) {
        let other = |words: usize| {
            let mut bytes = geneve::emit_option_header(0x0101, 0x07, words * 4).to_vec();
            bytes.resize(bytes.len() + words * 4, 0xaa);
            bytes
        };
        let options = [other(before), option.emit().to_vec(), other(behind)].concat();
        let mut header = geneve::emit(EtherType::IPV6);
        geneve::announce_critical_options(&mut header, options.len());
        let datagram = [&header[..], &options, b"inside"].concat();
        let read = geneve::parse_with_options(&datagram).expect("it is whole");
        prop_assert!(read.has_critical && read.inner == EtherType::IPV6);
        let found = geneve::options(read.options)
            .map(|option| option.expect("it is whole"))
            .find_map(|option| RouteOption::parse(&option));
        prop_assert_eq!(found, Some(Ok(option)));
        // A load balancer knows no critical option.
        prop_assert_eq!(geneve::parse(&datagram), None);
    }
}

#[test]
fn the_longest_option_fits_the_headroom() {
    let addresses = [IpAddr::from(Ipv6Addr::LOCALHOST); route_option::ADDRESSES_MAX].into();
    let option =
        RouteOption { returns: true, hop_limit: 4, bucket: Some(8191), generation: 1, addresses };
    assert_eq!(option.emit().len(), route_option::BYTES_MAX);
    let front = 14 + 40 + wire::tunnel::FRONT_BYTES_MAX + route_option::BYTES_MAX;
    assert!(front - 14 <= HEADROOM_BYTES);
}
