//! Fragmentation before encapsulation: an IPv4 packet without "do not fragment" that is too big
//! for its path is split into fragments, and each is encapsulated separately (RFC 791, section
//! 3.2).

use wire::{Frame, Headers, checksum, ethernet, ipv4};

use crate::outbox::{Outbox, PIECES_MAX};

/// Cuts the packet into pieces of at most `mtu` bytes: the first stays in
/// `frame`, the others go to `emit`. Gives the first piece's bytes; None if
/// that cannot be done (no memory for a piece, a path too narrow, or a piece
/// that would begin where no offset reaches), with nothing emitted.
pub fn split<'m>(
    frame: &mut Frame<'_>,
    headers: &Headers,
    mtu: u16,
    outbox: &mut Outbox<'m>,
    mut emit: impl FnMut(&mut Outbox<'m>, Frame<'m>, u16),
) -> Option<u16> {
    let header_bytes = usize::from(headers.transport_offset);
    let step = usize::from(mtu).checked_sub(header_bytes)? & !7;
    let packet = &frame.bytes()[ethernet::HEADER_BYTES..][..usize::from(headers.packet_bytes)];
    let (header, payload) = packet.split_at(header_bytes);
    if step == 0 {
        return None;
    }
    let pieces = payload.len().div_ceil(step);
    let flags = u16::from_be_bytes([header[6], header[7]]);
    let (offset, more) = (flags & ipv4::OFFSET_MASK, flags & ipv4::MORE_FRAGMENTS);
    let further = pieces.saturating_sub(1);
    if pieces > PIECES_MAX
        || usize::from(offset) + further * step / 8 > usize::from(ipv4::OFFSET_MASK)
        || outbox.chunks.len() < further
        || outbox.frames.remaining_capacity() < further
    {
        return None;
    }
    let later = later_header(header);
    for (index, part) in payload.chunks(step).enumerate().skip(1) {
        let last = index + 1 == pieces;
        let flags =
            if last { more } else { ipv4::MORE_FRAGMENTS } | (offset + (index * step / 8) as u16);
        let piece_bytes = (header_bytes + part.len()) as u16;
        let mut piece = outbox.copy_of(&[
            &frame.bytes()[..ethernet::HEADER_BYTES],
            &later[..header_bytes],
            part,
        ])?;
        seal(&mut piece.bytes_mut()[ethernet::HEADER_BYTES..][..header_bytes], piece_bytes, flags);
        emit(outbox, piece, piece_bytes);
    }
    let first_bytes = (header_bytes + step) as u16;
    frame.truncate(ethernet::HEADER_BYTES + usize::from(first_bytes));
    seal(
        &mut frame.bytes_mut()[ethernet::HEADER_BYTES..][..header_bytes],
        first_bytes,
        ipv4::MORE_FRAGMENTS | offset,
    );
    Some(first_bytes)
}

/// The header of later pieces: options that are not to be copied become
/// no-operations, so that all headers have one length.
fn later_header(header: &[u8]) -> [u8; ipv4::HEADER_BYTES_MAX] {
    const COPIED: u8 = 0x80;
    const NO_OPERATION: u8 = 1;
    let mut later = [0; ipv4::HEADER_BYTES_MAX];
    later[..header.len()].copy_from_slice(header);
    let mut at = ipv4::HEADER_BYTES;
    while at < header.len() && header[at] != 0 {
        let bytes = if header[at] == NO_OPERATION { 1 } else { usize::from(header[at + 1]) };
        if header[at] & COPIED == 0 {
            later[at..at + bytes].fill(NO_OPERATION);
        }
        at += bytes;
    }
    later
}

/// Writes length, flags and checksum.
fn seal(header: &mut [u8], packet_bytes: u16, flags: u16) {
    header[2..4].copy_from_slice(&packet_bytes.to_be_bytes());
    header[6..8].copy_from_slice(&flags.to_be_bytes());
    header[10..12].fill(0);
    let sum = checksum::finish(checksum::sum(header));
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}
