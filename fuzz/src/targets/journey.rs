//! The whole journey: any frames, with any small plan, one by one and in batches. Both agree on
//! every verdict and byte; every frame is accounted for; the inner packet is unchanged; an
//! agent can read the options of a Geneve header.

use std::cell::RefCell;

use crate::machine::{Machine, Outcome, Path};
use crate::{Bytes, plans};
use datapath::Verdict;
use wire::{BATCH_MAX, FRAME_BYTES_MAX, headers};

thread_local! {
    static MACHINES: RefCell<[Machine; 2]> =
        RefCell::new([Path::Specification, Path::Batch].map(Machine::new));
}

/// Forwards the frames of the input both ways.
pub fn run(data: &[u8]) {
    MACHINES.with_borrow_mut(|machines| forward_both_ways(data, machines));
}

fn forward_both_ways(data: &[u8], [plain, fast]: &mut [Machine; 2]) {
    let mut input = Bytes(data);
    let mut choices = Bytes(input.take(32));
    let mtu = plans::MTUS[usize::from(choices.byte() & 7)];
    let (first, second) = (plans::plan(&mut choices, 1), plans::plan(&mut choices, 2));
    let swap_after = usize::from(choices.byte());

    plain.restart(first.clone(), mtu);
    fast.restart(first, mtu);
    let mut now_ms = u64::from(u32::MAX) - 10_000;
    for (index, (wait_ms, frames)) in batches(&mut input).into_iter().enumerate() {
        now_ms += u64::from(wait_ms);
        if index == swap_after {
            plain.set(second.clone());
            fast.set(second.clone());
        }
        let expected = plain.forward(now_ms, &frames);
        let found = fast.forward(now_ms, &frames);
        for ((frame, expected), found) in frames.iter().zip(&expected).zip(&found) {
            assert_eq!(expected, found, "of {frame:02x?}");
            check_inner(frame, expected);
        }
    }
}

/// Frames that come at the same moment stand together.
fn batches(input: &mut Bytes<'_>) -> Vec<(u32, Vec<Vec<u8>>)> {
    let mut batches: Vec<(u32, Vec<Vec<u8>>)> = Vec::new();
    while let Some((wait_ms, frame)) = input.frame() {
        match batches.last_mut() {
            Some((_, frames)) if wait_ms == 0 && frames.len() < BATCH_MAX => frames.push(frame),
            _ => batches.push((wait_ms, vec![frame])),
        }
    }
    batches
}

/// A packet that was sent whole ends in the received one, bit by bit; or, if
/// that came in a tunnel, in something that stood inside it.
fn check_inner(frame: &[u8], outcome: &Outcome) {
    const HEADER_BYTES: usize = 20;
    let (Verdict::Send(_), Some(sent)) = (outcome.verdict, &outcome.frame) else { return };
    if !outcome.originated.is_empty() {
        return;
    }
    let frame = &frame[..frame.len().min(FRAME_BYTES_MAX)];
    let headers = headers::parse(frame).expect("only well-formed frames are sent").expect("and IP");
    let packet = &frame[14..14 + usize::from(headers.packet_bytes)];
    let tail = &sent[sent.len() - HEADER_BYTES..];
    check_options(sent);
    let holds = sent.ends_with(packet) || packet.windows(HEADER_BYTES).any(|part| part == tail);
    assert!(holds, "{packet:02x?} became {sent:02x?}");
}

/// By docs/formats.md alone: what is sent in Geneve names one to three agents, each once, or
/// says what Multipath TCP needs, or both.
fn check_options(sent: &[u8]) {
    const PORT: [u8; 2] = [0x17, 0xc1];
    let udp = match sent[14] >> 4 {
        4 if sent[14 + 9] == 17 => 14 + 20,
        6 if sent[14 + 6] == 17 => 14 + 40,
        _ => return,
    };
    // Shorter ones are a client's.
    let Some(geneve) = sent.get(udp + 8..).filter(|geneve| geneve.len() > 8) else { return };
    if sent[udp + 2..udp + 4] != PORT || geneve[0] >> 6 != 0 {
        return;
    }
    let options = &geneve[8..8 + usize::from(geneve[0] & 0x3f) * 4];
    assert_eq!(geneve[1], if options.is_empty() { 0 } else { 0x40 }, "{geneve:02x?}");
    let (mut rest, mut kinds) = (options, Vec::new());
    while !rest.is_empty() {
        let (option, behind) = rest.split_at(4 + usize::from(rest[3] & 0x1f) * 4);
        let body = &option[4..];
        assert_eq!((option[0], option[1], option[3] >> 5), (0xff, 0x47, 0), "{geneve:02x?}");
        match option[2] {
            0x81 => check_route(body),
            0x82 => assert!(matches!(body, [.., 0 | 0x80, 0, _, _, _, _]) || body.len() == 28),
            kind => panic!("an option of type {kind}"),
        }
        kinds.push(option[2]);
        rest = behind;
    }
    assert!(kinds.is_sorted_by(|a, b| a < b), "{kinds:02x?}");
}

fn check_route(body: &[u8]) {
    let bytes = if body[0] & 0x80 == 0 { 4 } else { 16 };
    let count = usize::from(body[0] & 3);
    assert_eq!((body[0] & 0x7c, body[1]), (0, 4), "{body:02x?}");
    assert!(count > 0 && body.len() == 8 + count * bytes, "{body:02x?}");
    let addresses: Vec<&[u8]> = body[8..].chunks(bytes).collect();
    let is_once = |(at, address)| !addresses[..at].contains(address);
    assert!(addresses.iter().enumerate().all(is_once), "{body:02x?}");
}
