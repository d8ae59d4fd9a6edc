//! Who is under test: the forwarder by either driver, and the reflector that
//! does nothing but send back.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::Options;
use super::net::{BACKENDS, INTERFACE, Net};

const TIMEOUT: Duration = Duration::from_secs(10);

/// What runs at the far end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// The forwarder, through the kernel's packet sockets.
    AfPacket,
    /// The forwarder, past the kernel's stack.
    AfXdp,
    /// The reflector, past the kernel's stack.
    Reflector,
}

impl Subject {
    pub const ALL: [Subject; 3] = [Subject::AfXdp, Subject::Reflector, Subject::AfPacket];

    pub fn name(self) -> &'static str {
        match self {
            Subject::AfPacket => "forwarder, af_packet",
            Subject::AfXdp => "forwarder, af_xdp",
            Subject::Reflector => "bare reflector, af_xdp",
        }
    }

    /// For names of namespaces.
    pub fn letter(self) -> &'static str {
        match self {
            Subject::AfPacket => "p",
            Subject::AfXdp => "x",
            Subject::Reflector => "r",
        }
    }

    /// Starts it with a worker for each of the cable's queues.
    pub fn start(self, options: &Options, net: &Net, workers: u16) -> Result<Running, String> {
        match self {
            Subject::AfPacket => forwarder(options, net, "DRIVER_AF_PACKET", workers),
            Subject::AfXdp => forwarder(options, net, "DRIVER_AF_XDP", 0),
            Subject::Reflector => reflector(options, net),
        }
    }
}

/// A started program; ended when dropped.
pub struct Running {
    child: Child,
    // The reflector ends with its standard input.
    _stdin: Option<ChildStdin>,
    _folder: Option<tempfile::TempDir>,
}

impl Drop for Running {
    fn drop(&mut self) {
        // By TERM, so that filters leave the interface.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let _ = self.child.wait();
    }
}

fn forwarder(options: &Options, net: &Net, driver: &str, queues: u16) -> Result<Running, String> {
    let folder = tempfile::tempdir().map_err(|error| format!("a temporary folder: {error}"))?;
    let (run, state) = (folder.path().join("run"), folder.path().join("state"));
    // It starts from the last plan on disk, without a controller.
    fs::create_dir(&state).map_err(|error| format!("{}: {error}", state.display()))?;
    let plan = plan(driver, queues).to_string();
    fs::write(state.join("plan.json"), plan)
        .map_err(|error| format!("{}: {error}", state.display()))?;
    let mut command = inside(net, &options.forwarder);
    // Not pinned, as the reflector is not.
    command.args(["run", "--no-pin", "--run-dir"]).arg(&run).arg("--state-dir").arg(&state);
    command.env("RUST_LOG", "error");
    let child =
        command.spawn().map_err(|error| format!("{}: {error}", options.forwarder.display()))?;
    let mut running = Running { child, _stdin: None, _folder: Some(folder) };
    running.wait_for(&run.join("forwarder.sock"))?;
    Ok(running)
}

impl Running {
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

fn reflector(options: &Options, net: &Net) -> Result<Running, String> {
    let mut command = inside(net, &options.reflector);
    command
        .args([INTERFACE, "auto", "203.0.113.0/24"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let failed = |error| format!("{}: {error}", options.reflector.display());
    let mut child = command.spawn().map_err(failed)?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line).map_err(failed)?;
    }
    let running = Running { _stdin: child.stdin.take(), child, _folder: None };
    if line.starts_with("ready") {
        Ok(running)
    } else {
        Err("the reflector did not get ready".to_owned())
    }
}

fn inside(net: &Net, program: &Path) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &net.tested]).arg(program);
    command
}

/// One service on the VIP, all ports and protocols.
fn plan(driver: &str, queues: u16) -> Value {
    let name = |index: u8| format!("backend-{index:03}");
    let backend = |index| json!({"name": name(index), "address": format!("10.77.1.{index}")});
    let member =
        |index| json!({"backend": name(index), "weight": 1, "state": "BACKEND_STATE_ACTIVE"});
    json!({
        "generation": "1",
        "cluster": {"name": "figures", "keyId": "derived"},
        "machine": {"name": "figures", "addresses": ["10.77.0.2"]},
        "backends": (1..=BACKENDS).map(backend).collect::<Vec<_>>(),
        "services": [{
            "name": "web",
            "vips": [{"address": "203.0.113.10"}],
            "group": "web",
        }],
        "groups": [{"name": "web", "members": (1..=BACKENDS).map(member).collect::<Vec<_>>()}],
        "forwarder": {"interfaces": [{"name": INTERFACE, "driver": driver, "queues": queues}]},
    })
}
