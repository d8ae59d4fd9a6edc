//! The end of the journey: encapsulate, or deal with a packet that does not
//! fit its path.

use wire::{Family, Frame, Headers};

use crate::clock::Now;
use crate::counters::Counters;
use crate::drop_reason::DropReason;
use crate::egress::{Hop, Tunnel};
use crate::encapsulate::{Inner, Misfit, Style, encapsulate};
use crate::fragment;
use crate::limiter::Limiter;
use crate::outbox::{Kind, Outbox};
use crate::reply::{self, ReplyLink};
use crate::verdict::Verdict;

/// "Too big" answers a second, of each worker (RFC 1812 section 4.3.2.8
/// wants a limit).
pub const ANSWERS_PER_SECOND: u64 = 1000;

/// The way to a backend.
#[derive(Debug, Clone, Copy)]
pub struct Way<'v> {
    /// The tunnel.
    pub tunnel: &'v Tunnel,
    /// The next hop.
    pub hop: &'v Hop,
    /// How packets are encapsulated.
    pub style: Style,
}

/// What answers need.
#[derive(Debug, Clone, Copy)]
pub struct Answering<'a> {
    /// Where answers are counted.
    pub counters: &'a Counters,
    /// Their limit.
    pub limiter: &'a Limiter,
    /// The moment.
    pub now: Now,
    /// Their link addresses.
    pub link: Option<ReplyLink>,
}

/// Encapsulates the packet. One that does not fit is answered, if it must not
/// be fragmented; otherwise its pieces are encapsulated one by one.
#[inline(always)]
pub fn send<'m, 'a>(
    frame: &mut Frame<'_>,
    headers: &Headers,
    hash: u64,
    Way { tunnel, hop, style }: Way<'_>,
    answering: impl FnOnce() -> Answering<'a>,
    outbox: &mut Outbox<'m>,
) -> Result<Verdict, DropReason> {
    match encapsulate(frame, &Inner::new(headers, hash), style, tunnel, hop) {
        Ok(()) => Ok(Verdict::Send(hop.device)),
        // Scalars only: what the cold path gets by address, the hot path
        // would have to keep in memory.
        Err(misfit) => {
            send_misfit(frame, headers, (hash, misfit), (tunnel, hop), style, answering(), outbox)
        }
    }
}

#[cold]
#[inline(never)]
fn send_misfit<'m>(
    frame: &mut Frame<'_>,
    headers: &Headers,
    (hash, misfit): (u64, Misfit),
    (tunnel, hop): (&Tunnel, &Hop),
    style: Style,
    answering: Answering<'_>,
    outbox: &mut Outbox<'m>,
) -> Result<Verdict, DropReason> {
    if headers.dont_fragment {
        return answer(frame, headers, misfit, answering);
    }
    if headers.key.family == Family::V6 {
        // An ICMPv6 error: not to be answered, and nobody on the way fragments IPv6.
        return Err(DropReason::TooBig);
    }
    send_pieces(
        frame,
        headers,
        Inner::new(headers, hash),
        misfit,
        Way { tunnel, hop, style },
        outbox,
    )
}

/// Sends the packet to another load balancer, in GRE that permits less than
/// the packet came with.
#[cold]
pub fn redirect<'m>(
    frame: &mut Frame<'_>,
    headers: &Headers,
    hash: u64,
    way: Way<'_>,
    answering: Answering<'_>,
    outbox: &mut Outbox<'m>,
) -> Result<Verdict, DropReason> {
    Ok(match send(frame, headers, hash, way, || answering, outbox)? {
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
    let answered = reply::may_answer(headers)
        && answering.limiter.allows(answering.now)
        && reply::too_big(frame, headers, misfit.mtu, answering.link);
    if !answered {
        return Err(DropReason::TooBig);
    }
    answering.counters.too_big_answered.add(1);
    Ok(Verdict::Reply)
}

#[cold]
fn send_pieces<'m>(
    frame: &mut Frame<'_>,
    headers: &Headers,
    inner: Inner,
    misfit: Misfit,
    way: Way<'_>,
    outbox: &mut Outbox<'m>,
) -> Result<Verdict, DropReason> {
    let wrap = |frame: &mut Frame<'_>, packet_bytes| {
        encapsulate(frame, &Inner { packet_bytes, ..inner }, way.style, way.tunnel, way.hop)
            .expect("pieces are cut to fit")
    };
    let first_bytes =
        fragment::split(frame, headers, misfit.mtu, outbox, |outbox, mut piece, packet_bytes| {
            wrap(&mut piece, packet_bytes);
            outbox.push(Kind::Fragment, Some(way.hop.device), piece);
        });
    wrap(frame, first_bytes.ok_or(DropReason::TooBig)?);
    Ok(Verdict::Send(way.hop.device))
}
