//! Small plans in which every byte of the input is a choice. The addresses are those of the
//! golden folders, so that their packets find services here.

use plan::proto::{self, BackendState, Encap, PortRange, PrefixSuffix, Vip, vip::Target};

use crate::Bytes;

/// Egress MTUs worth trying: too small for anything, the minima of the
/// standards, the usual one, none.
pub const MTUS: [u16; 8] = [60, 100, 576, 1280, 1324, 1500, 1600, 65535];

const BACKENDS: [(&str, &str); 4] = [
    ("b1", "10.1.0.11"),
    ("b2", "10.1.0.12"),
    ("b3", "2001:db8:0:2::11"),
    ("b4", "2001:db8:0:2::12"),
];

/// A plan of three services, of which `choices` says the rest. It is valid.
pub fn plan(choices: &mut Bytes<'_>, generation: u64) -> proto::Plan {
    let flags = choices.byte();
    let peers = flags & 1 != 0;
    let plan = proto::Plan {
        generation,
        cluster: Some(proto::Cluster { name: "fuzz".into(), key_id: "derived".into() }),
        machine: Some(proto::Machine {
            name: "lb-1".into(),
            addresses: vec!["10.0.0.1".into(), "2001:db8:0:1::1".into()],
            routers: Vec::new(),
        }),
        peers: if peers {
            vec![peer(2, flags & 2 != 0), peer(3, flags & 4 != 0)]
        } else {
            Vec::new()
        },
        encapsulators: if flags & 8 != 0 {
            vec!["192.0.2.0/24".into(), "2001:db8:c::/48".into()]
        } else {
            Vec::new()
        },
        tunnel: Some(proto::Tunnel {
            udp6_checksum: flags & 16 != 0,
            source_prefix: if flags & 32 != 0 { "10.0.64.0/20".into() } else { String::new() },
            mtu: 0,
        }),
        prefix_groups: vec![proto::PrefixGroup {
            name: "g".into(),
            prefixes: vec![
                "198.51.100.0/24".into(),
                "203.0.112.0/24".into(),
                "2001:db8:a::/64".into(),
            ],
        }],
        backends: BACKENDS
            .iter()
            .map(|(name, address)| proto::Backend {
                name: (*name).into(),
                address: (*address).into(),
            })
            .collect(),
        ..Default::default()
    };
    let vips = [
        ("exact", vec![exact("203.0.113.10", &[80, 443]), exact("2001:db8:f::10", &[80, 443])]),
        (
            "all",
            vec![
                exact("203.0.113.44", &[]),
                exact("2001:db8:f::66", &[]),
                exact("203.0.113.46", &[]),
            ],
        ),
        ("suffix", vec![suffix("0.0.0.10"), suffix("::10")]),
    ];
    let (services, groups) =
        vips.into_iter().map(|(name, vips)| service(name, vips, choices)).unzip();
    proto::Plan { services, groups, ..plan }
}

fn peer(number: u8, healthy: bool) -> proto::Peer {
    let addresses = vec![format!("10.0.0.{number}"), format!("2001:db8:0:1::{number}")];
    proto::Peer { name: format!("lb-{number}"), addresses, healthy }
}

/// A service and a group of its own, which it names unless the choices say
/// that it shares the first service's.
fn service(name: &str, vips: Vec<Vip>, choices: &mut Bytes<'_>) -> (proto::Service, proto::Group) {
    const ENCAPS: [Encap; 5] = [Encap::Gre, Encap::Ipip, Encap::Gue, Encap::Geneve, Encap::L2];
    let (how, rules) = (choices.byte(), choices.byte());
    let states = u16::from_le_bytes([choices.byte(), choices.byte()]);
    let spill = name == "suffix" && rules & 128 != 0;
    let members = BACKENDS
        .iter()
        .enumerate()
        .map(|(index, (name, _))| member(name, states >> (index * 4)))
        .collect();
    let encap = ENCAPS[usize::from(how) % ENCAPS.len()];
    let is_stateless = encap == Encap::Geneve && how >> 3 & 3 == 3;
    let has_second_chance = encap == Encap::Geneve && !is_stateless;
    let selects_by = if is_stateless { how >> 5 & 3 } else { 0 };
    let has_keys = selects_by == 2;
    let service = proto::Service {
        second_chance: has_second_chance
            .then(|| proto::SecondChance { packets_per_second: 1 + u64::from(rules) }),
        mode: if is_stateless { proto::Mode::Stateless } else { proto::Mode::Stateful } as i32,
        bucket_map: is_stateless.then(|| bucket_map(states)),
        mptcp: has_keys.then(proto::Mptcp::default),
        quic_lb: (selects_by == 3).then(|| quic_lb(rules)),
        name: name.into(),
        vips,
        group: if rules & 64 != 0 { "exact".into() } else { name.into() },
        encap: encap as i32,
        affinity: if has_keys { 0 } else { i32::from(how >> 2 & 1) },
        table_size: [5, 5, 7, 11][usize::from(how >> 3 & 3)],
        connections_quota: u64::from(how >> 5 & 3),
        dscp: (how & 128 != 0).then_some(46),
        on_down: i32::from(rules & 1),
        when_none: i32::from(rules >> 1 & 3).min(2),
        unmatched: i32::from(rules >> 3 & 1),
        fragments: i32::from(rules >> 4 & 3).min(2),
        spill: if spill {
            vec![proto::Spill {
                prefix_group: "g".into(),
                prefix: "203.0.112.0/24".into(),
                down: rules & 64 != 0,
            }]
        } else {
            Vec::new()
        },
        ..Default::default()
    };
    (service, proto::Group { name: name.into(), members, earlier: earlier(states) })
}

/// Buckets of all backends but one or two, and of none; every other bucket has an open move
/// that names one to three others.
fn bucket_map(states: u16) -> proto::BucketMap {
    const BUCKETS: u32 = 256;
    let has_none = states & 0xf00 == 0xf00;
    let in_charge = |bucket: u32| bucket % (2 + u32::from(states & 1));
    let others = |bucket: u32| {
        let count = 1 + (bucket / 2 + u32::from(states >> 4)) % 3;
        (1..=count).map(|step| (in_charge(bucket) + step) % BACKENDS.len() as u32).collect()
    };
    let buckets = 0..if has_none { 0 } else { BUCKETS };
    proto::BucketMap {
        generation: 1 + u64::from(states),
        backends: BACKENDS.iter().rev().map(|(name, _)| (*name).into()).collect(),
        by_bucket: buckets.clone().map(in_charge).collect(),
        moves: buckets
            .step_by(2)
            .map(|bucket| proto::OpenMove { bucket, others: others(bucket) })
            .collect(),
    }
}

/// Plain and encrypted connection ids. Server ids are short, so that some inputs have one.
fn quic_lb(rules: u8) -> proto::QuicLb {
    let config = |id: u32| proto::QuicLbConfig {
        id,
        encrypted: (u32::from(rules) + id) & 1 != 0,
        server_id_bytes: 4,
        nonce_bytes: 4 + (u32::from(rules) >> 1 & 7),
    };
    let server = |(at, (name, _)): (usize, &(&str, &str))| proto::QuicServer {
        backend: (*name).into(),
        server_id: format!("0000000{at}00000000"),
    };
    proto::QuicLb {
        configs: (0..2).map(config).collect(),
        servers: BACKENDS.iter().enumerate().map(server).collect(),
    }
}

/// Tables of other backends, of none, and of one that the plan does not have.
fn earlier(states: u16) -> Vec<proto::EarlierTable> {
    let names = || BACKENDS.iter().map(|(name, _)| *name).chain(["gone"]);
    let member = |at: usize, backend: &str| proto::EarlierMember {
        backend: backend.into(),
        weight: u32::from(states >> at & 1) * (1 + at as u32),
    };
    let table = |shift: usize| proto::EarlierTable {
        differences: names().enumerate().map(|(at, name)| member(at + shift, name)).collect(),
    };
    (0..usize::from(states & 3)).map(|shift| table(shift * 4)).collect()
}

fn member(name: &str, choices: u16) -> proto::Member {
    const STATES: [BackendState; 4] =
        [BackendState::Active, BackendState::Draining, BackendState::Down, BackendState::Disabled];
    let weight = [1, 3, 0, 1000][usize::from(choices >> 2 & 3)];
    proto::Member { backend: name.into(), weight, state: STATES[usize::from(choices & 3)] as i32 }
}

fn exact(address: &str, ports: &[u32]) -> Vip {
    let ports = ports.iter().map(|port| PortRange { first: *port, last: *port }).collect();
    Vip { target: Some(Target::Address(address.into())), ports, ..Default::default() }
}

fn suffix(suffix: &str) -> Vip {
    let target = PrefixSuffix { prefix_group: "g".into(), suffix: suffix.into(), suffix_bits: 0 };
    Vip { target: Some(Target::PrefixSuffix(target)), ..Default::default() }
}
