//! TCP options with any content, in segments of every kind: selection at services with
//! Multipath TCP reads the same as a plain implementation of the RFCs.
//!
//! The plain implementation lists all options first, and then uses the list.

use wire::tcp_options::{self, Malformed, Signal, Version};

const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

/// Kind, and what is behind kind and length.
type Listed = Vec<(u8, Vec<u8>)>;

/// All options but NOPs, up to the end of the list (RFC 9293, section 3.1); None: one does
/// not fit.
fn list(options: &[u8]) -> (Listed, bool) {
    let (mut listed, mut at) = (Listed::new(), 0);
    while at < options.len() && options[at] != 0 {
        if options[at] == 1 {
            at += 1;
            continue;
        }
        let length = options.get(at + 1).map_or(0, |length| usize::from(*length));
        if length < 2 || at + length > options.len() {
            return (listed, false);
        }
        listed.push((options[at], options[at + 2..at + length].to_vec()));
        at += length;
    }
    (listed, true)
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// What an option of Multipath TCP in a SYN says (RFC 8684, sections 3.1 and 3.2; RFC 6824).
fn of_multipath(body: &[u8], initial_sequence: u32) -> Result<Option<Signal>, Malformed> {
    let Some(first) = body.first() else { return Err(Malformed::Length) };
    let capable = |version| Ok(Some(Signal::Capable { version, initial_sequence }));
    match (first >> 4, first & 0xf, body.len() + 2) {
        (0, 0, 12) => capable(Version::V0 { client_key: number(&body[2..10]) }),
        (0, 1, 4) => capable(Version::V1),
        (0, 0 | 1, _) => Err(Malformed::Length),
        // A version that there is not; beside another one it is one of two nevertheless.
        (0, ..) => Ok(Some(Signal::None)),
        (1, _, 12) => Ok(Some(Signal::Join { token: number(&body[2..6]) as u32 })),
        (1, ..) => Err(Malformed::Length),
        _ => Ok(None),
    }
}

/// What an option of this kind says in such a segment.
fn of(kind: u8, body: &[u8], is_syn: bool, sequence: u32) -> Result<Option<Signal>, Malformed> {
    match (kind, is_syn, body.len()) {
        (30, true, _) => of_multipath(body, sequence),
        (8, false, 8) => Ok(Some(Signal::Echo(number(&body[4..]) as u32))),
        (8, false, _) => Err(Malformed::Length),
        _ => Ok(None),
    }
}

fn plainly(segment: &[u8]) -> Result<Signal, Malformed> {
    let header_bytes = segment.get(12).map_or(0, |byte| usize::from(byte >> 4) * 4);
    if segment.len() < 20 || header_bytes < 20 || header_bytes > segment.len() {
        return Err(Malformed::Cut);
    }
    let is_syn = segment[13] & (SYN | ACK) == SYN;
    if !is_syn && segment[13] & ACK == 0 {
        return Ok(Signal::None);
    }
    let (listed, is_whole) = list(&segment[20..header_bytes]);
    let mut said = Vec::new();
    for (kind, body) in listed {
        if let Some(signal) = of(kind, &body, is_syn, number(&segment[4..8]) as u32)? {
            said.push(signal);
        }
        if said.len() > 1 {
            return Err(Malformed::Repeated);
        }
    }
    match (is_whole, said.first()) {
        (false, _) => Err(Malformed::Cut),
        // No echo yet.
        (true, None | Some(Signal::Echo(0))) => Ok(Signal::None),
        (true, Some(signal)) => Ok(*signal),
    }
}

/// Reads the input as a segment both ways.
pub fn run(segment: &[u8]) {
    let signal = tcp_options::signal(segment);
    assert_eq!(signal, plainly(segment), "{segment:02x?}");
    if let Some(echo) = tcp_options::usual_echo(segment) {
        assert_eq!(signal, Ok(Signal::Echo(echo)), "{segment:02x?}");
    }
}
