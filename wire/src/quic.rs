//! The part that all versions of QUIC have in common (RFC 8999): the place of a packet's
//! destination connection id.

/// The id of the connection that a packet is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionId<'p> {
    /// Of a long header, which says how long it is.
    Whole(&'p [u8]),
    /// Of a short header: the id is at the beginning of these bytes, and only who
    /// made it knows how long it is.
    Within(&'p [u8]),
}

/// The highest bit of the first byte: a long header.
const LONG: u8 = 0x80;
/// First byte and version.
const LENGTH_OFFSET: usize = 5;

impl<'p> ConnectionId<'p> {
    /// Reads a UDP datagram's payload; None: it is too short for what it says.
    #[inline]
    #[must_use]
    pub fn parse(payload: &'p [u8]) -> Option<ConnectionId<'p>> {
        let (first, rest) = payload.split_first()?;
        if first & LONG == 0 {
            return Some(ConnectionId::Within(rest));
        }
        let length = usize::from(*payload.get(LENGTH_OFFSET)?);
        let id = payload.get(LENGTH_OFFSET + 1..)?.get(..length)?;
        Some(ConnectionId::Whole(id))
    }

    /// The id's bytes, with what follows where its length is not known.
    #[inline]
    #[must_use]
    pub fn bytes(self) -> &'p [u8] {
        match self {
            ConnectionId::Whole(bytes) | ConnectionId::Within(bytes) => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_header_says_how_long_its_connection_id_is() {
        let packet = [0xc3, 0, 0, 0, 1, 4, 9, 8, 7, 6, 0, 1, 2];
        assert_eq!(ConnectionId::parse(&packet), Some(ConnectionId::Whole(&[9, 8, 7, 6])));
        assert_eq!(ConnectionId::parse(&packet[..10]).unwrap().bytes(), [9, 8, 7, 6]);
        for cut in 0..10 {
            assert_eq!(ConnectionId::parse(&packet[..cut]), None, "{cut} bytes");
        }
    }

    #[test]
    fn a_short_headers_connection_id_follows_its_first_byte() {
        assert_eq!(ConnectionId::parse(&[0x43, 1, 2]), Some(ConnectionId::Within(&[1, 2])));
        assert_eq!(ConnectionId::parse(&[0x43]), Some(ConnectionId::Within(&[])));
    }
}
