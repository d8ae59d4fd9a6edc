//! How often, for how long and with what load measurements over veth are made.

use super::{Load, Packets};
use crate::machine;

/// What may be varied of every figure over veth.
#[derive(Debug, Clone, clap::Args)]
pub struct Rounds {
    /// Rounds, in which all that is compared takes turns
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 0.2)]
    pub seconds: f64,
    /// Connections of the sender
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub connections: u32,
}

impl Rounds {
    /// Packets of that kind and size, as many as can be sent.
    #[must_use]
    pub fn load(&self, packets: Packets, frame_bytes: usize) -> Load {
        let Rounds { seconds, connections, .. } = *self;
        Load { packets, frame_bytes, connections, rate: 0, seconds }
    }

    /// What a figure's numbers are of.
    #[must_use]
    pub fn label(&self, load_before: &str) -> String {
        format!(
            "Median (minimum - maximum) of {} rounds of {} s, in which all take turns; {} connections.\n\
             Over veth, past the kernel's stack (af_xdp), not pinned; sender and workers share the machine's cores.\n\
             Machine: {}; load average before: {load_before}\n",
            self.rounds,
            self.seconds,
            self.connections,
            machine::label()
        )
    }
}
