//! The slow path: what no single worker can decide, because it needs the
//! tables of all of them. One thread a machine; workers hand it their frames.
//!
//! ICMP to a VIP: an echo request is answered; an error goes to the backend
//! whose packet it quotes, found by the quoted five-tuple, reversed, in all
//! workers' tables, then by hash.

use plan::{Affinity, BackendId, Found, Matched, Service, Standing};
use wire::{Frame, Headers, Protocol, ethernet, headers, icmp};

use crate::clock::{Clock, Now};
use crate::counters::Counters;
use crate::drop_reason::DropReason;
use crate::encapsulate::Style;
use crate::flow_hash::FlowHash;
use crate::limiter::Limiter;
use crate::outbox::Outbox;
use crate::recorder::{Lookup, Recorder};
use crate::reply;
use crate::send::{ANSWERS_PER_SECOND, Answering, Way, send};
use crate::table::TableReader;
use crate::verdict::Verdict;
use crate::view::View;

/// What the slow path decides with.
#[derive(Debug)]
pub struct SlowPath<'m> {
    hash: FlowHash,
    tables: Vec<TableReader<'m>>,
    counters: &'m Counters,
    limiter: Limiter,
    clock: Clock,
    now: Now,
    /// Its place in a view's counters: behind those of the workers.
    worker: usize,
}

impl<'m> SlowPath<'m> {
    /// A slow path beside workers with these tables.
    #[must_use]
    pub fn new(hash: FlowHash, tables: Vec<TableReader<'m>>, counters: &'m Counters, clock: Clock) -> SlowPath<'m> {
        let worker = tables.len();
        let limiter = Limiter::new(ANSWERS_PER_SECOND);
        SlowPath { hash, tables, counters, limiter, clock, now: Now(0), worker }
    }

    /// Tells the time, as [`crate::Datapath::begin`] does.
    pub fn begin(&mut self, now_ms: u32) {
        self.now = self.clock.advance(now_ms);
    }

    /// What it counts.
    #[must_use]
    pub fn counters(&self) -> &'m Counters {
        self.counters
    }

    /// Decides what becomes of a frame that a worker answered
    /// [`Verdict::Slow`] for.
    pub fn forward(
        &self,
        view: &View,
        frame: &mut Frame<'_>,
        outbox: &mut Outbox<'m>,
        recorder: &mut impl Recorder,
    ) -> Verdict {
        self.journey(view, frame, outbox, recorder).unwrap_or_else(Verdict::Drop)
    }

    fn journey(
        &self,
        view: &View,
        frame: &mut Frame<'_>,
        outbox: &mut Outbox<'m>,
        recorder: &mut impl Recorder,
    ) -> Result<Verdict, DropReason> {
        let headers = headers::parse(frame.bytes())?.expect("a worker parsed it");
        recorder.parsed(&headers.key);
        let message = message(frame, &headers);
        match icmp::kind(headers.key.family, message).ok_or(DropReason::TransportHeader)? {
            icmp::Kind::EchoRequest => {
                reply::echo(frame, &headers, view.reply_link);
                Ok(Verdict::Reply)
            }
            icmp::Kind::Error => self.error(view, frame, &headers, outbox, recorder),
            icmp::Kind::Other => Err(DropReason::Icmp),
        }
    }

    /// An error about a packet that one of our backends sent from the VIP.
    fn error(
        &self,
        view: &View,
        frame: &mut Frame<'_>,
        headers: &Headers,
        outbox: &mut Outbox<'m>,
        recorder: &mut impl Recorder,
    ) -> Result<Verdict, DropReason> {
        let quoted = icmp::quoted(headers.key.family, message(frame, headers)).ok_or(DropReason::Icmp)?;
        let key = quoted.reversed();
        // An error goes to the sender of what it quotes, or it is forged.
        let is_ours = key.destination == headers.key.destination
            && !matches!(key.protocol, Protocol::ICMP | Protocol::ICMPV6);
        let Found::Service(matched) = view.plan.vips.find(&key) else { return Err(DropReason::Icmp) };
        if !is_ours {
            return Err(DropReason::Icmp);
        }
        recorder.matched(matched);
        let service = view.plan.service(matched.service).expect("a match names a service of its plan");
        let hash = self.hash.flow(&key);
        let (member, backend) = match self.tracked(service, hash) {
            Some(kept) => {
                recorder.tracked(Lookup::Hit);
                kept
            }
            None => {
                recorder.tracked(Lookup::Miss);
                let selector = match service.affinity {
                    Affinity::Flow => hash,
                    Affinity::Client => self.hash.client(&key),
                };
                let selected = service.group.select(selector).ok_or(DropReason::NoBackend)?;
                recorder.selected(selected.slot);
                (selected.member, selected.backend)
            }
        };
        recorder.backend(backend);
        let (tunnel, hop) = view.egress.toward(backend, hash).ok_or(DropReason::NoNeighbour)?;
        let style = Style::to_backend(service);
        // Nobody answers an ICMP error with another one (RFC 1122).
        let headers = Headers { dont_fragment: false, ..*headers };
        let answering = Answering { limiter: &self.limiter, now: self.now, link: view.reply_link };
        let verdict = send(frame, &headers, hash, Way { tunnel, hop, style }, answering, outbox)?;
        self.count(view, matched, service, member, &headers);
        Ok(verdict)
    }

    /// The backend that some worker's table has for the flow, if it may keep
    /// it.
    fn tracked(&self, service: &Service, hash: u64) -> Option<(u16, BackendId)> {
        let (entry, _) = self.tables.iter().find_map(|table| table.find(hash, service.id))?;
        let (member, standing) = service.group.member(entry.backend)?;
        (standing != Standing::Gone).then_some((member, entry.backend))
    }

    fn count(&self, view: &View, matched: Matched, service: &Service, member: u16, headers: &Headers) {
        let counters = &view.counters[self.worker];
        counters.matches[matched.matched as usize].count(headers.packet_bytes);
        counters.members[service.first_member as usize + usize::from(member)].traffic.count(headers.packet_bytes);
    }
}

/// What follows the IP header.
fn message<'f>(frame: &'f Frame<'_>, headers: &Headers) -> &'f [u8] {
    &frame.bytes()[ethernet::HEADER_BYTES..][usize::from(headers.transport_offset)..usize::from(headers.packet_bytes)]
}
