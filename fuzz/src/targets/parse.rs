//! Parsing any bytes: no panic, and nothing read beyond the frame.

use wire::tunnel::geneve;
use wire::tunnel::multipath_option::MultipathOption;
use wire::tunnel::route_option::RouteOption;
use wire::{Family, Fragment, Protocol, ethernet, headers, icmp, tcp_options};

/// Parses the input as a frame.
pub fn run(frame: &[u8]) {
    let Ok(Some(headers)) = headers::parse(frame) else { return };
    let packet = &frame[ethernet::HEADER_BYTES..];
    let (packet_bytes, transport) =
        (usize::from(headers.packet_bytes), usize::from(headers.transport_offset));
    assert!(packet_bytes <= packet.len() && transport <= packet_bytes);
    assert_eq!(packet[0] >> 4, if headers.key.family == Family::V4 { 4 } else { 6 });
    // Padding is no part of the packet: without it everything is the same.
    let trimmed = &frame[..ethernet::HEADER_BYTES + packet_bytes];
    let again = headers::parse(trimmed).ok().flatten().expect("still whole without its padding");
    assert_eq!(format!("{headers:?}"), format!("{again:?}"));
    // Whatever it is, it may be taken for an ICMP message.
    let _ = icmp::kind(headers.key.family, &packet[transport..packet_bytes]);
    let _ = icmp::quoted(headers.key.family, &packet[transport..packet_bytes]);
    // A segment's options are within its header, whatever follows.
    if headers.key.protocol == Protocol::TCP && headers.fragment == Fragment::Whole {
        let segment = &packet[transport..packet_bytes];
        let header = &segment[..usize::from(segment[12] >> 4) * 4];
        assert_eq!(tcp_options::signal(segment), tcp_options::signal(header));
    }
    // And for a Geneve header, as agents take it.
    let options = geneve::parse_with_options(&packet[transport..packet_bytes]);
    for option in options.iter().flat_map(|header| geneve::options(header.options)).flatten() {
        if let Some(Ok(read)) = RouteOption::parse(&option) {
            assert!(read.emit().len() <= geneve::OPTION_HEADER_BYTES + option.body.len());
        }
        if let Some(Ok(read)) = MultipathOption::parse(&option) {
            assert_eq!(read.emit()[geneve::OPTION_HEADER_BYTES..], *option.body);
        }
    }
}
