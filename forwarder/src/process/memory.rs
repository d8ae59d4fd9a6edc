//! How much memory this process may still use. A request that does not fit is refused, with
//! numbers, before it is allocated; otherwise the kernel would kill the process, again and
//! again.
//!
//! The result is the least of the machine's available memory, what each control group up the
//! tree has left of its limit, and what the process has left of its own. Page cache counts as
//! free, since the kernel gives it up first. Swap does not count: packets cannot wait for it.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};

/// What may still be taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Room {
    /// Bytes of it.
    pub bytes: u64,
    /// What limits it, and the cure.
    pub by: String,
}

/// The least room; None: the kernel does not say.
#[must_use]
pub fn room() -> Option<Room> {
    let of_groups = groups(Path::new("/")).into_iter().flat_map(|group| group.rooms());
    machine(Path::new("/")).into_iter().chain(of_groups).chain(own()).min_by_key(|room| room.bytes)
}

/// Bytes as people read them.
#[must_use]
pub fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}

/// Bytes of huge pages that are free.
#[must_use]
pub fn free_huge_pages() -> u64 {
    let value = |key| meminfo(Path::new("/"), key).unwrap_or(0);
    value("HugePages_Free:") * value("Hugepagesize:") * 1024
}

fn machine(root: &Path) -> Option<Room> {
    let bytes = meminfo(root, "MemAvailable:")? * 1024;
    Some(Room { bytes, by: "the machine has no more available".to_owned() })
}

fn meminfo(root: &Path, key: &str) -> Option<u64> {
    value(&fs::read_to_string(root.join("proc/meminfo")).ok()?, key)
}

/// The value of a line `key value ...`.
fn value(text: &str, key: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_whitespace);
    lines
        .find_map(|mut words| words.next().filter(|word| *word == key).and_then(|_| words.next()))?
        .parse()
        .ok()
}

/// The process's own limit, of address space.
fn own() -> Option<Room> {
    let max = getrlimit(Resource::As).current?;
    let taken_kib = value(&fs::read_to_string("/proc/self/status").ok()?, "VmSize:")?;
    let bytes = max.saturating_sub(taken_kib * 1024);
    let by = format!(
        "its address space is limited to {}: raise LimitAS= of its unit (`ulimit -v`)",
        mib(max)
    );
    Some(Room { bytes, by })
}

/// A control group of this process's.
struct Group {
    name: String,
    folder: PathBuf,
    files: &'static Files,
}

/// Where a version of control groups has what.
struct Files {
    mount: &'static str,
    limits: &'static [&'static str],
    usage: &'static str,
    /// Of `memory.stat`: what the kernel gives up first.
    given_up: &'static [&'static str],
}

const VERSION_1: Files = Files {
    mount: "sys/fs/cgroup/memory",
    limits: &["memory.limit_in_bytes"],
    usage: "memory.usage_in_bytes",
    given_up: &["total_inactive_file", "total_active_file"],
};

/// Above `memory.high` a process is held up, which for one that forwards is no better.
const VERSION_2: Files = Files {
    mount: "sys/fs/cgroup",
    limits: &["memory.max", "memory.high"],
    usage: "memory.current",
    given_up: &["inactive_file", "active_file", "slab_reclaimable"],
};

/// Those of this process, up the tree.
fn groups(root: &Path) -> Vec<Group> {
    let text = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let of_memory = text.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        controllers.split(',').any(|one| one == "memory").then_some((path, &VERSION_1))
    });
    let unified = || text.lines().find_map(|line| Some((line.strip_prefix("0::")?, &VERSION_2)));
    let Some((path, files)) = of_memory.or_else(unified) else { return Vec::new() };
    let mount = root.join(files.mount);
    let group = |path: &Path| {
        let below = path.strip_prefix("/").ok()?;
        Some(Group { name: path.display().to_string(), folder: mount.join(below), files })
    };
    Path::new(path).ancestors().filter_map(group).collect()
}

impl Group {
    fn rooms(&self) -> Vec<Room> {
        let Group { name, folder, files } = self;
        let number = |file: &str| -> Option<u64> {
            fs::read_to_string(folder.join(file)).ok()?.trim().parse().ok()
        };
        let Some(usage) = number(files.usage) else { return Vec::new() };
        let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
        let given_up: u64 = files.given_up.iter().filter_map(|key| value(&stat, key)).sum();
        let room = |limit: &&str| {
            let max = number(limit)?; // `max`: there is none
            let bytes = max.saturating_sub(usage.saturating_sub(given_up));
            let by = format!(
                "{limit} of its control group {name} is {}: raise it (MemoryMax= and MemoryHigh= of its unit)",
                mib(max)
            );
            Some(Room { bytes, by })
        };
        files.limits.iter().filter_map(room).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The room of the least of its groups, by what the files hold.
    fn least(files: &[(&str, &str)]) -> Option<Room> {
        let root = tempfile::tempdir().unwrap();
        for (file, text) in files {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        groups(root.path()).iter().flat_map(Group::rooms).min_by_key(|room| room.bytes)
    }

    #[test]
    fn the_narrowest_group_up_the_tree_limits_and_page_cache_counts_as_left() {
        let unit = "sys/fs/cgroup/system.slice/f.service";
        let slice = "sys/fs/cgroup/system.slice";
        let at = |folder: &str, file: &str| format!("{folder}/{file}");
        let mut files = vec![
            ("proc/self/cgroup".to_owned(), "0::/system.slice/f.service\n"),
            (at(unit, "memory.max"), "83886080\n"),
            (at(unit, "memory.high"), "max\n"),
            (at(unit, "memory.current"), "31457280\n"),
            (at(unit, "memory.stat"), "anon 7\ninactive_file 10485760\nactive_file 0\n"),
            (at(slice, "memory.max"), "max\n"),
            (at(slice, "memory.current"), "999999999\n"),
        ];
        let of = |files: &[(String, &str)]| {
            let files: Vec<_> = files.iter().map(|(file, text)| (file.as_str(), *text)).collect();
            least(&files).unwrap()
        };
        let room = of(&files);
        assert_eq!(room.bytes, 60 << 20);
        let by = "memory.max of its control group /system.slice/f.service is 80 MiB: raise it";
        assert!(room.by.starts_with(by), "{}", room.by);
        files[5].1 = "1010485760\n";
        let room = of(&files);
        assert_eq!(room.bytes, 10_485_761);
        assert!(room.by.contains("group /system.slice is"), "{}", room.by);
    }

    #[test]
    fn groups_of_the_former_version_limit_as_well() {
        let group = "sys/fs/cgroup/memory/a";
        let room = least(&[
            ("proc/self/cgroup", "9:name=systemd:/x\n4:cpu,memory:/a\n0::/\n"),
            (&format!("{group}/memory.limit_in_bytes"), "2097152\n"),
            (&format!("{group}/memory.usage_in_bytes"), "3145728\n"),
        ]);
        assert_eq!(room.unwrap().bytes, 0);
        assert_eq!(least(&[]), None);
    }

    #[test]
    fn there_is_some_room_here() {
        let room = room().unwrap();
        assert!(room.bytes > 1 << 20, "{room:?}");
    }
}
