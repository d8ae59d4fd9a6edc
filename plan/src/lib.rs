//! See the crate's README line in ARCHITECTURE.md.
