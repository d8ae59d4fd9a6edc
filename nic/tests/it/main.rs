//! Drivers between namespaces. Needs root.

mod namespaces;
mod support;
mod take_over;
mod zero_copy;
