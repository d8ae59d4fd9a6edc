//! How to reach other agents: the kernel's routes and neighbours, as in the program's
//! table.
//!
//! The program sends packets to other agents without the kernel, which would not resolve
//! their neighbours by itself: `nexthops` enters these as managed ones.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use nexthops::{NextHop, NextHops, Snapshot, Unresolved, Wanted};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::config::Config;
use crate::program::Agents;

/// How long a start waits until all others are resolved.
const START: Duration = Duration::from_secs(1);

/// And until the kernel has tried to resolve each, also on a busy machine: a program that
/// takes a predecessor's place before resets connections that live at an agent whose next hop
/// it lacks.
const START_MAX: Duration = Duration::from_secs(10);

/// Keeps the table of other agents true.
pub struct Neighbours<'c> {
    config: &'c Config,
    agents: Agents,
    reported: BTreeMap<IpAddr, Option<Unresolved>>,
    /// None: there are no other agents.
    followed: Option<(NextHops, watch::Receiver<Arc<Snapshot>>)>,
}

impl Neighbours<'_> {
    /// Fills the table, as far as others are resolved in time.
    pub async fn start(config: &Config, agents: Agents) -> Result<Neighbours<'_>, String> {
        let mut neighbours =
            Neighbours { config, agents, reported: BTreeMap::new(), followed: None };
        if config.other_agents().next().is_none() {
            return Ok(neighbours);
        }
        let next_hops = NextHops::start()
            .map_err(|error| format!("cannot read the kernel's routes and neighbours: {error}"))?;
        let index = ebpf::index_of(&config.interface).map_err(|error| error.to_string())?;
        let backends: Vec<IpAddr> = config.other_agents().collect();
        next_hops.set(Wanted {
            backends: backends.clone(),
            devices: vec![index],
            ignores_default_mtu: true,
        });
        let mut snapshots = next_hops.watch();
        let all = snapshots
            .wait_for(|snapshot| backends.iter().all(|agent| next_hop(snapshot, *agent).is_some()));
        let _ = timeout(START, all).await;
        let tried =
            snapshots.wait_for(|snapshot| backends.iter().all(|agent| is_tried(snapshot, *agent)));
        // Those that are not resolved by then come later.
        let _ = timeout(START_MAX, tried).await;
        neighbours.followed = Some((next_hops, snapshots));
        neighbours.update()?;
        Ok(neighbours)
    }

    /// How others are reached, now and later; None: there are none.
    pub fn next_hops(&self) -> Option<watch::Receiver<Arc<Snapshot>>> {
        self.followed.as_ref().map(|(_, snapshots)| snapshots.clone())
    }

    /// Follows changes; ends with a reason, if it cannot.
    pub async fn follow(&mut self) -> Result<(), String> {
        loop {
            let Some((_, snapshots)) = &mut self.followed else {
                return std::future::pending().await;
            };
            if snapshots.changed().await.is_err() {
                return Err("the thread that follows routes and neighbours ended".to_string());
            }
            self.update()?;
        }
    }

    fn update(&mut self) -> Result<(), String> {
        let Some((_, snapshots)) = &mut self.followed else { return Ok(()) };
        let snapshot = Arc::clone(&snapshots.borrow_and_update());
        enter(self.config, &mut self.agents, &snapshot)?;
        report(&snapshot, &mut self.reported);
        Ok(())
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

/// True for one that is resolved, or cannot be for now.
fn is_tried(snapshot: &Snapshot, agent: IpAddr) -> bool {
    let Some(state) = snapshot.backends.get(&agent) else { return false };
    state.as_ref().err().is_none_or(|problem| !is_under_way(problem))
}

/// True while the kernel resolves a next hop.
fn is_under_way(problem: &Unresolved) -> bool {
    matches!(problem, Unresolved::Neighbour { state, .. } if !state.starts_with("failed"))
}

/// Logs what changed since the last time.
fn report(snapshot: &Snapshot, reported: &mut BTreeMap<IpAddr, Option<Unresolved>>) {
    for (agent, state) in &snapshot.backends {
        let problem = state.as_ref().err().cloned();
        if reported.insert(*agent, problem.clone()) == Some(problem.clone()) {
            continue;
        }
        match problem {
            Some(problem) if is_under_way(&problem) => {}
            Some(problem) => tracing::warn!(%agent, "packets cannot be sent on to it: {problem}"),
            None => tracing::info!(%agent, "packets can be sent on to it"),
        }
    }
}
