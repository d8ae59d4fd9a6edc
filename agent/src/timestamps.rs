//! The 13 bits in the timestamps of answers by services with Multipath TCP, by which load
//! balancers find this backend again (bpf/timestamps.h sets them).
//!
//! Its tables outlive the process together with the programs: a connection keeps its
//! stopped clock under the next agent.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use aya::Ebpf;
use aya::maps::{Array, HashMap, MapData, PerCpuArray};
use ebpf::{ObjectError, Record, with_causes};
use wire::FlowKey;

use crate::flows;
use crate::records::{Clock, Flow};
use crate::sockets;

/// How far values are shifted: as many bits as are put in.
pub const SHIFT: u32 = 13;

/// What became of timestamps, as metrics have it: `enum timestamps_outcome` in
/// bpf/timestamps.h, in the same order.
pub const OUTCOMES: [&str; 9] = [
    "embedded",
    "restored",
    "opened",
    "clock_held",
    "resumed",
    "cookie_echo",
    "blanked",
    "foreign_echo",
    "no_bits",
];

/// How often each outcome was.
pub struct Counts(PerCpuArray<MapData, u64>);

impl Counts {
    /// Of the program's table.
    pub fn new(object: &mut Ebpf) -> Result<Counts, ObjectError> {
        ebpf::table(object, "timestamps").map(Counts)
    }

    /// By index of [`OUTCOMES`].
    pub fn read(&self) -> Result<[u64; OUTCOMES.len()], String> {
        ebpf::sums(&self.0)
    }
}

/// The program's table of connections with bits in their timestamps.
pub struct Clocks {
    table: HashMap<MapData, Record<Flow>, Record<Clock>>,
    services: BTreeSet<SocketAddr>,
}

impl Clocks {
    /// Of the program's table, for these services.
    pub fn new(object: &mut Ebpf, services: &[SocketAddr]) -> Result<Clocks, ObjectError> {
        let services = services.iter().copied().collect();
        Ok(Clocks { table: ebpf::table(object, "clocks")?, services })
    }

    /// The bits of a connection; None: it has none.
    pub fn bits(&self, flow: &FlowKey) -> Option<u16> {
        // No system call for the connections of other services.
        if !self.services.contains(&sockets::destination(flow)) {
            return None;
        }
        self.table.get(&Record(flows::flow_of(flow)), 0).ok().map(|clock| clock.0.bits)
    }
}

/// Says how far the clock's values are shifted.
pub fn set_shift(object: &mut Ebpf, shift: u32) -> Result<(), String> {
    let problem = |error: &dyn std::fmt::Display| format!("cannot set the timestamps: {error}");
    let mut table: Array<MapData, u32> =
        ebpf::table(object, "timestamp_shift").map_err(|error| problem(&error))?;
    table.set(0, shift, 0).map_err(|error| problem(&with_causes(&error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both lists are written by hand; this holds them together.
    #[test]
    fn the_program_has_the_same_list() {
        let source = include_str!("../bpf/timestamps.h");
        let (_, list) = source.split_once("enum timestamps_outcome {").unwrap();
        let (list, _) = list.split_once("TS_OUTCOMES,").unwrap();
        let names: Vec<String> = list
            .lines()
            .filter_map(|line| line.trim().strip_prefix("TS_")?.split_once(','))
            .map(|(name, _)| name.to_lowercase())
            .collect();
        assert_eq!(names, OUTCOMES);
    }
}
