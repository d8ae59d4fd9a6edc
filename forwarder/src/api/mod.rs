//! The API on `forwarder.sock` and `forwarder-view.sock`: the gRPC calls, who may make which,
//! and how many at a time.

pub mod clients;
mod rights;
pub mod server;
