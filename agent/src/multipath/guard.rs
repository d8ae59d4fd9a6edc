//! Restores the SYN cookie setting if the agent is killed while it is changed: a separate
//! process, which lives as long as the agent.
//!
//! ```text
//!  agent ── pipe, never written ──► guard: at its end, sysctl tcp_syncookies = 1
//! ```

use std::io::{self, Read};
use std::process::{Child, Command, Stdio};

use super::kernel::{self, SYN_COOKIES};

/// The hidden command that is the guard.
pub const COMMAND: &str = "restore-syn-cookies";

/// A running guard; it ends with this value, or with this process.
pub struct Guard(Child);

impl Guard {
    /// Starts one.
    pub fn start() -> io::Result<Guard> {
        let mut command = Command::new("/proc/self/exe");
        command.arg(COMMAND).stdin(Stdio::piped()).stdout(Stdio::null());
        command.spawn().map(Guard)
    }

    /// False once it has ended, which it should not.
    pub fn lives(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// The guard's life. It goes on when the agent is told to end, because it ends after it.
pub fn run() -> io::Result<()> {
    let mut end = [0];
    while match io::stdin().read(&mut end) {
        Ok(0) => false,
        Ok(_) => true,
        Err(error) if error.kind() == io::ErrorKind::Interrupted => true,
        Err(error) => return Err(error),
    } {}
    if kernel::syn_cookies() == Some(2) {
        std::fs::write(SYN_COOKIES, "1")?;
    }
    Ok(())
}
