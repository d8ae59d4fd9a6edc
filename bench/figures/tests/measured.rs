//! Measurements are not compared with anything, but must work: small runs complete, with every
//! packet forwarded as the figure says (checked by the counters) and a line for every kind.

use std::io::Write;
use std::path::PathBuf;

use guideway_figures::scale::one::{self, One};
use guideway_figures::veth::Rounds;
use guideway_figures::{figure_8, figure_9, mplb, swap, table_build};

#[test]
fn figure_9_forwards_every_packet_of_every_type() {
    let options = figure_9::Options {
        workers: Some(2),
        connections: 1000,
        connections_max: 1000,
        backends: 10,
        rounds: 2,
        packets: 6_400,
    };
    let report = figure_9::run(&options).unwrap();
    for line in ["SYN, 1", "SYN, 2", "non-SYN, 2", "constant 5-tuple, 2"] {
        assert!(
            report.text.lines().any(|text| text.starts_with(line)),
            "{line} in\n{}",
            report.text
        );
    }
}

#[test]
fn table_build_has_a_line_for_each_size() {
    let options = table_build::Options { backends: 10, sizes: vec![1009, 65_537], runs: 3 };
    let text = table_build::run(&options).text;
    assert!(text.contains("\n1009 ") && text.contains("\n65537 "), "{text}");
}

#[test]
fn a_line_of_scale_builds_the_one_table_that_changed() {
    let line = One {
        services: 40,
        busy_services: 5,
        backends: 50,
        pools: 10,
        workers: 3,
        flows: 3000,
        packets: 30_000,
    };
    let measured = one::run(&line).unwrap();
    assert_eq!((measured.tables_built, measured.tables), (1, 10));
    assert!(measured.some_busy_ns > 0.0 && measured.all_busy_ns > 0.0, "{measured:?}");
    // Ten tables of 65537 entries, two bytes each.
    assert!(measured.plan_mib > 1.0, "{measured:?}");
    let one_more = One { backends: 0, ..line };
    assert!(one::run(&one_more).is_err());
}

#[test]
fn swap_sees_packets_forwarded_before_and_after_every_plan() {
    let options = swap::Options {
        services: 20,
        backends: 30,
        pools: 5,
        flows: 1000,
        rate: 50_000,
        turns: 1,
        plans: 2,
    };
    let results = swap::measure(&options).unwrap();
    for measured in &results {
        assert!(!measured.seen.is_empty());
    }
    // The first turn only warms up; its plans count too.
    let made = results.each_ref().map(|measured| (measured.plan_ms.len(), measured.swap_ms.len()));
    assert_eq!(made, [(0, 0), (4, 0), (4, 4)]);
}

#[test]
fn figure_8_names_the_program_that_is_missing() {
    let options = figure_8::Options {
        forwarder: PathBuf::from("no/such/forwarder"),
        reflector: PathBuf::from("no/such/reflector"),
        live_sender: PathBuf::from("no/such/live_sender"),
        workers: vec![1],
        rounds: Rounds { rounds: 1, seconds: 0.1, connections: 1 },
        json: None,
    };
    let refused = figure_8::run(&options).unwrap_err();
    assert!(refused.contains("no/such/forwarder") || refused.contains("root"), "{refused}");
}

#[test]
fn mplb_table_1_has_every_type_selected_by_what_it_carries() {
    let options = mplb::table_1::Options {
        workers: vec![1, 2],
        flows: 1000,
        backends: 10,
        rounds: 2,
        passes: 1,
        frames: 64,
    };
    let report = mplb::table_1::run(&options).unwrap();
    for line in ["TCP SYN, 1 ", "SYN, MP_JOIN, 2 ", "mix of the paper's traces, 2 "] {
        assert!(
            report.text.lines().any(|text| text.starts_with(line)),
            "{line} in\n{}",
            report.text
        );
    }
}

/// Runs a figure over veth, small, where that can be done, with these programs.
fn runs_small(test: &str, arguments: &[&str], programs: &[&str], lines: &[&str]) {
    let figures = std::path::Path::new(env!("CARGO_BIN_EXE_guideway-figures"));
    let file = |program: &str| figures.with_file_name(format!("guideway-{program}"));
    let missing = match (rustix::process::geteuid().is_root(), programs) {
        (false, _) => "root for network namespaces".to_owned(),
        (true, programs) => {
            let missing = programs.iter().find(|program| !file(program).is_file());
            missing.map(|program| format!("guideway-{program}, built beside")).unwrap_or_default()
        }
    };
    if !missing.is_empty() {
        let line = format!("SKIPPED {test}: needs {missing}\n");
        std::io::stderr().write_all(line.as_bytes()).unwrap();
        return;
    }
    let mut command = std::process::Command::new(figures);
    command.args(arguments).args(["--rounds", "1", "--seconds", "0.05"]);
    for program in programs {
        command.arg(format!("--{program}")).arg(file(program));
    }
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    for line in lines {
        let has = text.lines().any(|text| text.starts_with(line));
        assert!(has && !text.contains("NaN"), "{line} in\n{text}");
    }
}

#[test]
fn mplb_7_forwards_with_each_ring() {
    let arguments = ["mplb-7", "--connections", "100", "--rings", "64,256"];
    runs_small("mplb_7", &arguments, &[], &["64 ", "256 "]);
}

#[test]
fn mplb_8_times_packets_at_each_load() {
    let arguments = ["mplb-8", "--connections", "100", "--loads", "10,50"];
    runs_small("mplb_8", &arguments, &["forwarder"], &["10 % ", "50 % ", "as many as go "]);
}

#[test]
fn mplb_9_adds_load_balancers_within_their_bounds() {
    let few = ["--load-balancers", "2", "--quota", "20", "--rate", "20000"];
    let arguments = [&["mplb-9", "--connections", "100"][..], &few].concat();
    runs_small("mplb_9", &arguments, &["forwarder"], &["1 ", "2 "]);
}

#[test]
fn mplb_10_forwards_each_size() {
    let arguments = ["mplb-10", "--connections", "100", "--sizes", "86,1400"];
    runs_small("mplb_10", &arguments, &["forwarder"], &["86 ", "1400 "]);
}

#[test]
fn paths_carry_an_upload_and_connections_each_way() {
    let lines = ["direct ", "nft ", "guideway "];
    runs_small("paths", &["paths"], &["forwarder", "agent"], &lines);
}
