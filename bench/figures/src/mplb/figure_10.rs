//! Figure 10: the rate by size of packets.

use super::Forwarder;
use crate::machine;
use crate::report::{Report, Table};
use crate::stats::Range;
use crate::svg;
use crate::veth::{self, Flood, Packets, Rounds};

/// What may be varied.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Bytes of the frames; with the tunnel's headers they have to fit an MTU of 1500
    #[arg(long, value_delimiter = ',', default_value = "86,128,256,512,1024,1400", value_parser = clap::value_parser!(u16).range(86..=1400))]
    pub sizes: Vec<u16>,
    /// The program.
    #[command(flatten)]
    pub forwarder: Forwarder,
    /// How often, how long.
    #[command(flatten)]
    pub rounds: Rounds,
}

/// Forwards data of each size in turn.
///
/// # Errors
/// Without root or the forwarder, or if one of both ends fails.
pub fn run(options: &Options) -> Result<Report, String> {
    let rounds = &options.rounds;
    veth::check(rounds.seconds, &[&options.forwarder.program])?;
    let before = machine::load();
    let load = |size: &u16| rounds.load(Packets::Data, usize::from(*size));
    let first = options.sizes.first().ok_or("--sizes: at least one")?;
    let place = options.forwarder.start("m10", &load(first))?;
    let mut floods: Vec<Vec<Flood>> = vec![Vec::new(); options.sizes.len()];
    for _ in 0..rounds.rounds {
        for (size, floods) in options.sizes.iter().zip(&mut floods) {
            floods.push(place.flood(&load(size))?);
        }
    }
    let mut table = Table::new([
        "bytes",
        "offered, Mpps",
        "forwarded, Mpps",
        "Gbit/s, median",
        "best",
        "paper, six cores",
        "CPU ns per packet",
    ]);
    let mut line = svg::Series { name: "forwarded, median".into(), points: Vec::new() };
    for (size, floods) in options.sizes.iter().zip(&floods) {
        let range = |of: fn(&Flood) -> f64| Range::of(&floods.iter().map(of).collect::<Vec<_>>());
        let forwarded = range(|flood| flood.forwarded_mpps);
        let gigabits = |mpps: f64| mpps * f64::from(*size) * 8.0 / 1000.0;
        table.row([
            size.to_string(),
            range(|flood| flood.offered_mpps).show(2),
            forwarded.show(2),
            format!("{:.2}", gigabits(forwarded.median)),
            format!("{:.2}", gigabits(forwarded.max)),
            match size {
                86 => "around 11 Mpps",
                512 => "26 Gbit/s",
                _ => "",
            }
            .to_owned(),
            range(|flood| flood.cpu_ns).show(0),
        ]);
        line.points.push((f64::from(*size), gigabits(forwarded.median)));
    }
    let text = format!(
        "MPLB, figure 10: rate by size of packets\n\
         Data of connections of Multipath TCP, with timestamps; one worker.\n\
         {}\n{table}\n\
         Paper: six cores, four NICs of 10 Gbit/s. Sizes and bits a second are those of what comes in.\n",
        rounds.label(&before)
    );
    let frame = svg::Frame {
        title: "MPLB, figure 10: rate by size of packets, over veth",
        x: "bytes of a frame",
        y: "Gbit/s",
    };
    Ok(Report { name: "mplb-figure-10", text, svg: svg::lines(&frame, &[line]) })
}
