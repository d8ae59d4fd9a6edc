//! Decisions, and what all machines have to compute alike.

mod decide;
mod trace_vectors;
mod vectors;
