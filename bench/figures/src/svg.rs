//! Plots as SVG: lines over a common x axis, or one bar from minimum to
//! maximum per category. Numbers are written with fixed decimals, so that the
//! same figures give the same bytes.

use std::fmt::Write;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 48.0;
const BOTTOM: f64 = 84.0;
/// Distinguishable also without colour vision (Okabe and Ito 2008).
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];

/// What stands around a plot.
#[derive(Debug, Clone)]
pub struct Frame<'a> {
    /// Above.
    pub title: &'a str,
    /// Below.
    pub x: &'a str,
    /// To the left.
    pub y: &'a str,
}

/// A line, or points if `dots`.
#[derive(Debug, Clone)]
pub struct Series {
    /// In the legend.
    pub name: String,
    /// (x, y), in order of x.
    pub points: Vec<(f64, f64)>,
}

/// A bar from `low` to `high`, or from 0.
#[derive(Debug, Clone)]
pub struct Bar {
    /// Below it.
    pub label: String,
    /// Bars of one group have one colour and one line in the legend.
    pub group: String,
    /// Its lower end.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
}

/// A plot of lines.
#[must_use]
pub fn lines(frame: &Frame<'_>, series: &[Series]) -> String {
    let points = || series.iter().flat_map(|series| &series.points);
    let (x_min, x_max) = ends(points().map(|point| point.0));
    let (_, y_max) = ends(points().map(|point| point.1));
    let (x, y) = (
        Scale::new(x_min, x_max, LEFT, WIDTH - RIGHT),
        Scale::new(0.0, y_max, HEIGHT - BOTTOM, TOP),
    );
    let mut canvas = Canvas::new(frame);
    canvas.y_axis(&y);
    canvas.x_axis(&x);
    for (series, colour) in series.iter().zip(COLOURS.iter().cycle()) {
        let path: Vec<String> = series
            .points
            .iter()
            .map(|point| format!("{:.1},{:.1}", x.at(point.0), y.at(point.1)))
            .collect();
        let path = path.join(" ");
        canvas.add(&format!(
            r#"<polyline fill="none" stroke="{colour}" stroke-width="2" points="{path}"/>"#
        ));
    }
    canvas.legend(series.iter().map(|series| series.name.as_str()));
    canvas.finish()
}

/// A plot of bars, in their order.
#[must_use]
pub fn bars(frame: &Frame<'_>, bars: &[Bar]) -> String {
    let (_, y_max) = ends(bars.iter().map(|bar| bar.high));
    let y = Scale::new(0.0, y_max, HEIGHT - BOTTOM, TOP);
    let mut groups: Vec<&str> = bars.iter().map(|bar| bar.group.as_str()).collect();
    groups.dedup();
    let mut canvas = Canvas::new(frame);
    canvas.y_axis(&y);
    let step = (WIDTH - LEFT - RIGHT) / bars.len() as f64;
    for (index, bar) in bars.iter().enumerate() {
        let left = LEFT + step * (index as f64 + 0.2);
        let (top, bottom) = (y.at(bar.high), y.at(bar.low));
        let group = groups.iter().position(|group| *group == bar.group).unwrap_or(0);
        let colour = COLOURS[group % COLOURS.len()];
        // A range of nothing still has to be seen.
        let height = (bottom - top).max(2.0);
        let width = step * 0.6;
        canvas.add(&format!(
            r#"<rect x="{left:.1}" y="{top:.1}" width="{width:.1}" height="{height:.1}" fill="{colour}"/>"#
        ));
        canvas.text(left + width / 2.0, HEIGHT - BOTTOM + 16.0, "middle", &bar.label);
    }
    canvas.legend(groups.into_iter());
    canvas.finish()
}

fn ends(numbers: impl Iterator<Item = f64>) -> (f64, f64) {
    numbers.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), number| {
        (low.min(number), high.max(number))
    })
}

/// From numbers to places on the page.
struct Scale {
    from: f64,
    to: f64,
    start: f64,
    end: f64,
    step: f64,
}

impl Scale {
    /// A scale that ends at a round number above `max`.
    fn new(min: f64, max: f64, start: f64, end: f64) -> Scale {
        let span = if max > min { max - min } else { 1.0 };
        let rough = span / 6.0;
        let power = 10f64.powi(rough.log10().floor() as i32);
        let step =
            [1.0, 2.0, 5.0, 10.0].map(|unit| unit * power).into_iter().find(|step| *step >= rough);
        let step = step.unwrap_or(10.0 * power);
        let from = (min / step).floor() * step;
        Scale { from, to: from + ((min + span - from) / step).ceil() * step, start, end, step }
    }

    fn at(&self, number: f64) -> f64 {
        self.start + (number - self.from) / (self.to - self.from) * (self.end - self.start)
    }

    fn ticks(&self) -> impl Iterator<Item = (f64, String)> {
        let decimals = (-self.step.log10().floor()).max(0.0) as usize;
        let count = ((self.to - self.from) / self.step).round() as u32;
        (0..=count).map(move |tick| {
            let number = self.from + f64::from(tick) * self.step;
            (self.at(number), format!("{number:.decimals$}"))
        })
    }
}

struct Canvas(String);

impl Canvas {
    fn new(frame: &Frame<'_>) -> Canvas {
        let mut canvas = Canvas(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
        ));
        canvas.text(WIDTH / 2.0, 20.0, "middle", frame.title);
        canvas.text((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - BOTTOM + 38.0, "middle", frame.x);
        let (x, y) = (18.0, (TOP + HEIGHT - BOTTOM) / 2.0);
        let label = escape(frame.y);
        canvas.add(&format!(
            r#"<text x="{x}" y="{y}" text-anchor="middle" transform="rotate(-90 {x} {y})">{label}</text>"#
        ));
        canvas
    }

    fn add(&mut self, element: &str) {
        self.0.push_str(element);
        self.0.push('\n');
    }

    fn text(&mut self, x: f64, y: f64, anchor: &str, text: &str) {
        let text = escape(text);
        self.add(&format!(r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{text}</text>"#));
    }

    fn y_axis(&mut self, scale: &Scale) {
        for (y, label) in scale.ticks() {
            let right = WIDTH - RIGHT;
            self.add(&format!(
                r##"<line x1="{LEFT}" x2="{right}" y1="{y:.1}" y2="{y:.1}" stroke="#ddd"/>"##
            ));
            self.text(LEFT - 6.0, y + 4.0, "end", &label);
        }
    }

    fn x_axis(&mut self, scale: &Scale) {
        for (x, label) in scale.ticks() {
            self.text(x, HEIGHT - BOTTOM + 16.0, "middle", &label);
        }
    }

    fn legend<'n>(&mut self, names: impl Iterator<Item = &'n str>) {
        let mut x = LEFT;
        for (name, colour) in names.zip(COLOURS.iter().cycle()) {
            let y = HEIGHT - 22.0;
            let top = y - 10.0;
            self.add(&format!(
                r#"<rect x="{x:.1}" y="{top:.1}" width="12" height="12" fill="{colour}"/>"#
            ));
            self.text(x + 18.0, y, "start", name);
            x += 34.0 + 6.6 * name.chars().count() as f64;
        }
    }

    fn finish(mut self) -> String {
        let _ = writeln!(self.0, "</svg>");
        self.0
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_end_at_round_numbers_and_hold_all_points() {
        let scale = Scale::new(0.0, 1.37, 0.0, 100.0);
        let labels: Vec<String> = scale.ticks().map(|tick| tick.1).collect();
        assert_eq!(labels, ["0.0", "0.5", "1.0", "1.5"]);
        assert_eq!(scale.at(1.5), 100.0);
        assert!(Scale::new(0.1, 5.0, 0.0, 1.0).at(5.0) <= 1.0);
    }

    #[test]
    fn a_plot_has_each_series_and_its_name_escaped() {
        let series = [("a<b", 1.0), ("c", 2.0)]
            .map(|(name, y)| Series { name: name.into(), points: vec![(0.0, y), (1.0, 0.0)] });
        let svg = lines(&Frame { title: "t", x: "x", y: "y" }, &series);
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert!(svg.contains("a&lt;b") && svg.ends_with("</svg>\n"));
    }

    #[test]
    fn a_bar_of_no_height_is_still_seen() {
        let bar = Bar { label: "M".into(), group: "small".into(), low: 0.1, high: 0.1 };
        assert!(bars(&Frame { title: "t", x: "x", y: "y" }, &[bar]).contains("height=\"2.0\""));
    }
}
