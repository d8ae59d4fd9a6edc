//! Addresses of both families, as the programs' tables have them.

use std::net::IpAddr;

/// IPv4 among IPv6 addresses, as the program has them.
pub fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}
