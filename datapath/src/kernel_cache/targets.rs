//! Targets: where the kernel sends packets of a match to a member, and their only
//! writer, the control thread.
//!
//! ```text
//!  target   one cache line
//!  word 0   63 ...... 56 55 ....... 48 47 ... 32 31 .... 12 11 ..... 0
//!           class bits   class mask    MTU       sequence   generation; zero: not valid
//!  word 1   63 .................... 32 31 .................... 0
//!           source mask                sum of the IPv4 header
//!  word 2-6 the header from Ethernet on: 38 bytes, and two of zero
//!  word 7   zero
//! ```
//!
//! What the fields mean is with [`HeaderTemplate`].
//!
//! **Writing.** To write a target the control thread stores word 0 with generation zero
//! and the next sequence number, then the others, then word 0 as it will be. The
//! kernel loads word 0, the others, and word 0 again; a difference is a miss. 2^20
//! sequence numbers do not come round while a packet is sent.
//!
//! **Generations.** An entry names a target by number and generation. A target that
//! forwards no more gets generation zero, in one store; its number goes behind the
//! free ones, and has the next generation when it is given out again. Of 4,095
//! generations one comes back after as many changes of plan at the soonest, which are
//! coalesced to 20 a second: after 200 seconds, while an entry that is not used goes
//! within 40 ([`super::entries`]).

use std::collections::{HashMap, VecDeque};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use plan::{Admission, BackendId, Plan, Service, ServiceId, Tracking, proto};
use wire::Family;

use super::LINE_WORDS;
use super::limits::IDLE_TIMEOUT_MS_MIN;
use crate::egress::Egress;
use crate::encapsulate::{GRE_V4_FRONT_BYTES, GreV4Template, HeaderTemplate};

/// Targets there may be: 20 bits of an entry name one, and 65,536 of them take 4 MiB.
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
    lines: &'m [[AtomicU64; LINE_WORDS]],
}

impl<'m> Targets<'m> {
    /// Those in that memory.
    ///
    /// # Panics
    /// If there are none, or more than entries can name.
    #[must_use]
    pub fn new(words: &'m [AtomicU64]) -> Targets<'m> {
        let (lines, rest) = words.as_chunks();
        assert!(rest.is_empty() && (1..=TARGETS_MAX).contains(&lines.len()), "{}", words.len());
        Targets { lines }
    }

    /// True if the kernel sends by it.
    #[must_use]
    pub fn is_valid(&self, target: TargetRef) -> bool {
        let line = self.lines.get(target.number());
        line.is_some_and(|line| state(line) & GENERATION_MASK == target.generation())
    }
}

fn state(line: &[AtomicU64; LINE_WORDS]) -> u32 {
    line[0].load(Ordering::Relaxed) as u32
}

/// What of a target the kernel sends by: word 0 without its state, and the others.
pub(crate) type TargetFields = [u64; LINE_WORDS];

/// The targets of one View, as workers look them up.
#[derive(Debug, Default)]
pub struct KernelTargets {
    /// By match: where its members begin.
    first: Box<[u32]>,
    targets: Box<[Option<TargetRef>]>,
    /// Members of matches that have no target because there are no more of them.
    pub refused_full: u64,
    /// Targets were rewritten or are no longer valid: of each, the kernel may be about to
    /// send packets that came before.
    pub has_changes: bool,
}

impl KernelTargets {
    /// Where the kernel may send packets of that match to that member.
    #[inline]
    #[must_use]
    pub fn of(&self, matched: u32, member: u16) -> Option<TargetRef> {
        let first = *self.first.get(matched as usize)? as usize;
        self.targets.get(first + usize::from(member)).copied().flatten()
    }

    /// All of them, with the match and the member of each; one may be several members'.
    pub fn iter(&self) -> impl Iterator<Item = (usize, u16, TargetRef)> {
        let ends = self.first.iter().skip(1).map(|first| *first as usize);
        let ranges = self.first.iter().zip(ends.chain([self.targets.len()]));
        ranges.enumerate().flat_map(|(matched, (first, end))| {
            let members = (0..).zip(&self.targets[*first as usize..end]);
            members.filter_map(move |(member, target)| Some((matched, member, (*target)?)))
        })
    }
}

/// A packet's match and its backend: what a target is about.
type TargetKey = (u32, ServiceId, BackendId);

/// Keeps targets as plans and next hops are.
#[derive(Debug)]
pub struct TargetWriter<'m> {
    targets: Targets<'m>,
    /// By number: the generation that was given out last.
    generations: Box<[u16]>,
    free: VecDeque<u32>,
    used: HashMap<TargetKey, (TargetRef, TargetFields)>,
    /// What the targets' matches belong to.
    matching: Option<Matching>,
    /// Of the latest plan and next hops: see [`KernelTargets`].
    has_changes: bool,
}

/// All that decides which match a packet has. Where it changes, a flow's match may be
/// another, though the one in its entry is still there.
#[derive(Debug, PartialEq)]
struct Matching {
    prefix_groups: Vec<proto::PrefixGroup>,
    services: Vec<(String, Vec<proto::Vip>, Vec<proto::JoinPort>, i32)>,
}

impl Matching {
    fn of(plan: &Plan) -> Matching {
        let message = &plan.message;
        let services = message.services.iter().map(|service| {
            let proto::Service { name, vips, join_ports, mode, .. } = service;
            (name.clone(), vips.clone(), join_ports.clone(), *mode)
        });
        let prefix_groups = message.prefix_groups.clone();
        Matching { prefix_groups, services: services.collect() }
    }
}

impl<'m> TargetWriter<'m> {
    /// The writer of targets none of which is valid.
    #[must_use]
    pub fn new(targets: Targets<'m>) -> TargetWriter<'m> {
        let count = targets.lines.len();
        TargetWriter {
            targets,
            generations: vec![0; count].into(),
            free: (0..count as u32).collect(),
            used: HashMap::new(),
            matching: None,
            has_changes: false,
        }
    }

    /// Makes the targets those of a plan and its next hops: from here on the kernel
    /// sends nothing by what they no longer have. To be called before the View that gets
    /// the result is published: until then workers that enter flows by the former one
    /// name targets that are the same or not valid.
    pub fn follow(&mut self, plan: &Plan, egress: &Egress) -> Arc<KernelTargets> {
        let matching = Matching::of(plan);
        let is_same = self.matching.as_ref() == Some(&matching);
        let desired = desired(plan, egress);
        let retired: Vec<TargetKey> = {
            let stays = |key: &TargetKey| is_same && desired.contains_key(key);
            self.used.keys().filter(|key| !stays(key)).copied().collect()
        };
        retired.iter().for_each(|key| self.retire(key));
        self.has_changes = !retired.is_empty();
        self.matching = Some(matching);
        let mut refused_full = 0;
        let mut first = Vec::with_capacity(plan.matches.len());
        let mut targets = Vec::new();
        for matched in plan.matches.iter().map(|entry| &entry.matched) {
            first.push(targets.len() as u32);
            for member in plan.group_of(matched).members() {
                let key = (matched.matched, matched.service, member.backend);
                let target = desired.get(&key).map(|fields| self.target(key, fields));
                refused_full += u64::from(target == Some(None));
                targets.push(target.flatten());
            }
        }
        Arc::new(KernelTargets {
            first: first.into(),
            targets: targets.into(),
            refused_full,
            has_changes: self.has_changes,
        })
    }

    /// The target with these fields; None: there are no more.
    fn target(&mut self, key: TargetKey, fields: &TargetFields) -> Option<TargetRef> {
        if let Some((target, current)) = self.used.get_mut(&key) {
            if current != fields {
                self.has_changes = true;
                *current = *fields;
                write(&self.targets.lines[target.number()], target.generation(), fields);
            }
            return Some(*target);
        }
        let number = self.free.pop_front()?;
        let generation = &mut self.generations[number as usize];
        *generation = *generation % GENERATION_MASK as u16 + 1;
        let target = TargetRef::new(number, (*generation).into());
        write(&self.targets.lines[number as usize], target.generation(), fields);
        self.used.insert(key, (target, *fields));
        Some(target)
    }

    fn retire(&mut self, key: &TargetKey) {
        let Some((target, _)) = self.used.remove(key) else { return };
        invalidate(&self.targets.lines[target.number()]);
        self.free.push_back(target.number() as u32);
    }
}

/// The fields of all targets that a plan and its next hops have.
fn desired(plan: &Plan, egress: &Egress) -> HashMap<TargetKey, TargetFields> {
    let mut desired = HashMap::new();
    for matched in plan.matches.iter().map(|entry| &entry.matched) {
        if matched.tracking != Tracking::Tracked || !lives_long(plan.service_of(matched)) {
            continue;
        }
        for member in plan.group_of(matched).members() {
            let template = egress.only_template(matched.profile, Family::V4, member.backend);
            let fields =
                template.and_then(HeaderTemplate::gre_v4).map(|template| fields_of(&template));
            if let Some(fields) = fields
                && member.admission != Admission::Nothing
            {
                desired.insert((matched.matched, matched.service, member.backend), fields);
            }
        }
    }
    desired
}

fn fields_of(template: &GreV4Template) -> TargetFields {
    let mut front = [0; 8 * GRE_V4_FRONT_BYTES.div_ceil(8)];
    front[..GRE_V4_FRONT_BYTES].copy_from_slice(&template.front);
    let mut fields = [0; LINE_WORDS];
    fields[0] = u64::from(template.class_bits) << 56
        | u64::from(template.class_mask) << 48
        | u64::from(template.mtu) << 32;
    fields[1] = u64::from(template.source_host_mask) << 32 | u64::from(template.sum);
    for (word, bytes) in fields[2..].iter_mut().zip(front.as_chunks().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    fields
}

/// True where the sweep comes by often enough.
fn lives_long(service: &Service) -> bool {
    service.timeouts.tcp_ms.min(service.timeouts.udp_ms) >= IDLE_TIMEOUT_MS_MIN
}

/// Makes a target not valid; returns its next sequence number, in place.
fn invalidate(line: &[AtomicU64; LINE_WORDS]) -> u32 {
    let sequence = (state(line) & SEQUENCE_MASK).wrapping_add(1 << GENERATION_BITS);
    line[0].store(sequence.into(), Ordering::Release);
    sequence
}

fn write(line: &[AtomicU64; LINE_WORDS], generation: u32, fields: &TargetFields) {
    let sequence = invalidate(line);
    for (word, value) in line.iter().zip(fields).skip(1) {
        word.store(*value, Ordering::Release);
    }
    let word_0 = fields[0] & FIELDS_MASK | u64::from(sequence | generation);
    line[0].store(word_0, Ordering::Release);
}

#[cfg(test)]
mod tests;
