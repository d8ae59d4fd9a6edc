//! The connection tables' memory, and the map of ids beside it.
//!
//! ```text
//!  tables directory | ids.json | connections-0 | connections-1 | ...
//! ```
//!
//! Entries name services and backends by ids, so a table means something only
//! with the map that gave them. The map has an epoch, which the tables carry
//! too: where the two disagree the tables are emptied, never misread.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use datapath::table::{ConnectionTable, Identity, TableReader, words_for};
use datapath::{Clock, Now};
use nic::mapping::{self, MappingError};
use plan::Ids;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::files;
use crate::worker::monotonic_ms;

const IDS_FILE: &str = "ids.json";

/// Tables of a forwarder that was gone for longer are not taken over: most of
/// their connections have gone elsewhere, and their times may have wrapped.
const GAP_MS_MAX: u64 = 60_000;

/// Where the tables are.
#[derive(Debug)]
pub struct Tables {
    folder: PathBuf,
    epoch: u64,
}

/// What `ids.json` holds.
#[derive(Serialize, Deserialize)]
struct IdsFile {
    epoch: u64,
    /// The kernel's boot id: after a reboot the clock begins anew, and no
    /// time in the tables means anything.
    boot: String,
    ids: Ids,
}

/// A worker's table, for the worker and for readers.
pub struct Opened {
    /// For the worker.
    pub table: ConnectionTable<'static>,
    /// The clock that its times are of.
    pub clock: Clock,
    /// For all others.
    pub reader: TableReader<'static>,
}

impl Tables {
    /// Opens the directory, with the ids of the entries in its tables; fresh
    /// ids under a fresh epoch, where there are none to go on with.
    pub fn open(folder: &Path) -> io::Result<(Tables, Ids)> {
        files::make_folder(folder)?;
        let (epoch, ids) = match read_ids(folder) {
            Some(file) => (file.epoch, file.ids),
            None => (fresh_epoch(), Ids::default()),
        };
        Ok((Tables { folder: folder.to_owned(), epoch }, ids))
    }

    /// Writes the ids down. To be called before any worker may use a new one.
    /// On failure no file is left: a successor then empties the tables,
    /// because nobody knows what their entries mean.
    pub fn save(&self, ids: &Ids) -> io::Result<()> {
        let file = IdsFile { epoch: self.epoch, boot: boot_id(), ids: ids.clone() };
        let bytes = serde_json::to_vec(&file)?;
        files::replace(&self.folder, IDS_FILE, &bytes).inspect_err(|_| {
            let _ = std::fs::remove_file(self.folder.join(IDS_FILE));
        })
    }

    /// The table of a worker: a predecessor's, where it is of the same key,
    /// ids and workers, and fresh; else an empty one.
    pub fn table(
        &self,
        key: u64,
        worker: usize,
        workers: usize,
        connections: u64,
    ) -> Result<Opened, MappingError> {
        let words = self.map(worker, words_for(connections))?;
        let identity =
            Identity { key, ids_epoch: self.epoch, worker: worker as u32, workers: workers as u32 };
        let (table, resumed) = ConnectionTable::open(words, &identity);
        let reader = TableReader::new(words);
        match resumed {
            Ok(then) if monotonic_ms().saturating_sub(then.0) <= GAP_MS_MAX => {
                tracing::info!(worker, "took a connection table over");
                Ok(Opened { table, clock: Clock::resume(then), reader })
            }
            Ok(_) => {
                tracing::info!(
                    worker,
                    "the connection table is too old to take over: starting empty"
                );
                // Without its first word it is no table.
                words[0].store(0, Ordering::Relaxed);
                Ok(empty(ConnectionTable::open(words, &identity).0, reader))
            }
            Err(why) => {
                tracing::debug!(worker, ?why, "starting with an empty connection table");
                Ok(empty(table, reader))
            }
        }
    }

    /// A file of another size is of another layout: it is made anew.
    fn map(&self, worker: usize, words: usize) -> Result<&'static [AtomicU64], MappingError> {
        let path = self.folder.join(format!("connections-{worker}"));
        let opened = match mapping::open(&path, words) {
            Err(MappingError::Size { .. }) => {
                let _ = std::fs::remove_file(&path);
                mapping::open(&path, words)
            }
            opened => opened,
        };
        opened.map(|(mapped, _)| &mapped[..words])
    }
}

fn empty(table: ConnectionTable<'static>, reader: TableReader<'static>) -> Opened {
    Opened { table, clock: Clock::resume(Now(monotonic_ms())), reader }
}

fn read_ids(folder: &Path) -> Option<IdsFile> {
    let bytes = match files::read(folder, IDS_FILE) {
        Ok(bytes) => bytes?,
        Err(error) => {
            tracing::warn!(%error, "the connection tables start empty");
            return None;
        }
    };
    match serde_json::from_slice::<IdsFile>(&bytes) {
        Ok(file) if file.boot == boot_id() => Some(file),
        Ok(_) => None,
        Err(error) => {
            let path = folder.join(IDS_FILE);
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
        tables.save(&ids).unwrap();
        drop(tables.table(7, 0, 1, 1000).unwrap());
        let (again, found) = Tables::open(folder.path()).unwrap();
        assert_eq!((again.epoch, found), (tables.epoch, ids));
    }

    #[test]
    fn corrupt_ids_begin_a_new_epoch() {
        let folder = tempfile::tempdir().unwrap();
        let (tables, ids) = Tables::open(folder.path()).unwrap();
        tables.save(&ids).unwrap();
        std::fs::write(folder.path().join(IDS_FILE), "{").unwrap();
        let (again, found) = Tables::open(folder.path()).unwrap();
        assert_ne!(again.epoch, tables.epoch);
        assert_eq!(found, Ids::default());
    }

    #[test]
    fn a_table_of_another_size_is_made_anew() {
        let folder = tempfile::tempdir().unwrap();
        let (tables, _) = Tables::open(folder.path()).unwrap();
        tables.table(7, 0, 1, 1000).unwrap();
        tables.table(7, 0, 1, 100_000).unwrap();
    }
}
