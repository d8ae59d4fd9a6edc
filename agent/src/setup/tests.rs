use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use super::*;

/// A machine that is a folder.
fn places(folder: &Path) -> Places {
    fs::create_dir_all(folder.join("sys/net")).unwrap();
    fs::write(folder.join("sys/net/forward"), "0\n").unwrap();
    Places {
        script: folder.join("etc/backend.sh"),
        before: folder.join("var/settings-before"),
        settings: folder.join("sys"),
        loopback: "1: lo    inet 203.0.113.10/32 scope global lo\\".to_string(),
        has_systemd: false,
    }
}

/// A script that makes files of these names and changes a setting; then more commands.
fn script(folder: &Path, files: &[&str], more: &str) -> Script {
    let folder = folder.display();
    let each =
        |format: &dyn Fn(&str) -> String| files.iter().map(|file| format(file)).collect::<String>();
    let undo = each(&|file| format!("    rm {folder}/{file}\n"));
    let make = each(&|file| format!("touch {folder}/{file}\n"));
    let sysctl = format!("sysctl() {{ echo 1 > {folder}/sys/net/forward; }}");
    let text = format!(
        "# Sets up the backend web-1 (10.1.0.11) of Guideway; as root.\nif [ \"${{1-}}\" = undo ]; then\n{undo}    exit 0\nfi\nset -e\n{sysctl}\n{make}sysctl -w net.forward=1\n{more}# End.\n"
    );
    Script::parse(text).unwrap()
}

fn forward(folder: &Path) -> String {
    fs::read_to_string(folder.join("sys/net/forward")).unwrap().trim().to_string()
}

#[test]
fn a_new_script_takes_back_what_it_does_not_do_and_undo_takes_back_all() {
    let folder = tempfile::tempdir().unwrap();
    let (at, there) = (folder.path(), |name: &str| folder.path().join(name).exists());
    let places = places(at);
    set_up(&places, &script(at, &["a", "b"], "")).unwrap();
    assert!(there("a") && there("b") && forward(at) == "1");
    let second = script(at, &["b", "c"], "");
    set_up(&places, &second).unwrap();
    assert!(!there("a") && there("b") && there("c"));
    set_up(&places, &second).unwrap();
    assert_eq!(places.installed().unwrap(), Some(second));
    take_back(&places, false).unwrap();
    assert!(!there("b") && !there("c"));
    assert_eq!(forward(at), "0", "as it was before the first script");
    assert_eq!(places.installed().unwrap(), None);
    assert!(!there("var/settings-before"));
    take_back(&places, false).unwrap();
}

#[test]
fn a_script_that_fails_leaves_the_machine_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let (at, there) = (folder.path(), |name: &str| folder.path().join(name).exists());
    let places = places(at);
    let bad = script(at, &["b", "c"], "echo no such device >&2; exit 2\n");
    let problem = set_up(&places, &bad).unwrap_err();
    assert!(problem.contains("exit status: 2") && problem.contains("no such device"), "{problem}");
    assert!(!there("b") && !there("c") && !there("etc/backend.new"));
    assert_eq!((forward(at).as_str(), places.installed().unwrap()), ("0", None));

    let good = script(at, &["a", "b"], "");
    set_up(&places, &good).unwrap();
    set_up(&places, &bad).unwrap_err();
    assert!(there("a") && there("b") && !there("c"));
    assert_eq!(places.installed().unwrap(), Some(good));
}

/// As by the same script and `sh`: to take back what was there would stop a server.
#[test]
fn what_was_set_up_otherwise_is_not_taken_back() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let places = places(at);
    let bad = script(at, &["a"], "exit 2\n");
    let vip = "    ip address del 203.0.113.10/32 dev lo\n    exit 0\n";
    let bad = Script::parse(bad.text().replace("    exit 0\n", vip)).unwrap();
    let problem = set_up(&places, &bad).unwrap_err();
    assert!(problem.ends_with("so what it did stays: run it again"), "{problem}");
    assert!(at.join("a").exists() && forward(at) == "1");
    assert_eq!(places.installed().unwrap(), None);
}

#[test]
fn nothing_is_done_that_cannot_be_kept() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let places = places(at);
    fs::write(at.join("etc"), "a file in the folder's place").unwrap();
    let problem = set_up(&places, &script(at, &["a"], "")).unwrap_err();
    assert!(problem.contains("etc"), "{problem}");
    assert!(!at.join("a").exists() && forward(at) == "0");
}

/// A file system that has no room.
struct FullDisk<'f>(&'f Path);

impl<'f> FullDisk<'f> {
    /// Mounts one with a page for what is there already.
    fn mount(at: &'f Path) -> FullDisk<'f> {
        let command = format!("mount -t tmpfs -o size=16k,mode=755 full {}", at.display());
        testnet::run(&command);
        FullDisk(at)
    }

    fn fill(&self) {
        let mut rest = File::create(self.0.join("rest")).unwrap();
        while rest.write_all(&[1; 512]).is_ok() {}
    }
}

impl Drop for FullDisk<'_> {
    fn drop(&mut self) {
        testnet::run(&format!("umount {}", self.0.display()));
    }
}

#[test]
fn on_a_full_disk_the_machine_stays_as_it_was() {
    if !testnet::root_or_skip("on_a_full_disk_the_machine_stays_as_it_was") {
        return;
    }
    for full in ["etc", "var"] {
        let folder = tempfile::tempdir().unwrap();
        let (at, there) = (folder.path(), |name: &str| folder.path().join(name).exists());
        let places = places(at);
        fs::create_dir(at.join(full)).unwrap();
        let disk_at = at.join(full);
        let disk = FullDisk::mount(&disk_at);
        let (first, second) = (script(at, &["a"], ""), script(at, &["b"], ""));
        disk.fill();
        let problem = set_up(&places, &first).unwrap_err();
        assert!(problem.contains("No space left on device"), "{full}: {problem}");
        assert!(!there("a") && forward(at) == "0", "{full}");
        assert_eq!(places.installed().unwrap(), None, "{full}");

        fs::remove_file(disk_at.join("rest")).unwrap();
        set_up(&places, &first).unwrap();
        disk.fill();
        let changed = set_up(&places, &second);
        assert_eq!(changed.is_ok(), full == "var", "{changed:?}: the settings are kept already");
        let (is, is_not, kept) = if full == "var" { ("b", "a", second) } else { ("a", "b", first) };
        assert!(there(is) && !there(is_not) && forward(at) == "1", "{full}");
        assert_eq!(places.installed().unwrap(), Some(kept), "{full}");
        take_back(&places, false).unwrap();
        assert!(!there("a") && !there("b") && forward(at) == "0", "{full}");
    }
}

#[test]
fn what_is_no_set_up_of_ours_is_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let places = places(at);
    fs::create_dir(at.join("etc")).unwrap();
    fs::write(&places.script, "echo mine").unwrap();
    let problem = set_up(&places, &script(at, &["a"], "")).unwrap_err();
    assert!(problem.ends_with("and is in the way: move it"), "{problem}");
    assert_eq!(fs::read_to_string(&places.script).unwrap(), "echo mine");
    assert!(!at.join("a").exists());
}
