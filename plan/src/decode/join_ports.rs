//! Ports that belong to one backend each, for joins of Multipath TCP.

use wire::Protocol;

use super::groups::{GroupKey, MemberKey, SelectorKey, admission};
use super::{Decoding, PlanError, refuse};
use crate::ids::BackendId;
use crate::matching::{AddressInfo, Matched, Ports};
use crate::service::Tracking;
use crate::{limits, proto};

impl<'m> Decoding<'m, '_> {
    /// Adds a match for each of the service's join ports and VIPs: of a group that has
    /// the port's backend alone, counted where the service counts it.
    pub(super) fn join_ports(
        &mut self,
        path: &str,
        message: &'m proto::Service,
        of_service: Matched,
        info: AddressInfo,
    ) -> Result<(), PlanError> {
        let group = self.member_groups.of(path, message)?;
        let vips = once_by_target(message);
        for (at, given) in message.join_ports.iter().enumerate() {
            let path = format!("{path}.join_ports[{at}]");
            let Ok(port @ 1..) = u16::try_from(given.port) else {
                let problem = format!("{} is not within 1 to 65535", given.port);
                return refuse(format!("{path}.port"), problem);
            };
            let members = &self.member_groups.groups[group].members;
            let by_name = |(member, _): &(&proto::Member, _)| member.backend.cmp(&given.backend);
            let Ok(member) = members.binary_search_by(by_name) else {
                let problem = format!("`{}` is no member of the service's group", given.backend);
                return refuse(format!("{path}.backend"), problem);
            };
            let key = one_member(members[member], message.on_down());
            let group = self.planner.group(key);
            let matched = Matched {
                tracking: Tracking::JoinPort,
                group: self.group(&group),
                first_member: of_service.first_member + member as u32,
                alone: false,
                ..of_service
            };
            let ports = Ports::Range(Protocol::TCP, port, port);
            for (vip, index) in &vips {
                self.vip(&path, (*index, vip), vec![ports], matched, info)?;
            }
        }
        Ok(())
    }
}

/// The VIPs that take TCP, with their indices: of those that differ in ports only, the
/// first.
fn once_by_target(message: &proto::Service) -> Vec<(&proto::Vip, u32)> {
    let mut vips: Vec<(&proto::Vip, u32)> = Vec::new();
    for (vip, index) in message.vips.iter().zip(0..) {
        let is_other = |(other, _): &(&proto::Vip, u32)| other.target != vip.target;
        if vip.protocol() != proto::Protocol::Udp && vips.iter().all(is_other) {
            vips.push((vip, index));
        }
    }
    vips
}

/// What selects that member whatever the packet; nothing, if it is disabled.
fn one_member((member, backend): (&proto::Member, BackendId), on_down: proto::OnDown) -> GroupKey {
    let buckets = match member.state() {
        proto::BackendState::Disabled => 0,
        _ => limits::BUCKETS_MIN,
    };
    let member = MemberKey {
        name: member.backend.clone(),
        backend,
        weight: member.weight,
        admission: admission(member, on_down, false),
    };
    let by_bucket = vec![0; buckets].into();
    let selector = SelectorKey::Buckets { by_bucket, moves: Box::default() };
    GroupKey { selector, members: vec![member] }
}
