//! Files that survive crashes: each is either the old one or the new one,
//! whole, whatever happens in between.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Replaces the file `name` in `folder`: readable by its owner only, on disk
/// when this returns.
pub fn replace(folder: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let (path, fresh) = (folder.join(name), folder.join(format!("{name}.new")));
    write_synced(&fresh, bytes)
        .and_then(|()| std::fs::rename(&fresh, &path))
        .and_then(|()| File::open(folder)?.sync_all())
        .map_err(|error| {
            // What is left of it would take space on a full disk.
            let _ = std::fs::remove_file(&fresh);
            io::Error::new(error.kind(), format!("writing {}: {error}", path.display()))
        })
}

/// The file's bytes; None: there is none.
pub fn read(folder: &Path, name: &str) -> io::Result<Option<Vec<u8>>> {
    let path = folder.join(name);
    match std::fs::read(&path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => {
            Err(io::Error::new(error.kind(), format!("reading {}: {error}", path.display())))
        }
    }
}

/// The folder, made if it is not there.
pub fn make_folder(path: &Path) -> io::Result<()> {
    std::fs::create_dir_all(path).map_err(|error| {
        io::Error::new(error.kind(), format!("making the folder {}: {error}", path.display()))
    })
}

fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_replaced_file_is_whole_and_private() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read(folder.path(), "plan.json").unwrap(), None);
        replace(folder.path(), "plan.json", b"one").unwrap();
        replace(folder.path(), "plan.json", b"two").unwrap();
        assert_eq!(read(folder.path(), "plan.json").unwrap().unwrap(), b"two");
        let mode = std::fs::metadata(folder.path().join("plan.json")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
    }

    #[test]
    fn a_failed_write_keeps_the_old_file_and_names_the_path() {
        let folder = tempfile::tempdir().unwrap();
        replace(folder.path(), "plan.json", b"old").unwrap();
        // A folder in the way of the fresh file stands for a full disk.
        std::fs::create_dir(folder.path().join("plan.json.new")).unwrap();
        let error = replace(folder.path(), "plan.json", b"new").unwrap_err();
        assert!(error.to_string().contains("plan.json"), "{error}");
        assert_eq!(read(folder.path(), "plan.json").unwrap().unwrap(), b"old");
    }
}
