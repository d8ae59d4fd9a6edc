//! Figure 11: how evenly the hashing methods divide a lookup table.
//!
//! Paper 5.3: "we populate one lookup table using each method, and count the
//! number of table entries assigned to each backend", 1000 backends, tables
//! of 65537 and 655373 entries, 1000 views for Karger. One table is one draw
//! of the hash functions; here it is one per seed.

use std::fmt::Write;

use plan::select::maglev;

use crate::buckets::Counted;
use crate::hashing::{Ring, karger, rendezvous};
use crate::names;
use crate::report::{Report, Table};
use crate::stats::Range;
use crate::svg;

/// What may be varied.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Backends of each table
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub backends: u32,
    /// Points on the ring per backend (Karger)
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub views: u32,
    /// Table sizes: primes
    #[arg(long, value_delimiter = ',', default_value = "65537,655373")]
    pub sizes: Vec<u32>,
    /// Tables of each kind
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    pub seeds: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Method {
    Maglev,
    KargerHashed,
    KargerEven,
    Rendezvous,
}

impl Method {
    const ALL: [Method; 4] =
        [Method::Maglev, Method::KargerHashed, Method::KargerEven, Method::Rendezvous];

    fn name(self) -> &'static str {
        match self {
            Method::Maglev => "Maglev",
            Method::KargerHashed => "Karger, entries hashed",
            Method::KargerEven => "Karger, entries even",
            Method::Rendezvous => "Rendezvous",
        }
    }

    fn letter(self) -> &'static str {
        match self {
            Method::Maglev => "M",
            Method::KargerHashed => "K hashed",
            Method::KargerEven => "K even",
            Method::Rendezvous => "R",
        }
    }

    /// The overprovision that the paper's text gives, per cent.
    fn paper(self, size: u32) -> &'static str {
        match (self, size) {
            (Method::Maglev, _) => "almost perfect",
            (Method::KargerHashed | Method::KargerEven, 65_537) => "29.7",
            (Method::KargerHashed | Method::KargerEven, 655_373) => "10.3",
            (Method::Rendezvous, 65_537) => "49.5",
            (Method::Rendezvous, 655_373) => "12.3",
            _ => "-",
        }
    }

    fn table(self, options: &Options, size: u32, seed: u64) -> Vec<u16> {
        let candidates = names::candidates(seed, options.backends);
        let words = names::words(&candidates);
        match self {
            Method::Maglev => maglev::selector(&candidates, size).entries().to_vec(),
            Method::KargerHashed => karger(&words, options.views, Ring::Hashed, size),
            Method::KargerEven => karger(&words, options.views, Ring::Even, size),
            Method::Rendezvous => rendezvous(&words, size),
        }
    }
}

/// Shares of one table, per cent of it.
struct Shares {
    min: f64,
    max: f64,
    overprovision: f64,
}

impl Shares {
    fn of(table: &[u16], backends: u32) -> Shares {
        let mut counts = vec![0u32; backends as usize];
        table.iter().for_each(|owner| counts[usize::from(*owner)] += 1);
        let percent = |count: Option<&u32>| {
            f64::from(*count.expect("a backend")) * 100.0 / table.len() as f64
        };
        let (min, max) = (percent(counts.iter().min()), percent(counts.iter().max()));
        Shares { min, max, overprovision: max * f64::from(backends) - 100.0 }
    }
}

/// Builds the tables and returns their shares.
#[must_use]
pub fn run(options: &Options) -> Report {
    let mut table = Table::new([
        "size, method",
        "minimum, % of entries",
        "maximum, % of entries",
        "overprovision, %",
        "paper",
    ]);
    let mut bars = Vec::new();
    for size in &options.sizes {
        for method in Method::ALL {
            let shares: Vec<Shares> = (0..options.seeds)
                .map(|seed| Shares::of(&method.table(options, *size, seed), options.backends))
                .collect();
            let range =
                |part: fn(&Shares) -> f64| Range::of(&shares.iter().map(part).collect::<Vec<_>>());
            let (min, max) = (range(|shares| shares.min), range(|shares| shares.max));
            table.row([
                format!("{size} {}", method.name()),
                min.show(4),
                max.show(4),
                range(|shares| shares.overprovision).show(1),
                method.paper(*size).to_owned(),
            ]);
            bars.push(svg::Bar {
                label: method.letter().into(),
                group: format!("table of {size}"),
                low: min.median,
                high: max.median,
            });
        }
    }
    if let Some(counted) = Counted::of(options.backends) {
        add_buckets(&counted, &mut table, &mut bars);
    }
    let frame = svg::Frame {
        title: "Figure 11: least and most entries of a backend (medians over seeds)",
        x: "M Maglev, K Karger, R Rendezvous, B buckets",
        y: "% of the table's entries",
    };
    Report { name: "figure-11", text: text(options, &table), svg: svg::bars(&frame, &bars) }
}

/// The buckets of a stateless service: not in the paper, and without seeds, as
/// only the order of the backends' names counts.
fn add_buckets(counted: &Counted, table: &mut Table, bars: &mut Vec<svg::Bar>) {
    let percent = |buckets: u32| counted.percent(buckets.into());
    let (low, high) = (percent(counted.least), percent(counted.most));
    let overprovision = high * f64::from(counted.backends) - 100.0;
    table.row([
        format!("{} buckets", counted.buckets),
        format!("{low:.4}"),
        format!("{high:.4}"),
        format!("{overprovision:.1}"),
        "-".to_owned(),
    ]);
    let group = format!("{} buckets", counted.buckets);
    bars.push(svg::Bar { label: "B".to_owned(), group, low, high });
}

fn text(options: &Options, table: &Table) -> String {
    let Options { backends, views, seeds, .. } = options;
    let mut text = format!(
        "Figure 11: load balancing efficiency of hashing methods\n\
         {backends} backends, {views} views (Karger), {seeds} seeds; median (minimum - maximum) over the seeds.\n\
         A backend's even share is {:.4} % of the entries. Overprovision: the largest share over the\n\
         even one, less 100 %. Paper: the overprovision in its section 5.3, of one table each.\n\
         Buckets are those of a stateless service (MPLB), as the controller assigns them.\n\n",
        100.0 / f64::from(*backends)
    );
    let _ = write!(text, "{table}");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_a_table_counted_by_hand() {
        let shares = Shares::of(&[0, 0, 0, 1], 2);
        assert_eq!((shares.min, shares.max, shares.overprovision), (25.0, 75.0, 50.0));
    }

    #[test]
    fn maglev_shares_differ_by_one_entry() {
        let options = Options { backends: 100, views: 10, sizes: vec![4099], seeds: 1 };
        let shares = Shares::of(&Method::Maglev.table(&options, 4099, 3), 100);
        assert!((shares.max - shares.min) * 40.99 < 1.0001);
    }
}
