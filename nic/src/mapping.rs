//! Memory with a name: a file, mapped and shared, that outlives its process.
//!
//! A successor opens it by the same name and finds the words unchanged; other threads may read
//! them at any time. The owner defines their meaning. The directory decides the kind of memory:
//! hugetlbfs (`/dev/hugepages`), tmpfs (`/dev/shm`, `/run`) or any file system.
//!
//! The file is in a [`Folder`]: no other user may write it or its directory, so it cannot be
//! truncated while it is mapped.
//!
//! All of it is reserved when it is made: a full file system is an error at start, not a SIGBUS
//! under load.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::ptr;
use std::sync::atomic::AtomicU64;

use crate::folder::Folder;

const WORD_BYTES: usize = size_of::<u64>();

/// Whether the words were there before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The file is new: all words are zero.
    Created,
    /// The file was there, in the right size.
    Found,
}

/// Why a mapping cannot be had. Each names the file and the cure.
#[derive(Debug, thiserror::Error)]
pub enum MappingError {
    /// The file cannot be opened.
    #[error("cannot open {path}: {error}")]
    Open {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        error: io::Error,
    },
    /// The file is of another size: another layout, or a crash while it was made.
    #[error(
        "{path} has {found} bytes instead of {expected}; remove it (its content is lost), or start with the sizes it was made for"
    )]
    Size {
        /// The file.
        path: PathBuf,
        /// Bytes it has.
        found: u64,
        /// Bytes it should have.
        expected: u64,
    },
    /// No room.
    #[error(
        "cannot reserve {bytes} bytes for {path}: {error}; free some, or enlarge the file system (tmpfs: mount -o remount,size=…; hugetlbfs: sysctl vm.nr_hugepages)"
    )]
    Reserve {
        /// The file.
        path: PathBuf,
        /// Bytes wanted.
        bytes: u64,
        /// The system's reason.
        error: io::Error,
    },
    /// Mapping failed.
    #[error(
        "cannot map {bytes} bytes of {path}: {error}; on hugetlbfs raise vm.nr_hugepages, else check the memory limit (ulimit -v, MemoryMax=)"
    )]
    Map {
        /// The file.
        path: PathBuf,
        /// Bytes wanted.
        bytes: u64,
        /// The system's reason.
        error: io::Error,
    },
}

/// Opens the file `name` with at least `words` words of eight bytes, or
/// creates it with zeroes. Its size is rounded up to whole pages of the file
/// system. The mapping stays for the life of the process.
pub fn open(
    folder: &Folder,
    name: &str,
    words: usize,
) -> Result<(&'static [AtomicU64], Origin), MappingError> {
    let path = folder.path().join(name);
    let failed = |error| MappingError::Open { path: path.clone(), error };
    let file = folder.file_or_new(name).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    // On hugetlbfs the block size is the huge page's, elsewhere the page's.
    let page = usize::try_from(metadata.blksize()).unwrap_or(4096).max(4096);
    let bytes = (words * WORD_BYTES).next_multiple_of(page);
    let origin = match metadata.len() {
        0 => Origin::Created,
        found if found == bytes as u64 => Origin::Found,
        found => {
            return Err(MappingError::Size { path, found, expected: bytes as u64 });
        }
    };
    if origin == Origin::Created {
        reserve(&file, bytes).map_err(|error| abandon(folder, name, bytes, error))?;
    }
    let words = map(&file, bytes).map_err(|error| MappingError::Map {
        path,
        bytes: bytes as u64,
        error,
    })?;
    Ok((words, origin))
}

/// Words without a name, for a process without a successor: a benchmark. All
/// zero, on huge pages where the kernel has them, and never given back.
pub fn anonymous(words: usize) -> io::Result<&'static [AtomicU64]> {
    const HUGE_PAGE_BYTES: usize = 2 << 20;
    let bytes = (words * WORD_BYTES).next_multiple_of(HUGE_PAGE_BYTES);
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at an address of the kernel's choice touches no
    // memory that exists.
    let base = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: advice on the mapping just made.
    unsafe { libc::madvise(base, bytes, libc::MADV_HUGEPAGE) };
    // SAFETY: as in `map`: aligned, as long, readable, writable, never
    // unmapped, and seen by this process alone.
    Ok(unsafe { std::slice::from_raw_parts(base.cast::<AtomicU64>(), words) })
}

/// Gives the file its size and every page of it its memory.
fn reserve(file: &File, bytes: usize) -> io::Result<()> {
    let len = libc::off_t::try_from(bytes).map_err(io::Error::other)?;
    // SAFETY: a call on a file descriptor that `file` keeps open.
    match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, len) } {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

/// A file that did not become whole must not be found by the next start.
fn abandon(folder: &Folder, name: &str, bytes: usize, error: io::Error) -> MappingError {
    let _ = folder.remove(name);
    MappingError::Reserve { path: folder.path().join(name), bytes: bytes as u64, error }
}

fn map(file: &File, bytes: usize) -> io::Result<&'static [AtomicU64]> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
    // SAFETY: a new mapping at an address of the kernel's choice touches no
    // memory that exists.
    let base =
        unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, file.as_raw_fd(), 0) };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // Joins pages where the file system can (tmpfs with huge=advise); where
    // it cannot nothing is lost.
    // SAFETY: advice on the mapping just made.
    unsafe { libc::madvise(base, bytes, libc::MADV_HUGEPAGE) };
    // SAFETY: needed to see the mapping as words. It is page-aligned, `bytes`
    // long, a multiple of a word, readable and writable, and never unmapped;
    // any content is a valid AtomicU64, and other processes that write there
    // are what atomics are for. No process truncates the file: the folder has seen
    // that no other user may.
    Ok(unsafe { std::slice::from_raw_parts(base.cast::<AtomicU64>(), bytes / WORD_BYTES) })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn what_one_wrote_its_successor_finds() {
        let directory = tempfile::tempdir().unwrap();
        let folder = Folder::open(directory.path()).unwrap();
        let (words, origin) = open(&folder, "connections-0", 1000).unwrap();
        assert_eq!(origin, Origin::Created);
        assert!(words.len() >= 1000 && words.iter().all(|word| word.load(Relaxed) == 0));
        words[999].store(42, Relaxed);
        let (again, origin) = open(&folder, "connections-0", 1000).unwrap();
        assert_eq!((origin, again[999].load(Relaxed)), (Origin::Found, 42));
    }

    #[test]
    fn words_without_a_name_are_zero_and_may_be_written() {
        let words = anonymous(1000).unwrap();
        assert!(words.len() == 1000 && words.iter().all(|word| word.load(Relaxed) == 0));
        words[999].store(42, Relaxed);
        assert_eq!(words[999].load(Relaxed), 42);
    }

    #[test]
    fn another_size_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let folder = Folder::open(directory.path()).unwrap();
        open(&folder, "connections-0", 1000).unwrap();
        let error = open(&folder, "connections-0", 100_000).unwrap_err();
        assert!(matches!(error, MappingError::Size { found: 8192, .. }), "{error}");
        assert!(error.to_string().contains("connections-0"), "{error}");
    }

    #[test]
    fn a_link_in_the_place_of_a_file_is_refused_and_what_it_names_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let folder = Folder::open(&directory.path().join("tables")).unwrap();
        let precious = directory.path().join("precious");
        std::fs::write(&precious, "precious").unwrap();
        std::os::unix::fs::symlink(&precious, folder.path().join("connections-0")).unwrap();
        let error = open(&folder, "connections-0", 1000).unwrap_err().to_string();
        assert!(error.contains("connections-0 is a symbolic link"), "{error}");
        assert_eq!(std::fs::read(&precious).unwrap(), b"precious");
    }

    #[test]
    fn what_does_not_fit_is_an_error_at_start_and_leaves_no_file() {
        let directory = tempfile::tempdir().unwrap();
        let folder = Folder::open(directory.path()).unwrap();
        let error = open(&folder, "huge", 1 << 50).unwrap_err();
        assert!(matches!(error, MappingError::Reserve { .. }), "{error}");
        assert!(!directory.path().join("huge").exists());
    }
}
