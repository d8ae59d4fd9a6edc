//! Captures packets with their verdicts, for people.
//!
//! ```text
//!  worker: switch on? ─► copies what the filter chooses, before the journey changes it
//!          verdicts ─► those that the filter chooses ─► ring ─► session (a gRPC stream)
//! ```
//!
//! When off, it costs a worker one relaxed load for each batch. If the ring is full, the copy
//! is dropped and counted; the packet itself never waits. Everything is allocated at start: a
//! worker allocates nothing during a capture.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use arc_swap::ArcSwapOption;
use arrayvec::ArrayVec;
use datapath::batch::Verdicts;
use datapath::counters::Counter;
use datapath::{DropReason, Verdict};
use rtrb::{Consumer, Producer, RingBuffer};
use wire::{BATCH_MAX, Batch, FRAME_BYTES_MAX, Frame, IpPrefix, ethernet};

/// Packets between a worker and the session: 0.5 MiB, touched only when used.
const RING: usize = 256;

/// Ethernet and the outer IP header: they name the backend.
const OUTER_BYTES: usize = 54;

/// Which packets are wanted. Nothing chosen by a field: all.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// The source or the destination lies in it.
    pub client: Option<IpPrefix>,
    /// Names as in [`Verdict::name`].
    pub verdicts: Vec<String>,
    /// Drop reasons.
    pub reasons: Vec<DropReason>,
    /// One of this number of those that the rest chooses.
    pub sample: u32,
}

/// One captured packet.
pub struct Captured {
    /// Nanoseconds since 1970.
    pub time_ns: u64,
    /// The device it came from.
    pub device: usize,
    /// What became of it.
    pub verdict: Verdict,
    /// `frame` is what the slow path left, not what was received.
    pub as_left: bool,
    /// As received.
    pub frame: ArrayVec<u8, FRAME_BYTES_MAX>,
    /// The beginning of what was sent.
    pub sent: ArrayVec<u8, OUTER_BYTES>,
}

/// On or off, and for what; of all workers.
#[derive(Debug, Default)]
pub struct Switch {
    on: AtomicBool,
    filter: ArcSwapOption<Filter>,
}

/// A worker's end.
pub struct Tap {
    switch: Arc<Switch>,
    ring: Producer<Captured>,
    missed: Arc<Counter>,
    /// Copies of the batch under way, by index; empty: not wanted.
    copies: Vec<ArrayVec<u8, FRAME_BYTES_MAX>>,
    chosen: u32,
    copied: bool,
}

/// The other end, for one worker.
pub struct Source {
    ring: Consumer<Captured>,
    missed: Arc<Counter>,
    told: u64,
}

/// A worker's tap and its other end.
#[must_use]
pub fn pair(switch: &Arc<Switch>) -> (Tap, Source) {
    let (producer, ring) = RingBuffer::new(RING);
    let missed = Arc::new(Counter::default());
    let tap = Tap {
        switch: Arc::clone(switch),
        ring: producer,
        missed: Arc::clone(&missed),
        copies: (0..BATCH_MAX).map(|_| ArrayVec::new()).collect(),
        chosen: 0,
        copied: false,
    };
    (tap, Source { ring, missed, told: 0 })
}

impl Tap {
    /// Before the journey of a batch: copies what may be wanted.
    #[inline]
    pub fn before(&mut self, received: &Batch<'_>) {
        self.copied = self.switch.on.load(Ordering::Relaxed);
        if self.copied {
            self.copy(received);
        }
    }

    /// After it: hands over what is wanted.
    #[inline]
    pub fn after(&mut self, received: &Batch<'_>, verdicts: &Verdicts, device: usize) {
        if self.copied {
            self.hand_over(received, verdicts, device);
        }
    }

    /// What the slow path decided on a frame, and left of it.
    #[inline]
    pub fn decided(&mut self, frame: &Frame<'_>, verdict: Verdict, device: usize) {
        if self.switch.on.load(Ordering::Relaxed) {
            self.hand_over_late(frame, verdict, device, true);
        }
    }

    /// What became of a frame that is as it was received.
    #[inline]
    pub fn ended(&mut self, frame: &Frame<'_>, verdict: Verdict, device: usize) {
        if self.switch.on.load(Ordering::Relaxed) {
            self.hand_over_late(frame, verdict, device, false);
        }
    }

    #[cold]
    fn copy(&mut self, received: &Batch<'_>) {
        let filter = self.switch.filter.load();
        for (frame, copy) in received.iter().zip(&mut self.copies) {
            copy.clear();
            if filter.as_ref().is_some_and(|filter| filter.wants_packet(frame.bytes())) {
                fill(copy, frame.bytes());
            }
        }
    }

    #[cold]
    fn hand_over(&mut self, received: &Batch<'_>, verdicts: &Verdicts, device: usize) {
        let filter = self.switch.filter.load_full();
        let Some(filter) = filter else { return };
        let time_ns = now_ns();
        for (index, (frame, verdict)) in received.iter().zip(verdicts).enumerate() {
            // What the slow path decides is captured when it has; what goes
            // back to the kernel, when it does.
            let wanted = !self.copies[index].is_empty()
                && !matches!(verdict, Verdict::Slow(_) | Verdict::Pass)
                && filter.wants_verdict(*verdict);
            if !wanted || !self.sampled(filter.sample) {
                continue;
            }
            let frame_copy = std::mem::take(&mut self.copies[index]);
            let sent = sent(frame, *verdict);
            self.push(Captured {
                time_ns,
                device,
                verdict: *verdict,
                as_left: false,
                frame: frame_copy,
                sent,
            });
        }
    }

    #[cold]
    fn hand_over_late(
        &mut self,
        frame: &Frame<'_>,
        verdict: Verdict,
        device: usize,
        as_left: bool,
    ) {
        let Some(filter) = self.switch.filter.load_full() else { return };
        let wanted = filter.wants_verdict(verdict) && filter.wants_packet(frame.bytes());
        if !wanted || !self.sampled(filter.sample) {
            return;
        }
        let mut bytes = ArrayVec::new();
        fill(&mut bytes, frame.bytes());
        let sent = sent(frame, verdict);
        self.push(Captured { time_ns: now_ns(), device, verdict, as_left, frame: bytes, sent });
    }

    fn sampled(&mut self, sample: u32) -> bool {
        self.chosen = self.chosen.wrapping_add(1);
        sample < 2 || self.chosen.is_multiple_of(sample)
    }

    fn push(&mut self, captured: Captured) {
        if self.ring.push(captured).is_err() {
            self.missed.add(1);
        }
    }
}

/// Ends where nothing more is there, for now.
impl Iterator for Source {
    type Item = Captured;

    fn next(&mut self) -> Option<Captured> {
        self.ring.pop().ok()
    }
}

impl Source {
    /// Packets missed since the last call.
    pub fn missed(&mut self) -> u64 {
        let missed = self.missed.get();
        missed - std::mem::replace(&mut self.told, missed)
    }
}

impl Switch {
    /// Captures what `filter` chooses, from now on.
    pub fn turn_on(&self, filter: Arc<Filter>) {
        self.filter.store(Some(filter));
        self.on.store(true, Ordering::Release);
    }

    /// Captures nothing more. The filter stays until the next one, so that no
    /// worker is the one to free it.
    pub fn turn_off(&self) {
        self.on.store(false, Ordering::Release);
    }
}

impl Filter {
    fn wants_packet(&self, frame: &[u8]) -> bool {
        let Some(client) = &self.client else { return true };
        let Some((source, destination)) = addresses(frame) else { return false };
        let covers = |address| IpPrefix::new(address, client.len()) == Some(*client);
        covers(source) || covers(destination)
    }

    fn wants_verdict(&self, verdict: Verdict) -> bool {
        let by_name =
            self.verdicts.is_empty() || self.verdicts.iter().any(|wanted| wanted == verdict.name());
        let by_reason = match verdict {
            Verdict::Drop(reason) => self.reasons.is_empty() || self.reasons.contains(&reason),
            _ => self.reasons.is_empty(),
        };
        by_name && by_reason
    }
}

/// The addresses of a packet, well-formed or not; a tunnel's are the outer.
fn addresses(frame: &[u8]) -> Option<(IpAddr, IpAddr)> {
    let packet = frame.get(ethernet::HEADER_BYTES..)?;
    match packet.first()? >> 4 {
        4 => {
            let at = |from| Some(IpAddr::from(*packet.get(from..)?.first_chunk::<4>()?));
            Some((at(12)?, at(16)?))
        }
        6 => {
            let at = |from| Some(IpAddr::from(*packet.get(from..)?.first_chunk::<16>()?));
            Some((at(8)?, at(24)?))
        }
        _ => None,
    }
}

/// From this follows where a frame was sent.
fn sent(frame: &Frame<'_>, verdict: Verdict) -> ArrayVec<u8, OUTER_BYTES> {
    let mut sent = ArrayVec::new();
    if matches!(verdict, Verdict::Send(_) | Verdict::Redirect(_)) {
        fill(&mut sent, frame.bytes());
    }
    sent
}

/// Where a frame was sent, by its beginning.
#[must_use]
pub fn destination(sent: &[u8]) -> Option<IpAddr> {
    Some(addresses(sent)?.1)
}

fn fill<const N: usize>(to: &mut ArrayVec<u8, N>, bytes: &[u8]) {
    let kept = &bytes[..bytes.len().min(N)];
    to.try_extend_from_slice(kept).expect("it was cut to fit");
}

fn now_ns() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use datapath::verdict::DeviceIndex;
    use wire::CHUNK_BYTES;

    use super::*;

    /// A frame from 192.0.2.`source` to 203.0.113.10.
    fn frame(source: u8) -> Vec<u8> {
        let mut bytes = vec![0; 60];
        bytes[14] = 0x45;
        bytes[26..30].copy_from_slice(&[192, 0, 2, source]);
        bytes[30..34].copy_from_slice(&[203, 0, 113, 10]);
        bytes
    }

    /// What of frames from 192.0.2.1, .2, .3, ... with these verdicts is
    /// captured: the last byte of the sources.
    fn captured(filter: Filter, on: bool, verdicts: &[Verdict]) -> Vec<u8> {
        let switch = Arc::new(Switch::default());
        let (mut tap, source) = pair(&switch);
        if on {
            switch.turn_on(Arc::new(filter));
        }
        let mut chunks = vec![[0; CHUNK_BYTES]; verdicts.len()];
        let frames = chunks.iter_mut().zip(1..);
        let mut batch: Batch<'_> =
            frames.map(|(chunk, source)| Frame::copy_of(chunk, &frame(source)).unwrap()).collect();
        tap.before(&batch);
        // The journey changes what was received.
        batch.iter_mut().for_each(|frame| frame.bytes_mut().fill(0xff));
        tap.after(&batch, &verdicts.iter().copied().collect(), 0);
        source.map(|captured| captured.frame[29]).collect()
    }

    const SENT: Verdict = Verdict::Send(DeviceIndex(0));
    const DROPPED: Verdict = Verdict::Drop(DropReason::NoService);

    #[test]
    fn off_nothing_is_captured() {
        assert!(captured(Filter::default(), false, &[SENT, DROPPED]).is_empty());
    }

    #[test]
    fn the_filter_chooses_by_client_verdict_and_reason() {
        let all = [SENT, DROPPED, Verdict::Drop(DropReason::TooBig), Verdict::Reply];
        let by = |filter: Filter| captured(filter, true, &all);
        assert_eq!(by(Filter::default()), [1, 2, 3, 4]);
        let client = Some("192.0.2.2/31".parse().unwrap());
        assert_eq!(by(Filter { client, ..Filter::default() }), [2, 3]);
        let verdicts = vec!["dropped".to_owned()];
        assert_eq!(by(Filter { verdicts, ..Filter::default() }), [2, 3]);
        let reasons = vec![DropReason::TooBig];
        assert_eq!(by(Filter { reasons, ..Filter::default() }), [3]);
        assert_eq!(by(Filter { sample: 2, ..Filter::default() }), [2, 4]);
    }

    #[test]
    fn a_full_ring_counts_what_it_misses() {
        let switch = Arc::new(Switch::default());
        let (mut tap, mut source) = pair(&switch);
        switch.turn_on(Arc::default());
        let mut chunk = [0; CHUNK_BYTES];
        let frame = Frame::copy_of(&mut chunk, &frame(1)).unwrap();
        for _ in 0..RING + 3 {
            tap.decided(&frame, DROPPED, 0);
        }
        assert_eq!((source.missed(), source.missed()), (3, 0));
        assert_eq!(source.count(), RING);
    }
}
