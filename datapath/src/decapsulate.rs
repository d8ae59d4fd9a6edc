//! Tunnelled ingress: packets that a peer, a router's encapsulator or another
//! cluster wrapped before they reached us.
//!
//! GRE's recursion control says how many further encapsulations are permitted
//! (RFC 1701): from a peer zero is refused, from an encapsulator zero means
//! fresh, because routers leave these bits alone.

use plan::{Ingress, Sender};
use wire::{
    EtherType, FlowKey, Fragment, Frame, Headers, Protocol, ethernet, geneve, gre, gue, headers,
    udp,
};

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

/// The tunnel's header, if that sender may have written it: GRE with checksum,
/// key or sequence number comes from encapsulators only.
fn tunnel_of(sender: Sender, outer: &Headers, payload: &[u8]) -> Result<Tunnel, DropReason> {
    let tunnel = Tunnel::parse(&outer.key, payload).ok_or(DropReason::TunnelHeader)?;
    if outer.key.protocol == Protocol::GRE {
        let is_plain = tunnel.header_bytes == gre::HEADER_BYTES;
        if !is_plain && (sender == Sender::Peer || !gre::is_checksum_valid(payload)) {
            return Err(DropReason::TunnelHeader);
        }
    }
    Ok(tunnel)
}

const ECN: u8 = 0b11;

/// RFC 6040 section 4.2, on the way out of a tunnel: congestion met in it is
/// carried on (in the next outer header; the inner packet stays as it is),
/// and a packet that is not ECN-capable is dropped. Gives the inner packet's traffic
/// class with that, for those who read its headers.
pub(crate) fn carry_congestion(frame: &Frame<'_>, inner: u8) -> Result<u8, DropReason> {
    const CONGESTION: u8 = 0b11;
    const ECT_0: u8 = 0b10;
    const ECT_1: u8 = 0b01;
    match (frame.outer_ecn(), inner & ECN) {
        (CONGESTION, 0) => Err(DropReason::CeOnNotEct),
        (CONGESTION, _) => Ok(inner | CONGESTION),
        (ECT_1, ECT_0) => Ok(inner & !ECN | ECT_1),
        _ => Ok(inner),
    }
}

/// What stands between outer IP header and inner packet.
pub(crate) struct Tunnel {
    pub header_bytes: usize,
    pub inner: EtherType,
    recursion: u8,
}

impl Tunnel {
    pub(crate) fn parse(outer: &FlowKey, payload: &[u8]) -> Option<Tunnel> {
        let (header_bytes, inner, recursion) = match outer.protocol {
            Protocol::GRE => {
                let (header, bytes) = gre::parse(payload)?;
                (bytes, header.ether_type, header.recursion)
            }
            Protocol::UDP if outer.destination_port == gue::PORT => {
                let (protocol, bytes) = gue::parse(payload.get(udp::HEADER_BYTES..)?)?;
                (udp::HEADER_BYTES + bytes, ether_type(protocol)?, 0)
            }
            Protocol::UDP => {
                let (inner, bytes) = geneve::parse(payload.get(udp::HEADER_BYTES..)?)?;
                (udp::HEADER_BYTES + bytes, inner, 0)
            }
            protocol => (0, ether_type(protocol)?, 0),
        };
        Some(Tunnel { header_bytes, inner, recursion })
    }
}

fn ether_type(protocol: Protocol) -> Option<EtherType> {
    match protocol {
        Protocol::IPIP => Some(EtherType::IPV4),
        Protocol::IPV6 => Some(EtherType::IPV6),
        _ => None,
    }
}
