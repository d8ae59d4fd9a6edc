//! Interfaces of this network namespace, by the kernel's calls: sysfs shows
//! the namespace that it was mounted in and not the caller's.

use std::ffi::{CStr, CString};

/// No interface has that name.
#[derive(Debug, thiserror::Error)]
#[error("there is no interface {name}; there are: {}", present.join(", "))]
pub struct NoInterface {
    /// The name.
    pub name: String,
    /// The names that exist.
    pub present: Vec<String>,
}

/// The kernel's number for an interface.
pub fn index_of(name: &str) -> Result<u32, NoInterface> {
    let missing = || NoInterface { name: name.to_string(), present: names() };
    let c_name = CString::new(name).map_err(|_| missing())?;
    // SAFETY: the pointer is to a C string that lives through the call.
    match unsafe { libc::if_nametoindex(c_name.as_ptr()) } {
        0 => Err(missing()),
        index => Ok(index),
    }
}

/// The names of all interfaces, in the kernel's order.
fn names() -> Vec<String> {
    // SAFETY: a call without arguments; null on failure.
    let list = unsafe { libc::if_nameindex() };
    if list.is_null() {
        return Vec::new();
    }
    let mut names = Vec::new();
    let mut entry = list;
    // SAFETY: the list is an array that ends in an entry without a name;
    // names are C strings that live until it is freed.
    while let Some(name) = unsafe { entry.as_ref() }.filter(|entry| !entry.if_name.is_null()) {
        // SAFETY: as above.
        names.push(unsafe { CStr::from_ptr(name.if_name) }.to_string_lossy().into_owned());
        entry = entry.wrapping_add(1);
    }
    // SAFETY: the list came from if_nameindex and is freed once.
    unsafe { libc::if_freenameindex(list) };
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_has_a_number() {
        assert_ne!(index_of("lo").unwrap(), 0);
        assert!(names().contains(&"lo".to_string()));
    }

    #[test]
    fn a_missing_interface_is_answered_with_those_there_are() {
        let error = index_of("nonesuch0").unwrap_err().to_string();
        assert!(error.contains("nonesuch0") && error.contains("lo"), "{error}");
        assert!(index_of("an-overlong-interface-name").is_err());
        assert!(index_of("nul\0byte").is_err());
    }
}
