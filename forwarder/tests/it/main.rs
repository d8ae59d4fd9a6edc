//! Tests the program: replayed captures, and packets between namespaces (with root).

mod common;
mod engine;
mod golden;
mod kernel_cache;
mod logging;
mod namespaces;
mod path_mtu;
mod probes;
mod program;
mod punt;
mod return_paths;
mod returned;
mod steering;
mod take_over;
mod take_over_states;
