//! Ethernet II.

use crate::ip::Family;

/// Bytes of the header: destination, source, type.
pub const HEADER_BYTES: usize = 14;

/// What an Ethernet frame carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EtherType(pub u16);

impl EtherType {
    /// IPv4.
    pub const IPV4: EtherType = EtherType(0x0800);
    /// IPv6.
    pub const IPV6: EtherType = EtherType(0x86dd);

    /// Of packets of that family.
    #[must_use]
    pub fn of(family: Family) -> EtherType {
        match family {
            Family::V4 => EtherType::IPV4,
            Family::V6 => EtherType::IPV6,
        }
    }

    /// The family of packets of this type; None: they are no IP.
    #[must_use]
    pub fn family(self) -> Option<Family> {
        match self {
            EtherType::IPV4 => Some(Family::V4),
            EtherType::IPV6 => Some(Family::V6),
            _ => None,
        }
    }
}

/// A hardware address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct MacAddress(pub [u8; 6]);

impl std::fmt::Display for MacAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl std::str::FromStr for MacAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<MacAddress, String> {
        let bytes: Option<Vec<u8>> =
            text.split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
        let bytes = bytes.and_then(|bytes| <[u8; 6]>::try_from(bytes).ok());
        bytes.map(MacAddress).ok_or_else(|| format!("{text:?} is not like 02:00:00:00:00:01"))
    }
}

/// The header's bytes.
#[must_use]
pub fn emit(
    source: MacAddress,
    destination: MacAddress,
    ether_type: EtherType,
) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..6].copy_from_slice(&destination.0);
    header[6..12].copy_from_slice(&source.0);
    header[12..].copy_from_slice(&ether_type.0.to_be_bytes());
    header
}

/// The type field of a frame; None if the frame is shorter than a header.
#[inline]
#[must_use]
pub fn ether_type(frame: &[u8]) -> Option<EtherType> {
    let header = frame.first_chunk::<HEADER_BYTES>()?;
    Some(EtherType(u16::from_be_bytes([header[12], header[13]])))
}

/// The source address of a frame; None if the frame is shorter than a header.
#[must_use]
pub fn source(frame: &[u8]) -> Option<MacAddress> {
    frame.get(6..12).and_then(|bytes| bytes.try_into().ok()).map(MacAddress)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_or_refused() {
        let address = MacAddress([2, 0, 0, 0, 0, 0xfe]);
        assert_eq!("02:00:00:00:00:fe".parse(), Ok(address));
        assert_eq!(address.to_string().parse(), Ok(address));
        for wrong in ["02:00:00:00:00", "02:00:00:00:00:fg", ""] {
            assert!(wrong.parse::<MacAddress>().unwrap_err().contains("is not like"), "{wrong}");
        }
    }
}
