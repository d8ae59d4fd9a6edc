//! The whole journey: any frames, by any small plan, one by one and in
//! batches. Both agree on every verdict and byte; every frame is accounted
//! for; the inner packet stays as it was.
#![no_main]

use datapath::Verdict;
use guideway_fuzz::machine::{How, Machine, Memory, Outcome};
use guideway_fuzz::{Bytes, plans};
use libfuzzer_sys::fuzz_target;
use wire::{BATCH_MAX, FRAME_BYTES_MAX, headers};

fuzz_target!(|data: &[u8]| {
    let mut input = Bytes(data);
    let mut choices = Bytes(input.take(32));
    let mtu = plans::MTUS[usize::from(choices.byte() & 7)];
    let (first, second) = (plans::plan(&mut choices, 1), plans::plan(&mut choices, 2));
    let swap_after = usize::from(choices.byte());

    let (mut memory, mut fast_memory) = (Memory::default(), Memory::default());
    let mut plain = Machine::new(&mut memory, first.clone(), mtu);
    let mut fast = Machine::new(&mut fast_memory, first, mtu);
    let mut now_ms = u32::MAX - 10_000;
    for (index, (wait_ms, frames)) in batches(&mut input).into_iter().enumerate() {
        now_ms = now_ms.wrapping_add(wait_ms);
        if index == swap_after {
            plain.set(second.clone());
            fast.set(second.clone());
        }
        let expected = plain.forward(now_ms, &frames, How::OneByOne);
        let found = fast.forward(now_ms, &frames, How::Batched);
        for ((frame, expected), found) in frames.iter().zip(&expected).zip(&found) {
            assert_eq!(expected, found, "of {frame:02x?}");
            check_inner(frame, expected);
        }
    }
});

/// Frames that come at the same moment stand together.
fn batches<'d>(input: &mut Bytes<'d>) -> Vec<(u32, Vec<&'d [u8]>)> {
    let mut batches: Vec<(u32, Vec<&[u8]>)> = Vec::new();
    while let Some((wait_ms, frame)) = input.frame() {
        match batches.last_mut() {
            Some((_, frames)) if wait_ms == 0 && frames.len() < BATCH_MAX => frames.push(frame),
            _ => batches.push((wait_ms, vec![frame])),
        }
    }
    batches
}

/// A packet that was sent whole ends in the received one, bit by bit, or (if
/// it came in a tunnel) in the end of it.
fn check_inner(frame: &[u8], outcome: &Outcome) {
    let (Verdict::Send(_), Some(sent)) = (outcome.verdict, &outcome.frame) else { return };
    let frame = &frame[..frame.len().min(FRAME_BYTES_MAX)];
    let headers =
        headers::parse(frame).expect("only well-formed frames are sent").expect("only IP is sent");
    let packet = &frame[14..14 + usize::from(headers.packet_bytes)];
    // Twenty bytes: the least that a tunnel leaves of the end.
    let common = sent.iter().rev().zip(packet.iter().rev()).take_while(|(a, b)| a == b).count();
    assert!(
        !outcome.originated.is_empty() || common == packet.len() || common >= 20,
        "{packet:02x?} became {sent:02x?}"
    );
}
