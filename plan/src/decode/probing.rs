//! The source ports of probes, and the tunnels that they select.

use std::collections::HashMap;

use super::services::encap_of;
use super::{PlanError, refuse};
use crate::ids::BackendId;
use crate::probing::{ProbeTunnel, Probing};
use crate::proto;
use crate::service::{TunnelProfile, encap_name};

pub(super) fn probing(
    message: &proto::Plan,
    backends: &HashMap<&str, BackendId>,
    profiles: &[TunnelProfile],
) -> Result<Option<Probing>, PlanError> {
    let Some(probing) = &message.probing else { return Ok(None) };
    let ports = range(probing.ports)?;
    let mut assigned: Vec<(u16, ProbeTunnel)> = Vec::with_capacity(probing.assigned.len());
    for (index, assignment) in probing.assigned.iter().enumerate() {
        let path = |field: &str| format!("probing.assigned[{index}].{field}");
        let port = assignment.port;
        let known = u16::try_from(port).ok().filter(|port| (ports.0..=ports.1).contains(port));
        let Some(port) = known else {
            let problem = format!("{port} is none of {}-{} (probing.ports)", ports.0, ports.1);
            return refuse(path("port"), problem);
        };
        if assigned.last().is_some_and(|(last, _)| *last >= port) {
            let problem =
                format!("{port} is there before, or a higher one: list each once, in order");
            return refuse(path("port"), problem);
        }
        let Some(backend) = backends.get(assignment.backend.as_str()) else {
            let problem = format!("no backend `{}` in backends", assignment.backend);
            return refuse(path("backend"), problem);
        };
        let encap = encap_of(&path("encap"), assignment.encap())?;
        let Some(profile) = profiles.iter().position(|profile| profile.encap == encap) else {
            let problem = format!("no service has the encapsulation {}", encap_name(encap));
            return refuse(path("encap"), problem);
        };
        assigned.push((port, ProbeTunnel { backend: *backend, profile: profile as u16 }));
    }
    Ok(Some(Probing { ports, assigned: assigned.into() }))
}

fn range(ports: Option<proto::PortRange>) -> Result<(u16, u16), PlanError> {
    let ports = ports.unwrap_or_default();
    match (u16::try_from(ports.first), u16::try_from(ports.last)) {
        (Ok(first), Ok(last)) if 1 <= first && first <= last => Ok((first, last)),
        _ => refuse(
            "probing.ports",
            format!("{}-{} is no range of ports like 20000-32767", ports.first, ports.last),
        ),
    }
}
