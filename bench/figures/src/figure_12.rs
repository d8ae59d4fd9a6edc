//! Figure 12: entries that change when backends fail.
//!
//! Paper 5.3: "For each failure number k, we randomly remove k backends from
//! the pool, regenerate the lookup table and compute the percent of changed
//! entries. We repeat the experiment 200 times for each k value and report
//! the average results."

use std::fmt::Write;

use plan::select::Selector;
use plan::select::maglev::{self, Candidate};

use crate::buckets::Counted;
use crate::names;
use crate::random::Random;
use crate::report::{Report, Table};
use crate::svg;

/// What may be varied.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Backends before the failure
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(2..=60_000))]
    pub backends: u32,
    /// Table sizes: primes
    #[arg(long, value_delimiter = ',', default_value = "65537,655373")]
    pub sizes: Vec<u32>,
    /// How many backends fail at once: each less than there are
    #[arg(long, value_delimiter = ',', default_value = "1,2,5,10,15,20,30,40,50")]
    pub failures: Vec<u32>,
    /// Draws of failing backends for each number
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
    pub repetitions: u64,
    /// Of the names and the draws
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
}

/// Changed entries over all repetitions, per cent of the table.
struct Changed {
    mean: f64,
    min: f64,
    max: f64,
}

/// Removes backends and compares tables.
pub fn run(options: &Options) -> Result<Report, String> {
    if let Some(failures) = options.failures.iter().find(|failures| **failures >= options.backends)
    {
        let backends = options.backends;
        return Err(format!(
            "--failures {failures} of --backends {backends}: at least one has to be left"
        ));
    }
    let mut headings = vec!["failed".to_owned(), "failed, %".to_owned()];
    for size in &options.sizes {
        headings.push(format!("{size}: changed, % (minimum - maximum)"));
        headings.push("of others, %".to_owned());
    }
    let buckets = Counted::of(options.backends);
    if let Some(Counted { buckets, .. }) = buckets {
        headings.push(format!("{buckets} buckets: moved, % (minimum - maximum)"));
        headings.push("of others, %".to_owned());
    }
    let mut table = Table::new(headings);
    let mut lines: Vec<svg::Series> =
        options.sizes.iter().map(|size| line(format!("table of {size}"))).collect();
    let mut moved = line("buckets".to_owned());
    let mut inevitable = line("the failed backends' own".to_owned());
    for failures in &options.failures {
        let failed_percent = f64::from(*failures) * 100.0 / f64::from(options.backends);
        let mut row = vec![failures.to_string(), format!("{failed_percent:.1}")];
        inevitable.points.push((failed_percent, failed_percent));
        for (size, line) in options.sizes.iter().zip(&mut lines) {
            let changed = changed(options, *size, *failures);
            row.push(format!("{:.3} ({:.3} - {:.3})", changed.mean, changed.min, changed.max));
            row.push(format!("{:.3}", changed.mean - failed_percent));
            line.points.push((failed_percent, changed.mean));
        }
        if let Some(counted) = &buckets {
            row.extend(moved_buckets(counted, *failures, failed_percent, &mut moved));
        }
        table.row(row);
    }
    lines.extend(buckets.is_some().then_some(moved));
    lines.push(inevitable);
    let frame = svg::Frame {
        title: "Figure 12: changed entries when backends fail",
        x: "failed backends, %",
        y: "changed entries, %",
    };
    Ok(Report { name: "figure-12", text: text(options, &table), svg: svg::lines(&frame, &lines) })
}

fn line(name: String) -> svg::Series {
    svg::Series { name, points: Vec::new() }
}

/// What moved of a stateless service's buckets, in two columns, and its point of
/// the line.
fn moved_buckets(
    counted: &Counted,
    failures: u32,
    failed_percent: f64,
    line: &mut svg::Series,
) -> [String; 2] {
    let Some(failed) = counted.failed(failures) else { return ["-".into(), "-".into()] };
    let mean = counted.percent(failed.mean());
    let (min, max) = (counted.percent(failed.min.into()), counted.percent(failed.max.into()));
    line.points.push((failed_percent, mean));
    [
        format!("{mean:.3} ({min:.3} - {max:.3})"),
        format!("{:.3}", counted.percent(failed.of_others())),
    ]
}

fn changed(options: &Options, size: u32, failures: u32) -> Changed {
    let all = names::candidates(options.seed, options.backends);
    let before = maglev::selector(&all, size);
    let mut random = Random::new(options.seed << 32 | u64::from(failures));
    let percents: Vec<f64> = (0..options.repetitions)
        .map(|_| {
            let left = survivors(&mut random, options.backends, failures);
            f64::from(changed_entries(&all, &before, &left, size)) * 100.0 / f64::from(size)
        })
        .collect();
    let mean = percents.iter().sum::<f64>() / percents.len() as f64;
    let ends = crate::stats::Range::of(&percents);
    Changed { mean, min: ends.min, max: ends.max }
}

/// Who is left when `failures` random backends are gone, in order.
fn survivors(random: &mut Random, backends: u32, failures: u32) -> Vec<u16> {
    let mut indices: Vec<u16> = (0..backends as u16).collect();
    random.draw(&mut indices, failures as usize);
    let mut left = indices.split_off(failures as usize);
    left.sort_unstable();
    left
}

fn changed_entries(all: &[Candidate], before: &Selector, left: &[u16], size: u32) -> u32 {
    let candidates: Vec<Candidate> =
        left.iter().map(|index| all[usize::from(*index)].clone()).collect();
    let after = maglev::selector(&candidates, size);
    let pairs = before.entries().iter().zip(after.entries());
    pairs.filter(|(before, after)| **before != left[usize::from(**after)]).count() as u32
}

fn text(options: &Options, table: &Table) -> String {
    let Options { backends, repetitions, seed, .. } = options;
    let mut text = format!(
        "Figure 12: resilience of Maglev hashing to backend changes\n\
         {backends} backends, {repetitions} repetitions for each number of failures, seed {seed}; means.\n\
         A failed backend's own entries have to change: \"of others\" is what changes beyond them.\n\
         Paper: a plot without numbers; its text says that changes grow with the failures and are\n\
         fewer in the larger table.\n\
         Buckets are those of a stateless service (MPLB), as the controller assigns them: 200 draws.\n\n"
    );
    let _ = write!(text, "{table}");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_removal_nothing_changes() {
        let all = names::candidates(1, 20);
        let before = maglev::selector(&all, 4099);
        let left: Vec<u16> = (0..20).collect();
        assert_eq!(changed_entries(&all, &before, &left, 4099), 0);
    }

    #[test]
    fn at_least_the_removed_ones_entries_change() {
        let all = names::candidates(1, 20);
        let before = maglev::selector(&all, 4099);
        let left: Vec<u16> = (1..20).collect();
        let own = before.entries().iter().filter(|owner| **owner == 0).count() as u32;
        let changed = changed_entries(&all, &before, &left, 4099);
        assert!((own..4 * own).contains(&changed), "{changed} of at least {own}");
    }

    #[test]
    fn all_of_them_cannot_fail() {
        let options =
            Options { backends: 5, sizes: vec![101], failures: vec![5], repetitions: 1, seed: 0 };
        assert!(run(&options).unwrap_err().contains("--failures 5"));
    }
}
