//! The log's format, for each kind of destination.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

/// The log of an agent that fails at once, with this file as its stderr.
fn log(is_journal: bool) -> String {
    let folder =
        std::env::temp_dir().join(format!("agent-log-{}-{is_journal}", std::process::id()));
    let file = File::create(&folder).unwrap();
    let found = file.metadata().unwrap();
    let mut agent = Command::new(env!("CARGO_BIN_EXE_guideway-agent"));
    agent.args(["--config", "/no/such/file"]).stderr(file);
    // A stream that is another's means nothing.
    let inode = if is_journal { found.ino() } else { found.ino() + 1 };
    agent.env("JOURNAL_STREAM", format!("{}:{inode}", found.dev()));
    assert_eq!(agent.status().unwrap().code(), Some(2), "systemd does not restart it");
    let text = std::fs::read_to_string(&folder).unwrap();
    std::fs::remove_file(&folder).unwrap();
    text
}

#[test]
fn a_file_gets_no_colours_and_the_journal_gets_priorities() {
    let plain = log(false);
    assert!(plain.contains(" level=ERROR msg=") && !plain.contains('\u{1b}'), "{plain:?}");
    assert!(plain.starts_with("time="), "{plain:?}");
    assert!(plain.contains("cannot read /no/such/file"), "{plain:?}");
    let journal = log(true);
    let priorities: Vec<_> =
        journal.lines().map(|line| line.get(..3).unwrap_or_default()).collect();
    assert_eq!(priorities, ["<3>"], "{journal:?}");
    assert!(journal.starts_with("<3>level=ERROR msg="), "{journal:?}");
}
