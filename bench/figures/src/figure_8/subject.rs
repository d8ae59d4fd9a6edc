//! The programs under test: the forwarder with either driver, and the reflector, which only
//! sends frames back.

use super::Options;
use crate::veth::{self, Load, Net, Place, Running, Service};

/// What runs at the far end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// The forwarder, through the kernel's packet sockets.
    AfPacket,
    /// The forwarder, past the kernel's stack.
    AfXdp,
    /// The reflector, past the kernel's stack.
    Reflector,
    /// The forwarder, whose kernel flow cache sends, in the driver.
    KernelCache,
    /// The same in traffic control.
    PacketCache,
    /// An XDP program that pushes a header and sends back.
    XdpReflector,
    /// The same program in traffic control.
    TcReflector,
}

impl Subject {
    pub const ALL: [Subject; 7] = [
        Subject::AfXdp,
        Subject::Reflector,
        Subject::AfPacket,
        Subject::KernelCache,
        Subject::PacketCache,
        Subject::XdpReflector,
        Subject::TcReflector,
    ];

    /// True if packets go past user space once their flows are known.
    pub fn has_cache(self) -> bool {
        matches!(self, Subject::KernelCache | Subject::PacketCache)
    }

    pub fn name(self) -> &'static str {
        match self {
            Subject::AfPacket => "forwarder, af_packet",
            Subject::AfXdp => "forwarder, af_xdp",
            Subject::Reflector => "bare reflector, af_xdp",
            Subject::KernelCache => "forwarder, kernel cache",
            Subject::PacketCache => "forwarder, af_packet, kernel cache",
            Subject::XdpReflector => "bare reflector, xdp",
            Subject::TcReflector => "bare reflector, tc",
        }
    }

    /// For names of namespaces.
    pub fn letter(self) -> &'static str {
        match self {
            Subject::AfPacket => "p",
            Subject::AfXdp => "x",
            Subject::Reflector => "r",
            Subject::KernelCache => "c",
            Subject::PacketCache => "t",
            Subject::XdpReflector => "k",
            Subject::TcReflector => "b",
        }
    }

    /// It with a cable of its own, on which packets like those of `load` come back.
    pub fn place(
        self,
        options: &Options,
        figure: &str,
        workers: u16,
        load: &Load,
    ) -> Result<Place, String> {
        let net = Net::new(&format!("{figure}{}-{workers}", self.letter()), workers)?;
        let running = self.start(options, &net, workers)?;
        Place::new(running, net, load)
    }

    /// Starts it with a worker for each of the cable's queues.
    fn start(self, options: &Options, net: &Net, workers: u16) -> Result<Running, String> {
        let by = |service: Service, driver, queues| {
            veth::forwarder(&options.forwarder, &net.tested, &service.plan(driver, queues))
        };
        let reflector = &options.reflector;
        match self {
            Subject::AfPacket => by(Service::Tracked, "DRIVER_AF_PACKET", workers),
            Subject::PacketCache => by(Service::Cached, "DRIVER_AF_PACKET", workers),
            Subject::AfXdp => by(Service::Tracked, "DRIVER_AF_XDP", 0),
            Subject::Reflector => veth::reflector(reflector, net),
            Subject::XdpReflector => veth::kernel_reflector(reflector, net, "xdp"),
            Subject::TcReflector => veth::kernel_reflector(reflector, net, "tc"),
            Subject::KernelCache => {
                let _program = veth::sender_program(reflector, net)?;
                by(Service::Cached, "DRIVER_AF_XDP", 0)
            }
        }
    }
}
