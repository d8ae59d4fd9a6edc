//! The Multipath TCP option of Geneve tunnels: the key that a load balancer chose for a
//! connection, and the backend in charge of the bucket of the packet's five-tuple (MPLB,
//! section 3.1). A load balancer writes it, backends' agents read it.
//!
//! ```text
//!  0                   1                   2                   3
//! |         class 0xff47          |   type 0x82   |  0  | length  |
//! |                      key, eight bytes                         |
//! |   bucket of the five-tuple    |6|     0       |       0       |
//! |  address of the backend that has that bucket: 4 bytes, or 16  |
//! ```
//!
//! 6: the address is IPv6. Key 0: none, the packet joins a connection, or opens a plain one.
//! Bits that are 0 here must be 0: the option is critical.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use arrayvec::ArrayVec;

use super::geneve::{self, GeneveOption, OPTION_HEADER_BYTES};
use super::route_option::{CLASS, Malformed};

/// The type, a critical one.
pub const KIND: u8 = 0x82;
/// The longest option, its header included: 32 bytes.
pub const BYTES_MAX: usize = OPTION_HEADER_BYTES + FIXED_BYTES + 16;

/// Of the body, without the address.
const FIXED_BYTES: usize = 12;
const IS_V6: u8 = 0b1000_0000;

/// What an option says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MultipathOption {
    /// Of the connection that the packet opens; None: it opens none of several paths.
    pub key: Option<u64>,
    /// The bucket of the packet's five-tuple.
    pub bucket: u16,
    /// The backend that has it.
    pub address: IpAddr,
}

impl MultipathOption {
    /// The option's bytes, its header included: a multiple of four.
    #[must_use]
    pub fn emit(&self) -> ArrayVec<u8, BYTES_MAX> {
        let mut bytes = [0; BYTES_MAX];
        let length = self.write(&mut bytes);
        let mut emitted = ArrayVec::from(bytes);
        emitted.truncate(length);
        emitted
    }

    /// Writes them at the beginning of `to`; gives how many there are.
    #[inline]
    pub fn write(&self, to: &mut [u8; BYTES_MAX]) -> usize {
        const ADDRESS_AT: usize = OPTION_HEADER_BYTES + FIXED_BYTES;
        let (flags, address_bytes) = match self.address {
            IpAddr::V4(address) => {
                to[ADDRESS_AT..ADDRESS_AT + 4].copy_from_slice(&address.octets());
                (0, 4)
            }
            IpAddr::V6(address) => {
                to[ADDRESS_AT..].copy_from_slice(&address.octets());
                (IS_V6, 16)
            }
        };
        to[..4].copy_from_slice(&geneve::emit_option_header(
            CLASS,
            KIND,
            FIXED_BYTES + address_bytes,
        ));
        to[4..12].copy_from_slice(&self.key.unwrap_or(0).to_be_bytes());
        let [high, low] = self.bucket.to_be_bytes();
        to[12..ADDRESS_AT].copy_from_slice(&[high, low, flags, 0]);
        ADDRESS_AT + address_bytes
    }

    /// Reads an option; None: it is another one.
    ///
    /// # Errors
    /// If it is malformed.
    #[must_use]
    pub fn parse(option: &GeneveOption<'_>) -> Option<Result<MultipathOption, Malformed>> {
        (option.class == CLASS && option.kind == KIND).then(|| body(option.body).ok_or(Malformed))
    }
}

fn body(body: &[u8]) -> Option<MultipathOption> {
    let (key, rest) = body.split_first_chunk()?;
    let ([b0, b1, flags, zero], address) = rest.split_first_chunk()?;
    let address = match (*flags, address.len()) {
        (0, 4) => Ipv4Addr::from(<[u8; 4]>::try_from(address).ok()?).into(),
        (IS_V6, 16) => Ipv6Addr::from(<[u8; 16]>::try_from(address).ok()?).into(),
        _ => return None,
    };
    let key = Some(u64::from_be_bytes(*key)).filter(|key| *key != 0);
    let bucket = u16::from_be_bytes([*b0, *b1]);
    (*zero == 0).then_some(MultipathOption { key, bucket, address })
}
