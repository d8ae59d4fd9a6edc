//! The sender for what is done in the driver: frames that the kernel makes itself
//! (nic/examples/live_sender.rs).

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

use super::net::{INTERFACE, Net};
use super::running::inside;
use crate::traffic::VIP;

/// It runs in the sender's namespace; ended when dropped.
#[derive(Debug)]
pub struct LiveSender {
    child: Child,
    commands: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    returned: u64,
}

/// What came of some frames.
#[derive(Debug, Clone, Copy)]
pub struct LiveFrames {
    /// How many have come back.
    pub returned: u64,
    /// How long it took to send them.
    pub taken: Duration,
}

impl LiveSender {
    /// Of so many flows in turns, each of so many packets; 0: they do not end.
    ///
    /// # Errors
    /// If it does not start.
    pub fn new(
        program: &Path,
        net: &Net,
        flows: u32,
        packets_each: u32,
    ) -> Result<LiveSender, String> {
        let failed = |error| format!("{}: {error}", program.display());
        let [a, b, c, d] = VIP;
        let mut child = inside(&net.sender, program)
            .args([INTERFACE, &net.mac()?, &format!("{a}.{b}.{c}.{d}")])
            .args([flows.to_string(), packets_each.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let commands = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().expect("its output is a pipe"));
        let mut sender = LiveSender { child, commands, answers, returned: 0 };
        match sender.answer()?.as_str() {
            "ready" => Ok(sender),
            other => Err(format!("{} said {other:?}", program.display())),
        }
    }

    /// Sends that many frames.
    ///
    /// # Errors
    /// If it cannot.
    pub fn send(&mut self, frames: u32) -> Result<LiveFrames, String> {
        let commands = self.commands.as_mut().expect("it is there until the end");
        writeln!(commands, "{frames}").map_err(|error| format!("the live sender: {error}"))?;
        let answer = self.answer()?;
        let numbers: Option<Vec<u64>> =
            answer.split_whitespace().map(|word| word.parse().ok()).collect();
        let Some([returned, taken_ns]) = numbers.as_deref() else {
            return Err(format!("the live sender said {answer:?}"));
        };
        let before = std::mem::replace(&mut self.returned, *returned);
        Ok(LiveFrames { returned: returned - before, taken: Duration::from_nanos(*taken_ns) })
    }

    fn answer(&mut self) -> Result<String, String> {
        let mut line = String::new();
        let read = self.answers.read_line(&mut line);
        read.map_err(|error| format!("the live sender: {error}"))?;
        Ok(line.trim().to_owned())
    }
}

impl Drop for LiveSender {
    fn drop(&mut self) {
        // It ends with its input.
        drop(self.commands.take());
        let _ = self.child.wait();
    }
}
