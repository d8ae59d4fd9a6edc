//! Redirect rules between agents (MPLB, section 3.3; docs/mptcp.md). The agent in charge of
//! the bucket of a connection's five-tuple forwards segments without timestamps to the
//! agent where the connection lives by its token.
//!
//! ```text
//!  programs ─ rule_events, away ─► client ═══ UDP ═══► server ─► redirects ─► programs
//!  the kernel's connections ─────────┘    of the agent there
//! ```
//!
//! A rule is requested when the kernel has answered a SYN of a client without timestamps,
//! and when that client has answered. It is refreshed while the connection is listed, and
//! removed afterwards.

mod client;
mod counts;
mod rule;
mod server;
mod tables;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use aya::maps::{HashMap as Table, MapData, RingBuf};
use ebpf::{Record, with_causes};
use tokio::io::unix::AsyncFd;
use tokio::net::UdpSocket;
use tokio::task::spawn_blocking;
use tokio::time::sleep_until;
use wire::FlowKey;
use zerocopy::FromBytes;

use crate::config::{Config, Keys};
use crate::datagram;
use crate::flows;
use crate::records::{Address, Flow, RuleEvent, mapped};
use crate::sockets;
use client::{Client, Taken};
pub use counts::{EVENTS, Shared, State};
use rule::Action;
use server::{Received, Server};
use tables::Applied;
pub use tables::{Rules, Tables};

/// Where agents receive requests.
pub const PORT: u16 = 9476;

/// How often the kernel's connections are listed, and rules that ended taken out.
const LIST_INTERVAL: Duration = Duration::from_secs(10);

/// How long a connection may be missing in a list that was begun when it was made.
const LISTED_AFTER: Duration = Duration::from_secs(5);

/// How long a handshake may take to become a connection.
const HANDSHAKE: Duration = Duration::from_secs(30);

/// Handshakes whose rules are requested at once: as many as another agent keeps.
const HANDSHAKES_MAX: usize = 16_384;

/// From this number on the programs begin no others. The rest is for those that the ring has.
const HANDSHAKES_FULL: usize = HANDSHAKES_MAX * 3 / 4;

/// Between two times that something is sent.
const PAUSE: Duration = Duration::from_millis(2);

/// Between two counts of all rules, which there may be many of.
const COUNT_INTERVAL: Duration = Duration::from_millis(200);

/// After a failure of the machine's own, such as a missing address.
const AGAIN: Duration = Duration::from_secs(1);

/// For each agent that this one has a key with: what it signs with, and what it expects.
fn pairs(config: &Config) -> BTreeMap<String, (Keys, Keys)> {
    let Some(own) = &config.keys else { return BTreeMap::new() };
    let known = config.peers.0.iter().filter(|(name, _)| config.agents.contains_key(*name));
    let pair = known.map(|(name, key)| {
        let own = Keys { message: *key, ..own.clone() };
        (name.clone(), (own.clone(), Keys { agent: name.clone(), ..own }))
    });
    pair.filter(|(name, _)| *name != config.name).collect()
}

/// Other agents that this one has no key with, so that it requests no rules of them.
pub fn without_key(config: &Config) -> Vec<&str> {
    let names = config.agents.keys().filter(|name| **name != config.name);
    names.filter(|name| !config.peers.0.contains_key(*name)).map(String::as_str).collect()
}

/// A connection here whose bucket another agent has.
struct Away {
    owner: String,
    since: Instant,
}

/// The agent's side of all of it.
pub struct Redirects {
    config: Config,
    /// Until it runs.
    events: Option<RingBuf<MapData>>,
    away: Table<MapData, Record<Flow>, Address>,
    takers: Table<MapData, Address, u32>,
    rules: Arc<Mutex<Rules>>,
    shared: Shared,
    by_address: HashMap<Address, (String, IpAddr)>,
    clients: BTreeMap<String, (Client, IpAddr)>,
    server: Server,
    connections: HashMap<Flow, Away>,
    handshakes: HashMap<Flow, Away>,
    listed_at: Instant,
    counted_at: Instant,
}

/// Rules here, for counting.
#[derive(Clone)]
pub struct Living(Arc<Mutex<Rules>>);

impl Living {
    /// The flows of others' connections that rules here lead to.
    pub fn flows(&self) -> Result<Vec<FlowKey>, String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).flows()
    }
}

impl Redirects {
    /// Of the programs' tables.
    pub fn new(config: &Config, tables: Tables) -> Result<Redirects, String> {
        let now = Instant::now();
        let mut start = [0; 32];
        let mut boot = [0; 8];
        for bytes in [&mut start[..], &mut boot[..]] {
            rustix::rand::getrandom(bytes, rustix::rand::GetRandomFlags::empty())
                .map_err(|error| format!("cannot draw a random number: {error}"))?;
        }
        let boot = u64::from_ne_bytes(boot);
        let clients = pairs(config).into_iter().filter_map(|(name, (own, other))| {
            let addresses = config.agents.get(&name)?;
            let address = addresses.iter().find(|at| config.own_address(**at).is_some())?;
            Some((name, (Client::new(own, other, boot, now), *address)))
        });
        let agents = config.agents.iter().flat_map(|(name, addresses)| {
            addresses.iter().map(|address| (mapped(*address), (name.clone(), *address)))
        });
        let shared = Shared::default();
        let missing = without_key(config);
        if !config.multipath.is_empty() && !missing.is_empty() {
            let cure = "print the key file anew by `guideway config backend NAME --keys`";
            let missing = missing.join(", ");
            let problem = format!("no redirect rules: no key for messages to {missing}: {cure}");
            tracing::warn!("mptcp: {problem}");
            shared.change(|state| state.problem = Some(problem));
        }
        let Tables { events, away, agents: takers, mut takes_rules, rules } = tables;
        let is_on = !config.multipath.is_empty() && !config.peers.0.is_empty();
        takes_rules
            .set(0, u32::from(is_on), 0)
            .map_err(|error| format!("cannot switch rules on: {}", with_causes(&error)))?;
        Ok(Redirects {
            events: Some(events),
            away,
            takers,
            rules: Arc::new(Mutex::new(rules)),
            shared,
            by_address: agents.collect(),
            clients: clients.collect(),
            server: Server::new(config, start, now),
            connections: HashMap::new(),
            handshakes: HashMap::new(),
            listed_at: now,
            counted_at: now,
            config: config.clone(),
        })
    }

    /// For metrics and status.
    pub fn shared(&self) -> Shared {
        self.shared.clone()
    }

    /// For the counts that controllers get.
    pub fn living(&self) -> Living {
        Living(Arc::clone(&self.rules))
    }

    /// Runs for ever.
    pub async fn run(mut self) -> Result<(), String> {
        if self.config.multipath.is_empty() || self.clients.is_empty() {
            return std::future::pending().await;
        }
        let sockets = Sockets::open(&self.config).await;
        let events = self.events.take().ok_or("the ring of rules is taken")?;
        let mut events = watched(events)?;
        self.adopt();
        let mut bytes = [0; datagram::BYTES_MAX + 1];
        loop {
            let due = self.clients.values().map(|(client, _)| client.next_due()).min();
            let due = due.map_or(self.next_list(), |due| due.min(self.next_list()));
            let due = due.min(self.counted_at + LIST_INTERVAL / 10).max(Instant::now() + PAUSE);
            tokio::select! {
                ready = events.readable_mut() => {
                    let mut ready = ready.map_err(|error| format!("cannot read rules: {error}"))?;
                    self.take_events(ready.get_inner_mut());
                    ready.clear_ready();
                }
                received = sockets.receive(&mut bytes) => {
                    if let Ok((length, from)) = received {
                        self.take(&bytes[..length], from, &sockets).await;
                    }
                }
                () = sleep_until(due.into()) => {}
            }
            if self.next_list() <= Instant::now() {
                self.list().await;
            }
            self.send(&sockets).await;
        }
    }

    fn next_list(&self) -> Instant {
        self.listed_at + LIST_INTERVAL
    }

    /// What is due, to all.
    async fn send(&mut self, sockets: &Sockets) {
        for (client, address) in self.clients.values_mut() {
            let now = Instant::now();
            let before = client.gave_up;
            for bytes in client.datagrams(now) {
                self.shared.add("requested", 1);
                // A lost one is repeated.
                let _ = sockets.send(&bytes, *address).await;
            }
            self.shared.add("gave_up", (client.gave_up - before) as usize);
        }
        if self.counted_at.elapsed() >= COUNT_INTERVAL {
            self.counted_at = Instant::now();
            self.count();
        }
    }

    fn count(&self) {
        let (now, clients) = (Instant::now(), || self.clients.values().map(|(client, _)| client));
        let counts: Vec<(usize, usize)> = clients().map(Client::count).collect();
        self.shared.change(|state| {
            state.agents = clients().filter(|client| client.is_answered(now)).count();
            state.requested = counts.iter().map(|(all, _)| all).sum();
            state.pending = counts.iter().map(|(_, pending)| pending).sum();
        });
    }

    /// Says to the programs which agents take rules.
    fn enter_agents(&mut self) {
        let now = Instant::now();
        let takes_handshakes = u32::from(self.handshakes.len() < HANDSHAKES_FULL);
        for (key, (name, _)) in &self.by_address {
            let Some((client, _)) = self.clients.get(name) else { continue };
            let known = self.takers.get(key, 0).ok();
            match (client.is_answered(now).then_some(takes_handshakes), known) {
                (Some(takes), known) if known != Some(takes) => {
                    drop(self.takers.insert(key, takes, 0));
                }
                (None, Some(_)) => drop(self.takers.remove(key)),
                _ => {}
            }
        }
    }

    /// New connections and handshakes.
    fn take_events(&mut self, events: &mut RingBuf<MapData>) {
        while let Some(event) = events.next() {
            let Ok((event, _)) = RuleEvent::read_from_prefix(&event) else { continue };
            if event.is_connection != 0 {
                self.connection(event.flow, event.owner);
            } else {
                self.handshake(event.flow, event.owner);
            }
        }
    }

    fn handshake(&mut self, flow: Flow, owner: Address) {
        let now = Instant::now();
        let Some((owner, _)) = self.by_address.get(&owner) else { return };
        if self.handshakes.len() >= HANDSHAKES_MAX {
            return self.shared.add("no_room_here", 1);
        }
        if let Some((client, _)) = self.clients.get_mut(owner) {
            client.request(flow, Action::Handshake, now);
            self.handshakes.insert(flow, Away { owner: owner.clone(), since: now });
        }
        if self.handshakes.len() == HANDSHAKES_FULL {
            self.enter_agents();
        }
    }

    fn connection(&mut self, flow: Flow, owner: Address) {
        let now = Instant::now();
        self.handshakes.remove(&flow);
        let Some((owner, _)) = self.by_address.get(&owner) else { return };
        let Some((client, _)) = self.clients.get_mut(owner) else {
            return self.shared.add("no_key", 1);
        };
        client.request(flow, Action::Connection, now);
        let away = Away { owner: owner.clone(), since: now };
        // The same ports again, with another key, have another bucket's owner only if the
        // bucket has moved since.
        if let Some(old) = self.connections.insert(flow, away)
            && old.owner != *owner
            && let Some((client, _)) = self.clients.get_mut(&old.owner)
        {
            client.request(flow, Action::End, now);
        }
    }

    /// Connections that the programs know of, and we do not: of before our start, or of
    /// which the ring had no room.
    fn adopt(&mut self) {
        let unknown: Vec<(Record<Flow>, Address)> = self
            .away
            .iter()
            .flatten()
            .filter(|(flow, _)| !self.connections.contains_key(&flow.0))
            .collect();
        for (Record(flow), owner) in unknown {
            self.connection(flow, owner);
        }
    }

    /// Follows the kernel's connections.
    async fn list(&mut self) {
        self.adopt();
        self.enter_agents();
        let begun = Instant::now();
        self.listed_at = begun;
        let count = self.rules.lock().unwrap_or_else(PoisonError::into_inner).sweep();
        self.shared.change(|state| state.rules = count);
        if self.connections.is_empty() && self.handshakes.is_empty() {
            return;
        }
        let listed = spawn_blocking(|| {
            let listed = sockets::connections()?;
            io::Result::Ok(listed.iter().map(|(flow, is)| (flows::flow_of(flow), *is)).collect())
        });
        match listed.await.map_err(io::Error::other).and_then(|listed| listed) {
            Ok(listed) => self.follow(&listed, begun),
            Err(error) => tracing::warn!("cannot list this machine's connections: {error}"),
        }
    }

    /// `listed` has handshakes, too: false of those that the client has not answered.
    fn follow(&mut self, listed: &HashMap<Flow, bool>, begun: Instant) {
        let is_listable = |away: &Away| begun.saturating_duration_since(away.since) > LISTED_AFTER;
        let gone = self
            .connections
            .extract_if(|flow, away| is_listable(away) && !listed.contains_key(flow));
        for (flow, away) in gone {
            let _ = self.away.remove(&Record(flow));
            if let Some((client, _)) = self.clients.get_mut(&away.owner) {
                client.request(flow, Action::End, begun);
            }
        }
        // Connections of clients that have said and heard nothing since their handshake.
        let silent: Vec<Flow> = self
            .handshakes
            .keys()
            .filter(|flow| listed.get(*flow) == Some(&true))
            .copied()
            .collect();
        for flow in silent {
            let Some(away) = self.handshakes.remove(&flow) else { continue };
            let Some((client, address)) = self.clients.get_mut(&away.owner) else { continue };
            client.request(flow, Action::Connection, begun);
            let _ = self.away.insert(Record(flow), mapped(*address), 0);
            self.connections.insert(flow, away);
        }
        self.handshakes.retain(|_, away| begun.saturating_duration_since(away.since) < HANDSHAKE);
    }

    /// A datagram: another agent's request, or its answer to one of ours.
    async fn take(&mut self, bytes: &[u8], from: SocketAddr, sockets: &Sockets) {
        let (now, source) = (Instant::now(), from.ip().to_canonical());
        if datagram::is_answer_to_rules(bytes) {
            let named = self.by_address.get(&mapped(source)).map(|(name, _)| name.clone());
            let client = named.and_then(|name| self.clients.get_mut(&name));
            let Some((client, _)) = client else {
                return self.shared.add("unknown_agent", 1);
            };
            match client.take(bytes, now) {
                Taken::Granted(rules) => self.shared.add("granted", rules),
                Taken::Challenged => self.shared.add("challenged", 1),
                Taken::Outdated => self.shared.add("answer_outdated", 1),
                Taken::Refused(_) => self.shared.add("answer_refused", 1),
            }
            return self.enter_agents();
        }
        let answer = match self.server.receive(source, bytes, now) {
            Received::Rules { rules, others, answer } => {
                let mut tables = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
                for rule in &rules {
                    let event = match tables.apply(source, rule) {
                        Applied::Done => "taken",
                        Applied::NoRoom => "no_room",
                        Applied::OtherAgent => "other_agent",
                    };
                    self.shared.add(event, 1);
                }
                self.shared.add("other_service", others);
                answer
            }
            Received::Challenged(answer) => {
                self.shared.add("challenge_sent", 1);
                answer
            }
            Received::Replayed => return self.shared.add("replayed", 1),
            Received::UnknownAgent => return self.shared.add("unknown_agent", 1),
            Received::RateLimited => return self.shared.add("rate_limited", 1),
            Received::Refused(datagram::Refused::Malformed) => {
                return self.shared.add("malformed", 1);
            }
            Received::Refused(datagram::Refused::OtherKey) => {
                return self.shared.add("other_key", 1);
            }
            Received::Refused(datagram::Refused::Forged) => return self.shared.add("forged", 1),
        };
        let _ = sockets.send(&answer, source).await;
    }
}

/// The ring closes its descriptor, and nothing else does.
#[expect(deprecated, reason = "its successor is unsafe, and this crate has no unsafe code")]
fn watched(events: RingBuf<MapData>) -> Result<AsyncFd<RingBuf<MapData>>, String> {
    AsyncFd::new(events).map_err(|error| format!("cannot wait for connections: {error}"))
}

/// One of each family, bound to this agent's own address.
struct Sockets {
    v4: Option<UdpSocket>,
    v6: Option<UdpSocket>,
}

impl Sockets {
    /// Waits until the addresses are there.
    async fn open(config: &Config) -> Sockets {
        let unspecified = [IpAddr::from([0; 4]), IpAddr::from(Ipv6Addr::UNSPECIFIED)];
        let [v4, v6] = unspecified.map(|family| config.own_address(family));
        Sockets { v4: bound(v4).await, v6: bound(v6).await }
    }

    fn to(&self, address: IpAddr) -> Option<&UdpSocket> {
        if address.is_ipv4() { self.v4.as_ref() } else { self.v6.as_ref() }
    }

    async fn send(&self, bytes: &[u8], to: IpAddr) -> io::Result<usize> {
        match self.to(to) {
            Some(socket) => socket.send_to(bytes, (to, PORT)).await,
            None => Err(io::ErrorKind::AddrNotAvailable.into()),
        }
    }

    async fn receive(&self, bytes: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let ready = async |socket: &Option<UdpSocket>| match socket {
            Some(socket) => socket.readable().await,
            None => std::future::pending().await,
        };
        let socket = tokio::select! {
            result = ready(&self.v4) => result.map(|()| &self.v4),
            result = ready(&self.v6) => result.map(|()| &self.v6),
        }?;
        socket.as_ref().expect("it was ready").try_recv_from(bytes)
    }
}

async fn bound(address: Option<IpAddr>) -> Option<UdpSocket> {
    let address = address?;
    let mut is_told = false;
    loop {
        match UdpSocket::bind((address, PORT)).await {
            Ok(socket) => return Some(socket),
            Err(error) if !is_told => {
                tracing::warn!("cannot receive rules at {address}, trying again: {error}");
                is_told = true;
            }
            Err(_) => {}
        }
        tokio::time::sleep(AGAIN).await;
    }
}
