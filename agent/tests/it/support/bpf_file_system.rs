//! A separate BPF file system for a test, for programs that an agent pins.

use std::path::PathBuf;
use std::process::Command;

/// Unmounted when dropped.
pub struct BpfFileSystem(pub PathBuf);

impl BpfFileSystem {
    /// Mounts it in a new directory.
    pub fn mount(path: PathBuf) -> BpfFileSystem {
        std::fs::create_dir(&path).unwrap();
        testnet::run(&format!("mount -t bpf bpf {}", path.display()));
        BpfFileSystem(path)
    }
}

impl Drop for BpfFileSystem {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
