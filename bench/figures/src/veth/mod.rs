//! Load balancers over veth: two namespaces, a cable, a sender at one end of it and the
//! program under test at the other.
//!
//! ```text
//!  sender ══ veth, a queue per worker ══ under test
//!         ◄══════ what comes back is counted at the sender's interface
//! ```

mod live;
mod net;
mod quota;
mod rounds;
mod running;
pub mod sender;

use std::thread;
use std::time::Duration;

use serde_json::Value;

pub use live::LiveSender;
use net::RETURNS;
pub use net::{INTERFACE, Namespaces, Net, VIPS, mac_of, run as command};
pub use quota::Quota;
pub use rounds::Rounds;
pub use running::{
    Running, Service, agent, forwarder, kernel_reflector, program, reflector, sender_program,
};
pub use sender::Packets;

/// What a sender sends.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Of which kind.
    pub packets: Packets,
    /// Bytes of each frame.
    pub frame_bytes: usize,
    /// Connections.
    pub connections: u32,
    /// Packets a second; 0: as many as it can.
    pub rate: u32,
    /// How long.
    pub seconds: f64,
}

/// How it sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// All packets, waiting for none.
    Flood,
    /// One packet at a time, timed there and back.
    Ping,
    /// All packets, of which one in a while is timed.
    Probe,
}

/// What came of a flood.
#[derive(Debug, Clone, Copy)]
pub struct Flood {
    /// Sent, in millions a second.
    pub offered_mpps: f64,
    /// Come back.
    pub forwarded_mpps: f64,
    /// CPU time of the program under test for each of these, system calls included.
    pub cpu_ns: f64,
    /// That of the whole machine, the sender's and the kernel's included: an XDP program
    /// runs in the time of others.
    pub machine_cpu_ns: f64,
}

/// A program that runs, and its cable.
#[derive(Debug)]
pub struct Place {
    // Ends before its namespace does.
    running: Running,
    net: Net,
    mac: String,
}

impl Place {
    /// Waits until packets like those of `load` come back.
    ///
    /// # Errors
    /// If none does.
    pub fn new(running: Running, net: Net, load: &Load) -> Result<Place, String> {
        let place = Place { running, mac: net.mac()?, net };
        let few = Load { seconds: 0.1, ..*load };
        // Its next hops have to be resolved, its filter attached.
        for _ in 0..20 {
            if place.send(&few, Mode::Ping)?["returned"].as_u64() > Some(0) {
                return Ok(place);
            }
            thread::sleep(Duration::from_millis(100));
        }
        Err("nothing comes back".to_owned())
    }

    /// The id of the program's process.
    #[must_use]
    pub fn process(&self) -> u32 {
        self.running.process()
    }

    /// Sends without waiting, and counts what comes back.
    ///
    /// # Errors
    /// If the sender fails.
    pub fn flood(&self, load: &Load) -> Result<Flood, String> {
        let (returned_before, cpu_before) = (self.net.returned()?, self.running.cpu_ns()?);
        let machine_before = machine_cpu_ns()?;
        let sent = self.send(load, Mode::Flood)?;
        // What is still on a ring belongs to it too.
        thread::sleep(Duration::from_millis(20));
        let returned = (self.net.returned()? - returned_before) as f64;
        let microseconds = sent["seconds"].as_f64().unwrap_or(f64::NAN) * 1e6;
        Ok(Flood {
            offered_mpps: sent["sent"].as_u64().unwrap_or(0) as f64 / microseconds,
            forwarded_mpps: returned / microseconds,
            cpu_ns: (self.running.cpu_ns()? - cpu_before) as f64 / returned,
            machine_cpu_ns: (machine_cpu_ns()? - machine_before) as f64 / returned,
        })
    }

    /// This program again, in the sender's namespace; its answer.
    ///
    /// # Errors
    /// If it fails.
    pub fn send(&self, load: &Load, mode: Mode) -> Result<Value, String> {
        let own =
            std::env::current_exe().map_err(|error| format!("this program's own file: {error}"))?;
        let Load { packets, frame_bytes, connections, rate, seconds } = load;
        let command = format!(
            "ip netns exec {} {} sender --interface {INTERFACE} --to {} --returns {RETURNS} \
             --packets {} --frame-bytes {frame_bytes} --connections {connections} --rate {rate} \
             --seconds {seconds} {}",
            self.net.sender,
            own.display(),
            self.mac,
            packets.name(),
            match mode {
                Mode::Flood => "",
                Mode::Ping => "--ping",
                Mode::Probe => "--probe",
            }
        );
        let text = net::run(&command)?;
        serde_json::from_str(&text)
            .map_err(|error| format!("the sender's answer {text:?}: {error}"))
    }
}

/// Nanoseconds that all processors have been busy, interrupts included.
///
/// # Errors
/// If the kernel does not tell.
pub fn machine_cpu_ns() -> Result<u64, String> {
    const FILE: &str = "/proc/stat";
    let text = std::fs::read_to_string(FILE).map_err(|error| format!("{FILE}: {error}"))?;
    busy_ns(&text, rustix::param::clock_ticks_per_second())
        .ok_or_else(|| format!("{FILE}: no processor times"))
}

/// Of its first line: `cpu user nice system idle iowait irq softirq ...`, in ticks.
fn busy_ns(text: &str, ticks_per_second: u64) -> Option<u64> {
    let times = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
    let times: Vec<u64> = times.map_while(|word| word.parse().ok()).collect();
    let [user, nice, system, _idle, _waiting, irq, softirq, ..] = times[..] else { return None };
    Some((user + nice + system + irq + softirq) * (1_000_000_000 / ticks_per_second))
}

/// What figures over veth need.
///
/// # Errors
/// Which of it is missing.
pub fn check(seconds: f64, programs: &[&std::path::Path]) -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("network namespaces have to be built, which needs root".to_owned());
    }
    if !(0.01..=60.0).contains(&seconds) {
        return Err(format!("--seconds {seconds}: from 0.01 to 60"));
    }
    match programs.iter().find(|program| !program.is_file()) {
        Some(program) => {
            Err(format!("{}: no such program; `make figures` builds it", program.display()))
        }
        None => Ok(()),
    }
}

/// The value that this part of the numbers is at or below, in per cent; of none, NaN.
#[must_use]
pub fn percentile(numbers: &[f64], of: f64) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (sorted.len().saturating_sub(1) as f64 * of / 100.0).round() as usize;
    sorted.get(at).copied().unwrap_or(f64::NAN)
}

/// The times in a sender's answer.
#[must_use]
pub fn microseconds(answer: &Value) -> Vec<f64> {
    let times = answer["microseconds"].as_array();
    times.into_iter().flatten().filter_map(Value::as_f64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_busy_with_all_but_waiting() {
        let text = "cpu  100 2 30 1000 500 4 5 60 0 0\ncpu0 1 1 1 1\n";
        assert_eq!(busy_ns(text, 100), Some(1_410_000_000));
        assert_eq!(busy_ns("intr 1", 100), None);
    }
}
