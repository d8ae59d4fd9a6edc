//! The sender for measurements in the driver: the kernel makes the frames itself
//! (nic/examples/live_sender.rs).

use std::path::Path;
use std::time::Duration;

use super::net::{INTERFACE, Net};
use super::running::{Running, program};
use crate::traffic::VIP;

/// It runs in the sender's namespace; ended when dropped.
#[derive(Debug)]
pub struct LiveSender {
    running: Running,
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
    /// Of so many flows in turns; 0: each frame is a SYN of another.
    ///
    /// # Errors
    /// If it does not start.
    pub fn new(file: &Path, net: &Net, flows: u32) -> Result<LiveSender, String> {
        let [a, b, c, d] = VIP;
        let arguments = [INTERFACE, &net.mac()?, &format!("{a}.{b}.{c}.{d}"), &flows.to_string()];
        Ok(LiveSender { running: program(file, &net.sender, &arguments)?, returned: 0 })
    }

    /// Sends that many frames.
    ///
    /// # Errors
    /// If it cannot.
    pub fn send(&mut self, frames: u32) -> Result<LiveFrames, String> {
        let answer = self.running.ask(&frames.to_string())?;
        let numbers: Option<Vec<u64>> =
            answer.split_whitespace().map(|word| word.parse().ok()).collect();
        let Some([returned, taken_ns]) = numbers.as_deref() else {
            return Err(format!("the live sender said {answer:?}"));
        };
        let before = std::mem::replace(&mut self.returned, *returned);
        Ok(LiveFrames { returned: returned - before, taken: Duration::from_nanos(*taken_ns) })
    }
}
