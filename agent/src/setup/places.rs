//! The files of a set-up on a machine, and how it is run.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use daemon::say;
use nic::folder::Folder;

use super::script::Script;

/// Of what a script that fails has printed.
const LINES_SHOWN: usize = 5;

/// Runs the script at each boot.
const UNIT: &str = "guideway-backend.service";

pub struct Places {
    /// The script that is set up. It has keys: root's alone.
    pub script: PathBuf,
    /// Settings as they were before, `name=value` in each line.
    pub before: PathBuf,
    /// The kernel's settings.
    pub settings: PathBuf,
    /// The addresses of `lo`, as `ip -o address` prints them.
    pub loopback: String,
    /// Whether systemd starts things here.
    pub has_systemd: bool,
}

impl Places {
    pub fn of_the_machine() -> Places {
        let printed = Command::new("ip").args(["-o", "address", "show", "dev", "lo"]).output();
        let printed = printed.map(|output| output.stdout).unwrap_or_default();
        Places {
            loopback: String::from_utf8_lossy(&printed).into_owned(),
            script: "/etc/guideway/backend.sh".into(),
            before: "/var/lib/guideway-agent/settings-before".into(),
            settings: "/proc/sys".into(),
            has_systemd: Path::new("/run/systemd/system").is_dir(),
        }
    }

    /// The script that is set up, if one is.
    pub fn installed(&self) -> Result<Option<Script>, String> {
        match fs::read_to_string(&self.script) {
            Ok(text) => {
                let file = self.script.display();
                Script::parse(text)
                    .map(Some)
                    .map_err(|problem| format!("{file} {problem}, and is in the way: move it"))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(format!("{}: {error}", self.script.display())),
        }
    }

    /// Whether a VIP is here already: a server that was set up otherwise serves clients.
    pub fn has_vip_of(&self, script: &Script) -> bool {
        let vips =
            script.taken_back().filter_map(|command| command.strip_prefix("ip address del "));
        vips.filter_map(|rest| rest.split(' ').next())
            .any(|vip| self.loopback.split_whitespace().any(|word| word == vip))
    }

    pub fn setting(&self, name: &str) -> Option<String> {
        let text = fs::read_to_string(self.settings.join(name.replace('.', "/"))).ok()?;
        Some(text.trim().to_string())
    }

    /// Remembers settings that the script changes, unless an earlier one changed them.
    pub fn remember_settings(&self, script: &Script) -> Result<(), String> {
        let known = fs::read_to_string(&self.before).unwrap_or_default();
        let is_known = |name: &str| known.lines().any(|line| line.split('=').next() == Some(name));
        let mut text = known.clone();
        for (name, _) in script.settings().filter(|(name, _)| !is_known(name)) {
            // Those of a device that the script makes are not there yet.
            if let Some(now) = self.setting(name) {
                text += &format!("{name}={now}\n");
            }
        }
        if text == known && self.before.exists() {
            return Ok(()); // a full disk is in no change's way
        }
        write_durably(&self.before, &text)
    }

    /// Restores them, and forgets them.
    pub fn restore_settings(&self) -> Result<(), String> {
        let text = fs::read_to_string(&self.before).unwrap_or_default();
        for (name, value) in text.lines().filter_map(|line| line.split_once('=')) {
            let file = self.settings.join(name.replace('.', "/"));
            fs::write(&file, value)
                .map_err(|error| format!("{name} cannot be set back to {value}: {error}"))?;
        }
        self.remove(&self.before)
    }

    /// Writes a script beside the one that is set up.
    pub fn write_new(&self, script: &Script) -> Result<PathBuf, String> {
        let new = self.script.with_extension("new");
        write_durably(&new, script.text())?;
        Ok(new)
    }

    pub fn put_in_place(&self, new: &Path) -> Result<(), String> {
        let renamed = fs::rename(new, &self.script).and_then(|()| sync_folder(&self.script));
        renamed.map_err(|error| format!("{}: {error}", self.script.display()))
    }

    pub fn remove(&self, file: &Path) -> Result<(), String> {
        match fs::remove_file(file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(format!("{} cannot be removed: {error}", file.display()))
            }
            _ => Ok(()),
        }
    }

    pub fn shell(&self, script: &Path, argument: &str) -> Result<(), String> {
        let script = script.as_os_str();
        run("sh", &[script, argument.as_ref()]).map_err(|problem| format!("the script: {problem}"))
    }

    /// Runs one command that takes something back, which may be gone already.
    pub fn command(&self, command: &str) {
        if let Err(problem) = run("sh", &["-c".as_ref(), command.as_ref()]) {
            say!("{command}: {}", problem.trim_end());
        }
    }

    pub fn start_at_boot(&self) -> Result<(), String> {
        if !self.has_systemd {
            say!("systemd does not run here: at each boot run `sh {} boot`", self.script.display());
            return Ok(());
        }
        run("systemctl", &["enable".as_ref(), "--quiet".as_ref(), UNIT.as_ref()])
            .map_err(|problem| format!("it is set up, but not at the next boot: {problem}"))
    }

    pub fn start_no_more(&self) {
        if self.has_systemd {
            self.command(&format!("systemctl disable --quiet {UNIT}"));
        }
    }
}

/// Writes a file that is root's alone, and is whole or not there.
fn write_durably(path: &Path, text: &str) -> Result<(), String> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    Folder::open(folder)
        .and_then(|folder| folder.replace(&name, text.as_bytes()))
        .map_err(|error| format!("{error}; nothing is changed"))
}

/// Runs a program; the error has its exit status and what it printed last.
fn run(program: &str, arguments: &[&OsStr]) -> Result<(), String> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{program} cannot be run: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let printed = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = printed.lines().collect();
    let last = lines[lines.len().saturating_sub(LINES_SHOWN)..].join("\n  ");
    Err(format!("{program} fails ({}):\n  {last}\n", output.status))
}

fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}
