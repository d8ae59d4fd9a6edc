//! The program between namespaces. Needs root.

mod doctor;
mod logging;
mod multipath;
mod namespaces;
mod onward;
mod support;
mod timestamps;
