//! Counts what the programs and the injector did with segments of services with Multipath
//! TCP.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use aya::maps::{MapData, PerCpuArray};

/// The programs' events: `enum multipath_event` in bpf/handshake.h, in the same order.
pub const PROGRAM_EVENTS: [&str; 9] = [
    "syn_handed",
    "syn_stripped_rate",
    "syn_stripped_silence",
    "syn_stripped_room",
    "syn_stripped_timestamps",
    "syn_ack_keyed",
    "syn_ack_stripped",
    "ack_other_key",
    "ack_too_early",
];

/// What the injector does, one counter each.
#[derive(Debug, Default)]
pub struct Injected {
    /// SYNs given to the kernel with SYN cookies on.
    pub with_cookie: AtomicU64,
    /// Those among them that were repeated because no answer came.
    pub repeated: AtomicU64,
    /// SYNs given to it as they are: they join connections, or open plain ones.
    pub plain: AtomicU64,
    /// SYNs that lost MP_CAPABLE because another connection has their token.
    pub stripped_token: AtomicU64,
    /// SYNs that lost it because their clients have no timestamps, while many handshakes
    /// are not answered.
    pub stripped_flood: AtomicU64,
    /// SYNs that the kernel did not take.
    pub failed: AtomicU64,
    /// SYN cookies of the kernel's own, and for other SYNs that came meanwhile.
    pub other_cookies: AtomicU64,
    /// How long SYN cookies were on, in ns.
    pub cookies_on: AtomicU64,
    /// Connections' tokens that live here.
    pub tokens: AtomicU64,
}

/// All of it.
pub struct Counts {
    table: PerCpuArray<MapData, u64>,
    /// Of the injector.
    pub injected: Arc<Injected>,
    /// Why there are no handshakes with the load balancers' keys; None: there are.
    pub problem: Arc<Mutex<Option<String>>>,
}

impl Injected {
    fn events(&self) -> [(&'static str, u64); 7] {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        [
            ("syn_cookie", read(&self.with_cookie)),
            ("syn_repeated", read(&self.repeated)),
            ("syn_plain", read(&self.plain)),
            ("syn_stripped_token", read(&self.stripped_token)),
            ("syn_stripped_flood", read(&self.stripped_flood)),
            ("syn_failed", read(&self.failed)),
            ("other_cookie", read(&self.other_cookies)),
        ]
    }
}

impl Counts {
    /// Of the programs' table.
    pub fn new(table: PerCpuArray<MapData, u64>) -> Counts {
        Counts { table, injected: Arc::default(), problem: Arc::default() }
    }

    /// Events by name, over all CPUs.
    pub fn events(&self) -> Result<Vec<(&'static str, u64)>, String> {
        let counts: [u64; PROGRAM_EVENTS.len()] = ebpf::sums(&self.table)?;
        Ok(PROGRAM_EVENTS.into_iter().zip(counts).chain(self.injected.events()).collect())
    }

    /// Connections that live here, by their tokens.
    pub fn tokens(&self) -> u64 {
        self.injected.tokens.load(Ordering::Relaxed)
    }

    /// How long SYN cookies were on.
    pub fn cookies_on(&self) -> Duration {
        Duration::from_nanos(self.injected.cookies_on.load(Ordering::Relaxed))
    }

    /// Why there are no handshakes with the load balancers' keys.
    pub fn problem(&self) -> Option<String> {
        self.problem.lock().expect("no thread panics with it").clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both lists are written by hand; this holds them together.
    #[test]
    fn the_programs_have_the_same_list() {
        let source = include_str!("../../bpf/handshake.h");
        let (_, list) = source.split_once("enum multipath_event {").unwrap();
        let (list, _) = list.split_once("MULTIPATH_EVENTS,").unwrap();
        let names: Vec<String> = list
            .lines()
            .filter_map(|line| line.trim().split_once(','))
            .map(|(name, _)| name.to_lowercase())
            .collect();
        assert_eq!(names, PROGRAM_EVENTS);
    }
}
