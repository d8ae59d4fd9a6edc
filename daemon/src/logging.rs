//! The log: lines on stderr in the format of Go's log/slog, as text or JSON, so that all
//! programs of a machine log alike. If stderr is the journal, lines have syslog's priorities,
//! for `journalctl -p warning`.

use std::fmt::{self, Write};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// How lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// `time=... level=INFO msg="..." key=value`
    #[default]
    Text,
    /// The same as an object.
    Json,
}

impl Format {
    /// Of `--log-format`.
    ///
    /// # Errors
    /// Which formats there are.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err("give one of text, json".to_string()),
        }
    }
}

/// Begins to log what `RUST_LOG` says; without it from `info` on.
pub fn start(format: Format) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let lines = Lines { format, to_journal: is_journal() };
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    log.event_format(lines).init();
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

/// One line for each event. The journal has times of its own, and takes `<6>` in front
/// of a line for its priority.
struct Lines {
    format: Format,
    to_journal: bool,
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let level = *event.metadata().level();
        let mut values = Values::default();
        if self.to_journal {
            write!(writer, "<{}>", priority(level))?;
        } else {
            let mut now = String::new();
            SystemTime.format_time(&mut Writer::new(&mut now))?;
            values.0.push(("time", Value::Text(now)));
        }
        values.0.push(("level", Value::Text(name(level).to_string())));
        event.record(&mut values);
        writeln!(writer, "{}", values.line(self.format))
    }
}

/// As log/slog names it.
fn name(level: Level) -> &'static str {
    match level {
        Level::ERROR => "ERROR",
        Level::WARN => "WARN",
        Level::INFO => "INFO",
        Level::DEBUG | Level::TRACE => "DEBUG",
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

/// What an event says, in its order.
#[derive(Default)]
struct Values(Vec<(&'static str, Value)>);

enum Value {
    Text(String),
    /// A number or a bool, the same in text and JSON.
    Plain(String),
}

impl Values {
    fn line(&self, format: Format) -> String {
        let mut line = String::new();
        for (i, (key, value)) in self.0.iter().enumerate() {
            let between = if i == 0 { "" } else { separator(format) };
            let _ = match (format, value) {
                (Format::Text, Value::Plain(text)) => write!(line, "{between}{key}={text}"),
                (Format::Text, Value::Text(text)) => {
                    write!(line, "{between}{key}={}", quoted_if_needed(text))
                }
                (Format::Json, Value::Plain(text)) => write!(line, "{between}\"{key}\":{text}"),
                (Format::Json, Value::Text(text)) => {
                    write!(line, "{between}\"{key}\":{}", serde_json::Value::from(text.as_str()))
                }
            };
        }
        match format {
            Format::Text => line,
            Format::Json => format!("{{{line}}}"),
        }
    }
}

fn separator(format: Format) -> &'static str {
    match format {
        Format::Text => " ",
        Format::Json => ",",
    }
}

/// What stands in quotes already, as `{:?}` writes a string, stays so.
fn quoted_if_needed(text: &str) -> String {
    let is_quoted = text.len() > 1 && text.starts_with('"') && text.ends_with('"');
    let is_plain = |c: char| c.is_ascii_graphic() && c != '"' && c != '=';
    if is_quoted && !text.contains(char::is_control)
        || !text.is_empty() && text.chars().all(is_plain)
    {
        return text.to_string();
    }
    format!("{text:?}")
}

impl Visit for Values {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.push(field, Value::Text(format!("{value:?}")));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.push(field, Value::Text(value.to_string()));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.push(field, Value::Plain(value.to_string()));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.push(field, Value::Plain(value.to_string()));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.push(field, Value::Plain(value.to_string()));
    }
}

impl Values {
    fn push(&mut self, field: &Field, value: Value) {
        match field.name() {
            "message" => {
                let after_level = self.0.iter().position(|(key, _)| *key == "level");
                self.0.insert(after_level.map_or(0, |at| at + 1), ("msg", value));
            }
            name if name.starts_with("log.") => {} // of the crate `log`: where it comes from
            name => self.0.push((name, value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_as_log_slog_writes_it() {
        let text = |text: &str| Value::Text(text.to_string());
        let line = Values(vec![
            ("level", text("WARN")),
            ("msg", text("a \"plan\" is\nrefused")),
            ("interface", text("\"eth1\"")),
            ("reason", text("a=b")),
            ("driver", text("af_xdp")),
            ("nothing", text("")),
            ("queues", Value::Plain("4".to_string())),
        ]);
        assert_eq!(
            line.line(Format::Text),
            r#"level=WARN msg="a \"plan\" is\nrefused" interface="eth1" reason="a=b" driver=af_xdp nothing="" queues=4"#
        );
        assert_eq!(
            line.line(Format::Json),
            r#"{"level":"WARN","msg":"a \"plan\" is\nrefused","interface":"\"eth1\"","reason":"a=b","driver":"af_xdp","nothing":"","queues":4}"#
        );
    }

    #[test]
    fn a_line_is_one_whatever_it_says() {
        for text in ["\n<3>forged", "\u{1b}[2J", "\"a\nb\"", "\u{2028}"] {
            let line = Values(vec![("msg", Value::Text(text.to_string()))]);
            for format in [Format::Text, Format::Json] {
                let line = line.line(format);
                assert!(!line.contains(['\n', '\u{1b}']), "{line:?}");
            }
        }
    }

    #[test]
    fn formats_are_named() {
        assert_eq!(Format::parse("json"), Ok(Format::Json));
        assert_eq!(Format::parse("text"), Ok(Format::Text));
        assert!(Format::parse("xml").is_err());
    }
}
