//! The load balancer under measurement: one worker, with the slow path on the same thread.
//! Batches are forwarded in place.

use std::sync::Arc;

use datapath::{Secret, View};
use sim::{LoadBalancer, Path, Setup};

/// The cluster whose derived key hashes all flows here.
pub const CLUSTER: &str = "bench";

/// Worker `index` of those that the view was made for, with an empty table for
/// this number of connections, and no device.
///
/// # Errors
/// If memory is short.
pub fn new(view: Arc<View>, index: usize, connections: u64) -> Result<LoadBalancer, String> {
    let (secret, path) = (Secret::derived(CLUSTER), Path::Batch);
    let setup = Setup { workers: index..index + 1, devices: 0, connections, secret, path };
    LoadBalancer::new(view, setup).map_err(|error| {
        format!("memory for a connection table of {connections} connections: {error}")
    })
}

/// Packets that found their connection's entry, and those that did not.
#[must_use]
pub fn hits_and_misses(worker: &LoadBalancer) -> (u64, u64) {
    let connections = &worker.counters(0).connections;
    (connections.hits.get(), connections.misses.get())
}
