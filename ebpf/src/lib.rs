//! Programs that the kernel runs: loaded, attached to an interface, kept there.
//!
//! ```text
//!  object file ─ load ─► tables
//!                   └──► program ─ xdp::attach ─► Link ─► attached until its last copy is closed
//! ```
//!
//! For the filters of `nic` and the agent's decapsulation. What the kernel
//! refuses is reported with its cure. Knows nothing of what a program does, nor of
//! its tables. Their C is compiled by `compile.rs`, from build scripts.
#![warn(missing_docs)]
#![allow(unsafe_code, reason = "links and interfaces are system calls without a safe name")]

mod interface;
mod link;
mod object;
mod record;
pub mod xdp;

pub use interface::{
    NoInterface, ReceiveOffload, driver_of, index_of, losing_offloads, mtu_of, receive_offload,
};
pub use link::{Hook, Link, has_tc_links};
pub use object::{
    ObjectError, load, load_program, load_with, load_with_tables, program, program_fd, sums, table,
    with_causes,
};
pub use record::Record;
