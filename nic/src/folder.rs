//! A directory that belongs only to this process's user, for files that others must not change:
//! mapped tables (if another user truncates such a file, its reader gets SIGBUS), claims, the
//! last plan.
//!
//! **Invariant:** files are opened relative to the directory's descriptor and never through a
//! link; each is a regular file of this user with one name, which no other user may write.
//! Anything else is refused, with the culprit and the cure, and left unchanged.

use std::fs::{DirBuilder, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, Stat, fstat, openat, renameat, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

/// Anybody but the owner may write.
const OTHERS_WRITE: u32 = 0o022;

/// Reads a file that an administrator names, anywhere, and by way of links if it has to:
/// a regular one of at most `bytes_max` bytes. Nothing else is waited for: a named pipe
/// would hold up its reader until somebody writes, and a device has no end.
pub fn read_named(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let kind = FileType::from_raw_mode(fstat(&file)?.st_mode);
    if kind != FileType::RegularFile {
        let why = format!("is a {}: name a regular file", word(kind));
        return Err(io::Error::new(ErrorKind::InvalidInput, why));
    }
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        let why = format!("holds more than {bytes_max} bytes: is it the right file?");
        return Err(io::Error::new(ErrorKind::InvalidData, why));
    }
    Ok(bytes)
}

/// An open directory. See the module.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    fd: OwnedFd,
}

impl Folder {
    /// Opens the directory; makes it, for its user alone, where it is not there.
    pub fn open(path: &Path) -> io::Result<Folder> {
        let failed = |error| named("opening the directory", path, error);
        if let Some(above) = path.parent() {
            std::fs::create_dir_all(above).map_err(failed)?;
        }
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(failed(error)),
            _ => {}
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::LOOP | Errno::NOTDIR) => {
                return Err(refused(path, "is a symbolic link: name the directory itself"));
            }
            Err(error) => return Err(failed(error.into())),
        };
        check_owner(path, &fstat(&fd)?)?;
        Ok(Folder { path: path.to_owned(), fd })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a file to read and write; None: there is none.
    pub fn file(&self, name: &str) -> io::Result<Option<File>> {
        match self.open_file(name, OFlags::RDWR | OFlags::NONBLOCK) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            opened => opened.map(Some),
        }
    }

    /// The same, and makes it, empty, where it is not there.
    pub fn file_or_new(&self, name: &str) -> io::Result<File> {
        self.open_file(name, OFlags::RDWR | OFlags::NONBLOCK | OFlags::CREATE)
    }

    /// The file's bytes; None: there is none.
    pub fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        let Some(mut file) = self.file(name)? else { return Ok(None) };
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)
            .map_err(|error| named("reading", &self.path.join(name), error))?;
        Ok(Some(bytes))
    }

    /// Replaces a file: it is the old one or the new one, whole, whatever
    /// happens in between, and on disk when this returns.
    pub fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let fresh = format!("{name}.new");
        self.remove_leftover(&fresh)?;
        let written = self
            .open_file(&fresh, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)
            .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
            .and_then(|()| Ok(renameat(&self.fd, &fresh, &self.fd, name)?))
            .and_then(|()| Ok(rustix::fs::fsync(&self.fd)?));
        written.map_err(|error| {
            // What is left of it would take space on a full disk.
            let _ = self.remove(&fresh);
            named("writing", &self.path.join(name), error)
        })
    }

    /// Removes a file, if it is there.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        match unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(named("removing", &self.path.join(name), error.into())),
        }
    }

    /// Names of what is in it.
    pub fn names(&self) -> io::Result<Vec<String>> {
        let entries = rustix::fs::Dir::read_from(&self.fd)?;
        let name = |entry: rustix::fs::DirEntry| entry.file_name().to_str().ok().map(str::to_owned);
        Ok(entries.flatten().filter_map(name).filter(|name| !name.starts_with('.')).collect())
    }

    /// What a crash left of a file of ours; anything else is not ours to remove.
    fn remove_leftover(&self, name: &str) -> io::Result<()> {
        let path = self.path.join(name);
        match statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => check_file(&path, &stat)?,
            Err(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(named("opening", &path, error.into())),
        }
        self.remove(name)
    }

    fn open_file(&self, name: &str, flags: OFlags) -> io::Result<File> {
        let path = self.path.join(name);
        // One step from the directory, and that follows no link. openat2 could say so
        // itself, but systemd's RestrictSUIDSGID takes it away.
        if name.contains('/') || name == ".." {
            return Err(refused(&path, "is not in the directory"));
        }
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode =
            if flags.contains(OFlags::CREATE) { Mode::RUSR | Mode::WUSR } else { Mode::empty() };
        match openat(&self.fd, name, flags, mode) {
            Ok(fd) => {
                check_file(&path, &fstat(&fd)?)?;
                Ok(File::from(fd))
            }
            Err(Errno::LOOP) => Err(refused(&path, "is a symbolic link: remove it")),
            Err(error) => Err(named("opening", &path, error.into())),
        }
    }
}

fn check_file(path: &Path, stat: &Stat) -> io::Result<()> {
    let kind = FileType::from_raw_mode(stat.st_mode);
    if kind != FileType::RegularFile {
        return Err(refused(path, &format!("is a {} and no file of ours: remove it", word(kind))));
    }
    if stat.st_nlink > 1 {
        return Err(refused(path, "has another name besides (a hard link): remove both"));
    }
    check_owner(path, stat)
}

/// What is root's is not given to a user who tries what takes root.
fn another_owner(owner: u32, own: u32, path: &Path) -> String {
    if owner == 0 {
        return format!(
            "belongs to root, and this runs as user {own}: run it as root, or give it a directory of its own"
        );
    }
    format!(
        "belongs to user {owner}, who could change it behind the forwarder's back: look at it, then chown {own} {}",
        path.display()
    )
}

fn check_owner(path: &Path, stat: &Stat) -> io::Result<()> {
    let (owner, own) = (stat.st_uid, geteuid().as_raw());
    let path_text = path.display();
    if owner != own {
        return Err(refused(path, &another_owner(owner, own, path)));
    }
    if stat.st_mode & OTHERS_WRITE != 0 {
        let why = format!(
            "may be written by others (mode {:04o}): look at it, then chmod go-w {path_text}",
            stat.st_mode & 0o7777
        );
        return Err(refused(path, &why));
    }
    Ok(())
}

fn word(kind: FileType) -> &'static str {
    match kind {
        FileType::Symlink => "symbolic link",
        FileType::Directory => "directory",
        FileType::Fifo => "named pipe",
        FileType::Socket => "socket",
        FileType::BlockDevice | FileType::CharacterDevice => "device",
        _ => "special file",
    }
}

fn refused(path: &Path, why: &str) -> io::Error {
    io::Error::new(ErrorKind::PermissionDenied, format!("{} {why}", path.display()))
}

/// What was tried and on what; an error that names the path says enough.
fn named(what: &str, path: &Path, error: io::Error) -> io::Error {
    let text = error.to_string();
    if text.contains(&*path.to_string_lossy()) {
        return error;
    }
    io::Error::new(error.kind(), format!("{what} {}: {text}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;

    use super::*;

    fn folder() -> (tempfile::TempDir, Folder) {
        let above = tempfile::tempdir().unwrap();
        let folder = Folder::open(&above.path().join("state")).unwrap();
        (above, folder)
    }

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn a_replaced_file_is_whole_and_private_and_so_is_the_directory() {
        let (_above, folder) = folder();
        assert_eq!(folder.read("plan.json").unwrap(), None);
        folder.replace("plan.json", b"one").unwrap();
        folder.replace("plan.json", b"two").unwrap();
        assert_eq!(folder.read("plan.json").unwrap().unwrap(), b"two");
        assert_eq!((mode(folder.path()), mode(&folder.path().join("plan.json"))), (0o700, 0o600));
        assert_eq!(folder.names().unwrap(), ["plan.json"], "nothing else is left");
    }

    #[test]
    fn what_a_crash_left_is_in_no_ones_way() {
        let (_above, folder) = folder();
        std::fs::write(folder.path().join("plan.json.new"), "half a pl").unwrap();
        std::fs::set_permissions(
            folder.path().join("plan.json.new"),
            PermissionsExt::from_mode(0o600),
        )
        .unwrap();
        folder.replace("plan.json", b"new").unwrap();
        assert_eq!(folder.read("plan.json").unwrap().unwrap(), b"new");
    }

    #[test]
    fn what_is_no_file_of_ours_is_refused_by_name_and_left_alone() {
        let (above, folder) = folder();
        folder.replace("plan.json", b"old").unwrap();
        let precious = above.path().join("precious");
        std::fs::write(&precious, "precious").unwrap();
        let at = |name: &str| folder.path().join(name);
        symlink(&precious, at("link")).unwrap();
        symlink(&precious, at("link.new")).unwrap();
        std::fs::hard_link(&precious, at("hard")).unwrap();
        std::fs::hard_link(&precious, at("hard.new")).unwrap();
        let made = std::process::Command::new("mkfifo").args([at("pipe"), at("pipe.new")]).status();
        assert!(made.unwrap().success());
        let _listeners = ["socket", "socket.new"].map(|name| UnixListener::bind(at(name)).unwrap());
        std::fs::create_dir(at("plan.json.new")).unwrap();
        for (name, why) in [
            ("link", "is a symbolic link"),
            ("hard", "hard link"),
            ("pipe", "is a named pipe"),
            ("socket", ""),
            ("plan.json", "is a directory"),
        ] {
            let errors = [folder.replace(name, b"new").err(), folder.read(name).err()];
            for error in errors.iter().flatten().map(ToString::to_string) {
                assert!(error.contains(&*at(name).to_string_lossy()), "{error}");
                assert!(error.contains(why), "{name}: {error}");
            }
            assert!(errors[0].is_some() && (errors[1].is_some() || name == "plan.json"), "{name}");
        }
        assert_eq!(std::fs::read(&precious).unwrap(), b"precious");
        assert_eq!(folder.read("plan.json").unwrap().unwrap(), b"old");
        assert!(folder.file("../precious").is_err(), "it lies outside");
    }

    #[test]
    fn only_a_regular_file_of_some_size_is_read_and_nothing_is_waited_for() {
        let (above, _folder) = folder();
        let at = |name: &str| above.path().join(name);
        let why = |path: &Path| read_named(path, 4).unwrap_err().to_string();
        assert!(std::process::Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
        let _listener = UnixListener::bind(at("socket")).unwrap();
        assert_eq!(why(&at("pipe")), "is a named pipe: name a regular file");
        assert_eq!(why(Path::new("/dev/zero")), "is a device: name a regular file");
        assert_eq!(why(above.path()), "is a directory: name a regular file");
        assert!(read_named(&at("socket"), 4).is_err());
        assert_eq!(read_named(&at("none"), 4).unwrap_err().kind(), ErrorKind::NotFound);
        std::fs::write(at("file"), "1234").unwrap();
        symlink(at("file"), at("link")).unwrap();
        symlink(at("pipe"), at("link-to-pipe")).unwrap();
        assert_eq!(read_named(&at("link"), 4).unwrap(), b"1234");
        assert_eq!(why(&at("link-to-pipe")), "is a named pipe: name a regular file");
        std::fs::write(at("file"), "12345").unwrap();
        assert_eq!(why(&at("file")), "holds more than 4 bytes: is it the right file?");
    }

    #[test]
    fn a_directory_that_others_may_change_is_refused_with_the_cure() {
        let (above, folder) = folder();
        let refusal = |path: &Path| Folder::open(path).unwrap_err().to_string();
        symlink(folder.path(), above.path().join("link")).unwrap();
        assert!(refusal(&above.path().join("link")).contains("name the directory itself"));
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o1770)).unwrap();
        let error = refusal(folder.path());
        assert!(error.contains("mode 1770") && error.contains("chmod go-w"), "{error}");
        if geteuid().is_root() {
            std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o700)).unwrap();
            assert!(!another_owner(0, 65534, folder.path()).contains("chown"));
            std::os::unix::fs::chown(folder.path(), Some(65534), None).unwrap();
            let error = refusal(folder.path());
            assert!(error.contains("user 65534") && error.contains("chown 0"), "{error}");
        }
    }
}
