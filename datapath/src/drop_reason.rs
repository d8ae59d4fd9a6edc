//! Why a packet was dropped. Metric labels, `guideway show drops` and `docs/counters.md` are
//! made from this list.

use wire::ParseError;

macro_rules! drop_reasons {
    ($($variant:ident $name:literal $meaning:literal $cause:literal)*) => {
        /// Why a packet was dropped.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum DropReason {
            $(#[doc = $meaning] $variant,)*
        }

        impl DropReason {
            /// Every reason there is.
            pub const ALL: &'static [DropReason] = &[$(DropReason::$variant,)*];

            /// The name in metrics, counters and journeys.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(DropReason::$variant => $name,)* }
            }

            /// What it means, one sentence.
            #[must_use]
            pub fn meaning(self) -> &'static str {
                match self { $(DropReason::$variant => $meaning,)* }
            }

            /// What usually causes it, and what to do.
            #[must_use]
            pub fn usual_cause(self) -> &'static str {
                match self { $(DropReason::$variant => $cause,)* }
            }
        }
    };
}

drop_reasons! {
    Truncated "truncated"
        "The capture holds less of the frame than was on the wire."
        "A capture taken with a snapshot length; take it again with `-s 0`."
    FrameTooLong "frame_too_long"
        "The frame is longer than a chunk of packet memory holds."
        "Receive offloads (GRO, LRO) on the interface, or an MTU above 1,778; turn them off."
    EthernetHeader "ethernet_header"
        "The frame is shorter than an Ethernet header."
        "A broken sender or cable."
    IpVersion "ip_version"
        "The IP version is not the one that the Ethernet type promises."
        "A broken sender, or a scan."
    IpHeader "ip_header"
        "The IP header is cut off, or its own length is impossible."
        "A broken sender, or a scan."
    IpLength "ip_length"
        "The IP length is smaller than the headers, or larger than the frame."
        "A broken sender, or a scan."
    IpChecksum "ip_checksum"
        "The checksum of the IPv4 header is wrong."
        "A broken sender or memory on the way."
    IpOptions "ip_options"
        "An IPv4 option has an impossible length."
        "A broken sender, or a scan."
    IpExtension "ip_extension"
        "An IPv6 extension header is malformed or out of place."
        "A broken sender, or a scan."
    TransportHeader "transport_header"
        "The TCP, UDP or ICMP header is cut off, or its length fields are wrong."
        "A broken sender, or a scan."
    NoService "no_service"
        "The address is a VIP, but no service has this protocol and port."
        "A scan, or a port missing in the config; `guideway show services` lists them."
    Fragment "fragment"
        "A fragment that cannot be followed: its address does not take fragments, or it is ICMP."
        "Datagrams larger than the path MTU to a service without `fragments: true`."
    FragmentBuffer "fragment_buffer"
        "A fragment came before its datagram's first one, and its share of the buffer was full."
        "A flood of fragments; `guideway_fragments_total` says how many are held and expire."
    TunnelFragment "tunnel_fragment"
        "A fragment of a tunnelled packet: tunnels are taken whole only."
        "An encapsulator whose link toward here is too narrow for what it adds; widen it, or have it lower the MTU inside."
    UntrustedTunnelSource "untrusted_tunnel_source"
        "A tunnelled packet whose sender is neither a peer nor an encapsulator."
        "A machine missing under `peers` or `encapsulators`, or forged packets."
    TunnelHeader "tunnel_header"
        "The tunnel header of a packet from a peer or encapsulator is malformed or has fields that are not understood."
        "An encapsulator with a wrong checksum or source routing in GRE, or a peer of another version."
    Recursion "recursion"
        "A tunnelled packet that permits no further encapsulation."
        "Machines that name each other as peers but run different versions, or a loop."
    CeOnNotEct "ce_on_not_ect"
        "The tunnel header is marked CE (congestion experienced), and the packet inside is not ECN-capable (RFC 6040)."
        "A congested link between peers."
    IcmpCopyRedundant "icmp_copy_redundant"
        "A peer's copy of an ICMP error that the peer has delivered itself."
        "Normal: every machine gets a copy, at most one of them needs it."
    Icmp "icmp"
        "An ICMP message to a VIP of a kind that is not forwarded."
        "Redirects, timestamps, or an error whose quoted packet is not ours."
    MartianSource "martian_source"
        "An echo request from an address that no host has: multicast, broadcast, loopback, unspecified, reserved, or its own destination."
        "Forged packets."
    SourceRoute "source_route"
        "An echo request with a source route (IPv4 option, or IPv6 routing header): answers go along none."
        "A scan; networks drop source routes by default (RFC 7126, RFC 5095)."
    EchoLimit "echo_limit"
        "An echo request to a VIP beyond what is answered: 1000 a second, shared out by source network."
        "A flood of pings; each source network keeps a share of its own."
    NoBackend "no_backend"
        "The service has no backend that takes new connections."
        "Every backend is down, draining or disabled; `guideway show backends` says why. Where other clusters take over (`spill`), none of their prefixes has the packet's family."
    NoNeighbour "no_neighbour"
        "The next hop to the backend is not known."
        "No route to the backend, or no answer to ARP or neighbour discovery from the next hop."
    TooBig "too_big"
        "The packet with its outer header is larger than the egress MTU."
        "The fabric's MTU is not larger than the clients'; raise it, or lower advmss on the backends' routes."
    HopLimit "hop_limit"
        "The packet's TTL or hop limit is 1, and its service's `encap: l2` lowers it."
        "Machines that send packets on to each other, or a client that traces the route."
    WorkerFull "worker_full"
        "The ring to every worker was full (`steering: software`)."
        "More arrives than the workers can forward; use `steering: rss`, or a machine with more cores."
    SlowPathFull "slow_path_full"
        "The ring from this worker to the slow path was full."
        "A flood of ICMP errors or echo requests to VIPs."
    TxFull "tx_full"
        "The transmit ring of the egress interface was full."
        "The link or the NIC is slower than what arrives."
    NotPassed "not_passed"
        "Not for a VIP, and there is no TAP to hand it to the kernel."
        "No /dev/net/tun; `guideway doctor` and the forwarder's log say why."
    PassFull "pass_full"
        "Not for a VIP, and the queue to the kernel was full."
        "A flood to addresses inside a VIP prefix that are no VIP."
}

impl DropReason {
    /// How many there are.
    pub const COUNT: usize = DropReason::ALL.len();

    /// As an index of arrays of [`DropReason::COUNT`].
    #[inline]
    #[must_use]
    pub fn index(self) -> usize {
        self as usize
    }
}

impl From<ParseError> for DropReason {
    fn from(error: ParseError) -> DropReason {
        match error {
            ParseError::EthernetHeader => DropReason::EthernetHeader,
            ParseError::IpVersion => DropReason::IpVersion,
            ParseError::IpHeader => DropReason::IpHeader,
            ParseError::IpLength => DropReason::IpLength,
            ParseError::IpChecksum => DropReason::IpChecksum,
            ParseError::IpOptions => DropReason::IpOptions,
            ParseError::IpExtension => DropReason::IpExtension,
            ParseError::TransportHeader => DropReason::TransportHeader,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_are_those_of_the_list_and_names_differ() {
        for (index, reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(reason.index(), index);
        }
        let names: std::collections::BTreeSet<_> =
            DropReason::ALL.iter().map(|reason| reason.name()).collect();
        assert_eq!(names.len(), DropReason::COUNT);
    }
}
