//! Compares the kernel flow cache with the specification. The XDP filter runs in the kernel
//! (BPF_PROG_TEST_RUN) on random traffic, and a worker gets the packets that it does not send.
//! Together they give each packet the same bytes and verdict as `forward.rs`, over changing
//! plans. `CACHE_TEST_PACKETS=5000000` makes the run longer; a failure names the seed, which
//! `CACHE_TEST_SEED` repeats.

use std::sync::Arc;

use crate::common::{
    self, CLIENT, CLIENT_V6, Random, Tcp, message, secret, tcp, tcp_v6, udp, udp_v6,
};
use datapath::kernel_cache::limits::SWEEP_MS;
use datapath::kernel_cache::{CacheRegion, TargetMemory, TargetWriter, Targets, write_hash};
use datapath::table::EntryClass;
use datapath::trace::PACKET_BYTES;
use datapath::verdict::DeviceIndex;
use datapath::{DropReason, NextHop, Verdict, View};
use nic::filter_run::{Action, FilterRun, Hook};
use nic::kernel_cache::{CacheConfig, CacheSize};
use plan::{Planner, proto};
use sim::{LoadBalancer, Path, Setup};
use wire::tunnel::route_option;

const KEY: [u64; 2] = [0x0123_4567_89ab_cdef, 0x0f1e_2d3c_4b5a_6978];
const MTU: u16 = 1500;
const CONNECTIONS: u64 = 10_000;
/// Devices that targets name; the filter itself knows the first two, and not by their
/// names: it sends nothing here.
const DEVICES: usize = 3;
const LOOPBACK: u32 = 1;
const MTUS: [u16; 3] = [1500, 1400, 200];
/// Of each encapsulation's headers behind Ethernet, over IPv4; of tunnels over IPv6 20 more.
const OUTER_BYTES: [u16; 5] = [24, 20, 32, 36, 0];
const HOOKS: [Hook; 2] = [Hook::Xdp, Hook::TrafficControl];
const ENCAPS: [proto::Encap; 5] = [
    proto::Encap::Gre,
    proto::Encap::Ipip,
    proto::Encap::Gue,
    proto::Encap::Geneve,
    proto::Encap::L2,
];

/// A machine with the filter in front of it, and one that forwards by the
/// specification alone.
struct Pair {
    hook: Hook,
    run: FilterRun,
    targets: TargetWriter<'static>,
    planner: Planner,
    cached: LoadBalancer,
    plain: LoadBalancer,
    now_ms: u64,
    sent_by_kernel: u64,
    bytes_by_kernel: u64,
}

/// What became of a packet, and who did it.
#[derive(Debug)]
struct Outcome {
    verdict: Verdict,
    frame: Vec<u8>,
    by_kernel: bool,
}

/// One for each hook. Loading a program needs root; a test that is skipped says so by name,
/// and has none.
fn pairs_or_skip(test: &str, message: proto::Plan) -> Vec<Pair> {
    if !std::fs::read_to_string("/proc/self/status").unwrap().contains("\nUid:\t0\t0\t") {
        use std::io::Write;
        let line = format!("SKIPPED {test}: needs root to load a BPF program\n");
        std::io::stderr().write_all(line.as_bytes()).unwrap();
        return Vec::new();
    }
    let size = CacheSize { queues: 1, buckets: 64, targets: 64, service_buckets: 1024 };
    HOOKS.iter().map(|hook| Pair::new(*hook, message.clone(), size)).collect()
}

impl Pair {
    fn new(hook: Hook, message: proto::Plan, size: CacheSize) -> Pair {
        let devices = vec![LOOPBACK; 2];
        let mut run = FilterRun::load(hook, CacheConfig { size, key: KEY, devices }).unwrap();
        let prefixes = ["203.0.113.0/24", "2001:db8:f::/64"].map(|text| text.parse().unwrap());
        run.filter.set(&prefixes, &[], false).unwrap();
        run.filter.set_address(wire::MacAddress([2; 6])).unwrap(); // of all frames here
        write_hash(run.cache.hash(), &secret());
        let (targets, service_buckets) =
            (Targets::new(run.cache.targets()), run.cache.service_buckets());
        let mut planner = Planner::default();
        let hops = |_| vec![common::hop(MTU)];
        let first = Arc::new(view(&mut planner, message.clone(), &hops));
        let balancer = |path| {
            let setup = Setup {
                workers: 0..1,
                devices: DEVICES,
                connections: CONNECTIONS,
                secret: secret(),
                path,
            };
            LoadBalancer::new(Arc::clone(&first), setup).unwrap()
        };
        let (mut cached, plain) = (balancer(Path::Batch), balancer(Path::Specification));
        let entries = run.cache.region(0);
        let line = run.cache.line(0);
        let (device, sends_by) = (DeviceIndex(0), [true; DEVICES].into());
        let memory = TargetMemory { targets, service_buckets, device, sends_by };
        cached.set_kernel_cache(0, [(device, CacheRegion { entries, line, targets, key: KEY })]);
        let targets = TargetWriter::new(vec![memory]);
        let (now_ms, sent_by_kernel, bytes_by_kernel) = (0, 0, 0);
        let mut pair = Pair {
            hook,
            run,
            targets,
            planner,
            cached,
            plain,
            now_ms,
            sent_by_kernel,
            bytes_by_kernel,
        };
        pair.set(message, &hops);
        pair.wait(1000);
        pair
    }

    /// As a control thread does: targets first, then the View.
    fn set(&mut self, message: proto::Plan, resolve: &dyn Fn(u32) -> Vec<NextHop>) {
        let mut view = view(&mut self.planner, message, resolve);
        view.kernel_targets = self.targets.follow(&view.plan, &view.egress);
        let services = view.kernel_targets.services.iter().copied();
        self.run.cache.set_services(services).unwrap();
        let view = Arc::new(view);
        (self.cached.view, self.plain.view) = (Arc::clone(&view), view);
    }

    fn wait(&mut self, ms: u64) {
        self.now_ms += ms;
        self.cached.set_time(self.now_ms);
        self.plain.set_time(self.now_ms);
    }

    /// Forwards a packet both ways: what comes out is the same.
    fn forward(&mut self, frame: &[u8]) -> Outcome {
        let expected = self.plain.forward(0, 0, &[frame]).remove(0);
        // At traffic control the kernel tries no frame without a whole IP header.
        let is_tried = self.hook == Hook::Xdp || frame.len() >= 14 + ip_bytes(frame);
        let (action, after) =
            if is_tried { self.run.run(frame).unwrap() } else { (Action::Pass, frame.to_vec()) };
        let outcome = match action {
            Action::Transmit | Action::Redirect => {
                self.sent_by_kernel += 1;
                self.bytes_by_kernel += u64::from(packet_bytes(frame));
                // At traffic control all is sent by a redirection.
                let verdict = match self.hook {
                    Hook::Xdp => Verdict::Send(DeviceIndex((action == Action::Redirect).into())),
                    Hook::TrafficControl => expected.verdict,
                };
                Outcome { verdict, frame: after, by_kernel: true }
            }
            Action::Drop | Action::Pass => {
                assert_eq!(after, frame, "what the kernel does not send it leaves as it is");
                let by_worker = self.cached.forward(0, 0, &[frame]).remove(0);
                assert_eq!(by_worker.originated, expected.originated);
                Outcome { verdict: by_worker.verdict, frame: by_worker.frame, by_kernel: false }
            }
            Action::Other(action) => panic!("action {action}"),
        };
        assert_eq!(outcome.verdict, expected.verdict, "{frame:02x?}");
        assert_eq!(outcome.frame, expected.frame, "{frame:02x?}");
        outcome
    }

    /// Sends data of a flow until the kernel does it, a tick later than its first packet.
    fn establish(&mut self, first: &[u8], data: &[u8]) {
        self.forward(first);
        self.wait(200);
        for _ in 0..3 {
            self.forward(data);
        }
        assert!(self.forward(data).by_kernel, "a steady flow is the kernel's");
    }

    /// What the kernel has counted, over all targets and processors: packets, bytes.
    fn traffic(&self) -> (u64, u64) {
        use std::sync::atomic::Ordering::Relaxed;
        let all = 0..self.run.cache.size.targets as usize;
        let all = all.flat_map(|target| self.run.cache.traffic(target));
        all.fold((0, 0), |(packets, bytes), traffic| {
            (packets + traffic[0].load(Relaxed), bytes + traffic[1].load(Relaxed))
        })
    }

    /// Conservation: what was handed to the device is what was counted.
    fn check(&self) {
        assert_eq!(self.traffic(), (self.sent_by_kernel, self.bytes_by_kernel));
    }
}

/// Next hops by the last byte of the backend's address.
fn view(
    planner: &mut Planner,
    message: proto::Plan,
    resolve: &dyn Fn(u32) -> Vec<NextHop>,
) -> View {
    let plan = Arc::new(planner.plan(message).unwrap());
    let by_address = |address| match address {
        std::net::IpAddr::V4(v4) => resolve(u32::from(v4) & 0xff),
        std::net::IpAddr::V6(v6) => resolve(u128::from(v6) as u32 & 0xff),
    };
    sim::view::view(plan, &secret(), 1, by_address)
}

fn is_v6(frame: &[u8]) -> bool {
    frame[12..14] == [0x86, 0xdd]
}

fn ip_bytes(frame: &[u8]) -> usize {
    if is_v6(frame) { 40 } else { 20 }
}

/// The length that a frame's IP header says.
fn packet_bytes(frame: &[u8]) -> u16 {
    let at = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    if is_v6(frame) { 40 + at(18) } else { at(16) }
}

fn client(host: u8) -> u32 {
    u32::from_be_bytes(CLIENT) + u32::from(host)
}

fn client_v6(host: u8) -> u128 {
    CLIENT_V6 + u128::from(host)
}

/// Writes the header's checksum after a change, where it has one.
fn sum(frame: &mut [u8]) {
    if is_v6(frame) {
        return;
    }
    common::sum_v4(frame);
}

/// The packet with that many bytes of payload more.
fn longer(mut frame: Vec<u8>, more: usize) -> Vec<u8> {
    frame.resize(frame.len() + more, 0x77);
    let transport = 14 + ip_bytes(&frame);
    let payload_bytes = (frame.len() - transport) as u16;
    let (length_at, length, protocol) = match is_v6(&frame) {
        true => (18, payload_bytes, frame[20]),
        false => (16, payload_bytes + 20, frame[23]),
    };
    frame[length_at..][..2].copy_from_slice(&length.to_be_bytes());
    if protocol == 17 {
        frame[transport + 4..][..2].copy_from_slice(&payload_bytes.to_be_bytes());
    }
    sum(&mut frame);
    frame
}

fn changed(mut frame: Vec<u8>, change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    change(&mut frame);
    sum(&mut frame);
    frame
}

#[test]
fn a_busy_flow_is_sent_by_the_kernel_until_it_ends() {
    let test = "a_busy_flow_is_sent_by_the_kernel_until_it_ends";
    for mut pair in pairs_or_skip(test, message(3)) {
        for (port, end) in [(1000, Tcp::Fin), (1001, Tcp::Rst), (1002, Tcp::Syn)] {
            let data = tcp(client(0), port, Tcp::Ack);
            pair.establish(&tcp(client(0), port, Tcp::Syn), &data);
            assert!(!pair.forward(&tcp(client(0), port, end)).by_kernel);
            assert!(!pair.forward(&data).by_kernel, "its entry is gone");
        }
        pair.establish(&udp(client(0), 1000), &udp(client(0), 1000));
        pair.check();
    }
}

/// A whole tick is in between, so each packet that could confirm a connection does.
#[test]
fn a_connection_is_the_kernels_in_its_first_tick_and_once_it_is_confirmed() {
    let test = "a_connection_is_the_kernels_in_its_first_tick_and_once_it_is_confirmed";
    for mut pair in pairs_or_skip(test, message(3)) {
        let (syn, data) = (tcp(client(0), 1000, Tcp::Syn), tcp(client(0), 1000, Tcp::Ack));
        let class = |pair: &Pair| pair.cached.tables[0].entries().next().unwrap().class;
        assert_eq!(pair.now_ms % 100, 0, "a tick begins");
        assert!(!pair.forward(&syn).by_kernel);
        assert!(pair.forward(&data).by_kernel);
        assert!(!pair.forward(&syn).by_kernel, "sent again");
        pair.wait(99);
        assert!(pair.forward(&data).by_kernel);
        assert_eq!(class(&pair), EntryClass::Unconfirmed);
        pair.wait(1);
        assert!(!pair.forward(&data).by_kernel);
        assert_eq!(class(&pair), EntryClass::Established);
        pair.forward(&data);
        assert!(pair.forward(&data).by_kernel);
        // All of one that ends as quickly, but for its SYN.
        for end in [Tcp::Fin, Tcp::Rst] {
            let mut by_kernel = |kind| pair.forward(&tcp(client(0), 1001, kind)).by_kernel;
            let sent = [Tcp::Syn, Tcp::Ack, end, Tcp::Ack].map(&mut by_kernel);
            assert_eq!(sent, [false, true, true, true], "{end:?}");
        }
        // What may be a flood of single datagrams.
        assert!(!(0..10).any(|_| pair.forward(&udp(client(0), 1002)).by_kernel));
        pair.check();
    }
}

#[test]
fn only_plain_data_that_fits_is_the_kernels() {
    for mut pair in pairs_or_skip("only_plain_data_that_fits_is_the_kernels", message(3)) {
        let (data, datagram) = (tcp(client(0), 1000, Tcp::Ack), udp(client(0), 1000));
        pair.establish(&tcp(client(0), 1000, Tcp::Syn), &data);
        pair.establish(&datagram, &datagram);
        let fits = usize::from(MTU) - 24 - (data.len() - 14);
        let kernels = [
            data.clone(),
            changed(data.clone(), |frame| frame[15] = 0xbb),
            changed(data.clone(), |frame| frame[20] = 0x40),
            changed(data.clone(), |frame| frame[47] = 0x18),
            [data.clone(), vec![0xee; 9]].concat(),
            [datagram.clone(), vec![0; 20]].concat(),
            longer(data.clone(), fits),
            longer(datagram.clone(), 100),
        ];
        for (index, frame) in kernels.iter().enumerate() {
            assert!(pair.forward(frame).by_kernel, "case {index}");
        }
        let traced = usize::from(PACKET_BYTES) - (data.len() - 14);
        let flags = |flags: u8| changed(data.clone(), |frame| frame[47] = flags);
        let others = [
            longer(data.clone(), fits + 1),
            longer(data.clone(), traced),
            // Options of IP: the length in words is one more.
            changed(data.clone(), |frame| {
                frame[14] = 0x46;
                frame.splice(34..34, [1, 1, 1, 0]);
                let packet_bytes = (frame.len() - 14) as u16;
                frame[16..18].copy_from_slice(&packet_bytes.to_be_bytes());
            }),
            // More fragments; a later fragment; the reserved bit.
            changed(data.clone(), |frame| frame[20] = 0x20),
            changed(data.clone(), |frame| frame[21] = 1),
            changed(data.clone(), |frame| frame[20] = 0x80),
            // A wrong checksum, version, length, another protocol.
            {
                let mut frame = data.clone();
                frame[25] ^= 1;
                frame
            },
            changed(data.clone(), |frame| frame[14] = 0x65),
            changed(data.clone(), |frame| frame[17] += 1),
            changed(data.clone(), |frame| frame[17] = 9),
            changed(data.clone(), |frame| frame[23] = 132),
            // Headers longer than their packets.
            changed(data.clone(), |frame| frame[46] = 0xf0),
            changed(data.clone(), |frame| frame[46] = 0x40),
            changed(datagram.clone(), |frame| frame[39] += 1),
            changed(datagram.clone(), |frame| frame[39] = 7),
            flags(0x12),
            data[..40].to_vec(),
            // Another flow.
            tcp(client(1), 1000, Tcp::Ack),
            tcp(client(0), 1001, Tcp::Ack),
            flags(0x02),
            flags(0x11),
        ];
        for (index, frame) in others.iter().enumerate() {
            assert!(!pair.forward(frame).by_kernel, "case {index}");
        }
        pair.check();
    }
}

#[test]
fn only_plain_data_of_ipv6_is_the_kernels() {
    for mut pair in pairs_or_skip("only_plain_data_of_ipv6_is_the_kernels", message(3)) {
        let data = tcp_v6(client_v6(0), 1000, Tcp::Ack);
        let datagram = udp_v6(client_v6(0), 1000);
        pair.establish(&tcp_v6(client_v6(0), 1000, Tcp::Syn), &data);
        pair.establish(&datagram, &datagram);
        let kernels = [
            data.clone(),
            // Traffic class, flow label, hop limit.
            changed(data.clone(), |frame| frame[14..18].copy_from_slice(&[0x6b, 0xb1, 0x23, 0x45])),
            changed(data.clone(), |frame| frame[21] = 2),
            changed(data.clone(), |frame| frame[67] = 0x18),
            [data.clone(), vec![0xee; 9]].concat(),
            [datagram.clone(), vec![0; 20]].concat(),
            longer(data.clone(), 1000),
            longer(datagram.clone(), 100),
        ];
        for (index, frame) in kernels.iter().enumerate() {
            assert!(pair.forward(frame).by_kernel, "case {index}");
        }
        let traced = usize::from(PACKET_BYTES) - (data.len() - 14);
        // An extension header of eight bytes in front of the transport's.
        let extended = |kind: u8, header: [u8; 8]| {
            changed(data.clone(), |frame| {
                frame.splice(54..54, header);
                (frame[20], frame[19]) = (kind, frame[19] + 8);
            })
        };
        let others = [
            longer(data.clone(), traced),
            extended(0, [6, 0, 1, 4, 0, 0, 0, 0]),
            extended(60, [6, 0, 1, 4, 0, 0, 0, 0]),
            extended(44, [6, 0, 0, 1, 0, 0, 0, 9]),
            changed(data.clone(), |frame| frame[14] = 0x40),
            changed(data.clone(), |frame| frame[19] += 1),
            changed(data.clone(), |frame| frame[20] = 132),
            changed(data.clone(), |frame| frame[66] = 0xf0),
            changed(data.clone(), |frame| frame[66] = 0x40),
            changed(datagram.clone(), |frame| frame[59] += 1),
            changed(datagram.clone(), |frame| frame[59] = 7),
            data[..60].to_vec(),
            // Another flow.
            tcp_v6(client_v6(1), 1000, Tcp::Ack),
            tcp_v6(client_v6(0), 1001, Tcp::Ack),
            tcp(client(0), 1000, Tcp::Ack),
            changed(data.clone(), |frame| frame[67] = 0x02),
            changed(data.clone(), |frame| frame[67] = 0x11),
        ];
        for (index, frame) in others.iter().enumerate() {
            assert!(!pair.forward(frame).by_kernel, "case {index}");
        }
        pair.check();
    }
}

/// With that encapsulation; backends with IPv6 addresses.
fn over(encap: proto::Encap, is_outer_v6: bool) -> proto::Plan {
    let mut message = message(3);
    message.services[0].set_encap(encap);
    message.tunnel =
        Some(proto::Tunnel { source_prefix: "10.9.0.0/16".into(), ..Default::default() });
    for (backend, number) in message.backends.iter_mut().zip(1..) {
        if is_outer_v6 {
            backend.address = format!("2001:db8:be::{number}");
        }
    }
    message
}

#[test]
fn every_encapsulation_of_both_families_is_the_kernels_up_to_the_longest_packet_that_fits() {
    let test =
        "every_encapsulation_of_both_families_is_the_kernels_up_to_the_longest_packet_that_fits";
    let all = ENCAPS.into_iter().zip(OUTER_BYTES);
    for ((encap, outer_bytes), is_outer_v6) in
        all.flat_map(|one| [false, true].map(|is_outer_v6| (one, is_outer_v6)))
    {
        for mut pair in pairs_or_skip(test, over(encap, is_outer_v6)) {
            let is_tunnel = encap != proto::Encap::L2;
            let outer_bytes = outer_bytes + if is_tunnel && is_outer_v6 { 20 } else { 0 };
            for port in 0..4 {
                let flow = |kind| [tcp(client(0), port, kind), tcp_v6(client_v6(0), port, kind)];
                for (first, data) in flow(Tcp::Syn).iter().zip(flow(Tcp::Ack)) {
                    pair.establish(first, &data);
                    let case = format!("{encap:?} over {is_outer_v6}: {data:02x?}");
                    let fits = usize::from(MTU - outer_bytes - packet_bytes(&data));
                    assert!(pair.forward(&longer(data.clone(), fits)).by_kernel, "{case}");
                    assert!(!pair.forward(&longer(data.clone(), fits + 1)).by_kernel, "{case}");
                    let hops_at = if is_v6(&data) { 21 } else { 22 };
                    let last_hop = changed(data, |frame| frame[hops_at] = 1);
                    assert!(!pair.forward(&last_hop).by_kernel, "{case}");
                }
            }
            pair.check();
        }
    }
}

#[test]
fn what_has_a_checksum_over_its_payload_is_user_spaces() {
    let test = "what_has_a_checksum_over_its_payload_is_user_spaces";
    for (encap, is_outer_v6) in ENCAPS.into_iter().flat_map(|encap| [(encap, false), (encap, true)])
    {
        let mut message = over(encap, is_outer_v6);
        message.tunnel = Some(proto::Tunnel { udp6_checksum: true, ..Default::default() });
        for mut pair in pairs_or_skip(test, message) {
            let has_checksum =
                is_outer_v6 && matches!(encap, proto::Encap::Gue | proto::Encap::Geneve);
            let data = udp(client(0), 1000);
            pair.forward(&data);
            pair.wait(200);
            let by_kernel = (0..100).filter(|_| pair.forward(&data).by_kernel).count();
            assert_eq!(by_kernel == 0, has_checksum, "{encap:?} over {is_outer_v6}: {by_kernel}");
            pair.check();
        }
    }
}

fn vip_of_port(address: &str, protocol: proto::Protocol, port: u32) -> proto::Vip {
    proto::Vip {
        protocol: protocol as i32,
        ports: vec![proto::PortRange { first: port, last: port }],
        ..common::vip(address)
    }
}

/// A service that has one port of an address where another has all.
fn narrow() -> proto::Service {
    proto::Service {
        name: "narrow".into(),
        vips: vec![vip_of_port("203.0.113.10", proto::Protocol::Tcp, 80)],
        group: "web".into(),
        table_size: 1009,
        ..Default::default()
    }
}

#[test]
fn a_change_of_plan_or_next_hop_takes_effect_at_once() {
    let test = "a_change_of_plan_or_next_hop_takes_effect_at_once";
    for mut pair in pairs_or_skip(test, message(2)) {
        let flows: Vec<Vec<u8>> = (0..8).map(|port| tcp(client(0), port, Tcp::Ack)).collect();
        for (flow, port) in flows.iter().zip(0..) {
            pair.establish(&tcp(client(0), port, Tcp::Syn), flow);
        }
        let by_kernel = |pair: &mut Pair| {
            flows.iter().map(|flow| pair.forward(flow).by_kernel).collect::<Vec<_>>()
        };
        // Another Ethernet address: the same targets, rewritten.
        let moved = |_| {
            let destination = wire::MacAddress([2, 0, 0, 0, 0, 0x77]);
            vec![NextHop { destination, ..common::hop(MTU) }]
        };
        pair.set(message(2), &moved);
        assert_eq!(by_kernel(&mut pair), [true; 8]);
        assert_eq!(pair.forward(&flows[0]).frame[5], 0x77);
        // A draining backend keeps its connections.
        let mut drained = message(2);
        drained.groups[0].members[0].set_state(proto::BackendState::Draining);
        drained.groups[0].members[0].weight = 0;
        pair.set(drained, &moved);
        assert_eq!(by_kernel(&mut pair), [true; 8]);
        // One that is down does not: user space moves its flows, and the others stay.
        let mut down = message(2);
        down.groups[0].members[0].set_state(proto::BackendState::Down);
        pair.set(down.clone(), &moved);
        let after = by_kernel(&mut pair);
        assert!(after.contains(&true) && after.contains(&false), "{after:?}");
        // A VIP that takes the flows from their service.
        down.services.push(narrow());
        pair.set(down.clone(), &moved);
        assert_eq!(by_kernel(&mut pair), [false; 8]);
        // No next hop.
        pair.set(down, &|_| Vec::new());
        assert_eq!(pair.forward(&flows[0]).verdict, Verdict::Drop(DropReason::NoNeighbour));
        pair.check();
    }
}

#[test]
fn a_flow_leaves_by_the_device_of_its_next_hop() {
    for mut pair in pairs_or_skip("a_flow_leaves_by_the_device_of_its_next_hop", message(1)) {
        let data = tcp(client(0), 1000, Tcp::Ack);
        pair.establish(&tcp(client(0), 1000, Tcp::Syn), &data);
        for device in [1, 0, 1].map(DeviceIndex) {
            pair.set(message(1), &|_| vec![NextHop { device, ..common::hop(MTU) }]);
            let outcome = pair.forward(&data);
            assert!(outcome.by_kernel);
            assert_eq!(outcome.verdict, Verdict::Send(device));
            let fits = usize::from(MTU - 24 - packet_bytes(&data));
            assert!(pair.forward(&longer(data.clone(), fits)).by_kernel);
            assert!(!pair.forward(&longer(data.clone(), fits + 1)).by_kernel);
        }
        // One that the filter's map no longer has: the packet is left as it is.
        let device = DeviceIndex(2);
        pair.set(message(1), &|_| vec![NextHop { device, ..common::hop(MTU) }]);
        let outcome = pair.forward(&[data, vec![0xee; 9]].concat());
        assert!(!outcome.by_kernel);
        assert_eq!(outcome.verdict, Verdict::Send(device));
        pair.check();
    }
}

#[test]
fn what_the_kernel_sends_keeps_its_connection() {
    for mut pair in pairs_or_skip("what_the_kernel_sends_keeps_its_connection", message(20)) {
        let (flow, idle) = (udp(client(0), 1000), udp(client(0), 1001));
        pair.establish(&flow, &flow);
        pair.establish(&idle, &idle);
        let tracked = |pair: &Pair| pair.cached.tables[0].entries().count();
        assert_eq!(tracked(&pair), 2);
        // Two minutes, which is twice the idle timeout: a packet in each second of one flow.
        for _ in 0..120 {
            pair.wait(1000);
            assert!(pair.forward(&flow).by_kernel);
        }
        assert_eq!(tracked(&pair), 1, "the idle one has expired");
        assert!(!pair.forward(&idle).by_kernel);
        // And when its packets end it goes, too: after its timeout, two ticks and two sweeps.
        for _ in 0..10 {
            pair.wait(SWEEP_MS);
        }
        pair.forward(&idle);
        assert_eq!(tracked(&pair), 1);
        pair.check();
    }
}

/// Connections have expired, and their five-tuples begin others at another backend: no
/// data goes to the former one.
#[test]
fn no_flow_outlives_its_connection() {
    for tcp_ms in [20_000, 40_000] {
        let mut message = message(20);
        message.services[0].idle_timeouts =
            Some(proto::IdleTimeouts { tcp_ms, ..Default::default() });
        let test = "no_flow_outlives_its_connection";
        for mut pair in pairs_or_skip(test, message.clone()) {
            let send = |pair: &mut Pair, kind| {
                (1000..1010).for_each(|port| drop(pair.forward(&tcp(client(0), port, kind))));
            };
            // At the end of one of the table's ticks, by which an entry expires sooner.
            pair.wait(6_500);
            send(&mut pair, Tcp::Syn);
            pair.wait(200);
            (0..3).for_each(|_| send(&mut pair, Tcp::Ack));
            pair.wait(26_000);
            message.groups[0].members.iter_mut().skip(1).for_each(|member| member.weight = 0);
            pair.set(message.clone(), &|_| vec![common::hop(MTU)]);
            for kind in [Tcp::Ack, Tcp::Syn, Tcp::Ack] {
                send(&mut pair, kind);
                pair.wait(200);
            }
            pair.check();
        }
    }
}

/// With that many buckets, each another backend's than the next; and VIPs of one port each,
/// as the kernel has stateless services.
fn stateless_message(backends: u32, buckets: u32) -> proto::Plan {
    let mut message = message(backends as usize);
    let by_bucket: Vec<u32> = (0..buckets).map(|bucket| bucket % backends).collect();
    common::make_stateless(&mut message, &by_bucket);
    let ports = [(proto::Protocol::Tcp, 80), (proto::Protocol::Udp, 53)];
    let vips = ["203.0.113.10", "2001:db8:f::10"]
        .into_iter()
        .flat_map(|address| ports.map(|(protocol, port)| vip_of_port(address, protocol, port)));
    message.services[0].vips = vips.collect();
    message
}

#[test]
fn packets_of_a_stateless_service_are_the_kernels_from_the_first_on() {
    let test = "packets_of_a_stateless_service_are_the_kernels_from_the_first_on";
    for affinity in [proto::Affinity::Flow, proto::Affinity::Client] {
        let mut message = stateless_message(3, 256);
        message.services[0].set_affinity(affinity);
        for mut pair in pairs_or_skip(test, message) {
            for (host, port) in (0..20).flat_map(|host| [(host, 1000), (host, 2000)]) {
                let (v4, v6) = (client(host), client_v6(host));
                for kind in [Tcp::Syn, Tcp::Ack, Tcp::Fin, Tcp::Rst] {
                    assert!(pair.forward(&tcp(v4, port, kind)).by_kernel);
                    assert!(pair.forward(&tcp_v6(v6, port, kind)).by_kernel);
                }
                assert!(pair.forward(&udp(v4, port)).by_kernel);
                assert!(pair.forward(&udp_v6(v6, port)).by_kernel);
            }
            assert_eq!(pair.cached.tables[0].entries().count(), 0);
            // Another port of the VIP, where no service is.
            let other = changed(tcp(client(0), 1000, Tcp::Ack), |frame| frame[37] = 81);
            assert_eq!(pair.forward(&other).verdict, Verdict::Drop(DropReason::NoService));
            // Longer than fits with the longest option, which user space would report.
            let data = tcp(client(0), 1000, Tcp::Ack);
            let option_bytes = route_option::BYTES_MAX as u16;
            let fits = usize::from(MTU - 36 - option_bytes - packet_bytes(&data));
            assert!(pair.forward(&longer(data.clone(), fits)).by_kernel);
            assert!(!pair.forward(&longer(data, fits + 1)).by_kernel);
            pair.check();
        }
    }
}

/// User space counts SYNs that ask for Multipath TCP of services without.
#[test]
fn a_syn_with_many_options_is_user_spaces() {
    let test = "a_syn_with_many_options_is_user_spaces";
    for mut pair in pairs_or_skip(test, stateless_message(3, 256)) {
        let with_options = |kind, bytes: usize| {
            let mut frame = longer(tcp(client(0), 1000, kind), bytes);
            frame[46] = (((20 + bytes) / 4) << 4) as u8;
            frame[54..].fill(1); // "no operation"
            frame
        };
        assert!(pair.forward(&with_options(Tcp::Syn, 20)).by_kernel);
        assert!(!pair.forward(&with_options(Tcp::Syn, 24)).by_kernel);
        assert!(pair.forward(&with_options(Tcp::Ack, 40)).by_kernel);
        pair.check();
    }
}

#[test]
fn a_change_of_buckets_takes_effect_at_once() {
    for mut pair in pairs_or_skip("a_change_of_buckets_takes_effect_at_once", message(3)) {
        let flows: Vec<Vec<u8>> = (0..200).map(|port| tcp(client(0), port, Tcp::Ack)).collect();
        let by_kernel =
            |pair: &mut Pair| flows.iter().filter(|flow| pair.forward(flow).by_kernel).count();
        let hop = |_| vec![common::hop(MTU)];
        // Each is forwarded as the specification does, or the pair fails.
        let mut stateless = stateless_message(3, 256);
        pair.set(stateless.clone(), &hop);
        assert_eq!(by_kernel(&mut pair), 200);
        // Half of the buckets begin to move.
        let map = stateless.services[0].bucket_map.as_mut().unwrap();
        map.moves = (0..128)
            .map(|at| proto::OpenMove { bucket: 2 * at, others: vec![(2 * at + 1) % 3] })
            .collect();
        pair.set(stateless.clone(), &hop);
        let moving = by_kernel(&mut pair);
        assert!((60..140).contains(&moving), "{moving}");
        // They have moved.
        let map = stateless.services[0].bucket_map.as_mut().unwrap();
        for at in 0..128 {
            map.by_bucket[2 * at] = (map.by_bucket[2 * at] + 1) % 3;
        }
        map.moves.clear();
        pair.set(stateless.clone(), &hop);
        assert_eq!(by_kernel(&mut pair), 200);
        // One whose packets say more than their buckets.
        stateless.services[0].mptcp = Some(proto::Mptcp {});
        pair.set(stateless, &hop);
        assert_eq!(by_kernel(&mut pair), 0);
        // Without the service.
        pair.set(message(3), &hop);
        assert_eq!(by_kernel(&mut pair), 0);
        pair.check();
    }
}

/// Another service at one of its ports takes that port's packets.
#[test]
fn a_service_of_all_ports_is_the_kernels_where_it_is_alone() {
    let wide = |mut stateless: proto::Plan| {
        stateless.services[0].vips = message(3).services.remove(0).vips;
        stateless
    };
    let test = "a_service_of_all_ports_is_the_kernels_where_it_is_alone";
    for mut pair in pairs_or_skip(test, wide(stateless_message(3, 256))) {
        let (tcp, udp) = (tcp(client(0), 1000, Tcp::Ack), udp(client(0), 1000));
        let tcp_v6 = tcp_v6(client_v6(0), 1000, Tcp::Ack);
        assert!([&tcp, &udp, &tcp_v6].into_iter().all(|frame| pair.forward(frame).by_kernel));
        let tunnelled = changed(udp.clone(), |frame| frame[36..38].copy_from_slice(&[0x17, 0xc1]));
        assert!(!pair.forward(&tunnelled).by_kernel);
        let mut two = wide(stateless_message(3, 256));
        two.services.push(narrow());
        pair.set(two, &|_| vec![common::hop(MTU)]);
        assert!(!pair.forward(&tcp).by_kernel);
        assert!(!pair.forward(&udp).by_kernel);
        assert!(pair.forward(&tcp_v6).by_kernel);
        pair.check();
    }
}

#[test]
fn services_for_whose_buckets_there_is_no_room_are_user_spaces() {
    let mut message = stateless_message(3, 512);
    message.services[0].vips.truncate(3);
    let test = "services_for_whose_buckets_there_is_no_room_are_user_spaces";
    for mut pair in pairs_or_skip(test, message) {
        assert!(pair.forward(&tcp(client(0), 1000, Tcp::Ack)).by_kernel);
        assert!(pair.forward(&udp(client(0), 1000)).by_kernel);
        assert!(!pair.forward(&tcp_v6(client_v6(0), 1000, Tcp::Ack)).by_kernel);
        pair.check();
    }
}

#[test]
fn a_flood_displaces_no_entry() {
    for mut pair in pairs_or_skip("a_flood_displaces_no_entry", message(3)) {
        let flows: Vec<Vec<u8>> = (0..20).map(|port| tcp(client(0), port, Tcp::Ack)).collect();
        for (flow, port) in flows.iter().zip(0..) {
            pair.establish(&tcp(client(0), port, Tcp::Syn), flow);
        }
        for port in 100..3000 {
            assert!(!pair.forward(&tcp(client(1), port, Tcp::Syn)).by_kernel);
            assert!(!pair.forward(&tcp(client(2), port, Tcp::Ack)).by_kernel);
        }
        assert!(flows.iter().all(|flow| pair.forward(flow).by_kernel));
        pair.check();
    }
}

#[test]
fn kernel_and_worker_together_are_the_specification() {
    let setting = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let packets = setting("CACHE_TEST_PACKETS").unwrap_or(1_000_000);
    let seed = setting("CACHE_TEST_SEED").unwrap_or(1);
    let mut random = Random(seed);
    let mut sent_by_kernel = 0;
    for round in 0..packets.div_ceil(20_000) {
        let size = CacheSize {
            queues: 1,
            buckets: random.pick(&[1, 4, 64]),
            targets: random.pick(&[1, 4, 64, 64]),
            service_buckets: random.pick(&[256, 1024]),
        };
        let message = random_message(&mut random);
        let test = "kernel_and_worker_together_are_the_specification";
        if pairs_or_skip(test, message.clone()).is_empty() {
            return;
        }
        let hook = HOOKS[round as usize % HOOKS.len()];
        println!("seed {seed} round {round}: {hook:?}, {size:?}");
        let mut pair = Pair::new(hook, message, size);
        for _ in 0..20_000 {
            let frame = random_frame(&mut random);
            pair.forward(&frame);
            if random.one_in(20) {
                let ms = random.pick(&[0, 1, 50, 100, 150]);
                pair.wait(ms);
            }
            if random.one_in(2000) {
                change(&mut random, &mut pair);
            }
        }
        pair.check();
        sent_by_kernel += pair.sent_by_kernel;
    }
    println!("{sent_by_kernel} of {packets} packets were sent by the kernel");
    assert!(sent_by_kernel > packets / 20, "{sent_by_kernel} of {packets}");
}

fn random_message(random: &mut Random) -> proto::Plan {
    let is_stateless = random.one_in(3);
    let mut plan = if is_stateless { stateless_message(4, 256) } else { message(4) };
    if is_stateless && random.one_in(2) {
        plan.services[0].vips = message(4).services.remove(0).vips;
    }
    let states =
        [proto::BackendState::Active, proto::BackendState::Active, proto::BackendState::Draining];
    for member in &mut plan.groups[0].members {
        let state = random.pick(&states);
        member.set_state(state);
        member.weight = u32::from(state != proto::BackendState::Draining);
    }
    if random.one_in(4) {
        plan.groups[0].members[1].set_state(proto::BackendState::Down);
    }
    plan.services[0].dscp = random.pick(&[None, None, Some(46)]);
    plan.services[0].on_down = random.below(2) as i32;
    plan.services[0].connections_quota = random.pick(&[0, 0, 5]);
    match is_stateless {
        true => make_random(random, &mut plan.services[0]),
        false => {
            let encap = random.pick(&ENCAPS);
            plan.services[0].set_encap(encap);
            if encap == proto::Encap::Geneve && random.one_in(2) {
                give_second_chance(random, &mut plan);
            }
        }
    }
    let source_prefix = random.pick(&["", "", "10.9.0.0/16"]).to_owned();
    let udp6_checksum = random.one_in(8);
    plan.tunnel = Some(proto::Tunnel { source_prefix, udp6_checksum, mtu: 0 });
    for (backend, number) in plan.backends.iter_mut().zip(1..) {
        if random.one_in(2) {
            backend.address = format!("2001:db8:be::{number}");
        }
    }
    plan
}

/// With an earlier table, in which some backends had other weights.
fn give_second_chance(random: &mut Random, plan: &mut proto::Plan) {
    let packets_per_second = random.pick(&[1, 1000]);
    plan.services[0].second_chance = Some(proto::SecondChance { packets_per_second });
    let differences = plan.backends.iter().filter(|_| random.one_in(2));
    let differences = differences
        .map(|backend| proto::EarlierMember { backend: backend.name.clone(), weight: 2 });
    plan.groups[0].earlier = vec![proto::EarlierTable { differences: differences.collect() }];
}

/// Of a stateless service: buckets, moves and affinity.
fn make_random(random: &mut Random, service: &mut proto::Service) {
    service.set_affinity(random.pick(&[proto::Affinity::Flow, proto::Affinity::Client]));
    let map = service.bucket_map.as_mut().unwrap();
    map.by_bucket.iter_mut().for_each(|backend| *backend = random.below(4) as u32);
    let moving = (0..).zip(&map.by_bucket).filter(|_| random.one_in(4));
    let open_move = |(bucket, backend): (u32, &u32)| proto::OpenMove {
        bucket,
        others: vec![(backend + 1) % 4],
    };
    map.moves = moving.map(open_move).collect();
}

fn change(random: &mut Random, pair: &mut Pair) {
    let message = random_message(random);
    let (mtu, mac) = (random.pick(&MTUS), random.below(3) as u8);
    let hops = random.pick(&[0, 1, 1, 1, 1, 2]);
    let devices = [(); 8].map(|()| DeviceIndex(random.pick(&[0, 0, 0, 1, 1, 2])));
    let hop = move |host: u32| {
        let destination = wire::MacAddress([2, 0, 0, 0, 0, mac]);
        let device = devices[host as usize % devices.len()];
        vec![NextHop { device, destination, ..common::hop(mtu) }; hops]
    };
    pair.set(message, &hop);
}

fn random_frame(random: &mut Random) -> Vec<u8> {
    // Few flows, most of them busy.
    let (host, port) = (random.below(2) as u8, random.below(4) as u16);
    let kind = match random.below(1000) {
        0..20 => Tcp::Syn,
        20 => Tcp::Fin,
        21..25 => Tcp::Rst,
        _ => Tcp::Ack,
    };
    let mut frame = match (random.below(3), random.one_in(2)) {
        (0, false) => udp(client(host), port),
        (0, true) => udp_v6(client_v6(host), port),
        (_, false) => tcp(client(host), port, kind),
        (_, true) => tcp_v6(client_v6(host), port, kind),
    };
    if random.one_in(3) {
        // Of the tracer's length, and of the longest that fit.
        let lengths = [226, 227, 228, 700, 1300];
        let outer_bytes = random.pick(&OUTER_BYTES) + random.pick(&[0, 20]);
        let fit = random.pick(&MTUS) - outer_bytes + random.below(3) as u16 - 1;
        let bytes = usize::from(if random.one_in(2) { fit } else { random.pick(&lengths) });
        let more = bytes.saturating_sub(packet_bytes(&frame).into());
        frame = longer(frame, more);
    }
    if random.one_in(4) {
        // The traffic class.
        let class = random.next() as u8;
        match is_v6(&frame) {
            true => (frame[14], frame[15]) = (0x60 | class >> 4, class << 4 | frame[15] & 0xf),
            false => frame[15] = class,
        }
        sum(&mut frame);
    }
    if random.one_in(8) {
        let padding = random.below(30) as usize;
        frame.resize(frame.len() + padding, 0xee);
    }
    match random.below(30) {
        0 => {
            let at = random.below(frame.len().min(80) as u64) as usize;
            frame[at] ^= 1 << random.below(8);
            if random.one_in(2) {
                sum(&mut frame);
            }
        }
        1 => {
            // The kernel runs no program on less than an Ethernet header.
            let bytes = 14 + random.below(frame.len() as u64 - 14) as usize;
            frame.truncate(bytes);
        }
        _ => {}
    }
    frame
}
