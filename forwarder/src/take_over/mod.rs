//! Planned restarts: a successor (`guideway-forwarder --take-over`) goes on
//! with what a running forwarder has, and no packet is lost beyond what finds
//! the sockets' rings full.
//!
//! ```text
//!  successor                                    predecessor
//!  Hello: version, key, tables      ──────────► holds back changes of the plan
//!  maps, loads, decodes, resolves   ◄────────── Offer: plan, descriptors
//!  Ready                            ──────────► tells the controller; its threads come to rest
//!                                   ◄────────── Rested: how many connections each table has
//!  Taking                           ──────────►
//!  frees chunks, starts its threads ◄────────── Go: from here on it touches nothing
//!  Running                          ──────────► ends
//! ```
//!
//! What goes over, by SCM_RIGHTS: the run directory's lock, the sockets that
//! listen, packet memory, AF_XDP and AF_PACKET sockets, XDP and tc links,
//! claims, TAPs. What both have by name: connection tables and ids.
//!
//! Until Go the predecessor goes on as before, whatever happens to the
//! successor. If the successor dies between Go and Running, nobody knows how
//! far it came: the predecessor executes itself anew, which is as after a
//! kill: new sockets, the tables taken over. It is the same process, so that
//! whoever supervises it sees nothing.

mod channel;
mod messages;
mod predecessor;
mod successor;

pub use messages::{Device, Memory, Rested, Running, Wants, Xdp};
pub use predecessor::{Assets, Handed, serve};
pub use successor::{Heritage, ask};

/// The socket in the run directory, for who owns the directory only: what
/// goes over it is the right to see and send all packets.
pub const SOCKET: &str = "take-over.sock";
