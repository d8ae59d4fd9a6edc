//! Targets: where the kernel sends packets of a match to a member. Only the control thread
//! writes them.
//!
//! [`super::target_fields`] describes the words of a target.
//!
//! **Writing.** To write a target the control thread stores word 0 with generation zero
//! and the next sequence number, then the others, then word 0 as it will be. The
//! kernel loads word 0, the others, and word 0 again; a difference is a miss. 2^20
//! sequence numbers do not come round while a packet is sent.
//!
//! **Generations.** An entry names a target by number and generation. A target that no longer
//! forwards gets generation zero, in one store; its number is put behind the free ones, and
//! gets the next generation when it is given out again. There are 4,095 generations, so one is
//! used again after as many changes of plan at the earliest. These are coalesced to 20 a
//! second, so that takes 200 seconds, while an unused entry disappears within 40
//! ([`super::entries`]).

use std::collections::{HashMap, HashSet, VecDeque};
use std::mem;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use plan::{Admission, BackendId, Match, Member, Plan, Service, ServiceId, Tracking, proto};

use super::limits::IDLE_TIMEOUT_MS_MIN;
use super::services::{ServiceEntry, Services};
use super::target_fields::{TARGET_WORDS, TargetFields, fields_of, with_egress};
use crate::egress::Egress;
use crate::encapsulate::HeaderTemplate;
use crate::not_cached::{NotCached, NotCachedCounts};
use crate::verdict::DeviceIndex;

/// Targets there may be: 20 bits of an entry name one, and 65,536 of them take 8 MiB.
/// Flows to further ones are not cached.
pub const TARGETS_MAX: usize = 1 << 16;

const NUMBER_BITS: u32 = 20;
const GENERATION_BITS: u32 = 12;
const GENERATION_MASK: u32 = (1 << GENERATION_BITS) - 1;
const SEQUENCE_MASK: u32 = !GENERATION_MASK;
/// The upper half of word 0: what is no state.
const FIELDS_MASK: u64 = !0 << 32;

/// A target as entries name it: its number, and above that its generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TargetRef(NonZeroU32);

impl TargetRef {
    fn new(number: u32, generation: u32) -> TargetRef {
        let bits = NonZeroU32::new(generation << NUMBER_BITS | number);
        TargetRef(bits.expect("no generation is zero"))
    }

    /// As they stand in an entry; None: no target has these.
    #[must_use]
    pub fn from_bits(bits: u32) -> Option<TargetRef> {
        (bits >> NUMBER_BITS != 0).then(|| NonZeroU32::new(bits).map(TargetRef)).flatten()
    }

    /// As they stand in an entry.
    #[must_use]
    pub fn bits(self) -> u32 {
        self.0.get()
    }

    /// Which target.
    #[must_use]
    pub fn number(self) -> usize {
        (self.0.get() & ((1 << NUMBER_BITS) - 1)) as usize
    }

    fn generation(self) -> u32 {
        self.0.get() >> NUMBER_BITS
    }
}

/// The targets' memory.
#[derive(Debug, Clone, Copy)]
pub struct Targets<'m> {
    all: &'m [TargetCells],
}

type TargetCells = [AtomicU64; TARGET_WORDS];

impl<'m> Targets<'m> {
    /// Those in that memory.
    ///
    /// # Panics
    /// If there are none, or more than entries can name.
    #[must_use]
    pub fn new(words: &'m [AtomicU64]) -> Targets<'m> {
        let (all, rest) = words.as_chunks();
        assert!(rest.is_empty() && (1..=TARGETS_MAX).contains(&all.len()), "{}", words.len());
        Targets { all }
    }

    /// True if the kernel sends by it.
    #[must_use]
    pub fn is_valid(&self, target: TargetRef) -> bool {
        let cells = self.all.get(target.number());
        cells.is_some_and(|cells| state(cells) & GENERATION_MASK == target.generation())
    }
}

/// The targets of one device's filter.
#[derive(Debug, Clone)]
pub struct TargetMemory<'m> {
    /// Where they are.
    pub targets: Targets<'m>,
    /// Where buckets of stateless services are, as many of each device.
    pub service_buckets: &'m [AtomicU64],
    /// The device that its packets come in by.
    pub device: DeviceIndex,
    /// By device: whether the filter can send by it.
    pub sends_by: Box<[bool]>,
}

impl TargetMemory<'_> {
    /// How the filter sends by that device, as a target has it; None: not at all.
    fn egress(&self, to: DeviceIndex) -> Option<u8> {
        let can_send = self.sends_by.get(usize::from(to.0)).is_some_and(|can_send| *can_send);
        can_send.then_some(if to == self.device { 0 } else { to.0 + 1 })
    }
}

fn state(cells: &TargetCells) -> u32 {
    cells[0].load(Ordering::Relaxed) as u32
}

/// The targets of one View, as workers look them up.
#[derive(Debug, Default)]
pub struct KernelTargets {
    /// By match: where its members begin.
    first: Box<[u32]>,
    targets: Box<[Result<TargetRef, NotCached>]>,
    /// All that there are, with the index of the match and the member of each; one may be
    /// several members'. Of millions of members a few thousand may have one.
    pub used: Box<[(u32, u16, TargetRef)]>,
    /// The stateless services whose buckets the kernel knows: to be its map.
    pub services: Box<[ServiceEntry]>,
    /// By service and reason: its backends whose packets are not the kernel's. Of several
    /// matches it is that with the most.
    pub not_cached: Box<[(ServiceId, NotCached, u32)]>,
    /// Members of matches that have no target because there are no more of them.
    pub refused_full: u64,
    /// Targets were rewritten or are no longer valid, or buckets have others: by the former
    /// ones the kernel may be about to send packets that came before.
    pub has_changes: bool,
}

impl KernelTargets {
    /// Where the kernel may send packets of that match to that member.
    #[inline]
    #[must_use]
    pub fn of(&self, matched: u32, member: u16) -> Option<TargetRef> {
        self.decision(matched, member)?.ok()
    }

    /// The same, or why it may not; None: there is no such match or member.
    #[must_use]
    pub fn decision(&self, matched: u32, member: u16) -> Option<Result<TargetRef, NotCached>> {
        let first = *self.first.get(matched as usize)? as usize;
        self.targets.get(first + usize::from(member)).copied()
    }
}

/// What packets are sent by, and the device that they leave by.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Headers {
    fields: TargetFields,
    device: DeviceIndex,
}

impl Headers {
    fn of(template: &HeaderTemplate) -> Headers {
        Headers { fields: fields_of(&template.for_kernel()), device: template.device }
    }
}

/// Keeps targets as plans and next hops are.
#[derive(Debug)]
pub struct TargetWriter<'m> {
    /// Of as many targets each.
    memories: Vec<TargetMemory<'m>>,
    /// By number: the generation that was given out last.
    generations: Box<[u16]>,
    free: VecDeque<u32>,
    /// By match, of which there are many and most may have no target: by backend.
    used: Vec<HashMap<BackendId, (TargetRef, Headers)>>,
    /// What the matches belong to.
    matching: Option<Matching>,
    services: Services,
    /// Of the latest plan and next hops: see [`KernelTargets`].
    has_changes: bool,
}

/// All that decides which match a packet has. Where it changes, a flow's match may be
/// another, though the one in its entry is still there.
#[derive(Debug, PartialEq)]
struct Matching {
    prefix_groups: Vec<proto::PrefixGroup>,
    services: Vec<(ServiceId, Vec<proto::Vip>, Vec<proto::JoinPort>, i32)>,
}

impl Matching {
    fn of(plan: &Plan) -> Matching {
        let message = &plan.message;
        let services =
            plan.services().zip(&message.services).map(|(Service { id, .. }, service)| {
                let proto::Service { vips, join_ports, mode, .. } = service;
                (*id, vips.clone(), join_ports.clone(), *mode)
            });
        let prefix_groups = message.prefix_groups.clone();
        Matching { prefix_groups, services: services.collect() }
    }
}

impl<'m> TargetWriter<'m> {
    /// The writer of targets none of which is valid, of as many of each device.
    ///
    /// # Panics
    /// If there is no device.
    #[must_use]
    pub fn new(memories: Vec<TargetMemory<'m>>) -> TargetWriter<'m> {
        let counts = memories.iter().map(|memory| memory.targets.all.len());
        let count = counts.min().expect("a cache is of a device");
        TargetWriter {
            memories,
            generations: vec![0; count].into(),
            free: (0..count as u32).collect(),
            used: Vec::new(),
            matching: None,
            services: Services::default(),
            has_changes: false,
        }
    }

    /// Makes the targets those of a plan and its next hops: from here on the kernel
    /// sends nothing by what they no longer have. To be called before the View that gets
    /// the result is published: until then workers that enter flows by the former one
    /// name targets that are the same or not valid.
    pub fn follow(&mut self, plan: &Plan, egress: &Egress) -> Arc<KernelTargets> {
        let room = self.memories.iter().map(|memory| memory.service_buckets.len()).min();
        self.services.place(plan, room.unwrap_or_default());
        self.has_changes = self.retire_others(plan, egress);
        let mut first = Vec::with_capacity(plan.matches.len());
        let (mut targets, mut used) = (Vec::new(), Vec::new());
        let mut not_cached = NotCachedCounts::default();
        for entry in &plan.matches {
            first.push(targets.len() as u32);
            let mut reasons = Vec::new();
            for (index, member) in (0..).zip(plan.group_of(&entry.matched).members()) {
                let template = self.template_for(plan, egress, entry, member);
                let target = template.and_then(|template| self.target(entry, member, template));
                let is_partial = template.is_ok_and(|template| !self.is_sent_from_all(template));
                used.extend(target.map(|target| (entry.matched.matched, index, target)));
                reasons.extend(target.err().or(is_partial.then_some(NotCached::Egress)));
                targets.push(target);
            }
            not_cached.add(entry.matched.service, reasons.into_iter());
        }
        let is_refused = |target: &&Result<_, _>| **target == Err(NotCached::TargetsFull);
        let refused_full = targets.iter().filter(is_refused).count() as u64;
        let mut targets = KernelTargets {
            first: first.into(),
            targets: targets.into(),
            used: used.into(),
            services: self.services.entries(),
            not_cached: not_cached.into_list(),
            refused_full,
            has_changes: false,
        };
        let has_changes = self.services.write(
            plan,
            |matched, member| targets.of(matched, member),
            &self.memories,
        );
        targets.has_changes = self.has_changes || has_changes;
        Arc::new(targets)
    }

    /// Retires the targets that a plan and its next hops no longer have, so that their numbers
    /// are free for those that they have anew; true if there are any.
    fn retire_others(&mut self, plan: &Plan, egress: &Egress) -> bool {
        let matching = Matching::of(plan);
        let is_same = self.matching.as_ref() == Some(&matching);
        self.matching = Some(matching);
        let mut all = mem::take(&mut self.used);
        let free_before = self.free.len();
        for (matched, used) in all.iter_mut().enumerate().filter(|(_, used)| !used.is_empty()) {
            let stay = if is_same { self.cached(plan, egress, matched) } else { HashSet::new() };
            let gone = used.extract_if(|backend, _| !stay.contains(backend));
            gone.for_each(|(_, (target, _))| self.retire(target));
        }
        all.resize_with(plan.matches.len(), HashMap::new);
        self.used = all;
        self.free.len() > free_before
    }

    /// The backends of a match that the kernel may send to.
    fn cached(&self, plan: &Plan, egress: &Egress, matched: usize) -> HashSet<BackendId> {
        let entry = &plan.matches[matched];
        let members = plan.group_of(&entry.matched).members().iter();
        let is_cached = |member: &&Member| self.template_for(plan, egress, entry, member).is_ok();
        let cached = members.filter(is_cached);
        cached.map(|member| member.backend).collect()
    }

    /// The target with these headers.
    fn target(
        &mut self,
        Match { matched, .. }: &Match,
        member: &Member,
        template: &HeaderTemplate,
    ) -> Result<TargetRef, NotCached> {
        let used = &mut self.used[matched.matched as usize];
        if let Some((target, current)) = used.get_mut(&member.backend) {
            let (target, headers) = (*target, Headers::of(template));
            if *current != headers {
                self.has_changes = true;
                *current = headers;
                self.write(target, &headers);
            }
            return Ok(target);
        }
        let number = self.free.pop_front().ok_or(NotCached::TargetsFull)?;
        let generation = &mut self.generations[number as usize];
        *generation = *generation % GENERATION_MASK as u16 + 1;
        let target = TargetRef::new(number, (*generation).into());
        let headers = Headers::of(template);
        used.insert(member.backend, (target, headers));
        self.write(target, &headers);
        Ok(target)
    }

    /// In the memory of each filter; where that cannot send there it is not valid.
    fn write(&self, target: TargetRef, headers: &Headers) {
        for memory in &self.memories {
            let cells = &memory.targets.all[target.number()];
            match memory.egress(headers.device) {
                Some(egress) => {
                    write(cells, target.generation(), &with_egress(&headers.fields, egress));
                }
                None => _ = invalidate(cells),
            }
        }
    }

    fn retire(&mut self, target: TargetRef) {
        for memory in &self.memories {
            invalidate(&memory.targets.all[target.number()]);
        }
        self.free.push_back(target.number() as u32);
    }

    /// What a filter sends a match's packets to a member by: one of them at least.
    fn template_for<'e>(
        &self,
        plan: &Plan,
        egress: &'e Egress,
        Match { matched, family, .. }: &Match,
        member: &Member,
    ) -> Result<&'e HeaderTemplate, NotCached> {
        if member.admission == Admission::Nothing {
            return Err(NotCached::NoTraffic);
        }
        match matched.tracking {
            Tracking::Tracked => refuse_service(plan.service_of(matched))?,
            _ => self.services.has(matched)?,
        }
        let template = egress.only_template(matched.profile, *family, member.backend)?;
        if template.has_udp_checksum() {
            return Err(NotCached::Udp6Checksum);
        }
        if self.memories.iter().all(|memory| memory.egress(template.device).is_none()) {
            return Err(NotCached::Egress);
        }
        Ok(template)
    }

    fn is_sent_from_all(&self, template: &HeaderTemplate) -> bool {
        self.memories.iter().all(|memory| memory.egress(template.device).is_some())
    }
}

fn refuse_service(service: &Service) -> Result<(), NotCached> {
    if service.second_chance.is_some() {
        return Err(NotCached::SecondChance);
    }
    let idle_ms = service.timeouts.tcp_ms.min(service.timeouts.udp_ms);
    if idle_ms < IDLE_TIMEOUT_MS_MIN { Err(NotCached::IdleTimeout) } else { Ok(()) }
}

/// Makes a target not valid; returns its next sequence number, in place.
fn invalidate(cells: &TargetCells) -> u32 {
    let sequence = (state(cells) & SEQUENCE_MASK).wrapping_add(1 << GENERATION_BITS);
    cells[0].store(sequence.into(), Ordering::Release);
    sequence
}

fn write(cells: &TargetCells, generation: u32, fields: &TargetFields) {
    let sequence = invalidate(cells);
    for (cell, value) in cells.iter().zip(fields).skip(1) {
        cell.store(*value, Ordering::Release);
    }
    let word_0 = fields[0] & FIELDS_MASK | u64::from(sequence | generation);
    cells[0].store(word_0, Ordering::Release);
}

#[cfg(test)]
mod tests;
