//! What is special to interfaces whose device receives into our memory. Not every machine has
//! them; those of `make vms` do.

use crate::support::{ECHO_PORT, Echo, Lab, PREFIXES, VIP_V4, echoes, set_filters};
use nic::drivers::af_xdp;
use nic::{DeviceConfig, ModePreference, OpenError, QueueOptions};
use testnet::root_or_skip;
use wire::Batch;

fn config() -> DeviceConfig {
    DeviceConfig {
        interface: "eth0".into(),
        driver: &af_xdp::DRIVER,
        mode: ModePreference::Native,
        ..DeviceConfig::default()
    }
}

/// The device's own ring is longer than ours here: it must not get what other interfaces, and
/// packets that we make, need.
#[test]
#[ignore = "needs interfaces with zero-copy: make vms"]
fn a_device_gets_no_more_chunks_than_two_rings() {
    if !root_or_skip("a_device_gets_no_more_chunks_than_two_rings") {
        return;
    }
    const ENTRIES: usize = 128;
    let lab = Lab::new();
    lab.forwarder.inside(|| {
        let options = QueueOptions { ring_entries: ENTRIES as u32, ..QueueOptions::default() };
        let (mut devices, mut lanes) = nic::open(&[config()], &options).unwrap();
        assert!(devices[0].is_zero_copy());
        set_filters(&mut devices, &PREFIXES, &[]);
        let mut received = [0; 2];
        for round in 0..100_u16 {
            lab.client.inside(|| {
                let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
                socket.send_to(&round.to_be_bytes(), (VIP_V4, ECHO_PORT)).unwrap();
            });
            std::thread::sleep(std::time::Duration::from_millis(2));
            for (lane, received) in lanes.iter_mut().zip(&mut received) {
                let mut batch = Batch::new();
                lane.queues[0].rx(&mut lane.pool, &mut batch);
                *received += batch.len();
                batch.drain(..).for_each(|frame| lane.pool.give_frame(frame));
                let taken = lane.pool.memory().chunks() - lane.pool.free();
                assert!((ENTRIES..=2 * ENTRIES).contains(&taken), "{taken} chunks are not free");
            }
        }
        assert!(received.iter().all(|&frames| frames > 0), "{received:?}");
    });
}

/// virtio_net has a queue more for each processor then, if its device has them: their packets
/// would reach no socket.
#[test]
#[ignore = "needs an interface with queues to spare: make vms"]
fn queues_that_come_with_the_filter_are_refused() {
    if !root_or_skip("queues_that_come_with_the_filter_are_refused") {
        return;
    }
    let lab = Lab::new();
    lab.forwarder.inside(|| {
        let Err(error) = nic::open(&[config()], &QueueOptions::default()) else {
            panic!("it was opened")
        };
        assert!(
            matches!(error, OpenError::QueuesAdded { before: 2, after: 4, most: 4, .. }),
            "{error}"
        );
        assert!(error.to_string().contains("ethtool -L eth0 combined 4"), "{error}");
    });
    let shown = lab.forwarder.run("ethtool -l eth0");
    assert!(shown.trim_end().ends_with("\t2"), "the filter is still there: {shown}");
}

/// Both share a worker's memory, which is zero-copy on all or on none.
#[test]
#[ignore = "needs an interface with zero-copy and one without: make vms"]
fn beside_an_interface_without_zero_copy_none_has_it() {
    if !root_or_skip("beside_an_interface_without_zero_copy_none_has_it") {
        return;
    }
    let lab = Lab::new();
    lab.client_completes_checksums();
    lab.cable("eth1", 2, ["10.78.0.1/24", "10.78.0.2/24"], ["fd78::1/64", "fd78::2/64"]);
    let other = DeviceConfig { interface: "eth1".into(), ..config() };
    let echo = Echo::start(&lab, vec![config(), other], lab.mac(&lab.client, "eth1"));
    assert_eq!(echo.description, "af_xdp native");
    for file in ["all", "eth0", "eth1"] {
        lab.client.run(&format!("sysctl -qw net.ipv4.conf.{file}.rp_filter=0"));
    }
    assert_eq!(echoes(&lab, VIP_V4, 8, 2, 16, 200), 256);
    echo.stop();
}
