//! Less of what was there before.

use crate::dtype::{DType, Element, with_dtype};
use crate::error::{Result, ensure};
use crate::gpu::{ELEMENTS, Grid, Launch, Program, kernel_sizes, params};
use crate::kernel::{CpuIo, GpuIo, update};
use crate::tensor::Tensor;

const OP: &str = "repetition_penalty";

impl Tensor {
    /// Logits in which the given tokens are less likely: those above 0 are divided by `penalty`,
    /// those below multiplied (Keskar et al. 2019). Below 1 it makes them likelier.
    ///
    /// | tensor | shape | type |
    /// |---|---|---|
    /// | `self` | `[…, n]` | a float |
    /// | `tokens` | `[…, m]`, the tokens of each row | `u32` |
    /// | result | `[…, n]` | that of `self` |
    ///
    /// A token that is not below `n` is no token: it pads a row with fewer tokens than others. One
    /// that comes twice counts once. There is no gradient.
    ///
    /// ```
    /// use taipan::{Device, Tensor};
    ///
    /// let logits = Tensor::new(&[3f32, -1.0, 2.0], &[1, 3], &Device::Cpu)?;
    /// let tokens = Tensor::new(&[0u32, 1, 0, u32::MAX], &[1, 4], &Device::Cpu)?;
    /// let penalized = logits.repetition_penalty(&tokens, 1.5)?;
    /// assert_eq!(penalized.read_blocking::<f32>()?, [2.0, -1.5, 2.0]);
    /// # Ok::<(), taipan::Error>(())
    /// ```
    pub fn repetition_penalty(&self, tokens: &Tensor, penalty: f64) -> Result<Tensor> {
        self.dtype().ensure_float(OP, "the input")?;
        tokens.dtype().ensure(DType::U32, OP, "the tensor of tokens")?;
        let (x, found) = (self.shape(), tokens.shape());
        let fits = !x.is_empty() && x.len() == found.len() && found.starts_with(&x[..x.len() - 1]);
        ensure!(
            OP,
            fits,
            "the input is {x:?} and tokens are {found:?}, expected […, n] and […, m]"
        );
        let [n, m] = [x, found].map(|shape| shape[shape.len() - 1]);
        ensure!(
            OP,
            penalty.is_finite() && penalty > 0.0,
            "the penalty is {penalty}, expected a finite number above 0"
        );
        let mut y = self.detached();
        if tokens.len() == 0 || y.len() == 0 {
            return Ok(y);
        }
        let cpu = |CpuIo { inputs, outputs }: CpuIo| {
            let tokens = inputs[1].as_slice::<u32>();
            with_dtype!(inputs[0].spec.dtype(), T: Float => {
                let x = inputs[0].as_slice::<T>().chunks(n);
                let y = outputs[0].as_mut_slice::<T>().chunks_mut(n);
                for ((x, y), tokens) in x.zip(y).zip(tokens.chunks(m)) {
                    for &token in tokens.iter().filter(|token| (**token as usize) < n) {
                        let x = x[token as usize].to_f64();
                        let penalized = if x > 0.0 { x / penalty } else { x * penalty };
                        y[token as usize] = T::of_f64(penalized);
                    }
                }
            });
            Ok(())
        };
        let gpu = |io: GpuIo| {
            let [len, n, m] = kernel_sizes(io.op, [tokens.len(), n, m])?;
            let (penalty, inverse) = (penalty as f32, (1.0 / penalty) as f32);
            io.gpu.launch(Launch {
                name: io.op,
                program: program(io.outputs[0].spec.dtype()),
                params: RepetitionParams { len, n, m, penalty, inverse },
                inputs: &[io.inputs[0].all(), io.inputs[1].all()],
                outputs: &[io.outputs[0].all()],
                grid: Grid::elements(tokens.len()),
            })
        };
        update((OP, ""), &[self, tokens], &mut [&mut y], cpu, gpu)?;
        Ok(y)
    }
}

params! { struct RepetitionParams { len: u32, n: u32, m: u32, penalty: f32, inverse: f32 } }

fn program(elem: DType) -> Program {
    let source = [wgsl!("repetition.wgsl"), ELEMENTS];
    Program::new::<RepetitionParams>(&source, &[("Elem", elem)], &[])
}

/// Every program of this file.
#[cfg(test)]
pub(super) fn programs(elem: DType) -> Vec<Program> {
    vec![program(elem)]
}
