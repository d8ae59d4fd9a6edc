//! Tests both sides of the requests for rules against each other.

use std::time::Duration;

use super::super::client::{Client, Taken};
use super::super::rule::Action;
use super::*;
use crate::config::Peers;
use crate::records::{Flow, mapped};

fn config() -> Config {
    let text = "{interface: eth0, load_balancers: [10.0.0.1], vips: [203.0.113.10], name: x,
        agents: {x: 10.1.0.1, y: 10.1.0.2, z: 10.1.0.3},
        mptcp: [{address: 203.0.113.10, port: 443}]}";
    let mut config = Config::parse("config", text).unwrap();
    config.keys = Some(keys("x", 0));
    config.peers = Peers([("y".to_string(), [2; 32])].into());
    config
}

fn keys(agent: &str, key: u8) -> Keys {
    Keys { agent: agent.to_string(), id: [1; 8], message: [key; 32], bucket: [3; 16] }
}

fn flow(client_port: u16) -> Flow {
    let [client, vip] = [[192, 0, 2, 1], [203, 0, 113, 10]].map(|bytes| mapped(bytes.into()));
    Flow { client, vip, client_port: client_port.into(), vip_port: 443.into() }
}

const Y: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 1, 0, 2));

struct Pair {
    client: Client,
    server: Server,
    now: Instant,
    /// All that the client sent.
    sent: Vec<Vec<u8>>,
}

impl Pair {
    fn new() -> Pair {
        let now = Instant::now();
        Pair {
            client: Client::new(keys("y", 2), keys("x", 2), 7, now),
            server: Server::new(&config(), [9; 32], now),
            now,
            sent: Vec::new(),
        }
    }

    /// Until nothing is due; the rules that counted.
    fn exchange(&mut self) -> Vec<Rule> {
        let mut taken = Vec::new();
        loop {
            let datagrams = self.client.datagrams(self.now);
            if datagrams.is_empty() {
                return taken;
            }
            for bytes in datagrams {
                let answer = match self.server.receive(Y, &bytes, self.now) {
                    Received::Rules { rules, answer, .. } => {
                        taken.extend(rules);
                        answer
                    }
                    Received::Challenged(answer) => answer,
                    other => panic!("{other:?}"),
                };
                self.sent.push(bytes);
                let taken = self.client.take(&answer, self.now);
                assert!(matches!(taken, Taken::Granted(_) | Taken::Challenged), "{taken:?}");
            }
        }
    }
}

#[test]
fn rules_are_granted_refreshed_and_ended() {
    let mut pair = Pair::new();
    let rule = |action| Rule { action, flow: flow(1) };
    assert!(!pair.client.is_answered(pair.now));
    pair.client.request(flow(1), Action::Handshake, pair.now);
    assert_eq!(pair.exchange(), [rule(Action::Handshake)]);
    assert!(pair.client.is_answered(pair.now));
    pair.client.request(flow(1), Action::Connection, pair.now);
    pair.client.request(flow(1), Action::Handshake, pair.now);
    assert_eq!(pair.exchange(), [rule(Action::Connection)]);
    assert_eq!(pair.client.count(), (1, 0));
    pair.now += Duration::from_secs(29);
    assert_eq!(pair.exchange(), [], "not yet");
    pair.now += Duration::from_secs(1);
    assert_eq!(pair.exchange(), [rule(Action::Connection)]);
    pair.client.request(flow(1), Action::End, pair.now);
    assert_eq!(pair.exchange(), [rule(Action::End)]);
    assert_eq!(pair.client.count(), (0, 0));
    pair.client.request(flow(2), Action::End, pair.now);
    assert_eq!(pair.exchange(), [], "of none");
}

#[test]
fn a_thousand_rules_go_in_few_datagrams() {
    let mut pair = Pair::new();
    (0..1000).for_each(|port| pair.client.request(flow(port), Action::Connection, pair.now));
    assert_eq!(pair.exchange().len(), 1000);
    assert_eq!(pair.client.count(), (1000, 0));
    assert!(pair.sent.len() < 100, "{}", pair.sent.len());
    assert!(pair.sent.iter().all(|bytes| bytes.len() <= datagram::BYTES_MAX));
}

#[test]
fn after_a_restart_of_either_side_rules_are_granted_anew_and_nothing_old_counts() {
    let mut pair = Pair::new();
    pair.client.request(flow(1), Action::Connection, pair.now);
    assert_eq!(pair.exchange().len(), 1);
    let old = std::mem::take(&mut pair.sent);
    let takes_old = |pair: &mut Pair| {
        for bytes in &old {
            let received = pair.server.receive(Y, bytes, pair.now);
            assert!(
                matches!(received, Received::Replayed | Received::Challenged(_)),
                "{received:?}"
            );
        }
    };
    takes_old(&mut pair);
    pair.server = Server::new(&config(), [8; 32], pair.now);
    takes_old(&mut pair);
    pair.now += Duration::from_secs(30);
    assert_eq!(pair.exchange().len(), 1, "with another nonce");
    takes_old(&mut pair);
    pair.client = Client::new(keys("y", 2), keys("x", 2), 6, pair.now);
    pair.client.request(flow(1), Action::Connection, pair.now);
    assert_eq!(pair.exchange().len(), 1, "with another boot");
    takes_old(&mut pair);
}

#[test]
fn a_request_without_an_answer_is_repeated_and_in_the_end_given_up() {
    let mut pair = Pair::new();
    pair.client.request(flow(1), Action::Handshake, pair.now);
    let started = pair.now;
    let mut sent = 0;
    while pair.client.count().0 > 0 {
        pair.now = pair.client.next_due();
        sent += pair.client.datagrams(pair.now).len();
        assert!(pair.now - started < Duration::from_secs(60), "for ever");
    }
    assert!((6..=12).contains(&sent), "{sent}");
    assert_eq!(pair.client.gave_up, 1);
    assert!(!pair.client.is_answered(pair.now));
}

#[test]
fn what_another_signed_or_sent_counts_for_nothing() {
    let mut pair = Pair::new();
    let request = |own: Keys, now: Instant| {
        let mut client = Client::new(own, keys("x", 2), 7, now);
        client.request(flow(1), Action::Connection, now);
        client.datagrams(now).remove(0)
    };
    let good = request(keys("y", 2), pair.now);
    let refused = |refused| Received::Refused(refused);
    let now = pair.now;
    let mut receive =
        |source: &str, bytes: &[u8]| pair.server.receive(source.parse().unwrap(), bytes, now);
    assert!(matches!(receive("10.1.0.2", &good), Received::Challenged(_)));
    assert_eq!(receive("10.1.0.2", &request(keys("y", 4), now)), refused(Refused::Forged));
    assert_eq!(receive("10.1.0.2", &request(keys("z", 2), now)), refused(Refused::OtherKey));
    assert_eq!(receive("10.1.0.3", &good), Received::UnknownAgent, "has no key here");
    assert_eq!(receive("10.1.0.9", &good), Received::UnknownAgent, "no agent");
    assert_eq!(receive("10.1.0.2", &good[..20]), refused(Refused::Malformed));
    let answers = (0..5000).map(|_| receive("10.1.0.2", &good));
    assert!(answers.into_iter().any(|received| received == Received::RateLimited));
}

#[test]
fn rules_of_services_that_are_not_here_are_left_out() {
    let mut pair = Pair::new();
    let mut other = flow(1);
    other.vip_port = 444.into();
    pair.client.request(other, Action::Connection, pair.now);
    assert_eq!(pair.exchange(), []);
}
