//! The route option of Geneve tunnels: the other backends, besides the packet's destination, on
//! which its connection may live (MPLB, section 3.1: daisy chaining). A load balancer writes
//! it, backends' agents read it.
//!
//! ```text
//!  0                   1                   2                   3
//! |         class 0xff47          |   type 0x81   |  0  | length  |
//! |6|R|   0   |num|   hop limit   |            bucket             |
//! |                          generation                           |
//! |  addresses to try, in order: `num` of 4 bytes, or of 16       |
//! ```
//!
//! 6: the addresses are IPv6, with IPv4 ones mapped (RFC 4291). R: an agent that has no
//! matching connection returns the packet to the first agent on its path, whose address is the
//! last. `num`: 0 to 3. An agent that passes the packet on removes the first address and lowers
//! the hop limit; at 0 the packet may be delivered, but not passed on. Bits that are 0 here
//! must be 0: the option is critical, so an agent drops an option that it does not understand.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use arrayvec::ArrayVec;

use super::geneve::{self, GeneveOption, OPTION_HEADER_BYTES};

/// The class of all our options (of RFC 8926's experimental ones).
pub const CLASS: u16 = 0xff47;
/// The type, a critical one.
pub const KIND: u8 = 0x81;
/// The most addresses of an option.
pub const ADDRESSES_MAX: usize = 3;
/// The hop limit that load balancers write.
pub const HOP_LIMIT: u8 = 4;
/// The longest option, its header included: 60 bytes.
pub const BYTES_MAX: usize = OPTION_HEADER_BYTES + FIXED_BYTES + 16 * ADDRESSES_MAX;

/// Of the body, without addresses.
const FIXED_BYTES: usize = 8;
const IS_V6: u8 = 0b1000_0000;
const IS_RETURNED: u8 = 0b0100_0000;
const COUNT: u8 = 0b0000_0011;
const NO_BUCKET: u16 = 0xffff;

/// What an option says.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RouteOption {
    /// The last address is that of the packet's first agent, which takes it if
    /// no other does.
    pub returns: bool,
    /// How often it may be passed on.
    pub hop_limit: u8,
    /// The packet's bucket; None: it was not chosen by one.
    pub bucket: Option<u16>,
    /// Of the map or plan that chose: its lower half.
    pub generation: u32,
    /// Where to try next, in order.
    pub addresses: ArrayVec<IpAddr, ADDRESSES_MAX>,
}

/// An option as bytes, its header included.
pub type Emitted = ArrayVec<u8, BYTES_MAX>;

impl RouteOption {
    /// The option's bytes, a multiple of four. Bucket 65535 is none.
    #[must_use]
    pub fn emit(&self) -> Emitted {
        let is_v6 = self.addresses.iter().any(IpAddr::is_ipv6);
        let address_bytes = if is_v6 { 16 } else { 4 };
        let body_bytes = FIXED_BYTES + address_bytes * self.addresses.len();
        let mut flags = self.addresses.len() as u8;
        flags |= if is_v6 { IS_V6 } else { 0 } | if self.returns { IS_RETURNED } else { 0 };
        let mut to = Emitted::new();
        to.extend(geneve::emit_option_header(CLASS, KIND, body_bytes));
        to.extend([flags, self.hop_limit]);
        to.extend(self.bucket.unwrap_or(NO_BUCKET).to_be_bytes());
        to.extend(self.generation.to_be_bytes());
        for address in &self.addresses {
            match address {
                IpAddr::V4(address) if is_v6 => to.extend(address.to_ipv6_mapped().octets()),
                IpAddr::V4(address) => to.extend(address.octets()),
                IpAddr::V6(address) => to.extend(address.octets()),
            }
        }
        to
    }

    /// Reads an option; None: it is another one.
    ///
    /// # Errors
    /// If it is malformed.
    #[must_use]
    pub fn parse(option: &GeneveOption<'_>) -> Option<Result<RouteOption, Malformed>> {
        (option.class == CLASS && option.kind == KIND).then(|| body(option.body).ok_or(Malformed))
    }
}

/// A route option that is cut off, too long, or has bits that mean nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

fn body(body: &[u8]) -> Option<RouteOption> {
    let (fixed, addresses) = body.split_first_chunk::<FIXED_BYTES>()?;
    let [flags, hop_limit, b0, b1, g0, g1, g2, g3] = *fixed;
    let is_v6 = flags & IS_V6 != 0;
    let address_bytes = if is_v6 { 16 } else { 4 };
    let is_known = flags & !(IS_V6 | IS_RETURNED | COUNT) == 0;
    if !is_known || addresses.len() != usize::from(flags & COUNT) * address_bytes {
        return None;
    }
    Some(RouteOption {
        returns: flags & IS_RETURNED != 0,
        hop_limit,
        bucket: Some(u16::from_be_bytes([b0, b1])).filter(|bucket| *bucket != NO_BUCKET),
        generation: u32::from_be_bytes([g0, g1, g2, g3]),
        addresses: addresses.chunks_exact(address_bytes).map(address).collect(),
    })
}

fn address(bytes: &[u8]) -> IpAddr {
    match <[u8; 4]>::try_from(bytes) {
        Ok(bytes) => IpAddr::V4(Ipv4Addr::from(bytes)),
        Err(_) => {
            let bytes: [u8; 16] = bytes.try_into().expect("addresses have 4 bytes or 16");
            IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical()
        }
    }
}
