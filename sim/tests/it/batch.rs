//! Compares the batched path with the one-packet path: verdicts, bytes, originated frames,
//! counters and connection tables are equal after every batch, including the slow path's
//! decisions, on random traffic over random plans. The traffic includes marked packets of the
//! tracer, and packets that must be fragmented. `BATCH_TEST_PACKETS=5000000` makes the run
//! longer; a failure names the seed, which `BATCH_TEST_SEED` repeats.

use std::sync::Arc;

use crate::common::{self, Random};
use datapath::multipath::Selection;
use datapath::trace::{MARK_BYTES, Mark, PACKET_BYTES, STALE_MS, sign};
use datapath::verdict::DeviceIndex;
use datapath::{NextHop, Secret, View};
use etherparse::{IpNumber, PacketBuilder};
use plan::{Planner, proto};
use sim::{LoadBalancer, OriginatedFrame, Path, Setup};
use wire::BATCH_MAX;

const SERVICES: u64 = 4;
const IDLE: u64 = 255;
const PEER: [u8; 4] = [10, 0, 0, 2];
const OWN: [u8; 4] = [10, 0, 0, 1];

fn backend(index: u64) -> proto::Backend {
    let address = if index.is_multiple_of(3) {
        format!("2001:db8:be::{index:x}")
    } else {
        format!("10.1.0.{index}")
    };
    proto::Backend { name: format!("b{index:02}"), address }
}

pub fn plan(random: &mut Random) -> proto::Plan {
    let backends = 1 + random.below(12);
    let idle_services = if random.one_in(3) { IDLE } else { 0 };
    let mut plan = proto::Plan {
        generation: 1,
        machine: Some(proto::Machine {
            name: "lb-1".into(),
            addresses: vec!["10.0.0.1".into(), "2001:db8::1".into()],
            routers: Vec::new(),
        }),
        peers: match random.one_in(2) {
            true => vec![proto::Peer {
                name: "lb-2".into(),
                addresses: vec!["10.0.0.2".into()],
                healthy: true,
            }],
            false => Vec::new(),
        },
        prefix_groups: vec![proto::PrefixGroup {
            name: "g".into(),
            prefixes: vec!["198.51.100.0/24".into(), "2001:db8:e::/64".into()],
        }],
        backends: (1..=backends).map(backend).collect(),
        groups: (0..SERVICES)
            .map(|index| group(random, index, backends))
            .chain([proto::Group { name: "none".into(), ..Default::default() }])
            .collect(),
        services: (0..SERVICES)
            .map(|index| service(random, index))
            .chain((0..idle_services).map(idle))
            .collect(),
        ..Default::default()
    };
    let proto::Plan { services, groups, .. } = &mut plan;
    for service in services {
        let group = groups.iter().find(|group| group.name == service.group);
        if random.one_in(3) {
            make_stateless(random, service, group.expect("it has one"));
        } else if random.one_in(2) {
            service.set_encap(proto::Encap::Geneve);
            let packets_per_second = random.pick(&[1, 20, 1000]);
            service.second_chance = Some(proto::SecondChance { packets_per_second });
        }
        let members = group.map_or(&[][..], |group| &group.members);
        if !members.is_empty() && random.one_in(2) {
            let member = random.below(members.len() as u64) as usize;
            let backend = members[member].backend.clone();
            service.join_ports = vec![proto::JoinPort { port: 53, backend }];
        }
    }
    plan
}

/// Of backends with other weights, of too few, and of some that are gone.
fn earlier_tables(random: &mut Random, backends: u64) -> Vec<proto::EarlierTable> {
    let table = |random: &mut Random| proto::EarlierTable {
        differences: (1..=backends + 2)
            .filter(|_| random.one_in(2))
            .collect::<Vec<_>>()
            .into_iter()
            .map(|index| proto::EarlierMember {
                backend: backend(index).name,
                weight: random.below(3) as u32,
            })
            .collect(),
    };
    (0..random.below(9)).map(|_| table(random)).collect()
}

/// With buckets of any members, or of none.
fn make_stateless(random: &mut Random, service: &mut proto::Service, group: &proto::Group) {
    let members = group.members.len() as u64;
    let buckets = if members == 0 || random.one_in(8) { 0 } else { 256 };
    let by_bucket: Vec<u32> = (0..buckets).map(|_| random.below(members) as u32).collect();
    let moves = (0..).zip(&by_bucket).filter(|_| members > 1 && random.one_in(4));
    let moves: Vec<(u32, u32)> = moves.map(|(bucket, in_charge)| (bucket, *in_charge)).collect();
    let open_move = |(bucket, in_charge)| {
        let others = 1 + random.below(3.min(members - 1)) as u32;
        let others = (1..=others).map(|other| (in_charge + other) % members as u32).collect();
        proto::OpenMove { bucket, others }
    };
    service.set_mode(proto::Mode::Stateless);
    service.set_encap(proto::Encap::Geneve);
    service.bucket_map = Some(proto::BucketMap {
        generation: 1,
        backends: group.members.iter().map(|member| member.backend.clone()).collect(),
        moves: moves.into_iter().map(open_move).collect(),
        by_bucket,
    });
    match random.below(4) {
        0 => {}
        1 => service.quic_lb = Some(quic_lb(random, group)),
        _ => {
            service.set_affinity(proto::Affinity::Flow);
            service.mptcp = Some(proto::Mptcp {});
        }
    }
}

/// Plain connection ids, and encrypted ones, which random ones are none of.
fn quic_lb(random: &mut Random, group: &proto::Group) -> proto::QuicLb {
    let mut config = |id, encrypted| proto::QuicLbConfig {
        id,
        encrypted,
        server_id_bytes: 4,
        nonce_bytes: 4 + random.below(10) as u32,
    };
    let server = |member: &proto::Member| proto::QuicServer {
        backend: member.backend.clone(),
        server_id: format!("{:0<16}", hex(&server_id(&member.backend))),
    };
    proto::QuicLb {
        configs: [(0, false), (1, true)].map(|(id, encrypted)| config(id, encrypted)).to_vec(),
        servers: group.members.iter().map(server).collect(),
    }
}

/// Of `b07`: its name and a byte.
fn server_id(backend: &str) -> [u8; 4] {
    let name = backend.as_bytes();
    [name[0], name[1], name[2], 9]
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Puts a QUIC header at the beginning of a datagram: of any backend that there may be, or
/// none.
fn put_quic(random: &mut Random, payload: &mut [u8]) {
    let config = random.pick(&[0, 0, 0, 0x20, 0x40, 0xe0]);
    let name = format!("b{:02}", random.below(14));
    let id = [[config].as_slice(), &server_id(&name), &[random.next() as u8; 15]].concat();
    let long = [0xc3, 0, 0, 0, 1, random.pick(&[20, 20, 5, 0, 255])];
    let header = if random.one_in(2) { &long[..] } else { &[0x43] };
    for (to, from) in payload.iter_mut().zip([header, &id].concat()) {
        *to = from;
    }
}

/// A service without traffic.
fn idle(index: u64) -> proto::Service {
    let mut vip = common::vip(&format!("192.0.2.{index}"));
    vip.ports = vec![proto::PortRange { first: 80, last: 80 }];
    vip.protocol = proto::Protocol::Tcp as i32;
    let (name, group) = (format!("idle-{index}"), "none".into());
    proto::Service { name, vips: vec![vip], group, ..Default::default() }
}

fn service(random: &mut Random, index: u64) -> proto::Service {
    let mut vips = match random.below(3) {
        0 => vec![suffix(format!("0.0.0.{index}")), suffix(format!("::{index:x}"))],
        _ => vec![
            common::vip(&format!("203.0.113.{index}")),
            common::vip(&format!("2001:db8:f::{index:x}")),
        ],
    };
    if random.one_in(4) {
        vips.remove(random.below(2) as usize);
    }
    let range = |first, last| proto::PortRange { first, last };
    for vip in &mut vips {
        vip.ports = match random.below(4) {
            0 => vec![range(80, 81), range(443, 443)],
            1 | 2 => vec![range(80, 80)],
            _ => continue,
        };
        vip.protocol = random.pick(&[proto::Protocol::Tcp, proto::Protocol::Udp]) as i32;
    }
    proto::Service {
        name: format!("s{index}"),
        vips,
        group: format!("g{}", random.below(SERVICES)),
        table_size: random.pick(&[251, 1009]),
        affinity: random.below(2) as i32,
        encap: random.below(4) as i32,
        connections_quota: random.pick(&[0, 0, 1, 5]),
        dscp: random.pick(&[None, None, Some(46)]),
        unmatched: random.below(2) as i32,
        on_down: random.below(2) as i32,
        fragments: random.below(3) as i32,
        ..Default::default()
    }
}

fn group(random: &mut Random, index: u64, backends: u64) -> proto::Group {
    let states = [
        proto::BackendState::Active,
        proto::BackendState::Active,
        proto::BackendState::Draining,
        proto::BackendState::Down,
    ];
    let members = (1..=backends).filter(|_| !random.one_in(4)).collect::<Vec<_>>();
    let members = members.into_iter().map(|index| {
        let state = random.pick(&states);
        let weight =
            if state == proto::BackendState::Draining { 0 } else { 1 + random.below(3) as u32 };
        proto::Member { backend: backend(index).name, weight, state: state as i32 }
    });
    let members = members.collect();
    proto::Group { name: format!("g{index}"), members, earlier: earlier_tables(random, backends) }
}

/// An address that ends so, under the prefixes of the group.
fn suffix(suffix: String) -> proto::Vip {
    let (prefix_group, suffix_bits) = ("g".into(), 0);
    let target = proto::PrefixSuffix { prefix_group, suffix, suffix_bits };
    proto::Vip { target: Some(proto::vip::Target::PrefixSuffix(target)), ..Default::default() }
}

/// A frame of some flow, now and then of a strange kind.
fn frame(random: &mut Random, now_ms: u32, fill: Fill) -> Vec<u8> {
    const PAYLOADS: [usize; 5] = [0, 1, 9, 100, 700];
    let inner = match fill {
        Fill::Mixed => {
            let payload_bytes = random.pick(&PAYLOADS);
            packet(random, payload_bytes)
        }
        Fill::Long => long(random),
    };
    match random.below(40) {
        0 => tunnelled(random, &inner),
        1 => arp(),
        2 => mangled(random, inner),
        3 => inner[..random.below(inner.len() as u64) as usize].to_vec(),
        4 => marked(random, now_ms),
        5 => {
            let inner = marked(random, now_ms);
            tunnelled(random, &inner)
        }
        _ => padded(inner),
    }
}

/// What a batch is full of.
#[derive(Clone, Copy)]
enum Fill {
    Mixed,
    /// Packets of full length that may be fragmented.
    Long,
}

fn long(random: &mut Random) -> Vec<u8> {
    let mut bytes = packet(random, 1500);
    if bytes[12] == 8 {
        bytes[20..22].fill(0);
        common::sum_v4(&mut bytes);
    }
    bytes
}

/// A packet that is traced; or that looks like one, stale, repeated or
/// forged.
fn marked(random: &mut Random, now_ms: u32) -> Vec<u8> {
    let whole_bytes = 14 + usize::from(PACKET_BYTES);
    let mut frame = packet(random, whole_bytes);
    // Headers differ in length: what is too much of the payload goes.
    set_packet_bytes(&mut frame, PACKET_BYTES);
    let Ok(Some(headers)) = wire::headers::parse(&frame) else { return frame };
    let mark = Mark {
        receiver: random.pick(&["192.0.2.99", "2001:db8::99"]).parse().unwrap(),
        port: 7777,
        nonce: random.below(1000),
    };
    let unix_ms = u64::from(now_ms) + random.pick(&[0, 0, 0, 2 * STALE_MS]);
    let mut bytes = sign(&secret().trace_key().unwrap(), &mark, unix_ms, &headers.key);
    bytes[MARK_BYTES - 1] ^= random.pick(&[0, 0, 0, 1]);
    frame[whole_bytes - MARK_BYTES..].copy_from_slice(&bytes);
    frame
}

/// Cuts the packet, and says so in its headers.
fn set_packet_bytes(frame: &mut Vec<u8>, packet_bytes: u16) {
    frame.truncate(14 + usize::from(packet_bytes));
    assert_eq!(frame.len(), 14 + usize::from(packet_bytes), "long enough to be cut");
    let is_v4 = frame[12] == 8;
    let header_bytes = if is_v4 { 20 } else { 40 };
    let protocol = if is_v4 { frame[23] } else { frame[20] };
    if is_v4 {
        frame[16..18].copy_from_slice(&packet_bytes.to_be_bytes());
        common::sum_v4(frame);
    } else {
        frame[18..20].copy_from_slice(&(packet_bytes - header_bytes).to_be_bytes());
    }
    if protocol == 17 {
        let length_at = 14 + usize::from(header_bytes) + 4;
        frame[length_at..length_at + 2]
            .copy_from_slice(&(packet_bytes - header_bytes).to_be_bytes());
    }
}

pub fn secret() -> Secret {
    Secret::from_file_content(b"0123456789abcdef0123456789abcdef").unwrap()
}

pub fn packet(random: &mut Random, payload_bytes: usize) -> Vec<u8> {
    let (client, service) = (random.below(6) as u8, random.below(SERVICES + 1) as u8);
    let (from, to) = (random.pick(&[1000u16, 1001, 1002]), random.pick(&[80u16, 81, 443, 53]));
    let mut payload = vec![7u8; payload_bytes];
    if random.one_in(2) {
        put_quic(random, &mut payload);
    }
    let ethernet = PacketBuilder::ethernet2([1; 6], [2; 6]);
    let by_suffix = random.one_in(3);
    let ip = if random.one_in(3) {
        let address = |net: u16, host: u8| {
            std::net::Ipv6Addr::new(0x2001, 0xdb8, net, 0, 0, 0, 0, host.into()).octets()
        };
        let net = if by_suffix { 0xe } else { 0xf };
        ethernet.ipv6(address(0xc, client), address(net, service), 60)
    } else {
        let [a, b, c] = if by_suffix { [198, 51, 100] } else { [203, 0, 113] };
        ethernet.ipv4([192, 0, 2, client], [a, b, c, service], 60)
    };
    let options = tcp_options(random);
    let mut bytes = Vec::new();
    match random.below(12) {
        0 => ip.icmpv4_echo_request(1, 2).write(&mut bytes, &payload).unwrap(),
        1..4 => ip.udp(from, to).write(&mut bytes, &payload).unwrap(),
        4 => ip.write(&mut bytes, IpNumber::GRE, &payload).unwrap(),
        5..8 => ip
            .tcp(from, to, 7, 1024)
            .syn()
            .options_raw(&options)
            .unwrap()
            .write(&mut bytes, &payload)
            .unwrap(),
        8 => ip
            .tcp(from, to, 7, 1024)
            .fin()
            .ack(1)
            .options_raw(&options)
            .unwrap()
            .write(&mut bytes, &payload)
            .unwrap(),
        9 => ip
            .tcp(from, to, 7, 1024)
            .rst()
            .options_raw(&options)
            .unwrap()
            .write(&mut bytes, &payload)
            .unwrap(),
        _ => ip
            .tcp(from, to, 7, 1024)
            .ack(1)
            .options_raw(&options)
            .unwrap()
            .write(&mut bytes, &payload)
            .unwrap(),
    }
    if bytes[12] == 8 {
        vary_v4(random, &mut bytes);
    }
    bytes
}

/// Those of Multipath TCP, timestamps, others, and what is none, up to forty bytes.
fn tcp_options(random: &mut Random) -> Vec<u8> {
    let mut options = Vec::new();
    for _ in 0..random.below(4) {
        let byte = random.next() as u8;
        let option: &[u8] = match random.below(13) {
            0 => &[30, 4, 0x01, 1],
            1 => &[30, 12, 0x00, 0x81, 1, 2, 3, 4, 5, 6, 7, byte],
            2 | 3 => &[30, 12, 0x10, 2, 0xc0, 0xa0, 0xfb, byte, 9, 9, 9, 9],
            4..7 => &[1, 1, 8, 10, 1, 1, 1, 1, 0, 0, 7, byte],
            7 => &[8, 10, 1, 1, 1, 1, 1, 1, 1, byte],
            8 => &[2, 4, 5, 0xb4],
            9 => &[30, byte % 16, byte],
            11 => &[30, 4, 0x10, byte],
            10 => &[byte],
            _ => &[1],
        };
        if options.len() + option.len() <= 40 {
            options.extend(option);
        }
    }
    options
}

/// Sometimes a fragment, sometimes without "do not fragment"; with the right
/// checksum.
fn vary_v4(random: &mut Random, bytes: &mut [u8]) {
    let flags: u16 = match random.below(12) {
        0 => 0x2000,
        1 => 0x2003,
        2 => 0x0005,
        3..6 => 0,
        _ => 0x4000,
    };
    bytes[15] = random.pick(&[0, 0x03, 0xb8]);
    bytes[20..22].copy_from_slice(&flags.to_be_bytes());
    common::sum_v4(bytes);
}

fn tunnelled(random: &mut Random, inner: &[u8]) -> Vec<u8> {
    let source = random.pick(&[PEER, PEER, [10, 0, 0, 3]]);
    let mut gre = vec![random.below(4) as u8, 0, inner[12], inner[13]];
    gre.extend_from_slice(&inner[14..]);
    let mut bytes = Vec::new();
    let ip = PacketBuilder::ethernet2([1; 6], [2; 6]).ipv4(source, OWN, 60);
    ip.write(&mut bytes, IpNumber::GRE, &gre).unwrap();
    bytes
}

fn arp() -> Vec<u8> {
    let mut bytes = vec![0; 60];
    bytes[12..14].copy_from_slice(&[8, 6]);
    bytes
}

fn mangled(random: &mut Random, mut bytes: Vec<u8>) -> Vec<u8> {
    let at = random.below(bytes.len().min(60) as u64) as usize;
    bytes[at] ^= 1 << random.below(8);
    bytes
}

fn padded(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.resize(bytes.len().max(60), 0);
    bytes
}

/// A load balancer of its own.
pub struct Side {
    planner: Planner,
    pub balancer: LoadBalancer,
}

/// What can be seen after a batch.
#[derive(Debug, PartialEq)]
struct Seen {
    frames: Vec<(String, Vec<u8>)>,
    originated: Vec<String>,
    entries: Vec<datapath::table::Entry>,
    counters: String,
}

impl Side {
    pub fn new(message: &proto::Plan, mtu: u16, connections: u64, path: Path) -> Side {
        let mut planner = Planner::default();
        let view = view(&mut planner, message, mtu);
        let setup = Setup { workers: 0..1, devices: 2, connections, secret: secret(), path };
        Side { planner, balancer: LoadBalancer::new(view, setup).unwrap() }
    }

    /// Goes on with another plan.
    pub fn set(&mut self, message: &proto::Plan, mtu: u16) {
        self.balancer.view = view(&mut self.planner, message, mtu);
    }

    fn forward(&mut self, now_ms: u32, frames: &[Vec<u8>]) -> Seen {
        let balancer = &mut self.balancer;
        balancer.set_time(now_ms.into());
        let outcomes = balancer.forward(0, 0, frames);
        let originated = outcomes.iter().enumerate().flat_map(|(after, outcome)| {
            outcome.originated.iter().map(move |made| {
                let OriginatedFrame { counts, device, bytes } = made;
                format!("{counts:?}, after {after}, by {device:?}: {bytes:02x?}")
            })
        });
        let originated = originated.collect();
        let frames =
            outcomes.into_iter().map(|outcome| (format!("{:?}", outcome.verdict), outcome.frame));
        let (counters, slow_path) = (balancer.counters(0), balancer.slow_path_counters());
        Seen {
            frames: frames.collect(),
            originated,
            entries: balancer.tables[0].entries().collect(),
            counters: format!("{counters:?} {slow_path:?} {:?}", balancer.view.counters),
        }
    }
}

fn view(planner: &mut Planner, message: &proto::Plan, mtu: u16) -> Arc<View> {
    let plan = Arc::new(planner.plan(message.clone()).unwrap());
    Arc::new(sim::view::view(plan, &secret(), 1, |address| hops(address, mtu)))
}

/// Some backends are not reached, some over two neighbours, some over a path
/// that little fits.
fn hops(address: std::net::IpAddr, mtu: u16) -> Vec<NextHop> {
    let last = match address {
        std::net::IpAddr::V4(address) => address.octets()[3],
        std::net::IpAddr::V6(address) => address.octets()[15],
    };
    let hop = |device: u8, mtu: u16| NextHop { device: DeviceIndex(device), ..common::hop(mtu) };
    match last % 5 {
        0 => Vec::new(),
        1 => vec![hop(0, 1600), hop(1, mtu)],
        _ => vec![hop(0, mtu)],
    }
}

/// How many reports on marked packets there were, second chances, and packets of each way
/// to select at services with Multipath TCP.
fn run(seed: u64, batches: u32) -> (usize, usize, [u64; Selection::COUNT]) {
    let mut random = Random(seed);
    let message = plan(&mut random);
    let mtu = random.pick(&[100u16, 300, 576, 1600, 1600]);
    let connections = random.pick(&[4u64, 16, 64]);
    let side = |path| Side::new(&message, mtu, connections, path);
    let (mut one, mut all) = (side(Path::Specification), side(Path::Batch));
    let (mut now_ms, mut reports) = (0u32, 0);
    for number in 0..batches {
        if random.one_in(10) {
            let message = plan(&mut random);
            one.set(&message, mtu);
            all.set(&message, mtu);
        }
        now_ms += random.pick(&[0u32, 1, 30, 100, 150, 900, 12_000]);
        let fill = if random.one_in(4) { Fill::Long } else { Fill::Mixed };
        let count = 1 + random.below(BATCH_MAX as u64);
        let frames: Vec<Vec<u8>> = (0..count).map(|_| frame(&mut random, now_ms, fill)).collect();
        let (expected, got) = (one.forward(now_ms, &frames), all.forward(now_ms, &frames));
        for (at, (expected, got)) in expected.frames.iter().zip(&got.frames).enumerate() {
            assert_eq!(
                expected, got,
                "seed {seed}, batch {number}, frame {at}: {:02x?}",
                frames[at]
            );
        }
        assert_eq!(expected, got, "seed {seed}, batch {number}");
        reports += got.originated.iter().filter(|made| made.contains("Originated(Report)")).count();
    }
    let totals = one.balancer.totals();
    assert!(totals.sent + totals.accounted() > 0, "seed {seed} tested nothing");
    let counters = one.balancer.counters(0);
    let selected = std::array::from_fn(|index| counters.multipath[index].get());
    (reports, counters.second_chances.sent.get() as usize, selected)
}

#[test]
fn a_batch_is_what_its_packets_are_one_by_one() {
    const BATCHES: u32 = 40;
    let number =
        |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    if let Some(seed) = number("BATCH_TEST_SEED") {
        run(seed, BATCHES);
        return;
    }
    let packets = number("BATCH_TEST_PACKETS").unwrap_or(100_000);
    let runs = packets / (u64::from(BATCHES) * BATCH_MAX as u64 / 2);
    let (mut reports, mut chances, mut selected) = (0, 0, [0; Selection::COUNT]);
    for seed in 0..runs.max(1) {
        let counts = run(seed, BATCHES);
        reports += counts.0;
        chances += counts.1;
        selected.iter_mut().zip(counts.2).for_each(|(sum, more)| *sum += more);
    }
    assert!(reports > 0, "no marked packet was reported on");
    assert!(chances > 100, "{chances} packets named earlier backends");
    for (name, packets) in Selection::NAMES.iter().zip(selected) {
        assert!(packets > 20, "{packets} packets were selected for by {name}");
    }
}
