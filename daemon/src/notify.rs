//! Notifies systemd of a program's state (sd_notify(3)), by a datagram to the socket named in
//! the environment. If none is named, nothing is sent.

use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::Command;
use std::time::Duration;

/// What a service manager told the process that it started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Manager {
    /// Where it expects our messages: NOTIFY_SOCKET.
    pub socket: Option<String>,
    /// How often, in microseconds: WATCHDOG_USEC.
    pub watchdog_usec: Option<String>,
}

impl Manager {
    /// As the environment says.
    #[must_use]
    pub fn from_env() -> Manager {
        let variable = |name| std::env::var(name).ok();
        Manager { socket: variable("NOTIFY_SOCKET"), watchdog_usec: variable("WATCHDOG_USEC") }
    }

    /// Has a process that takes our place hear the same.
    pub fn hand_on(&self, command: &mut Command) {
        command.env_remove("WATCHDOG_PID");
        for (name, value) in
            [("NOTIFY_SOCKET", &self.socket), ("WATCHDOG_USEC", &self.watchdog_usec)]
        {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
    }

    /// The way there.
    #[must_use]
    pub fn notifier(&self) -> Notifier {
        Notifier { socket: self.socket.clone().map(OsString::from) }
    }

    /// How often it expects to hear that we live: half of what it allows.
    #[must_use]
    pub fn watchdog_interval(&self) -> Option<Duration> {
        let allowed: u64 = self.watchdog_usec.as_ref()?.parse().ok()?;
        Some(Duration::from_micros(allowed / 2))
    }
}

/// The way to the service manager, if there is one.
#[derive(Debug, Clone, Default)]
pub struct Notifier {
    socket: Option<OsString>,
}

impl Notifier {
    /// Started, with one line for `systemctl status`.
    pub fn ready(&self, status: &str) {
        self.say(&format!("READY=1\nSTATUS={status}\n"));
    }

    /// One line for `systemctl status`.
    pub fn status(&self, status: &str) {
        self.say(&format!("STATUS={status}\n"));
    }

    /// The program does its work.
    pub fn alive(&self) {
        self.say("WATCHDOG=1\n");
    }

    /// Another process is the service now, and hears of its own accord.
    pub fn main_process(&self, pid: u32) {
        self.say(&format!("MAINPID={pid}\n"));
    }

    /// On our way out.
    pub fn stopping(&self) {
        self.say("STOPPING=1\n");
    }

    fn say(&self, message: &str) {
        let Some(socket) = &self.socket else { return };
        if let Err(error) = send(socket.as_bytes(), message) {
            tracing::warn!(%error, "telling the service manager failed");
        }
    }
}

/// A leading `@` stands for the zero byte of an abstract address.
fn send(socket: &[u8], message: &str) -> io::Result<()> {
    let address = match socket.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => {
            SocketAddr::from_pathname(std::path::Path::new(std::ffi::OsStr::from_bytes(socket)))?
        }
    };
    let from = UnixDatagram::unbound()?;
    // A service manager that does not read must not stop us.
    from.set_nonblocking(true)?;
    from.send_to_addr(message.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readiness_arrives_at_the_managers_socket() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        Notifier { socket: Some(path.into_os_string()) }.ready("generation 7");
        let mut bytes = [0; 64];
        let length = manager.recv(&mut bytes).unwrap();
        assert_eq!(&bytes[..length], b"READY=1\nSTATUS=generation 7\n");
    }
}
