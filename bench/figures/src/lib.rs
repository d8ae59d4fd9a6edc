//! The Maglev paper's evaluation (section 5), repeated with our own code, and the MPLB
//! paper's ([`mplb`]).
//!
//! Each figure is a function from options to a [`report::Report`]: a text table with the
//! paper's values next to ours, and a plot. What is counted ([`figure_7`], [`figure_11`],
//! [`figure_12`], [`tracking`]) depends only on the options, is the same on every machine,
//! and is checked by a test; measurements are labelled with the machine.
#![forbid(unsafe_code)]

pub mod buckets;
pub mod figure_11;
pub mod figure_12;
pub mod figure_7;
pub mod figure_8;
pub mod figure_9;
pub mod hashing;
pub mod machine;
pub mod mplb;
pub mod names;
pub mod paths;
pub use guideway_bench::random;
pub mod report;
pub mod scale;
pub mod stats;
pub mod svg;
pub mod swap;
pub mod table_build;
pub mod tracking;
pub mod traffic;
pub mod veth;
