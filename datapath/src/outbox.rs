//! Frames that we originate in addition to those received: pieces of a fragmented packet,
//! copies to peers, trace reports. The worker lends memory for them; they wait here until the
//! worker emits them.

use arrayvec::ArrayVec;
use wire::{BATCH_MAX, Frame};

use crate::verdict::{DeviceIndex, Verdict};

/// The pieces of one packet at most: a frame of the longest kind over the
/// smallest path there is for IPv4 (68 bytes, RFC 791) would be more, but
/// paths below 576 bytes carry no tunnel.
pub const PIECES_MAX: usize = 8;

/// Frames that one batch of a worker can originate: each received frame may
/// become [`PIECES_MAX`] pieces, of which it holds the first, and be reported
/// on. With room for all of them no packet's fate depends on its batch.
pub const ORIGINATED_MAX: usize = BATCH_MAX * PIECES_MAX;

/// Why a frame was originated: the kinds that are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A further piece of a packet that had to be fragmented.
    Fragment,
    /// A fragment that was held until its datagram's first one came.
    Released,
    /// A copy of an ICMP error for a peer.
    Copy,
    /// A report on a traced packet.
    Report,
}

impl Kind {
    /// Every kind there is.
    pub const ALL: &'static [Kind] = &[Kind::Fragment, Kind::Released, Kind::Copy, Kind::Report];
    /// How many there are.
    pub const COUNT: usize = Kind::ALL.len();

    /// The name in counters.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Fragment => "fragment",
            Kind::Released => "released",
            Kind::Copy => "copy",
            Kind::Report => "report",
        }
    }
}

/// What an emitted frame counts as, once a device has taken it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accounting {
    /// A received frame, by its verdict.
    Received(Verdict),
    /// A received fragment that had waited, by the verdict that it got in the
    /// end.
    Released(Verdict),
    /// One that we made: not part of the law.
    Originated(Kind),
}

impl From<Kind> for Accounting {
    fn from(kind: Kind) -> Accounting {
        Accounting::Originated(kind)
    }
}

/// A frame that leaves beside the one that is being forwarded.
#[derive(Debug)]
pub struct Originated<'m> {
    /// What it counts as.
    pub counts: Accounting,
    /// The received frame of the batch that it follows.
    pub after: usize,
    /// Where to transmit it; None: where the received frame came from.
    pub device: Option<DeviceIndex>,
    /// The frame.
    pub frame: Frame<'m>,
}

/// Chunks lent and frames made. The worker fills `chunks` before each batch
/// and empties `frames` after it.
#[derive(Debug, Default)]
pub struct Outbox<'m> {
    /// Free chunks.
    pub chunks: ArrayVec<&'m mut [u8], ORIGINATED_MAX>,
    /// What was made, in order.
    pub frames: ArrayVec<Originated<'m>, ORIGINATED_MAX>,
    /// The received frame that is being forwarded.
    pub at: usize,
}

impl<'m> Outbox<'m> {
    /// A frame with a copy of `parts` behind each other; None: no chunk is
    /// left, or no room.
    pub(crate) fn copy_of(&mut self, parts: &[&[u8]]) -> Option<Frame<'m>> {
        if self.frames.is_full()
            || parts.iter().map(|part| part.len()).sum::<usize>() > wire::FRAME_BYTES_MAX
        {
            return None;
        }
        let chunk = self.chunks.pop()?;
        let mut end = wire::HEADROOM_BYTES;
        for part in parts {
            chunk[end..end + part.len()].copy_from_slice(part);
            end += part.len();
        }
        Some(Frame::new(chunk, wire::HEADROOM_BYTES, end))
    }

    /// Takes the chunk of a frame that was not sent after all.
    pub(crate) fn take_back(&mut self, frame: Frame<'m>) {
        self.chunks.push(frame.into_chunk());
    }

    pub(crate) fn push(
        &mut self,
        counts: Accounting,
        device: Option<DeviceIndex>,
        frame: Frame<'m>,
    ) {
        self.insert(self.frames.len(), counts, device, frame);
    }

    /// In front of what was made since `at` frames were there.
    pub(crate) fn insert(
        &mut self,
        at: usize,
        counts: Accounting,
        device: Option<DeviceIndex>,
        frame: Frame<'m>,
    ) {
        self.frames.insert(at, Originated { counts, after: self.at, device, frame });
    }
}
