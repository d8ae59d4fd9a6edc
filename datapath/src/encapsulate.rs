//! The outer header: Ethernet, IP, tunnel. The inner packet is not changed
//! by a single bit.
//!
//! ```text
//!  before   |Ethernet|inner IP ...........|padding|
//!  after    |Ethernet|outer IP|GRE|inner IP ...........|
//! ```

use plan::Dscp;
use wire::{EtherType, Family, Frame, Headers, Protocol, checksum, ethernet, gre, ipv4, ipv6};

use crate::drop_reason::DropReason;
use crate::egress::{Hop, Outer, Tunnel};

/// Puts the outer header in front of the packet and cuts padding off.
///
/// # Errors
/// `TooBig` if the result does not fit the next hop's MTU; the frame is
/// unchanged then.
#[inline]
pub fn encapsulate(
    frame: &mut Frame<'_>,
    headers: &Headers,
    tunnel: &Tunnel,
    hop: &Hop,
    dscp: Dscp,
    hash: u64,
) -> Result<(), DropReason> {
    let outer_bytes = tunnel.outer.header_bytes() + gre::HEADER_BYTES;
    let packet_bytes = usize::from(headers.packet_bytes) + outer_bytes;
    if packet_bytes > usize::from(hop.mtu) {
        return Err(DropReason::TooBig);
    }
    frame.truncate(ethernet::HEADER_BYTES + usize::from(headers.packet_bytes));
    let front = frame
        .replace_front(ethernet::HEADER_BYTES, ethernet::HEADER_BYTES + outer_bytes)
        .ok_or(DropReason::FrameTooLong)?;
    let (link, rest) = front.split_at_mut(ethernet::HEADER_BYTES);
    link.copy_from_slice(&hop.ethernet);
    let (ip, tunnel_header) = rest.split_at_mut(tunnel.outer.header_bytes());
    tunnel.outer.write(ip, packet_bytes as u16, traffic_class(headers, dscp), Protocol::GRE, hash);
    // Recursion control zero: a backend encapsulates no further.
    let gre = gre::Header { recursion: 0, ether_type: inner_type(headers.key.family) };
    tunnel_header.copy_from_slice(&gre.to_bytes());
    Ok(())
}

/// The DSCP as configured; ECN copied, as RFC 6040's normal mode does on
/// the way in.
#[inline]
fn traffic_class(headers: &Headers, dscp: Dscp) -> u8 {
    const ECN: u8 = 0b11;
    match dscp {
        Dscp::Copy => headers.traffic_class,
        Dscp::Set(dscp) => dscp << 2 | (headers.traffic_class & ECN),
    }
}

#[inline]
fn inner_type(family: Family) -> EtherType {
    match family {
        Family::V4 => EtherType::IPV4,
        Family::V6 => EtherType::IPV6,
    }
}

impl Outer {
    /// Bytes of the header.
    #[inline]
    #[must_use]
    pub fn header_bytes(&self) -> usize {
        match self {
            Outer::V4 { .. } => ipv4::HEADER_BYTES,
            Outer::V6 { .. } => ipv6::HEADER_BYTES,
        }
    }

    /// Writes the header for a packet of `packet_bytes` bytes, itself
    /// included.
    #[inline]
    fn write(&self, to: &mut [u8], packet_bytes: u16, traffic_class: u8, protocol: Protocol, hash: u64) {
        match self {
            Outer::V4 { header, sum } => {
                let sum = sum + u64::from(traffic_class) + u64::from(packet_bytes) + u64::from(protocol.0);
                to.copy_from_slice(header);
                to[1] = traffic_class;
                to[2..4].copy_from_slice(&packet_bytes.to_be_bytes());
                to[9] = protocol.0;
                to[10..12].copy_from_slice(&checksum::finish(sum).to_be_bytes());
            }
            Outer::V6 { header } => {
                to.copy_from_slice(header);
                // RFC 6438: the flow label tells flows apart in the fabric.
                let first = 6 << 28 | u32::from(traffic_class) << 20 | (hash as u32 & 0xf_ffff);
                to[..4].copy_from_slice(&first.to_be_bytes());
                to[4..6].copy_from_slice(&(packet_bytes - ipv6::HEADER_BYTES as u16).to_be_bytes());
                to[6] = protocol.0;
            }
        }
    }
}
