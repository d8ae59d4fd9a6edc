use std::net::IpAddr;

use datapath::{FlowHash, Secret};
use wire::{Family, Protocol, ip};

use super::*;
use crate::responses::{Counted, Sockets};

fn keys() -> Keys {
    // Of the secret below: `vectors/agent_messages.json` has both.
    let bucket = [
        0xf6, 0xdc, 0x76, 0x77, 0xc4, 0x08, 0x1e, 0x9a, 0x30, 0xa8, 0x54, 0xdb, 0x2b, 0x7a, 0x09,
        0x73,
    ];
    Keys { agent: "web-1".to_string(), id: [1; 8], message: [2; 32], bucket }
}

const SECRET: &[u8] = b"0123456789abcdef";

fn vip(address: &str, ports: &[u32]) -> plan_proto::Vip {
    let ports = ports.iter().map(|port| plan_proto::PortRange { first: *port, last: *port });
    plan_proto::Vip {
        target: Some(plan_proto::vip::Target::Address(address.to_string())),
        ports: ports.collect(),
        protocol: plan_proto::Protocol::Tcp.into(),
    }
}

/// A stateful service, and one by flow and one by client.
fn services() -> proto::Services {
    let service = |name: &str, vips, buckets, affinity: plan_proto::Affinity| proto::Service {
        name: name.to_string(),
        vips,
        buckets,
        affinity: affinity.into(),
    };
    proto::Services {
        prefix_groups: Vec::new(),
        services: vec![
            service("mail", vec![vip("203.0.113.10", &[25])], 0, plan_proto::Affinity::Flow),
            service(
                "web",
                vec![vip("203.0.113.10", &[80]), vip("2001:db8:a::10", &[80])],
                4096,
                plan_proto::Affinity::Flow,
            ),
            service("rest", vec![vip("203.0.113.10", &[])], 256, plan_proto::Affinity::Client),
        ],
    }
}

fn counting() -> Counting {
    Counting::new(&keys(), 7, &services().encode_to_vec()).unwrap()
}

fn flow(client: &str, source_port: u16, vip: &str, destination_port: u16) -> FlowKey {
    let bits = |text: &str| ip::address_bits(text.parse().unwrap());
    FlowKey {
        family: Family::of(vip.parse::<IpAddr>().unwrap()),
        protocol: Protocol::TCP,
        source: bits(client),
        destination: bits(vip),
        source_port,
        destination_port,
    }
}

/// What the forwarder computes from the secret itself.
fn bucket_of(service: usize, flow: &FlowKey) -> u32 {
    let plan = Planner::default().plan(plan_of(services())).unwrap();
    let hash = FlowHash::new(&Secret::from_file_content(SECRET).unwrap());
    let service = plan.services().nth(service).unwrap();
    let selector = hash.selector(service, hash.flow(flow), || *flow);
    let buckets = if service.name == "web" { 4096 } else { 256 };
    (((selector >> 32) * buckets) >> 32) as u32
}

#[test]
fn connections_are_counted_in_the_forwarders_buckets() {
    let flows = [
        flow("192.0.2.1", 40000, "203.0.113.10", 80),
        flow("192.0.2.1", 40001, "203.0.113.10", 80),
        flow("2001:db8:c::7", 40000, "2001:db8:a::10", 80),
        flow("192.0.2.1", 40000, "203.0.113.10", 81),
        flow("192.0.2.1", 40001, "203.0.113.10", 81),
        flow("192.0.2.1", 40000, "203.0.113.10", 25),
        flow("192.0.2.1", 40000, "10.1.0.11", 22),
    ];
    let mut expected = Counts::new();
    for (service, flow) in
        [(1, flows[0]), (1, flows[1]), (1, flows[2]), (2, flows[3]), (2, flows[4])]
    {
        let buckets = expected.entry(service).or_default();
        *buckets.entry(bucket_of(service as usize, &flow)).or_default() += 1;
    }
    assert_eq!(expected[&2].len(), 1, "of one client in one bucket");
    assert_eq!(counting().count(&flows.map(|flow| (flow, None))), (expected, 5));
}

/// Where packets with timestamps go, and those without.
#[test]
fn a_connection_with_bits_is_in_the_buckets_of_both() {
    let flow = flow("192.0.2.1", 40000, "203.0.113.10", 80);
    let own = bucket_of(1, &flow);
    for (bits, expected) in [
        (own as u16 ^ 1, vec![own, own ^ 1]),
        (own as u16 ^ 1 | 4096, vec![own, own ^ 1]),
        (own as u16, vec![own]),
    ] {
        let mut expected: Vec<(u32, u32)> = expected.iter().map(|bucket| (*bucket, 1)).collect();
        expected.sort();
        let (counts, connections) = counting().count(&[(flow, Some(bits))]);
        assert_eq!(counts[&1].clone().into_iter().collect::<Vec<_>>(), expected);
        assert_eq!(connections, 1);
    }
}

#[test]
fn all_counts_are_in_the_parts_and_each_part_fits() {
    let counting = counting();
    let web = (0..4096).map(|bucket| (bucket, 1 + bucket % 300)).collect();
    let rest = [(0, 1), (255, u32::MAX)].into();
    let counts = Counts::from([(1, web), (2, rest)]);
    let accepts: Vec<[u8; 4]> = (0..500u32).map(u32::to_be_bytes).collect();
    let own = vec![[1; 4]];
    let counted = Some(Duration::from_millis(700));
    let mut times = Counted { resets: 9, ..Counted::default() };
    (times.classes[4], times.classes[10]) = (990, 10);
    let sockets = Sockets { connections: 212, accept_queue: 3, accept_queue_max: 128 };
    let answers = Some(Latest { counted: times, open: 1.25, sockets });
    let said = Said { serves: true, counted, vips_lacking: 2, answers, own, accepts };
    let bodies = counting.bodies(&said, &counts);
    assert!(bodies.len() > 1);
    let (mut read, mut accepts) = (Counts::new(), Vec::new());
    for (at, body) in bodies.iter().enumerate() {
        assert!(body.len() <= datagram::body_bytes_max(&keys()), "{}", body.len());
        let part = proto::StatePart::decode(body.as_slice()).unwrap();
        assert_eq!(part.services, 7);
        let standing = proto::Standing {
            serves: true,
            counted_ms_ago: Some(700),
            own: vec![1; 4],
            vips_lacking: 2,
            answers: Some(proto::Answers {
                measured: 1000,
                p50_us: 770,
                p99_us: 1024,
                open_thousandths: 1250,
                resets: 9,
                connections: 212,
                accept_queue: 3,
            }),
        };
        assert_eq!(part.standing, (at == 0).then_some(standing));
        accepts.extend_from_slice(part.accepts.as_chunks().0);
        for service in part.counts {
            let mut bucket = 0;
            for (step, sockets) in service.buckets.iter().zip(&service.sockets) {
                bucket += step;
                read.entry(service.service).or_default().insert(bucket, *sockets);
            }
        }
    }
    assert_eq!((read, accepts), (counts, said.accepts));
}

#[test]
fn a_service_without_room_is_said_to_be_uncounted() {
    let counting = counting();
    let full: BTreeMap<u32, u32> = (0..8192).map(|bucket| (bucket, u32::MAX)).collect();
    let counts: Counts = (0..40).map(|service| (service, full.clone())).collect();
    let bodies = counting.bodies(&Said::default(), &counts);
    assert!(bodies.len() <= datagram::PARTS_MAX);
    let mut uncounted = 0;
    for body in &bodies {
        assert!(body.len() <= datagram::body_bytes_max(&keys()), "{}", body.len());
        let part = proto::StatePart::decode(body.as_slice()).unwrap();
        uncounted += part.counts.iter().filter(|service| service.uncounted).count();
    }
    assert!((1..40).contains(&uncounted), "{uncounted}");
}

#[test]
fn without_connections_there_is_one_part() {
    let said = Said { counted: Some(Duration::ZERO), ..Said::default() };
    let bodies = counting().bodies(&said, &Counts::new());
    assert_eq!(bodies, said.bodies(7));
    assert_ne!(bodies, counting().uncounted(&Said::default()), "nothing was counted");
}

/// As the controllers' code has it (controller/config).
#[test]
fn an_agents_address_is_the_beginning_of_its_digest() {
    assert_eq!(brief("10.1.0.12".parse().unwrap()), brief("::ffff:10.1.0.12".parse().unwrap()));
    assert_eq!(brief("10.1.0.12".parse().unwrap()), [0x32, 0x07, 0x06, 0xd5]);
}

#[test]
fn services_that_no_forwarder_would_take_are_refused() {
    let mut wrong = services();
    wrong.services[1].buckets = 1000;
    assert!(Counting::new(&keys(), 7, &wrong.encode_to_vec()).is_err());
    assert!(Counting::new(&keys(), 7, b"\xff\xff").is_err());
}

/// Flows of UDP count as connections do, and not for a service of TCP at the same port.
#[test]
fn flows_of_udp_are_in_the_buckets_of_their_service() {
    let mut services = services();
    let mut dns = vip("203.0.113.10", &[80]);
    dns.protocol = plan_proto::Protocol::Udp.into();
    services.services.push(proto::Service {
        name: "dns".to_string(),
        vips: vec![dns],
        buckets: 512,
        affinity: plan_proto::Affinity::Flow.into(),
    });
    let counting = Counting::new(&keys(), 7, &services.encode_to_vec()).unwrap();
    let of_tcp = flow("198.51.100.1", 5000, "203.0.113.10", 80);
    let of_udp = FlowKey { protocol: Protocol::UDP, ..of_tcp };
    let (counts, _) = counting.count(&[of_tcp, of_udp, of_udp].map(|flow| (flow, None)));
    let sums: Vec<(u32, u32)> =
        counts.iter().map(|(service, buckets)| (*service, buckets.values().sum())).collect();
    assert_eq!(sums, [(1, 1), (3, 2)]);
}

/// What `doctor` looks for listeners of.
#[test]
fn addresses_and_ports_of_services_are_known() {
    let served: Vec<String> = counting()
        .served()
        .iter()
        .map(|one| format!("{} {} {}", one.address, one.protocol, one.port))
        .collect();
    assert_eq!(served, ["203.0.113.10 tcp 25", "203.0.113.10 tcp 80", "2001:db8:a::10 tcp 80"]);
}
