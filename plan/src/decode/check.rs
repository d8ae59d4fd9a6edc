//! Refusals that need no decoding: unknown features and choices, and exceeded limits.

use super::{PlanError, features, refuse};
use crate::{limits, proto};

pub(super) fn check_features(message: &proto::Plan) -> Result<(), PlanError> {
    let known = features();
    let unknown = (0..).zip(&message.requires).find(|(_, feature)| !known.contains(feature));
    match unknown {
        Some((index, feature)) => refuse(
            format!("requires[{index}]"),
            format!(
                "this forwarder does not know `{feature}`; it knows [{}]: upgrade it",
                known.join(", ")
            ),
        ),
        None => Ok(()),
    }
}

/// Refuses choices of a newer version, which protobuf hands on as numbers and
/// whose meaning is not known here: they must not be taken for the default.
pub(super) fn check_choices(message: &proto::Plan) -> Result<(), PlanError> {
    fn check<E: TryFrom<i32>>(path: impl FnOnce() -> String, number: i32) -> Result<(), PlanError> {
        match E::try_from(number) {
            Ok(_) => Ok(()),
            Err(_) => {
                refuse(path(), format!("this forwarder does not know choice {number}: upgrade it"))
            }
        }
    }
    for (index, service) in message.services.iter().enumerate() {
        let path = |field: &'static str| move || format!("services[{index}].{field}");
        check::<proto::Mode>(path("mode"), service.mode)?;
        check::<proto::Affinity>(path("affinity"), service.affinity)?;
        check::<proto::Encap>(path("encap"), service.encap)?;
        check::<proto::OnDown>(path("on_down"), service.on_down)?;
        check::<proto::WhenNone>(path("when_none"), service.when_none)?;
        check::<proto::Fragments>(path("fragments"), service.fragments)?;
        check::<proto::Unmatched>(path("unmatched"), service.unmatched)?;
        for (at, vip) in service.vips.iter().enumerate() {
            check::<proto::Protocol>(
                || format!("services[{index}].vips[{at}].protocol"),
                vip.protocol,
            )?;
        }
    }
    let assigned = message.probing.iter().flat_map(|probing| &probing.assigned).enumerate();
    for (index, assignment) in assigned {
        check::<proto::Encap>(|| format!("probing.assigned[{index}].encap"), assignment.encap)?;
    }
    for (index, group) in message.groups.iter().enumerate() {
        for (at, member) in group.members.iter().enumerate() {
            check::<proto::BackendState>(
                || format!("groups[{index}].members[{at}].state"),
                member.state,
            )?;
        }
    }
    let Some(forwarder) = &message.forwarder else { return Ok(()) };
    check::<proto::Steering>(|| "forwarder.steering".into(), forwarder.steering)?;
    for (index, interface) in forwarder.interfaces.iter().enumerate() {
        check::<proto::Driver>(
            || format!("forwarder.interfaces[{index}].driver"),
            interface.driver,
        )?;
    }
    Ok(())
}

pub(super) fn check_limits(message: &proto::Plan) -> Result<(), PlanError> {
    let check = |path: &str, count: usize, max: usize| {
        if count > max {
            refuse(path, format!("{count} of them, at most {max} fit"))
        } else {
            Ok(())
        }
    };
    check("services", message.services.len(), limits::SERVICES_MAX)?;
    check("backends", message.backends.len(), limits::BACKENDS_MAX)?;
    let matches = message
        .services
        .iter()
        .flat_map(|service| {
            let joins = service.join_ports.len();
            service.vips.iter().map(move |vip| vip.ports.len().max(1) * 2 + joins)
        })
        .sum();
    check("services[].vips[].ports", matches, limits::MATCHES_MAX)?;
    let connections_max = message.forwarder.as_ref().map_or(0, |own| own.connections_max);
    if connections_max > limits::CONNECTIONS_MAX {
        return refuse(
            "forwarder.connections_max",
            format!("{connections_max} is more than {}", limits::CONNECTIONS_MAX),
        );
    }
    Ok(())
}
