//! Requests about plan files, answered without a running forwarder, because only this program
//! hashes and builds tables.

mod plan_file;
pub mod replay;

use std::io::{BufRead, Write};
use std::net::IpAddr;
use std::path::Path;

use datapath::FlowHash;
use datapath::explain::Details;
use plan::{Found, Plan, Planner};
use serde_json::json;
use wire::{Family, FlowKey, Protocol, ip};

use crate::observe::compared::table_changes;
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

/// Explains one flow by a plan file, or a packet of it of which more is known, as JSON of
/// the socket's answer. No table tracks it, and the next hop is that of replay.
pub fn explain(
    plan: &Path,
    secret_file: Option<&Path>,
    flow: &str,
    details: Details<'_>,
    mut out: impl Write,
) -> Result<(), Box<dyn std::error::Error>> {
    let key = parse_flow(flow)?;
    let plan = read_plan(&mut Planner::default(), plan)?;
    let secret = secret::for_plan(&plan, secret_file)?;
    let hash = FlowHash::new(&secret);
    let view = sim::view::view(plan.into(), &secret, 0, |_| vec![sim::view::next_hop(u16::MAX)]);
    let told = explained::explained(&view, &hash, &[], &["-"], &key, details);
    serde_json::to_writer_pretty(&mut out, &told)?;
    Ok(writeln!(out)?)
}

fn answer(plan: &Plan, hash: &FlowHash, flow: &str, key: &FlowKey) -> serde_json::Value {
    let Found::Service(matched) = plan.vips.find(&key.target()) else {
        return json!({"flow": flow, "service": null, "backend": null, "slot": null});
    };
    let service = plan.service_of(&matched);
    let selector = hash.selector(service, hash.flow(key), || *key);
    let selected = plan.group_of(&matched).select(selector);
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
    for (service, change) in table_changes(&before, &after) {
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
