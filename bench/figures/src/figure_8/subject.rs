//! Who is under test: the forwarder by either driver, and the reflector that
//! does nothing but send back.

use super::Options;
use crate::veth::{self, Net, Running, Service};

/// What runs at the far end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// The forwarder, through the kernel's packet sockets.
    AfPacket,
    /// The forwarder, past the kernel's stack.
    AfXdp,
    /// The reflector, past the kernel's stack.
    Reflector,
}

impl Subject {
    pub const ALL: [Subject; 3] = [Subject::AfXdp, Subject::Reflector, Subject::AfPacket];

    pub fn name(self) -> &'static str {
        match self {
            Subject::AfPacket => "forwarder, af_packet",
            Subject::AfXdp => "forwarder, af_xdp",
            Subject::Reflector => "bare reflector, af_xdp",
        }
    }

    /// For names of namespaces.
    pub fn letter(self) -> &'static str {
        match self {
            Subject::AfPacket => "p",
            Subject::AfXdp => "x",
            Subject::Reflector => "r",
        }
    }

    /// Starts it with a worker for each of the cable's queues.
    pub fn start(self, options: &Options, net: &Net, workers: u16) -> Result<Running, String> {
        let forwarder = |driver, queues| {
            veth::forwarder(&options.forwarder, net, &Service::Tracked.plan(driver, queues))
        };
        match self {
            Subject::AfPacket => forwarder("DRIVER_AF_PACKET", workers),
            Subject::AfXdp => forwarder("DRIVER_AF_XDP", 0),
            Subject::Reflector => veth::reflector(&options.reflector, net),
        }
    }
}
