//! The Prometheus text format, written at scrape from plain numbers.
//!
//! No registry: the numbers live in the workers, and a scrape is the only
//! moment at which they are needed by name.

use std::fmt::{Display, Write};

/// What kind of number a metric is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only grows; its name ends in `_total`.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// A page of metrics in the making.
#[derive(Debug, Default)]
pub struct Page {
    text: String,
}

impl Page {
    /// Begins a metric; its samples follow.
    pub fn metric<'p>(&'p mut self, name: &'static str, kind: Kind, help: &str) -> Metric<'p> {
        debug_assert_eq!(kind == Kind::Counter, name.ends_with("_total"), "{name}");
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        Metric { page: self, name }
    }

    /// The whole page.
    #[must_use]
    pub fn into_text(self) -> String {
        self.text
    }
}

/// One metric and its samples.
#[derive(Debug)]
pub struct Metric<'p> {
    page: &'p mut Page,
    name: &'static str,
}

impl Metric<'_> {
    /// A sample without labels.
    pub fn value(self, value: impl Display) {
        let _ = writeln!(self.page.text, "{} {value}", self.name);
    }

    /// A sample with labels.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        let text = &mut self.page.text;
        text.push_str(self.name);
        for (position, (label, content)) in labels.iter().enumerate() {
            let _ = write!(text, "{}{label}=\"", if position == 0 { '{' } else { ',' });
            escape(text, content);
            text.push('"');
        }
        let _ = writeln!(text, "}} {value}");
    }
}

/// Backslash, quote and line feed are the three that the format escapes.
fn escape(text: &mut String, content: &str) {
    for character in content.chars() {
        match character {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            other => text.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_carry_escaped_labels() {
        let mut page = Page::default();
        page.metric("guideway_forwarder_up", Kind::Gauge, "Forwarding.").value(1);
        let mut drops = page.metric("guideway_drop_packets_total", Kind::Counter, "Drops.");
        drops.sample(&[("reason", "a\"b\\c\nd"), ("x", "y")], 7u64);
        assert_eq!(
            page.into_text(),
            "# HELP guideway_forwarder_up Forwarding.\n# TYPE guideway_forwarder_up gauge\n\
             guideway_forwarder_up 1\n\
             # HELP guideway_drop_packets_total Drops.\n# TYPE guideway_drop_packets_total counter\n\
             guideway_drop_packets_total{reason=\"a\\\"b\\\\c\\nd\",x=\"y\"} 7\n"
        );
    }
}
