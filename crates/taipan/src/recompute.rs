//! Activation checkpointing: only the inputs of a section of the graph are saved for backward.

use crate::autograd::{Exchange, add_node, backward_of};
use crate::error::Result;
use crate::grad_mode::{self, GradMode};
use crate::tensor::Tensor;

/// `f(inputs)` with activation checkpointing: only `inputs` are saved for backward, which runs `f`
/// again and then differentiates it.
///
/// `f` must depend on its arguments only: a tracked tensor that it captures gets no gradient. It
/// must compute the same values each time.
///
/// ```
/// use taipan::{DType, Device, Tensor, recompute};
///
/// let x = Tensor::randn(&[100], 1, DType::F32, &Device::Cpu)?.tracked();
/// let y = recompute(&[&x], |inputs| Ok(vec![inputs[0].exp()?.sqrt()?.mul(&inputs[0])?]))?;
/// let direct = x.exp()?.sqrt()?.mul(&x)?;
/// let (a, b) = (y[0].sum()?.backward()?, direct.sum()?.backward()?);
/// assert_eq!(a.of(&x)?.read_blocking::<f32>()?, b.of(&x)?.read_blocking::<f32>()?);
/// # Ok::<(), taipan::Error>(())
/// ```
pub fn recompute<F>(inputs: &[&Tensor], f: F) -> Result<Vec<Tensor>>
where
    F: Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + 'static,
{
    let saved: Vec<Tensor> = inputs.iter().map(|input| input.detached()).collect();
    let needs: Vec<bool> = inputs.iter().map(|input| input.is_tracked()).collect();
    let mode = match grad_mode::current() {
        GradMode::Disabled => GradMode::Disabled,
        GradMode::Enabled | GradMode::Recomputed => GradMode::Recomputed,
    };
    let mut results = grad_mode::with(mode, || f(&saved))?;
    let backward = move |dys: &[Tensor], _: &mut Exchange| {
        let leaf =
            |(tensor, needed): (Tensor, bool)| if needed { tensor.tracked() } else { tensor };
        let leaves: Vec<Tensor> = saved.into_iter().zip(needs).map(leaf).collect();
        let results = grad_mode::with(GradMode::Enabled, || f(&leaves))?;
        let mut grads = backward_of(results.into_iter().zip(dys.iter().cloned()))?;
        Ok(leaves.iter().map(|leaf| grads.take(leaf)).collect())
    };
    add_node("recompute", inputs, &mut results, backward);
    Ok(results)
}
