//! Tells systemd how we are (sd_notify(3)): a datagram to the socket named in
//! the environment. Without one, nothing is said.

use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The way to the service manager, if there is one.
#[derive(Debug, Clone, Default)]
pub struct Notifier {
    socket: Option<OsString>,
}

impl Notifier {
    /// As the environment says.
    #[must_use]
    pub fn from_env() -> Notifier {
        Notifier { socket: std::env::var_os("NOTIFY_SOCKET") }
    }

    /// Forwarding, or waiting for the first plan.
    pub fn ready(&self, status: &str) {
        self.say(&format!("READY=1\nSTATUS={status}\n"));
    }

    /// One line for `systemctl status`.
    pub fn status(&self, status: &str) {
        self.say(&format!("STATUS={status}\n"));
    }

    /// All workers go round their loops.
    pub fn alive(&self) {
        self.say("WATCHDOG=1\n");
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

/// How often systemd wants to hear that we live: half of what it allows.
#[must_use]
pub fn watchdog_interval() -> Option<Duration> {
    let allowed: u64 = std::env::var("WATCHDOG_USEC").ok()?.parse().ok()?;
    Some(Duration::from_micros(allowed / 2))
}

/// A leading `@` stands for the zero byte of an abstract address.
fn send(socket: &[u8], message: &str) -> io::Result<()> {
    let address = match socket.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => {
            SocketAddr::from_pathname(std::path::Path::new(std::ffi::OsStr::from_bytes(socket)))?
        }
    };
    UnixDatagram::unbound()?.send_to_addr(message.as_bytes(), &address).map(drop)
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
