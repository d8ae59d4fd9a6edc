//! Plans as they arrive, and what all machines have to compute alike.

mod decode;
mod vectors;
