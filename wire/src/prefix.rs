//! An address prefix: `10.0.0.0/8`, `2001:db8::/32`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// Addresses that share their first `len` bits; the other bits are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IpPrefix {
    address: IpAddr,
    len: u8,
}

/// What is wrong with a prefix in text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrefixError {
    reason: &'static str,
}

impl fmt::Display for PrefixError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason)
    }
}

impl std::error::Error for PrefixError {}

impl IpPrefix {
    /// The prefix of `len` bits that `address` lies in; None if the address
    /// has fewer bits.
    #[must_use]
    pub fn new(address: IpAddr, len: u8) -> Option<IpPrefix> {
        let address = match address {
            IpAddr::V4(v4) if len <= 32 => {
                let mask = u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits() & mask))
            }
            IpAddr::V6(v6) if len <= 128 => {
                let mask = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & mask))
            }
            _ => return None,
        };
        Some(IpPrefix { address, len })
    }

    /// The first address.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// How many bits are fixed.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "the length of a prefix, not of a container")]
    pub fn len(&self) -> u8 {
        self.len
    }

    /// True for an address that has the prefix.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.address.is_ipv4()
            && IpPrefix::new(address, self.len) == Some(*self)
    }
}

/// The prefix of one address alone.
impl From<IpAddr> for IpPrefix {
    fn from(address: IpAddr) -> IpPrefix {
        IpPrefix { address, len: if address.is_ipv4() { 32 } else { 128 } }
    }
}

impl fmt::Display for IpPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.len)
    }
}

/// `address/len`, or an address alone. Bits behind the prefix must be zero:
/// where they are not, one of the two is a slip.
impl FromStr for IpPrefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<IpPrefix, PrefixError> {
        let wrong = |reason| PrefixError { reason };
        let (address, len) = text.split_once('/').map_or((text, None), |(a, l)| (a, Some(l)));
        let address: IpAddr = address
            .parse()
            .map_err(|_| wrong("a prefix is ADDRESS/BITS, such as 10.0.0.0/8 or 2001:db8::/32"))?;
        let Some(len) = len else { return Ok(address.into()) };
        let len = len
            .parse()
            .map_err(|_| wrong("the length behind the slash is not a number of bits"))?;
        let prefix = IpPrefix::new(address, len)
            .ok_or(wrong("the length is more than the address has bits"))?;
        if prefix.address != address {
            return Err(wrong("the address has bits set behind the prefix"));
        }
        Ok(prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_parsed_is_printed() {
        for text in ["10.0.0.0/8", "0.0.0.0/0", "192.0.2.1/32", "2001:db8::/32", "::/0", "::1/128"]
        {
            assert_eq!(text.parse::<IpPrefix>().unwrap().to_string(), text);
        }
        assert_eq!("192.0.2.1".parse::<IpPrefix>().unwrap().to_string(), "192.0.2.1/32");
    }

    #[test]
    fn slips_are_refused() {
        for text in
            ["10.0.0.1/8", "10.0.0.0/33", "::/129", "10.0.0.0/", "example/8", "10.0.0.0/-1", ""]
        {
            assert!(text.parse::<IpPrefix>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_prefix_contains_its_addresses() {
        let contains = |prefix: &str, address: &str| {
            prefix.parse::<IpPrefix>().unwrap().contains(address.parse().unwrap())
        };
        assert!(contains("10.0.0.0/15", "10.1.2.3") && !contains("10.0.0.0/15", "10.2.0.0"));
        assert!(contains("::/0", "ff::1") && !contains("::/0", "10.0.0.1"));
    }

    #[test]
    fn bits_behind_the_prefix_are_cleared() {
        let prefix = IpPrefix::new("10.1.2.3".parse().unwrap(), 15).unwrap();
        assert_eq!(prefix.to_string(), "10.0.0.0/15");
        assert_eq!(IpPrefix::new("ff::1".parse().unwrap(), 0).unwrap().to_string(), "::/0");
    }
}
