//! Stateless services, tested with packets: each packet is decided independently, by its
//! bucket.

use crate::common::{self, Machine, Tcp, make_stateless, message, tcp, udp};
use datapath::explain::{Details, explain};
use datapath::recorder::Lookup;
use datapath::{ByFlow, DropReason, FlowHash, Secret};
use plan::proto;

const BUCKETS: u32 = 256;

/// With buckets shared out in turn among that many backends.
fn stateless(backends: u32) -> proto::Plan {
    let mut message = message(backends as usize);
    let by_bucket: Vec<u32> = (0..BUCKETS).map(|bucket| bucket % backends).collect();
    make_stateless(&mut message, &by_bucket);
    message
}

fn flows() -> impl Iterator<Item = (u32, u16)> {
    (0..500).map(|flow| (0xc000_0200 + flow, 1024 + flow as u16))
}

#[test]
fn a_packet_goes_by_its_bucket_and_leaves_no_entry() {
    let mut machine = Machine::new(stateless(3), 1000);
    for (client, port) in flows() {
        let (_, opened, _) = machine.forward(1, &tcp(client, port, Tcp::Syn));
        let (_, later, _) = machine.forward(500, &tcp(client, port, Tcp::Ack));
        assert_eq!(opened.lookup, Lookup::None);
        assert_eq!((opened.slot, opened.backend), (later.slot, later.backend));
        let selected = machine.view.plan.services().next().unwrap();
        let selected = selected.group.select(opened.selector.unwrap()).unwrap();
        assert_eq!((Some(selected.slot), Some(selected.backend)), (opened.slot, opened.backend));
        assert_ne!(opened.selector, opened.hash, "agents have the key of buckets only");
    }
    assert_eq!(machine.tables[0].entries().count(), 0);
    let connections = &machine.counters(0).connections;
    assert_eq!((connections.hits.get(), connections.misses.get()), (0, 0));
}

#[test]
fn another_machine_decides_alike_and_every_backend_gets_its_share() {
    let mut machines = [Machine::new(stateless(4), 10), Machine::new(stateless(4), 10_000)];
    let mut shares = std::collections::BTreeMap::new();
    for (client, port) in flows() {
        let [first, second] =
            machines.each_mut().map(|machine| machine.backend(1, &udp(client, port)).unwrap());
        assert_eq!(first, second);
        *shares.entry(first).or_insert(0) += 1;
    }
    // 500 flows over 4 backends: 125, and five times the deviation of 9.7.
    assert_eq!(shares.len(), 4);
    assert!(shares.values().all(|count| (76..=174).contains(count)), "{shares:?}");
}

#[test]
fn only_flows_of_buckets_that_move_change_their_backend() {
    let before = stateless(4);
    let mut after = before.clone();
    after.generation += 1;
    let moved = |bucket: usize| bucket.is_multiple_of(16);
    let map = after.services[0].bucket_map.as_mut().unwrap();
    map.generation += 1;
    for (bucket, backend) in map.by_bucket.iter_mut().enumerate() {
        if moved(bucket) {
            *backend = (*backend + 1) % 4;
        }
    }
    let mut machine = Machine::new(before, 1000);
    let old: Vec<_> =
        flows().map(|(client, port)| machine.forward(1, &tcp(client, port, Tcp::Ack)).1).collect();
    machine.set(after);
    let mut changed = 0;
    for ((client, port), old) in flows().zip(old) {
        let (_, new, _) = machine.forward(1, &tcp(client, port, Tcp::Ack));
        assert_eq!(new.slot, old.slot);
        let has_moved = moved(old.slot.unwrap() as usize);
        assert_eq!(new.backend != old.backend, has_moved);
        changed += u32::from(has_moved);
    }
    assert!(changed > 0);
}

const QUIC_CLIENT: u32 = 0xc000_0207;

/// Three backends, whose server ids are their number and zeros, in plain connection ids.
fn with_quic_lb() -> proto::Plan {
    let mut message = stateless(3);
    let members = &message.groups[0].members;
    let server = |(number, member): (usize, &proto::Member)| proto::QuicServer {
        backend: member.backend.clone(),
        server_id: format!("{number:016x}"),
    };
    let servers = members.iter().enumerate().map(server).collect();
    let config =
        proto::QuicLbConfig { id: 5, encrypted: false, server_id_bytes: 8, nonce_bytes: 4 };
    message.services[0].quic_lb = Some(proto::QuicLb { configs: vec![config], servers });
    message
}

/// A packet with a short header for the connection on that backend.
fn quic(port: u16, backend: u8) -> Vec<u8> {
    let id = [&[5 << 5, 0, 0, 0, 0, 0, 0, 0, backend], &[1; 8][..]].concat();
    let mut frame = Vec::new();
    let packet = etherparse::PacketBuilder::ethernet2([1; 6], [2; 6]);
    let packet = packet.ipv4(QUIC_CLIENT.to_be_bytes(), common::VIP, 60).udp(port, 443);
    packet.write(&mut frame, &[&[0x43], id.as_slice()].concat()).unwrap();
    frame
}

#[test]
fn a_quic_packet_goes_where_its_connection_id_says_from_any_port() {
    let mut machine = Machine::new(with_quic_lb(), 10);
    let names: Vec<String> = machine.view.plan.backends().map(|one| one.name.clone()).collect();
    for port in 1000..1020 {
        for (number, name) in names.iter().enumerate() {
            assert_eq!(&machine.backend(1, &quic(port, number as u8)).unwrap(), name);
        }
        let (_, unknown, _) = machine.forward(1, &quic(port, 99));
        assert_eq!(unknown.connection_id, Some(Err(ByFlow::UnknownServer)));
        assert!(unknown.slot.is_some());
    }
    let counted = &machine.counters(0).connection_ids;
    assert_eq!(counted.named.get(), 60);
    assert_eq!(counted.all().map(|(_, counter)| counter.get()).sum::<u64>(), 80);
}

fn with_id(id: &[u8]) -> Details<'_> {
    Details { connection_id: Some(id), ..Details::default() }
}

#[test]
fn an_explanation_says_what_a_connection_id_says_and_where_it_goes() {
    let mut message = with_quic_lb();
    message.groups[0].members[2].set_state(proto::BackendState::Down);
    let mut machine = Machine::new(message, 10);
    let hash = FlowHash::new(&Secret::derived("test"));
    for number in 0..4 {
        let packet = quic(1000, number);
        let key = wire::headers::parse(&packet).unwrap().unwrap().key;
        let id = &packet[packet.len() - 17..];
        let told = explain(&machine.view, &hash, &[], &key, with_id(id));
        let (_, journey, _) = machine.forward(0, &packet);
        assert_eq!(told.backend, journey.backend);
        let said = told.connection_id.unwrap();
        assert_eq!(Some(said.named.map(|_| ())), journey.connection_id);
        assert_eq!(said.backend.is_some(), number < 3, "also of one that is down");
        let config = said.config.unwrap();
        assert_eq!((config.id, config.encrypted), (5, false));
        assert_eq!(config.server_id, [0, 0, 0, 0, 0, 0, 0, number]);
        let cut = explain(&machine.view, &hash, &[], &key, with_id(&id[..12]));
        assert_eq!(cut.connection_id.unwrap().named, Err(ByFlow::TooShort));
        let tcp = wire::FlowKey { protocol: wire::Protocol::TCP, ..key };
        assert_eq!(explain(&machine.view, &hash, &[], &tcp, with_id(id)).connection_id, None);
    }
}

#[test]
fn connections_stay_with_a_server_that_drains_and_leave_one_that_is_down() {
    use proto::{BackendState, OnDown};
    let mut message = with_quic_lb();
    let mut machine = Machine::new(message.clone(), 10);
    let first = machine.backend(1, &quic(1000, 0)).unwrap();
    let mut with = |state: BackendState, on_down: OnDown| {
        message.generation += 1;
        message.groups[0].members[0].set_state(state);
        message.services[0].set_on_down(on_down);
        let map = message.services[0].bucket_map.as_mut().unwrap();
        map.by_bucket.fill(1);
        machine.set(message.clone());
        let (_, journey, _) = machine.forward(1, &quic(1001, 0));
        let backend = machine.view.plan.backend(journey.backend.unwrap()).unwrap().name.clone();
        (backend == first, journey.connection_id.unwrap())
    };
    assert_eq!(with(BackendState::Draining, OnDown::Move), (true, Ok(())));
    assert_eq!(with(BackendState::Down, OnDown::Keep), (true, Ok(())));
    assert_eq!(with(BackendState::Down, OnDown::Move), (false, Err(ByFlow::Unavailable)));
    assert_eq!(with(BackendState::Disabled, OnDown::Keep), (false, Err(ByFlow::Unavailable)));
}

#[test]
fn a_service_without_a_backend_drops_by_name() {
    let mut message = stateless(2);
    message.services[0].bucket_map.as_mut().unwrap().by_bucket.clear();
    let mut machine = Machine::new(message, 1000);
    assert_eq!(machine.backend(0, &tcp(1, 5, Tcp::Syn)), Err(DropReason::NoBackend));
}
