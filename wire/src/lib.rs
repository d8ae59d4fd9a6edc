//! Bytes and their meaning: one protocol header per file.
//!
//! Guarantees: no unsafe, no allocation, no panic on any input. Parsing says
//! why it failed. Knows nothing of plans, tables or devices.
#![forbid(unsafe_code)]

pub mod frame;

pub use frame::{BATCH_MAX, Batch, CHUNK_BYTES, FRAME_BYTES_MAX, Frame, HEADROOM_BYTES};
