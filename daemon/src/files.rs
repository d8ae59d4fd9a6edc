//! Files that a config or a command line names.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

/// Reads a regular file of at most `bytes_max` bytes. It is opened without blocking: a
/// FIFO or a device in its place is refused at once, and does not hang the program.
pub fn read_regular(path: &Path, bytes_max: usize) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is no regular file"));
    }
    let mut bytes = Vec::new();
    file.take(bytes_max as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > bytes_max {
        let problem = format!("it has more than {bytes_max} bytes");
        return Err(io::Error::new(ErrorKind::FileTooLarge, problem));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regular_files_alone_are_read_and_nothing_else_blocks() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("file"), "12345").unwrap();
        std::os::unix::fs::symlink(at("file"), at("link")).unwrap();
        let made = std::process::Command::new("mkfifo").arg(at("pipe")).status().unwrap();
        assert!(made.success());
        let _listener = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        for name in ["file", "link"] {
            assert_eq!(read_regular(&at(name), 5).unwrap(), b"12345");
        }
        let error = |name: &str| read_regular(&at(name), 4).unwrap_err();
        assert_eq!(error("file").to_string(), "it has more than 4 bytes");
        for path in [at("pipe"), at(""), "/dev/zero".into()] {
            let error = read_regular(&path, 5).unwrap_err().to_string();
            assert_eq!(error, "it is no regular file", "{}", path.display());
        }
        error("socket");
        assert_eq!(error("missing").kind(), ErrorKind::NotFound);
    }
}
