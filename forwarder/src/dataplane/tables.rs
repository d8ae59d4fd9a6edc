//! The memory of the connection tables, and the map of ids next to it.
//!
//! ```text
//!  tables directory | ids.json | connections-0 | connections-1 | ...
//! ```
//!
//! Entries name services and backends by ids, so a table is only meaningful with the map of
//! these ids. The map has an epoch, which the tables contain, too. If the two differ, the
//! tables are emptied, never misread.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use datapath::table::{ConnectionTable, Emptied, Identity, TableReader, words_for};
use datapath::{Clock, Now};
use nic::folder::Folder;
use nic::mapping::{self, MappingError};
use plan::Ids;
use rustix::fs::statfs;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::dataplane::threads::monotonic_ms;

const IDS_FILE: &str = "ids.json";

/// Tables of a forwarder that was gone for longer are not taken over: most of
/// their connections have gone elsewhere, and their times may have wrapped.
const GAP_MS_MAX: u64 = 60_000;

/// Where the tables are.
#[derive(Debug)]
pub struct Tables {
    folder: Folder,
    epoch: u64,
    /// Mapped ahead, by worker.
    mapped: Mutex<BTreeMap<usize, &'static [AtomicU64]>>,
    /// What `ids.json` holds, if we have written it.
    saved: Mutex<Option<Arc<Ids>>>,
}

/// What `ids.json` holds.
#[derive(Serialize, Deserialize)]
struct IdsFile<I> {
    epoch: u64,
    /// The kernel's boot id: after a reboot the clock begins anew, and no
    /// time in the tables means anything.
    boot: String,
    ids: I,
}

/// A worker's table, for the worker and for readers.
pub struct Opened {
    /// For the worker.
    pub table: ConnectionTable<'static>,
    /// The clock that its times are of.
    pub clock: Clock,
    /// For all others.
    pub reader: TableReader<'static>,
    /// Why a table that was there could not be taken over.
    pub emptied: Option<String>,
}

impl Tables {
    /// Opens the directory, with the ids of the entries in its tables; fresh
    /// ids under a fresh epoch, where there are none to go on with.
    pub fn open(path: &Path) -> io::Result<(Tables, Ids)> {
        let folder = Folder::open(path)?;
        let (epoch, ids) = match read_ids(&folder) {
            Some(file) => (file.epoch, file.ids),
            None => (fresh_epoch(), Ids::default()),
        };
        let tables = Tables { folder, epoch, mapped: Mutex::default(), saved: Mutex::default() };
        Ok((tables, ids))
    }

    /// Where they are.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Maps the tables of a predecessor that still runs, so that this takes
    /// no time later. Where one does not fit, it is left for later.
    pub fn map_ahead(&self, workers: usize, connections_max: u64) {
        let words = words_for(connections_max.div_ceil(workers as u64));
        for worker in 0..workers {
            let name = file_of(worker);
            if matches!(self.folder.file(&name), Ok(Some(_)))
                && let Ok((mapped, _)) = mapping::open(&self.folder, &name, words)
            {
                self.lock().insert(worker, &mapped[..words]);
            }
        }
    }

    /// Bytes of memory that tables take which are not there yet, or not in that size; on
    /// huge pages, which are set aside, none.
    #[must_use]
    pub fn missing_bytes(&self, workers: usize, connections_max: u64) -> u64 {
        const HUGETLBFS_MAGIC: i64 = 0x958458f6;
        if statfs(self.path()).is_ok_and(|found| found.f_type == HUGETLBFS_MAGIC) {
            return 0;
        }
        let words = words_for(connections_max.div_ceil(workers as u64));
        let bytes = (words * size_of::<u64>()) as u64;
        let there = |worker| {
            let found = self.folder.file(&file_of(worker)).ok().flatten();
            let found = found.and_then(|file| file.metadata().ok());
            // In whole pages.
            found.is_some_and(|found| (bytes..bytes + (1 << 20)).contains(&found.len()))
        };
        (0..workers).filter(|worker| !there(*worker)).count() as u64 * bytes
    }

    /// Writes the ids down, unless they are those written last. To be called
    /// before any worker may use a new one. On failure no file is left: a
    /// successor then empties the tables, because it is not known what their
    /// entries mean.
    pub fn save(&self, ids: &Arc<Ids>) -> io::Result<()> {
        let mut saved = self.saved.lock().expect("no holder of this lock panics");
        if saved.as_ref().is_some_and(|saved| Arc::ptr_eq(saved, ids)) {
            return Ok(());
        }
        *saved = None;
        let file = IdsFile { epoch: self.epoch, boot: boot_id(), ids: &**ids };
        let bytes = serde_json::to_vec(&file)?;
        self.folder.replace(IDS_FILE, &bytes).inspect_err(|_| {
            let _ = self.folder.remove(IDS_FILE);
        })?;
        *saved = Some(Arc::clone(ids));
        Ok(())
    }

    /// The table of a worker: a predecessor's, where it is of the same key,
    /// ids and workers, and fresh; else an empty one. `counts`: how many
    /// connections of each service are in it, where a predecessor told.
    pub fn table(
        &self,
        key: u64,
        worker: usize,
        workers: usize,
        connections: u64,
        counts: Option<&[(u16, u32)]>,
    ) -> Result<Opened, MappingError> {
        let words = match self.lock().remove(&worker) {
            Some(mapped) => mapped,
            None => self.map(worker, words_for(connections))?,
        };
        let identity =
            Identity { key, ids_epoch: self.epoch, worker: worker as u32, workers: workers as u32 };
        let (table, resumed) = ConnectionTable::open_counted(words, &identity, counts);
        let reader = TableReader::new(words);
        match resumed {
            Ok(then) if monotonic_ms().saturating_sub(then.0) <= GAP_MS_MAX => {
                tracing::info!(worker, "took a connection table over");
                Ok(Opened { table, clock: Clock::resume(then), reader, emptied: None })
            }
            Ok(_) => {
                // Without its first word it is no table.
                words[0].store(0, Ordering::Relaxed);
                let (table, _) = ConnectionTable::open(words, &identity);
                Ok(empty(worker, table, reader, Some("it is too old")))
            }
            Err(why) => Ok(empty(worker, table, reader, cause(why, counts.is_some()))),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<usize, &'static [AtomicU64]>> {
        self.mapped.lock().expect("no holder of this lock panics")
    }

    /// A file of another size is of another layout: it is made anew.
    fn map(&self, worker: usize, words: usize) -> Result<&'static [AtomicU64], MappingError> {
        let name = file_of(worker);
        let opened = match mapping::open(&self.folder, &name, words) {
            Err(MappingError::Size { .. }) => {
                let _ = self.folder.remove(&name);
                mapping::open(&self.folder, &name, words)
            }
            opened => opened,
        };
        opened.map(|(mapped, _)| &mapped[..words])
    }
}

fn file_of(worker: usize) -> String {
    format!("connections-{worker}")
}

fn empty(
    worker: usize,
    table: ConnectionTable<'static>,
    reader: TableReader<'static>,
    why: Option<&str>,
) -> Opened {
    let emptied = why.map(|why| {
        tracing::warn!(worker, why, "a connection table is not taken over: starting empty");
        format!("worker {worker}: {why}")
    });
    Opened { table, clock: Clock::resume(Now(monotonic_ms())), reader, emptied }
}

/// Why a table was emptied, where one was expected or found.
fn cause(why: Emptied, expected: bool) -> Option<&'static str> {
    match why {
        Emptied::NoTable => expected.then_some("its file is missing, or is of another size"),
        Emptied::Layout => Some("it was laid out by another version"),
        Emptied::Size => Some("it has another size"),
        Emptied::Identity => {
            Some("it was filled under another key, with other ids, or by another number of workers")
        }
    }
}

fn read_ids(folder: &Folder) -> Option<IdsFile<Ids>> {
    let bytes = match folder.read(IDS_FILE) {
        Ok(bytes) => bytes?,
        Err(error) => {
            tracing::warn!(%error, "the connection tables start empty");
            return None;
        }
    };
    match serde_json::from_slice::<IdsFile<Ids>>(&bytes) {
        Ok(file) if file.boot == boot_id() => Some(file),
        Ok(_) => None,
        Err(error) => {
            let path = folder.path().join(IDS_FILE);
            tracing::warn!(path = %path.display(), %error, "not readable: the connection tables start empty");
            None
        }
    }
}

/// Names the present run of the kernel.
fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// Different from any before: the kernel makes a new one at each reading.
fn fresh_epoch() -> u64 {
    let seed = std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap_or_default();
    digest(&[seed.as_bytes(), &monotonic_ms().to_le_bytes()])
}

/// Names the hash key in the tables' headers, without telling it.
#[must_use]
pub fn key_digest(key_id: &str, cluster: &str) -> u64 {
    digest(&[b"guideway table key\0", key_id.as_bytes(), b"\0", cluster.as_bytes()])
}

fn digest(parts: &[&[u8]]) -> u64 {
    let hasher = parts.iter().fold(Sha256::new(), |hasher, part| hasher.chain_update(part));
    u64::from_le_bytes(*hasher.finalize().first_chunk().expect("a digest has 32 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_tables_are_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let (tables, mut ids) = Tables::open(folder.path()).unwrap();
        ids.backends.assign(&["b 10.0.0.1"], 1).unwrap();
        let ids = Arc::new(ids);
        tables.save(&ids).unwrap();
        drop(tables.table(7, 0, 1, 1000, None).unwrap());
        let (again, found) = Tables::open(folder.path()).unwrap();
        assert_eq!((again.epoch, &found), (tables.epoch, &*ids));
        let mut more = Arc::clone(&ids);
        Arc::make_mut(&mut more).services.assign(&["s"], 2).unwrap();
        tables.save(&more).unwrap();
        assert_eq!(Tables::open(folder.path()).unwrap().1, *more);
    }

    #[test]
    fn corrupt_ids_begin_a_new_epoch() {
        let folder = tempfile::tempdir().unwrap();
        let (tables, ids) = Tables::open(folder.path()).unwrap();
        tables.save(&Arc::new(ids)).unwrap();
        std::fs::write(folder.path().join(IDS_FILE), "{").unwrap();
        let (again, found) = Tables::open(folder.path()).unwrap();
        assert_ne!(again.epoch, tables.epoch);
        assert_eq!(found, Ids::default());
    }

    #[test]
    fn a_table_of_another_size_is_made_anew() {
        let folder = tempfile::tempdir().unwrap();
        let (tables, _) = Tables::open(folder.path()).unwrap();
        tables.table(7, 0, 1, 1000, None).unwrap();
        tables.table(7, 0, 1, 100_000, None).unwrap();
    }
}
