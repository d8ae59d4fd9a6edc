//! Runs the program's tests at XDP.

use super::*;

const PLACE: Place = Place::Xdp(ebpf::xdp::ModePreference::Auto);
const OBJECT: &str = "agent";
const PASS: u32 = 2;
const DROP: u32 = 1;
const TX: u32 = 3;
const FRAME_BYTES_MIN: usize = 14;

#[path = "tests/mod.rs"]
mod tests;
