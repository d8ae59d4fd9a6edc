//! The log's format, for each kind of destination.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

/// The log of a forwarder that cannot start, with a file as its stderr.
fn log(is_journal: bool) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let file = File::create(&path).unwrap();
    let found = file.metadata().unwrap();
    // It says that nothing can be taken over from, and then has no place for its tables.
    let mut forwarder = Command::new(env!("CARGO_BIN_EXE_guideway-forwarder"));
    forwarder.args(["run", "--take-over", "--tables-dir", "/dev/null/tables"]).stderr(file);
    forwarder.arg("--run-dir").arg(folder.path()).arg("--state-dir").arg(folder.path());
    // A stream that is another's means nothing.
    let inode = if is_journal { found.ino() } else { found.ino() + 1 };
    forwarder.env("JOURNAL_STREAM", format!("{}:{inode}", found.dev()));
    assert!(!forwarder.status().unwrap().success());
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn a_file_gets_no_colours_and_the_journal_gets_priorities() {
    let plain = log(false);
    assert!(plain.contains(" level=INFO msg=") && !plain.contains('\u{1b}'), "{plain:?}");
    let journal = log(true);
    assert!(journal.starts_with("<6>level=INFO msg="), "{journal:?}");
}
