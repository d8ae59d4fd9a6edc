//! The evaluation of the second paper (Olteanu and Raiciu, "Datacenter Scale Load Balancing
//! for Multipath Transport", HotMiddlebox 2016; section 4), repeated.
//!
//! [`table_1`] is in memory; the figures are over veth, with the same sender as the Maglev
//! paper's figure 8.

pub mod figure_10;
pub mod figure_7;
pub mod figure_8;
pub mod figure_9;
pub mod lane;
pub mod ring_worker;
pub mod table_1;

use std::path::PathBuf;

use crate::veth::{self, Load, Net, Place, Service};

/// The program that most of them run.
#[derive(Debug, Clone, clap::Args)]
pub struct Forwarder {
    /// The forwarder
    #[arg(long = "forwarder", default_value = "bin/guideway-forwarder")]
    pub program: PathBuf,
}

impl Forwarder {
    /// Starts it with one worker behind a cable of its own.
    fn start(&self, name: &str, load: &Load) -> Result<Place, String> {
        let net = Net::new(name, 1)?;
        let plan = Service::Multipath.plan("DRIVER_AF_XDP", 0);
        let running = veth::forwarder(&self.program, &net.tested, &plan)?;
        Place::new(running, net, load)
    }
}
