//! The places of each service's members among the counters.

use super::PlanError;
use super::groups::MemberGroups;
use crate::proto;

/// Where services count what their members get: together with all of their
/// group, or each in a place of its own if the plan says so.
pub(super) struct Counting {
    pub of_service: Vec<Counted>,
    pub members: u32,
}

/// Of one service.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counted {
    pub first_member: u32,
    /// No other service counts there.
    pub alone: bool,
}

impl Counting {
    /// Places behind each other, in the plan's order of services.
    pub(super) fn new(
        message: &proto::Plan,
        groups: &MemberGroups<'_>,
    ) -> Result<Counting, PlanError> {
        let mut group_of = Vec::with_capacity(message.services.len());
        let mut services_of = vec![0; groups.groups.len()];
        for (index, service) in message.services.iter().enumerate() {
            let group = groups.of(&format!("services[{index}]"), service)?;
            services_of[group] += 1;
            group_of.push(group);
        }
        let mut first_of = vec![None; groups.groups.len()];
        let mut members = 0;
        let mut counted = |group: usize| {
            let alone = message.counters_by_service || services_of[group] == 1;
            let first_member = match first_of[group] {
                Some(first) if !alone => first,
                _ => {
                    let first = members;
                    members += groups.groups[group].members.len() as u32;
                    first
                }
            };
            first_of[group] = Some(first_member);
            Counted { first_member, alone }
        };
        let of_service = group_of.into_iter().map(&mut counted).collect();
        Ok(Counting { of_service, members })
    }
}
