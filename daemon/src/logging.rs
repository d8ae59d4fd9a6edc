//! The log: lines on stderr, with syslog's priorities where that is the
//! journal, so that `journalctl -p warning` finds what it should.

use std::fmt;
use std::fs::File;
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Begins to log what `RUST_LOG` says; without it from `info` on.
pub fn start() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if is_journal() {
        // The journal has times and levels of its own.
        let plain = tracing_subscriber::fmt::format().without_time().with_level(false);
        log.event_format(WithPriority(plain.with_ansi(false))).init();
    } else {
        log.with_ansi(std::io::stderr().is_terminal()).init();
    }
}

/// What ends the program, for who started it.
pub fn fail(program: &str, error: &dyn fmt::Display) {
    let prefix = if is_journal() { "<3>" } else { "" };
    eprintln!("{prefix}{program}: {error}");
}

/// systemd names the device and inode of the journal's end (systemd.exec(5),
/// JOURNAL_STREAM).
fn is_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    let stderr = std::io::stderr().as_fd().try_clone_to_owned();
    let found = stderr.and_then(|stderr| File::from(stderr).metadata());
    found.is_ok_and(|found| stream == format!("{}:{}", found.dev(), found.ino()))
}

/// Puts `<6>` in front of each line.
struct WithPriority<F>(F);

impl<S, N, F> FormatEvent<S, N> for WithPriority<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        write!(writer, "<{}>", priority(*event.metadata().level()))?;
        self.0.format_event(context, writer, event)
    }
}

/// Of syslog(3).
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}
