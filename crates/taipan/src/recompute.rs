//! Trading time for memory: forward keeps the inputs of a part of the graph alone.

use crate::autograd::{backward_of, no_grad, record};
use crate::error::Result;
use crate::recording;
use crate::tensor::Tensor;

/// `f(inputs)`, of which only `inputs` are kept for backward: it runs `f` once more, then
/// differentiates it.
///
/// `f` must compute from what it is given alone: a tracked tensor that it captures gets no gradient.
/// It must compute the same when it runs again.
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
    let kept: Vec<Tensor> = inputs.iter().map(|input| input.detached()).collect();
    let needs: Vec<bool> = inputs.iter().map(|input| input.is_tracked()).collect();
    let mut results = no_grad(|| f(&kept))?;
    let rule = move |dys: &[Tensor]| {
        let leaf =
            |(tensor, needed): (Tensor, bool)| if needed { tensor.tracked() } else { tensor };
        let leaves: Vec<Tensor> = kept.into_iter().zip(needs).map(leaf).collect();
        let results = recording::set_for(true, || f(&leaves))?;
        let mut grads = backward_of(results.into_iter().zip(dys.iter().cloned()))?;
        Ok(leaves.iter().map(|leaf| grads.take(leaf)).collect())
    };
    record("recompute", inputs, &mut results, Box::new(rule));
    Ok(results)
}
