//! Decoding of plans, and results that must be the same on all machines.

mod decode;
mod vectors;
