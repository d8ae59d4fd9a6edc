//! A SYN as the injector gets it: an IP packet whose headers the program has checked.

use std::net::IpAddr;

use wire::tcp_options::{self, Signal, Version};
use wire::{Protocol, checksum};
use zerocopy::network_endian::U16;

use crate::records::{Flow, mapped};

const CHECKSUM_AT: usize = 16;
const HEADER_BYTES: usize = 20;
const MULTIPATH: u8 = 30;

/// A SYN of a service with Multipath TCP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Syn {
    /// As the programs' tables have it.
    pub flow: Flow,
    /// Its sequence number.
    pub sequence: u32,
    /// True if it has MP_CAPABLE of the version that kernels know.
    pub is_capable: bool,
    /// True if its client has timestamps.
    pub is_timed: bool,
    packet: Vec<u8>,
    tcp_at: usize,
}

impl Syn {
    /// Reads a packet; None: it is none that the program hands over.
    pub fn read(packet: &[u8]) -> Option<Syn> {
        let (source, destination, tcp_at) = addresses(packet)?;
        let segment = packet.get(tcp_at..)?;
        let header = segment.first_chunk::<HEADER_BYTES>()?;
        let [c0, c1, v0, v1, ..] = *header;
        let [client_port, vip_port] = [[c0, c1], [v0, v1]].map(U16::from_bytes);
        let signal = tcp_options::signal(segment);
        Some(Syn {
            flow: Flow { client: mapped(source), vip: mapped(destination), client_port, vip_port },
            sequence: u32::from_be_bytes([header[4], header[5], header[6], header[7]]),
            is_capable: matches!(signal, Ok(Signal::Capable { version: Version::V1, .. })),
            is_timed: tcp_options::has_timestamps(segment),
            packet: with_checksum(packet.to_vec(), tcp_at),
            tcp_at,
        })
    }

    /// What the kernel is to receive.
    pub fn packet(&self) -> &[u8] {
        &self.packet
    }

    /// Overwrites MP_CAPABLE by NOPs, and corrects the checksum.
    pub fn strip(&mut self) {
        let end = self.tcp_at + usize::from(self.packet[self.tcp_at + 12] >> 4) * 4;
        let segment = &mut self.packet[self.tcp_at..end];
        let before = checksum::sum(segment);
        let mut at = HEADER_BYTES;
        while at + 1 < segment.len() && segment[at] != 0 {
            let length = if segment[at] == 1 { 1 } else { usize::from(segment[at + 1]) };
            if segment[at] == MULTIPATH && segment.get(at + 2).is_some_and(|byte| byte >> 4 == 0) {
                segment[at..at + length].fill(1);
            }
            at += length.max(1);
        }
        let (before, after) = (checksum::fold(before), checksum::fold(checksum::sum(segment)));
        let given = u16::from_be_bytes([segment[CHECKSUM_AT], segment[CHECKSUM_AT + 1]]);
        let corrected = checksum::update(given, before, after);
        segment[CHECKSUM_AT..CHECKSUM_AT + 2].copy_from_slice(&corrected.to_be_bytes());
        self.is_capable = false;
    }
}

/// Completes a checksum that the client left to a device, which the packet met none of: the
/// field holds the sum over the pseudo header. At traffic control packets may be like that.
fn with_checksum(mut packet: Vec<u8>, tcp_at: usize) -> Vec<u8> {
    let addresses = if packet[0] >> 4 == 4 { 12..20 } else { 8..40 };
    let (source, destination) = packet[addresses.clone()].split_at(addresses.len() / 2);
    let pseudo =
        checksum::pseudo_header(source, destination, Protocol::TCP.0, packet.len() - tcp_at);
    let segment = &mut packet[tcp_at..];
    let field = CHECKSUM_AT..CHECKSUM_AT + 2;
    if segment[field.clone()] == checksum::fold(pseudo).to_be_bytes() {
        let whole = checksum::finish(checksum::sum(segment));
        segment[field].copy_from_slice(&whole.to_be_bytes());
    }
    packet
}

/// Source, destination, and where TCP begins.
fn addresses(packet: &[u8]) -> Option<(IpAddr, IpAddr, usize)> {
    match packet.first()? >> 4 {
        4 => {
            let at = |from: usize| packet.get(from..from + 4)?.try_into().ok();
            let (source, destination): ([u8; 4], [u8; 4]) = (at(12)?, at(16)?);
            Some((source.into(), destination.into(), usize::from(packet[0] & 0xf) * 4))
        }
        6 => {
            let at = |from: usize| packet.get(from..from + 16)?.try_into().ok();
            let (source, destination): ([u8; 16], [u8; 16]) = (at(8)?, at(24)?);
            Some((source.into(), destination.into(), 40))
        }
        _ => None,
    }
}

#[cfg(test)]
impl Syn {
    /// One of many, of which nothing but its flow is looked at.
    pub fn numbered(number: u32) -> Syn {
        let mut packet = [&[0x45][..], &[0; 39]].concat();
        packet[12..16].copy_from_slice(&number.to_be_bytes());
        Syn::read(&packet).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPABLE: [u8; 4] = [30, 4, 1, 1];

    /// A SYN whose options begin with this many NOPs; its checksum is right.
    fn syn(is_v6: bool, nops: usize) -> Vec<u8> {
        let mut segment =
            [&[0x9c, 0x40, 0x01, 0xbb, 1, 2, 3, 4, 0, 0, 0, 0, 0, 2][..], &[0; 6]].concat();
        segment.extend([&vec![1; nops][..], &[2, 4, 5, 0xb4], &CAPABLE, &[3, 3, 7]].concat());
        segment.resize(segment.len().next_multiple_of(4), 0);
        segment[12] = ((segment.len() / 4) as u8) << 4;
        let mut packet = match is_v6 {
            false => [&[0x45][..], &[0; 11], &[192, 0, 2, 1, 203, 0, 113, 10]].concat(),
            true => [&[0x60][..], &[0; 7], &[1; 16], &[2; 16]].concat(),
        };
        let sum = checksum::finish(sum(&packet, &segment));
        segment[CHECKSUM_AT..CHECKSUM_AT + 2].copy_from_slice(&sum.to_be_bytes());
        packet.extend(segment);
        packet
    }

    fn sum(header: &[u8], segment: &[u8]) -> u64 {
        let at = if header[0] >> 4 == 4 { 12 } else { 8 };
        let (source, destination) = header[at..].split_at((header.len() - at) / 2);
        checksum::pseudo_header(source, destination, 6, segment.len()) + checksum::sum(segment)
    }

    #[test]
    fn a_syn_is_read_and_loses_only_its_offer_of_several_paths() {
        for (is_v6, nops) in [(false, 0), (false, 1), (true, 0), (true, 3)] {
            let packet = syn(is_v6, nops);
            let mut syn = Syn::read(&packet).unwrap();
            assert!(syn.is_capable);
            assert_eq!(syn.sequence, 0x0102_0304);
            assert_eq!((syn.flow.client_port.get(), syn.flow.vip_port.get()), (40000, 443));
            syn.strip();
            assert!(!Syn::read(syn.packet()).unwrap().is_capable);
            let header = if is_v6 { 40 } else { 20 };
            let (ip, segment) = syn.packet().split_at(header);
            assert_eq!(checksum::finish(sum(ip, segment)), 0, "{nops}");
            let mut expected = packet.clone();
            let at = header + HEADER_BYTES + nops + 4;
            assert_eq!(expected[at..at + 4], CAPABLE);
            expected[at..at + 4].fill(1);
            let check = header + CHECKSUM_AT;
            expected[check..check + 2].copy_from_slice(&syn.packet()[check..check + 2]);
            assert_eq!(syn.packet(), expected);
        }
    }

    #[test]
    fn a_checksum_that_was_left_to_a_device_is_completed_and_no_other_is() {
        for is_v6 in [false, true] {
            let whole = syn(is_v6, 2);
            let header = if is_v6 { 40 } else { 20 };
            let check = header + CHECKSUM_AT..header + CHECKSUM_AT + 2;
            let (ip, segment) = whole.split_at(header);
            let pseudo = checksum::fold(sum(ip, segment) - checksum::sum(segment));
            let mut left = whole.clone();
            left[check.clone()].copy_from_slice(&pseudo.to_be_bytes());
            assert_eq!(Syn::read(&left).unwrap().packet(), whole);
            left[check.start] ^= 1;
            assert_eq!(Syn::read(&left).unwrap().packet(), left);
            assert_eq!(Syn::read(&whole).unwrap().packet(), whole);
        }
    }

    #[test]
    fn what_is_cut_off_is_none() {
        for is_v6 in [false, true] {
            let packet = syn(is_v6, 0);
            let header = if is_v6 { 40 } else { 20 };
            for length in 0..header + HEADER_BYTES {
                assert_eq!(Syn::read(&packet[..length]), None);
            }
        }
        assert_eq!(Syn::read(&[0x50; 80]), None);
    }
}
