//! The end of the journey: encapsulate, or deal with a packet that does not
//! fit its path.

use wire::{Facts, Family, Frame, Headers, Protocol, headers};

use crate::clock::Now;
use crate::counters::Counters;
use crate::drop_reason::DropReason;
use crate::encapsulate::{Misfit, Outer, encapsulate, inside_bytes_min};
use crate::flow_hash::FlowHash;
use crate::fragmentation;
use crate::limiter::FairLimiter;
use crate::outbox::{Kind, Outbox};
use crate::packet::Packet;
use crate::reply::{self, WaysBack};
use crate::table::Class;
use crate::verdict::Verdict;

/// "Too big" answers a second, of each worker (RFC 1812 section 4.3.2.8
/// wants a limit): so many about connections that are established, and so many
/// about all others.
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
    pub fn of(&self, class: Option<Class>) -> &FairLimiter {
        match class {
            None | Some(Class::Unconfirmed) => &self.rest,
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
    /// By which it tells sources apart.
    pub hash: &'a FlowHash,
    /// The moment.
    pub now: Now,
    /// Where they go.
    pub ways_back: &'a WaysBack,
}

/// Encapsulates the packet. One that does not fit is answered, if it must not
/// be fragmented; otherwise its pieces are encapsulated one by one.
#[inline(always)]
pub fn send<'m, 'a>(
    frame: &mut Frame<'_>,
    facts: &Facts,
    hash: u64,
    outer: &Outer,
    answering: impl FnOnce(&Headers) -> Answering<'a>,
    outbox: &mut Outbox<'m>,
) -> Result<Verdict, DropReason> {
    match encapsulate(frame, facts, hash, outer) {
        Ok(()) => Ok(Verdict::Send(outer.device)),
        Err(misfit) => {
            let headers = headers_of(frame, *facts);
            match remedy(&headers) {
                Remedy::Answer => answer(frame, &headers, misfit, answering(&headers)),
                Remedy::Fragment => send_pieces(frame, &headers, hash, misfit, outer, outbox),
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

/// The headers of a frame of which these facts were read, and which was not
/// changed since: for the few that need more than the facts.
#[must_use]
#[cold]
#[inline(never)]
pub fn headers_of(frame: &Frame<'_>, facts: Facts) -> Headers {
    let headers = headers::parse(frame.bytes()).ok().flatten().expect("it was parsed before");
    // A tunnel that it came in may have met congestion.
    Headers { traffic_class: facts.traffic_class, ..headers }
}

/// Sends the packet to another load balancer, in GRE that permits less than
/// the packet came with.
#[cold]
pub(crate) fn redirect<'m>(
    frame: &mut Frame<'_>,
    packet: &Packet<'_>,
    outer: &Outer,
    answering: Answering<'_>,
    outbox: &mut Outbox<'m>,
) -> Result<Verdict, DropReason> {
    let facts = packet.headers.facts();
    Ok(match send(frame, &facts, packet.hash, outer, |_| answering, outbox)? {
        Verdict::Send(device) => Verdict::Redirect(device),
        other => other,
    })
}

#[cold]
fn answer(
    frame: &mut Frame<'_>,
    headers: &Headers,
    misfit: Misfit,
    answering: Answering<'_>,
) -> Result<Verdict, DropReason> {
    let back = answering.ways_back.of(frame, headers.key.family);
    let mtu = match headers.key.family {
        Family::V4 => misfit.mtu,
        // Less is no answer: hosts ignore it (RFC 8201 section 4).
        Family::V6 => misfit.mtu.max(inside_bytes_min(Family::V6)),
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
    misfit: Misfit,
    outer: &Outer,
    outbox: &mut Outbox<'m>,
) -> Result<Verdict, DropReason> {
    let wrap = |frame: &mut Frame<'_>, packet_bytes| {
        encapsulate(frame, &Facts { packet_bytes, ..headers.facts() }, hash, outer)
            .expect("pieces are cut to fit")
    };
    let first_bytes = fragmentation::split(
        frame,
        headers,
        misfit.mtu,
        outbox,
        |outbox, mut piece, packet_bytes| {
            wrap(&mut piece, packet_bytes);
            outbox.push(Kind::Fragment.into(), Some(outer.device), piece);
        },
    );
    wrap(frame, first_bytes.ok_or(DropReason::TooBig)?);
    Ok(Verdict::Send(outer.device))
}
