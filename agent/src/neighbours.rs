//! How other agents are reached: the kernel's routes and neighbours, as the
//! program's table has them.
//!
//! The program sends packets on without the kernel, which would resolve no
//! neighbour by itself: `nexthops` enters them as managed ones.

use std::collections::BTreeMap;
use std::net::IpAddr;

use nexthops::{NextHop, NextHops, Snapshot, Unresolved, Wanted};

use crate::config::Config;
use crate::program::Agents;

/// Keeps the table of other agents true; ends with a reason, if it cannot.
pub async fn follow(config: &Config, mut agents: Agents) -> Result<(), String> {
    if config.agents.is_empty() {
        return std::future::pending().await;
    }
    let next_hops = NextHops::start()
        .map_err(|error| format!("cannot read the kernel's routes and neighbours: {error}"))?;
    let index = ebpf::index_of(&config.interface).map_err(|error| error.to_string())?;
    next_hops.set(Wanted { backends: config.other_agents().collect(), devices: vec![index] });
    let mut snapshots = next_hops.watch();
    let mut reported = BTreeMap::new();
    loop {
        let snapshot = snapshots.borrow_and_update().clone();
        enter(config, &mut agents, &snapshot)?;
        report(&snapshot, &mut reported);
        if snapshots.changed().await.is_err() {
            return Err("the thread that follows routes and neighbours ended".to_string());
        }
    }
}

fn enter(config: &Config, agents: &mut Agents, snapshot: &Snapshot) -> Result<(), String> {
    for agent in config.other_agents() {
        // The config has an address of each family that others have.
        let Some(source) = config.own_address(agent) else { continue };
        agents.set(agent, source, next_hop(snapshot, agent))?;
    }
    Ok(())
}

/// Of several the first: what is sent on are few packets.
fn next_hop(snapshot: &Snapshot, agent: IpAddr) -> Option<&NextHop> {
    snapshot.backends.get(&agent)?.as_ref().ok()?.first()
}

/// Logs what changed since the last time.
fn report(snapshot: &Snapshot, reported: &mut BTreeMap<IpAddr, Option<Unresolved>>) {
    for (agent, state) in &snapshot.backends {
        let problem = state.as_ref().err().cloned();
        if reported.insert(*agent, problem.clone()) == Some(problem.clone()) {
            continue;
        }
        match problem {
            // Resolving has only begun, or is going on.
            Some(Unresolved::Neighbour { state, .. }) if !state.starts_with("failed") => {}
            Some(problem) => tracing::warn!(%agent, "packets cannot be sent on to it: {problem}"),
            None => tracing::info!(%agent, "packets can be sent on to it"),
        }
    }
}
