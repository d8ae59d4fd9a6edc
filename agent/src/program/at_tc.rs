//! Runs the program's tests at traffic control.

use super::*;

const PLACE: Place = Place::Tc;
const OBJECT: &str = "agent_tc";
const PASS: u32 = u32::MAX; // the next program goes on
const DROP: u32 = 2;
const TX: u32 = 7; // by bpf_redirect()
const FRAME_BYTES_MIN: usize = 54; // BPF_PROG_TEST_RUN takes no cut IP headers

#[path = "tests/mod.rs"]
#[allow(clippy::duplicate_mod, reason = "the same tests of the program at each place")]
mod tests;
