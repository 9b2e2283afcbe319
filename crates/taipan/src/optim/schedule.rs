//! Learning rates.

/// The learning rate of every step: a linear warm-up, then a curve.
///
/// ```
/// use taipan::optim::{Curve, Schedule};
///
/// let schedule = Schedule { peak: 1.0, min: 0.1, warmup: 3, total: 13, curve: Curve::Cosine };
/// assert_eq!(schedule.lr(0), 0.25);
/// assert_eq!(schedule.lr(3), 1.0);
/// assert!((schedule.lr(8) - 0.55).abs() < 1e-12);
/// assert_eq!(schedule.lr(13), 0.1);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// The highest rate, reached at step `warmup`.
    pub peak: f64,
    /// The rate from step `total` on; unused by a constant curve.
    pub min: f64,
    /// Steps of the warm-up: step `i` has `(i + 1)/(warmup + 1)` of the peak.
    pub warmup: u64,
    /// The number of training steps; unused by a constant curve.
    pub total: u64,
    /// The curve after the warm-up.
    pub curve: Curve,
}

/// The learning rate after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Curve {
    /// It stays at its peak.
    Constant,
    /// It decays to `min` along half a cosine.
    Cosine,
    /// It stays at its peak, and decays linearly to `min` in the last steps.
    StableDecay {
        /// The number of these steps.
        decay: u64,
    },
}

impl Schedule {
    /// The rate of a step; the first one is 0.
    pub fn lr(&self, step: u64) -> f64 {
        let Schedule { peak, min, warmup, total, curve } = *self;
        if curve != Curve::Constant && step >= total {
            return min;
        }
        if step < warmup {
            return peak * (step + 1) as f64 / (warmup + 1) as f64;
        }
        let high = match curve {
            Curve::Constant => 1.0,
            Curve::Cosine => {
                let done = (step - warmup) as f64 / (total - warmup) as f64;
                // The same bits on every platform.
                0.5 * (1.0 + libm::cos(std::f64::consts::PI * done))
            }
            // After a warm-up that overlaps the decay, the rest of the decay follows.
            Curve::StableDecay { decay } if total - step < decay => {
                (total - step) as f64 / decay as f64
            }
            Curve::StableDecay { .. } => 1.0,
        };
        min + (peak - min) * high
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(curve: Curve) -> Vec<f64> {
        let schedule = Schedule { peak: 8.0, min: 2.0, warmup: 3, total: 9, curve };
        (0..11).map(|step| schedule.lr(step)).collect()
    }

    #[test]
    fn every_curve_follows_a_linear_warm_up() {
        assert_eq!(rates(Curve::Constant), [2.0, 4.0, 6.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0]);
        let stable = rates(Curve::StableDecay { decay: 3 });
        assert_eq!(stable, [2.0, 4.0, 6.0, 8.0, 8.0, 8.0, 8.0, 6.0, 4.0, 2.0, 2.0]);
        let cosine = rates(Curve::Cosine);
        assert_eq!(cosine[..4], [2.0, 4.0, 6.0, 8.0]);
        for (i, want) in [(5, 6.5), (6, 5.0), (7, 3.5), (9, 2.0), (10, 2.0)] {
            assert!((cosine[i] - want).abs() < 1e-12, "step {i}: {}", cosine[i]);
        }
    }

    #[test]
    fn a_training_shorter_than_its_warm_up() {
        for curve in [Curve::Constant, Curve::Cosine, Curve::StableDecay { decay: 9 }] {
            let schedule = Schedule { peak: 1.0, min: 0.5, warmup: 9, total: 4, curve };
            assert_eq!(schedule.lr(3), 0.4);
        }
    }
}
