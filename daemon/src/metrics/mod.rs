//! Metrics in Prometheus' text format, written at each scrape from plain numbers.
//!
//! A program lists its metrics once (`define_metrics!`); the page that it serves and
//! docs/counters.md are made from that list. There is no registry of values: each number
//! belongs to the code that counts it, and gets its name only at a scrape.

pub mod http;
mod shared;

use std::fmt::{Display, Write};

pub use shared::SharedPage;

/// What kind of number a metric is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only grows; its name ends in `_total`.
    Counter,
    /// Goes up and down.
    Gauge,
    /// How many were at most so large, for several sizes; their sum and their number.
    Histogram,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

/// A metric as its program's list defines it.
#[derive(Debug)]
pub struct Definition {
    /// As Prometheus knows it.
    pub name: &'static str,
    /// Of its samples.
    pub kind: Kind,
    /// Names of its samples' labels.
    pub labels: &'static [&'static str],
    /// A sentence for people.
    pub help: &'static str,
}

/// A definition with that number of labels: a sample has as many values, or does not compile.
#[derive(Debug)]
pub struct Labelled<const LABELS: usize>(pub Definition);

/// Defines a program's metrics: a constant for each, and `ALL` of them, in that order.
///
/// ```
/// daemon::define_metrics! {
///     DROPPED "guideway_drop_packets_total" Counter ["reason"] "Dropped frames by reason."
/// }
/// assert_eq!(ALL[0].name, DROPPED.0.name);
/// ```
#[macro_export]
macro_rules! define_metrics {
    ($($constant:ident $name:literal $kind:ident [$($label:literal),*] $help:literal)*) => {
        $(
            #[doc = $help]
            pub const $constant: $crate::metrics::Labelled<{ <[&str]>::len(&[$($label),*]) }> =
                $crate::metrics::Labelled($crate::metrics::Definition {
                    name: $name,
                    kind: $crate::metrics::Kind::$kind,
                    labels: &[$($label),*],
                    help: $help,
                });
        )*
        /// All metrics of this program.
        pub const ALL: &[&$crate::metrics::Definition] = &[$(&$constant.0),*];
    };
}

/// The rows of a program's table in docs/counters.md.
#[must_use]
pub fn table(metrics: &[&Definition]) -> String {
    let mut table = "| metric | kind | meaning |\n|---|---|---|\n".to_owned();
    for Definition { name, kind, labels, help } in metrics {
        let labels =
            if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(table, "| `{name}{labels}` | {} | {help} |", kind.name());
    }
    table
}

/// A page of metrics in the making.
#[derive(Debug, Default)]
pub struct Page {
    text: String,
}

impl Page {
    /// Begins a metric; its samples follow.
    pub fn metric<'p, const LABELS: usize>(
        &'p mut self,
        metric: &'static Labelled<LABELS>,
    ) -> Metric<'p, LABELS> {
        let Definition { name, kind, help, .. } = &metric.0;
        debug_assert_eq!(*kind == Kind::Counter, name.ends_with("_total"), "{name}");
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {}", kind.name());
        Metric { page: self, metric }
    }

    /// The whole page.
    #[must_use]
    pub fn into_text(self) -> String {
        self.text
    }
}

/// One metric and its samples.
#[derive(Debug)]
pub struct Metric<'p, const LABELS: usize> {
    page: &'p mut Page,
    metric: &'static Labelled<LABELS>,
}

impl Metric<'_, 0> {
    /// The sample of a metric without labels.
    pub fn value(mut self, value: impl Display) {
        self.sample(&[], value);
    }
}

impl<const LABELS: usize> Metric<'_, LABELS> {
    /// A sample, with the values of the metric's labels in their order.
    pub fn sample(&mut self, values: &[&str; LABELS], value: impl Display) {
        self.line("", values, None, value);
    }

    /// The samples of a histogram: how many are in each bucket alone, with where it ends; the
    /// last bucket has no end.
    pub fn buckets(
        &mut self,
        values: &[&str; LABELS],
        buckets: impl IntoIterator<Item = (Option<f64>, u64)>,
        sum: f64,
    ) {
        let mut count = 0;
        for (end, inside) in buckets {
            count += inside;
            let end = end.map_or("+Inf".to_owned(), |end| end.to_string());
            self.line("_bucket", values, Some(&end), count);
        }
        self.line("_sum", values, None, sum);
        self.line("_count", values, None, count);
    }

    fn line(
        &mut self,
        suffix: &str,
        values: &[&str; LABELS],
        end: Option<&str>,
        value: impl Display,
    ) {
        let Definition { name, labels, .. } = &self.metric.0;
        let text = &mut self.page.text;
        text.push_str(name);
        text.push_str(suffix);
        let labels = labels.iter().copied().zip(values.iter().copied());
        let mut closing = "";
        for (position, (label, content)) in labels.chain(end.map(|end| ("le", end))).enumerate() {
            let _ = write!(text, "{}{label}=\"", if position == 0 { '{' } else { ',' });
            escape(text, content);
            text.push('"');
            closing = "}";
        }
        let _ = writeln!(text, "{closing} {value}");
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

    define_metrics! {
        UP "guideway_forwarder_up" Gauge [] "Forwarding."
        DROPS "guideway_drop_packets_total" Counter ["reason", "x"] "Drops."
        WAITED "guideway_waited_seconds" Histogram ["x"] "Waiting."
    }

    #[test]
    fn samples_carry_escaped_labels() {
        let mut page = Page::default();
        page.metric(&UP).value(1);
        page.metric(&DROPS).sample(&["a\"b\\c\nd", "y"], 7u64);
        assert_eq!(
            page.into_text(),
            "# HELP guideway_forwarder_up Forwarding.\n# TYPE guideway_forwarder_up gauge\n\
             guideway_forwarder_up 1\n\
             # HELP guideway_drop_packets_total Drops.\n# TYPE guideway_drop_packets_total counter\n\
             guideway_drop_packets_total{reason=\"a\\\"b\\\\c\\nd\",x=\"y\"} 7\n"
        );
    }

    #[test]
    fn buckets_are_written_as_sums_up_to_their_ends() {
        let mut page = Page::default();
        page.metric(&WAITED).buckets(&["a"], [(Some(0.5), 2), (Some(1.0), 0), (None, 1)], 3.5);
        assert!(page.into_text().ends_with(
            "# TYPE guideway_waited_seconds histogram\n\
             guideway_waited_seconds_bucket{x=\"a\",le=\"0.5\"} 2\n\
             guideway_waited_seconds_bucket{x=\"a\",le=\"1\"} 2\n\
             guideway_waited_seconds_bucket{x=\"a\",le=\"+Inf\"} 3\n\
             guideway_waited_seconds_sum{x=\"a\"} 3.5\n\
             guideway_waited_seconds_count{x=\"a\"} 3\n"
        ));
    }

    #[test]
    fn the_table_has_a_row_for_each_definition() {
        assert_eq!(
            table(ALL),
            "| metric | kind | meaning |\n|---|---|---|\n\
             | `guideway_forwarder_up` | gauge | Forwarding. |\n\
             | `guideway_drop_packets_total{reason,x}` | counter | Drops. |\n\
             | `guideway_waited_seconds{x}` | histogram | Waiting. |\n"
        );
    }
}
