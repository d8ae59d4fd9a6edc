//! Notifies systemd that the agent is ready (sd_notify's protocol).

use std::env;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Sends READY=1 to the socket that NOTIFY_SOCKET names, where it is set.
pub fn ready() -> Result<(), String> {
    let Some(name) = env::var_os("NOTIFY_SOCKET") else { return Ok(()) };
    let address = match name.as_bytes() {
        // An abstract name is written with an at sign in front.
        [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest),
        _ => SocketAddr::from_pathname(&name),
    };
    let sent =
        address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(b"READY=1", &address));
    sent.map(|_| ()).map_err(|error| format!("cannot notify {}: {error}", name.display()))
}
