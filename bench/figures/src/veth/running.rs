//! Programs under test, in their end's namespace.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::net::{BACKENDS, INTERFACE, Net, VIPS};
use crate::traffic::VIP;

const TIMEOUT: Duration = Duration::from_secs(10);

/// A started program; ended when dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    // The reflector, for one, ends with its standard input.
    stdin: Option<ChildStdin>,
    stdout: Option<BufReader<ChildStdout>>,
    _folder: Option<tempfile::TempDir>,
}

impl Drop for Running {
    fn drop(&mut self) {
        // By TERM, so that filters leave the interface.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let _ = self.child.wait();
    }
}

/// Starts the forwarder in a namespace, by that plan.
///
/// # Errors
/// If it does not start.
pub fn forwarder(program: &Path, namespace: &str, plan: &Value) -> Result<Running, String> {
    let folder = tempfile::tempdir().map_err(|error| format!("a temporary folder: {error}"))?;
    let (run, state) = (folder.path().join("run"), folder.path().join("state"));
    // It starts from the last plan on disk, without a controller.
    fs::create_dir(&state).map_err(|error| format!("{}: {error}", state.display()))?;
    fs::write(state.join("plan.json"), plan.to_string())
        .map_err(|error| format!("{}: {error}", state.display()))?;
    let mut command = inside(namespace, program);
    // Not pinned, as the reflector is not.
    command.args(["run", "--no-pin", "--run-dir"]).arg(&run).arg("--state-dir").arg(&state);
    command.env("RUST_LOG", "error");
    let child = command.spawn().map_err(|error| format!("{}: {error}", program.display()))?;
    let mut running = Running { child, stdin: None, stdout: None, _folder: Some(folder) };
    running.wait_for(&run.join("forwarder.sock"))?;
    Ok(running)
}

/// Starts a server's agent in a namespace, by that config.
///
/// # Errors
/// If it does not start.
pub fn agent(program: &Path, namespace: &str, config: &Value) -> Result<Running, String> {
    let folder = tempfile::tempdir().map_err(|error| format!("a temporary folder: {error}"))?;
    let file = folder.path().join("agent.yaml");
    // JSON is YAML, too.
    fs::write(&file, config.to_string()).map_err(|error| format!("{}: {error}", file.display()))?;
    let mut command = inside(namespace, program);
    command.arg("--config").arg(&file).env("RUST_LOG", "error");
    let child = command.spawn().map_err(|error| format!("{}: {error}", program.display()))?;
    Ok(Running { child, stdin: None, stdout: None, _folder: Some(folder) })
}

impl Running {
    /// The id of its process.
    #[must_use]
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// What it answers to a line.
    pub(super) fn ask(&mut self, line: &str) -> Result<String, String> {
        let stdin = self.stdin.as_mut().ok_or("a program that is not asked")?;
        writeln!(stdin, "{line}").map_err(|error| format!("{line:?} to a program: {error}"))?;
        self.line()
    }

    fn line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        let stdout = self.stdout.as_mut().ok_or("a program that says nothing")?;
        stdout.read_line(&mut line).map_err(|error| format!("a program's answer: {error}"))?;
        Ok(line.trim().to_owned())
    }

    /// Nanoseconds that its threads have been on a core, kernel included.
    pub fn cpu_ns(&self) -> Result<u64, String> {
        let folder = format!("/proc/{}/task", self.child.id());
        let failed = |error: std::io::Error| format!("{folder}: {error}");
        let mut sum = 0;
        for task in fs::read_dir(&folder).map_err(failed)? {
            let file = task.map_err(failed)?.path().join("schedstat");
            // A thread may have ended since.
            let line = fs::read_to_string(file).unwrap_or_default();
            sum += line.split(' ').next().and_then(|time| time.parse::<u64>().ok()).unwrap_or(0);
        }
        Ok(sum)
    }

    fn wait_for(&mut self, file: &Path) -> Result<(), String> {
        let start = Instant::now();
        while !file.exists() {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("the forwarder ended: {status}"));
            }
            if start.elapsed() > TIMEOUT {
                return Err(format!("{} does not appear", file.display()));
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

/// Starts the reflector.
///
/// # Errors
/// If it does not start.
pub fn reflector(program: &Path, net: &Net) -> Result<Running, String> {
    self::program(program, &net.tested, &[INTERFACE, "auto", VIPS])
}

/// Starts it as a program in the kernel that encapsulates: by "xdp", or by "tc".
///
/// # Errors
/// If it does not start.
pub fn kernel_reflector(program: &Path, net: &Net, by: &str) -> Result<Running, String> {
    self::program(program, &net.tested, &[INTERFACE, by, "10.77.1.1"])
}

/// Has an XDP program at the sender's end as long as what is returned lives, as it has
/// while it sends: the forwarder's kernel flow cache is there only if it finds one.
///
/// # Errors
/// If there can be none.
pub fn sender_program(reflector: &Path, net: &Net) -> Result<Running, String> {
    program(reflector, &net.sender, &[INTERFACE, "native", "192.0.2.0/24"])
}

/// Starts a program that prints a line that begins with "ready", and ends with its
/// standard input.
///
/// # Errors
/// If it does not get ready.
pub fn program(program: &Path, namespace: &str, arguments: &[&str]) -> Result<Running, String> {
    let mut command = inside(namespace, program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
    let failed = |error| format!("{}: {error}", program.display());
    let mut child = command.spawn().map_err(failed)?;
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take().map(BufReader::new));
    let mut running = Running { child, stdin, stdout, _folder: None };
    if running.line()?.starts_with("ready") {
        Ok(running)
    } else {
        Err(format!("{} did not get ready", program.display()))
    }
}

fn inside(namespace: &str, program: &Path) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace]).arg(program);
    command
}

/// What the one service on the VIP is, all ports and protocols.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// By the connection table.
    Tracked,
    /// The same, and by the kernel flow cache.
    Cached,
    /// By buckets, with Multipath TCP.
    Multipath,
    /// By buckets, which the kernel has.
    Buckets,
}

impl Service {
    /// A plan with it.
    #[must_use]
    pub fn plan(self, driver: &str, queues: u16) -> Value {
        const BUCKETS: u32 = 4096;
        let name = |index: u8| format!("backend-{index:03}");
        let backend = |index| json!({"name": name(index), "address": format!("10.77.1.{index}")});
        let member =
            |index| json!({"backend": name(index), "weight": 1, "state": "BACKEND_STATE_ACTIVE"});
        let [a, b, c, d] = VIP;
        let mut service = json!({
            "name": "web",
            "vips": [{"address": format!("{a}.{b}.{c}.{d}")}],
            "group": "web",
        });
        if matches!(self, Service::Multipath | Service::Buckets) {
            service["mode"] = json!("MODE_STATELESS");
            service["encap"] = json!("ENCAP_GENEVE");
            if self == Service::Multipath {
                service["mptcp"] = json!({});
            }
            let by_bucket = (0..BUCKETS).map(|bucket| bucket % u32::from(BACKENDS));
            service["bucketMap"] = json!({
                "generation": "1",
                "backends": (1..=BACKENDS).map(name).collect::<Vec<_>>(),
                "byBucket": by_bucket.collect::<Vec<_>>(),
            });
        }
        json!({
            "generation": "1",
            "cluster": {"name": "figures", "keyId": "derived"},
            "machine": {"name": "figures", "addresses": ["10.77.0.2"]},
            "backends": (1..=BACKENDS).map(backend).collect::<Vec<_>>(),
            "services": [service],
            "groups": [{"name": "web", "members": (1..=BACKENDS).map(member).collect::<Vec<_>>()}],
            // Where it is not what is measured, all goes through user space.
            "forwarder": {
                "interfaces": [{"name": INTERFACE, "driver": driver, "queues": queues}],
                "kernelCache": match self {
                    Service::Cached | Service::Buckets => "KERNEL_CACHE_ON",
                    Service::Tracked | Service::Multipath => "KERNEL_CACHE_OFF",
                },
            },
        })
    }
}
