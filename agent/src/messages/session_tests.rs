use super::*;
use crate::datagram::emit;

const BOOT: u64 = 7;

fn keys() -> Keys {
    Keys { agent: "web-1".to_string(), id: [1; 8], message: [2; 32], bucket: [3; 16] }
}

fn session() -> Session {
    Session::new(keys(), BOOT)
}

/// The controller's side.
struct Answer {
    boot: u64,
    sequence: u64,
    nonce: Nonce,
    pieces: Vec<Vec<u8>>,
    interval_ms: u32,
    count_interval_ms: Option<u32>,
}

fn answer(sequence: u64) -> Answer {
    Answer {
        boot: BOOT,
        sequence,
        nonce: [9; 16],
        pieces: vec![Vec::new()],
        interval_ms: 5000,
        count_interval_ms: None,
    }
}

impl Answer {
    fn datagrams(&self) -> Vec<Vec<u8>> {
        let parts = self.pieces.len() as u8;
        let datagram = |(part, piece): (u8, &Vec<u8>)| {
            let body = proto::AnswerPart {
                interval_ms: self.interval_ms,
                services: 5,
                piece: piece.clone(),
                count_interval_ms: self.count_interval_ms,
            };
            let (boot, nonce, sequence) = (self.boot, self.nonce, self.sequence);
            let kind = Kind::Answer;
            let header = Header { kind, part, parts, boot, nonce, sequence };
            emit(&keys(), &header, &body.encode_to_vec())
        };
        (0..parts).zip(&self.pieces).map(datagram).collect()
    }

    fn datagram(&self) -> Vec<u8> {
        self.datagrams().remove(0)
    }
}

fn sent_nonce(session: &mut Session) -> Nonce {
    let datagrams = session.state(&[Vec::new()]);
    datagram::parse(&keys(), &datagrams[0]).unwrap().0.nonce
}

#[test]
fn the_nonce_of_an_answer_is_shown_from_then_on() {
    let mut session = session();
    assert_eq!(sent_nonce(&mut session), Nonce::default());
    assert_eq!(session.take(&answer(1).datagram()), Taken::News);
    assert_eq!(sent_nonce(&mut session), [9; 16]);
    assert_eq!(session.interval(), INTERVAL_UNANSWERED, "not answered yet");
    assert_eq!(session.take(&answer(2).datagram()), Taken::Whole);
    assert_eq!(session.interval(), Duration::from_secs(5));
}

#[test]
fn answers_to_other_states_count_for_nothing() {
    let mut session = session();
    for _ in 0..3 {
        session.state(&[Vec::new()]);
    }
    let of_another_start = Answer { boot: BOOT + 1, ..answer(3) };
    assert_eq!(session.take(&of_another_start.datagram()), Taken::Outdated);
    assert_eq!(session.take(&answer(4).datagram()), Taken::Outdated, "to a state not yet sent");
    assert_eq!(session.take(&answer(2).datagram()), Taken::News);
    assert_eq!(session.take(&answer(2).datagram()), Taken::Outdated, "replayed");
    assert_eq!(session.take(&answer(1).datagram()), Taken::Outdated, "older");
    assert_eq!(session.take(&answer(3).datagram()), Taken::Whole);
}

#[test]
fn services_are_taken_once_all_their_pieces_came_in_any_order() {
    let services = proto::Services {
        prefix_groups: Vec::new(),
        services: vec![proto::Service {
            name: "a-name-that-takes-some-bytes".to_string(),
            vips: vec![plan::proto::Vip {
                target: Some(plan::proto::vip::Target::Address("203.0.113.10".to_string())),
                ..Default::default()
            }],
            buckets: 256,
            ..Default::default()
        }],
    };
    let bytes = services.encode_to_vec();
    let pieces: Vec<Vec<u8>> = bytes.chunks(20).map(<[u8]>::to_vec).collect();
    assert!(pieces.len() > 2);
    let mut session = session();
    session.state(&[Vec::new()]);
    let mut datagrams = Answer { pieces, ..answer(1) }.datagrams();
    datagrams.reverse();
    let last = datagrams.pop().unwrap();
    for datagram in &datagrams {
        assert_eq!(session.take(datagram), Taken::Part);
        assert_eq!(session.take(datagram), Taken::Part, "doubled");
    }
    assert!(session.counting().is_none());
    assert_eq!(session.take(&last), Taken::News);
    assert!(session.counting().is_some());
}

#[test]
fn what_is_no_answer_for_us_is_refused() {
    let mut session = session();
    let state = session.state(&[Vec::new()]).remove(0);
    assert_eq!(session.take(&state), Taken::Refused(Refused::Malformed), "our own, sent back");
    let mut forged = answer(1).datagram();
    *forged.last_mut().unwrap() ^= 1;
    assert_eq!(session.take(&forged), Taken::Refused(Refused::Forged));
    let others = Keys { agent: "web-2".to_string(), ..keys() };
    let header =
        Header { kind: Kind::Answer, part: 0, parts: 1, boot: BOOT, nonce: [9; 16], sequence: 1 };
    assert_eq!(session.take(&emit(&others, &header, b"")), Taken::Refused(Refused::OtherKey));
    assert_eq!(session.take(&[]), Taken::Refused(Refused::Malformed));
    let nonsense = emit(&keys(), &header, b"\xff\xff");
    assert_eq!(session.take(&nonsense), Taken::Refused(Refused::Malformed));
    assert_eq!(sent_nonce(&mut session), Nonce::default());
}

#[test]
fn no_controller_makes_the_agent_send_without_end_or_hardly_ever() {
    for (asked_ms, got) in [(0, INTERVAL.start()), (u32::MAX, INTERVAL.end())] {
        let mut session = session();
        session.state(&[Vec::new()]);
        session.take(&Answer { interval_ms: asked_ms, ..answer(1) }.datagram());
        assert_eq!(session.interval(), *got);
    }
}

#[test]
fn counts_that_were_not_answered_are_sent_again_at_once() {
    let mut session = session();
    let begun = Instant::now();
    let after = |seconds| begun + Duration::from_secs(seconds);
    assert!(session.is_count_due(begun, 1), "the controller has not said how often");
    session.state(&[Vec::new()]);
    session.take(&Answer { count_interval_ms: Some(10_000), ..answer(1) }.datagram());
    assert!(session.is_count_due(begun, 1), "none yet");
    session.counted(begun, Duration::from_millis(1));
    session.state(&[Vec::new()]);
    assert!(session.is_count_due(after(1), 1), "state 2 or its answer is lost");
    assert!(!session.is_count_due(after(1), 6), "1.2 s are half of a hundredth for 1 ms six times");
    session.counted(after(1), Duration::from_millis(1));
    session.state(&[Vec::new()]);
    session.state(&[Vec::new()]);
    session.take(&Answer { count_interval_ms: Some(10_000), ..answer(2) }.datagram());
    assert!(session.is_count_due(after(2), 1), "the answer is to an older state");
    session.take(&Answer { count_interval_ms: Some(10_000), ..answer(3) }.datagram());
    assert!(!session.is_count_due(after(2), 1));
    assert!(session.is_count_due(after(11), 1));
    session.state(&[Vec::new()]);
    session
        .take(&Answer { nonce: [8; 16], count_interval_ms: Some(10_000), ..answer(4) }.datagram());
    assert!(session.is_count_due(after(2), 1), "the controller has started anew");
}
