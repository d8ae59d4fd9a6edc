//! The same journey for a batch: the stages of [`crate::forward`], each done
//! for all packets before the next, so that cache misses overlap.
//!
//! ```text
//!  read all ─► hash all ─► choose all ─► send all
//!  parse       AES, many   track,        encapsulate,
//!  match       at once     select        count
//!      └ asks for     └ asks for   └ asks for tunnels
//!        headers        buckets      and counters
//! ```
//!
//! Nothing else differs. Inside a stage packets go in their order, so that a
//! packet finds in the connection table what an earlier one of its batch left
//! there; and what one stage changes, no other looks at: reading changes only
//! its own frame, choosing the connection table, sending frames, limits and
//! the outbox. Held by `tests/batch.rs`.

use arrayvec::ArrayVec;
use plan::{BackendId, Matched, Service};
use wire::{BATCH_MAX, Batch, Family, Frame, Headers, headers};

use crate::decapsulate::{Budget, decapsulate};
use crate::drop_reason::DropReason;
use crate::encapsulate::Style;
use crate::flow_hash::{Block, first_half};
use crate::forward::{Datapath, Destination, match_service};
use crate::outbox::Outbox;
use crate::prefetch::prefetch;
use crate::recorder::NoRecorder;
use crate::send::{Way, send};
use crate::verdict::Verdict;
use crate::view::View;

/// The verdicts of a batch's frames, in their order.
pub type Verdicts = ArrayVec<Verdict, BATCH_MAX>;

/// A packet between two stages.
struct Traveller {
    /// Which frame of the batch.
    at: usize,
    headers: Headers,
    budget: Budget,
    /// None: for the machine in charge of its datagram.
    matched: Option<Matched>,
    hash: u64,
    /// None: no backend takes it.
    chosen: Option<(u16, BackendId)>,
}

type Travellers = ArrayVec<Traveller, BATCH_MAX>;

impl<'m> Datapath<'m> {
    /// Decides what becomes of each frame, and makes it ready for that.
    pub fn forward_batch(&self, view: &View, batch: &mut Batch<'_>, outbox: &mut Outbox<'m>, verdicts: &mut Verdicts) {
        let mut travellers = Travellers::new();
        read_all(view, batch, &mut travellers, verdicts);
        self.hash_all(&mut travellers);
        self.choose_all(view, &mut travellers);
        self.send_all(view, batch, &travellers, outbox, verdicts);
    }

    /// The flow hashes of all, and asks for their buckets.
    fn hash_all(&self, travellers: &mut Travellers) {
        let mut blocks = ArrayVec::<Block, BATCH_MAX>::new();
        for traveller in travellers.iter() {
            blocks.push(traveller.headers.key.block_v4().into());
        }
        self.hash.encrypt_all(&mut blocks);
        for (traveller, block) in travellers.iter_mut().zip(&blocks) {
            traveller.hash = match traveller.headers.key.family {
                Family::V4 => first_half((*block).into()),
                Family::V6 => self.hash.flow(&traveller.headers.key),
            };
            prefetch(self.table.bucket(traveller.hash));
        }
    }

    /// The backends of all, in order: tracked or selected.
    fn choose_all(&self, view: &View, travellers: &mut Travellers) {
        for traveller in travellers.iter_mut() {
            let Some(matched) = traveller.matched else { continue };
            let service = service(view, matched);
            let (headers, hash) = (&traveller.headers, traveller.hash);
            let chosen = self.track(view, service, headers, hash, &mut NoRecorder);
            traveller.chosen = chosen.or_else(|| self.select(view, service, headers, hash, &mut NoRecorder));
        }
    }

    fn send_all(
        &self,
        view: &View,
        batch: &mut Batch<'_>,
        travellers: &Travellers,
        outbox: &mut Outbox<'m>,
        verdicts: &mut Verdicts,
    ) {
        for traveller in travellers {
            outbox.at = traveller.at;
            let frame = &mut batch[traveller.at];
            verdicts[traveller.at] =
                self.send_one(view, frame, traveller, outbox).unwrap_or_else(Verdict::Drop);
        }
    }

    #[inline]
    fn send_one(
        &self,
        view: &View,
        frame: &mut Frame<'_>,
        traveller: &Traveller,
        outbox: &mut Outbox<'m>,
    ) -> Result<Verdict, DropReason> {
        let Traveller { headers, budget, hash, .. } = traveller;
        let Some(matched) = traveller.matched else {
            return self.to_owner(view, frame, headers, *budget, outbox);
        };
        let service = service(view, matched);
        let Some((member, backend)) = traveller.chosen else {
            return self.spill(view, frame, service, headers, (*hash, *budget), outbox);
        };
        let (tunnel, hop) = view.egress.toward(backend, *hash).ok_or(DropReason::NoNeighbour)?;
        let way = Way { tunnel, hop, style: Style::to_backend(service) };
        let verdict = send(frame, headers, *hash, way, self.answering(view), outbox)?;
        self.count(view, matched, service, member, headers);
        Ok(verdict)
    }
}

/// Parses and matches all. Those that end here have their verdicts; the others
/// travel on.
fn read_all(view: &View, batch: &mut Batch<'_>, travellers: &mut Travellers, verdicts: &mut Verdicts) {
    verdicts.clear();
    for frame in batch.iter() {
        if let Some(first) = frame.bytes().first() {
            prefetch(first);
        }
        if let Some(first) = frame.byte_in_front() {
            prefetch(first);
        }
    }
    for (at, frame) in batch.iter_mut().enumerate() {
        match read(view, frame) {
            Ok(Read::On(headers, budget, matched)) => {
                travellers.push(Traveller { at, headers, budget, matched, hash: 0, chosen: None });
                verdicts.push(Verdict::Pass);
            }
            Ok(Read::End(verdict)) => verdicts.push(verdict),
            Err(reason) => verdicts.push(Verdict::Drop(reason)),
        }
    }
}

/// How far a packet came.
enum Read {
    On(Headers, Budget, Option<Matched>),
    End(Verdict),
}

#[inline]
fn read(view: &View, frame: &mut Frame<'_>) -> Result<Read, DropReason> {
    let Some(headers) = headers::parse(frame.bytes())? else { return Ok(Read::End(Verdict::Pass)) };
    let (headers, budget) = match view.takes_tunnel(&headers.key) {
        true => decapsulate(frame, &headers, &view.plan.ingress)?,
        false => (headers, Budget::FRESH),
    };
    Ok(match match_service(view, &headers)? {
        Destination::Service(matched) => Read::On(headers, budget, Some(matched)),
        Destination::Kernel => Read::End(Verdict::Pass),
        Destination::SlowPath => Read::End(Verdict::Slow(budget)),
        Destination::Owner => Read::On(headers, budget, None),
    })
}

#[inline]
fn service(view: &View, matched: Matched) -> &Service {
    view.plan.service(matched.service).expect("a match names a service of its plan")
}
