//! A curve in one line of text.

const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The values as blocks from the min to the max, at most `width` of them: neighbours share
/// one, by their mean.
pub fn sparkline(values: &[f64], width: usize) -> String {
    let columns = width.min(values.len());
    let mean = |column| {
        let shared =
            &values[column * values.len() / columns..(column + 1) * values.len() / columns];
        shared.iter().sum::<f64>() / shared.len() as f64
    };
    let means: Vec<f64> = (0..columns).map(mean).collect();
    let (min, max) = range(&means);
    let level = |value: &f64| {
        let height = (value - min) / (max - min).max(f64::MIN_POSITIVE);
        LEVELS[(height * 7.0).round() as usize]
    };
    means.iter().map(level).collect()
}

/// The min and the max.
pub fn range(values: &[f64]) -> (f64, f64) {
    let min = values.iter().copied().fold(f64::INFINITY, f64::min);
    (min, values.iter().copied().fold(f64::NEG_INFINITY, f64::max))
}

#[cfg(test)]
mod tests {
    use super::sparkline;

    #[test]
    fn a_falling_loss_falls() {
        assert_eq!(sparkline(&[7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.0], 80), "█▇▆▅▄▃▂▁");
        assert_eq!(sparkline(&[8.0, 6.0, 5.0, 3.0, 0.0], 2), "█▁", "means of 2 and 3");
        assert_eq!(sparkline(&[1.0, 1.0], 80), "▁▁");
        assert_eq!(sparkline(&[], 80), "");
    }
}
