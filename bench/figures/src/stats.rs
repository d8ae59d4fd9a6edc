//! Summaries of many numbers.

/// The middle and the ends of several numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Range {
    /// Half are below.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Range {
    /// # Panics
    /// If there are no numbers.
    #[must_use]
    pub fn of(numbers: &[f64]) -> Range {
        assert!(!numbers.is_empty(), "a range of nothing");
        let mut sorted = numbers.to_vec();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len() - 1;
        Range {
            median: (sorted[last / 2] + sorted[last.div_ceil(2)]) / 2.0,
            min: sorted[0],
            max: sorted[last],
        }
    }

    /// `median (min - max)` with `decimals` decimals.
    #[must_use]
    pub fn show(&self, decimals: usize) -> String {
        let Range { median, min, max } = self;
        format!("{median:.decimals$} ({min:.decimals$} - {max:.decimals$})")
    }
}

/// Mean, standard deviation (of the whole population) and maximum.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// The average.
    pub mean: f64,
    /// The standard deviation.
    pub deviation: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// Of at least one count.
    #[must_use]
    pub fn of(counts: &[u32]) -> Spread {
        let n = counts.len() as f64;
        // Sums of integers are exact, whatever the order.
        let sum: u64 = counts.iter().map(|count| u64::from(*count)).sum();
        let mean = sum as f64 / n;
        let variance =
            counts.iter().map(|count| (f64::from(*count) - mean).powi(2)).sum::<f64>() / n;
        let max = counts.iter().max().map_or(0.0, |max| f64::from(*max));
        Spread { mean, deviation: variance.sqrt(), max }
    }

    /// Deviation over mean, per cent.
    #[must_use]
    pub fn variation_percent(&self) -> f64 {
        self.deviation / self.mean * 100.0
    }

    /// The paper's overprovision factor: maximum over mean.
    #[must_use]
    pub fn overprovision(&self) -> f64 {
        self.max / self.mean
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_and_even_many() {
        assert_eq!(Range::of(&[3.0, 1.0, 2.0]), Range { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(Range::of(&[4.0, 1.0, 2.0, 3.0]).median, 2.5);
        assert_eq!(Range::of(&[1.0, 2.0]).show(1), "1.5 (1.0 - 2.0)");
    }

    #[test]
    fn spread_of_four_counts() {
        let spread = Spread::of(&[1, 3, 1, 3]);
        assert_eq!((spread.mean, spread.deviation, spread.max), (2.0, 1.0, 3.0));
        assert_eq!((spread.variation_percent(), spread.overprovision()), (50.0, 1.5));
    }
}
