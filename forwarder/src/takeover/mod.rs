//! Planned restarts: a successor (`guideway-forwarder --take-over`) goes on
//! with what a running forwarder has, and no packet is lost beyond what finds
//! the sockets' rings full.
//!
//! ```text
//!  successor                                    predecessor
//!  Hello: version, key, tables      ──────────► holds back changes of the plan
//!  maps, loads, decodes, resolves   ◄────────── Offer: plan, descriptors
//!  Ready                            ──────────► informs the controller; its threads stand still
//!                                   ◄────────── Quiesced: how many connections each table has
//!  Taking                           ──────────►
//!  takes the lock of each memory    ◄────────── Go: from here on it touches nothing
//!  frees chunks, starts its threads
//!  Running                          ──────────► ends
//!  saves the plan
//! ```
//!
//! What goes over, by SCM_RIGHTS: the run directory's lock, the sockets
//! that listen, packet memory, AF_XDP and AF_PACKET sockets, XDP and tc links,
//! claims, TAPs; and each sends a descriptor of its own process. What both have
//! by name: connection tables and ids.
//!
//! The states, by what was said last, who uses the devices in each, and what
//! becomes of the death of either side (`tests/it/take_over_states.rs` kills each
//! side in each):
//!
//! | said last | uses the devices | the successor dies | the predecessor dies |
//! |---|---|---|---|
//! | Hello | predecessor | it goes on | starts afresh; detached: ends, the service manager starts one |
//! | Offer, Ready | predecessor | it goes on | goes on in its place |
//! | Quiesced, Taking | neither | it resumes | goes on in its place |
//! | Go | successor | it starts anew | nothing; it goes on |
//! | Running | successor | it starts anew, unless it has ended | it was to end anyway |
//!
//! A predecessor that has said Go cannot know how far a successor came that
//! died: it executes itself anew, which is as after a kill: new sockets, the
//! tables taken over. It is the same process, so that its supervisor
//! sees nothing, and it has the supervisor's notify socket though that may have
//! started another process. A successor without a predecessor has descriptors
//! of everything and goes on; the connections of each table are counted anew.
//!
//! **Invariant:** one process uses the devices. No message decides that but the
//! kernel's lock of each packet memory (`nic::memory`), which a predecessor
//! gives back when all its threads stand still, or when it ends.

mod channel;
mod messages;
mod predecessor;
mod process;
mod successor;

pub use channel::Channel;
pub use predecessor::{Assets, Handed, serve, start_anew};
pub use successor::{Predecessor, ask};
