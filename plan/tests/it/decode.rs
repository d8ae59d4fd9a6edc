//! Decoding: what is accepted, and each refusal with its path.

use std::sync::Arc;

use plan::{Admission, Found, Plan, Planner, Tracking, proto};
use wire::tunnel::geneve;
use wire::tunnel::route_option::RouteOption;
use wire::{Family, FlowKey, Protocol, ip};

fn message() -> proto::Plan {
    serde_json::from_str(
        r#"{
        "generation": "1",
        "cluster": {"name": "c1", "keyId": "derived"},
        "machine": {"name": "lb-1", "addresses": ["10.0.0.1", "2001:db8::1"]},
        "prefixGroups": [{"name": "class-a", "prefixes": ["198.51.100.0/24", "198.51.100.128/25", "192.0.0.0/16", "2001:db8:a::/64"]}],
        "backends": [{"name": "b1", "address": "10.1.0.1"}, {"name": "b2", "address": "10.1.0.2"}, {"name": "b6", "address": "2001:db8:1::6"}],
        "services": [
          {"name": "web", "vips": [{"address": "203.0.113.10", "ports": [{"first": 80, "last": 80}, {"first": 8000, "last": 8100}], "protocol": "PROTOCOL_TCP"}],
           "group": "p"},
          {"name": "six", "vips": [{"address": "2001:db8:f::1"}], "group": "p6"}
        ],
        "groups": [
          {"name": "p", "members": [{"backend": "b1", "weight": 1, "state": "BACKEND_STATE_ACTIVE"}, {"backend": "b2", "weight": 2, "state": "BACKEND_STATE_DRAINING"}]},
          {"name": "p6", "members": [{"backend": "b6", "weight": 1, "state": "BACKEND_STATE_ACTIVE"}]}
        ]}"#,
    )
    .unwrap()
}

fn plan(message: proto::Plan) -> Plan {
    Planner::default().plan(message).unwrap()
}

fn refusal(change: impl FnOnce(&mut proto::Plan)) -> String {
    let mut message = message();
    change(&mut message);
    Planner::default().plan(message).unwrap_err().to_string()
}

fn key(destination: &str, protocol: Protocol, port: u16) -> FlowKey {
    let destination: std::net::IpAddr = destination.parse().unwrap();
    FlowKey {
        family: Family::of(destination),
        protocol,
        source: 1,
        destination: ip::address_bits(destination),
        source_port: 9,
        destination_port: port,
    }
}

#[test]
fn members_admit_what_their_states_say() {
    let plan = plan(message());
    let web = plan.services().next().unwrap();
    let admissions: Vec<Admission> =
        web.group.members().iter().map(|member| member.admission).collect();
    assert_eq!(admissions, [Admission::All, Admission::TrackedOnly { is_down: false }]);
    let b1 = web.group.members()[0].backend;
    assert!((0..100u64).all(|hash| web.group.select(hash << 57).unwrap().backend == b1));
}

#[test]
fn down_backends_follow_on_down_and_fail_open() {
    use proto::BackendState::Down;
    let with = |on_down: proto::OnDown, when_none: proto::WhenNone| {
        let mut message = message();
        let web = &mut message.services[0];
        web.set_on_down(on_down);
        web.set_when_none(when_none);
        message.groups[0].members.iter_mut().for_each(|member| member.set_state(Down));
        let plan = plan(message);
        let group = Arc::clone(&plan.services().next().unwrap().group);
        (group.members()[0].admission, group.selector().is_some())
    };
    let kept = Admission::TrackedOnly { is_down: true };
    assert_eq!(with(proto::OnDown::Move, proto::WhenNone::Withdraw), (Admission::Nothing, false));
    assert_eq!(with(proto::OnDown::Keep, proto::WhenNone::Withdraw), (kept, false));
    assert_eq!(with(proto::OnDown::Move, proto::WhenNone::FailOpen), (Admission::All, true));
}

#[test]
fn a_named_spill_comes_before_failing_open() {
    let mut message = message();
    message.services[0].set_when_none(proto::WhenNone::FailOpen);
    message.services[0].spill =
        vec![proto::Spill { prefix: "198.51.100.0/24".into(), ..Default::default() }];
    let all_down = |message: &mut proto::Plan| {
        let members = message.groups[0].members.iter_mut();
        members.for_each(|member| member.set_state(proto::BackendState::Down));
    };
    let selects =
        |message: proto::Plan| plan(message).services().next().unwrap().group.selector().is_some();
    assert!(selects(message.clone()), "some backends are active");
    all_down(&mut message);
    assert!(!selects(message.clone()), "the other cluster serves");
    message.services[0].spill.clear();
    assert!(selects(message), "without one, backends that are down do");
}

#[test]
fn more_connections_than_any_table_holds_are_refused() {
    let with = |connections_max| {
        let mut message = message();
        message.forwarder = Some(proto::Forwarder { connections_max, ..Default::default() });
        Planner::default().plan(message).map(|_| ())
    };
    assert_eq!(with(0), Ok(()));
    assert_eq!(with(1 << 28), Ok(()));
    for too_many in [(1 << 28) + 1, 1 << 62, u64::MAX] {
        let refused = with(too_many).unwrap_err().to_string();
        let named = ["forwarder.connections_max", &too_many.to_string(), "268435456"];
        assert!(named.iter().all(|name| refused.contains(name)), "{refused}");
    }
}

#[test]
fn ids_and_tables_are_kept_from_plan_to_plan() {
    let mut planner = Planner::default();
    let first = planner.plan(message()).unwrap();
    let mut changed = message();
    changed.generation = 2;
    changed.services.swap(0, 1);
    changed.backends.push(proto::Backend { name: "a0".into(), address: "10.1.0.9".into() });
    let second = planner.plan(changed).unwrap();
    let id =
        |plan: &Plan, name: &str| plan.backends().find(|backend| backend.name == name).unwrap().id;
    for name in ["b1", "b2", "b6"] {
        assert_eq!(id(&first, name), id(&second, name));
    }
    let web = |plan: &Plan| {
        Arc::clone(&plan.services().find(|service| service.name == "web").unwrap().group)
    };
    assert!(Arc::ptr_eq(&web(&first), &web(&second)), "the same members share one group");
}

#[test]
fn one_backends_flap_builds_only_the_tables_it_is_in() {
    let mut message = message();
    for (name, address, of) in [("copy", "203.0.113.11", 0), ("other", "203.0.113.12", 1)] {
        let mut service = message.services[of].clone();
        service.name = name.into();
        service.vips[0].target = Some(proto::vip::Target::Address(address.into()));
        message.services.push(service);
    }
    // web and copy have b1 and b2; six and other have b6.
    let groups = |plan: &Plan| -> Vec<_> {
        plan.services().map(|service| Arc::clone(&service.group)).collect()
    };
    let mut planner = Planner::default();
    let up = planner.plan(message.clone()).unwrap();
    message.groups[0].members[0].set_state(proto::BackendState::Down);
    let down = planner.plan(message).unwrap();
    let (up, down) = (groups(&up), groups(&down));
    let kept: Vec<bool> = up.iter().zip(&down).map(|(up, down)| Arc::ptr_eq(up, down)).collect();
    assert_eq!(kept, [false, true, false, true]);
    assert!(Arc::ptr_eq(&down[0], &down[2]), "built once for both");
}

#[test]
fn services_with_the_same_members_share_one_table() {
    let mut message = message();
    let mut copy = message.services[0].clone();
    copy.name = "copy".into();
    copy.vips[0].target = Some(proto::vip::Target::Address("203.0.113.11".into()));
    message.services.push(copy);
    let plan = plan(message);
    let groups: Vec<_> = plan.services().map(|service| Arc::as_ptr(&service.group)).collect();
    assert_eq!(groups[0], groups[2]);
}

#[test]
fn services_of_one_group_share_it_but_for_what_they_do_with_it() {
    let mut message = message();
    message.groups[0].members[1].set_state(proto::BackendState::Down);
    let mut add = |name: &str, change: fn(&mut proto::Service)| {
        let mut service = message.services[0].clone();
        service.name = name.into();
        let address = format!("203.0.113.{}", 100 + message.services.len());
        service.vips[0].target = Some(proto::vip::Target::Address(address));
        change(&mut service);
        message.services.push(service);
    };
    add("same", |_| ());
    add("keeps", |service| service.set_on_down(proto::OnDown::Keep));
    add("larger", |service| service.table_size = 655_373);
    // A member is active: the same.
    add("open", |service| service.set_when_none(proto::WhenNone::FailOpen));
    let plan = plan(message);
    let groups: Vec<_> = plan.services().map(|service| Arc::as_ptr(&service.group)).collect();
    let as_first: Vec<bool> = groups.iter().map(|group| *group == groups[0]).collect();
    assert_eq!(as_first, [true, false, true, false, false, true]);
    assert_eq!(plan.groups.len(), 4);
}

#[test]
fn a_group_that_no_service_names_is_checked_and_left_out() {
    let unused = |backend: &str| {
        let mut message = message();
        let mut group = message.groups[0].clone();
        group.name = "unused".into();
        group.members[0].backend = backend.into();
        message.groups.push(group);
        Planner::default().plan(message)
    };
    assert_eq!(unused("b6").unwrap().groups.len(), 2);
    let refusal = unused("b9").unwrap_err();
    assert_eq!(refusal.path, "groups[2].members[0].backend");
}

#[test]
fn destinations_are_told_apart() {
    let plan = plan(message());
    let found = |address, protocol, port| plan.vips.find(&key(address, protocol, port).target());
    assert!(matches!(found("203.0.113.10", Protocol::TCP, 8050), Found::Service(_)));
    assert_eq!(found("203.0.113.10", Protocol::TCP, 81), Found::NoService { pass: false });
    assert_eq!(found("203.0.113.10", Protocol::UDP, 80), Found::NoService { pass: false });
    assert_eq!(found("203.0.113.11", Protocol::TCP, 80), Found::NotVip);
    assert!(matches!(found("2001:db8:f::1", Protocol(132), 0), Found::Service(_)));
}

#[test]
fn a_former_versions_plan_that_learns_no_path_mtus_is_taken() {
    let path_mtu = Some(proto::PathMtu { learn: Some(false) });
    let requires = vec!["path-mtu-learn".to_owned()];
    let plan = proto::Plan { path_mtu, requires, ..message() };
    assert_eq!(Planner::default().plan(plan).unwrap().tunnel.mtu, None);
}

#[test]
fn refusals_name_the_field() {
    let starts =
        |text: String, path: &str| assert!(text.starts_with(&format!("{path}: ")), "{text}");
    starts(refusal(|plan| plan.requires.push("teleport".into())), "requires[0]");
    for mtu in [575, 65_536] {
        let tunnel = Some(proto::Tunnel { mtu, ..Default::default() });
        starts(refusal(|plan| plan.tunnel = tunnel), "tunnel.mtu");
    }
    starts(refusal(|plan| plan.backends[1].name = "b1".into()), "backends[1].name");
    starts(refusal(|plan| plan.backends[1].address = "nowhere".into()), "backends[1].address");
    starts(
        refusal(|plan| plan.machine.as_mut().unwrap().addresses.truncate(1)),
        "backends[2].address",
    );
    starts(refusal(|plan| plan.services[1].name = "web".into()), "services[1].name");
    starts(refusal(|plan| plan.services[0].table_size = 65_536), "services[0].table_size");
    starts(
        refusal(|plan| plan.groups[1].members[0].backend = "b9".into()),
        "groups[1].members[0].backend",
    );
    starts(refusal(|plan| plan.groups[1].members[0].weight = 5_000), "groups[1].members[0].weight");
    starts(refusal(|plan| plan.groups[1].members[0].state = 0), "groups[1].members[0].state");
    starts(refusal(|plan| plan.groups[0].members[1].backend = "b1".into()), "groups[0].members");
    starts(refusal(|plan| plan.groups[1].name = "p".into()), "groups[1].name");
    starts(refusal(|plan| plan.groups[1].name.clear()), "groups[1].name");
    starts(refusal(|plan| plan.services[1].group = "p7".into()), "services[1].group");
    starts(refusal(|plan| plan.groups.clear()), "groups");
    starts(
        refusal(|plan| plan.services[0].vips[0].ports[0].last = 70_000),
        "services[0].vips[0].ports[0]",
    );
    starts(refusal(|plan| plan.services[0].vips[0].ports[1].first = 80), "services[0].vips[0]");
    starts(refusal(|plan| plan.services[0].vips[0].target = None), "services[0].vips[0]");
    starts(refusal(|plan| plan.services[0].dscp = Some(64)), "services[0].dscp");
    starts(
        refusal(|plan| {
            plan.services[0].idle_timeouts =
                Some(proto::IdleTimeouts { tcp_ms: 9_000_000, ..Default::default() })
        }),
        "services[0].idle_timeouts.tcp_ms",
    );
    starts(
        refusal(|plan| plan.prefix_groups[0].prefixes[0] = "198.51.100.1/24".into()),
        "prefix_groups[0].prefixes[0]",
    );
    starts(
        refusal(|plan| plan.prefix_groups[0].prefixes[0] = "198.51.100.128/25".into()),
        "prefix_groups[0].prefixes[1]",
    );
    let clash = |plan: &mut proto::Plan| {
        let mut copy = plan.services[0].clone();
        copy.name = "copy".into();
        plan.services.push(copy);
    };
    assert!(refusal(clash).contains("services[0].vips[0] (203.0.113.10 tcp 80)"));
}

fn make_stateless(message: &mut proto::Plan) {
    let service = &mut message.services[0];
    service.set_mode(proto::Mode::Stateless);
    service.set_encap(proto::Encap::Geneve);
    service.bucket_map = Some(proto::BucketMap {
        generation: 7,
        backends: vec!["b2".into(), "b1".into()],
        by_bucket: (0..256).map(|bucket| u32::from(bucket >= 64)).collect(),
        moves: Vec::new(),
    });
}

fn open_move(bucket: u32, others: &[u32]) -> proto::OpenMove {
    proto::OpenMove { bucket, others: others.to_vec() }
}

#[test]
fn packets_of_a_bucket_with_an_open_move_carry_its_route_option() {
    let mut message = message();
    make_stateless(&mut message);
    let fingerprint = |message: &proto::Plan| {
        let plan = plan(message.clone());
        let service = plan.services().next().unwrap();
        service.group.selector().unwrap().fingerprint()
    };
    let before = fingerprint(&message);
    let map = message.services[0].bucket_map.as_mut().unwrap();
    map.generation = 1 << 32 | 8;
    map.moves = vec![open_move(3, &[1]), open_move(255, &[0])];
    assert_ne!(fingerprint(&message), before, "machines with other moves forward otherwise");
    let plan = plan(message);
    let service = plan.services().next().unwrap();
    assert_eq!(service.tunnel.option_bytes, 60);
    let route = |bucket: u64| {
        let selected = service.group.select(bucket << 56).unwrap();
        let option = service.group.route_option(selected.slot, selected.backend);
        assert_eq!(option.is_some(), selected.has_route_option);
        let other = plan.backends().find(|backend| backend.id != selected.backend).unwrap().id;
        assert_eq!(service.group.route_option(selected.slot, other), None);
        let option = option.map(|option| {
            let option = geneve::options(option).next().unwrap().unwrap();
            RouteOption::parse(&option).unwrap().unwrap()
        });
        (plan.backend(selected.backend).unwrap().name.as_str(), option)
    };
    let option = |bucket, address: &str| RouteOption {
        returns: false,
        hop_limit: 4,
        bucket: Some(bucket),
        generation: 8,
        addresses: [address.parse().unwrap()].into_iter().collect(),
    };
    assert_eq!(route(2), ("b2", None));
    assert_eq!(route(3), ("b2", Some(option(3, "10.1.0.1"))));
    assert_eq!(route(4), ("b2", None));
    assert_eq!(route(255), ("b1", Some(option(255, "10.1.0.2"))));
    let selector = service.group.selector().unwrap();
    assert_eq!((selector.slot(u64::MAX), service.group.selected_by_slot().count()), (255, 256));
}

#[test]
fn a_stateless_service_selects_by_its_map_whatever_its_members_states() {
    let mut message = message();
    make_stateless(&mut message);
    let plan = plan(message);
    let service = plan.services().next().unwrap();
    assert_eq!(service.tracking, Tracking::Stateless);
    let name = |hash: u64| {
        let selected = service.group.select(hash).unwrap();
        let backend = plan.backend(selected.backend).unwrap();
        (selected.slot, selected.member, backend.name.as_str())
    };
    assert_eq!(name(0), (0, 1, "b2"), "it drains, and has the bucket all the same");
    assert_eq!(name(63 << 56), (63, 1, "b2"));
    assert_eq!(name(64 << 56), (64, 0, "b1"));
    assert_eq!(name(u64::MAX), (255, 0, "b1"));
}

#[test]
fn a_map_without_buckets_has_no_backend() {
    let mut message = message();
    make_stateless(&mut message);
    message.services[0].bucket_map.as_mut().unwrap().by_bucket.clear();
    assert_eq!(plan(message).services().next().unwrap().group.select(7), None);
}

#[test]
fn maps_of_buckets_are_refused_with_their_path() {
    let refused = |change: fn(&mut proto::Service)| {
        refusal(|message| {
            make_stateless(message);
            change(&mut message.services[0]);
        })
    };
    let map = |change: fn(&mut proto::BucketMap)| {
        refusal(|message| {
            make_stateless(message);
            change(message.services[0].bucket_map.as_mut().unwrap());
        })
    };
    let path = "services[0].bucket_map";
    let starts = |refusal: String, path: &str| assert!(refusal.starts_with(path), "{refusal}");
    starts(refused(|service| service.bucket_map = None), path);
    starts(refused(|service| service.set_mode(proto::Mode::Stateful)), path);
    starts(refused(|service| service.set_encap(proto::Encap::Gue)), "services[0].encap");
    starts(map(|map| map.by_bucket.truncate(255)), &format!("{path}.by_bucket"));
    starts(map(|map| map.by_bucket.truncate(128)), &format!("{path}.by_bucket"));
    starts(map(|map| map.by_bucket = vec![0; 16_384]), &format!("{path}.by_bucket"));
    starts(map(|map| map.by_bucket[9] = 2), &format!("{path}.by_bucket[9]"));
    starts(map(|map| map.backends[1] = "b6".into()), &format!("{path}.backends[1]"));
    starts(map(|map| map.backends[1] = "b2".into()), &format!("{path}.backends[1]"));
    starts(map(|map| map.moves = vec![open_move(256, &[1])]), &format!("{path}.moves[0].bucket"));
    let twice = |map: &mut proto::BucketMap| map.moves = vec![open_move(9, &[1]); 2];
    starts(map(twice), &format!("{path}.moves[1].bucket"));
    starts(map(|map| map.moves = vec![open_move(9, &[])]), &format!("{path}.moves[0].others: 0"));
    let four = map(|map| map.moves = vec![open_move(9, &[1, 0, 1, 0])]);
    starts(four, &format!("{path}.moves[0].others: 4"));
    starts(map(|map| map.moves = vec![open_move(9, &[0])]), &format!("{path}.moves[0].others[0]"));
    let twice = map(|map| map.moves = vec![open_move(9, &[1, 1])]);
    starts(twice, &format!("{path}.moves[0].others[1]"));
    let none = map(|map| map.moves = vec![open_move(9, &[1, 2])]);
    starts(none, &format!("{path}.moves[0].others[1]: 2 is no index of the 2"));
}

/// Protobuf hands on what it does not know; taken for the default it would
/// forward as the controller did not mean.
#[test]
fn choices_of_a_newer_version_are_refused_by_name() {
    let service =
        |change: fn(&mut proto::Service)| refusal(|message| change(&mut message.services[1]));
    let cases = [
        (service(|service| service.mode = 9), "services[1].mode"),
        (service(|service| service.affinity = 9), "services[1].affinity"),
        (service(|service| service.encap = 9), "services[1].encap"),
        (service(|service| service.on_down = 9), "services[1].on_down"),
        (service(|service| service.when_none = 9), "services[1].when_none"),
        (service(|service| service.fragments = 9), "services[1].fragments"),
        (service(|service| service.unmatched = 9), "services[1].unmatched"),
        (service(|service| service.vips[0].protocol = 9), "services[1].vips[0].protocol"),
        (refusal(|message| message.groups[1].members[0].state = 9), "groups[1].members[0].state"),
        (
            refusal(|message| {
                message.forwarder = Some(proto::Forwarder { steering: 9, ..Default::default() })
            }),
            "forwarder.steering",
        ),
    ];
    for (refusal, path) in cases {
        assert_eq!(refusal, format!("{path}: this forwarder does not know choice 9: upgrade it"));
    }
}

#[test]
fn a_refused_plan_takes_no_ids_away() {
    let mut planner = Planner::default();
    planner.plan(message()).unwrap();
    let before = planner.ids().clone();
    let mut bad = message();
    bad.backends.truncate(1);
    bad.services[0].table_size = 4;
    planner.plan(bad).unwrap_err();
    assert_eq!(*planner.ids(), before);
}

#[test]
fn what_devices_must_let_through_is_every_vip() {
    let mut message = message();
    message.services[0].vips.push(proto::Vip {
        target: Some(proto::vip::Target::PrefixSuffix(proto::PrefixSuffix {
            prefix_group: "class-a".into(),
            suffix: "0.0.0.10".into(),
            suffix_bits: 7,
        })),
        ..Default::default()
    });
    let prefixes = plan(message).vip_prefixes();
    let text: Vec<String> =
        prefixes.iter().map(|(address, bits)| format!("{address}/{bits}")).collect();
    assert_eq!(
        text,
        [
            "192.0.0.0/16",
            "198.51.100.0/24",
            "198.51.100.128/25",
            "203.0.113.10/32",
            "2001:db8:a::/64",
            "2001:db8:f::1/128"
        ]
    );
}

#[test]
fn ids_that_are_not_yet_free_are_no_fault_of_the_plan() {
    let with = |first: usize| {
        let mut message = message();
        let service = message.services[1].clone();
        message.services = (first..first + 10_000)
            .map(|index| proto::Service {
                name: format!("s{index}"),
                vips: Vec::new(),
                ..service.clone()
            })
            .collect();
        message
    };
    let mut planner = Planner::default();
    planner.plan(with(0)).unwrap();
    let refusal = planner.plan(with(10_000)).unwrap_err();
    assert!(refusal.later && refusal.path == "services", "{refusal:?}");
    planner.release(1);
    assert!(
        !planner.plan(proto::Plan { requires: vec!["x".into()], ..with(0) }).unwrap_err().later
    );
}

fn probing(assigned: &[(u32, &str, proto::Encap)]) -> Option<proto::Probing> {
    let assigned = assigned.iter().map(|(port, backend, encap)| proto::ProbePort {
        port: *port,
        backend: (*backend).to_owned(),
        encap: (*encap).into(),
    });
    let ports = Some(proto::PortRange { first: 20_000, last: 20_009 });
    Some(proto::Probing { ports, assigned: assigned.collect() })
}

#[test]
fn a_port_of_probes_stands_for_a_backend_and_an_encapsulation() {
    let mut message = message();
    message.services[1].encap = proto::Encap::Gue.into();
    message.probing = probing(&[
        (20_000, "b2", proto::Encap::Gre),
        (20_003, "b6", proto::Encap::Gue),
        (20_009, "b2", proto::Encap::Gue),
    ]);
    let plan = plan(message);
    let named = |port| {
        let tunnel = plan.probing.as_ref().unwrap().tunnel(port)?;
        let encap = plan::encap_name(plan.profiles[usize::from(tunnel.profile)].encap);
        Some((plan.backend(tunnel.backend).unwrap().name.as_str(), encap))
    };
    assert_eq!(named(20_000), Some(("b2", "gre")));
    assert_eq!(named(20_003), Some(("b6", "gue")));
    assert_eq!(named(20_009), Some(("b2", "gue")));
    assert_eq!((named(20_001), named(0), named(80)), (None, None, None));
}

#[test]
fn wrong_ports_of_probes_are_refused_by_name() {
    use proto::Encap::{Gre, Gue};
    for (wrong, path, word) in [
        (probing(&[(19_999, "b1", Gre)]), "probing.assigned[0].port", "20000-20009"),
        (probing(&[(20_001, "b1", Gre), (20_001, "b2", Gre)]), "probing.assigned[1].port", "once"),
        (probing(&[(20_001, "b9", Gre)]), "probing.assigned[0].backend", "b9"),
        (probing(&[(20_001, "b1", Gue)]), "probing.assigned[0].encap", "gue"),
        (Some(proto::Probing::default()), "probing.ports", "20000-32767"),
    ] {
        let refusal = refusal(|message| message.probing = wrong);
        assert!(refusal.starts_with(path) && refusal.contains(word), "{refusal}");
    }
}

#[test]
fn connection_ids_that_cannot_be_told_apart_are_refused_by_field() {
    let service = |change: fn(&mut proto::QuicLb)| {
        let mut message = message();
        make_stateless(&mut message);
        let server = |(index, member): (usize, &proto::Member)| proto::QuicServer {
            backend: member.backend.clone(),
            server_id: format!("00000001{index:08x}"),
        };
        let servers = message.groups[0].members.iter().enumerate().map(server).collect();
        let config =
            |id| proto::QuicLbConfig { id, encrypted: true, server_id_bytes: 8, nonce_bytes: 8 };
        let mut quic_lb = proto::QuicLb { configs: vec![config(0), config(6)], servers };
        change(&mut quic_lb);
        message.services[0].quic_lb = Some(quic_lb);
        message
    };
    let error = |change| Planner::default().plan(service(change)).unwrap_err().path;
    Planner::default().plan(service(|_| {})).unwrap();
    assert_eq!(error(|given| given.configs.clear()), "services[0].quic_lb.configs");
    assert_eq!(error(|given| given.configs[1].id = 7), "services[0].quic_lb.configs[1].id");
    assert_eq!(error(|given| given.configs[1].id = 0), "services[0].quic_lb.configs[1].id");
    let (server_bytes, nonce_bytes) = (
        "services[0].quic_lb.configs[0].server_id_bytes",
        "services[0].quic_lb.configs[0].nonce_bytes",
    );
    assert_eq!(error(|given| given.configs[0].server_id_bytes = 9), server_bytes);
    assert_eq!(error(|given| given.configs[0].server_id_bytes = 0), server_bytes);
    assert_eq!(error(|given| given.configs[0].nonce_bytes = 3), nonce_bytes);
    assert_eq!(error(|given| given.configs[0].nonce_bytes = 12), nonce_bytes);
    assert_eq!(error(|given| given.configs[1].server_id_bytes = 4), "services[0].quic_lb.servers");
    assert_eq!(
        error(|given| given.servers[1].backend = "x".into()),
        "services[0].quic_lb.servers[1].backend"
    );
    let server_id = "services[0].quic_lb.servers[0].server_id";
    assert_eq!(error(|given| given.servers[0].server_id = "+123456789abcdef".into()), server_id);
    assert_eq!(error(|given| given.servers[0].server_id = "12".into()), server_id);
    let mut tracked = service(|_| {});
    tracked.services[0].set_mode(proto::Mode::Stateful);
    tracked.services[0].bucket_map = None;
    assert_eq!(Planner::default().plan(tracked).unwrap_err().path, "services[0].quic_lb");
}

#[test]
fn multipath_tcp_is_refused_where_tokens_would_not_decide_alone() {
    let service = |change: fn(&mut proto::Service)| {
        let mut message = message();
        make_stateless(&mut message);
        let service = &mut message.services[0];
        service.mptcp = Some(proto::Mptcp {});
        change(service);
        Planner::default().plan(message)
    };
    let plan = service(|_| {}).unwrap();
    let decoded = plan.services().find(|service| service.tracking.is_stateless()).unwrap();
    assert_eq!(decoded.tracking, Tracking::StatelessMultipath);
    assert_eq!(decoded.tunnel.option_bytes, 92, "a route option and a Multipath TCP option");
    let refused = |change| service(change).unwrap_err().path;
    let by_client = refused(|service| service.set_affinity(proto::Affinity::Client));
    assert_eq!(by_client, "services[0].mptcp");
    assert_eq!(refused(|service| service.quic_lb = Some(<_>::default())), "services[0].mptcp");
    let stateful = refused(|service| {
        service.set_mode(proto::Mode::Stateful);
        service.bucket_map = None;
    });
    assert_eq!(stateful, "services[0].mptcp");
    let in_gre = refused(|service| service.set_encap(proto::Encap::Gre));
    assert_eq!(in_gre, "services[0].encap");
}
