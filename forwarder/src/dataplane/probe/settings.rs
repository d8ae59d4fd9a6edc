//! The kernel settings that the device needs.

use std::path::Path;

use nic::{TapError, Tun};

/// What IPv6 needs at least (RFC 8200); every tunnel has room for it, so that
/// no probe is too long for its path.
const MTU: u32 = 1280;

/// Makes it and sets it up: with no address of its own, and no router's advice.
pub fn make(name: &str) -> Result<Tun, TapError> {
    let tun = Tun::open(name, MTU)?;
    for (key, value) in [("addr_gen_mode", "1"), ("accept_ra", "0")] {
        let path = Path::new("/proc/sys/net/ipv6/conf").join(name).join(key);
        // A kernel without IPv6 has no such settings.
        let _ = std::fs::write(path, value);
    }
    tun.set_up()?;
    Ok(tun)
}
