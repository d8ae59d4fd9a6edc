//! The drivers on real interfaces: two namespaces, a veth pair, the kernel's
//! own network stack at the other end. Needs root.

use std::net::UdpSocket;
use std::path::Path;
use std::time::Duration;

use crate::support::{
    ECHO_PORT, Echo, Lab, PREFIXES, VIP_V4, VIP_V6, echoes, echoes_behind_options, echoes_of_port,
};
use nic::drivers::{af_packet, af_xdp};
use nic::kernel_cache::{CacheRequest, CacheSize};
use nic::{DeviceConfig, Driver, ModePreference, OpenError, QueueOptions};
use testnet::{receive, root_or_skip};

fn config(driver: &'static Driver, mode: ModePreference) -> DeviceConfig {
    DeviceConfig {
        interface: "eth0".to_string(),
        driver,
        queues: 0,
        mode,
        ..DeviceConfig::default()
    }
}

/// What is to the VIPs is ours, whole; the kernel has the rest and nothing
/// of ours.
fn the_vip_is_ours_and_the_rest_the_kernels(
    driver: &'static Driver,
    mode: ModePreference,
    expected: &str,
) {
    let lab = Lab::new();
    if driver == &af_xdp::DRIVER {
        lab.client_completes_checksums();
    }
    // Were a frame of ours to reach the kernel, it would be for this socket.
    lab.forwarder.run(&format!("ip addr add {VIP_V4} dev lo"));
    let kernel = lab.forwarder.inside(|| {
        let socket = UdpSocket::bind((VIP_V4, ECHO_PORT)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        socket
    });
    let echo = Echo::start(&lab, vec![config(driver, mode)], lab.mac(&lab.client, "eth0"));
    assert_eq!(echo.description, expected);
    assert!(lab.kernel_answers(), "what is not ours must pass to the kernel");
    assert_eq!(echoes(&lab, VIP_V4, 16, 1, 4, 100), 64);
    assert_eq!(echoes(&lab, VIP_V6, 16, 1, 4, 1400), 64);
    // To another machine: what a switch floods.
    for (gateway, vip) in [("10.77.0.2", VIP_V4), ("fd77::2", VIP_V6)] {
        let neighbour = format!("{gateway} dev eth0 nud permanent lladdr");
        lab.client.run(&format!("ip neigh replace {neighbour} 02:00:00:00:00:99"));
        assert_eq!(echoes(&lab, vip, 1, 1, 1, 100), 0, "{vip} by another address");
        let own = wire::MacAddress(lab.mac(&lab.forwarder, "eth0"));
        lab.client.run(&format!("ip neigh replace {neighbour} {own}"));
        assert_eq!(echoes(&lab, vip, 1, 1, 1, 100), 1, "{vip} by the own address");
    }
    assert!(receive(&kernel, &mut [0; 2000]).is_err(), "a frame of ours reached the kernel");

    echo.set(&PREFIXES[1..], &[]);
    assert_eq!(echoes(&lab, VIP_V4, 1, 1, 1, 100), 0);
    assert!(
        receive(&kernel, &mut [0; 2000]).is_ok(),
        "what is no longer ours must pass to the kernel"
    );
    echo.set(&PREFIXES, &[]);
    assert_eq!(echoes(&lab, VIP_V4, 1, 1, 1, 100), 1);

    let counted = &echo.stop()[0];
    assert_eq!(counted.sum(|queue| queue.received), 131, "received");
    assert_eq!(counted.sum(|queue| queue.transmitted), 131, "transmitted");
    assert_eq!((counted.filter.taken, counted.filter.no_socket), (131, 0));
    assert!(counted.filter.passed > 0);
    assert_eq!(
        counted.sum(|queue| queue.rx_dropped
            + queue.rx_ring_full
            + queue.tx_invalid
            + queue.rx_invalid),
        0
    );
    assert_eq!(counted.queues.len(), 2);
    // veth gives its queue to native XDP and to packet sockets only.
    if mode != ModePreference::Generic {
        let idle = counted.queues.iter().filter(|queue| queue.received == 0).count();
        assert_eq!(idle, 0, "16 flows must meet both queues");
    }
}

#[test]
fn af_xdp_native_takes_the_vip_and_passes_the_rest() {
    if root_or_skip("af_xdp_native_takes_the_vip_and_passes_the_rest") {
        the_vip_is_ours_and_the_rest_the_kernels(
            &af_xdp::DRIVER,
            ModePreference::Auto,
            if testnet::has_zero_copy() { "af_xdp native, zero-copy" } else { "af_xdp native" },
        );
    }
}

#[test]
fn af_xdp_generic_takes_the_vip_and_passes_the_rest() {
    if root_or_skip("af_xdp_generic_takes_the_vip_and_passes_the_rest") {
        the_vip_is_ours_and_the_rest_the_kernels(
            &af_xdp::DRIVER,
            ModePreference::Generic,
            "af_xdp generic",
        );
    }
}

#[test]
fn af_packet_takes_the_vip_and_passes_the_rest() {
    if root_or_skip("af_packet_takes_the_vip_and_passes_the_rest") {
        the_vip_is_ours_and_the_rest_the_kernels(
            &af_packet::DRIVER,
            ModePreference::Auto,
            "af_packet",
        );
    }
}

/// The kernel sends 32 frames per call by default: whole batches
/// must come through all the same.
#[test]
fn bursts_of_whole_batches_come_back_whole() {
    if !root_or_skip("bursts_of_whole_batches_come_back_whole") {
        return;
    }
    for driver in [&af_xdp::DRIVER, &af_packet::DRIVER] {
        let lab = Lab::new();
        lab.client_completes_checksums();
        let echo = Echo::start(
            &lab,
            vec![config(driver, ModePreference::Auto)],
            lab.mac(&lab.client, "eth0"),
        );
        assert_eq!(echoes(&lab, VIP_V4, 1, 30, 128, 64), 30 * 128, "{driver:?}");
        let counted = &echo.stop()[0];
        assert_eq!(counted.sum(|queue| queue.transmitted), 30 * 128, "{driver:?}");
    }
}

/// Both interfaces' sockets share the worker's memory: a frame received on
/// one is sent on the other.
#[test]
fn a_frame_leaves_by_another_interface() {
    if !root_or_skip("a_frame_leaves_by_another_interface") {
        return;
    }
    for drivers in [
        [&af_xdp::DRIVER, &af_xdp::DRIVER],
        [&af_xdp::DRIVER, &af_packet::DRIVER],
        [&af_packet::DRIVER, &af_xdp::DRIVER],
    ] {
        let lab = Lab::new();
        lab.client_completes_checksums();
        lab.cable("eth1", 2, ["10.78.0.1/24", "10.78.0.2/24"], ["fd78::1/64", "fd78::2/64"]);
        for file in ["all", "eth0", "eth1"] {
            lab.client.run(&format!("sysctl -qw net.ipv4.conf.{file}.rp_filter=0"));
        }
        let configs = ["eth0", "eth1"].into_iter().zip(drivers);
        let configs = configs.map(|(name, driver)| DeviceConfig {
            interface: name.into(),
            driver,
            ..DeviceConfig::default()
        });
        let echo = Echo::start(&lab, configs.collect(), lab.mac(&lab.client, "eth1"));
        assert_eq!(echoes(&lab, VIP_V4, 8, 2, 16, 200), 256, "{drivers:?}");
        let counted = echo.stop();
        assert_eq!(
            (counted[0].sum(|q| q.received), counted[0].sum(|q| q.transmitted)),
            (256, 0),
            "{drivers:?}"
        );
        assert_eq!(
            (counted[1].sum(|q| q.received), counted[1].sum(|q| q.transmitted)),
            (0, 256),
            "{drivers:?}"
        );
    }
}

/// Ours without a doubt: what is to the VIP and too long for a chunk is lost
/// by name, and what fits still comes.
#[test]
fn frames_longer_than_a_chunk_are_counted() {
    if !root_or_skip("frames_longer_than_a_chunk_are_counted") {
        return;
    }
    for driver in [&af_xdp::DRIVER, &af_packet::DRIVER] {
        let lab = Lab::new();
        lab.client_completes_checksums();
        for namespace in [&lab.client, &lab.forwarder] {
            namespace.run("ip link set eth0 mtu 3000");
        }
        let echo = Echo::start(
            &lab,
            vec![config(driver, ModePreference::Auto)],
            lab.mac(&lab.client, "eth0"),
        );
        assert_eq!(echoes(&lab, VIP_V4, 1, 1, 3, 2500), 0);
        assert_eq!(echoes(&lab, VIP_V4, 1, 1, 3, 1700), 3);
        let counted = &echo.stop()[0];
        assert_eq!(counted.sum(|queue| queue.received), 3, "{driver:?}");
        assert_eq!(counted.sum(|queue| queue.rx_dropped + queue.rx_too_long), 3, "{driver:?}");
    }
}

fn open_error(lab: &Lab, config: DeviceConfig) -> OpenError {
    lab.forwarder.inside(|| nic::open(&[config], &QueueOptions::default()).err().unwrap())
}

#[test]
fn a_second_forwarder_on_the_interface_is_refused() {
    if !root_or_skip("a_second_forwarder_on_the_interface_is_refused") {
        return;
    }
    let lab = Lab::new();
    let echo = Echo::start(&lab, vec![config(&af_xdp::DRIVER, ModePreference::Auto)], [2; 6]);
    for driver in [&af_xdp::DRIVER, &af_packet::DRIVER] {
        let error = open_error(&lab, config(driver, ModePreference::Auto)).to_string();
        let pid = std::process::id().to_string();
        assert!(
            error.contains("eth0") && error.contains("another forwarder") && error.contains(&pid),
            "{error}"
        );
    }
    echo.stop();
}

#[test]
fn another_products_xdp_program_is_not_pushed_aside() {
    if !root_or_skip("another_products_xdp_program_is_not_pushed_aside") {
        return;
    }
    let lab = Lab::new();
    let object = concat!(env!("OUT_DIR"), "/redirect.bpf.o");
    for mode in ["xdpdrv", "xdpgeneric"] {
        lab.forwarder.run(&format!("ip link set dev eth0 {mode} obj {object} sec xdp"));
        let error = open_error(&lab, config(&af_xdp::DRIVER, ModePreference::Auto)).to_string();
        assert!(error.contains("already has an XDP program"), "{error}");
        assert!(error.contains("ip link set eth0 xdp off"), "{error}");
        lab.forwarder.run(&format!("ip link set dev eth0 {mode} off"));
    }
}

/// Of what is to the machine's own addresses only tunnels are ours, and only
/// when they are to be taken.
#[test]
fn tunnels_to_our_own_addresses_are_ours_when_they_are_to_be_taken() {
    if !root_or_skip("tunnels_to_our_own_addresses_are_ours_when_they_are_to_be_taken") {
        return;
    }
    for driver in [&af_xdp::DRIVER, &af_packet::DRIVER] {
        let lab = Lab::new();
        lab.client_completes_checksums();
        let echo = Echo::start(
            &lab,
            vec![config(driver, ModePreference::Auto)],
            lab.mac(&lab.client, "eth0"),
        );
        let came = |port| {
            ["10.77.0.2", "fd77::2"].map(|own| echoes_of_port(&lab, own, port, [1, 1, 2, 64]))
        };
        assert!(lab.kernel_answers());
        assert_eq!(came(6080), [0; 2], "{driver:?}: not to be taken yet");
        echo.set(&PREFIXES, &["10.77.0.2", "fd77::2"]);
        assert_eq!(came(6080), [2; 2], "{driver:?}: GUE");
        assert_eq!(came(6081), [2; 2], "{driver:?}: Geneve");
        assert_eq!(came(6082), [0; 2], "{driver:?}: another port");
        echo.set(&PREFIXES, &[]);
        assert_eq!(came(6080), [0; 2], "{driver:?}: no longer to be taken");
        echo.stop();
    }
}

/// Linux's ip6gre writes a Destination Options header before GRE, unless its
/// administrator has said `encaplimit none`.
#[test]
fn tunnels_behind_destination_options_are_ours() {
    if !root_or_skip("tunnels_behind_destination_options_are_ours") {
        return;
    }
    for driver in [&af_xdp::DRIVER, &af_packet::DRIVER] {
        let lab = Lab::new();
        lab.client_completes_checksums();
        let echo = Echo::start(
            &lab,
            vec![config(driver, ModePreference::Auto)],
            lab.mac(&lab.client, "eth0"),
        );
        assert!(lab.kernel_answers(), "what waits for a neighbour would come later");
        let came = |port| echoes_behind_options(&lab, "fd77::2", port, [1, 1, 2, 64]);
        assert_eq!(came(None), 0, "{driver:?}: GRE, while tunnels are the kernel's");
        echo.set(&PREFIXES, &["fd77::2"]);
        assert_eq!(came(None), 2, "{driver:?}: GRE");
        assert_eq!(came(Some(6080)), 2, "{driver:?}: GUE");
        assert_eq!(came(Some(6081)), 2, "{driver:?}: Geneve");
        assert_eq!(came(Some(6082)), 0, "{driver:?}: another port");
        assert_eq!(echo.stop()[0].filter.taken, 6, "{driver:?}");
    }
}

/// The kernel frees a queue some time after its socket was closed.
#[test]
fn an_interface_can_be_opened_again_at_once() {
    if !root_or_skip("an_interface_can_be_opened_again_at_once") {
        return;
    }
    let lab = Lab::new();
    lab.client_completes_checksums();
    for _ in 0..3 {
        for driver in [&af_xdp::DRIVER, &af_packet::DRIVER] {
            let echo = Echo::start(
                &lab,
                vec![config(driver, ModePreference::Auto)],
                lab.mac(&lab.client, "eth0"),
            );
            assert_eq!(echoes(&lab, VIP_V4, 2, 1, 1, 64), 2);
            echo.stop();
        }
    }
}

#[test]
fn what_cannot_work_is_refused_with_a_cure() {
    if !root_or_skip("what_cannot_work_is_refused_with_a_cure") {
        return;
    }
    let lab = Lab::new();
    let missing = DeviceConfig { interface: "eth7".into(), ..DeviceConfig::default() };
    let error = open_error(&lab, missing).to_string();
    assert!(error.contains("eth7") && error.contains("lo, eth0"), "{error}");

    let too_few = DeviceConfig { queues: 1, ..config(&af_xdp::DRIVER, ModePreference::Auto) };
    let error = open_error(&lab, too_few);
    assert!(matches!(error, OpenError::QueuesDiffer { queues: 2, workers: 1, .. }), "{error}");
    assert!(error.to_string().contains("ethtool -L eth0"), "{error}");

    lab.forwarder.run("ip link set eth0 mtu 4000");
    let error = open_error(&lab, config(&af_xdp::DRIVER, ModePreference::Auto));
    assert!(matches!(error, OpenError::Mtu { mtu: 4000, .. }), "{error}");
    assert!(error.to_string().contains("ip link set eth0 mtu"), "{error}");

    lab.forwarder.run("ip link set eth0 mtu 1500");
    // Older kernels have one for all namespaces, which is not the test's to change.
    let is_ours = || Path::new("/proc/sys/net/core/optmem_max").exists();
    if !lab.forwarder.spawn(is_ours).join().unwrap() {
        return;
    }
    lab.forwarder.run("sysctl -q -w net.core.optmem_max=512");
    let error = open_error(&lab, config(&af_packet::DRIVER, ModePreference::Auto)).to_string();
    assert!(error.contains("sysctl -w net.core.optmem_max"), "{error}");
}

/// A table of 128 GiB is more than the kernel gives.
#[test]
fn where_the_kernel_refuses_the_flow_cache_the_filter_is_attached_without() {
    if !root_or_skip("where_the_kernel_refuses_the_flow_cache_the_filter_is_attached_without") {
        return;
    }
    let lab = Lab::new();
    let cache = |buckets| {
        let (targets, service_buckets, key, devices) = (16, 16, [1, 2], Vec::new());
        let kernel_cache = Some(CacheRequest { buckets, targets, service_buckets, key, devices });
        let native = config(&af_xdp::DRIVER, ModePreference::Native);
        let config = DeviceConfig { kernel_cache, ..native };
        let open = || nic::open(&[config], &QueueOptions::default()).unwrap();
        let (devices, _lanes) = lab.forwarder.inside(open);
        devices[0].kernel_cache().map(|cache| cache.size)
    };
    assert_eq!(cache(1 << 30), None);
    let size = CacheSize { queues: 2, buckets: 64, targets: 16, service_buckets: 16 };
    assert_eq!(cache(64), Some(size));
}

/// The peer's MTU counts too, where the driver is veth: the preference of native
/// mode fails, and the automatic choice falls back.
#[test]
fn where_native_mode_cannot_be_generic_mode_is() {
    if !root_or_skip("where_native_mode_cannot_be_generic_mode_is") {
        return;
    }
    let lab = Lab::new();
    lab.client_completes_checksums();
    lab.client.run("ip link set eth0 mtu 9000");
    let error = open_error(&lab, config(&af_xdp::DRIVER, ModePreference::Native)).to_string();
    assert!(error.contains("native") && error.contains("eth0"), "{error}");
    let echo = Echo::start(
        &lab,
        vec![config(&af_xdp::DRIVER, ModePreference::Auto)],
        lab.mac(&lab.client, "eth0"),
    );
    assert_eq!(echo.description, "af_xdp generic");
    assert_eq!(echoes(&lab, VIP_V4, 2, 1, 1, 64), 2);
    echo.stop();
}
