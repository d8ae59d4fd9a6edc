//! Tunnelled ingress: packets that a peer, a router's encapsulator or another cluster
//! encapsulated.
//!
//! GRE's recursion control says how many further encapsulations are permitted (RFC 1701). From
//! a peer, zero is refused; from an encapsulator, zero means a new packet, because routers do
//! not set these bits.

use plan::{Ingress, Sender};
use wire::tunnel::Parsed;
use wire::{Encap, Fragment, Frame, Headers, ethernet, headers};

use crate::drop_reason::DropReason;
use crate::recursion_limit::RecursionLimit;

/// Takes the outer headers off; gives the inner packet's headers and its
/// recursion limit.
///
/// # Errors
/// If the sender is neither a peer nor an encapsulator, or either packet is malformed.
#[cold]
pub fn decapsulate(
    frame: &mut Frame<'_>,
    outer: &Headers,
    ingress: &Ingress,
) -> Result<(Headers, RecursionLimit), DropReason> {
    let sender = ingress
        .sender(outer.key.family, outer.key.source)
        .ok_or(DropReason::UntrustedTunnelSource)?;
    if outer.fragment != Fragment::Whole {
        return Err(DropReason::TunnelFragment);
    }
    let start = ethernet::HEADER_BYTES + usize::from(outer.transport_offset);
    frame.truncate(ethernet::HEADER_BYTES + usize::from(outer.packet_bytes));
    let tunnel = tunnel_of(sender, outer, &frame.bytes()[start..])?;
    let recursion_limit = match (sender, tunnel.recursion) {
        (Sender::Peer, 0) => return Err(DropReason::Recursion),
        (Sender::Encapsulator, 0) => RecursionLimit::FRESH,
        (_, permitted) => RecursionLimit(permitted),
    };
    let mut link: [u8; ethernet::HEADER_BYTES] =
        *frame.bytes().first_chunk().expect("it was parsed");
    link[12..].copy_from_slice(&tunnel.inner.0.to_be_bytes());
    let front = frame.replace_front(start + tunnel.header_bytes, ethernet::HEADER_BYTES);
    front.ok_or(DropReason::TunnelHeader)?.copy_from_slice(&link);
    let mut inner = headers::parse(frame.bytes())?.ok_or(DropReason::TunnelHeader)?;
    // A peer's own request (a probe) is answered to the peer, which it came from.
    if ingress.sender(inner.key.family, inner.key.source) != Some(Sender::Peer) {
        frame.set_tunnelled();
    }
    frame.set_outer_ecn(outer.traffic_class & ECN);
    inner.traffic_class = carry_congestion(frame, inner.traffic_class)?;
    Ok((inner, recursion_limit))
}

/// The tunnel's header, if that sender may have written it: options (checksum, key
/// or sequence number of GRE) come from encapsulators only.
fn tunnel_of(sender: Sender, outer: &Headers, payload: &[u8]) -> Result<Parsed, DropReason> {
    let encap = Encap::of(&outer.key).ok_or(DropReason::TunnelHeader)?;
    let parsed = encap.parse(outer.key.protocol, payload).ok_or(DropReason::TunnelHeader)?;
    let has_options = parsed.header_bytes != encap.front_bytes();
    let is_from_peer = sender == Sender::Peer && encap.description().recursion_control;
    if has_options && is_from_peer || !encap.is_checksum_valid(payload) {
        return Err(DropReason::TunnelHeader);
    }
    Ok(parsed)
}

const ECN: u8 = 0b11;

/// RFC 6040 section 4.2, on the way out of a tunnel: congestion met in it is
/// carried on (in the next outer header; the inner packet stays as it is),
/// and a packet that is not ECN-capable is dropped. Gives the inner packet's traffic
/// class with that, for those who read its headers.
pub(crate) fn carry_congestion(frame: &Frame<'_>, inner: u8) -> Result<u8, DropReason> {
    const CE: u8 = 0b11;
    const ECT_0: u8 = 0b10;
    const ECT_1: u8 = 0b01;
    match (frame.outer_ecn(), inner & ECN) {
        (CE, 0) => Err(DropReason::CeOnNotEct),
        (CE, _) => Ok(inner | CE),
        (ECT_1, ECT_0) => Ok(inner & !ECN | ECT_1),
        _ => Ok(inner),
    }
}
