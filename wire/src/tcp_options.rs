//! The TCP options by which connections of Multipath TCP are distinguished (RFC 8684, and RFC
//! 6824 for version 0; RFC 7323 for timestamps): read once, in one pass over at most forty
//! bytes.
//!
//! ```text
//!  MP_CAPABLE of a SYN   | 30 | 4 or 12 | subtype 0, version | flags |  v0: client's key (8) |
//!  MP_JOIN of a SYN      | 30 |   12    | subtype 1, flags   |  id   | token (4) | nonce (4) |
//!  timestamps            |  8 |   10    |         value (4)         |       echo (4)        |
//! ```
//!
//! An invalid or repeated option makes all of them invalid: it is unknown how the backend's
//! kernel treats such a packet, so none of its options may decide where it goes.

use crate::tcp::{Flags, HEADER_BYTES};

const END: u8 = 0;
const NO_OPERATION: u8 = 1;
const TIMESTAMPS: u8 = 8;
const MULTIPATH: u8 = 30;
const TIMESTAMPS_BYTES: usize = 10;
const CAPABLE_BYTES: usize = 4;
const CAPABLE_WITH_KEY_BYTES: usize = 12;
const JOIN_BYTES: usize = 12;

/// What a segment says of its connection, beside the five-tuple.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// A SYN requests a connection of several paths.
    Capable {
        /// The protocol's version.
        version: Version,
        /// The segment's sequence number.
        initial_sequence: u32,
    },
    /// A SYN opens another path of the connection with this token.
    Join {
        /// As the server computed it from its key.
        token: u32,
    },
    /// Another segment echoes a timestamp of the server's.
    Echo(u32),
    /// Nothing.
    None,
}

/// A version of Multipath TCP, with what its first SYN has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// RFC 6824: the client's key.
    V0 {
        /// Chosen by the client.
        client_key: u64,
    },
    /// RFC 8684.
    V1,
}

/// Why a segment's options count for nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformed {
    /// An option ends behind the header, or says that it has less than two bytes.
    Cut,
    /// An option has a length that its kind does not have here.
    Length,
    /// There are two of a kind.
    Repeated,
}

/// Reads the options of the segment that begins `segment`.
///
/// # Errors
/// If they are malformed.
#[inline]
pub fn signal(segment: &[u8]) -> Result<Signal, Malformed> {
    let (header, _) = segment.split_first_chunk::<HEADER_BYTES>().ok_or(Malformed::Cut)?;
    let options = segment.get(HEADER_BYTES..usize::from(header[12] >> 4) * 4);
    let options = options.ok_or(Malformed::Cut)?;
    let flags = Flags(header[13]);
    match flags.opens() {
        true => {
            let initial_sequence = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
            of_syn(options, initial_sequence)
        }
        false if flags.has(Flags::ACK) => of_data(options),
        // Without ACK the echo means nothing (RFC 7323, section 3.2).
        false => Ok(Signal::None),
    }
}

/// The echo of a segment whose only option is timestamps, as most kernels put it: the
/// same as [`signal`] says, sooner. None: ask that.
#[inline(always)]
#[must_use]
pub fn usual_echo(segment: &[u8]) -> Option<u32> {
    const WORDS: u8 = ((HEADER_BYTES + 2 + TIMESTAMPS_BYTES) / 4) as u8;
    let header: &[u8; HEADER_BYTES + 2 + TIMESTAMPS_BYTES] = segment.first_chunk()?;
    let flags = Flags(header[13]);
    let is_usual = header[12] >> 4 == WORDS
        && header[HEADER_BYTES..][..USUAL.len()] == USUAL
        && flags.has(Flags::ACK);
    let echo = u32_at(header, HEADER_BYTES + 8);
    (is_usual && echo != 0).then_some(echo)
}

/// True if the segment that begins `segment` has timestamps, wherever they are.
#[must_use]
pub fn has_timestamps(segment: &[u8]) -> bool {
    let end = segment.get(12).map_or(0, |byte| usize::from(byte >> 4) * 4);
    let options = segment.get(HEADER_BYTES..end).unwrap_or_default();
    Options(options).any(|option| option.is_ok_and(|option| option[0] == TIMESTAMPS))
}

fn of_syn(options: &[u8], initial_sequence: u32) -> Result<Signal, Malformed> {
    let mut found = None;
    for option in Options(options) {
        let option = option?;
        if option[0] != MULTIPATH {
            continue;
        }
        let signal = match (option.get(2).map(|byte| byte >> 4), option.len()) {
            (Some(0), length) => capable(option[2] & 0xf, option, length, initial_sequence)?,
            (Some(1), JOIN_BYTES) => Signal::Join { token: u32_at(option, 4) },
            (Some(1), _) | (None, _) => return Err(Malformed::Length),
            // Subtypes of segments that are no SYN: the server's kernel ignores them.
            _ => continue,
        };
        if found.replace(signal).is_some() {
            return Err(Malformed::Repeated);
        }
    }
    Ok(found.unwrap_or(Signal::None))
}

/// Of a version that there is not, the server's kernel makes a plain connection.
fn capable(
    version: u8,
    option: &[u8],
    length: usize,
    initial_sequence: u32,
) -> Result<Signal, Malformed> {
    let version = match (version, length) {
        (0, CAPABLE_WITH_KEY_BYTES) => {
            let (high, low) = (u32_at(option, 4), u32_at(option, 8));
            Version::V0 { client_key: u64::from(high) << 32 | u64::from(low) }
        }
        (1, CAPABLE_BYTES) => Version::V1,
        (0 | 1, _) => return Err(Malformed::Length),
        _ => return Ok(Signal::None),
    };
    Ok(Signal::Capable { version, initial_sequence })
}

/// Nearly all kernels put timestamps first, behind two NOPs.
const USUAL: [u8; 4] = [NO_OPERATION, NO_OPERATION, TIMESTAMPS, TIMESTAMPS_BYTES as u8];

fn of_data(options: &[u8]) -> Result<Signal, Malformed> {
    let (mut echo, mut rest) = (None, options);
    if options.starts_with(&USUAL) && options.len() >= 2 + TIMESTAMPS_BYTES {
        (echo, rest) = (Some(u32_at(options, 8)), &options[2 + TIMESTAMPS_BYTES..]);
    }
    for option in Options(rest) {
        let option = option?;
        if option[0] != TIMESTAMPS {
            continue;
        }
        if option.len() != TIMESTAMPS_BYTES {
            return Err(Malformed::Length);
        }
        if echo.replace(u32_at(option, 6)).is_some() {
            return Err(Malformed::Repeated);
        }
    }
    // Zero: the client has had none yet.
    Ok(echo.filter(|echo| *echo != 0).map_or(Signal::None, Signal::Echo))
}

/// The options in their order, from their kind on; NOPs are left out.
struct Options<'s>(&'s [u8]);

impl<'s> Iterator for Options<'s> {
    type Item = Result<&'s [u8], Malformed>;

    #[inline]
    fn next(&mut self) -> Option<Result<&'s [u8], Malformed>> {
        while let [NO_OPERATION, rest @ ..] = self.0 {
            self.0 = rest;
        }
        let (length, all) = match self.0 {
            [] | [END, ..] => return None,
            [_, length, ..] => (usize::from(*length), self.0),
            [_] => (0, self.0),
        };
        if length < 2 || length > all.len() {
            self.0 = &[];
            return Some(Err(Malformed::Cut));
        }
        let (option, rest) = all.split_at(length);
        self.0 = rest;
        Some(Ok(option))
    }
}

#[inline]
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYN: u8 = Flags::SYN.0;
    const ACK: u8 = Flags::ACK.0;
    const SEQUENCE: u32 = 0x0102_0304;

    fn segment(flags: u8, options: &[u8]) -> Vec<u8> {
        let mut segment = vec![0; HEADER_BYTES];
        segment[4..8].copy_from_slice(&SEQUENCE.to_be_bytes());
        segment[13] = flags;
        segment.extend(options);
        segment.resize(segment.len().next_multiple_of(4), END);
        segment[12] = ((segment.len() / 4) as u8) << 4;
        segment.extend(b"data");
        segment
    }

    fn read(flags: u8, options: &[u8]) -> Result<Signal, Malformed> {
        signal(&segment(flags, options))
    }

    fn capable(version: Version) -> Result<Signal, Malformed> {
        Ok(Signal::Capable { version, initial_sequence: SEQUENCE })
    }

    const MSS: [u8; 4] = [2, 4, 5, 0xb4];
    const V1: [u8; 4] = [30, 4, 0x01, 0x01];
    const V0: [u8; 12] = [30, 12, 0x00, 0x81, 1, 2, 3, 4, 5, 6, 7, 8];
    const JOIN: [u8; 12] = [30, 12, 0x10, 2, 0xc0, 0xa0, 0xfb, 0x6c, 9, 9, 9, 9];
    const ECHO: [u8; 10] = [8, 10, 1, 1, 1, 1, 0xaa, 0xbb, 0xcc, 0xdd];

    #[test]
    fn a_syn_requests_a_connection_or_joins_one() {
        assert_eq!(read(SYN, &V1), capable(Version::V1));
        let client_key = 0x0102_0304_0506_0708;
        assert_eq!(read(SYN, &V0), capable(Version::V0 { client_key }));
        assert_eq!(read(SYN, &JOIN), Ok(Signal::Join { token: 0xc0a0_fb6c }));
        let behind = [&MSS[..], &[1, 1], &ECHO, &[1, 3, 3, 7], &V1].concat();
        assert_eq!(read(SYN, &behind), capable(Version::V1));
        assert_eq!(read(SYN, &[&MSS[..], &ECHO].concat()), Ok(Signal::None));
        assert_eq!(read(SYN, &[30, 4, 0x02, 1]), Ok(Signal::None), "a version that there is not");
        assert_eq!(read(SYN, &[&[END], &V1[..]].concat()), Ok(Signal::None), "behind the end");
        assert_eq!(read(SYN | ACK, &V1), Ok(Signal::None), "a server's");
    }

    #[test]
    fn timestamps_are_seen_wherever_they_are() {
        let with = |options: &[u8]| has_timestamps(&segment(SYN, options));
        assert!(with(&[&[1, 1][..], &ECHO].concat()));
        assert!(with(&[&MSS[..], &V1, &ECHO].concat()));
        assert!(!with(&[&MSS[..], &V1].concat()));
        assert!(!with(&[&[END], &ECHO[..]].concat()), "behind the end");
        assert!(!has_timestamps(&[0; 12]));
        assert!(!has_timestamps(&segment(SYN, &ECHO)[..25]), "cut off");
    }

    #[test]
    fn other_segments_echo_a_timestamp() {
        let echo = Ok(Signal::Echo(0xaabb_ccdd));
        assert_eq!(read(ACK, &[&[1, 1][..], &ECHO].concat()), echo);
        assert_eq!(read(ACK, &ECHO), echo);
        assert_eq!(read(ACK, &[&V1[..], &[1; 26], &ECHO].concat()), echo, "last of all");
        assert_eq!(read(ACK, &[]), Ok(Signal::None));
        assert_eq!(read(Flags::RST.0, &ECHO), Ok(Signal::None), "RFC 7323: not without ACK");
        assert_eq!(read(ACK, &[8, 10, 1, 1, 1, 1, 0, 0, 0, 0]), Ok(Signal::None));
        assert_eq!(read(ACK, &[&ECHO[..], &JOIN].concat()), echo, "MP_JOIN is a SYN's");
    }

    #[test]
    fn the_usual_echo_is_what_the_signal_says() {
        let usual = [&[1, 1][..], &ECHO].concat();
        assert_eq!(usual_echo(&segment(ACK, &usual)), Some(0xaabb_ccdd));
        let nothing = [1, 1, 8, 10, 1, 1, 1, 1, 0, 0, 0, 0];
        let more = [&usual[..], &JOIN].concat();
        for flags in 0..=u8::MAX {
            for options in [&usual[..], &nothing, &more, &ECHO, &JOIN, &[]] {
                let segment = segment(flags, options);
                if let Some(echo) = usual_echo(&segment) {
                    assert_eq!(signal(&segment), Ok(Signal::Echo(echo)));
                }
                assert_eq!(usual_echo(&segment[..segment.len().min(31)]), None);
            }
        }
    }

    #[test]
    fn what_is_malformed_says_nothing_at_all() {
        use Malformed::{Cut, Length, Repeated};
        for (flags, options, why) in [
            (SYN, [&V1[..], &V1].concat(), Repeated),
            (SYN, [&V1[..], &JOIN].concat(), Repeated),
            (SYN, [&V1[..], &V0].concat(), Repeated),
            (SYN, vec![30, 12, 0x01, 1, 0, 0, 0, 0, 0, 0, 0, 0], Length),
            (SYN, vec![30, 4, 0x00, 1], Length),
            (SYN, vec![30, 4, 0x10, 1], Length),
            (SYN, vec![30, 2], Length),
            (SYN, [&V1[..], &[2, 1, 0, 0]].concat(), Cut),
            (SYN, vec![30, 0, 0x01, 1], Cut),
            (SYN, vec![30, 8, 0x01, 1], Cut),
            (SYN, vec![1, 1, 1, 30], Cut),
            (ACK, [&[1, 1][..], &ECHO, &ECHO].concat(), Repeated),
            (ACK, [&ECHO[..], &ECHO].concat(), Repeated),
            (ACK, vec![8, 6, 0, 0, 0, 1, 1, 1], Length),
            (ACK, vec![1, 1, 8, 10, 1, 1, 1, 1], Cut),
            (ACK, [&ECHO[..], &[5, 40]].concat(), Cut),
        ] {
            assert_eq!(read(flags, &options), Err(why), "{options:?}");
        }
        assert_eq!(signal(&[0; 19]), Err(Cut));
        let mut longer_than_it_is = segment(ACK, &[]);
        longer_than_it_is[12] = 0xf0;
        assert_eq!(signal(&longer_than_it_is), Err(Cut));
        let mut without_a_header = segment(ACK, &[]);
        without_a_header[12] = 0x40;
        assert_eq!(signal(&without_a_header), Err(Cut));
    }
}
