//! Connections of 20 packets, each lasting 50 ms: the cost of a packet if workers see all
//! of them, and if the kernel sends those between the first and the last. All are sent
//! through sockets, at a rate that workers can handle.

use serde_json::{Map, Value};

use super::Options;
use super::subject::Subject;
use crate::report::Table;
use crate::stats::Range;
use crate::traffic::FRAME_BYTES;
use crate::veth::{Load, Packets};

const SUBJECTS: [(&str, Subject); 6] = [
    ("short_20_reflector", Subject::XdpReflector),
    ("short_20", Subject::KernelCache),
    ("short_20_uncached", Subject::AfXdp),
    ("short_20_packet_reflector", Subject::TcReflector),
    ("short_20_packet", Subject::PacketCache),
    ("short_20_packet_uncached", Subject::AfPacket),
];

const LOAD: Load = Load {
    packets: Packets::Short,
    frame_bytes: FRAME_BYTES,
    connections: 250,
    rate: 100_000,
    seconds: 1.0,
};

/// Nanoseconds of the machine's for each packet that came back, by subject and round.
pub(super) type Measurements = [Vec<f64>; SUBJECTS.len()];

/// All take turns.
pub(super) fn measure(options: &Options) -> Result<Measurements, String> {
    let mut places = Vec::new();
    for (name, subject) in SUBJECTS {
        let place = subject.place(options, "s", 1, &LOAD);
        places.push(place.map_err(|error| format!("{name}: {error}"))?);
    }
    let mut all = Measurements::default();
    for _ in 0..options.rounds.rounds {
        for (place, measured) in places.iter().zip(&mut all) {
            measured.push(place.flood(&LOAD)?.machine_cpu_ns);
        }
    }
    Ok(all)
}

pub(super) fn text(all: &Measurements) -> String {
    let mut table =
        Table::new(["flows of 20 packets, by sockets", "CPU ns per packet, the machine's"]);
    for ((_, subject), measured) in SUBJECTS.iter().zip(all) {
        table.row([subject.name().to_owned(), Range::of(measured).show(0)]);
    }
    table.to_string()
}

/// By name.
pub(super) fn summary(all: &Measurements) -> Map<String, Value> {
    let medians = SUBJECTS.iter().zip(all);
    medians.map(|((name, _), ns)| ((*name).to_owned(), Range::of(ns).median.into())).collect()
}
