//! Reports to the load balancers' controllers: the agent's complete state, and how often it
//! is sent.
//!
//! ```text
//!  every connection here ─► its bucket ─► counts ─► datagrams ──UDP──► controller
//!                              ▲                                           │
//!                              └── services, nonce, when the next is due ◄─┘
//! ```
//!
//! Each controller has a task, a socket and a session of its own: one that is unreachable
//! or has another config delays no other. States are sent each second, so that silence is
//! noticed soon. Connections are listed once for all controllers, and counted as often as
//! they want, but within a hundredth of a processor. Uses no wall clock: the controller's
//! nonce decides what is recent.

mod count;
mod listing;
mod session;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tokio::net::UdpSocket;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, interval, sleep, sleep_until, timeout_at};
use wire::IpPrefix;

use crate::config::{self, Config, Keys};
use crate::datagram::{self, Refused};
use crate::flows::Flows;
use crate::outcome;
use crate::program::Counters;
use crate::redirects::Living;
use crate::timestamps::Clocks;
use count::Said;
use listing::Listings;
use session::{Session, Taken};

/// The messages' bodies, generated from `proto/guideway/agent/v1/agent.proto`.
#[allow(
    missing_docs,
    unused_qualifications,
    clippy::all,
    clippy::allow_attributes_without_reason,
    clippy::too_many_lines,
    reason = "generated"
)]
mod proto {
    include!(concat!(env!("OUT_DIR"), "/guideway.agent.v1.rs"));
}

/// Between two states at least, however urgent.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// How often it is looked whether packets come, and how long one that came counts.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);
const SEEN_FOR: Duration = Duration::from_secs(10);

/// After a failure of the machine's own, such as a missing address.
const AGAIN: Duration = Duration::from_secs(1);

/// What became of answers, as metrics have it.
pub const RESULTS: [&str; 6] = ["accepted", "part", "outdated", "malformed", "other_key", "forged"];

/// What was said to one controller, and what it answered.
#[derive(Debug, Clone)]
pub struct Exchange {
    /// The controller.
    pub controller: SocketAddr,
    /// States sent to it.
    pub states_sent: u64,
    /// By index of [`RESULTS`].
    pub answers: [u64; RESULTS.len()],
    /// When it answered last, in seconds since 1970.
    pub answered_at: Option<f64>,
    /// Connections in the latest state, over all services and buckets.
    pub connections: u64,
    /// Where clients reach the services here, as the controller has it.
    pub services: Vec<Served>,
}

/// An address and port of a service.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Served {
    /// The VIP.
    pub address: IpAddr,
    /// "tcp" or "udp".
    pub protocol: String,
    /// The VIP's port.
    pub port: u16,
}

/// The exchanges with all controllers, as metrics read them.
#[derive(Clone, Default)]
pub struct Exchanges(Vec<Arc<Mutex<Exchange>>>);

impl Exchanges {
    /// As they are now, in the config's order.
    pub fn read(&self) -> Vec<Exchange> {
        self.0.iter().map(|exchange| locked(exchange).clone()).collect()
    }
}

fn locked<T>(shared: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What all controllers are told.
struct Here {
    listings: Listings,
    /// Who this agent is, and whose packets it takes.
    said: Said,
    /// The VIPs of its config.
    vips: Vec<IpPrefix>,
    /// When a packet was last seen to come out of a tunnel.
    seen: Mutex<Option<Instant>>,
    counters: Arc<Counters>,
    controllers: u32,
}

impl Here {
    /// How many of these VIPs the config lacks.
    fn lacking(&self, vips: &BTreeSet<IpAddr>) -> u32 {
        vips.iter().filter(|vip| config::lacks(&self.vips, **vip)).count() as u32
    }
}

/// The agent's side of all exchanges.
pub struct Messages {
    keys: Option<Keys>,
    here: Arc<Here>,
    exchanges: Exchanges,
}

impl Messages {
    /// To the controllers of a config, of the sockets here, these flows, and what
    /// timestamps have, and of those elsewhere that rules here lead to.
    pub fn new(
        config: &Config,
        flows: Flows,
        clocks: Clocks,
        redirected: Living,
        counters: &Arc<Counters>,
    ) -> Messages {
        let exchange = |controller: &SocketAddr| {
            Arc::new(Mutex::new(Exchange {
                controller: *controller,
                states_sent: 0,
                answers: [0; RESULTS.len()],
                answered_at: None,
                connections: 0,
                services: Vec::new(),
            }))
        };
        Messages {
            keys: config.keys.clone(),
            here: Arc::new(Here {
                listings: Listings::new(flows, clocks, redirected),
                said: Said {
                    own: config.own_addresses().map(count::brief).collect(),
                    accepts: config.other_agents().map(count::brief).collect(),
                    ..Said::default()
                },
                vips: config.vips.clone(),
                seen: Mutex::new(None),
                counters: Arc::clone(counters),
                controllers: config.controllers.len() as u32,
            }),
            exchanges: Exchanges(config.controllers.iter().map(exchange).collect()),
        }
    }

    /// For metrics.
    pub fn exchanges(&self) -> Exchanges {
        self.exchanges.clone()
    }

    /// Runs for ever.
    pub async fn run(&self) -> Result<(), String> {
        let Some(keys) = &self.keys else { return std::future::pending().await };
        let mut boot = [0; 8];
        rustix::rand::getrandom(&mut boot, rustix::rand::GetRandomFlags::empty())
            .map_err(|error| format!("cannot draw a random number: {error}"))?;
        let mut tasks = JoinSet::new();
        for exchange in &self.exchanges.0 {
            let session = Session::new(keys.clone(), u64::from_ne_bytes(boot));
            tasks.spawn(talk(session, exchange.clone(), Arc::clone(&self.here)));
        }
        watch(&self.here).await
    }
}

/// Notes when packets come out of tunnels, as the program's counters show.
async fn watch(here: &Here) -> ! {
    let (mut ticks, mut before) = (interval(WATCH_INTERVAL), None);
    loop {
        ticks.tick().await;
        let Ok(counts) = here.counters.read() else { continue };
        let taken = outcome::taken(&counts);
        if before.replace(taken).is_some_and(|before| before != taken) {
            *locked(&here.seen) = Some(Instant::now());
        }
    }
}

/// Sends states to one controller and takes its answers.
async fn talk(mut session: Session, exchange: Arc<Mutex<Exchange>>, here: Arc<Here>) {
    let controller = locked(&exchange).controller;
    let socket = connected(controller).await;
    loop {
        let sent_at = Instant::now();
        let bodies = bodies(&mut session, &exchange, &here).await;
        for datagram in session.state(&bodies) {
            // A lost state is followed by another.
            let _ = socket.send(&datagram).await;
        }
        locked(&exchange).states_sent += 1;
        receive_until_due(&mut session, &socket, &exchange, sent_at).await;
        sleep_until(sent_at + INTERVAL_MIN).await;
    }
}

/// A socket that only the controller's datagrams come to.
async fn connected(controller: SocketAddr) -> UdpSocket {
    let any: IpAddr = match controller {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let mut is_told = false;
    loop {
        let connected = async {
            let socket = UdpSocket::bind((any, 0)).await?;
            socket.connect(controller).await?;
            std::io::Result::Ok(socket)
        };
        match connected.await {
            Ok(socket) => return socket,
            Err(error) if !is_told => {
                tracing::warn!(%controller, "cannot send to the controller, trying again: {error}");
                is_told = true;
            }
            Err(_) => {}
        }
        sleep(AGAIN).await;
    }
}

/// The bodies of the next state.
async fn bodies(
    session: &mut Session,
    exchange: &Mutex<Exchange>,
    here: &Arc<Here>,
) -> Vec<Vec<u8>> {
    let mut said = here.said.clone();
    let Some(counting) = session.counting() else { return said.bodies(0) };
    said.serves = locked(&here.seen).is_some_and(|seen| seen.elapsed() < SEEN_FOR)
        && counting.vips().iter().all(|vip| is_ours(*vip));
    said.vips_lacking = here.lacking(counting.vips());
    said.answers = here.counters.responses.latest();
    locked(exchange).services = counting.served().to_vec();
    if !session.is_count_due(Instant::now(), here.controllers) {
        return counting.uncounted(&said);
    }
    let wanted = session.count_interval();
    let here = Arc::clone(here);
    let counted = spawn_blocking(move || {
        let listing = here.listings.latest(wanted.unwrap_or_default())?;
        let begun = Instant::now();
        let (counts, connections) = counting.count(&listing.flows);
        said.counted = Some(listing.made.elapsed());
        std::io::Result::Ok((connections, counting.bodies(&said, &counts), begun.elapsed()))
    });
    match counted.await.map_err(std::io::Error::other).and_then(|counted| counted) {
        Ok((connections, bodies, took)) => {
            session.counted(Instant::now(), took);
            locked(exchange).connections = connections;
            bodies
        }
        Err(error) => {
            tracing::warn!("cannot list this machine's connections: {error}");
            Said::default().bodies(0)
        }
    }
}

/// Whether an address is this machine's: a socket can have it.
fn is_ours(address: IpAddr) -> bool {
    std::net::UdpSocket::bind((address, 0)).is_ok()
}

async fn receive_until_due(
    session: &mut Session,
    socket: &UdpSocket,
    exchange: &Mutex<Exchange>,
    sent_at: Instant,
) {
    let mut bytes = [0; datagram::BYTES_MAX + 1];
    let mut has_news = false;
    while !has_news {
        let due = sent_at + session.interval();
        // An error is an ICMP error about the state: nothing listens there.
        let Ok(received) = timeout_at(due, socket.recv(&mut bytes)).await else { return };
        let Ok(len) = received else { continue };
        let taken = session.take(&bytes[..len]);
        has_news = taken == Taken::News;
        note(&mut locked(exchange), taken);
    }
}

fn note(exchange: &mut Exchange, taken: Taken) {
    let result = match taken {
        Taken::Whole | Taken::News => 0,
        Taken::Part => 1,
        Taken::Outdated => 2,
        Taken::Refused(Refused::Malformed) => 3,
        Taken::Refused(Refused::OtherKey) => 4,
        Taken::Refused(Refused::Forged) => 5,
    };
    exchange.answers[result] += 1;
    if result == 0 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        exchange.answered_at = Some(now.as_secs_f64());
    }
}
