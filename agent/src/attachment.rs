//! The program on its interface: attached at XDP or traffic control, or put in place of the
//! one that a predecessor left there.
//!
//! If a directory in the BPF file system is given, the link is pinned there under its mode,
//! and the program stays active while no agent runs: a restart replaces it in one step and
//! loses no packet. Otherwise it ends with the process.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use ebpf::xdp::{self, ModePreference};
use ebpf::{Hook, Link};

use crate::config::Preference;

const XDP_MODES: [xdp::Mode; 2] = [xdp::Mode::Native, xdp::Mode::Generic];

/// Tables that are pinned, and the names of their pins, which have the version of the
/// layout.
const TABLES: [(&str, &str); 12] = [
    ("flows", "flows-1"),
    ("fragments", "fragments-2"),
    ("syns", "syns-1"),
    ("injector", "injector-1"),
    ("injected_syn", "injected-syn-1"),
    ("keyed_handshakes", "keyed-handshakes-1"),
    ("openings", "openings-1"),
    ("handshakes", "handshakes-1"),
    ("clocks", "clocks-1"),
    ("redirects", "redirects-1"),
    ("half_redirects", "half-redirects-1"),
    ("away", "away-1"),
];

/// Where tunnels are opened: another program for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Before the kernel has a packet of the frame.
    Xdp(ModePreference),
    /// Right behind that, where offloads are kept.
    Tc,
}

/// How the program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// At XDP.
    Xdp(xdp::Mode),
    /// At traffic control.
    Tc,
}

impl Place {
    /// Where tunnels of this interface are opened.
    #[must_use]
    pub fn of(preference: Preference, interface: &str) -> Place {
        match preference {
            Preference::Auto => match ebpf::losing_offloads(interface) {
                Some(_) if ebpf::has_tc_links() => Place::Tc,
                _ => Place::Xdp(ModePreference::Auto),
            },
            Preference::Native => Place::Xdp(ModePreference::Native),
            Preference::Generic => Place::Xdp(ModePreference::Generic),
            Preference::Tc => Place::Tc,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mode::Xdp(mode) => mode.fmt(f),
            Mode::Tc => f.write_str("tc"),
        }
    }
}

/// Programs of traffic control (Linux 6.6), each with a link of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Classifier {
    /// Opens tunnels.
    Opener,
    /// Sees what services with Multipath TCP receive.
    MultipathIn,
    /// Sees what they send.
    MultipathOut,
    /// Sees requests, for the time that answers take.
    Requests,
    /// Sees answers, for the same.
    Answers,
}

impl Classifier {
    const ALL: [Classifier; 5] = [
        Classifier::Opener,
        Classifier::MultipathIn,
        Classifier::MultipathOut,
        Classifier::Requests,
        Classifier::Answers,
    ];

    fn hook(self) -> Hook {
        match self {
            Classifier::Opener => Hook::TcIngressFirst,
            Classifier::MultipathOut | Classifier::Answers => Hook::TcEgress,
            Classifier::MultipathIn | Classifier::Requests => Hook::TcIngress,
        }
    }

    /// The link's name in the directory.
    fn pin(self) -> &'static str {
        match self {
            Classifier::Opener => "tcx-ingress",
            Classifier::MultipathIn => "tcx-multipath-ingress",
            Classifier::MultipathOut => "tcx-multipath-egress",
            Classifier::Requests => "tcx-requests",
            Classifier::Answers => "tcx-answers",
        }
    }

    /// The config's field that it is for, and what to do on older kernels.
    fn field_and_cure(self) -> (&'static str, &'static str) {
        match self {
            Classifier::Opener => ("mode: tc", "it takes Linux 6.6; before, write `mode: auto`"),
            Classifier::MultipathIn | Classifier::MultipathOut => {
                ("mptcp", "it takes Linux 6.6; before, remove `mptcp` here and from the services")
            }
            Classifier::Requests | Classifier::Answers => {
                ("response_times", "it takes Linux 6.6; before, write `response_times: off`")
            }
        }
    }
}

/// Attaches the program that opens tunnels; how it is attached. A predecessor's at another
/// place is let go behind that.
pub fn attach(
    program: BorrowedFd,
    interface: &str,
    place: Place,
    directory: Option<&Path>,
) -> Result<(Link, Mode), String> {
    let (link, mode, former) = match place {
        Place::Xdp(preference) => {
            let (link, mode) = attach_xdp(program, interface, preference, directory)?;
            (link, Mode::Xdp(mode), vec![Classifier::Opener.pin()])
        }
        Place::Tc => {
            let link = attach_classifier(Classifier::Opener, program, interface, directory)?;
            (link, Mode::Tc, XDP_MODES.map(pin_of).to_vec())
        }
    };
    if let Some(directory) = directory {
        for pin in former {
            remove_link(&directory.join(pin))?;
        }
        // The new program does without.
        if let Err(problem) = remove_former(directory) {
            tracing::warn!("{problem}");
        }
    }
    Ok((link, mode))
}

fn attach_xdp(
    program: BorrowedFd,
    interface: &str,
    preference: ModePreference,
    directory: Option<&Path>,
) -> Result<(Link, xdp::Mode), String> {
    let index = ebpf::index_of(interface).map_err(|error| error.to_string())?;
    if let Some(directory) = directory
        && let Some((link, mode)) = inherited(directory, index, preference)?
    {
        xdp::replace(&link, program, interface, mode).map_err(|error| error.to_string())?;
        return Ok((link, mode));
    }
    let attached = xdp::attach(program, interface, index, preference);
    let (link, mode) = attached.map_err(|error| error.to_string())?;
    if let Some(directory) = directory {
        pin_as(&link, directory, &directory.join(pin_of(mode)))?;
    }
    Ok((link, mode))
}

/// Attaches a program of traffic control, or puts it in the place of a predecessor's.
pub fn attach_classifier(
    which: Classifier,
    program: BorrowedFd,
    interface: &str,
    directory: Option<&Path>,
) -> Result<Link, String> {
    let index = ebpf::index_of(interface).map_err(|error| error.to_string())?;
    let problem = |error: io::Error| {
        let (field, cure) = which.field_and_cure();
        format!("cannot attach the program of {field} to {interface}: {error}; {cure}")
    };
    let pin = directory.map(|directory| directory.join(which.pin()));
    if let Some(link) = pin.as_deref().and_then(|pin| Link::pinned(pin).ok())
        && link.interface_index().is_ok_and(|of| of == index)
    {
        link.replace(program).map_err(problem)?;
        return Ok(link);
    }
    let link = Link::create(program, index, which.hook()).map_err(problem)?;
    if let Some((pin, directory)) = pin.as_deref().zip(directory) {
        remove(pin)?;
        pin_as(&link, directory, pin)?;
    }
    Ok(link)
}

/// Takes a program of traffic control off; false if there is none.
pub fn detach_classifier(which: Classifier, directory: &Path) -> Result<bool, String> {
    remove_link(&directory.join(which.pin()))
}

/// The tables that outlive the agent, with their paths: flows of datagrams stay here,
/// handshakes that have begun go on, and connections keep their clocks.
pub fn tables(directory: &Path) -> Vec<(&'static str, PathBuf)> {
    TABLES.iter().map(|(table, pin)| (*table, directory.join(pin))).collect()
}

/// Takes the programs off their interface; false if there is none.
pub fn detach(directory: &Path) -> Result<bool, String> {
    let mut was_there = false;
    for which in Classifier::ALL {
        was_there |= detach_classifier(which, directory)?;
    }
    for mode in XDP_MODES {
        was_there |= remove_link(&directory.join(pin_of(mode)))?;
    }
    for (_, path) in tables(directory) {
        remove(&path)?;
    }
    remove_former(directory)?;
    let _ = std::fs::remove_dir(directory); // if it is empty
    Ok(was_there)
}

/// Removes what an agent of another version left: tables of other layouts, which keep their
/// memory, and programs of traffic control that this one does not have, which stay on the
/// interface.
fn remove_former(directory: &Path) -> Result<(), String> {
    let problem = |error: io::Error| format!("cannot read {}: {error}", directory.display());
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(problem)?,
    };
    for entry in entries {
        let entry = entry.map_err(problem)?;
        if entry.file_name().to_str().is_some_and(is_former) {
            remove(&entry.path())?;
        }
    }
    Ok(())
}

/// A predecessor's link, if it is of this interface and of a mode that will do.
fn inherited(
    directory: &Path,
    index: u32,
    preference: ModePreference,
) -> Result<Option<(Link, xdp::Mode)>, String> {
    for mode in XDP_MODES {
        let path = directory.join(pin_of(mode));
        let link = match Link::pinned(&path) {
            Ok(link) => link,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(format!("cannot open {}: {error}", path.display())),
        };
        let is_preferred = match preference {
            ModePreference::Auto => true,
            ModePreference::Native => mode == xdp::Mode::Native,
            ModePreference::Generic => mode == xdp::Mode::Generic,
        };
        if is_preferred && link.interface_index().is_ok_and(|of| of == index) {
            return Ok(Some((link, mode)));
        }
        // Of an interface that is gone, or of a config that was changed.
        remove_link(&path)?;
    }
    Ok(None)
}

fn pin_as(link: &Link, directory: &Path, path: &Path) -> Result<(), String> {
    let problem = |error: io::Error| {
        let cure = "is it in a BPF file system (`mount -t bpf bpf /sys/fs/bpf`)?";
        format!("cannot pin the program in {}: {error}; {cure}", directory.display())
    };
    std::fs::create_dir_all(directory).map_err(problem)?;
    link.pin(path).map_err(problem)
}

fn pin_of(mode: xdp::Mode) -> &'static str {
    match mode {
        xdp::Mode::Native => "xdp-native",
        xdp::Mode::Generic => "xdp-generic",
    }
}

/// Its program is off the interface afterwards.
fn remove_link(path: &Path) -> Result<bool, String> {
    if let Ok(link) = Link::pinned(path) {
        // One whose interface is gone is off already.
        let _ = link.detach();
    }
    remove(path)
}

fn remove(path: &Path) -> Result<bool, String> {
    match std::fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(format!("cannot remove {}: {error}", path.display())),
    }
}

fn is_former(name: &str) -> bool {
    if name.starts_with("tcx-") {
        return Classifier::ALL.iter().all(|which| which.pin() != name);
    }
    let same = TABLES.iter().find(|(_, pin)| table_of(pin) == table_of(name));
    same.is_some_and(|(_, pin)| *pin != name)
}

/// What a pin is of, whatever its layout.
fn table_of(pin: &str) -> Option<&str> {
    Some(pin.rsplit_once('-')?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_other_versions_left_is_removed_and_nothing_else_is() {
        let directory = tempfile::tempdir().unwrap();
        let tables = ["fragments-1", "fragments-2", "half-redirects-9", "mine-1"];
        let programs = ["tcx-egress", "tcx-ingress", "xdp-native"];
        for name in tables.into_iter().chain(programs) {
            std::fs::write(directory.path().join(name), "").unwrap();
        }
        remove_former(directory.path()).unwrap();
        let left = std::fs::read_dir(directory.path()).unwrap();
        let mut left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["fragments-2", "mine-1", "tcx-ingress", "xdp-native"]);
        assert_eq!(remove_former(&directory.path().join("none")), Ok(()));
    }
}
