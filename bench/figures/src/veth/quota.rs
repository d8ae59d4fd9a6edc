//! Limits a program's CPU time by a kernel control group.

use std::fs;
use std::path::{Path, PathBuf};

/// Short, so that what comes while a program waits for its next period fits its ring.
const PERIOD_US: u32 = 10_000;
/// The controller `cpu` of cgroup v1, and all of v2.
const V1: &str = "/sys/fs/cgroup/cpu";
const V2: &str = "/sys/fs/cgroup";

/// The group; to be dropped when its processes have ended.
#[derive(Debug)]
pub struct Quota {
    folder: PathBuf,
}

impl Quota {
    /// A group whose processes together have this part of a core.
    ///
    /// # Errors
    /// If there is no such controller here.
    pub fn new(name: &str, percent: u32) -> Result<Quota, String> {
        let quota_us = PERIOD_US * percent / 100;
        if Path::new(V1).join("cpu.shares").exists() {
            let quota = Quota::made(Path::new(V1), name)?;
            quota.write("cpu.cfs_period_us", &PERIOD_US.to_string())?;
            quota.write("cpu.cfs_quota_us", &quota_us.to_string())?;
            return Ok(quota);
        }
        let control = Path::new(V2).join("cgroup.subtree_control");
        fs::write(&control, "+cpu").map_err(|error| format!("{}: {error}", control.display()))?;
        let quota = Quota::made(Path::new(V2), name)?;
        quota.write("cpu.max", &format!("{quota_us} {PERIOD_US}"))?;
        Ok(quota)
    }

    fn made(root: &Path, name: &str) -> Result<Quota, String> {
        let folder = root.join(name);
        fs::create_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        Ok(Quota { folder })
    }

    /// Puts a process into it, with all its threads.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn add(&self, process: u32) -> Result<(), String> {
        self.write("cgroup.procs", &process.to_string())
    }

    fn write(&self, file: &str, text: &str) -> Result<(), String> {
        let file = self.folder.join(file);
        fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.folder);
    }
}
