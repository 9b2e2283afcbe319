//! `loss.svg`: the curves of the loss.

use super::metrics::Row;
use super::plot::{Horizontal, Plot};
use crate::svg::{Axis, Point};

pub const FILE: &str = "loss.svg";

/// A curve has at most this many points: one for each pixel or so.
const POINTS: usize = 800;

/// The training loss, raw and smoothed, and the loss on held-out text, by step.
pub fn svg(rows: &[Row], title: &str) -> String {
    let point = |row: &Row, loss: f64| (row.step as f64, loss);
    let raw: Vec<Point> =
        rows.iter().filter_map(|row| Some(point(row, row.training.as_ref()?.loss))).collect();
    let val: Vec<Point> =
        rows.iter().filter_map(|row| Some(point(row, row.held_out?.val_loss))).collect();
    let last = raw.iter().chain(&val).map(|(step, _)| *step).fold(1.0, f64::max);
    let losses: Vec<f64> = raw.iter().chain(&val).map(|(_, loss)| *loss).collect();
    let x = Horizontal { axis: Axis::exact(0.0, last), name: "step", label: Axis::label };
    let mut plot = Plot::new(title, x, &losses);
    plot.line("raw", &thinned(&raw));
    plot.line("train", &thinned(&smoothed(&raw)));
    plot.line("val", &thinned(&val));
    if val.len() <= 40 {
        plot.dots("val", &val);
    }
    plot.legend("train", "training", 200.0);
    plot.legend("val", "held-out", 96.0);
    plot.finish()
}

/// The mean over a twentieth of the points around each, so that the curve does not lag; over fewer
/// at the ends, as many on either side.
pub fn smoothed(points: &[Point]) -> Vec<Point> {
    let reach = points.len() / 40;
    let mut sums = vec![0.0];
    for (_, y) in points {
        sums.push(sums[sums.len() - 1] + y);
    }
    let smooth = |(i, (x, _)): (usize, &Point)| {
        let reach = reach.min(i).min(points.len() - 1 - i);
        let (first, end) = (i - reach, i + reach + 1);
        (*x, (sums[end] - sums[first]) / (end - first) as f64)
    };
    points.iter().enumerate().map(smooth).collect()
}

/// At most [`POINTS`] of them, with the last.
fn thinned(points: &[Point]) -> Vec<Point> {
    let every = points.len().div_ceil(POINTS).max(1);
    points.iter().rev().step_by(every).rev().copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smoothing_keeps_a_constant_and_thinning_keeps_the_end() {
        let points: Vec<Point> = (0..5000).map(|x| (x as f64, 2.5)).collect();
        let smooth = thinned(&smoothed(&points));
        assert!(smooth.len() <= POINTS && smooth.last().unwrap().0 == 4999.0);
        assert!(smooth.iter().all(|(_, y)| (y - 2.5).abs() < 1e-12));
    }

    #[test]
    fn a_smoothed_curve_does_not_lag() {
        let falling: Vec<Point> = (0..1000).map(|x| (x as f64, 9.0 - x as f64 / 200.0)).collect();
        for ((_, y), (_, smooth)) in falling.iter().zip(smoothed(&falling)) {
            assert!((y - smooth).abs() < 1e-9, "{y} {smooth}");
        }
        let noisy: Vec<Point> = (0..1000).map(|x| (x as f64, (x % 2) as f64)).collect();
        let middle = &smoothed(&noisy)[100..900];
        assert!(middle.iter().all(|(_, y)| (y - 0.5).abs() < 0.02), "{middle:?}");
    }

    #[test]
    fn names_cannot_break_the_page() {
        let page = svg(&[], "a < b & c");
        assert!(page.contains("<title>a &lt; b &amp; c</title>"), "{page}");
    }
}
