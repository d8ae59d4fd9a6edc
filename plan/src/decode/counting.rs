//! Where in the counters each service's members stand.

use super::PlanError;
use super::groups::MemberGroups;
use crate::proto;

/// Where services count what their members get: together with all of their
/// group, or each in a place of its own if the plan wants it.
pub(super) struct Counting {
    pub of_service: Vec<Counted>,
    pub members: u32,
}

/// Of one service.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counted {
    pub first_member: u32,
    /// No other service counts there.
    pub alone: bool,
}

impl Counting {
    /// Places behind each other, in that order of services.
    pub(super) fn new(
        message: &proto::Plan,
        groups: &MemberGroups<'_>,
        order: Vec<usize>,
    ) -> Result<Counting, PlanError> {
        let group_of =
            |index: usize| groups.of(&format!("services[{index}]"), &message.services[index]);
        let mut services_of = vec![0; groups.groups.len()];
        for index in 0..order.len() {
            services_of[group_of(index)?] += 1;
        }
        let mut first_of = vec![None; groups.groups.len()];
        let (mut of_service, mut members) = (vec![Counted::default(); order.len()], 0);
        for index in order {
            let group = group_of(index)?;
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
            of_service[index] = Counted { first_member, alone };
        }
        Ok(Counting { of_service, members })
    }
}
