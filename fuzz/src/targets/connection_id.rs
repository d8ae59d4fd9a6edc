//! UDP datagrams with any content as QUIC, with connection ids in every layout: no panic,
//! nothing read beyond the id, and a connection id that is not ours names no backend.

use std::sync::LazyLock;

use datapath::Secret;
use datapath::connection_id::ConnectionIdKeys;
use plan::quic_lb::CONFIG_IDS;
use plan::{Plan, Planner, proto};
use wire::quic::ConnectionId;

static KEYS: LazyLock<ConnectionIdKeys> =
    LazyLock::new(|| ConnectionIdKeys::new(&Secret::derived("fuzz")));
static PLANS: LazyLock<Vec<Plan>> = LazyLock::new(|| {
    let layouts: Vec<_> = (4..=8)
        .flat_map(|server_id_bytes| {
            (4..=19 - server_id_bytes).map(move |nonce| (server_id_bytes, nonce))
        })
        .flat_map(|(server_id_bytes, nonce_bytes)| {
            [false, true].map(|encrypted| (encrypted, server_id_bytes, nonce_bytes))
        })
        .collect();
    layouts.chunks(CONFIG_IDS).map(plan).collect()
});

fn plan(layouts: &[(bool, u32, u32)]) -> Plan {
    let config = |(id, (encrypted, server_id_bytes, nonce_bytes)): (usize, &(bool, u32, u32))| {
        proto::QuicLbConfig {
            id: id as u32,
            encrypted: *encrypted,
            server_id_bytes: *server_id_bytes,
            nonce_bytes: *nonce_bytes,
        }
    };
    let server = proto::QuicServer { backend: "b".into(), server_id: "6262626262626262".into() };
    let member =
        proto::Member { backend: "b".into(), weight: 1, state: proto::BackendState::Active as i32 };
    let service = proto::Service {
        name: "quic".into(),
        group: "quic".into(),
        encap: proto::Encap::Geneve as i32,
        mode: proto::Mode::Stateless as i32,
        bucket_map: Some(proto::BucketMap {
            generation: 1,
            backends: vec!["b".into()],
            by_bucket: vec![0; 256],
            moves: Vec::new(),
        }),
        quic_lb: Some(proto::QuicLb {
            configs: layouts.iter().enumerate().map(config).collect(),
            servers: vec![server],
        }),
        vips: vec![proto::Vip {
            target: Some(proto::vip::Target::Address("203.0.113.1".into())),
            ports: vec![proto::PortRange { first: 443, last: 443 }],
            protocol: proto::Protocol::Udp as i32,
        }],
        ..Default::default()
    };
    let message = proto::Plan {
        generation: 1,
        machine: Some(proto::Machine {
            name: "lb".into(),
            addresses: vec!["10.0.0.1".into()],
            ..Default::default()
        }),
        backends: vec![proto::Backend { name: "b".into(), address: "10.1.0.1".into() }],
        groups: vec![proto::Group {
            name: "quic".into(),
            members: vec![member],
            ..Default::default()
        }],
        services: vec![service],
        ..Default::default()
    };
    Planner::default().plan(message).expect("every layout is allowed")
}

/// Reads the input as a layout, and a packet behind it.
pub fn run(input: &[u8]) {
    let Some((which, payload)) = input.split_first() else { return };
    let plan = &PLANS[usize::from(*which) % PLANS.len()];
    let quic_lb = plan.services().next().and_then(|service| service.quic_lb.as_ref());
    let quic_lb = quic_lb.expect("the plan has it");
    let Some(id) = ConnectionId::parse(payload) else { return };
    let id = id.bytes();
    let named = KEYS.backend(quic_lb, id);
    let config = id.first().and_then(|first| quic_lb.config(first >> 5));
    let Some((config, of_config)) = config.and_then(|c| Some((c, id.get(..=c.bytes())?))) else {
        assert!(named.is_err(), "{id:02x?} is no connection id");
        return;
    };
    assert_eq!(named, KEYS.backend(quic_lb, of_config), "what follows counts for nothing");
    let server_id = &of_config[1..][..usize::from(config.server_id_bytes)];
    if !config.encrypted {
        assert_eq!(named.is_ok(), server_id.iter().all(|byte| *byte == b'b'));
    }
}
