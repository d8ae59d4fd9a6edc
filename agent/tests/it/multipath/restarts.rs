//! Agents that are killed, and started again.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use aya::maps::{Array, Map, MapData};
use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};
use testnet::root_or_skip;
use wire::tunnel::geneve;

use super::agents::capable_syn;
use super::balancing::{self, ACK, BACKEND, OTHER_BACKEND, SYN};
use super::net::{BOTH_FAMILIES, MIB, MPTCP, Net, TIMEOUT, agents, kernel, transfer};
use crate::support::Agent;
use crate::support::bpf_file_system::BpfFileSystem;

fn kill(mut agent: Agent) {
    agent.child.kill().unwrap();
    agent.child.wait().unwrap();
}

/// Killed, the agent leaves nothing behind: SYN cookies are as they were, connections that
/// there are live on with the next agent, and new ones have their keys.
#[test]
fn killed_and_started_again_in_mid_transfer_it_breaks_nothing() {
    if !root_or_skip("killed_and_started_again_in_mid_transfer_it_breaks_nothing") {
        return;
    }
    let net = Net::new();
    net.joins();
    let agent = net.agent();
    net.serve(false, false);
    let stream = net.connect(false, MPTCP);
    transfer(&stream, 1000);
    net.wait_until("the join", || net.at_backend("MPJoinAckRx") == 1);
    let _agent = std::thread::scope(|scope| {
        let transferring = scope.spawn(|| transfer(&stream, 8 * MIB));
        kill(agent);
        let agent = net.agent();
        transferring.join().unwrap();
        agent
    });
    assert_eq!(net.event("syn_handed"), 0, "counters begin anew");
    let second = net.connect(false, MPTCP);
    transfer(&second, 1000);
    net.wait_until("its join", || net.at_backend("MPJoinAckRx") == 2);
    assert_eq!(net.at_backend("MPCapableFallbackACK"), 0);
}

/// By its guard; if that was killed, too, by the next agent.
#[test]
fn syn_cookies_are_switched_back_when_the_agent_is_killed_between_on_and_off() {
    if !root_or_skip("syn_cookies_are_switched_back_when_the_agent_is_killed_between_on_and_off") {
        return;
    }
    let net = Net::new();
    let agent = net.agent();
    stop_between_on_and_off(&net, &agent);
    kill(agent);
    net.wait_until("its guard has switched them back", || net.backend.inside(syn_cookies) == "1");

    let agent = net.agent();
    stop_between_on_and_off(&net, &agent);
    let guard = net.backend.run(&format!("pgrep -P {}", agent.child.id()));
    send(guard.trim().parse().unwrap(), Signal::KILL);
    kill(agent);
    assert_eq!(net.backend.inside(syn_cookies), "2", "no guard switches them back");
    let _agent = net.agent();
    assert_eq!(net.backend.inside(syn_cookies), "1");
    net.serve(false, false);
    transfer(&net.connect(false, MPTCP), MIB);
    assert_eq!(net.at_backend("MPCapableACKRX"), 1);
}

/// Stops it while the kernel gets a SYN of its, which it does for some microseconds each.
fn stop_between_on_and_off(net: &Net, agent: &Agent) {
    let syns: Vec<Vec<u8>> = {
        let mut balancing = net.balancing.lock().unwrap();
        (0..64).map(|number| balancing.encapsulated(&capable_syn(10_000 + number))).collect()
    };
    let tunnel = net.lb.inside(balancing::tunnel);
    net.backend.inside(|| {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            assert!(Instant::now() < deadline, "it was never met between on and off");
            for syn in &syns {
                tunnel.send_to(syn, (BACKEND, geneve::PORT)).unwrap();
            }
            let sent = Instant::now();
            while syn_cookies() != "2" && sent.elapsed() < Duration::from_millis(5) {}
            send(agent.child.id(), Signal::STOP);
            while !is_stopped(agent.child.id()) {}
            if syn_cookies() == "2" {
                return;
            }
            send(agent.child.id(), Signal::CONT);
        }
    });
}

/// Those of the calling thread's namespace.
fn syn_cookies() -> String {
    std::fs::read_to_string("/proc/sys/net/ipv4/tcp_syncookies").unwrap().trim().to_string()
}

fn send(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
}

/// In all its threads.
fn is_stopped(pid: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks.flatten().all(|task| {
        let status = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
        status.contains("State:\tT")
    })
}

/// Without what is pinned the new agent would take the client's key for another one.
#[test]
fn handshakes_that_have_begun_go_on_after_a_restart() {
    if !root_or_skip("handshakes_that_have_begun_go_on_after_a_restart") {
        return;
    }
    let net = Net::new();
    let pins = BpfFileSystem::mount(net.folder.path().join("bpf"));
    let pin = format!(", pin: {}/agent", pins.0.display());
    let agent = net.agent_with(&pin, "");
    let is_lost = Arc::new(AtomicBool::new(true));
    let loses = Arc::clone(&is_lost);
    net.loses(move |tcp| tcp[13] & (SYN | ACK) == ACK && loses.load(Ordering::Relaxed));
    let streams = [false, true].map(|is_v6| {
        net.serve(is_v6, false);
        net.connect(is_v6, MPTCP)
    });
    assert_eq!(net.event("syn_ack_keyed"), 2);
    kill(agent);
    let _agent = net.agent_with(&pin, "");
    is_lost.store(false, Ordering::Relaxed);
    for stream in &streams {
        transfer(stream, MIB);
    }
    assert_eq!(net.event("syn_handed"), 0, "counters begin anew");
    assert_eq!((net.at_backend("MPCapableACKRX"), net.event("ack_other_key")), (2, 0));
    net.assert_no_complaints();
}

/// A restart ends one agent before the next one begins: SYNs wait for that.
#[test]
fn no_connection_is_plain_because_of_a_restart() {
    if !root_or_skip("no_connection_is_plain_because_of_a_restart") {
        return;
    }
    let net = Net::new();
    let pins = BpfFileSystem::mount(net.folder.path().join("bpf"));
    let pin = format!(", pin: {}/agent", pins.0.display());
    let mut agent = net.agent_with(&pin, "");
    BOTH_FAMILIES.iter().for_each(|is_v6| net.serve(*is_v6, false));
    let told = now();
    send(agent.child.id(), Signal::TERM);
    assert!(agent.child.wait().unwrap().success());
    let net = &net;
    let mut injector = injector(&pins);
    let [until, syns] = injector.get(&0, 0).unwrap();
    assert!(until > told + 1_900_000_000, "SYNs are handed over after its end");
    // A busy machine may have no other agent by then.
    injector.set(0, [now() + TIMEOUT.as_nanos() as u64, syns], 0).unwrap();
    std::thread::scope(|scope| {
        let connecting = BOTH_FAMILIES.map(|is_v6| scope.spawn(move || net.connect(is_v6, MPTCP)));
        std::thread::sleep(Duration::from_millis(300));
        agent = net.agent_with(&pin, "");
        connecting.into_iter().for_each(|thread| transfer(&thread.join().unwrap(), MIB));
    });
    assert_eq!(net.at_backend("MPCapableACKRX"), 2);
    assert_eq!(net.event("syn_stripped_silence"), 0);
    net.assert_no_complaints();

    // Stopped for good: new connections are plain ones, after a while.
    send(agent.child.id(), Signal::TERM);
    assert!(agent.child.wait().unwrap().success());
    std::thread::sleep(Duration::from_millis(3100));
    BOTH_FAMILIES.iter().for_each(|is_v6| transfer(&net.connect(*is_v6, MPTCP), MIB));
    assert_eq!(net.at_backend("MPCapableACKRX"), 2);
}

/// When the program heard of the agent, and how many SYNs it may hand over.
fn injector(pins: &BpfFileSystem) -> Array<MapData, [u64; 2]> {
    let table = MapData::from_pin(pins.0.join("agent/injector-1")).unwrap();
    Map::Array(table).try_into().unwrap()
}

/// The program's clock, in ns.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    (now.tv_sec * 1_000_000_000 + now.tv_nsec) as u64
}

/// A join that names another agent is the kernel's here if its token is known here.
#[test]
fn tokens_of_connections_are_known_after_a_restart() {
    if !root_or_skip("tokens_of_connections_are_known_after_a_restart") {
        return;
    }
    let net = Net::new();
    let agent = net.agent_with(&agents("a"), "");
    let streams = [false, true].map(|is_v6| {
        net.serve(is_v6, false);
        let stream = net.connect(is_v6, MPTCP);
        transfer(&stream, 1000);
        stream
    });
    kill(agent);
    let _agent = net.agent_with(&agents("a"), "");
    assert_eq!(net.status(&net.backend)["multipath"]["tokens"], 2);
    let other: IpAddr = OTHER_BACKEND.parse().unwrap();
    net.balances(|balancing| balancing.addresses = vec![other]);
    net.joins();
    net.wait_until("both joins", || net.at_backend("MPJoinAckRx") == 2);
    for stream in &streams {
        transfer(stream, MIB);
    }
    assert_eq!(net.status(&net.backend)["packets"]["forwarded"]["no_token"], 0);
    // What a kernel sent between the agents had no bits, and was refused (PAWS).
    let refused = ["MPJoinNoTokenFound", "MPJoinAckHMacFailure"];
    assert_eq!(refused.map(|name| net.at_backend(name)), [0, 0]);
}

/// Its heartbeat is a second old at most; with it come keys again.
#[test]
fn while_the_agent_hangs_connections_are_plain() {
    if !root_or_skip("while_the_agent_hangs_connections_are_plain") {
        return;
    }
    let net = Net::new();
    let agent = net.agent();
    send(agent.child.id(), Signal::STOP);
    std::thread::sleep(Duration::from_millis(1100));
    let streams = [false, true].map(|is_v6| {
        net.serve(is_v6, false);
        net.connect(is_v6, MPTCP)
    });
    streams.iter().for_each(|stream| transfer(stream, MIB));
    assert_eq!(net.at_backend("MPCapableSYNRX"), 0);
    assert_eq!(kernel(&net.backend, "TcpExt", "SyncookiesSent"), 0);
    send(agent.child.id(), Signal::CONT);
    net.wait_until("keys", || {
        transfer(&net.connect(false, MPTCP), 1000);
        net.at_backend("MPCapableACKRX") == 1
    });
    assert!(net.event("syn_stripped_silence") >= 2);
    net.assert_no_complaints();
}
