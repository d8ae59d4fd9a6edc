//! Ports that belong to one backend each, for joins of Multipath TCP, tested with packets.

use crate::common::{Machine, VIP, make_stateless, message};
use datapath::recorder::Lookup;
use datapath::{DropReason, Verdict};
use etherparse::PacketBuilder;
use plan::proto;

/// Services of three backends, b001 to b003, whose ports are 20000 to 20002; tracked,
/// and stateless.
fn messages() -> [proto::Plan; 2] {
    let mut tracked = message(3);
    let members = tracked.groups[0].members.iter();
    let join_port = |(port, member): (u32, &proto::Member)| proto::JoinPort {
        port,
        backend: member.backend.clone(),
    };
    tracked.services[0].join_ports = (20000..).zip(members).map(join_port).collect();
    let mut stateless = tracked.clone();
    make_stateless(&mut stateless, &[0; 256]);
    [tracked, stateless]
}

fn tcp(client: u32, to: u16) -> Vec<u8> {
    let mut frame = Vec::new();
    PacketBuilder::ethernet2([1; 6], [2; 6])
        .ipv4(client.to_be_bytes(), VIP, 60)
        .tcp(40000, to, 7, 1024)
        .syn()
        .write(&mut frame, b"")
        .unwrap();
    frame
}

#[test]
fn packets_to_a_join_port_go_to_its_backend_from_everywhere() {
    for message in messages() {
        let mut machine = Machine::new(message, 1000);
        for client in 0xc000_0200..0xc000_0240 {
            for (port, name) in [(20000, "b001"), (20001, "b002"), (20002, "b003")] {
                let (_, journey, _) = machine.forward(1, &tcp(client, port));
                let backend = machine.view.plan.backend(journey.backend.unwrap()).unwrap();
                assert_eq!(backend.name, name);
                assert_eq!((journey.lookup, journey.slot), (Lookup::None, None));
            }
        }
        assert_eq!(machine.tables[0].entries().count(), 0);
    }
}

#[test]
fn other_ports_of_the_service_are_decided_as_ever() {
    let [tracked, _] = messages();
    let without = |message: &proto::Plan| {
        let mut message = message.clone();
        message.services[0].join_ports.clear();
        message
    };
    let mut machines = [without(&tracked), tracked].map(|message| Machine::new(message, 1000));
    for client in 0xc000_0200..0xc000_0240 {
        let [one, other] =
            machines.each_mut().map(|machine| machine.backend(1, &tcp(client, 80)).unwrap());
        assert_eq!(one, other);
    }
    assert!(machines[1].tables[0].entries().count() > 0);
}

#[test]
fn packets_are_counted_for_the_port_and_for_its_backend() {
    for message in messages() {
        let mut machine = Machine::new(message, 1000);
        for client in 0xc000_0200..0xc000_0205 {
            machine.forward(1, &tcp(client, 20001));
        }
        let plan = &machine.view.plan;
        let by_port: Vec<(&str, u64)> = plan
            .matches
            .iter()
            .enumerate()
            .map(|(index, entry)| {
                let total = machine.view.counters[0].match_totals(plan, index);
                (entry.ports.as_str(), total.packets)
            })
            .filter(|(_, packets)| *packets > 0)
            .collect();
        assert_eq!(by_port, [("20001", 5)]);
        let matched = plan.matches[0].matched;
        let by_member: Vec<u64> = (0..3)
            .map(|member| machine.view.counters[0].member(&matched, member).packets.get())
            .collect();
        assert_eq!(by_member, [0, 5, 0]);
    }
}

#[test]
fn a_backend_that_is_down_or_drains_keeps_its_port_and_a_disabled_one_does_not() {
    for (state, sent) in [
        (proto::BackendState::Draining, true),
        (proto::BackendState::Down, true),
        (proto::BackendState::Disabled, false),
    ] {
        for mut message in messages() {
            message.groups[0].members[1].state = state as i32;
            let mut machine = Machine::new(message, 1000);
            let (verdict, ..) = machine.forward(1, &tcp(0xc000_0201, 20001));
            match sent {
                true => assert!(matches!(verdict, Verdict::Send(_)), "{state:?}"),
                false => assert_eq!(verdict, Verdict::Drop(DropReason::NoBackend)),
            }
        }
    }
}

#[test]
fn join_ports_that_make_no_sense_are_refused_by_their_path() {
    let refused = |change: fn(&mut proto::Service)| {
        let [mut message, _] = messages();
        change(&mut message.services[0]);
        plan::Planner::default().plan(message).unwrap_err().to_string()
    };
    let problem = refused(|service| service.join_ports[1].port = 65536);
    assert_eq!(problem, "services[0].join_ports[1].port: 65536 is not within 1 to 65535");
    let problem = refused(|service| service.join_ports[1].backend = "b009".into());
    assert_eq!(
        problem,
        "services[0].join_ports[1].backend: `b009` is no member of the service's group"
    );
    let problem = refused(|service| service.join_ports[1].port = 20000);
    assert_eq!(
        problem,
        "services[0].join_ports[1]: claims packets that services[0].vips[0] (203.0.113.10 tcp 20000) claims already"
    );
}
