//! Stochastic gradient descent with momentum.

use super::optimizer::sealed;
use super::update::Rule;
use super::{LossScale, Optimizer, Options};
use crate::error::{Result, ensure};

/// SGD with momentum, as PyTorch's: the weight decay is added to the gradient, and
/// [`Group::without_decay`](super::Group::without_decay) is PyTorch's default. See [`Optimizer`]
/// for its methods.
///
/// ```text
/// g = g + weight_decay·θ      m = momentum·m + g
/// θ = θ − lr·m                or, with Nesterov momentum, θ − lr·(g + momentum·m)
/// ```
///
/// ```
/// use taipan::optim::{Group, Sgd, SgdOptions};
/// use taipan::{Device, Tensor};
///
/// let mut w = Tensor::new(&[1f32, -2.0], &[2], &Device::Cpu)?.tracked();
/// let mut sgd = Sgd::new(SgdOptions::default(), &[(&w, Group::without_decay())])?;
/// let grads = w.mul(&w)?.sum()?.backward()?;
/// sgd.step(0.25, &mut [&mut w], &grads)?;
/// assert_eq!(w.read_blocking::<f32>()?, [0.5, -1.0]);
/// # Ok::<(), taipan::Error>(())
/// ```
pub type Sgd = Optimizer<SgdOptions>;

/// The options that all parameters share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SgdOptions {
    /// The share of the last step's direction that is kept; 0.9.
    pub momentum: f64,
    /// The form of the momentum; Polyak's.
    pub kind: Momentum,
    /// Gradients are clipped to this norm over all parameters; no clipping by default.
    pub max_norm: Option<f64>,
    /// The loss is multiplied by it before backward; no scaling by default.
    pub loss_scale: LossScale,
}

/// Forms of momentum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Momentum {
    /// A step follows the moment.
    #[default]
    Polyak,
    /// A step looks ahead: it follows the gradient and `momentum` times the moment.
    Nesterov,
}

impl Default for SgdOptions {
    fn default() -> Self {
        SgdOptions {
            momentum: 0.9,
            kind: Momentum::Polyak,
            max_norm: None,
            loss_scale: LossScale::None,
        }
    }
}

impl Options for SgdOptions {}

impl sealed::Options for SgdOptions {
    const OP: &'static str = "sgd";
    const MOMENTS: &'static [&'static str] = &["m"];

    fn check(&self) -> Result<()> {
        let momentum = self.momentum;
        let fits = (0.0..1.0).contains(&momentum);
        ensure!(Self::OP, fits, "momentum is {momentum}, expected at least 0 and less than 1");
        Ok(())
    }

    fn rule(&self) -> Rule {
        let momentum = self.momentum;
        match self.kind {
            Momentum::Polyak => Rule::Sgd { momentum, of_moment: 1.0, of_grad: 0.0 },
            Momentum::Nesterov => Rule::Sgd { momentum, of_moment: momentum, of_grad: 1.0 },
        }
    }

    fn max_norm(&self) -> Option<f64> {
        self.max_norm
    }

    fn loss_scale(&self) -> LossScale {
        self.loss_scale
    }
}
