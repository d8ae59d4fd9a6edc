//! IP in IP: 4in4 (RFC 2003), 6in6 and 4in6 (RFC 2473), 6in4 (RFC 4213). There
//! is no header of its own.

use super::{Carrier, Description, Parsed, no_checksum};
use crate::ethernet::EtherType;
use crate::ip::Protocol;

/// The tunnel.
pub const DESCRIPTION: Description = Description {
    name: "ipip",
    carrier: Carrier::Ip { v4: Protocol::IPIP, v6: Protocol::IPV6 },
    header_bytes: 0,
    recursion_control: false,
    emit: |_, _| {},
    parse: |protocol, _| Some(Parsed { header_bytes: 0, inner: inner(protocol)?, recursion: 0 }),
    is_checksum_valid: no_checksum,
};

/// What a protocol number says is inside: for GUE, too.
pub(super) fn inner(protocol: Protocol) -> Option<EtherType> {
    match protocol {
        Protocol::IPIP => Some(EtherType::IPV4),
        Protocol::IPV6 => Some(EtherType::IPV6),
        _ => None,
    }
}
