//! The golden folders: packets in, packets and counters out, by the same code that forwards.
//!
//! ```text
//!  golden/<a-sentence-with-dashes>/
//!      config.yaml ──(Go)──► plan.json ─┐         the sentence's configuration
//!      in.pcap     ─────────────────────┴─replay─► out.pcap, passed.pcap, counters.json[, journeys.json]
//!      frames.txt                                 what must become of each frame, written by hand
//!      args                                       optional: further flags of replay
//! ```
//!
//! Every folder is replayed one frame at a time, in batches of 64, and with journeys. All three
//! must give the same bytes, equal to those stored. `make golden` (UPDATE_GOLDEN=1) rewrites
//! the output of replay, to be reviewed as a diff; frames.txt and the conservation law must
//! hold then, too. An empty set fails, and so does a folder with a missing file.

use std::collections::HashMap;
use std::io::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use guideway_forwarder::offline::replay::{Options, replay};
use nic::pcap::{Packet, Reader, Writer};
use serde_json::Value;
use wire::quic::ConnectionId;

/// What a folder must hold.
const KEPT: [&str; 7] = [
    "config.yaml",
    "plan.json",
    "in.pcap",
    "frames.txt",
    "out.pcap",
    "passed.pcap",
    "counters.json",
];
/// Of these, what replay writes.
const WRITTEN: [&str; 3] = ["out.pcap", "passed.pcap", "counters.json"];
/// Kept in some folders only.
const JOURNEYS: &str = "journeys.json";

#[test]
fn every_golden_folder_is_forwarded_as_it_is_kept() {
    let folders = folders();
    assert!(!folders.is_empty(), "no folder in {}: has it moved?", root().display());
    let problems: Vec<String> =
        folders.iter().flat_map(|folder| Golden::new(folder).problems()).collect();
    assert!(problems.is_empty(), "{} problems\n\n{}", problems.len(), problems.join("\n\n"));
}

#[test]
fn captures_of_every_format_give_the_same_output() {
    let read = |format: &str, file: &str| {
        std::fs::read(root().join(format!("a-capture-is-read-as-{format}")).join(file))
    };
    for file in WRITTEN {
        let as_pcap = read("pcap", file).unwrap();
        for format in ["pcapng", "nanoseconds-of-a-big-endian-machine"] {
            assert!(
                read(format, file).unwrap() == as_pcap,
                "{file} of {format} differs from that of pcap"
            );
        }
    }
    assert_ne!(
        read("pcapng", "in.pcap").unwrap()[..4],
        read("pcap", "in.pcap").unwrap()[..4],
        "two formats"
    );
}

/// The clock has 32 bits: a gap of half its range must not stop it.
#[test]
fn a_gap_of_a_month_ends_what_was_tracked() {
    let folder = root().join("a-udp-flow-is-tracked-until-it-falls-silent");
    let scratch = tempfile::tempdir().unwrap();
    let to = |file: &str| scratch.path().join(file);
    let bytes = &packets(&std::fs::read(folder.join("in.pcap")).unwrap())[0].bytes;
    let mut input = Writer::create(to("in.pcap")).unwrap();
    for days in [0, 30, 365] {
        let second = 20_000 + days * 86_400;
        input.write(second * 1_000_000_000, bytes.len() as u32, bytes).unwrap();
    }
    input.finish().unwrap();
    let options = Options {
        plan: folder.join("plan.json"),
        input: to("in.pcap"),
        output: to("out.pcap"),
        passed: None,
        counters: None,
        journeys: Some(to(JOURNEYS)),
        secret_file: None,
        egress_mtu: 65535,
        batch: 64,
    };
    replay(&options).unwrap();
    let journeys = std::fs::read(to(JOURNEYS)).unwrap();
    let journeys: Value = serde_json::from_slice(&journeys).unwrap();
    let tables = journeys.as_array().unwrap().iter().map(|journey| journey["table"].clone());
    assert_eq!(tables.collect::<Vec<_>>(), ["miss"; 3]);
}

/// The program, asked about each QUIC packet of a folder, says where it went and why.
#[test]
fn what_is_explained_of_a_connection_id_is_what_replay_did() {
    let folder = root().join("quic-packets-go-to-the-backend-that-their-connection-id-names");
    let journeys: Value =
        serde_json::from_slice(&std::fs::read(folder.join(JOURNEYS)).unwrap()).unwrap();
    let frames = packets(&std::fs::read(folder.join("in.pcap")).unwrap());
    let mut seen = std::collections::BTreeSet::new();
    for (frame, journey) in frames.iter().zip(journeys.as_array().unwrap()) {
        let Some(said) = journey["connection_id"].as_str() else { continue };
        let Some((flow, id)) = quic_packet(&frame.bytes) else { continue };
        let output = Command::new(env!("CARGO_BIN_EXE_guideway-forwarder"))
            .args(["explain", "--connection-id", &id, "--plan"])
            .arg(folder.join("plan.json"))
            .arg("udp")
            .args(flow)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let told: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(told["backend"], journey["backend"], "{journey}: {told}");
        let by_flow = told["connection_id"]["by_flow"].as_str().filter(|reason| !reason.is_empty());
        assert_eq!(by_flow.unwrap_or("named"), said, "{journey}: {told}");
        seen.insert(said);
    }
    let all = ["named", "too_short", "unknown_config", "unknown_server", "unroutable"];
    assert!(all.iter().all(|one| seen.contains(one)), "{seen:?}");
}

/// The flow of a QUIC packet as explain takes it, and its connection id, with what may
/// belong to it of a short header; None: it has none, or more than explain takes.
fn quic_packet(frame: &[u8]) -> Option<([String; 4], String)> {
    const ID_BYTES_MAX: usize = 20;
    let ip = frame.get(14..)?;
    let (addresses, udp): ([IpAddr; 2], &[u8]) = match ip[0] >> 4 {
        4 => ([12, 16].map(|at| <[u8; 4]>::try_from(&ip[at..at + 4]).unwrap().into()), &ip[20..]),
        _ => ([8, 24].map(|at| <[u8; 16]>::try_from(&ip[at..at + 16]).unwrap().into()), &ip[40..]),
    };
    let port = |at: usize| u16::from_be_bytes([udp[at], udp[at + 1]]).to_string();
    let bytes = match ConnectionId::parse(&udp[8..])? {
        ConnectionId::Whole(id) => id,
        ConnectionId::Within(bytes) => &bytes[..bytes.len().min(ID_BYTES_MAX)],
    };
    let id: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let flow = [addresses[0].to_string(), port(0), addresses[1].to_string(), port(2)];
    (1..=ID_BYTES_MAX).contains(&bytes.len()).then_some((flow, id))
}

/// Scapy and tshark share no code with us, nor with each other.
#[test]
fn independent_decoders_find_what_was_meant() {
    const PYTHON: &str = "/usr/bin/python3";
    let has = |program: &str, args: &[&str]| {
        Command::new(program).args(args).output().is_ok_and(|done| done.status.success())
    };
    if !has(PYTHON, &["-c", "import scapy"]) || !has("tshark", &["--version"]) {
        // Past the harness, which would keep the line of a test that passes to itself.
        let line =
            b"SKIPPED independent_decoders_find_what_was_meant: needs python3-scapy and tshark\n";
        std::io::stderr().write_all(line).expect("stderr can be written");
        return;
    }
    let done = Command::new(PYTHON).arg(root().join("check.py")).output().expect("python3 runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(done.status.success(), "check.py:\n{}{}", text(&done.stdout), text(&done.stderr));
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn folders() -> Vec<PathBuf> {
    let entries =
        std::fs::read_dir(root()).expect("tests/golden exists").map(|entry| entry.unwrap().path());
    let mut folders: Vec<PathBuf> =
        entries.filter(|path| path.is_dir() && !path.ends_with("__pycache__")).collect();
    folders.sort();
    folders
}

/// One folder, and what is wrong with it so far.
struct Golden<'f> {
    folder: &'f Path,
    problems: Vec<String>,
}

/// What one replay gave.
struct Replayed {
    /// By file name.
    files: HashMap<&'static str, Vec<u8>>,
    counters: Value,
    journeys: Value,
}

impl<'f> Golden<'f> {
    fn new(folder: &'f Path) -> Golden<'f> {
        Golden { folder, problems: Vec::new() }
    }

    fn problems(mut self) -> Vec<String> {
        if let Some(missing) = self.missing() {
            self.problem(format!("{missing} is missing"));
            return self.problems;
        }
        let one_by_one = self.replay(1, false);
        let batched = self.replay(64, false);
        let recorded = self.replay(64, true);
        for (other, how) in [(&batched, "in batches of 64"), (&recorded, "with journeys")] {
            for file in WRITTEN {
                let difference = difference(&one_by_one.files[file], &other.files[file]);
                self.problems_of(file, &format!("{how} instead of one by one"), difference);
            }
        }
        self.check_conservation(&one_by_one);
        self.check_frames(&recorded);
        self.compare_or_rewrite(&recorded);
        self.problems
    }

    fn problem(&mut self, text: impl std::fmt::Display) {
        let name = self.folder.file_name().expect("a folder has a name").to_string_lossy();
        self.problems.push(format!("{name}: {text}"));
    }

    fn problems_of(&mut self, file: &str, what: &str, difference: Option<String>) {
        if let Some(difference) = difference {
            self.problem(format!("{file} {what}: {difference}"));
        }
    }

    fn missing(&self) -> Option<&'static str> {
        let written = |file: &&str| updating() && WRITTEN.contains(file);
        KEPT.into_iter().find(|file| !written(file) && !self.folder.join(file).exists())
    }

    fn replay(&self, batch: u8, journeys: bool) -> Replayed {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let to = |file: &str| scratch.path().join(file);
        let options = Options {
            plan: self.folder.join("plan.json"),
            input: self.folder.join("in.pcap"),
            output: to("out.pcap"),
            passed: Some(to("passed.pcap")),
            counters: Some(to("counters.json")),
            journeys: journeys.then(|| to(JOURNEYS)),
            secret_file: self.argument("--secret-file").map(|file| self.folder.join(file)),
            egress_mtu: self
                .argument("--egress-mtu")
                .map_or(65535, |mtu| mtu.parse().expect("an MTU")),
            batch,
        };
        let counters =
            replay(&options).unwrap_or_else(|error| panic!("{}: {error}", self.folder.display()));
        let read = |file: &str| std::fs::read(to(file)).unwrap();
        Replayed {
            files: WRITTEN
                .into_iter()
                .chain(journeys.then_some(JOURNEYS))
                .map(|file| (file, read(file)))
                .collect(),
            counters,
            journeys: if journeys {
                serde_json::from_slice(&read(JOURNEYS)).unwrap()
            } else {
                Value::Null
            },
        }
    }

    /// The value of a flag in the file `args`.
    fn argument(&self, flag: &str) -> Option<String> {
        let args = std::fs::read_to_string(self.folder.join("args")).ok()?;
        let mut words = args.split_whitespace();
        words.find(|word| *word == flag)?;
        words.next().map(str::to_owned)
    }

    /// Each received frame has one final verdict, and files hold what the counters
    /// say (docs/counters.md).
    fn check_conservation(&mut self, replayed: &Replayed) {
        let count = |key: &str| replayed.counters[key].as_u64().expect("a count");
        let sum = |key: &str| -> u64 {
            replayed.counters[key]
                .as_object()
                .expect("counts by name")
                .values()
                .filter_map(Value::as_u64)
                .sum()
        };
        let frames = packets(&std::fs::read(self.folder.join("in.pcap")).unwrap()).len() as u64;
        let finals =
            ["sent", "passed", "replied", "redirected", "held"].into_iter().map(count).sum::<u64>()
                + sum("dropped");
        let emitted = count("sent") + count("replied") + count("redirected") + sum("originated");
        let laws = [
            ("frames in in.pcap and received", frames, count("received")),
            ("received and frames with a verdict", count("received"), finals),
            (
                "unaccounted and zero",
                replayed.counters["unaccounted"].as_i64().map_or(u64::MAX, i64::unsigned_abs),
                0,
            ),
            (
                "frames in out.pcap and emitted",
                packets(&replayed.files["out.pcap"]).len() as u64,
                emitted,
            ),
            (
                "frames in passed.pcap and passed",
                packets(&replayed.files["passed.pcap"]).len() as u64,
                count("passed"),
            ),
        ];
        for (law, left, right) in laws {
            if left != right {
                self.problem(format!("{law} differ: {left}, {right}"));
            }
        }
    }

    /// Holds each journey against its line in frames.txt.
    fn check_frames(&mut self, replayed: &Replayed) {
        let text = std::fs::read_to_string(self.folder.join("frames.txt")).unwrap();
        let expected: Vec<Expected> = text.lines().skip(1).map(Expected::parse).collect();
        let journeys = replayed.journeys.as_array().expect("a list");
        if expected.len() != journeys.len() {
            return self.problem(format!(
                "frames.txt has {} lines, in.pcap {} frames",
                expected.len(),
                journeys.len()
            ));
        }
        for (expected, journey) in expected.iter().zip(journeys) {
            if let Err(found) = expected.holds(journey, journeys) {
                self.problem(format!("frame {} ({}): {found}", expected.number, expected.text));
            }
        }
    }

    fn compare_or_rewrite(&mut self, replayed: &Replayed) {
        let journeys = self.folder.join(JOURNEYS).exists().then_some(JOURNEYS);
        for file in WRITTEN.into_iter().chain(journeys) {
            let (path, now) = (self.folder.join(file), &replayed.files[file]);
            if updating() {
                std::fs::write(path, now).unwrap();
                continue;
            }
            let kept = std::fs::read(path).unwrap();
            let difference = match file.ends_with(".json") {
                true => json_difference(&kept, now),
                false => difference(&kept, now),
            };
            self.problems_of(file, "is not as kept", difference);
        }
    }
}

fn updating() -> bool {
    std::env::var_os("UPDATE_GOLDEN").is_some()
}

/// A line of frames.txt; "-" demands nothing.
struct Expected<'t> {
    number: &'t str,
    /// A verdict, or a drop's reason.
    verdict: &'t str,
    table: &'t str,
    service: &'t str,
    /// The frame whose backend this one must share; with a `!`, must not.
    like: &'t str,
    text: String,
}

impl<'t> Expected<'t> {
    fn parse(line: &'t str) -> Expected<'t> {
        let mut words = line.split_whitespace();
        let mut next =
            || words.next().unwrap_or_else(|| panic!("a short line in frames.txt: {line}"));
        let (number, verdict, table, service, like) = (next(), next(), next(), next(), next());
        Expected {
            number,
            verdict,
            table,
            service,
            like,
            text: words.collect::<Vec<_>>().join(" "),
        }
    }

    fn holds(&self, journey: &Value, all: &[Value]) -> Result<(), String> {
        let verdict =
            journey["reason"].as_str().or(journey["verdict"].as_str()).unwrap_or("no verdict");
        let service = journey["service"].as_str().unwrap_or("none");
        let table = journey["table"].as_str().unwrap_or("none");
        for (what, wanted, found) in [
            ("verdict", self.verdict, verdict),
            ("table", self.table, table),
            ("service", self.service, service),
        ] {
            if wanted != "-" && wanted != found {
                return Err(format!("{what} must be {wanted}, is {found}: {journey}"));
            }
        }
        if self.like == "-" {
            return Ok(());
        }
        let (unlike, number) = match self.like.strip_prefix('!') {
            Some(number) => (true, number),
            None => (false, self.like),
        };
        let other = &all[number.parse::<usize>().expect("the number of a frame") - 1]["backend"];
        let same = !other.is_null() && *other == journey["backend"];
        match same == unlike {
            true => Err(format!(
                "its backend must {}be {other}, that of frame {number}: {journey}",
                if unlike { "not " } else { "" }
            )),
            false => Ok(()),
        }
    }
}

fn packets(capture: &[u8]) -> Vec<Packet> {
    Reader::new(capture)
        .expect("a capture")
        .map(|packet| packet.expect("a whole capture"))
        .collect()
}

/// The first difference of two captures or texts.
fn difference(kept: &[u8], now: &[u8]) -> Option<String> {
    if kept == now {
        return None;
    }
    if Reader::new(kept).is_err() || Reader::new(now).is_err() {
        return Some(format!(
            "differs\n kept {}\n now  {}",
            String::from_utf8_lossy(kept),
            String::from_utf8_lossy(now)
        ));
    }
    let (kept, now) = (packets(kept), packets(now));
    for (number, pair) in (1..).zip(kept.iter().zip(&now)) {
        if let (a, b) = pair
            && a != b
        {
            return Some(format!("frame {number}: {}", frame_difference(a, b)));
        }
    }
    Some(format!("{} frames kept, {} now", kept.len(), now.len()))
}

fn frame_difference(kept: &Packet, now: &Packet) -> String {
    if kept.bytes == now.bytes {
        return format!("its time, {} ns kept, {} ns now", kept.timestamp_ns, now.timestamp_ns);
    }
    let at = kept.bytes.iter().zip(&now.bytes).take_while(|(a, b)| a == b).count();
    format!(
        "{} bytes kept, {} now, the first difference at offset {at}\n kept {}\n now  {}\n      {}^^",
        kept.bytes.len(),
        now.bytes.len(),
        hex_line(&kept.bytes, at),
        hex_line(&now.bytes, at),
        " ".repeat(6 + 3 * (at % 16))
    )
}

/// The line of a hex dump that holds the byte at `at`.
fn hex_line(bytes: &[u8], at: usize) -> String {
    let line = at / 16 * 16;
    let end = bytes.len().min(line + 16);
    let digits: Vec<String> =
        bytes[line.min(end)..end].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{line:04x}  {}", digits.join(" "))
}

fn json_difference(kept: &[u8], now: &[u8]) -> Option<String> {
    let parse = |text: &[u8]| serde_json::from_slice::<Value>(text).unwrap_or(Value::Null);
    let (kept, now) = (parse(kept), parse(now));
    if kept == now {
        return None;
    }
    if let (Some(kept), Some(now)) = (kept.as_array(), now.as_array()) {
        let first = kept.iter().zip(now).find(|(a, b)| a != b);
        return Some(
            first.map_or("another length".into(), |(a, b)| format!("\n kept {a}\n now  {b}")),
        );
    }
    Some(format!("\n kept {kept}\n now  {now}"))
}
