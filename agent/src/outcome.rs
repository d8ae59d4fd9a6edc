//! The possible outcomes for a frame, by name: the kinds of tunnels it was decapsulated
//! from, or else the reasons. The program has the same lists in the same order
//! (bpf/outcome.h).

use std::fmt::Write;

use aya::maps::{MapData, PerCpuArray};

/// The groups that outcomes are counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Left to the kernel as it was.
    Passed,
    /// Taken out of its tunnel.
    Decapsulated,
    /// Sent to another agent.
    Forwarded,
    /// Dropped.
    Dropped,
}

impl Kind {
    /// What was done, as logs and status have it.
    #[must_use]
    pub fn verb(self) -> &'static str {
        match self {
            Kind::Passed => "passed",
            Kind::Decapsulated => "decapsulated",
            Kind::Forwarded => "forwarded",
            Kind::Dropped => "dropped",
        }
    }
}

/// One thing that may become of a frame.
#[derive(Debug)]
pub struct Outcome {
    /// Which group it is in.
    pub kind: Kind,
    /// Its name, as in metrics.
    pub name: &'static str,
}

const fn passed(name: &'static str) -> Outcome {
    Outcome { kind: Kind::Passed, name }
}

const fn decapsulated(name: &'static str) -> Outcome {
    Outcome { kind: Kind::Decapsulated, name }
}

const fn forwarded(name: &'static str) -> Outcome {
    Outcome { kind: Kind::Forwarded, name }
}

const fn dropped(name: &'static str) -> Outcome {
    Outcome { kind: Kind::Dropped, name }
}

/// Kinds of tunnels, which come first.
const TUNNEL_KINDS: usize = 4;

/// All outcomes; each frame has exactly one.
pub static OUTCOMES: [Outcome; 35] = [
    decapsulated("gre"),
    decapsulated("ipip"),
    decapsulated("gue"),
    decapsulated("geneve"),
    passed("no_tunnel"),
    passed("other_host"),
    passed("unknown_source"),
    forwarded("no_socket"),
    forwarded("other_handshake"),
    forwarded("other_time_wait"),
    forwarded("other_connection"),
    forwarded("no_flow"),
    forwarded("no_token"),
    forwarded("redirect_rule"),
    forwarded("plain_syn"),
    dropped("outer_fragment"),
    dropped("outer_header"),
    dropped("gre_flags"),
    dropped("gre_recursion"),
    dropped("gue_header"),
    dropped("geneve_header"),
    dropped("geneve_option"),
    dropped("route_option"),
    dropped("multipath_option"),
    dropped("inner_protocol"),
    dropped("inner_header"),
    dropped("inner_fragment"),
    dropped("awaits_rule"),
    dropped("not_vip"),
    dropped("ecn"),
    dropped("hop_limit"),
    dropped("not_agent"),
    dropped("no_neighbour"),
    dropped("too_big"),
    dropped("no_room"),
];

/// How often each outcome was, in their order.
pub type Counts = [u64; OUTCOMES.len()];

/// The counters of the program's two tables, as one. Its first reason is none.
pub fn read(
    decapsulated: &PerCpuArray<MapData, u64>,
    reasons: &PerCpuArray<MapData, u64>,
) -> Result<Counts, String> {
    let by_kind: [u64; TUNNEL_KINDS] = ebpf::sums(decapsulated)?;
    let by_reason: [u64; OUTCOMES.len() - TUNNEL_KINDS + 1] = ebpf::sums(reasons)?;
    let mut counts = [0; OUTCOMES.len()];
    counts[..TUNNEL_KINDS].copy_from_slice(&by_kind);
    counts[TUNNEL_KINDS..].copy_from_slice(&by_reason[1..]);
    Ok(counts)
}

/// How many packets came out of tunnels, or went on to other agents.
pub fn taken(counts: &Counts) -> u64 {
    let is_taken = |kind| matches!(kind, Kind::Decapsulated | Kind::Forwarded);
    OUTCOMES.iter().zip(counts).filter(|(outcome, _)| is_taken(outcome.kind)).map(|(_, n)| n).sum()
}

/// The counters that are not zero, as one line.
pub fn line(counts: &Counts) -> String {
    let mut line = String::from("packets:");
    for (outcome, count) in OUTCOMES.iter().zip(counts).filter(|&(_, &count)| count > 0) {
        // Writing to a String cannot fail.
        let _ = write!(line, " {}/{}={count}", outcome.kind.verb(), outcome.name);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both sides' lists are written by hand; this holds them together.
    #[test]
    fn the_program_has_the_same_lists() {
        let source = include_str!("../bpf/outcome.h");
        let between = |begin: &str, end: &str| {
            let (_, list) = source.split_once(begin).unwrap();
            list.split_once(end).unwrap().0.to_owned()
        };
        let (kinds, reasons) = OUTCOMES.split_at(TUNNEL_KINDS);
        let theirs = between("enum tunnel_kind {", "TUNNEL_KINDS,").to_lowercase();
        let theirs: Vec<&str> =
            theirs.lines().filter_map(|line| line.trim().strip_suffix(',')).collect();
        let ours: Vec<&str> = kinds.iter().map(|kind| kind.name).collect();
        assert_eq!(theirs, ours);
        assert!(kinds.iter().all(|kind| kind.kind == Kind::Decapsulated));

        let list = between("#define REASONS(X)", "#define AS_REASON");
        let theirs: Vec<(String, &str)> = list
            .lines()
            .filter_map(|line| line.trim().strip_prefix("X(")?.split_once(')')?.0.split_once(", "))
            .map(|(name, action)| (name.to_lowercase(), action))
            .collect();
        let action = |kind| match kind {
            Kind::Passed => "XDP_PASS",
            Kind::Forwarded => "XDP_TX",
            Kind::Dropped => "XDP_DROP",
            Kind::Decapsulated => panic!("a reason is not"),
        };
        let ours: Vec<(String, &str)> =
            reasons.iter().map(|reason| (reason.name.to_owned(), action(reason.kind))).collect();
        assert_eq!(theirs, ours);
    }

    #[test]
    fn the_line_shows_what_is_not_zero() {
        let mut counts = [0; OUTCOMES.len()];
        for (name, count) in [("gre", 5), ("no_socket", 2), ("ecn", 1)] {
            counts[OUTCOMES.iter().position(|outcome| outcome.name == name).unwrap()] = count;
        }
        assert_eq!(
            line(&counts),
            "packets: decapsulated/gre=5 forwarded/no_socket=2 dropped/ecn=1"
        );
    }
}
