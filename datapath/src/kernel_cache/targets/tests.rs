use plan::Planner;
use wire::MacAddress;

use super::*;
use crate::flow_hash::FlowHash;
use crate::next_hop::NextHop;
use crate::secret::Secret;
use crate::verdict::DeviceIndex;

struct Writer {
    words: &'static [AtomicU64],
    service_buckets: &'static [AtomicU64],
    writer: TargetWriter<'static>,
    planner: Planner,
}

fn words(count: usize) -> &'static [AtomicU64] {
    Vec::leak((0..count).map(|_| AtomicU64::new(0)).collect())
}

fn writer(targets: usize) -> Writer {
    writer_with_buckets(targets, 0)
}

fn writer_with_buckets(targets: usize, service_buckets: usize) -> Writer {
    let (words, service_buckets) = (words(targets * TARGET_WORDS), words(service_buckets));
    let (targets, device) = (Targets::new(words), DeviceIndex(0));
    let memory = TargetMemory { targets, service_buckets, device, sends_by: [true].into() };
    let writer = TargetWriter::new(vec![memory]);
    Writer { words, service_buckets, writer, planner: Planner::default() }
}

fn message(backends: usize) -> serde_json::Value {
    let name = |index| format!("b{index}");
    let backend =
        |index| serde_json::json!({"name": name(index), "address": format!("10.1.0.{index}")});
    let member = |index| serde_json::json!({"backend": name(index), "weight": 1, "state": "BACKEND_STATE_ACTIVE"});
    serde_json::json!({
        "generation": "1",
        "cluster": {"name": "test", "keyId": "derived"},
        "machine": {"name": "lb-1", "addresses": ["10.0.0.1", "2001:db8::1"]},
        "backends": (0..backends).map(backend).collect::<Vec<_>>(),
        "groups": [{"name": "g", "members": (0..backends).map(member).collect::<Vec<_>>()}],
        "services": [{"name": "web", "vips": [{"address": "203.0.113.1"}], "group": "g", "tableSize": 251}],
    })
}

impl Writer {
    fn follow(&mut self, message: serde_json::Value, mac: u8, hops: usize) -> Arc<KernelTargets> {
        let plan = self.planner.plan(serde_json::from_value(message).unwrap()).unwrap();
        let hop = NextHop {
            device: DeviceIndex(0),
            source: MacAddress([2, 0, 0, 0, 0, 1]),
            destination: MacAddress([2, 0, 0, 0, 0, mac]),
            mtu: 1500,
            is_destination: true,
        };
        let egress =
            Egress::new(&plan, &FlowHash::new(&Secret::derived("test")), |_| vec![hop; hops]);
        self.writer.follow(&plan, &egress)
    }

    fn word(&self, target: TargetRef, word: usize) -> u64 {
        self.words[target.number() * TARGET_WORDS + word].load(Ordering::Relaxed)
    }

    /// From Ethernet on.
    fn front(&self, target: TargetRef) -> Vec<u8> {
        (2..TARGET_WORDS).flat_map(|word| self.word(target, word).to_le_bytes()).collect()
    }

    fn is_valid(&self, target: TargetRef) -> bool {
        self.writer.memories[0].targets.is_valid(target)
    }
}

#[test]
fn a_target_is_laid_out_as_the_kernel_reads_it() {
    let mut writer = writer(4);
    let targets = writer.follow(message(1), 0xfe, 1);
    let target = targets.of(0, 0).unwrap();
    assert_eq!((target.number(), target.generation()), (0, 1));
    // 1500 bytes less 24.
    assert_eq!(writer.word(target, 0), 0x00ff_05c4_0000_1001);
    let front = writer.front(target);
    assert_eq!(front[..14], [2, 0, 0, 0, 0, 0xfe, 2, 0, 0, 0, 0, 1, 8, 0]);
    assert_eq!((front[14], front[23]), (0x45, 47));
    assert_eq!(front[26..38], [10, 0, 0, 1, 10, 1, 0, 0, 0, 0, 8, 0]);
    assert_eq!(front[38..], [0; 74]);
    let sum = wire::checksum::fold(wire::checksum::sum(&front[14..34]));
    assert_eq!(writer.word(target, 1), 1 << 16 | u64::from(sum));
}

#[test]
fn a_target_has_the_shape_of_its_headers() {
    let mut writer = writer(4);
    let mut shape = |encap: &str, address: &str| {
        let mut message = message(1);
        message["services"][0]["encap"] = encap.into();
        message["backends"][0]["address"] = address.into();
        let target = writer.follow(message, 0xfe, 1).of(0, 0).unwrap();
        let (word_0, word_1, front) =
            (writer.word(target, 0), writer.word(target, 1), writer.front(target));
        let protocol = front[if front[12] == 8 { 23 } else { 20 }];
        (word_1 >> 16 & 0xff, word_0 >> 32 & 0xffff, protocol)
    };
    let (v4, v6) = ("10.1.0.1", "2001:db8:be::1");
    assert_eq!(shape("ENCAP_GRE", v4), (1, 1500 - 24, 47));
    assert_eq!(shape("ENCAP_IPIP", v4), (0, 1500 - 20, 4));
    assert_eq!(shape("ENCAP_GUE", v4), (1 << 4 | 3, 1500 - 32, 17));
    assert_eq!(shape("ENCAP_GENEVE", v4), (1 << 4 | 4, 1500 - 36, 17));
    assert_eq!(shape("ENCAP_GRE", v6), (1 << 3 | 1, 1500 - 44, 47));
    assert_eq!(shape("ENCAP_IPIP", v6), (1 << 3, 1500 - 40, 4));
    assert_eq!(shape("ENCAP_GUE", v6), (1 << 4 | 1 << 3 | 3, 1500 - 52, 17));
    assert_eq!(shape("ENCAP_GENEVE", v6), (1 << 4 | 1 << 3 | 4, 1500 - 56, 17));
}

#[test]
fn a_match_of_ipv6_has_headers_of_its_own() {
    let mut writer = writer(4);
    let mut message = message(1);
    message["services"][0]["encap"] = "ENCAP_IPIP".into();
    let vip = serde_json::json!({"address": "2001:db8:f::1"});
    message["services"][0]["vips"].as_array_mut().unwrap().push(vip);
    let targets = writer.follow(message, 0xfe, 1);
    let protocol = |matched| writer.front(targets.of(matched, 0).unwrap())[23];
    assert_eq!((protocol(0), protocol(1)), (4, 41));
}

#[test]
fn a_next_hop_that_moves_rewrites_a_target_and_keeps_its_entries() {
    let mut writer = writer(4);
    let before = writer.follow(message(2), 0xfe, 1);
    let after = writer.follow(message(2), 0x77, 1);
    let target = after.of(0, 1).unwrap();
    assert_eq!(before.of(0, 1), Some(target));
    assert!(writer.is_valid(target));
    assert_eq!(writer.word(target, 2).to_le_bytes()[5], 0x77);
    assert_eq!(writer.word(target, 0) as u32, 2 << 12 | 1, "another sequence number");
}

#[test]
fn what_a_plan_no_longer_has_is_not_valid_and_its_number_has_another_generation() {
    let mut writer = writer(2);
    let first = writer.follow(message(2), 0xfe, 1);
    let gone = first.of(0, 1).unwrap();
    let second = writer.follow(message(1), 0xfe, 1);
    assert_eq!((second.of(0, 0), second.of(0, 1)), (first.of(0, 0), None));
    assert!(!writer.is_valid(gone));
    let again = writer.follow(message(2), 0xfe, 1).of(0, 1).unwrap();
    assert_eq!((again.number(), again.generation()), (gone.number(), gone.generation() + 1));
    assert!(writer.is_valid(again) && !writer.is_valid(gone));
}

#[test]
fn a_backend_that_comes_has_the_number_of_one_that_goes() {
    let mut writer = writer(1);
    let gone = writer.follow(message(1), 0xfe, 1).of(0, 0).unwrap();
    let mut message = message(1);
    message["backends"][0]["name"] = "other".into();
    message["groups"][0]["members"][0]["backend"] = "other".into();
    let target = writer.follow(message, 0xfe, 1).of(0, 0).unwrap();
    assert_eq!((target.number(), target.generation()), (gone.number(), gone.generation() + 1));
    assert!(writer.is_valid(target) && !writer.is_valid(gone));
}

#[test]
fn another_set_of_vips_leaves_no_target_valid() {
    let mut writer = writer(8);
    let before = writer.follow(message(2), 0xfe, 1);
    let mut message = message(2);
    let vip = serde_json::json!({"address": "203.0.113.2"});
    message["services"][0]["vips"].as_array_mut().unwrap().push(vip);
    let after = writer.follow(message, 0xfe, 1);
    assert!((0..2).all(|member| !writer.is_valid(before.of(0, member).unwrap())));
    assert!((0..2).all(|matched| writer.is_valid(after.of(matched, 0).unwrap())));
}

#[test]
fn what_the_kernel_cannot_do_has_no_target_and_says_why() {
    let mut writer = writer(4);
    let with = |field: &str, value: serde_json::Value| {
        let mut message = message(1);
        message["services"][0][field] = value;
        message
    };
    let timeouts = |udp_ms: u32| serde_json::json!({"tcpMs": 900_000, "udpMs": udp_ms});
    let mut stateless = with("mode", "MODE_STATELESS".into());
    stateless["services"][0]["encap"] = "ENCAP_GENEVE".into();
    stateless["services"][0]["bucketMap"] =
        serde_json::json!({"generation": "1", "backends": ["b0"], "byBucket": vec![0; 256]});
    let mut multipath = stateless.clone();
    multipath["services"][0]["mptcp"] = serde_json::json!({});
    let mut checksum = with("encap", "ENCAP_GUE".into());
    checksum["tunnel"] = serde_json::json!({"udp6Checksum": true});
    checksum["backends"][0]["address"] = "2001:db8:be::1".into();
    let cases = [
        (checksum, 1, NotCached::Udp6Checksum),
        (message(1), 0, NotCached::NoNextHop),
        (message(1), 2, NotCached::SeveralNextHops),
        (with("idleTimeouts", timeouts(39_999)), 1, NotCached::IdleTimeout),
        (stateless, 1, NotCached::BucketsFull),
        (multipath, 1, NotCached::MoreThanBucket),
    ];
    for (message, hops, why) in cases {
        let targets = writer.follow(message, 0xfe, hops);
        assert_eq!(targets.decision(0, 0), Some(Err(why)));
        let [(_, reason, 1)] = *targets.not_cached else { panic!("{targets:?}") };
        assert_eq!(reason, why);
    }
    let targets = writer.follow(with("idleTimeouts", timeouts(40_000)), 0xfe, 1);
    assert!(targets.of(0, 0).is_some() && targets.not_cached.is_empty());
    assert_eq!(targets.decision(7, 0), None, "no such match");
    let mut down = message(1);
    down["groups"][0]["members"][0]["state"] = "BACKEND_STATE_DOWN".into();
    let targets = writer.follow(down, 0xfe, 1);
    assert_eq!(targets.decision(0, 0), Some(Err(NotCached::NoTraffic)));
    assert!(targets.not_cached.is_empty(), "nothing is in the way");
}

#[test]
fn backends_that_are_not_cached_are_counted_by_service_once() {
    let mut writer = writer(2);
    let mut message = message(5);
    let vip = serde_json::json!({"address": "203.0.113.2"});
    message["services"][0]["vips"].as_array_mut().unwrap().push(vip);
    let targets = writer.follow(message, 0xfe, 1);
    let [(_, NotCached::TargetsFull, 5)] = *targets.not_cached else { panic!("{targets:?}") };
    assert_eq!(targets.refused_full, 8);
}

#[test]
fn where_there_are_too_few_the_others_are_counted() {
    let mut writer = writer(2);
    let targets = writer.follow(message(5), 0xfe, 1);
    assert_eq!(targets.refused_full, 3);
    assert_eq!((0..5).filter(|member| targets.of(0, *member).is_some()).count(), 2);
}

#[test]
fn generations_come_round_without_zero() {
    let mut writer = writer(1);
    for use_number in 1..=5000_u32 {
        let target = writer.follow(message(1), 0xfe, 1).of(0, 0).unwrap();
        assert_eq!(target.generation(), (use_number - 1) % GENERATION_MASK + 1);
        assert!(writer.is_valid(target));
        writer.follow(message(1), 0xfe, 0);
        assert!(!writer.is_valid(target));
    }
}

#[test]
fn each_filter_has_the_targets_that_it_can_send_by() {
    let memory = |device: u8, sends_by: [bool; 3]| TargetMemory {
        targets: Targets::new(words(2 * TARGET_WORDS)),
        service_buckets: &[],
        device: DeviceIndex(device),
        sends_by: sends_by.into(),
    };
    let memories = vec![memory(0, [true, true, false]), memory(1, [false, true, false])];
    let all: Vec<Targets<'static>> = memories.iter().map(|memory| memory.targets).collect();
    let mut writer = TargetWriter::new(memories);
    let mut planner = Planner::default();
    // The target by a next hop on that device, and its egress in each memory.
    let mut follow = |device: u8| {
        let plan = planner.plan(serde_json::from_value(message(1)).unwrap()).unwrap();
        let hop = NextHop {
            device: DeviceIndex(device),
            source: MacAddress([2, 0, 0, 0, 0, 1]),
            destination: MacAddress([2, 0, 0, 0, 0, 2]),
            mtu: 1500,
            is_destination: true,
        };
        let hash = FlowHash::new(&Secret::derived("test"));
        let targets = writer.follow(&plan, &Egress::new(&plan, &hash, |_| vec![hop]));
        let egress = targets.decision(0, 0).unwrap().map(|target| {
            let egress = |cells: &TargetCells| cells[1].load(Ordering::Relaxed) >> 24 & 0xff;
            all.iter()
                .map(|one| one.is_valid(target).then(|| egress(&one.all[target.number()])))
                .collect::<Vec<_>>()
        });
        (egress, targets.not_cached.iter().map(|line| line.1).collect::<Vec<_>>())
    };
    assert_eq!(follow(1), (Ok(vec![Some(2), Some(0)]), vec![]));
    assert_eq!(follow(0), (Ok(vec![Some(0), None]), vec![NotCached::Egress]));
    assert_eq!(follow(1), (Ok(vec![Some(2), Some(0)]), vec![]));
    assert_eq!(follow(2), (Err(NotCached::Egress), vec![NotCached::Egress]));
    assert_eq!(follow(7), (Err(NotCached::Egress), vec![NotCached::Egress]), "no such device");
}

/// With stateless services of 256 buckets each, which two backends have in turns.
fn stateless_message(services: usize) -> serde_json::Value {
    let service = |index| {
        let by_bucket: Vec<u32> = (0..256).map(|bucket| bucket % 2).collect();
        serde_json::json!({
            "name": format!("s{index}"),
            "vips": [{
                "address": format!("203.0.113.{index}"),
                "protocol": "PROTOCOL_TCP",
                "ports": [{"first": 443, "last": 443}],
            }],
            "group": "g",
            "mode": "MODE_STATELESS",
            "encap": "ENCAP_GENEVE",
            "bucketMap": {"generation": "1", "backends": ["b0", "b1"], "byBucket": by_bucket},
        })
    };
    let mut message = message(2);
    message["services"] = (0..services).map(service).collect();
    message
}

#[test]
fn buckets_of_stateless_services_follow_each_other_in_layouts() {
    let mut writer = writer_with_buckets(8, 512);
    let targets = writer.follow(stateless_message(2), 0xfe, 1);
    let services: Vec<_> = targets.services.iter().map(|(_, service)| *service).collect();
    assert_eq!(services, [[0, 256, 1, 0], [256, 256, 1, 0]]);
    let (socket, _) = targets.services[1];
    assert_eq!(socket[..12], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
    assert_eq!(socket[12..], [203, 0, 113, 1, 1, 0xbb, 6, 0]);
    let word = |at: usize| writer.service_buckets[at].load(Ordering::Relaxed);
    let target = |matched, member| u64::from(targets.of(matched, member).unwrap().bits());
    assert_eq!([0, 1, 255].map(word), [0, 1, 1].map(|member| 1 << 32 | target(0, member)));
    assert_eq!([256, 257].map(word), [0, 1].map(|member| 1 << 32 | target(1, member)));
    assert!(!writer.follow(stateless_message(2), 0xfe, 1).has_changes);
    // One service less: words of the former layout are nobody's.
    let fewer = writer.follow(stateless_message(1), 0xfe, 1);
    assert_eq!(fewer.services[0].1, [0, 256, 2, 0]);
    assert!(fewer.has_changes);
    let layout = |at: usize| writer.service_buckets[at].load(Ordering::Relaxed) >> 32;
    assert_eq!([0, 255, 256].map(layout), [2, 2, 1]);
}

#[test]
fn buckets_beyond_those_there_is_room_for_are_named() {
    let mut writer = writer_with_buckets(8, 300);
    let targets = writer.follow(stateless_message(2), 0xfe, 1);
    assert_eq!(targets.services.len(), 1);
    assert!(targets.of(0, 0).is_some());
    assert_eq!(targets.decision(1, 0), Some(Err(NotCached::BucketsFull)));
    let mut ranges = stateless_message(1);
    ranges["services"][0]["vips"][0]["ports"][0]["last"] = 444.into();
    let targets = writer.follow(ranges, 0xfe, 1);
    assert_eq!(targets.decision(0, 0), Some(Err(NotCached::SeveralSockets)));
    assert!(targets.services.is_empty());
}
