//! The agent's session with one controller: which nonce it presents, and what the
//! controller's answers say. Pure: datagrams in, datagrams out.

use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use tokio::time::Instant;

use super::count::Counting;
use super::proto;
use crate::config::Keys;
use crate::datagram::{self, Header, Kind, Nonce, Refused};
use crate::sockets::PAUSE;

/// How soon after a state the next one is, whatever the controller says.
const INTERVAL: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(200)..=Duration::from_secs(60);

/// Until the first answer, and where there is none.
const INTERVAL_UNANSWERED: Duration = Duration::from_secs(1);

/// Bytes of services that a controller may send.
const SERVICES_BYTES_MAX: usize = datagram::PARTS_MAX * datagram::BYTES_MAX;

/// What became of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// It was whole: the next state is due as it says.
    Whole,
    /// It has a new nonce or new services: the next state is due at once.
    News,
    /// More parts are to come.
    Part,
    /// It answers an older state, or one of a former start, or is there twice.
    Outdated,
    /// It was refused.
    Refused(Refused),
}

/// One agent's messages to one controller.
pub struct Session {
    keys: Keys,
    boot: u64,
    nonce: Nonce,
    sequence: u64,
    /// Sequence of the latest state that was answered in full.
    answered: u64,
    interval: Duration,
    count_interval: Option<Duration>,
    counted: Option<Counted>,
    counting: Option<Arc<Counting>>,
    assembly: Assembly,
}

/// When connections were last counted for this controller.
struct Counted {
    at: Instant,
    took: Duration,
    /// Sequence of the state that has them, or is to have them again.
    sequence: u64,
}

/// The parts of the answer that is being received.
#[derive(Default)]
struct Assembly {
    sequence: u64,
    parts: Vec<Option<Vec<u8>>>,
}

impl Session {
    /// `boot` differs each time the agent starts.
    pub fn new(keys: Keys, boot: u64) -> Session {
        Session {
            keys,
            boot,
            nonce: Nonce::default(),
            sequence: 0,
            answered: 0,
            interval: INTERVAL_UNANSWERED,
            count_interval: None,
            counted: None,
            counting: None,
            assembly: Assembly::default(),
        }
    }

    /// How to count, once the controller has said of which services.
    pub fn counting(&self) -> Option<Arc<Counting>> {
        self.counting.clone()
    }

    /// How long after a state the next one is due.
    pub fn interval(&self) -> Duration {
        if self.answered == self.sequence { self.interval } else { INTERVAL_UNANSWERED }
    }

    /// How often the controller wants counts; None: in every state, as former ones do.
    pub fn count_interval(&self) -> Option<Duration> {
        self.count_interval
    }

    /// Whether connections are to be counted for the next state: as often as the controller
    /// wants, at once where the latest counts may be lost, and such that all controllers'
    /// counts together take half of a hundredth of a processor.
    pub fn is_count_due(&self, now: Instant, controllers: u32) -> bool {
        let (Some(wanted), Some(counted)) = (self.count_interval, &self.counted) else {
            return true;
        };
        let wanted = if self.answered < counted.sequence { Duration::ZERO } else { wanted };
        now - counted.at >= wanted.max(counted.took * (PAUSE * controllers))
    }

    /// The next state has counts, which took so long.
    pub fn counted(&mut self, at: Instant, took: Duration) {
        self.counted = Some(Counted { at, took, sequence: self.sequence + 1 });
    }

    /// The datagrams of the next state, with these bodies.
    pub fn state(&mut self, bodies: &[Vec<u8>]) -> Vec<Vec<u8>> {
        self.sequence += 1;
        let parts = u8::try_from(bodies.len()).expect("a state has at most PARTS_MAX parts");
        let emit = |(part, body): (u8, &Vec<u8>)| {
            let (nonce, sequence) = (self.nonce, self.sequence);
            let kind = Kind::State;
            let header = Header { kind, part, parts, boot: self.boot, nonce, sequence };
            datagram::emit(&self.keys, &header, body)
        };
        (0..parts).zip(bodies).map(emit).collect()
    }

    /// Takes a datagram from the controller.
    pub fn take(&mut self, bytes: &[u8]) -> Taken {
        let (header, body) = match datagram::parse(&self.keys, bytes) {
            Ok(parsed) => parsed,
            Err(refused) => return Taken::Refused(refused),
        };
        if header.kind != Kind::Answer {
            return Taken::Refused(Refused::Malformed);
        }
        let is_late = header.sequence <= self.answered || header.sequence < self.assembly.sequence;
        if header.boot != self.boot || header.sequence > self.sequence || is_late {
            return Taken::Outdated;
        }
        match self.assembly.add(&header, body) {
            Some(bodies) => self.take_whole(&header, &bodies),
            None => Taken::Part,
        }
    }

    fn take_whole(&mut self, header: &Header, bodies: &[Vec<u8>]) -> Taken {
        let parts: Result<Vec<proto::AnswerPart>, _> =
            bodies.iter().map(|body| proto::AnswerPart::decode(body.as_slice())).collect();
        let Ok(parts) = parts else { return Taken::Refused(Refused::Malformed) };
        let digest = parts[0].services;
        let services: Vec<u8> = parts.iter().flat_map(|part| part.piece.iter().copied()).collect();
        let mut has_news = header.nonce != self.nonce;
        if !services.is_empty() && services.len() <= SERVICES_BYTES_MAX {
            match Counting::new(&self.keys, digest, &services) {
                Ok(counting) => self.counting = Some(Arc::new(counting)),
                Err(problem) => {
                    tracing::warn!("cannot count for the controller: {problem}");
                    return Taken::Refused(Refused::Malformed);
                }
            }
            has_news = true;
        }
        let interval = Duration::from_millis(parts[0].interval_ms.into());
        self.interval = interval.clamp(*INTERVAL.start(), *INTERVAL.end());
        self.count_interval = parts[0].count_interval_ms.map(|ms| Duration::from_millis(ms.into()));
        self.nonce = header.nonce;
        self.answered = header.sequence;
        if !has_news {
            return Taken::Whole;
        }
        if let Some(counted) = &mut self.counted {
            counted.sequence = self.sequence + 1; // those of this state were not taken
        }
        Taken::News
    }
}

impl Assembly {
    /// Adds a part; all of them, once they are there.
    fn add(&mut self, header: &Header, body: &[u8]) -> Option<Vec<Vec<u8>>> {
        if header.sequence != self.sequence || usize::from(header.parts) != self.parts.len() {
            *self = Assembly {
                sequence: header.sequence,
                parts: vec![None; usize::from(header.parts)],
            };
        }
        self.parts[usize::from(header.part)] = Some(body.to_vec());
        let whole: Option<Vec<Vec<u8>>> = self.parts.iter().cloned().collect();
        whole.inspect(|_| *self = Assembly { sequence: header.sequence, parts: Vec::new() })
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
