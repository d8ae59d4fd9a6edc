//! The evaluation of the second paper (Olteanu and Raiciu, "Datacenter Scale Load
//! Balancing for Multipath Transport", HotMiddlebox 2016; section 4), redone.
//!
//! [`table_1`] is in memory; the figures are over veth, as the Maglev paper's figure 8
//! is, by the same sender.

pub mod figure_10;
pub mod figure_7;
pub mod figure_8;
pub mod figure_9;
pub mod lane;
pub mod ring_worker;
pub mod table_1;

use std::path::PathBuf;

use crate::machine;
use crate::veth::{self, Load, Net, Packets, Place, Service};

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

/// The program that most of them run.
#[derive(Debug, Clone, clap::Args)]
pub struct Forwarder {
    /// The forwarder
    #[arg(long = "forwarder", default_value = "bin/guideway-forwarder")]
    pub program: PathBuf,
}

impl Rounds {
    fn load(&self, packets: Packets, frame_bytes: usize) -> Load {
        let Rounds { seconds, connections, .. } = *self;
        Load { packets, frame_bytes, connections, rate: 0, seconds }
    }

    /// What a figure's numbers are of.
    fn label(&self, load_before: &str) -> String {
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

impl Forwarder {
    /// Starts it with one worker behind a cable of its own.
    fn start(&self, name: &str, load: &Load) -> Result<Place, String> {
        let net = Net::new(name, 1)?;
        let plan = Service::Multipath.plan("DRIVER_AF_XDP", 0);
        let running = veth::forwarder(&self.program, &net, &plan)?;
        Place::new(running, net, load)
    }
}
