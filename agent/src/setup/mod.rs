//! `guideway-agent setup`: sets up a server from the output of `guideway config backend
//! NAME`, keeps the set-up across reboots, and undoes it.
//!
//! ```text
//!  printed ─► Script ─► settings remembered ─► written beside ─► run ─► put in place ─► unit enabled
//!                                                                 │ fails: taken back
//! ```
//!
//! Nothing changes before the new script and the previous settings are on disk. A script
//! that fails is undone, and the previous one, if there is one, runs again. Whether the
//! server has an agent is decided by the script.

mod places;
mod script;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::process::ExitCode;

use daemon::say;

use crate::doctor;
use places::Places;
use script::Script;

/// Sets up by a file (`-`: standard input).
#[must_use]
pub fn run(from: &Path, is_dry: bool, config: &Path) -> ExitCode {
    let places = Places::of_the_machine();
    let script = match read(from) {
        Ok(script) => script,
        Err(problem) => return failed(&problem),
    };
    if is_dry {
        return ended(show(&places, &script));
    }
    if let Err(problem) = set_up(&places, &script) {
        return failed(&problem);
    }
    say!("{} is set up; the script is {}", script.backend(), places.script.display());
    if let Err(problem) = places.start_at_boot() {
        return failed(&problem);
    }
    if script.has_agent() {
        let _ = doctor::run(config, crate::Format::Table); // it is set up, whatever else is wrong
    } else {
        doctor::print_firewall();
    }
    ExitCode::SUCCESS
}

/// Takes back what was set up.
#[must_use]
pub fn undo(is_dry: bool) -> ExitCode {
    ended(take_back(&Places::of_the_machine(), is_dry))
}

fn ended(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => failed(&problem),
    }
}

fn failed(problem: &str) -> ExitCode {
    eprintln!("guideway-agent setup: {problem}");
    ExitCode::FAILURE
}

fn read(from: &Path) -> Result<Script, String> {
    let (name, text) = if from == Path::new("-") {
        ("standard input".into(), read_text(io::stdin()))
    } else {
        (from.to_string_lossy(), File::open(from).and_then(read_text))
    };
    let text = text.map_err(|error| format!("{name}: {error}"))?;
    Script::parse(text).map_err(|problem| format!("{name} {problem}"))
}

/// No more than it takes to see that a script is too large.
fn read_text(source: impl Read) -> io::Result<String> {
    let mut text = String::new();
    source.take(script::BYTES_MAX as u64 + 1).read_to_string(&mut text)?;
    Ok(text)
}

/// What would be done, for people.
fn show(places: &Places, script: &Script) -> Result<(), String> {
    let former = places.installed()?;
    if former.as_ref() == Some(script) {
        say!("no change: {} is set up by the same script", script.backend());
        return Ok(());
    }
    say!("{} would be set up:", script.backend());
    for (name, value) in script.settings() {
        if let Some(now) = places.setting(name).filter(|now| now != value) {
            say!("  {name}: {now} to {value}");
        }
    }
    for command in script.commands() {
        say!("  {command}");
    }
    for command in former.iter().flat_map(|former| no_longer(former, script)) {
        say!("  {command}");
    }
    Ok(())
}

/// The commands that take back what the former script did, and the new one does not.
fn no_longer<'a>(former: &'a Script, new: &'a Script) -> impl Iterator<Item = &'a str> {
    former.taken_back().filter(|command| new.taken_back().all(|other| other != *command))
}

fn set_up(places: &Places, script: &Script) -> Result<(), String> {
    let former = places.installed()?;
    places.remember_settings(script)?;
    let new = places.write_new(script)?;
    if let Err(problem) = places.shell(&new, "setup") {
        match &former {
            Some(former) => {
                no_longer(script, former).for_each(|command| places.command(command));
                let again = places.shell(&places.script, "setup");
                again.map_err(|error| format!("{problem}and the former script fails: {error}"))?;
            }
            None if places.has_vip_of(script) => {
                places.remove(&new)?;
                return Err(format!(
                    "{problem}the server was set up otherwise before, so what it did stays: run it again"
                ));
            }
            None => {
                let _ = places.shell(&new, "undo"); // what was not done cannot be taken back
                places.restore_settings()?;
            }
        }
        places.remove(&new)?;
        return Err(format!("{problem}what it did is taken back"));
    }
    for command in former.iter().flat_map(|former| no_longer(former, script)) {
        places.command(command);
    }
    places.put_in_place(&new)
}

fn take_back(places: &Places, is_dry: bool) -> Result<(), String> {
    let Some(script) = places.installed()? else {
        say!("nothing is set up: there is no {}", places.script.display());
        return Ok(());
    };
    if is_dry {
        say!("{} would be taken back:", script.backend());
        script.taken_back().for_each(|command| say!("  {command}"));
        return Ok(());
    }
    places.start_no_more();
    places.shell(&places.script, "undo")?;
    places.restore_settings()?;
    places.remove(&places.script)?;
    say!("{} is taken back", script.backend());
    Ok(())
}
