//! The packet tracer (paper 4.4): marked packets are forwarded as usual, and every load
//! balancer on their path reports to the receiver named in the mark what it did with them.
//!
//! ```text
//!  IP packet of PACKET_BYTES | headers | padding | mark, 60 bytes |
//!
//!  mark   0 magic, 8   receiver, 16   port, 2   zero, 2   nonce, 8   unix ms, 8   MAC, 16
//! ```
//!
//! Other packets pay one comparison of their length. The MAC (HMAC-SHA-256 with a key derived
//! from the cluster's secret, truncated to 16 bytes) covers the mark and the five-tuple, so
//! only holders of the key can request reports. Old marks and repeated ones are ignored, and
//! reports are limited. Marked packets look up connections but never create one.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt::Write;
use std::net::{IpAddr, Ipv6Addr};

use arrayvec::ArrayString;
use hmac::{Hmac, KeyInit, Mac};
use plan::Plan;
use sha2::Sha256;
use wire::{
    EtherType, Family, FlowKey, Frame, Headers, MacAddress, Protocol, checksum, ethernet, ipv4,
    ipv6, udp,
};

use crate::clock::Now;
use crate::counters::Counters;
use crate::limiter::Limiter;
use crate::outbox::{Kind, Outbox};
use crate::recorder::Journey;
use crate::recursion_limit::RecursionLimit;
use crate::reply::{self, ReplyLink};
use crate::secret::Secret;
use crate::verdict::Verdict;
use crate::view::View;

/// Bytes of every marked IP packet: a prime that nothing else likes.
pub const PACKET_BYTES: u16 = 227;
/// Bytes of the mark, at the packet's end.
pub const MARK_BYTES: usize = 60;
/// Reports a second, of each worker.
pub const REPORTS_PER_SECOND: u64 = 100;
/// How far a mark's time may be from ours, in milliseconds.
pub const STALE_MS: u64 = 30_000;
/// UDP source port of reports.
pub const REPORT_PORT: u16 = 6079;

const MAGIC: [u8; 8] = *b"GWTRACE\x01";
const SIGNED_BYTES: usize = MARK_BYTES - 16;
/// Nonces remembered: those of all marks that may be reported on while the
/// first of them is not stale, from [`STALE_MS`] before to [`STALE_MS`] after
/// its own time; the limit lets a second's worth through at once. More are never
/// reported on, so none is repeated. 48 KiB for each worker.
const SEEN_MAX: usize = (REPORTS_PER_SECOND * (2 * STALE_MS / 1000 + 1)) as usize;

/// A mark that was recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// Where reports go.
    pub receiver: IpAddr,
    /// Its UDP port.
    pub port: u16,
    /// Of this trace alone.
    pub nonce: u64,
}

/// Recognises marks and limits reports.
pub struct Tracer {
    key: Option<[u8; 32]>,
    limiter: Limiter,
    /// Never more than it has room for from the start.
    seen: RefCell<VecDeque<u64>>,
}

impl std::fmt::Debug for Tracer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tracer")
    }
}

impl Tracer {
    /// For the cluster's secret; without one nothing is ever recognised.
    #[must_use]
    pub fn new(secret: &Secret) -> Tracer {
        Tracer {
            key: secret.trace_key(),
            limiter: Limiter::new(REPORTS_PER_SECOND),
            seen: RefCell::new(VecDeque::with_capacity(SEEN_MAX)),
        }
    }

    /// The packet's mark, if it has one that is to be reported on.
    #[inline]
    #[must_use]
    pub fn recognise(
        &self,
        frame: &Frame<'_>,
        headers: &Headers,
        now: Now,
        unix_ms: impl FnOnce() -> u64,
    ) -> Option<Mark> {
        if headers.packet_bytes != PACKET_BYTES {
            None
        } else {
            self.check(frame, headers, now, unix_ms())
        }
    }

    #[cold]
    fn check(&self, frame: &Frame<'_>, headers: &Headers, now: Now, unix_ms: u64) -> Option<Mark> {
        let end = ethernet::HEADER_BYTES + usize::from(PACKET_BYTES);
        let bytes: &[u8; MARK_BYTES] = frame.bytes().get(..end)?.last_chunk()?;
        if bytes[..8] != MAGIC {
            return None;
        }
        let word =
            |at: usize| u64::from_be_bytes(*bytes[at..].first_chunk().expect("the mark is longer"));
        let (nonce, time) = (word(28), word(36));
        if time.abs_diff(unix_ms) > STALE_MS
            || !reply::may_answer(headers)
            || !self.is_signed(bytes, &headers.key)
            || self.seen.borrow().contains(&nonce)
            || !self.limiter.allows(now)
        {
            return None;
        }
        let receiver = Ipv6Addr::from_bits(u128::from_be_bytes(*bytes[8..].first_chunk()?));
        let port = u16::from_be_bytes([bytes[24], bytes[25]]);
        self.remember(nonce);
        Some(Mark { receiver: receiver.to_canonical(), port, nonce })
    }

    fn is_signed(&self, mark: &[u8; MARK_BYTES], key: &FlowKey) -> bool {
        let Some(secret) = &self.key else { return false };
        authenticator(secret, &mark[..SIGNED_BYTES], key)
            .verify_truncated_left(&mark[SIGNED_BYTES..])
            .is_ok()
    }

    fn remember(&self, nonce: u64) {
        let mut seen = self.seen.borrow_mut();
        if seen.len() == SEEN_MAX {
            seen.pop_front();
        }
        seen.push_back(nonce);
    }
}

/// The mark's bytes, for senders of marked packets.
#[must_use]
pub fn sign(secret: &[u8; 32], mark: &Mark, unix_ms: u64, key: &FlowKey) -> [u8; MARK_BYTES] {
    let receiver = match mark.receiver {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    let mut bytes = [0; MARK_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..24].copy_from_slice(&receiver.octets());
    bytes[24..26].copy_from_slice(&mark.port.to_be_bytes());
    bytes[28..36].copy_from_slice(&mark.nonce.to_be_bytes());
    bytes[36..44].copy_from_slice(&unix_ms.to_be_bytes());
    let mac = authenticator(secret, &bytes[..SIGNED_BYTES], key).finalize().into_bytes();
    bytes[SIGNED_BYTES..].copy_from_slice(&mac[..MARK_BYTES - SIGNED_BYTES]);
    bytes
}

/// Over the mark, then family (4 or 6), protocol, source, destination (16
/// bytes each, IPv4 in the last four) and ports.
fn authenticator(secret: &[u8; 32], signed: &[u8], key: &FlowKey) -> Hmac<Sha256> {
    let family = match key.family {
        Family::V4 => 4,
        Family::V6 => 6,
    };
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("a key of any length");
    mac.update(signed);
    mac.update(&[family, key.protocol.0]);
    mac.update(&key.source.to_be_bytes());
    mac.update(&key.destination.to_be_bytes());
    mac.update(&key.source_port.to_be_bytes());
    mac.update(&key.destination_port.to_be_bytes());
    mac
}

/// Who reports.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reporter<'v> {
    /// What it forwards by.
    pub view: &'v View,
    /// Its worker; the number of workers for the slow path.
    pub worker: usize,
    /// Where a report that cannot be made is counted.
    pub counters: &'v Counters,
}

/// A marked packet as it arrived.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Traced {
    mark: Mark,
    link: [u8; ethernet::HEADER_BYTES],
    recursion_limit: RecursionLimit,
}

impl Traced {
    /// The packet in a frame that was parsed.
    pub(crate) fn new(mark: Mark, frame: &Frame<'_>, recursion_limit: RecursionLimit) -> Traced {
        let link = *frame.bytes().first_chunk().expect("it was parsed");
        Traced { mark, link, recursion_limit }
    }
}

impl Reporter<'_> {
    /// Sends the report on a marked packet: what became of it, and by which
    /// journey. `frame` is what it has become.
    pub(crate) fn report(
        self,
        traced: &Traced,
        verdict: Verdict,
        journey: &Journey,
        frame: &Frame<'_>,
        outbox: &mut Outbox<'_>,
    ) {
        let mut text = ArrayString::new();
        let back = self.view.return_paths.of(frame, Family::of(traced.mark.receiver));
        let report = write_text(&mut text, self, traced, verdict, journey)
            .ok()
            .and_then(|()| datagram(&self.view.plan, traced, back.link, &text, outbox));
        match report {
            Some(report) => outbox.push(Kind::Report.into(), back.device, report),
            None => self.counters.originated_lost.add(1),
        }
    }
}

/// The report as a frame, to the link addresses given or, without any, back to
/// whom the packet came from; None: no memory, or no own address of the
/// receiver's family.
fn datagram<'m>(
    plan: &Plan,
    traced: &Traced,
    link: Option<ReplyLink>,
    text: &str,
    outbox: &mut Outbox<'m>,
) -> Option<Frame<'m>> {
    let (header, header_bytes, ether_type) = ip_header(plan, &traced.mark, text.len())?;
    let link = match link {
        Some(link) => ethernet::emit(link.source, link.destination, ether_type),
        None => ethernet::emit(mac(&traced.link[..6]), mac(&traced.link[6..12]), ether_type),
    };
    let datagram_bytes = (udp::HEADER_BYTES + text.len()) as u16;
    let mut datagram = udp::emit(REPORT_PORT, traced.mark.port, datagram_bytes, 0);
    let addresses = if ether_type == EtherType::IPV4 { 12..20 } else { 8..40 };
    let sum = checksum::sum(&header[addresses])
        + u64::from(Protocol::UDP.0)
        + u64::from(datagram_bytes)
        + checksum::sum(&datagram)
        + checksum::sum(text.as_bytes());
    let sum = checksum::finish(sum);
    datagram[6..8].copy_from_slice(&(if sum == 0 { 0xffff } else { sum }).to_be_bytes());
    outbox.copy_of(&[&link, &header[..header_bytes], &datagram, text.as_bytes()])
}

fn mac(bytes: &[u8]) -> MacAddress {
    MacAddress(*bytes.first_chunk().expect("six bytes"))
}

/// From this machine to the receiver.
fn ip_header(
    plan: &Plan,
    mark: &Mark,
    text_bytes: usize,
) -> Option<([u8; ipv6::HEADER_BYTES], usize, EtherType)> {
    const TTL: u8 = 64;
    let datagram_bytes = udp::HEADER_BYTES + text_bytes;
    let mut bytes = [0; ipv6::HEADER_BYTES];
    match mark.receiver {
        IpAddr::V4(receiver) => {
            let header = ipv4::Emit {
                packet_bytes: (ipv4::HEADER_BYTES + datagram_bytes) as u16,
                traffic_class: 0,
                id: 0,
                flags: ipv4::DONT_FRAGMENT,
                ttl: TTL,
                protocol: Protocol::UDP,
                source: plan.source_v4?,
                destination: receiver.to_bits(),
            };
            bytes[..ipv4::HEADER_BYTES].copy_from_slice(&header.to_bytes());
            Some((bytes, ipv4::HEADER_BYTES, EtherType::IPV4))
        }
        IpAddr::V6(receiver) => {
            let header = ipv6::Emit {
                payload_bytes: datagram_bytes as u16,
                traffic_class: 0,
                flow_label: 0,
                hop_limit: TTL,
                protocol: Protocol::UDP,
                source: plan.source_v6?,
                destination: receiver.to_bits(),
            };
            bytes.copy_from_slice(&header.to_bytes());
            Some((bytes, ipv6::HEADER_BYTES, EtherType::IPV6))
        }
    }
}

/// One JSON object.
fn write_text(
    text: &mut ArrayString<1024>,
    reporter: Reporter<'_>,
    traced: &Traced,
    verdict: Verdict,
    journey: &Journey,
) -> std::fmt::Result {
    let plan = &reporter.view.plan;
    write!(text, "{{\"nonce\":\"{:016x}\",\"machine\":", traced.mark.nonce)?;
    write_string(text, &plan.machine)?;
    write!(
        text,
        ",\"generation\":{},\"worker\":{},\"budget\":{}",
        plan.generation, reporter.worker, traced.recursion_limit.0
    )?;
    if let Some(service) = journey.matched.as_ref().map(|matched| plan.service_of(matched)) {
        text.write_str(",\"service\":")?;
        write_string(text, &service.name)?;
    }
    if let Some(matched) =
        journey.matched.and_then(|matched| plan.matches.get(matched.matched as usize))
    {
        write!(text, ",\"matched\":\"{} {} {}\"", matched.target, matched.protocol, matched.ports)?;
    }
    write!(text, ",\"table\":\"{}\"", journey.lookup.name())?;
    if let Some(slot) = journey.slot {
        write!(text, ",\"slot\":{slot}")?;
    }
    if journey.second_chance {
        text.write_str(",\"second_chance\":true")?;
    }
    if let Some(backend) = journey.backend.and_then(|id| plan.backend(id)) {
        text.write_str(",\"backend\":")?;
        write_string(text, &backend.name)?;
    }
    if let Verdict::Drop(reason) = verdict {
        write!(text, ",\"reason\":\"{}\"", reason.name())?;
    }
    write!(text, ",\"verdict\":\"{}\"}}", verdict.name())
}

fn write_string(text: &mut ArrayString<1024>, value: &str) -> std::fmt::Result {
    text.write_char('"')?;
    for character in value.chars() {
        match character {
            '"' | '\\' => write!(text, "\\{character}")?,
            control if control.is_control() => write!(text, "\\u{:04x}", u32::from(control))?,
            other => text.write_char(other)?,
        }
    }
    text.write_char('"')
}
