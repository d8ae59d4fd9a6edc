//! Requests rules from another agent. Pure: datagrams and times in, datagrams out.
//!
//! ```text
//!  wanted ── due ──► datagram ──► answer with the nonce that was shown: granted, again later
//!    ▲                       └──► answer with another nonce: again, with that one
//!    └── no answer: again, each time after twice the time
//! ```

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use super::rule::{self, Action, Rule};
use crate::config::Keys;
use crate::datagram::{self, Header, Kind, Nonce, Refused};
use crate::records::Flow;

/// How often a connection's rule is requested again: a third of what it lasts.
const REFRESH: Duration = Duration::from_secs(30);

/// Until a request is repeated for the first time.
const REPEAT_FIRST: Duration = Duration::from_millis(100);

/// How often requests are repeated that are of no use later: those of handshakes, which the
/// client repeats, and those to end a rule, which ends by itself.
const ATTEMPTS: u32 = 6;

/// Datagrams at once; the next ones follow soon.
const DATAGRAMS_MAX: usize = 32;

/// Messages whose answers are waited for.
const SENT_MAX: usize = 4096;

/// Without a rule to request, a message without any is sent so often, to learn whether the
/// other agent takes rules.
const PROBE: Duration = Duration::from_secs(10);
const PROBE_UNANSWERED: Duration = Duration::from_secs(2);

/// An agent that has not answered for so long takes none.
const ANSWER_MAX: Duration = Duration::from_secs(35);

/// What became of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// It has taken this number of rules.
    Granted(usize),
    /// Another nonce has to be shown.
    Challenged,
    /// It answers nothing that waits for an answer.
    Outdated,
    /// It was refused.
    Refused(Refused),
}

struct Wanted {
    action: Action,
    due: Instant,
    attempts: u32,
    is_granted: bool,
}

struct Sent {
    nonce: Nonce,
    rules: Vec<Rule>,
}

/// This agent's requests to one other.
pub struct Client {
    /// Of what is sent, and of answers: their names differ.
    own: Keys,
    other: Keys,
    boot: u64,
    nonce: Nonce,
    sequence: u64,
    wanted: HashMap<Flow, Wanted>,
    due: BTreeSet<(Instant, Flow)>,
    sent: BTreeMap<u64, Sent>,
    probe_due: Instant,
    answered_at: Option<Instant>,
    /// Requests that were given up.
    pub gave_up: u64,
}

impl Client {
    /// `own` and `other` have the key of both, and each its agent's name; `boot` differs
    /// each time this agent starts.
    pub fn new(own: Keys, other: Keys, boot: u64, now: Instant) -> Client {
        Client {
            own,
            other,
            boot,
            nonce: Nonce::default(),
            sequence: 0,
            wanted: HashMap::new(),
            due: BTreeSet::new(),
            sent: BTreeMap::new(),
            probe_due: now,
            answered_at: None,
            gave_up: 0,
        }
    }

    /// Rules, and how many of them the other agent is not known to have.
    pub fn count(&self) -> (usize, usize) {
        let ungranted = self.wanted.values().filter(|wanted| !wanted.is_granted).count();
        (self.wanted.len(), ungranted)
    }

    /// True if the other agent takes rules.
    pub fn is_answered(&self, now: Instant) -> bool {
        self.answered_at.is_some_and(|at| now.saturating_duration_since(at) < ANSWER_MAX)
    }

    /// Requests something of a flow. A connection is a handshake no more.
    pub fn request(&mut self, flow: Flow, action: Action, now: Instant) {
        if let Some(known) = self.wanted.get(&flow) {
            if known.action == action
                || (known.action == Action::Connection && action == Action::Handshake)
            {
                return;
            }
            self.due.remove(&(known.due, flow));
        } else if action == Action::End {
            return;
        }
        self.wanted.insert(flow, Wanted { action, due: now, attempts: 0, is_granted: false });
        self.due.insert((now, flow));
    }

    /// When there is something to send.
    pub fn next_due(&self) -> Instant {
        self.due.first().map_or(self.probe_due, |(due, _)| (*due).min(self.probe_due))
    }

    /// What is to be sent now.
    pub fn datagrams(&mut self, now: Instant) -> Vec<Vec<u8>> {
        let per_datagram = datagram::body_bytes_max(&self.own) / rule::BYTES_MAX;
        let mut datagrams = Vec::new();
        while datagrams.len() < DATAGRAMS_MAX {
            let mut rules = Vec::new();
            while rules.len() < per_datagram
                && let Some((due, flow)) = self.due.first().copied()
                && due <= now
            {
                self.due.pop_first();
                rules.extend(self.attempt(flow, now).map(|action| Rule { action, flow }));
            }
            if rules.is_empty() {
                break;
            }
            datagrams.push(self.emit(rules));
        }
        if datagrams.is_empty() && self.probe_due <= now {
            datagrams.push(self.emit(Vec::new()));
        }
        if !datagrams.is_empty() {
            let probe = if self.is_answered(now) { PROBE } else { PROBE_UNANSWERED };
            self.probe_due = now + probe;
        }
        datagrams
    }

    /// Schedules the next attempt; None: there were enough.
    fn attempt(&mut self, flow: Flow, now: Instant) -> Option<Action> {
        let wanted = self.wanted.get_mut(&flow)?;
        if wanted.is_granted {
            wanted.attempts = 0;
        }
        if wanted.attempts >= ATTEMPTS && wanted.action != Action::Connection {
            self.wanted.remove(&flow);
            self.gave_up += 1;
            return None;
        }
        let repeat = REPEAT_FIRST * (1 << wanted.attempts.min(8));
        wanted.due = now + repeat.min(REFRESH);
        wanted.attempts += 1;
        self.due.insert((wanted.due, flow));
        Some(wanted.action)
    }

    fn emit(&mut self, rules: Vec<Rule>) -> Vec<u8> {
        self.sequence += 1;
        let (kind, nonce, sequence) = (Kind::Rules, self.nonce, self.sequence);
        let header = Header { kind, part: 0, parts: 1, boot: self.boot, nonce, sequence };
        let bytes = datagram::emit(&self.own, &header, &rule::emit(&rules));
        if self.sent.len() >= SENT_MAX {
            self.sent.pop_first();
        }
        self.sent.insert(sequence, Sent { nonce, rules });
        bytes
    }

    /// Takes a datagram from the other agent.
    pub fn take(&mut self, bytes: &[u8], now: Instant) -> Taken {
        let header = match datagram::parse(&self.other, bytes) {
            Ok((header, [])) if header.kind == Kind::RulesAnswer => header,
            Ok(_) => return Taken::Refused(Refused::Malformed),
            Err(refused) => return Taken::Refused(refused),
        };
        if header.boot != self.boot {
            return Taken::Outdated;
        }
        let Some(sent) = self.sent.remove(&header.sequence) else { return Taken::Outdated };
        if header.nonce != sent.nonce {
            // Of several at once the first counts: the others would begin sessions anew.
            if sent.nonce == self.nonce {
                self.nonce = header.nonce;
            }
            self.probe_due = now;
            sent.rules.iter().for_each(|rule| self.again(rule, now));
            return Taken::Challenged;
        }
        self.answered_at = Some(now);
        let granted = sent.rules.iter().filter(|rule| self.granted(rule, now)).count();
        Taken::Granted(granted)
    }

    fn again(&mut self, rule: &Rule, now: Instant) {
        let Some(wanted) = self.wanted.get_mut(&rule.flow) else { return };
        self.due.remove(&(wanted.due, rule.flow));
        (wanted.due, wanted.is_granted) = (now, false);
        self.due.insert((now, rule.flow));
    }

    fn granted(&mut self, rule: &Rule, now: Instant) -> bool {
        let Some(wanted) = self.wanted.get_mut(&rule.flow) else { return false };
        if wanted.action != rule.action {
            return false;
        }
        self.due.remove(&(wanted.due, rule.flow));
        if wanted.action == Action::Connection {
            (wanted.due, wanted.is_granted) = (now + REFRESH, true);
            self.due.insert((wanted.due, rule.flow));
        } else {
            self.wanted.remove(&rule.flow);
        }
        true
    }
}
