//! The end of the journey: encapsulates a packet, or handles one that does not fit its path.

use wire::{Family, Frame, Headers, PacketMeta, Protocol, headers};

use crate::clock::Now;
use crate::counters::Counters;
use crate::drop_reason::DropReason;
use crate::encapsulate::{
    HeaderTemplate, IPV6_BYTES_MIN, Unsendable, encapsulate, encapsulate_with_options,
};
use crate::flow_hash::FlowHash;
use crate::fragmentation;
use crate::limiter::FairLimiter;
use crate::outbox::{Kind, Outbox};
use crate::packet::Packet;
use crate::reply::{self, ReturnPaths};
use crate::table::EntryClass;
use crate::verdict::Verdict;

/// "Too big" answers a second, of each worker (RFC 1812 section 4.3.2.8
/// requires a limit): as many about connections that are established, and as
/// many about all others.
pub const ANSWERS_PER_SECOND: u64 = 1000;

/// The limits on "too big" answers. Forged packets, whose sources can be
/// anything, take nothing from connections that are established.
#[derive(Debug)]
pub struct AnswerLimits {
    established: FairLimiter,
    rest: FairLimiter,
}

impl Default for AnswerLimits {
    fn default() -> AnswerLimits {
        let limiter = || FairLimiter::new(ANSWERS_PER_SECOND);
        AnswerLimits { established: limiter(), rest: limiter() }
    }
}

impl AnswerLimits {
    /// The one for packets of a flow whose entry has that class.
    #[must_use]
    pub fn of(&self, class: Option<EntryClass>) -> &FairLimiter {
        match class {
            None | Some(EntryClass::Unconfirmed) => &self.rest,
            Some(_) => &self.established,
        }
    }
}

/// What answers need.
#[derive(Debug, Clone, Copy)]
pub struct Answering<'a> {
    /// Where answers are counted.
    pub counters: &'a Counters,
    /// Their limit.
    pub limiter: &'a FairLimiter,
    /// By which it distinguishes sources.
    pub hash: &'a FlowHash,
    /// The moment.
    pub now: Now,
    /// Where they go.
    pub return_paths: &'a ReturnPaths,
}

/// What goes in front of a packet.
#[derive(Debug, Clone, Copy)]
pub struct OuterHeaders<'v> {
    /// The outer headers.
    pub template: &'v HeaderTemplate,
    /// Options behind them, as bytes, where the packet carries such.
    pub options: Option<&'v [u8]>,
}

impl<'v> From<&'v HeaderTemplate> for OuterHeaders<'v> {
    fn from(template: &'v HeaderTemplate) -> OuterHeaders<'v> {
        OuterHeaders { template, options: None }
    }
}

impl OuterHeaders<'_> {
    /// Puts them in front of the packet: see [`encapsulate`].
    #[inline(always)]
    pub(crate) fn encapsulate(
        &self,
        frame: &mut Frame<'_>,
        meta: &PacketMeta,
        hash: u64,
    ) -> Result<(), Unsendable> {
        match self.options {
            None => encapsulate(frame, meta, hash, self.template),
            Some(options) => encapsulate_with_options(frame, meta, hash, self.template, options),
        }
    }
}

/// Encapsulates the packet. One that does not fit is answered, if it must not
/// be fragmented; otherwise its pieces are encapsulated one by one.
#[inline(always)]
pub fn send<'m, 'a>(
    frame: &mut Frame<'_>,
    meta: &PacketMeta,
    hash: u64,
    outer: OuterHeaders<'_>,
    answering: impl FnOnce(&Headers) -> Answering<'a>,
    outbox: &mut Outbox<'m>,
) -> Result<Verdict, DropReason> {
    match outer.encapsulate(frame, meta, hash) {
        Ok(()) => Ok(Verdict::Send(outer.template.device)),
        Err(Unsendable::HopLimit) => Err(DropReason::HopLimit),
        Err(Unsendable::TooBig { mtu }) => {
            let headers = headers_of(frame, *meta);
            match remedy(&headers) {
                Remedy::Answer => answer(frame, &headers, mtu, answering(&headers)),
                Remedy::Fragment => send_pieces(frame, &headers, hash, mtu, outer, outbox),
                Remedy::Drop => Err(DropReason::TooBig),
            }
        }
    }
}

/// What is done about a packet that does not fit.
enum Remedy {
    /// "Too big", which says what would fit.
    Answer,
    /// It is sent in pieces.
    Fragment,
    Drop,
}

#[cold]
fn remedy(headers: &Headers) -> Remedy {
    // Of ICMP only errors are sent on, and those are not answered (RFC 1122).
    let is_error = matches!(headers.key.protocol, Protocol::ICMP | Protocol::ICMPV6);
    match headers.key.family {
        _ if headers.dont_fragment && !is_error => Remedy::Answer,
        Family::V4 => Remedy::Fragment,
        // IPv6 is fragmented by its sender alone.
        Family::V6 => Remedy::Drop,
    }
}

/// The headers of a frame that has this meta, and was not changed since: for
/// the few packets that need more.
#[must_use]
#[cold]
#[inline(never)]
pub fn headers_of(frame: &Frame<'_>, meta: PacketMeta) -> Headers {
    let headers = headers::parse(frame.bytes()).ok().flatten().expect("it was parsed before");
    // A tunnel that it came in may have met congestion.
    Headers { traffic_class: meta.traffic_class, ..headers }
}

/// Sends the packet to another load balancer, in GRE that permits less than
/// the packet came with.
#[cold]
pub(crate) fn redirect<'m>(
    frame: &mut Frame<'_>,
    packet: &Packet<'_>,
    template: &HeaderTemplate,
    answering: Answering<'_>,
    outbox: &mut Outbox<'m>,
) -> Result<Verdict, DropReason> {
    let meta = packet.headers.meta();
    Ok(match send(frame, &meta, packet.hash, template.into(), |_| answering, outbox)? {
        Verdict::Send(device) => Verdict::Redirect(device),
        other => other,
    })
}

#[cold]
fn answer(
    frame: &mut Frame<'_>,
    headers: &Headers,
    mtu: u16,
    answering: Answering<'_>,
) -> Result<Verdict, DropReason> {
    let back = answering.return_paths.of(frame, headers.key.family);
    let mtu = match headers.key.family {
        Family::V4 => mtu,
        // Less is no answer: hosts ignore it (RFC 8201 section 4).
        Family::V6 => mtu.max(IPV6_BYTES_MIN),
    };
    let answered = headers.packet_bytes > mtu
        && reply::may_answer(headers)
        && answering.limiter.allows(answering.now, answering.hash.source_prefix(&headers.key))
        && reply::too_big(frame, headers, mtu, back.link);
    if !answered {
        return Err(DropReason::TooBig);
    }
    answering.counters.too_big_answered.add(1);
    Ok(back.verdict())
}

#[cold]
fn send_pieces<'m>(
    frame: &mut Frame<'_>,
    headers: &Headers,
    hash: u64,
    mtu: u16,
    outer: OuterHeaders<'_>,
    outbox: &mut Outbox<'m>,
) -> Result<Verdict, DropReason> {
    let device = outer.template.device;
    let wrap = |frame: &mut Frame<'_>, packet_bytes| {
        outer
            .encapsulate(frame, &PacketMeta { packet_bytes, ..headers.meta() }, hash)
            .expect("pieces are cut to fit")
    };
    let first_bytes =
        fragmentation::split(frame, headers, mtu, outbox, |outbox, mut piece, packet_bytes| {
            wrap(&mut piece, packet_bytes);
            outbox.push(Kind::Fragment.into(), Some(device), piece);
        });
    wrap(frame, first_bytes.ok_or(DropReason::TooBig)?);
    Ok(Verdict::Send(device))
}
