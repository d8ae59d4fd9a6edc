//! What a driver counts by names of its own, as `ethtool -S` shows it.

use std::io;

use crate::interface::{Request, SIOCETHTOOL};

const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSTATS: u32 = 0x1d;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETH_SS_STATS: u32 = 1;
const NAME_BYTES: usize = 32;

/// The sum of an interface's counters whose names `is_meant` chooses; an interface
/// without counters has none.
///
/// # Errors
/// If the kernel does not answer.
pub fn sum(interface: &str, is_meant: impl Fn(&str) -> bool) -> io::Result<u64> {
    let request = Request::new(interface)?;
    let count = count(&request)?;
    if count == 0 {
        return Ok(0);
    }
    let names = names(&request, count)?;
    let values = values(&request, count)?;
    let name = |bytes: &[u8; NAME_BYTES]| {
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(NAME_BYTES);
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    };
    let named = names.iter().map(name).zip(values);
    Ok(named.filter(|(name, _)| is_meant(name)).map(|(_, value)| value).sum())
}

/// How many there are.
fn count(request: &Request) -> io::Result<usize> {
    // struct ethtool_sset_info: command, reserved, mask of sets, a length for each.
    let mut info = [ETHTOOL_GSSET_INFO, 0, 1 << ETH_SS_STATS, 0, 0];
    // SAFETY: the structure of the command, with room for the one length requested.
    match unsafe { ask(request, info.as_mut_ptr().cast()) } {
        // The bit stays where the set is known.
        Ok(()) => Ok(if info[2] == 0 { 0 } else { info[4] as usize }),
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(0),
        Err(error) => Err(error),
    }
}

fn names(request: &Request, count: usize) -> io::Result<Vec<[u8; NAME_BYTES]>> {
    // struct ethtool_gstrings: command, set, count, and the names.
    const HEADER_WORDS: usize = 3;
    let mut words = vec![0_u32; HEADER_WORDS + count * NAME_BYTES / size_of::<u32>()];
    words[..HEADER_WORDS].copy_from_slice(&[ETHTOOL_GSTRINGS, ETH_SS_STATS, count as u32]);
    // SAFETY: the structure of the command, with room for all the driver said there are:
    // how many it has does not change while an interface has its queues.
    unsafe { ask(request, words.as_mut_ptr().cast()) }?;
    let bytes: Vec<u8> = words[HEADER_WORDS..].iter().flat_map(|word| word.to_ne_bytes()).collect();
    Ok(bytes.as_chunks().0.to_vec())
}

fn values(request: &Request, count: usize) -> io::Result<Vec<u64>> {
    // struct ethtool_stats: command and count in one word's place, and the values.
    let mut words = vec![0_u64; 1 + count];
    let header = [ETHTOOL_GSTATS.to_ne_bytes(), (count as u32).to_ne_bytes()].concat();
    words[0] = u64::from_ne_bytes(header.try_into().expect("eight bytes"));
    // SAFETY: as in `names`.
    unsafe { ask(request, words.as_mut_ptr().cast()) }?;
    Ok(words.split_off(1))
}

/// # Safety
/// `structure` must be what the command that it begins with reads and fills.
unsafe fn ask(request: &Request, structure: *mut libc::c_char) -> io::Result<()> {
    let mut ifreq = request.ifreq();
    ifreq.ifr_ifru.ifru_data = structure;
    // SAFETY: SIOCETHTOOL takes the pointer; the rest is the caller's promise.
    unsafe { request.ioctl(SIOCETHTOOL, ifreq) }.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_without_counters_has_none() {
        assert_eq!(sum("lo", |_| true).unwrap(), 0);
        assert!(sum("nonesuch0", |_| true).is_err());
    }
}
