//! Requests about plan files, answered without a running forwarder: only
//! this program hashes and builds tables.

mod plan_file;
pub mod replay;

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::net::IpAddr;
use std::path::Path;

use datapath::verdict::DeviceIndex;
use datapath::{Egress, FlowHash, NextHop, View};
use plan::{Admission, Affinity, Found, Plan, Planner, Service};
use serde_json::json;
use wire::{Family, FlowKey, Protocol, ip};

use crate::observe::explained;
use crate::process::secret;
use plan_file::read_plan;

/// Names the backend of each flow of `flows`, by hash and table alone: what a
/// machine without any tracked connection would select.
pub fn select(
    plan: &Path,
    secret_file: Option<&Path>,
    flows: impl BufRead,
    mut out: impl Write,
) -> Result<(), Box<dyn std::error::Error>> {
    let plan = read_plan(&mut Planner::default(), plan)?;
    let hash = FlowHash::new(&secret::for_plan(&plan, secret_file)?);
    for (number, line) in (1..).zip(flows.lines()) {
        let line = line?;
        let key = parse_flow(&line).map_err(|why| format!("line {number}: {why}"))?;
        writeln!(out, "{}", answer(&plan, &hash, &line, &key))?;
    }
    Ok(out.flush()?)
}

/// Explains one flow by a plan file, as JSON of the socket's answer. No table
/// tracks it, and the next hop is that of replay.
pub fn explain(
    plan: &Path,
    secret_file: Option<&Path>,
    flow: &str,
    mut out: impl Write,
) -> Result<(), Box<dyn std::error::Error>> {
    let key = parse_flow(flow)?;
    let plan = read_plan(&mut Planner::default(), plan)?;
    let hash = FlowHash::new(&secret::for_plan(&plan, secret_file)?);
    let hop = NextHop {
        device: DeviceIndex(0),
        source: replay::OWN,
        destination: replay::NEXT_HOP,
        mtu: u16::MAX,
        path_mtu: None,
    };
    let egress = Egress::new(&plan, &hash, |_| vec![hop]);
    let view = View::new(plan.into(), egress, 0);
    let told = explained::explained(&view, &hash, &[], &["-"], &key);
    serde_json::to_writer_pretty(&mut out, &told)?;
    Ok(writeln!(out)?)
}

fn answer(plan: &Plan, hash: &FlowHash, flow: &str, key: &FlowKey) -> serde_json::Value {
    let Found::Service(matched) = plan.vips.find(&key.target()) else {
        return json!({"flow": flow, "service": null, "backend": null, "slot": null});
    };
    let service = plan.service_of(&matched);
    let selector = match service.affinity {
        Affinity::Flow => hash.flow(key),
        Affinity::Client => hash.client(key),
    };
    let selected = service.group.select(selector);
    let backend = selected.and_then(|selected| plan.backend(selected.backend));
    json!({
        "flow": flow,
        "service": service.name,
        "backend": backend.map(|backend| &backend.name),
        "slot": selected.map(|selected| selected.slot),
    })
}

/// `tcp 192.0.2.1 40000 203.0.113.10 80`
fn parse_flow(line: &str) -> Result<FlowKey, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [protocol, source, source_port, destination, destination_port] = words.as_slice() else {
        return Err(format!(
            "`{line}` is not `protocol source source-port destination destination-port`"
        ));
    };
    let address =
        |text: &str| text.parse::<IpAddr>().map_err(|_| format!("`{text}` is not an IP address"));
    let port = |text: &str| text.parse::<u16>().map_err(|_| format!("`{text}` is not a port"));
    let protocol = match *protocol {
        "tcp" => Protocol::TCP,
        "udp" => Protocol::UDP,
        other => Protocol(
            other.parse().map_err(|_| format!("`{other}` is neither tcp nor udp nor a number"))?,
        ),
    };
    let (source, destination) = (address(source)?, address(destination)?);
    if source.is_ipv4() != destination.is_ipv4() {
        return Err(format!("`{source}` and `{destination}` are of different families"));
    }
    Ok(FlowKey {
        family: Family::of(destination),
        protocol,
        source: ip::address_bits(source),
        destination: ip::address_bits(destination),
        source_port: port(source_port)?,
        destination_port: port(destination_port)?,
    })
}

/// Writes one line for each service of either plan: how many entries of its
/// table name another backend than before.
pub fn diff(
    before: &Path,
    after: &Path,
    out: &mut impl Write,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut planner = Planner::default();
    let (before, after) = (read_plan(&mut planner, before)?, read_plan(&mut planner, after)?);
    let (old, new) = (tables(&before), tables(&after));
    let names: std::collections::BTreeSet<&str> = old.keys().chain(new.keys()).copied().collect();
    for service in names {
        let change = compare(old.get(service), new.get(service));
        let line = json!({
            "service": service,
            "entries": change.entries,
            "changed": change.changed,
            "moved": change.moved,
        });
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// What became of a table.
#[derive(Debug, Default, PartialEq, Eq)]
struct Change {
    /// Entries of the later table (of the earlier, if there is no later one).
    entries: usize,
    /// Entries that name another backend; all, where only one plan has a
    /// table or their sizes differ.
    changed: usize,
    /// Of these, between backends that both tables have: what no change of
    /// members explains.
    moved: usize,
}

fn compare(old: Option<&Vec<&str>>, new: Option<&Vec<&str>>) -> Change {
    let (Some(old), Some(new)) = (old, new) else {
        let entries = old.or(new).map_or(0, Vec::len);
        return Change { entries, changed: entries, moved: 0 };
    };
    if old.len() != new.len() {
        return Change { entries: new.len(), changed: new.len(), moved: 0 };
    }
    let members = |table: &Vec<&str>| {
        table.iter().map(|name| (*name).to_owned()).collect::<std::collections::HashSet<_>>()
    };
    let (had, has) = (members(old), members(new));
    let differing = || old.iter().zip(new).filter(|(before, after)| before != after);
    let moved = differing()
        .filter(|(before, after)| has.contains(**before) && had.contains(**after))
        .count();
    Change { entries: new.len(), changed: differing().count(), moved }
}

/// Each service's table as names of backends; a service without one that
/// takes new connections has an empty table.
fn tables(plan: &Plan) -> BTreeMap<&str, Vec<&str>> {
    plan.services().map(|service| (service.name.as_str(), entries(plan, service))).collect()
}

fn entries<'p>(plan: &'p Plan, service: &'p Service) -> Vec<&'p str> {
    let Some(table) = service.group.table() else { return Vec::new() };
    let active = service.group.members().iter().filter(|member| member.admission == Admission::All);
    let names: Vec<&str> = active
        .map(|member| plan.backend(member.backend).expect("members are backends").name.as_str())
        .collect();
    table.entries().iter().map(|index| names[usize::from(*index)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_backend_explains_its_own_entries_only() {
        let old = vec!["a", "b", "c", "a"];
        let new = vec!["a", "c", "a", "a"];
        assert_eq!(compare(Some(&old), Some(&new)), Change { entries: 4, changed: 2, moved: 1 });
    }

    #[test]
    fn a_table_of_another_size_has_changed_altogether() {
        assert_eq!(
            compare(Some(&vec!["a"; 3]), Some(&vec!["a"; 5])),
            Change { entries: 5, changed: 5, moved: 0 }
        );
        assert_eq!(compare(None, Some(&vec!["a"; 5])), Change { entries: 5, changed: 5, moved: 0 });
    }
}
