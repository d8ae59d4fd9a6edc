//! The kernel flow cache in a running forwarder, over veth: one device, and two.
//!
//! ```text
//!  client 10.0.0.2, backends 10.0.0.11, 10.0.0.12 ──eth0── eth0 10.0.0.1 balancer
//!  and the same of fd00::
//!
//!  client 10.0.0.2 ──eth0── eth0 10.0.0.1 balancer 10.0.1.1 eth1 ──eth0── backend 10.0.1.11
//!
//!  client 10.0.0.2, backend 10.0.0.11 ──eth0── eth0 10.0.0.1 balancer
//!                   10.0.1.2          ──eth1── eth1 10.0.1.1
//! ```

mod interfaces;
mod rig;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use guideway_forwarder::proto::{CaptureRequest, FlowKey};
use rig::{Rig, flow, plan, sample};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use serde_json::{Value, json};
use testnet::{Namespace, link, receive, root_or_skip};

use crate::program::Forwarder;

const PACKETS: u64 = 2_000;

/// Those with a cache.
const DRIVERS: [&str; 2] = ["DRIVER_AF_XDP", "DRIVER_AF_PACKET"];

fn plan_of(driver: &str) -> Value {
    with_driver(driver, plan(1, 11))
}

fn with_driver(driver: &str, mut plan: Value) -> Value {
    plan["forwarder"]["interfaces"][0]["driver"] = json!(driver);
    plan
}

#[test]
fn most_packets_of_a_busy_flow_never_reach_user_space_and_all_are_counted() {
    if !root_or_skip("most_packets_of_a_busy_flow_never_reach_user_space_and_all_are_counted") {
        return;
    }
    for driver in DRIVERS {
        let mut rig = Rig::start(&plan_of(driver));
        rig.traffic.send(PACKETS);
        let cached = rig.filtered("cached");
        assert!(cached > PACKETS * 9 / 10, "{cached}");
        rig.hold_counters([rig.traffic.sent, 0]);
        let entered = "guideway_kernel_cache_entries_total{event=\"entered\"} ";
        assert_eq!(sample(&rig.forwarder.metrics(), entered), 1);
    }
}

/// One flow of those families is the kernel's in each encapsulation.
fn each_encapsulation_is_sent(is_inner_v6: bool, is_outer_v6: bool) {
    let encaps = ["ENCAP_GRE", "ENCAP_IPIP", "ENCAP_GUE", "ENCAP_GENEVE"];
    for (encap, driver) in encaps.iter().flat_map(|encap| DRIVERS.map(|driver| (encap, driver))) {
        let mut plan = plan_of(driver);
        plan["services"][0]["encap"] = json!(encap);
        if is_inner_v6 {
            plan["services"][0]["vips"] = json!([{"address": "2001:db8:f::10"}]);
        }
        if is_outer_v6 {
            plan["backends"][0]["address"] = json!("fd00::11");
        }
        let mut rig = Rig::start(&plan);
        rig.traffic.send(300);
        assert!(rig.filtered("cached") > 200, "{encap} {driver}");
        rig.hold_counters([rig.traffic.sent, 0]);
    }
}

#[test]
fn ipv4_in_ipv4_is_sent_by_the_kernel_in_each_encapsulation() {
    if root_or_skip("ipv4_in_ipv4_is_sent_by_the_kernel_in_each_encapsulation") {
        each_encapsulation_is_sent(false, false);
    }
}

#[test]
fn ipv6_in_ipv6_is_sent_by_the_kernel_in_each_encapsulation() {
    if root_or_skip("ipv6_in_ipv6_is_sent_by_the_kernel_in_each_encapsulation") {
        each_encapsulation_is_sent(true, true);
    }
}

#[test]
fn ipv4_in_ipv6_is_sent_by_the_kernel_in_each_encapsulation() {
    if root_or_skip("ipv4_in_ipv6_is_sent_by_the_kernel_in_each_encapsulation") {
        each_encapsulation_is_sent(false, true);
    }
}

#[test]
fn ipv6_in_ipv4_is_sent_by_the_kernel_in_each_encapsulation() {
    if root_or_skip("ipv6_in_ipv4_is_sent_by_the_kernel_in_each_encapsulation") {
        each_encapsulation_is_sent(true, false);
    }
}

#[test]
fn what_the_kernel_cannot_send_is_shown_with_the_reason() {
    if !root_or_skip("what_the_kernel_cannot_send_is_shown_with_the_reason") {
        return;
    }
    let mut plan = plan(1, 11);
    plan["services"][0]["idleTimeouts"] = json!({"tcpMs": 900_000, "udpMs": 10_000});
    let mut rig = Rig::start(&plan);
    rig.traffic.send(300);
    assert_eq!(rig.filtered("cached"), 0);
    let shown = rig.forwarder.status().kernel_cache.unwrap();
    let reason = "an idle timeout is shorter than 40 s";
    assert_eq!((shown.state.as_str(), shown.targets), ("on", 0));
    let lines: Vec<_> = shown
        .not_cached
        .iter()
        .map(|line| (line.service.as_str(), line.reason.as_str(), line.backends))
        .collect();
    // The other backend is down, which is in no way.
    assert_eq!(lines, [("dns", reason, 1)]);
    assert_eq!(rig.forwarder.explain(flow()).not_cached, reason);
}

/// The buckets of a stateless service are all the backend's of that number.
fn stateless(driver: &str, generation: u64, active: u8) -> Value {
    let mut plan = with_driver(driver, plan(generation, active));
    let service = &mut plan["services"][0];
    service["mode"] = json!("MODE_STATELESS");
    service["encap"] = json!("ENCAP_GENEVE");
    service["bucketMap"] = json!({
        "generation": generation.to_string(),
        "backends": ["b11", "b12"],
        "byBucket": vec![active - 11; 256],
    });
    plan
}

/// Workers get none of its packets once its next hop is known, also after its bucket moved.
#[test]
fn packets_of_a_stateless_service_are_the_kernels_by_its_buckets() {
    if !root_or_skip("packets_of_a_stateless_service_are_the_kernels_by_its_buckets") {
        return;
    }
    for driver in DRIVERS {
        let mut rig = Rig::start(&stateless(driver, 1, 11));
        let taken = rig.filtered("taken");
        rig.traffic.send(300);
        rig.forwarder.set_plan(&stateless(driver, 2, 12)).unwrap();
        let first = rig.traffic.sent;
        assert_eq!(rig.traffic.send(300), 12);
        assert_eq!(rig.filtered("taken"), taken, "{driver}");
        rig.hold_counters([first, 300]);
        assert!(rig.forwarder.explain(flow()).cached_by_bucket);
        // Its bucket is moving: agents are told, so a worker sends.
        let mut moving = stateless(driver, 3, 12);
        let moves: Vec<Value> =
            (0..256).map(|bucket| json!({"bucket": bucket, "others": [0]})).collect();
        moving["services"][0]["bucketMap"]["moves"] = json!(moves);
        rig.forwarder.set_plan(&moving).unwrap();
        let told = rig.forwarder.explain(flow());
        assert_eq!(told.not_cached, "its bucket is being moved");
        assert!(!told.cached_by_bucket);
    }
}

#[test]
fn a_plan_that_moves_a_flow_moves_it_in_the_kernel_and_no_count_is_lost() {
    if !root_or_skip("a_plan_that_moves_a_flow_moves_it_in_the_kernel_and_no_count_is_lost") {
        return;
    }
    let mut rig = Rig::start(&plan(1, 11));
    let mut sent = [rig.traffic.sent, 0];
    for generation in 2..=5 {
        let backend = generation as usize % 2;
        let before = rig.filtered("cached");
        let first = rig.traffic.sent;
        // Moved at once, though its entry is not gone.
        rig.forwarder.set_plan(&plan(generation, [11, 12][backend])).unwrap();
        assert_eq!(rig.traffic.send(1), [11, 12][backend]);
        rig.confirm();
        rig.traffic.send(300);
        assert!(rig.filtered("cached") > before + 200, "generation {generation}");
        sent[backend] += rig.traffic.sent - first;
        rig.hold_counters(sent);
    }
    // Other VIPs: no target stays.
    let mut other = plan(6, 12);
    other["services"][0]["vips"] =
        json!([{"address": "203.0.113.10"}, {"address": "203.0.113.11"}]);
    rig.forwarder.set_plan(&other).unwrap();
    let first = rig.traffic.sent;
    rig.traffic.send(300);
    sent[1] += rig.traffic.sent - first;
    let counters = rig.forwarder.at_rest();
    let packets: Vec<u64> = counters.services.iter().map(|line| line.packets).collect();
    assert_eq!(packets, [rig.traffic.sent, 0]);
    let packets: Vec<u64> = counters.backends.iter().map(|line| line.packets).collect();
    assert_eq!(packets, sent);
}

#[test]
fn while_packets_are_captured_user_space_gets_them_all() {
    if !root_or_skip("while_packets_are_captured_user_space_gets_them_all") {
        return;
    }
    for driver in DRIVERS {
        let mut rig = Rig::start(&plan_of(driver));
        rig.traffic.send(300);
        let before = rig.filtered("cached");
        assert!(before > 200, "{before}");
        let mut stream = rig.forwarder.capture(CaptureRequest::default()).unwrap();
        rig.traffic.send(200);
        assert_eq!(rig.forwarder.captured(&mut stream, 200).len(), 200);
        assert_eq!(rig.filtered("cached"), before);
        drop(stream);
        // The forwarder sees the end of the stream when it next writes.
        let start = std::time::Instant::now();
        while rig.filtered("cached") < before + 100 {
            assert!(start.elapsed() < Duration::from_secs(10), "the kernel sends nothing any more");
            rig.traffic.send(100);
        }
        rig.hold_counters([rig.traffic.sent, 0]);
    }
}

#[test]
fn a_successor_has_a_cache_of_its_own_and_no_packet_is_lost() {
    if !root_or_skip("a_successor_has_a_cache_of_its_own_and_no_packet_is_lost") {
        return;
    }
    for driver in DRIVERS {
        let mut rig = Rig::start(&plan_of(driver));
        rig.traffic.send(300);
        for _ in 0..3 {
            let (forwarder, traffic) = (&mut rig.forwarder, &mut rig.traffic);
            let done = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        assert_eq!(traffic.send(1), 11);
                    }
                });
                forwarder.take_over(&[]);
                done.store(true, Ordering::Relaxed);
            });
            let before = rig.filtered("cached");
            rig.traffic.send(300);
            assert!(rig.filtered("cached") > before + 200);
            let counters = rig.forwarder.at_rest();
            let counted = rig.filtered("cached") + rig.filtered("taken");
            assert_eq!((counters.sent, counters.unaccounted), (counters.received, 0));
            // What came before the switch of filters the predecessor's counted.
            assert!((counted..=counted + 64).contains(&counters.sent), "{counted}: {counters:?}");
        }
    }
}

#[test]
fn a_plan_that_says_nothing_has_a_cache_where_nothing_is_zero_copy() {
    if !root_or_skip("a_plan_that_says_nothing_has_a_cache_where_nothing_is_zero_copy") {
        return;
    }
    let mut plan = plan(1, 11);
    plan["forwarder"].as_object_mut().unwrap().remove("kernelCache");
    let mut rig = Rig::start(&plan);
    rig.traffic.send(300);
    let (status, cached) = (rig.forwarder.status(), rig.filtered("cached"));
    assert!(!status.devices[0].zero_copy);
    let shown = status.kernel_cache.unwrap();
    assert_eq!((shown.state.as_str(), shown.packets), ("on", cached));
    // One match; two members, of which one gets nothing.
    assert_eq!((shown.entries, shown.targets, shown.targets_refused), (1, 1, 0));
    assert!(shown.entries_max >= 20_000, "{shown:?}");
    let explained = rig.forwarder.explain(flow()).cached.unwrap();
    assert_eq!(explained.queue, 0);
    assert!(explained.idle_ms <= 1000, "{explained:?}");
    let other = FlowKey { source_port: 4001, ..flow() };
    assert_eq!(rig.forwarder.explain(other).cached, None);
}

#[test]
fn off_and_on_take_effect_at_once_and_need_no_restart() {
    if !root_or_skip("off_and_on_take_effect_at_once_and_need_no_restart") {
        return;
    }
    let with = |generation, word: &str| {
        let mut plan = plan(generation, 11);
        plan["forwarder"]["kernelCache"] = json!(format!("KERNEL_CACHE_{word}"));
        plan
    };
    let mut rig = Rig::start(&with(1, "ON"));
    rig.traffic.send(300);
    rig.forwarder.set_plan(&with(2, "OFF")).unwrap();
    let before = rig.filtered("cached");
    rig.traffic.send(300);
    assert_eq!(rig.filtered("cached"), before);
    assert_eq!(rig.forwarder.status().kernel_cache.unwrap().state, "off");
    rig.forwarder.set_plan(&with(3, "AUTO")).unwrap();
    rig.traffic.send(300);
    assert!(rig.filtered("cached") > before + 200);
    assert_eq!(rig.forwarder.status().kernel_cache.unwrap().state, "on");
    rig.hold_counters([rig.traffic.sent, 0]);

    // A start with `off` makes none; a successor by another plan does.
    let mut rig = Rig::start(&with(1, "OFF"));
    rig.forwarder.set_plan(&with(2, "ON")).unwrap();
    let shown = rig.forwarder.status().kernel_cache.unwrap();
    assert_eq!(shown.state, "none");
    assert!(shown.reason.contains("next start or upgrade"), "{shown:?}");
    rig.forwarder.take_over(&[]);
    rig.traffic.send(300);
    assert!(rig.filtered("cached") > 200);
}

#[test]
fn a_backend_that_drains_keeps_its_flows_in_the_kernel() {
    if !root_or_skip("a_backend_that_drains_keeps_its_flows_in_the_kernel") {
        return;
    }
    let mut rig = Rig::start(&plan(1, 11));
    rig.traffic.send(300);
    let mut draining = plan(2, 12);
    draining["groups"][0]["members"][0]["state"] = json!("BACKEND_STATE_DRAINING");
    rig.forwarder.set_plan(&draining).unwrap();
    let before = rig.filtered("cached");
    assert_eq!(rig.traffic.send(300), 11);
    assert!(rig.filtered("cached") > before + 290);
    rig.hold_counters([rig.traffic.sent, 0]);
}

#[test]
fn what_fits_no_longer_is_user_spaces_again() {
    if !root_or_skip("what_fits_no_longer_is_user_spaces_again") {
        return;
    }
    let mut rig = Rig::start(&plan(1, 11));
    rig.traffic.padding = 1000;
    rig.traffic.send(300);
    assert!(rig.filtered("cached") > 200);
    rig.balancer.run("ip link set eth0 mtu 1040");
    // Each packet comes, or the client is told to send less.
    let start = std::time::Instant::now();
    while rig.forwarder.at_rest().replied == 0 {
        assert!(start.elapsed() < Duration::from_secs(2), "the kernel goes on sending");
        rig.traffic.send_without_waiting();
        std::thread::sleep(Duration::from_millis(2));
    }
    let before = rig.filtered("cached");
    // The client has learned the MTU, and sends its datagrams in two pieces: those
    // are never the kernel's.
    rig.traffic.send_without_waiting();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(rig.filtered("cached"), before);
}

#[test]
fn the_cache_works_in_generic_mode() {
    if !root_or_skip("the_cache_works_in_generic_mode") {
        return;
    }
    // The peer's MTU is more than native XDP takes; its own program came before.
    let mut rig = Rig::start_with(&plan(1, 11), |client| {
        client.run("ip link set eth0 mtu 9000");
    });
    assert_eq!(rig.forwarder.status().devices[0].mode, "generic");
    rig.traffic.send(300);
    assert!(rig.filtered("cached") > 200);
    rig.hold_counters([rig.traffic.sent, 0]);
}

#[test]
fn nothing_is_forwarded_by_a_cache_whose_process_was_killed() {
    if !root_or_skip("nothing_is_forwarded_by_a_cache_whose_process_was_killed") {
        return;
    }
    for driver in DRIVERS {
        let mut rig = Rig::start(&plan_of(driver));
        rig.traffic.send(300);
        let pid = rustix::process::Pid::from_raw(rig.forwarder.pid() as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        // The kernel takes filters off a little later than the process ends.
        let timeout = Some(Duration::from_millis(200));
        set_socket_timeout(&rig.traffic.backend, Timeout::Recv, timeout).unwrap();
        let start = std::time::Instant::now();
        while {
            rig.traffic.send_without_waiting();
            receive(&rig.traffic.backend, &mut [0; 2048]).is_ok()
        } {
            assert!(start.elapsed() < Duration::from_secs(5), "{driver}: it is forwarded");
        }
        set_socket_timeout(&rig.traffic.backend, Timeout::Recv, Some(Duration::from_secs(5)))
            .unwrap();
        rig.forwarder.kill_and_restart();
        rig.confirm();
        rig.traffic.send(300);
        assert!(rig.filtered("cached") > 200);
    }
}

#[test]
fn where_there_can_be_no_cache_user_space_sends_all() {
    if !root_or_skip("where_there_can_be_no_cache_user_space_sends_all") {
        return;
    }
    let mut refused = plan(1, 11);
    refused["forwarder"]["steering"] = json!("STEERING_SOFTWARE");
    no_cache(Rig::start(&refused));
    // What the kernel would send to a client without a program would be lost.
    no_cache(Rig::start_beside(&plan(1, 11), Vec::new, |_| ()));
}

#[test]
#[ignore = "needs virtio_net with zero-copy: make vms"]
fn virtio_net_with_zero_copy_gets_nothing_from_the_kernel() {
    if !root_or_skip("virtio_net_with_zero_copy_gets_nothing_from_the_kernel") {
        return;
    }
    let mut rig = Rig::start(&plan(1, 11));
    assert!(rig.forwarder.status().devices[0].zero_copy);
    rig.traffic.send(300);
    assert_eq!(rig.filtered("cached"), 0);
    let shown = rig.forwarder.status().kernel_cache.unwrap();
    assert!(shown.reason.contains("eth0 has zero-copy"), "{shown:?}");
    assert_eq!(rig.forwarder.at_rest().sent, rig.traffic.sent);
}

#[test]
#[ignore = "needs virtio_net with more queues than the machine has processors: make vms"]
fn virtio_net_sends_nothing_by_queues_that_it_does_not_have() {
    if !root_or_skip("virtio_net_sends_nothing_by_queues_that_it_does_not_have") {
        return;
    }
    let (client, balancer) = (Namespace::new("client"), Namespace::new("lb"));
    link(&client, "eth0", &balancer, "eth0", 4);
    balancer.run("ip addr add 10.0.0.1/24 dev eth0");
    let mut forwarder = Forwarder::start(&balancer);
    forwarder.set_plan(&with_driver("DRIVER_AF_XDP", plan(1, 11))).unwrap();
    let status = forwarder.status();
    assert_eq!((status.devices[0].queues, status.devices[0].mode.as_str()), (4, "native"));
    let shown = status.kernel_cache.unwrap();
    assert_eq!(shown.state, "none");
    assert!(shown.reason.contains("ethtool -L eth0 combined 2"), "{}", shown.reason);
}

fn no_cache(mut rig: Rig) {
    rig.traffic.send(300);
    assert_eq!(rig.filtered("cached"), 0);
    assert!(!rig.forwarder.metrics().contains("guideway_kernel_cache_"));
    let shown = rig.forwarder.status().kernel_cache.unwrap();
    assert_eq!(shown.state, "none");
    assert!(!shown.reason.is_empty());
    assert_eq!(rig.forwarder.at_rest().sent, rig.traffic.sent);
}
