//! Programs that run in the kernel: loads them, attaches them to an interface, and keeps them
//! attached.
//!
//! ```text
//!  object file ─ load ─► tables
//!                   └──► program ─ xdp::attach ─► Link ─► attached until its last copy is closed
//! ```
//!
//! Used by the filters of `nic` and by the agent's decapsulation. If the kernel refuses
//! something, the error names a cure. Does not know what a program does, nor its tables. Build
//! scripts compile the C source by `compile.rs`.
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
