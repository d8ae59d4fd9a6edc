//! The packet's journey, pure: no I/O, no clock, no threads.
//!
//! ```text
//!  frame ─► parse ─► match ─► track ─► select ─► encapsulate ─► Verdict::Send
//!             │        │        │        │            │
//!             └────────┴────────┴────────┴────────────┴──► Pass | Reply | Drop(reason) | …
//! ```
//!
//! [`forward`] is the specification: one readable function for one packet.
//! [`batch`] calls the same stages for many, in another loop order. Time,
//! plan, next hops and memory come in as arguments; verdicts and counters go
//! out as values. Nothing here allocates once a worker runs.

mod agent_options;
pub mod batch;
pub mod block;
pub mod by_flow;
mod chosen_member;
pub mod clock;
pub mod compare;
pub mod connection_id;
pub mod counters;
pub mod decapsulate;
pub mod decide;
pub mod drop_reason;
pub mod egress;
pub mod encapsulate;
pub mod explain;
pub mod flow_hash;
pub mod forward;
pub mod fragment_table;
pub mod fragmentation;
pub mod kernel_cache;
pub mod limiter;
pub mod multipath;
pub mod next_hop;
mod not_cached;
pub mod outbox;
mod packet;
mod prefetch;
pub mod recorder;
pub mod recursion_limit;
pub mod reply;
pub mod secret;
pub mod send;
pub mod slow;
pub mod steer;
pub mod table;
pub mod trace;
pub mod verdict;
pub mod view;
mod worker_evidence;

pub use by_flow::ByFlow;
pub use clock::{Clock, Now};
pub use connection_id::ConnectionIdKeys;
pub use counters::{Counters, Totals};
pub use drop_reason::DropReason;
pub use egress::Egress;
pub use flow_hash::{BucketHash, FlowHash};
pub use forward::Datapath;
pub use next_hop::NextHop;
pub use not_cached::NotCached;
pub use outbox::Outbox;
pub use recorder::{Journey, NoRecorder, Recorder};
pub use recursion_limit::RecursionLimit;
pub use secret::Secret;
pub use slow::SlowPath;
pub use table::{ConnectionTable, EntryClass, TableReader};
pub use trace::Tracer;
pub use verdict::Verdict;
pub use view::{MatchTotal, View, WorkerCounters};
