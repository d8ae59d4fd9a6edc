//! The flow of a frame, for steering it to a worker (paper 3.1). Does not change the frame.

use wire::{Encap, Family, FlowKey, Fragment, Headers, ethernet, headers};

use crate::view::View;

/// What all frames of a flow share: the five-tuple; of a packet that came in
/// a trusted tunnel, the inner one, or else all of an encapsulator's traffic
/// would be one flow. Fragments of a datagram share no ports. None: no packet
/// that any worker has to remember.
#[inline]
#[must_use]
pub fn flow(view: &View, frame: &[u8]) -> Option<FlowKey> {
    let outer = headers::parse(frame).ok()??;
    let headers = match view.takes_tunnel(&outer.key) {
        true => inner(view, frame, &outer).unwrap_or(outer),
        false => outer,
    };
    Some(match headers.fragment {
        Fragment::Whole => headers.key,
        _ => FlowKey { source_port: 0, destination_port: 0, ..headers.key },
    })
}

/// The headers inside; None where the worker will refuse the packet.
#[cold]
fn inner(view: &View, frame: &[u8], outer: &Headers) -> Option<Headers> {
    view.plan.ingress.sender(outer.key.family, outer.key.source)?;
    if outer.fragment != Fragment::Whole {
        return None;
    }
    let start = ethernet::HEADER_BYTES + usize::from(outer.transport_offset);
    let payload = frame.get(start..ethernet::HEADER_BYTES + usize::from(outer.packet_bytes))?;
    let tunnel = Encap::of(&outer.key)?.parse(outer.key.protocol, payload)?;
    let packet = payload.get(tunnel.header_bytes..)?;
    match tunnel.inner.family()? {
        Family::V4 => headers::parse_v4(packet).ok(),
        Family::V6 => headers::parse_v6(packet).ok(),
    }
}
