//! Groups of backends: each is checked once, decoded once for all services that treat it alike,
//! and shared by content with earlier plans.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Weak};

use super::earlier::earlier_tables;
use super::{PlanError, Planner, refuse};
use crate::group::{Admission, Group, Member};
use crate::ids::BackendId;
use crate::select::Selector;
use crate::select::buckets::{self, OpenMove};
use crate::select::earlier::{EarlierSlots, Place};
use crate::select::maglev::{self, Candidate};
use crate::{limits, proto};

/// All that a group depends on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct GroupKey {
    pub selector: SelectorKey,
    pub members: Vec<MemberKey>,
}

/// What a group's selector is made from, beside its members.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum SelectorKey {
    Maglev { table_size: u32, earlier: Option<EarlierKey> },
    Buckets { by_bucket: Box<[u16]>, moves: Box<[OpenMove]> },
}

/// What the earlier slots of a group depend on, beside its members.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct EarlierKey {
    /// The members of each table, the latest first.
    pub tables: Vec<Vec<Candidate>>,
    /// By member of the group, where packets are tunnelled to.
    pub addresses: Vec<IpAddr>,
}

/// What a group's content depends on, of one member.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct MemberKey {
    pub name: String,
    pub backend: BackendId,
    pub weight: u32,
    pub admission: Admission,
}

/// A group of the message, as some services use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct GroupUse {
    pub index: usize,
    pub table_size: u32,
    pub on_down: proto::OnDown,
    pub open: bool,
    pub second_chance: bool,
}

impl Planner {
    /// The group with these members: an earlier one, or a new one.
    pub(super) fn group(&mut self, key: GroupKey) -> Arc<Group> {
        if let Some(group) = self.groups.get(&key).and_then(Weak::upgrade) {
            return group;
        }
        let group = Arc::new(build_group(&key));
        self.groups.insert(key, Arc::downgrade(&group));
        group
    }
}

fn build_group(key: &GroupKey) -> Group {
    let members = key.members.iter().map(|MemberKey { backend, admission, .. }| Member {
        backend: *backend,
        admission: *admission,
    });
    let (selector, candidates) = match &key.selector {
        SelectorKey::Maglev { table_size, .. } => maglev_table(&key.members, *table_size),
        SelectorKey::Buckets { by_bucket, moves } => {
            let names = key.members.iter().map(|member| member.name.as_str());
            let selector = || buckets::selector(by_bucket.clone(), moves, names);
            let selector = (!by_bucket.is_empty()).then(selector);
            let in_charge = moves.iter().map(|open| by_bucket[usize::from(open.bucket)]);
            (selector, (0..key.members.len() as u16).chain(in_charge).collect())
        }
    };
    let route_options = match &key.selector {
        SelectorKey::Maglev { .. } => Vec::new(),
        SelectorKey::Buckets { moves, .. } => moves.iter().map(|open| open.option.emit()).collect(),
    };
    let group = Group::new(members.collect(), selector, candidates, route_options);
    match &key.selector {
        SelectorKey::Maglev { table_size, earlier: Some(earlier) } => {
            let slots = earlier_slots(&group, &key.members, *table_size, earlier);
            group.with_earlier(slots)
        }
        _ => group,
    }
}

/// Where earlier tables had another member that still keeps its connections.
fn earlier_slots(
    group: &Group,
    members: &[MemberKey],
    table_size: u32,
    EarlierKey { tables, addresses }: &EarlierKey,
) -> Option<EarlierSlots> {
    let present: Vec<BackendId> =
        group.selected_by_slot().map(|selected| selected.backend).collect();
    let places: HashMap<&str, Place> = members
        .iter()
        .zip(addresses)
        .filter(|(member, _)| member.admission != Admission::Nothing)
        .map(|(member, address)| (member.name.as_str(), (member.backend, *address)))
        .collect();
    let by_slot = |candidates: &Vec<Candidate>| {
        let table = maglev::selector(candidates, table_size);
        let places: Vec<Option<Place>> =
            candidates.iter().map(|one| places.get(one.name.as_str()).copied()).collect();
        Box::new(move |slot: usize| places[usize::from(table.entries()[slot])])
            as Box<dyn Fn(usize) -> Option<Place>>
    };
    let tables: Vec<_> = tables.iter().filter(|table| !table.is_empty()).map(by_slot).collect();
    EarlierSlots::new(present.len(), |slot| present[slot], &tables)
}

/// A table of the members that take new connections, and their indices.
fn maglev_table(members: &[MemberKey], table_size: u32) -> (Option<Selector>, Vec<u16>) {
    let takes_new = |(_, member): &(u16, &MemberKey)| member.admission == Admission::All;
    let indices: Vec<u16> = (0..).zip(members).filter(takes_new).map(|(index, _)| index).collect();
    let candidates: Vec<Candidate> = indices
        .iter()
        .map(|index| &members[usize::from(*index)])
        .map(|member| Candidate { name: member.name.clone(), weight: member.weight })
        .collect();
    let selector = || maglev::selector(&candidates, table_size);
    ((!candidates.is_empty()).then(selector), indices)
}

/// The message's groups, each checked once, by name; and one without members
/// for services that name none.
pub(super) struct MemberGroups<'m> {
    by_name: HashMap<&'m str, usize>,
    pub groups: Vec<MemberGroup<'m>>,
}

/// One of them.
pub(super) struct MemberGroup<'m> {
    /// In order of the backends' names.
    pub members: Vec<(&'m proto::Member, BackendId)>,
    pub has_active: bool,
    /// Those of each earlier table, the latest first.
    pub earlier: Vec<Vec<Candidate>>,
}

impl<'m> MemberGroups<'m> {
    pub(super) fn new(
        message: &'m proto::Plan,
        backend_ids: &HashMap<&'m str, BackendId>,
    ) -> Result<MemberGroups<'m>, PlanError> {
        // Members stood in the services once, where we would not see them.
        if message.groups.is_empty() && !message.backends.is_empty() {
            return refuse("groups", "is missing, but there are backends: upgrade the controller");
        }
        let mut by_name = HashMap::new();
        let mut groups = Vec::with_capacity(message.groups.len() + 1);
        for (index, group) in message.groups.iter().enumerate() {
            let path = format!("groups[{index}]");
            if group.name.is_empty() || by_name.insert(group.name.as_str(), index).is_some() {
                let problem = format!("`{}` is empty or there twice", group.name);
                return refuse(format!("{path}.name"), problem);
            }
            groups.push(MemberGroup::new(&path, group, backend_ids)?);
        }
        by_name.insert("", groups.len());
        groups.push(MemberGroup { members: Vec::new(), has_active: false, earlier: Vec::new() });
        Ok(MemberGroups { by_name, groups })
    }

    /// The index of the service's group.
    pub(super) fn of(&self, path: &str, service: &proto::Service) -> Result<usize, PlanError> {
        match self.by_name.get(service.group.as_str()) {
            Some(index) => Ok(*index),
            None => {
                refuse(format!("{path}.group"), format!("there is no group `{}`", service.group))
            }
        }
    }
}

impl<'m> MemberGroup<'m> {
    pub(super) fn new(
        path: &str,
        message: &'m proto::Group,
        backend_ids: &HashMap<&'m str, BackendId>,
    ) -> Result<MemberGroup<'m>, PlanError> {
        let mut members = Vec::with_capacity(message.members.len());
        for (at, member) in message.members.iter().enumerate() {
            let path = || format!("{path}.members[{at}]");
            let Some(id) = backend_ids.get(member.backend.as_str()) else {
                let problem = format!("there is no backend `{}`", member.backend);
                return refuse(format!("{}.backend", path()), problem);
            };
            if member.weight > limits::WEIGHT_MAX {
                let problem = format!("{} is above {}", member.weight, limits::WEIGHT_MAX);
                return refuse(format!("{}.weight", path()), problem);
            }
            if member.state() == proto::BackendState::Unspecified {
                return refuse(format!("{}.state", path()), "is missing or unknown");
            }
            members.push((member, *id));
        }
        members.sort_by_key(|(member, _)| member.backend.as_str());
        if let Some(twice) = members.windows(2).find(|pair| pair[0].0.backend == pair[1].0.backend)
        {
            let problem = format!("backend `{}` is there twice", twice[0].0.backend);
            return refuse(format!("{path}.members"), problem);
        }
        let has_active = message.members.iter().any(is_active);
        let active = message.members.iter().filter(|member| is_active(member));
        let weights = active.map(|member| (member.backend.as_str(), member.weight)).collect();
        let earlier = earlier_tables(path, message, weights)?;
        Ok(MemberGroup { members, has_active, earlier })
    }
}

pub(super) fn is_active(member: &proto::Member) -> bool {
    member.state() == proto::BackendState::Active && member.weight > 0
}

pub(super) fn admission(member: &proto::Member, on_down: proto::OnDown, open: bool) -> Admission {
    use proto::BackendState::{Active, Disabled, Down, Draining, Unspecified};
    match member.state() {
        Active if member.weight > 0 => Admission::All,
        Active | Draining => Admission::TrackedOnly { is_down: false },
        Down if open && member.weight > 0 => Admission::All,
        Down if on_down == proto::OnDown::Keep => Admission::TrackedOnly { is_down: true },
        // Unspecified: refused where groups are read.
        Down | Disabled | Unspecified => Admission::Nothing,
    }
}
