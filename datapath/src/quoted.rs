//! Whether an ICMP error quotes a packet of ours.
//!
//! Errors are easily forged: a sender that knows a machine's and a backend's address
//! can write the outer header of our tunnels, but for two fields that the
//! cluster's key decides. Over IPv4 that is the identification, which even the
//! shortest quote has. Over IPv6 it is the flow label, a part of the flow hash
//! of the packet inside, which routers quote as far as 1280 bytes allow
//! (RFC 4443 section 2.4).

use wire::{Encap, Family, FlowKey, icmp, ipv6};

use crate::flow_hash::FlowHash;
use crate::forward::three_tuple;

/// True if the packet that `message` quotes, from this machine (`own` is its
/// IPv4 address) to a tunnel's remote end, has the field that only we can
/// write. False, too, where an IPv6 error quotes too little.
#[must_use]
pub fn is_ours(hash: &FlowHash, own: Option<u32>, family: Family, message: &[u8]) -> bool {
    let ours = match family {
        Family::V4 => is_ours_v4(hash, own, message),
        Family::V6 => is_ours_v6(hash, message),
    };
    ours == Some(true)
}

fn is_ours_v4(hash: &FlowHash, own: Option<u32>, message: &[u8]) -> Option<bool> {
    let quoted = icmp::quoted(Family::V4, message)?;
    Some(icmp::quoted_id(message)? == hash.outer_id(own?, quoted.destination as u32))
}

fn is_ours_v6(hash: &FlowHash, message: &[u8]) -> Option<bool> {
    const LABEL: u32 = 0xf_ffff;
    let packet = message.get(icmp::HEADER_BYTES..)?;
    let label = u32::from_be_bytes(*packet.first_chunk()?) & LABEL;
    let outer = icmp::quoted_key(Family::V6, packet)?;
    let payload = packet.get(ipv6::parse_quoted(packet)?.header_bytes..)?;
    let tunnel = Encap::of(&outer)?.parse(outer.protocol, payload)?;
    let inner = icmp::quoted_key(tunnel.inner.family()?, payload.get(tunnel.header_bytes..)?)?;
    // A fragment goes to the machine in charge by what all of its datagram share.
    let is_label = |key: &FlowKey| hash.flow(key) as u32 & LABEL == label;
    Some(is_label(&inner) || is_label(&three_tuple(&inner)))
}
