//! Multipath TCP with a load balancer's keys, between real kernels, checked by the kernels' own
//! counters. Needs root.
//!
//! ```text
//!  client ══ link 1: 10.66.1.0/24, fd66:1:: ══ lb ══ 10.66.0.0/24, fd66:0:: ══ backend: agent
//!         ══ link 2: 10.66.2.0/24, fd66:2:: ══    ══ 10.66.3.0/24, fd66:3:: ══ other backend
//!                                                                  VIPs on lo of both
//! ```
//!
//! The load balancer is a thread: it reads the client's packets from a TUN device and sends
//! them on in Geneve, SYNs with the Multipath TCP option. The same namespace routes the
//! backends' answers. Only some tests have the other backend.

mod agents;
mod balancing;
mod clients;
mod handshakes;
mod net;
mod redirects;
mod restarts;
mod subflows;
