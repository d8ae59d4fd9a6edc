//! Results that are counted, not measured, are the same on every machine: compares small runs
//! of figures 7, 11, 12 and of tracking with stored texts, exactly.
//!
//! `UPDATE_FIGURES=1 cargo test -p guideway-figures` rewrites them; review
//! the diff. A change of a table, of the flow hash or of the model shows here.

use std::path::Path;

use guideway_figures::report::Report;
use guideway_figures::{figure_7, figure_11, figure_12, tracking};

const SNAPSHOTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/snapshots");

fn holds(report: &Report) {
    let file = Path::new(SNAPSHOTS).join(report.name).with_extension("txt");
    if std::env::var_os("UPDATE_FIGURES").is_some() {
        std::fs::write(&file, &report.text).unwrap();
    }
    let kept = std::fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(report.text, kept, "{} differs: UPDATE_FIGURES=1 rewrites it", file.display());
}

#[test]
fn figure_7_of_two_days() {
    let options = figure_7::Options {
        endpoints: 458,
        size: 65_537,
        rates: vec![0.05, 0.1],
        peak_to_trough: 3.0,
        seeds: 2,
    };
    holds(&figure_7::run(&options).unwrap());
}

#[test]
fn figure_11_of_three_seeds_in_a_small_table() {
    let options =
        figure_11::Options { backends: 100, views: 100, sizes: vec![1009, 10_007], seeds: 3 };
    holds(&figure_11::run(&options));
}

#[test]
fn figure_12_of_five_repetitions() {
    let options = figure_12::Options {
        backends: 100,
        sizes: vec![10_007, 65_537],
        failures: vec![1, 5, 10],
        repetitions: 5,
        seed: 0,
    };
    holds(&figure_12::run(&options).unwrap());
}

/// A power of two is the worst case: no table is rounded up.
const FULL: tracking::Options = tracking::Options {
    connections: 1 << 16,
    roominess: Vec::new(),
    shares: Vec::new(),
    strangers: 2_000_000,
};

#[test]
fn tracking_in_small_tables() {
    let options = tracking::Options { roominess: vec![1, 2], shares: vec![50, 100, 125], ..FULL };
    holds(&tracking::run(&options).unwrap());
}

#[test]
fn as_many_are_tracked_and_as_few_shared_as_the_design_says() {
    let options = tracking::Options { shares: vec![100], ..FULL };
    for (roominess, tracked_percent) in [(1, 99.0), (2, 99.9)] {
        let table = tracking::measure(&options, roominess).unwrap();
        let (connections, found) = table.found[0];
        let percent = found as f64 * 100.0 / connections as f64;
        assert!(percent >= tracked_percent, "{percent} % in a table {roominess} x the size");
        // One in a million are two of these; eight would be by chance once in a thousand runs.
        assert!(table.sharing < 8, "{} of two million share", table.sharing);
    }
}

#[test]
fn a_saved_report_is_a_text_and_a_plot() {
    let folder = tempfile::tempdir().unwrap();
    let options = figure_11::Options { backends: 3, views: 2, sizes: vec![101], seeds: 1 };
    let report = figure_11::run(&options);
    report.save(folder.path()).unwrap();
    assert_eq!(std::fs::read_to_string(folder.path().join("figure-11.txt")).unwrap(), report.text);
    assert!(
        std::fs::read_to_string(folder.path().join("figure-11.svg")).unwrap().starts_with("<svg")
    );
}
