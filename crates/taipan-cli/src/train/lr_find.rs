//! `--lr-find`: a sweep of learning rates, with a picture of the losses.

use std::ops::ControlFlow;
use std::path::PathBuf;

use taipan::Device;
use taipan_lm::Trainer;

use super::curve::smoothed;
use super::plot::{Horizontal, Plot};
use super::progress::Progress;
use super::report;
use super::settings::Settings;
use super::sparkline::range;
use super::start::{Existing, Start, begin, discard, missing_directories};
use crate::job::Place;
use crate::svg::{Axis, Point};
use crate::{Failure, stop};

/// The sweep goes from one power of ten to the other, with so many steps for each.
const FROM: f64 = -6.0;
const TO: f64 = 0.0;
const STEPS: u32 = 20;

/// Sweep learning rates with the model, the text and the recipe of a run, of which nothing remains;
/// print a suggestion, and draw a picture beside the directory of the run. Whether a signal stopped
/// it.
pub fn find(settings: &Settings, device: &Device) -> Result<ControlFlow<()>, Failure> {
    let made = missing_directories(&settings.out);
    let start = begin(settings, device, Existing::Refuse, Place::ALONE)?;
    let mut progress = Progress::new();
    progress.print(&format!("{}\n", report::summary(settings, &start)));
    let Start { mut trainer, lock, .. } = start;
    stop::begin();
    let found = sweep(&mut trainer, &mut progress).and_then(|points| {
        if stop::requested() {
            return Ok(None);
        }
        draw(settings, &points).map(Some)
    });
    stop::end();
    drop(trainer);
    discard(&settings.out, lock, &made);
    match found? {
        None => Ok(ControlFlow::Break(())),
        Some(text) => {
            progress.print(&report::sentence(&text));
            Ok(ControlFlow::Continue(()))
        }
    }
}

/// Draw the picture; returns what to say about it.
fn draw(settings: &Settings, points: &[Point]) -> Result<String, Failure> {
    let lr = suggestion(points).ok_or("--lr-find: the loss falls at no learning rate")?;
    let path = picture_path(settings);
    let picture = svg(points, lr, &format!("loss by learning rate; suggested: {lr:.0e}"));
    taipan_lm::write_file(&path, picture.as_bytes())?;
    let (path, used) = (path.display(), settings.lr);
    Ok(format!(
        "suggested: --lr {lr:.0e} (this run would use {used:.1e}); the losses are in {path}"
    ))
}

/// Beside the directory of the run, which remains free for the run.
fn picture_path(settings: &Settings) -> PathBuf {
    let mut path = settings.out.clone().into_os_string();
    path.push("-lr.svg");
    path.into()
}

/// The logarithm of the learning rate, and the loss, of each step, until the loss has risen by a
/// quarter of its lowest value, or a signal.
fn sweep(trainer: &mut Trainer, progress: &mut Progress) -> Result<Vec<Point>, Failure> {
    let steps = ((TO - FROM) * f64::from(STEPS)) as u32;
    let (mut points, mut smooth, mut lowest) = (Vec::new(), None, f64::INFINITY);
    for step in 0..=steps {
        let exponent = FROM + f64::from(step) / f64::from(STEPS);
        let loss = pollster::block_on(trainer.step_at(10f64.powf(exponent)))?.loss;
        let mean = smooth.map_or(loss, |before: f64| 0.8 * before + 0.2 * loss);
        lowest = lowest.min(mean);
        if !loss.is_finite() || mean > 1.25 * lowest || stop::requested() {
            break;
        }
        smooth = Some(mean);
        points.push((exponent, loss));
        progress.note(&format!("learning rate {:.1e}  loss {loss:.3}", 10f64.powf(exponent)));
    }
    Ok(points)
}

/// A tenth of the rate with the lowest loss, smoothed: there it is about to diverge. Rounded to one
/// digit; none if the loss does not fall.
fn suggestion(points: &[Point]) -> Option<f64> {
    let smooth = smoothed(points);
    let lowest = smooth.iter().min_by(|a, b| a.1.total_cmp(&b.1))?;
    let falls = lowest.1 < 0.98 * smooth.first()?.1;
    let lr = 10f64.powf(lowest.0 - 1.0);
    falls.then(|| format!("{lr:.0e}").parse().expect("a number, as it was printed"))
}

/// The losses, smoothed and not, with a mark at the suggestion.
fn svg(points: &[Point], lr: f64, title: &str) -> String {
    let losses: Vec<f64> = points.iter().map(|(_, loss)| *loss).collect();
    let axis = Axis::exact(FROM, points.last().map_or(TO, |(exponent, _)| *exponent));
    let label = |_: &Axis, exponent: f64| format!("{:.0e}", 10f64.powf(exponent));
    let mut plot = Plot::new(title, Horizontal { axis, name: "learning rate", label }, &losses);
    plot.line("raw", points);
    plot.line("train", &smoothed(points));
    let (min, max) = range(&losses);
    plot.line("val", &[(lr.log10(), min), (lr.log10(), max)]);
    plot.legend("val", "suggested", 96.0);
    plot.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A loss that falls from `1e-4` on and rises from `lowest` on.
    fn losses(lowest: f64) -> Vec<Point> {
        let loss = |x: f64| 5.0 - (x + 4.0).max(0.0) + 2.0 * (x - lowest).max(0.0);
        (0..=120).map(|i| FROM + f64::from(i) / 20.0).map(|x| (x, loss(x))).collect()
    }

    #[test]
    fn a_tenth_of_the_rate_with_the_lowest_loss_is_suggested() {
        assert_eq!(suggestion(&losses(-2.0)), Some(1e-3));
        assert_eq!(suggestion(&losses(-1.5)), Some(3e-3));
        assert_eq!(suggestion(&losses(-6.0)), None);
        assert_eq!(suggestion(&[]), None);
    }
}
