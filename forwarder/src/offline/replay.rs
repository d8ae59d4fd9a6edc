//! Replay: runs the same forwarding code on capture files. Deterministic, without root or
//! devices; it also runs the golden tests, and reproduces bug reports.
//!
//! Time is that of the capture, and never goes back. A batch ends where the millisecond
//! changes, and after a frame for the slow path, which then sees only what earlier frames left
//! in the tables. So no output depends on the size of batches. Every next hop is
//! 02:00:00:00:00:fe, our own address 02:00:00:00:00:01.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use datapath::encapsulate::{IPV6_BYTES_MIN, overhead_bytes};
use datapath::multipath::Selection;
use datapath::outbox::Kind;
use datapath::reply::{ReplyLink, ReturnPaths};
use datapath::{ByFlow, DropReason, Journey, Secret, Totals, Verdict, View};
use nic::pcap::{Packet, Reader, Writer};
use plan::{Plan, Planner};
use serde_json::{Value, json};
use sim::view::{NEXT_HOP, OWN, next_hop};
use sim::{LoadBalancer, Outcome};
use wire::{BATCH_MAX, FRAME_BYTES_MAX, Family, Fragment, Protocol, headers};

use crate::offline::plan_file::read_plan;
use crate::process::secret;

/// What to replay, and where to write what.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// The plan, as proto JSON
    #[arg(long)]
    pub plan: PathBuf,
    /// The capture to forward: pcap or pcapng, Ethernet
    #[arg(long = "in", value_name = "PCAP")]
    pub input: PathBuf,
    /// Where everything emitted goes: pcap
    #[arg(long = "out", value_name = "PCAP")]
    pub output: PathBuf,
    /// Where frames passed to the kernel go: pcap
    #[arg(long, value_name = "PCAP")]
    pub passed: Option<PathBuf>,
    /// Where the counters go [default: stdout]
    #[arg(long, value_name = "JSON")]
    pub counters: Option<PathBuf>,
    /// Where the journey of each frame goes
    #[arg(long, value_name = "JSON")]
    pub journeys: Option<PathBuf>,
    /// The cluster's secret [default: a key derived from the cluster's name]
    #[arg(long)]
    pub secret_file: Option<PathBuf>,
    /// The longest IP packet that fits the egress link, in bytes
    #[arg(long, default_value_t = 65535)]
    pub egress_mtu: u16,
    /// Frames handled together
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub batch: u8,
}

type Failure = Box<dyn std::error::Error>;

/// Replays a capture; gives the counters.
///
/// # Errors
/// If a file cannot be read or written, or the plan is refused.
pub fn replay(options: &Options) -> Result<Value, Failure> {
    let plan = read_plan(&mut Planner::default(), &options.plan)?;
    let secret = secret::for_plan(&plan, options.secret_file.as_deref())?;
    check_mtu(&plan, options.egress_mtu)?;
    let mut outputs = Outputs::create(options)?;
    let mut replay = Replay::new(plan, secret, options)?;
    let mut batch: Vec<Packet> = Vec::with_capacity(BATCH_MAX);
    for packet in Reader::open(&options.input)? {
        let packet = packet?;
        let goes_on = batch.first().is_none_or(|first| millisecond(first) == millisecond(&packet));
        if !goes_on || batch.len() == usize::from(options.batch) {
            replay.run(&mut batch, &mut outputs)?;
        }
        let ends_batch = replay.may_be_slow(&packet);
        batch.push(packet);
        if ends_batch {
            replay.run(&mut batch, &mut outputs)?;
        }
    }
    replay.run(&mut batch, &mut outputs)?;
    outputs.finish(&replay)
}

/// Refuses a path that is too narrow for IPv6, as the forwarder does.
fn check_mtu(plan: &Plan, egress_mtu: u16) -> Result<(), Failure> {
    let mtu = plan.tunnel.mtu_within(egress_mtu);
    let by = if mtu < egress_mtu { "tunnel.mtu" } else { "--egress-mtu" };
    for service in plan.ipv6_services() {
        let backends =
            service.group.members().iter().filter_map(|member| plan.backend(member.backend));
        let overhead = backends
            .map(|backend| overhead_bytes(service.tunnel, Family::of(backend.address)))
            .max()
            .unwrap_or(0);
        let wanted = IPV6_BYTES_MIN + overhead;
        if mtu < wanted {
            let name = &service.name;
            return Err(format!(
                "{by} {mtu}: services[{name}] has IPv6 VIPs, whose packets may have 1280 bytes: \
                 with the outer headers that takes {wanted} or more"
            )
            .into());
        }
    }
    Ok(())
}

fn millisecond(packet: &Packet) -> u64 {
    packet.timestamp_ns / 1_000_000
}

/// A load balancer of one worker, with the time at which it stands.
struct Replay {
    balancer: LoadBalancer,
    /// The latest time seen, in nanoseconds.
    now_ns: u64,
}

impl Replay {
    fn new(plan: Plan, secret: Secret, options: &Options) -> Result<Replay, Failure> {
        /// The default of `connections_max` in the plan.
        const CONNECTIONS: u64 = 1_000_000;
        let configured =
            plan.message.forwarder.as_ref().map_or(0, |forwarder| forwarder.connections_max);
        let connections = if configured == 0 { CONNECTIONS } else { configured };
        let hops = |_| vec![next_hop(options.egress_mtu)];
        let all = Some(ReplyLink { source: OWN, destination: NEXT_HOP });
        let return_paths = ReturnPaths { all, ..ReturnPaths::default() };
        let view = View { return_paths, ..sim::view::view(plan.into(), &secret, 1, hops) };
        let path = match options.journeys {
            Some(_) => sim::Path::Specification,
            None => sim::Path::Batch,
        };
        let setup = sim::Setup { workers: 0..1, devices: 1, connections, secret, path };
        let balancer = LoadBalancer::new(Arc::new(view), setup)
            .map_err(|error| format!("memory for {connections} connections: {error}"))?;
        Ok(Replay { balancer, now_ns: 0 })
    }

    /// Forwards a batch of one millisecond and writes what comes of it.
    fn run(&mut self, batch: &mut Vec<Packet>, outputs: &mut Outputs) -> Result<(), Failure> {
        let Some(first) = batch.first() else { return Ok(()) };
        let is_first = self.now_ns == 0;
        self.now_ns = self.now_ns.max(first.timestamp_ns);
        let now_ms = self.now_ns / 1_000_000;
        self.balancer.set_time(now_ms);
        if is_first {
            // The datapath's clock begins with the lower 32 bits of this. Marks of
            // traced packets have all of it.
            let unix_offset_ms = now_ms - u64::from(now_ms as u32);
            self.balancer.view.unix_offset_ms.store(unix_offset_ms as i64, Ordering::Relaxed);
        }
        let received: Vec<&[u8]> = batch
            .iter()
            .filter(|packet| refusal(packet).is_none())
            .map(|packet| &packet.bytes[..])
            .collect();
        let mut outcomes = self.balancer.forward(0, 0, &received).into_iter();
        for packet in batch.drain(..) {
            self.now_ns = self.now_ns.max(packet.timestamp_ns);
            let outcome = match refusal(&packet) {
                Some(reason) => {
                    self.balancer.refuse(reason);
                    refused(reason)
                }
                None => outcomes.next().expect("an outcome for each frame received"),
            };
            outputs.write(&self.balancer.view.plan, self.now_ns, &packet, &outcome)?;
        }
        Ok(())
    }

    /// True if the slow path may have to decide: ICMP, fragments, and what
    /// came in a tunnel.
    fn may_be_slow(&self, packet: &Packet) -> bool {
        let Ok(Some(headers)) = headers::parse(&packet.bytes) else { return false };
        headers.fragment != Fragment::Whole
            || matches!(headers.key.protocol, Protocol::ICMP | Protocol::ICMPV6)
            || self.balancer.view.takes_tunnel(&headers.key)
    }
}

fn refused(reason: DropReason) -> Outcome {
    let (journey, frame, originated) = Default::default();
    Outcome { verdict: Verdict::Drop(reason), journey, frame, originated }
}

/// What a device would not have received whole.
fn refusal(packet: &Packet) -> Option<DropReason> {
    if packet.original_len as usize > packet.bytes.len() {
        Some(DropReason::Truncated)
    } else if packet.bytes.len() > FRAME_BYTES_MAX {
        Some(DropReason::FrameTooLong)
    } else {
        None
    }
}

/// The files written.
struct Outputs {
    output: Writer<BufWriter<File>>,
    passed: Option<Writer<BufWriter<File>>>,
    counters: Option<PathBuf>,
    journeys: Option<(PathBuf, Vec<Value>)>,
    frames: u64,
}

impl Outputs {
    fn create(options: &Options) -> Result<Outputs, Failure> {
        let writer = |path: &Path| {
            Writer::create(path).map_err(|error| format!("{}: {error}", path.display()))
        };
        Ok(Outputs {
            output: writer(&options.output)?,
            passed: options.passed.as_deref().map(writer).transpose()?,
            counters: options.counters.clone(),
            journeys: options.journeys.clone().map(|path| (path, Vec::new())),
            frames: 0,
        })
    }

    fn write(
        &mut self,
        plan: &Plan,
        now_ns: u64,
        packet: &Packet,
        outcome: &Outcome,
    ) -> Result<(), Failure> {
        self.frames += 1;
        if outcome.device().is_some() {
            self.emit(now_ns, &outcome.frame)?;
        }
        for made in &outcome.originated {
            self.emit(now_ns, &made.bytes)?;
        }
        if let (Verdict::Pass, Some(passed)) = (outcome.verdict, &mut self.passed) {
            passed.write(now_ns, packet.original_len, &packet.bytes)?;
        }
        if let Some((_, journeys)) = &mut self.journeys {
            journeys.push(journey_json(plan, self.frames, outcome.verdict, &outcome.journey));
        }
        Ok(())
    }

    fn emit(&mut self, now_ns: u64, bytes: &[u8]) -> Result<(), Failure> {
        Ok(self.output.write(now_ns, bytes.len() as u32, bytes)?)
    }

    fn finish(self, replay: &Replay) -> Result<Value, Failure> {
        self.output.finish()?;
        self.passed.map(Writer::finish).transpose()?;
        let counters = counters_json(replay.balancer.received(), &replay.balancer.totals());
        if let Some(path) = &self.counters {
            write_text(path, &format!("{counters:#}\n"))?;
        }
        if let Some((path, journeys)) = &self.journeys {
            let lines: Vec<String> = journeys.iter().map(Value::to_string).collect();
            write_text(path, &format!("[\n{}\n]\n", lines.join(",\n")))?;
        }
        Ok(counters)
    }
}

fn write_text(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()).into())
}

/// Verdicts by kind; reasons that did not occur are left out.
#[must_use]
pub fn counters_json(received: u64, totals: &Totals) -> Value {
    let dropped: BTreeMap<&str, u64> = DropReason::ALL
        .iter()
        .map(|reason| (reason.name(), totals.dropped[reason.index()]))
        .filter(|(_, count)| *count > 0)
        .collect();
    let originated: BTreeMap<&str, u64> = Kind::ALL
        .iter()
        .map(|kind| (kind.name(), totals.originated[*kind as usize]))
        .filter(|(_, count)| *count > 0)
        .collect();
    json!({
        "received": received,
        "sent": totals.sent,
        "passed": totals.passed,
        "replied": totals.replied,
        "redirected": totals.redirected,
        "held": totals.held_and_waiting(),
        "dropped": dropped,
        "originated": originated,
        "unaccounted": totals.unaccounted(received),
    })
}

/// One frame's journey; frames are counted from 1, as Wireshark does.
fn journey_json(plan: &Plan, frame: u64, verdict: Verdict, journey: &Journey) -> Value {
    let service = journey.matched.map(|matched| plan.service_of(&matched).name.as_str());
    let backend =
        journey.backend.and_then(|id| plan.backend(id)).map(|backend| backend.name.as_str());
    let reason = match verdict {
        Verdict::Drop(reason) => Some(reason.name()),
        _ => None,
    };
    let matched = journey.matched.map(|matched| {
        let entry = &plan.matches[matched.matched as usize];
        format!("{} {} {}", entry.target, entry.protocol, entry.ports)
    });
    let mut written = json!({
        "frame": frame,
        "verdict": verdict.name(),
        "reason": reason,
        "service": service,
        "backend": backend,
        "table": journey.lookup.name(),
        "slot": journey.slot,
        "matched": matched,
        "hash": journey.hash.map(|hash| format!("{hash:016x}")),
    });
    if let Some(named) = journey.connection_id {
        written["connection_id"] = named.err().map_or("named", ByFlow::name).into();
    }
    if let Some(selection) = journey.multipath {
        written["multipath"] = selection.name().into();
        if let Selection::Key { key, .. } = selection {
            written["key"] = format!("{key:016x}").into();
        }
        if let Selection::Key { token, .. } | Selection::Token(token) = selection {
            written["token"] = format!("{token:08x}").into();
        }
    }
    if journey.second_chance {
        written["second_chance"] = true.into();
    }
    written
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use datapath::trace::{Mark, PACKET_BYTES, sign};

    use super::*;

    /// A packet marked for the tracer when it was captured.
    fn marked(secret: &Secret, unix_ms: u64) -> Vec<u8> {
        let mut frame = Vec::new();
        let payload = vec![0; usize::from(PACKET_BYTES) - 28];
        etherparse::PacketBuilder::ethernet2([1; 6], [2; 6])
            .ipv4([192, 0, 2, 1], [203, 0, 113, 1], 60)
            .udp(9, 53)
            .write(&mut frame, &payload)
            .unwrap();
        let key = headers::parse(&frame).unwrap().unwrap().key;
        let mark = Mark { receiver: "192.0.2.99".parse().unwrap(), port: 7777, nonce: unix_ms };
        let mark = sign(&secret.trace_key().unwrap(), &mark, unix_ms, &key);
        let at = frame.len() - mark.len();
        frame[at..].copy_from_slice(&mark);
        frame
    }

    #[test]
    fn marks_are_recognised_in_captures_of_any_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";
        std::fs::write(path("secret"), SECRET).unwrap();
        std::fs::set_permissions(path("secret"), std::fs::Permissions::from_mode(0o600)).unwrap();
        let secret = Secret::from_file_content(SECRET).unwrap();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let message = json!({
            "generation": "1",
            "cluster": {"name": "test", "keyId": secret.key_id()},
            "machine": {"name": "lb-1", "addresses": ["10.0.0.1"]},
            "services": [{"name": "web", "vips": [{"address": "203.0.113.1"}]}],
        });
        std::fs::write(path("plan.json"), message.to_string()).unwrap();
        for taken_ms in [now.as_millis() as u64, 1_000, u64::from(u32::MAX) - 100] {
            let mut capture = Writer::create(path("in.pcap")).unwrap();
            for unix_ms in [taken_ms, taken_ms + 500, taken_ms + 100_000] {
                let frame = marked(&secret, unix_ms);
                capture.write(unix_ms * 1_000_000, frame.len() as u32, &frame).unwrap();
            }
            capture.finish().unwrap();
            let counters = replay(&Options {
                plan: path("plan.json"),
                input: path("in.pcap"),
                output: path("out.pcap"),
                passed: None,
                counters: None,
                journeys: None,
                secret_file: Some(path("secret")),
                egress_mtu: 1500,
                batch: 64,
            });
            assert_eq!(counters.unwrap()["originated"], json!({"report": 3}), "{taken_ms} ms");
        }
    }

    #[test]
    fn an_egress_mtu_too_small_for_ipv6_is_refused_with_the_service_and_what_it_takes() {
        let message = json!({
            "generation": "1",
            "cluster": {"name": "test", "keyId": "derived"},
            "machine": {"name": "lb-1", "addresses": ["10.0.0.1"]},
            "backends": [{"name": "a", "address": "10.1.0.1"}],
            "groups": [{"name": "a", "members": [
                {"backend": "a", "weight": 1, "state": "BACKEND_STATE_ACTIVE"},
            ]}],
            "services": [
                {"name": "v4", "vips": [{"address": "203.0.113.1"}]},
                {"name": "v6", "vips": [{"address": "2001:db8::1"}], "group": "a"},
            ],
        });
        let plan = |tunnel_mtu: u32| {
            let mut message = message.clone();
            message["tunnel"] = json!({ "mtu": tunnel_mtu });
            Planner::default().plan(serde_json::from_value(message).unwrap()).unwrap()
        };
        assert!(check_mtu(&plan(0), 1304).is_ok());
        for (tunnel, egress, named) in [(0, 600, "--egress-mtu 600"), (600, 1500, "tunnel.mtu 600")]
        {
            let refused = check_mtu(&plan(tunnel), egress).unwrap_err().to_string();
            assert!(refused.starts_with(named), "{refused}");
            assert!(
                refused.contains("services[v6]") && refused.contains("1304 or more"),
                "{refused}"
            );
        }
    }
}
