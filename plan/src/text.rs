//! Parses addresses and prefixes in a Plan's message.

use std::net::IpAddr;

use wire::{Family, ip};

use crate::matching::low_mask;

/// Of an address or prefix that was parsed.
pub(crate) fn is_v6(text: &str) -> bool {
    text.contains(':')
}

/// A prefix as its address and length; the bits behind the length are zero.
pub(crate) fn parse_prefix(text: &str) -> Option<(IpAddr, u8)> {
    let (address, bits) = text.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    let bits: u8 = bits.parse().ok()?;
    let host = Family::of(address).address_bits().checked_sub(u32::from(bits))?;
    (ip::address_bits(address) & low_mask(host) == 0).then_some((address, bits))
}
