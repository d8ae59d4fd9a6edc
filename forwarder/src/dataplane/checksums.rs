//! Detects frames without complete checksums. A sender that leaves them to its device
//! (`tx-checksum` on veth and virtio) writes the pseudo-header's sum instead. If no device on
//! the path completes them, as between namespaces and virtual machines of one host, XDP gets
//! them so, and backends drop the forwarded packets.
//!
//! Each worker checks a frame of each device now and then; others read its findings.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use wire::{Batch, Fragment, Protocol, checksum, ethernet};

/// Between two frames of a device that are looked at.
const INTERVAL_MS: u64 = 50;

/// So many in a row are no accident: by chance it is one frame in 65,536.
const RUN: u32 = 16;

/// Devices are numbered in a byte.
const DEVICES: usize = 256;

/// What a worker has seen, by device.
#[derive(Debug)]
pub struct ChecksumSamples {
    now_ms: AtomicU64,
    devices: Box<[Samples]>,
}

#[derive(Debug, Default)]
struct Samples {
    due_ms: AtomicU64,
    /// Incomplete ones since the last complete one.
    run: AtomicU32,
    complete: AtomicU64,
    incomplete: AtomicU64,
}

impl Default for ChecksumSamples {
    fn default() -> ChecksumSamples {
        let devices = std::iter::repeat_with(Samples::default).take(DEVICES).collect();
        ChecksumSamples { now_ms: AtomicU64::new(0), devices }
    }
}

impl ChecksumSamples {
    /// Sets the time; the worker's, once a round.
    #[inline]
    pub fn begin(&self, now_ms: u64) {
        self.now_ms.store(now_ms, Ordering::Relaxed);
    }

    /// Looks at a batch's first frame, if one of its device is due; the worker's alone.
    #[inline]
    pub fn look(&self, batch: &Batch<'_>, device: usize) {
        let now_ms = self.now_ms.load(Ordering::Relaxed);
        let samples = &self.devices[device % DEVICES];
        if now_ms >= samples.due_ms.load(Ordering::Relaxed)
            && let Some(frame) = batch.first()
        {
            samples.due_ms.store(now_ms + INTERVAL_MS, Ordering::Relaxed);
            samples.note(frame.bytes());
        }
    }

    /// True if the latest frames of the device that were looked at had no checksums.
    #[must_use]
    pub fn are_incomplete(&self, device: usize) -> bool {
        self.devices[device % DEVICES].run.load(Ordering::Relaxed) >= RUN
    }

    /// How many frames of a device were complete, and how many were not.
    #[must_use]
    pub fn counts(&self, device: usize) -> [u64; 2] {
        let samples = &self.devices[device % DEVICES];
        [&samples.complete, &samples.incomplete].map(|count| count.load(Ordering::Relaxed))
    }
}

impl Samples {
    #[cold]
    fn note(&self, frame: &[u8]) {
        let add = |count: &AtomicU64| {
            count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        };
        match is_complete(frame) {
            None => {}
            Some(true) => {
                add(&self.complete);
                self.run.store(0, Ordering::Relaxed);
            }
            Some(false) => {
                add(&self.incomplete);
                let run = self.run.load(Ordering::Relaxed).saturating_add(1);
                self.run.store(run, Ordering::Relaxed);
            }
        }
    }
}

/// False where the checksum is the pseudo-header's sum alone; None: it has none.
fn is_complete(frame: &[u8]) -> Option<bool> {
    let headers = wire::headers::parse(frame).ok()??;
    let check_at = match headers.key.protocol {
        Protocol::TCP => 16,
        Protocol::UDP => 6,
        _ => return None,
    };
    let packet = frame.get(ethernet::HEADER_BYTES..)?.get(..headers.packet_bytes.into())?;
    let segment = packet.get(headers.transport_offset.into()..)?;
    let written = u16::from_be_bytes([*segment.get(check_at)?, *segment.get(check_at + 1)?]);
    let is_absent = headers.key.protocol == Protocol::UDP && written == 0;
    if headers.fragment != Fragment::Whole || is_absent {
        return None;
    }
    let bytes = headers.key.family.address_bits() as usize / 8;
    let [source, destination] =
        [headers.key.source, headers.key.destination].map(|address| address.to_be_bytes());
    let (source, destination) = (&source[16 - bytes..], &destination[16 - bytes..]);
    let protocol = headers.key.protocol.0;
    let sum = checksum::pseudo_header(source, destination, protocol, segment.len());
    Some(written != checksum::fold(sum))
}

#[cfg(test)]
mod tests {
    use wire::{EtherType, Family, MacAddress, ipv4, ipv6, udp};

    use super::*;

    /// A datagram, with its checksum or the pseudo-header's sum alone.
    fn frame(family: Family, is_complete: bool, source_port: u16) -> Vec<u8> {
        let mut segment = [&udp::emit(source_port, 53, 12, 0)[..], b"data"].concat();
        let (ip, source, destination) = match family {
            Family::V4 => {
                let header = ipv4::Emit {
                    packet_bytes: 32,
                    traffic_class: 0,
                    id: 0,
                    flags: 0,
                    ttl: 64,
                    protocol: Protocol::UDP,
                    source: 0x0a00_0001,
                    destination: 0x0a00_0002,
                };
                (header.to_bytes().to_vec(), vec![10, 0, 0, 1], vec![10, 0, 0, 2])
            }
            Family::V6 => {
                let header = ipv6::Emit {
                    payload_bytes: 12,
                    traffic_class: 0,
                    flow_label: 0,
                    hop_limit: 64,
                    protocol: Protocol::UDP,
                    source: 1,
                    destination: 2,
                };
                let address = |last: u128| last.to_be_bytes().to_vec();
                (header.to_bytes().to_vec(), address(1), address(2))
            }
        };
        let pseudo = checksum::pseudo_header(&source, &destination, 17, segment.len());
        let written = match is_complete {
            true => checksum::finish(pseudo + checksum::sum(&segment)),
            false => checksum::fold(pseudo),
        };
        segment[6..8].copy_from_slice(&written.to_be_bytes());
        let ether_type = if family == Family::V4 { EtherType::IPV4 } else { EtherType::IPV6 };
        let ethernet = ethernet::emit(MacAddress([2; 6]), MacAddress([4; 6]), ether_type);
        [&ethernet[..], &ip, &segment].concat()
    }

    #[test]
    fn a_checksum_that_is_left_to_a_device_is_told_from_one_that_is_there() {
        for family in [Family::V4, Family::V6] {
            for port in 0..2000 {
                assert_eq!(is_complete(&frame(family, true, port)), Some(true), "{port}");
                assert_eq!(is_complete(&frame(family, false, port)), Some(false), "{port}");
            }
            let mut without = frame(family, true, 1);
            let at = without.len() - 12 + 6;
            without[at..at + 2].fill(0);
            assert_eq!(is_complete(&without), None, "a datagram may have none");
            for length in 0..without.len() {
                assert_eq!(is_complete(&frame(family, true, 1)[..length]), None, "{length}");
            }
        }
    }

    #[test]
    fn only_many_in_a_row_are_told() {
        let samples = Samples::default();
        let all = |kinds: &[bool]| {
            kinds.iter().for_each(|is| samples.note(&frame(Family::V4, *is, 7)));
            samples.run.load(Ordering::Relaxed) >= RUN
        };
        assert!(!all(&[false; RUN as usize - 1]));
        assert!(!all(&[true]));
        assert!(!all(&[false; RUN as usize - 1]));
        assert!(all(&[false]));
        assert!(!all(&[true]), "another sender");
    }
}
