//! Decisions, and results that must be the same on all machines.

mod decide;
mod trace_vectors;
mod vectors;
