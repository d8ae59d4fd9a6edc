//! Figure 7: the rate by size of rings, and the time spent in rings once they are full.

use crate::machine;
use crate::report::{Report, Table};
use crate::stats::Range;
use crate::svg;
use crate::veth::{self, Flood, Mode, Net, Packets, Place, Rounds};

/// The smallest frames with MP_CAPABLE whose end has room for a number.
const FRAME_BYTES: usize = 86;

/// What may be varied.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Frames that each ring holds: powers of two
    #[arg(long, value_delimiter = ',', default_value = "64,128,256,512,1024,2048", value_parser = clap::value_parser!(u32).range(64..=16_384))]
    pub rings: Vec<u32>,
    /// How often, how long.
    #[command(flatten)]
    pub rounds: Rounds,
}

#[derive(Default)]
struct Measured {
    floods: Vec<Flood>,
    microseconds: Vec<f64>,
}

/// Forwards MP_CAPABLE with each ring in turn.
///
/// # Errors
/// Without root, or if one of both ends fails.
pub fn run(options: &Options) -> Result<Report, String> {
    let rounds = &options.rounds;
    veth::check(rounds.seconds, &[])?;
    if let Some(ring) = options.rings.iter().find(|ring| !ring.is_power_of_two()) {
        return Err(format!("--rings {ring}: powers of two"));
    }
    let before = machine::load();
    let load = rounds.load(Packets::Capable, FRAME_BYTES);
    let mut places = Vec::new();
    for ring in &options.rings {
        places.push((start(*ring, options)?, Measured::default()));
    }
    for _ in 0..rounds.rounds {
        for (place, measured) in &mut places {
            measured.floods.push(place.flood(&load)?);
            let answer = place.send(&load, Mode::Probe)?;
            measured.microseconds.extend(veth::microseconds(&answer));
        }
    }
    let mut table = Table::new([
        "ring",
        "offered, Mpps",
        "forwarded, Mpps",
        "CPU ns per packet",
        "p50 of the flood, us",
        "p99, us",
    ]);
    let mut line = svg::Series { name: "forwarded, median".into(), points: Vec::new() };
    for (ring, (_, measured)) in options.rings.iter().zip(&places) {
        let range =
            |of: fn(&Flood) -> f64| Range::of(&measured.floods.iter().map(of).collect::<Vec<_>>());
        let forwarded = range(|flood| flood.forwarded_mpps);
        let percentile = |of| format!("{:.0}", veth::percentile(&measured.microseconds, of));
        table.row([
            ring.to_string(),
            range(|flood| flood.offered_mpps).show(2),
            forwarded.show(2),
            range(|flood| flood.cpu_ns).show(0),
            percentile(50.0),
            percentile(99.0),
        ]);
        line.points.push((f64::from(*ring), forwarded.median));
    }
    let text = format!(
        "MPLB, figure 7: rate by size of rings\n\
         SYNs with MP_CAPABLE, version 1, in frames of {FRAME_BYTES} bytes, as many as the sender can; one worker,\n\
         the datapath alone, as the forwarder's rings have one size (2048).\n\
         {}\n{table}\n\
         Paper: \"ring sizes above 256 slots don't help throughput but increase latency\".\n",
        rounds.label(&before)
    );
    let frame = svg::Frame {
        title: "MPLB, figure 7: rate of MP_CAPABLE by size of rings, over veth",
        x: "frames of a ring",
        y: "Mpps",
    };
    Ok(Report { name: "mplb-figure-7", text, svg: svg::lines(&frame, &[line]) })
}

fn start(ring: u32, options: &Options) -> Result<Place, String> {
    let own =
        std::env::current_exe().map_err(|error| format!("this program's own file: {error}"))?;
    let net = Net::new(&format!("m7-{ring}"), 1)?;
    let arguments = ["ring-worker", "--ring", &ring.to_string(), veth::INTERFACE, veth::VIPS];
    let running = veth::program(&own, &net.tested, &arguments)?;
    let load = options.rounds.load(Packets::Capable, FRAME_BYTES);
    Place::new(running, net, &load)
}
