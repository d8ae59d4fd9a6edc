//! Placeholder until its landing.
fn main() {}
