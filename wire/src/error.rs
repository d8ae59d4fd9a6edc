//! Why a frame did not parse.

/// What is wrong with a frame. Each becomes a drop reason of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ParseError {
    /// Shorter than an Ethernet header.
    EthernetHeader,
    /// The version nibble is not the one the Ethernet type promises.
    IpVersion,
    /// The IP header is cut off, or its own length is impossible.
    IpHeader,
    /// The IP length is smaller than the headers or larger than the frame.
    IpLength,
    /// The IPv4 header checksum is wrong.
    IpChecksum,
    /// An IPv4 option runs past the header or has an impossible length.
    IpOptions,
    /// An IPv6 extension header runs past the packet, is out of place, or
    /// holds a malformed option.
    IpExtension,
    /// The TCP, UDP or ICMP header is cut off or its length fields lie.
    TransportHeader,
}
