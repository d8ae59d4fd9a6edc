//! The targets: each takes any bytes, and panics if a property does not hold. fuzz/README.md
//! lists the properties.

mod connection_id;
mod icmp;
mod journey;
mod parse;
mod plan;
mod tcp_options;

/// A target's name, and what it does with an input.
pub type Target = (&'static str, fn(&[u8]));

/// All of them.
pub const TARGETS: [Target; 6] = [
    ("connection_id", connection_id::run),
    ("icmp", icmp::run),
    ("journey", journey::run),
    ("parse", parse::run),
    ("plan", plan::run),
    ("tcp_options", tcp_options::run),
];
