//! Measures how long clients wait for answers, by service, in the programs at ingress and
//! egress (bpf/responses.h). Answers bypass the load balancers, so nobody else can measure
//! this.
//!
//! Each flow is measured while there are few requests. On a busy server fewer are, chosen
//! by hash, so that the cost stays small whatever the load.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Duration;

use aya::Ebpf;
use aya::maps::{Array, MapData, PerCpuHashMap};
use ebpf::{ObjectError, Record, with_causes};
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;
use tokio::time::{self, Instant};

use crate::records::{Responses, Sampling, Service, unmapped};
use crate::sockets;

/// The times in which answers are counted: `RESPONSE_CLASSES` in bpf/responses.h.
pub const CLASSES: usize = 24;

/// Where the first of them ends; each next one reaches twice as far, the last one has no end.
const FIRST: Duration = Duration::from_micros(64);

/// Requests a second that are measured: with more, fewer flows are, with a quarter, more.
const MEASURED_MAX: u64 = 1_000;

/// One in so many flows is measured at least.
const ONE_IN_MAX: u32 = 64;

/// What a summary is of: this many of these.
const LATEST: usize = 6;
const INTERVAL: Duration = Duration::from_secs(10);

/// What the programs counted since the agent's start, by service.
pub struct Counts {
    table: PerCpuHashMap<MapData, Record<Service>, Record<Responses>>,
    followed: Mutex<Followed>,
}

/// What is known at moments only.
#[derive(Default)]
struct Followed {
    one_in: u32,
    /// The latest, the oldest first.
    snapshots: VecDeque<(Instant, BTreeMap<SocketAddr, Counted>)>,
    sockets: BTreeMap<SocketAddr, Sockets>,
}

/// What was counted of a service.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    /// Answers, by the time that they took.
    pub classes: [u64; CLASSES],
    /// Of all of them together.
    pub nanoseconds: u64,
    /// RSTs that were sent, of whatever flow.
    pub resets: u64,
}

/// What the kernel says of a service's sockets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sockets {
    /// Connections that are open.
    pub connections: u64,
    /// Connections that the server has not accepted yet.
    pub accept_queue: u64,
    /// With more it drops new ones.
    pub accept_queue_max: u64,
}

/// How a service answered in the latest minute.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Its address and port.
    pub service: SocketAddr,
    /// Answers that were measured.
    pub answers: u64,
    /// That half of them took at most; absent without an answer.
    pub p50_ms: Option<f64>,
    /// That all but a hundredth took at most.
    pub p99_ms: Option<f64>,
    /// RSTs that the server sent.
    pub resets: u64,
    /// Connections that are open.
    pub connections: u64,
    /// Connections that the server has not accepted yet.
    pub accept_queue: u64,
}

/// How all services together answered in the latest minute.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Latest {
    /// Answers, the measured ones; their RSTs are all.
    pub counted: Counted,
    /// Requests that were open at once, on average.
    pub open: f64,
    /// What the kernel says of their sockets.
    pub sockets: Sockets,
}

impl Counts {
    /// Of the programs' table.
    pub fn new(object: &mut Ebpf) -> Result<Counts, ObjectError> {
        Ok(Counts { table: ebpf::table(object, "responses")?, followed: Mutex::default() })
    }

    /// By service. One that was measured once stays: the program has room for 256.
    pub fn read(&self) -> Result<BTreeMap<SocketAddr, Counted>, String> {
        let mut services = BTreeMap::new();
        for entry in self.table.iter() {
            let (Record(service), per_cpu) = entry
                .map_err(|error| format!("cannot read response times: {}", with_causes(&error)))?;
            let counted = services.entry(service.socket_address()).or_insert(Counted::default());
            per_cpu.iter().for_each(|Record(one)| counted.add(&Counted::from(one)));
        }
        Ok(services)
    }

    /// One in so many flows is measured; 0: none is.
    pub fn one_in(&self) -> u32 {
        self.lock().one_in
    }

    /// As they were some seconds ago.
    pub fn sockets(&self) -> BTreeMap<SocketAddr, Sockets> {
        self.lock().sockets.clone()
    }

    /// How all of them answered in the latest minute, as it was some seconds ago; None: that is
    /// not measured, or not yet.
    pub fn latest(&self) -> Option<Latest> {
        self.lock().over_all()
    }

    /// How the services answered in the latest minute.
    pub fn summaries(&self) -> Result<Vec<Summary>, String> {
        let now = self.read()?;
        let followed = self.lock();
        let of = |(service, now): (&SocketAddr, &Counted)| {
            let former = followed.snapshots.front().and_then(|(_, former)| former.get(service));
            let since = now.since(&former.copied().unwrap_or_default());
            let sockets = followed.sockets.get(service).copied().unwrap_or_default();
            Summary {
                service: *service,
                answers: since.answers(),
                p50_ms: since.quantile(0.5).map(milliseconds),
                p99_ms: since.quantile(0.99).map(milliseconds),
                resets: since.resets,
                connections: sockets.connections,
                accept_queue: sockets.accept_queue,
            }
        };
        Ok(now.iter().map(of).collect())
    }

    /// Looks at how much is measured, and at sockets, for ever.
    pub async fn follow(&self, sampler: &mut Sampler) -> Result<(), String> {
        let (mut one_in, mut measured) = (1, 0);
        sampler.set(one_in)?;
        let mut ticks = time::interval(Duration::from_secs(1));
        let mut list_again = Instant::now();
        for second in 0u64.. {
            ticks.tick().await;
            let counted = self.read()?;
            let answers = counted.values().map(Counted::answers).sum();
            let before = std::mem::replace(&mut measured, answers);
            let chosen = one_in_after(one_in, measured - before);
            if chosen != one_in || second == 0 {
                one_in = chosen;
                sampler.set(one_in)?;
                self.lock().one_in = one_in;
            }
            if second.is_multiple_of(INTERVAL.as_secs()) {
                if Instant::now() >= list_again {
                    let took = self.list_sockets(counted.keys().copied().collect()).await?;
                    list_again = Instant::now() + took * sockets::PAUSE;
                }
                self.remember(counted);
            }
        }
        Ok(())
    }

    /// Of the services that are measured; how long it took. Not by the thread that all else is
    /// done by: very many sockets take long.
    async fn list_sockets(&self, services: Vec<SocketAddr>) -> Result<Duration, String> {
        if services.is_empty() {
            return Ok(Duration::ZERO);
        }
        let begun = Instant::now();
        let listed = spawn_blocking(move || sockets_of(&services)).await;
        self.lock().sockets = listed.map_err(|error| format!("cannot list sockets: {error}"))?;
        Ok(begun.elapsed())
    }

    fn remember(&self, counted: BTreeMap<SocketAddr, Counted>) {
        let mut followed = self.lock();
        followed.snapshots.push_back((Instant::now(), counted));
        // With the first and the last of a minute.
        if followed.snapshots.len() > LATEST + 1 {
            followed.snapshots.pop_front();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Followed> {
        self.followed.lock().expect("nobody panics with it")
    }
}

impl Followed {
    fn over_all(&self) -> Option<Latest> {
        let ((begin, former), (end, now)) = (self.snapshots.front()?, self.snapshots.back()?);
        let together = |of: &BTreeMap<SocketAddr, Counted>| {
            let mut all = Counted::default();
            of.values().for_each(|one| all.add(one));
            all
        };
        let counted = together(now).since(&together(former));
        let seconds = (*end - *begin).as_secs_f64();
        let open = counted.nanoseconds as f64 / 1e9 * f64::from(self.one_in) / seconds;
        let mut sockets = Sockets::default();
        for one in self.sockets.values() {
            sockets.connections += one.connections;
            sockets.accept_queue += one.accept_queue;
            sockets.accept_queue_max += one.accept_queue_max;
        }
        (seconds > 0.0).then_some(Latest { counted, open, sockets })
    }
}

impl Counted {
    fn add(&mut self, one: &Counted) {
        self.classes.iter_mut().zip(one.classes).for_each(|(sum, count)| *sum += count);
        self.nanoseconds += one.nanoseconds;
        self.resets += one.resets;
    }

    fn since(&self, former: &Counted) -> Counted {
        Counted {
            classes: std::array::from_fn(|class| self.classes[class] - former.classes[class]),
            nanoseconds: self.nanoseconds - former.nanoseconds,
            resets: self.resets - former.resets,
        }
    }

    /// How many were measured.
    pub fn answers(&self) -> u64 {
        self.classes.iter().sum()
    }

    /// The time within which that share was answered, as far as the classes say: evenly
    /// spread in its class. Of the last one its beginning.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let wanted = share * self.answers() as f64;
        let mut below = 0.0;
        for (class, count) in self.classes.iter().enumerate().filter(|(_, count)| **count > 0) {
            let (begin, end) = (begin_of(class), end_of(class));
            let inside = (wanted - below) / *count as f64;
            if inside <= 1.0 {
                return Some(begin + end.map_or(Duration::ZERO, |end| end - begin).mul_f64(inside));
            }
            below += *count as f64;
        }
        None
    }
}

impl From<&Responses> for Counted {
    fn from(Responses { classes, nanoseconds, resets }: &Responses) -> Counted {
        Counted { classes: *classes, nanoseconds: *nanoseconds, resets: *resets }
    }
}

fn begin_of(class: usize) -> Duration {
    class.checked_sub(1).and_then(end_of).unwrap_or(Duration::ZERO)
}

/// Where a class of times ends; None: the last does not.
pub fn end_of(class: usize) -> Option<Duration> {
    (class + 1 < CLASSES).then(|| FIRST * (1 << class))
}

fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

/// How many flows one is measured of, after so many measurements in a second.
fn one_in_after(one_in: u32, measured: u64) -> u32 {
    if measured >= MEASURED_MAX {
        (one_in * 2).min(ONE_IN_MAX)
    } else if measured < MEASURED_MAX / 4 {
        (one_in / 2).max(1)
    } else {
        one_in
    }
}

/// What cannot be read is zero: it is not what the agent is for.
fn sockets_of(services: &[SocketAddr]) -> BTreeMap<SocketAddr, Sockets> {
    let mut of: BTreeMap<SocketAddr, Sockets> =
        services.iter().map(|service| (*service, Sockets::default())).collect();
    for service in sockets::open().unwrap_or_default() {
        if let Some(sockets) = of.get_mut(&service) {
            sockets.connections += 1;
        }
    }
    let listeners = sockets::accept_queues().unwrap_or_default();
    for (service, sockets) in &mut of {
        for (_, waiting, most) in listeners.iter().filter(|(at, ..)| is_at(at, service)) {
            sockets.accept_queue += u64::from(*waiting);
            sockets.accept_queue_max += u64::from(*most);
        }
    }
    of
}

/// Whether a socket that listens there may have the service's connections.
fn is_at(listener: &SocketAddr, service: &SocketAddr) -> bool {
    listener.port() == service.port()
        && (listener.ip() == service.ip()
            || listener.ip().is_unspecified() && (listener.is_ipv6() || service.is_ipv4()))
}

/// Which flows the programs measure.
pub struct Sampler {
    table: Array<MapData, Record<Sampling>>,
    seed: u32,
}

impl Sampler {
    /// Of the programs' table.
    pub fn new(object: &mut Ebpf) -> Result<Sampler, String> {
        let table = ebpf::table(object, "sampling").map_err(|error| error.to_string())?;
        let mut seed = [0; 4];
        rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())
            .map_err(|error| format!("cannot draw a random number: {error}"))?;
        Ok(Sampler { table, seed: u32::from_ne_bytes(seed) })
    }

    /// Other flows are chosen from now on.
    #[cfg(test)]
    pub fn draw_again(&mut self) {
        self.seed = self.seed.wrapping_mul(5).wrapping_add(1);
    }

    /// One of so many flows, a power of two.
    pub fn set(&mut self, one_in: u32) -> Result<(), String> {
        let sampling = Sampling { mask: one_in - 1, seed: self.seed };
        let set = self.table.set(0, Record(sampling), 0);
        set.map_err(|error| format!("cannot choose flows: {}", with_causes(&error)))
    }
}

impl Service {
    fn socket_address(&self) -> SocketAddr {
        SocketAddr::new(unmapped(self.address), self.port.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(classes: &[(usize, u64)]) -> Counted {
        let mut counted = Counted::default();
        classes.iter().for_each(|(class, count)| counted.classes[*class] = *count);
        counted
    }

    #[test]
    fn a_quantile_is_within_its_class() {
        assert_eq!(Counted::default().quantile(0.99), None);
        let all_alike = counted(&[(4, 100)]);
        assert_eq!(all_alike.quantile(0.5), Some(Duration::from_micros(512 + 256)));
        let one_is_slow = counted(&[(0, 98), (14, 2)]);
        assert_eq!(one_is_slow.quantile(0.5).map(|time| time < FIRST), Some(true));
        assert_eq!(one_is_slow.quantile(0.99), Some(begin_of(14) + begin_of(14) / 2));
        let without_end = counted(&[(CLASSES - 1, 1)]);
        assert_eq!(without_end.quantile(0.99), end_of(CLASSES - 2));
    }

    #[test]
    fn the_program_has_as_many_classes() {
        let source = include_str!("../bpf/responses.h");
        assert!(source.contains(&format!("#define RESPONSE_CLASSES {CLASSES} ")));
    }

    #[test]
    fn fewer_flows_are_measured_while_much_is_asked() {
        assert_eq!(one_in_after(1, 5), 1);
        assert_eq!(one_in_after(1, MEASURED_MAX), 2);
        assert_eq!(one_in_after(ONE_IN_MAX, 10 * MEASURED_MAX), ONE_IN_MAX);
        assert_eq!(one_in_after(8, MEASURED_MAX / 2), 8);
        assert_eq!(one_in_after(8, MEASURED_MAX / 4 - 1), 4);
    }

    #[test]
    fn all_services_together_are_summed_over_the_latest_snapshots() {
        let (web, api) = ("203.0.113.10:80".parse().unwrap(), "203.0.113.11:443".parse().unwrap());
        let begin = Instant::now();
        let mut followed = Followed { one_in: 4, ..Followed::default() };
        assert_eq!(followed.over_all(), None);
        let before = Counted { nanoseconds: 7, ..counted(&[(3, 100)]) };
        followed.snapshots.push_back((begin, [(web, before)].into()));
        assert_eq!(followed.over_all(), None, "of one moment");
        let after = Counted { nanoseconds: 3_000_000_007, resets: 2, ..counted(&[(3, 160)]) };
        let new = Counted { nanoseconds: 2_000_000_000, ..counted(&[(9, 40)]) };
        let later = begin + Duration::from_secs(10);
        followed.snapshots.push_back((later, [(web, after), (api, new)].into()));
        let queue = |connections| Sockets { connections, accept_queue: 1, accept_queue_max: 8 };
        followed.sockets = [(web, queue(5)), (api, queue(6))].into();
        let latest = followed.over_all().unwrap();
        assert_eq!(latest.counted.answers(), 100);
        assert_eq!(latest.counted.resets, 2);
        // Five seconds of work in ten, of one flow in four.
        assert!((latest.open - 2.0).abs() < 1e-9, "{latest:?}");
        assert_eq!((latest.sockets.connections, latest.sockets.accept_queue), (11, 2));
    }

    #[test]
    fn listeners_of_all_addresses_have_a_services_connections() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        for (listener, service, expected) in [
            ("203.0.113.10:80", "203.0.113.10:80", true),
            ("0.0.0.0:80", "203.0.113.10:80", true),
            ("[::]:80", "203.0.113.10:80", true),
            ("[::]:80", "[2001:db8::10]:80", true),
            ("0.0.0.0:80", "[2001:db8::10]:80", false),
            ("203.0.113.10:81", "203.0.113.10:80", false),
            ("203.0.113.11:80", "203.0.113.10:80", false),
        ] {
            assert_eq!(is_at(&at(listener), &at(service)), expected, "{listener} {service}");
        }
    }
}
