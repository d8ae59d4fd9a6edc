//! What selects a backend for a flow that is not tracked.

pub mod maglev;
