//! The same journey for a batch: the stages of [`crate::forward`], each done
//! for all packets before the next, so that cache misses overlap.
//!
//! ```text
//!  parse all ─► match all ─► hash all ─► choose all ─► send all
//!                            AES, many   track,        encapsulate,
//!                            at once     select        count
//!   └ asks for                └ asks for   └ asks for tunnels
//!     headers                   buckets      and counters
//! ```
//!
//! Nothing else differs. Inside a stage packets go in their order, so that a
//! packet finds in the connection table what an earlier one of its batch left
//! there; and what one stage changes, no other looks at: the first two change
//! their own frame only, choosing the connection table, sending frames, limits
//! and the outbox. Held by `tests/batch.rs`.
//!
//! Stages are functions of their own in the binary too, so that profilers tell
//! them apart. Headers are written once and then stay where they are: copies of what has
//! just been written in pieces cost more than any stage.

use arrayvec::ArrayVec;
use plan::{BackendId, Matched, Service};
use wire::{BATCH_MAX, Batch, Frame, Headers, headers};

use crate::decapsulate::{Budget, decapsulate};
use crate::drop_reason::DropReason;
use crate::encapsulate::Style;
use crate::forward::{Arrived, Datapath, Destination, Remember, match_service};
use crate::outbox::Outbox;
use crate::prefetch::prefetch;
use crate::recorder::NoRecorder;
use crate::send::{Way, send};
use crate::trace::Mark;
use crate::verdict::Verdict;
use crate::view::View;

/// The verdicts of a batch's frames, in their order.
pub type Verdicts = ArrayVec<Verdict, BATCH_MAX>;

/// A packet that was parsed.
struct Parsed {
    /// Which frame of the batch.
    at: usize,
    headers: Headers,
}

/// A packet whose journey goes on.
struct Traveller<'v> {
    parsed: &'v Parsed,
    budget: Budget,
    /// None: for the machine in charge of its datagram.
    wanted: Option<(Matched, &'v Service)>,
    /// The flow hash.
    hash: u64,
    /// None: no backend takes it.
    chosen: Option<(u16, BackendId)>,
}

/// A packet that somebody traces: it goes its way alone, behind the others.
struct Marked {
    at: usize,
    arrived: Arrived,
    mark: Mark,
}

type AllMarked = ArrayVec<Marked, BATCH_MAX>;
type AllParsed = ArrayVec<Parsed, BATCH_MAX>;
type Travellers<'v> = ArrayVec<Traveller<'v>, BATCH_MAX>;

impl<'m> Datapath<'m> {
    /// Decides what becomes of each frame, and makes it ready for that.
    pub fn forward_batch(
        &self,
        view: &View,
        batch: &mut Batch<'_>,
        outbox: &mut Outbox<'m>,
        verdicts: &mut Verdicts,
    ) {
        let mut parsed = AllParsed::new();
        parse_all(batch, &mut parsed, verdicts);
        let mut travellers = Travellers::new();
        let mut marked = AllMarked::new();
        self.match_all(view, batch, &mut parsed, (&mut travellers, &mut marked), verdicts);
        self.hash_all(&mut travellers);
        self.choose_all(view, batch, &mut travellers);
        self.send_all(view, batch, &travellers, outbox, verdicts);
        for Marked { at, arrived, mark } in &marked {
            outbox.at = *at;
            verdicts[*at] = self.traced(view, &mut batch[*at], arrived, mark, outbox);
        }
    }

    /// Takes packets out of their tunnels, and finds the service that wants
    /// each.
    #[inline(never)]
    fn match_all<'v>(
        &self,
        view: &'v View,
        batch: &mut Batch<'_>,
        parsed: &'v mut AllParsed,
        (travellers, marked): (&mut Travellers<'v>, &mut AllMarked),
        verdicts: &mut Verdicts,
    ) {
        for parsed in parsed.iter_mut() {
            let at = parsed.at;
            let frame = &mut batch[at];
            if let Some(there) = frame.byte_in_front() {
                prefetch(there);
            }
            let (budget, tunnelled) = match unwrap(view, frame, &mut parsed.headers) {
                Ok(unwrapped) => unwrapped,
                Err(reason) => {
                    verdicts[at] = Verdict::Drop(reason);
                    continue;
                }
            };
            if let Some(mark) = self.recognise(view, frame, &parsed.headers) {
                marked.push(Marked {
                    at,
                    arrived: Arrived { headers: parsed.headers, budget, tunnelled },
                    mark,
                });
                continue;
            }
            match match_service(view, &parsed.headers) {
                Ok(Destination::Service(matched)) => {
                    let service = view
                        .plan
                        .service(matched.service)
                        .expect("a match names a service of its plan");
                    let wanted = Some((matched, service));
                    travellers.push(Traveller { parsed, budget, wanted, hash: 0, chosen: None });
                }
                Ok(Destination::Owner) => {
                    travellers.push(Traveller {
                        parsed,
                        budget,
                        wanted: None,
                        hash: 0,
                        chosen: None,
                    });
                }
                Ok(Destination::Kernel) if tunnelled => {
                    verdicts[at] = Verdict::Drop(DropReason::NoService)
                }
                Ok(Destination::Kernel) => {}
                Ok(Destination::SlowPath) => verdicts[at] = Verdict::Slow(budget),
                Err(reason) => verdicts[at] = Verdict::Drop(reason),
            }
        }
    }

    /// The flow hashes of all; asks for their buckets.
    #[inline(never)]
    fn hash_all(&self, travellers: &mut Travellers<'_>) {
        let hashes =
            self.hash.flows(travellers.iter().map(|traveller| &traveller.parsed.headers.key));
        for (traveller, hash) in travellers.iter_mut().zip(hashes) {
            traveller.hash = hash;
            prefetch(self.table.bucket(hash));
        }
    }

    /// The backends of all: tracked, or else selected.
    #[inline(never)]
    fn choose_all(&self, view: &View, batch: &Batch<'_>, travellers: &mut Travellers<'_>) {
        for traveller in travellers.iter_mut() {
            let Some((_, service)) = traveller.wanted else { continue };
            let (headers, hash) = (&traveller.parsed.headers, traveller.hash);
            let chosen = self.track(view, service, headers, hash, &mut NoRecorder);
            let chosen = chosen.or_else(|| {
                let remember = Remember::of(&batch[traveller.parsed.at]);
                self.select(view, service, headers, (hash, remember), &mut NoRecorder)
            });
            traveller.chosen = chosen;
            if let Some((member, backend)) = chosen {
                view.egress.prefetch(backend);
                prefetch(self.member_counters(view, service, member));
            }
        }
    }

    #[inline(never)]
    fn send_all(
        &self,
        view: &View,
        batch: &mut Batch<'_>,
        travellers: &Travellers<'_>,
        outbox: &mut Outbox<'m>,
        verdicts: &mut Verdicts,
    ) {
        for traveller in travellers {
            let at = traveller.parsed.at;
            outbox.at = at;
            let sent = self.send_one(view, &mut batch[at], traveller, outbox);
            verdicts[at] = sent.unwrap_or_else(Verdict::Drop);
        }
    }

    #[inline]
    fn send_one(
        &self,
        view: &View,
        frame: &mut Frame<'_>,
        traveller: &Traveller<'_>,
        outbox: &mut Outbox<'m>,
    ) -> Result<Verdict, DropReason> {
        let (headers, hash, budget) = (&traveller.parsed.headers, traveller.hash, traveller.budget);
        let Some((matched, service)) = traveller.wanted else {
            return self.to_owner(view, frame, headers, budget, outbox);
        };
        let Some((member, backend)) = traveller.chosen else {
            return self.spill(view, frame, service, headers, (hash, budget), outbox);
        };
        let (tunnel, hop) = view.egress.toward(backend, hash).ok_or(DropReason::NoNeighbour)?;
        let way = Way { tunnel, hop, style: Style::to_backend(service) };
        let verdict = send(frame, headers, hash, way, || self.answering(view), outbox)?;
        self.count(view, matched, service, member, headers);
        Ok(verdict)
    }
}

/// Parses all. Those that end here have their verdicts; the others get one
/// that a later stage replaces.
#[inline(never)]
fn parse_all(batch: &Batch<'_>, parsed: &mut AllParsed, verdicts: &mut Verdicts) {
    batch.iter().filter_map(|frame| frame.bytes().first()).for_each(prefetch);
    verdicts.clear();
    for (at, frame) in batch.iter().enumerate() {
        let mut verdict = Verdict::Pass;
        match headers::parse(frame.bytes()) {
            Ok(Some(headers)) => parsed.push(Parsed { at, headers }),
            Ok(None) => {}
            Err(error) => verdict = Verdict::Drop(error.into()),
        }
        verdicts.push(verdict);
    }
}

/// Takes off what other load balancers put around the packet. True if there
/// was anything.
#[inline]
fn unwrap(
    view: &View,
    frame: &mut Frame<'_>,
    headers: &mut Headers,
) -> Result<(Budget, bool), DropReason> {
    if !view.takes_tunnel(&headers.key) {
        return Ok((Budget::FRESH, false));
    }
    let (inner, budget) = decapsulate(frame, headers, &view.plan.ingress)?;
    *headers = inner;
    Ok((budget, true))
}
