//! Dropout, with a mask that follows from a seed.

use smallvec::smallvec;

use crate::DType;
use crate::autograd::{Op, Saved, Slot, apply_one};
use crate::cpu::isa::vectorized;
use crate::cpu::map::BLOCK;
use crate::cpu::threads::{GRAIN, for_chunks};
use crate::cpu::threefry::threefry_13;
use crate::dtype::{Float, Real, fill_wide, widened, with_dtype};
use crate::error::{Result, ensure};
use crate::gpu::{ELEMENTS, Grid, Launch, Program, THREEFRY, kernel_sizes, params};
use crate::kernel::{CpuIo, GpuIo, Kernel, Results, run_one};
use crate::spec::Spec;
use crate::tensor::Tensor;

impl Tensor {
    /// Each element set to 0 with probability `p`, and else divided by `1 − p`; for training.
    ///
    /// Whether element `i`, counted row by row, is dropped follows from `seed` and `i` alone: the
    /// mask is the same on every device and in every type, and is not stored for backward. Use
    /// another seed for each layer and step.
    ///
    /// ```
    /// use taipan::{DType, Device, Tensor};
    ///
    /// let x = Tensor::ones(&[1000], DType::F32, &Device::Cpu)?;
    /// let y = x.dropout(0.2, 1)?;
    /// assert_eq!(y.max()?.item()?, 1.25);
    /// assert!((y.mean()?.item()? - 1.0).abs() < 0.05);
    /// # Ok::<(), taipan::Error>(())
    /// ```
    pub fn dropout(&self, p: f64, seed: u64) -> Result<Tensor> {
        ensure_probability(p)?;
        apply_one(Dropout { p, key: [seed as u32, (seed >> 32) as u32] }, &[self])
    }
}

pub(crate) fn ensure_probability(p: f64) -> Result<()> {
    ensure!("dropout", (0.0..1.0).contains(&p), "p is {p}, expected 0 ≤ p < 1");
    Ok(())
}

/// Of every 2·`HALF` elements, the first `HALF` take the first words of as many counters, and the
/// others their second words: then neither bits nor elements have to be reordered in vectors.
const HALF: usize = 64;

#[derive(Clone, Copy)]
struct Dropout {
    p: f64,
    key: [u32; 2],
}

impl Dropout {
    /// An element is kept if its random bits are not below this.
    fn threshold(self) -> u32 {
        (self.p * (1u64 << 32) as f64) as u32
    }
}

impl Op for Dropout {
    fn saves(&self, _: Slot, _: &[bool]) -> bool {
        false
    }

    /// The same mask and factor.
    fn backward(&self, _: &mut Saved, dys: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(run_one(self, &[&dys[0]])?)])
    }
}

impl Kernel for Dropout {
    fn name(&self) -> &'static str {
        "dropout"
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Results<Spec>> {
        inputs[0].dtype().ensure_float(self.name(), "the input")?;
        Ok(smallvec![inputs[0].clone()])
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        with_dtype!(inputs[0].spec.dtype(), T: Float => {
            let x = inputs[0].as_slice::<T>();
            let factor = <T as Float>::Acc::of(1.0 / (1.0 - self.p));
            for_chunks(outputs[0].as_mut_slice::<T>(), GRAIN, |start, chunk| {
                let [mut wide_x, mut wide_y] = [[<T as Float>::Acc::ZERO; BLOCK]; 2];
                for (i, y) in chunk.chunks_mut(BLOCK).enumerate() {
                    let at = start + i * BLOCK;
                    let x = widened(&x[at..at + y.len()], &mut wide_x[..y.len()]);
                    fill_wide(y, &mut wide_y, |y| drop_some(*self, at / 2, factor, x, y));
                }
            });
        });
        Ok(())
    }

    fn gpu(&self, GpuIo { op, gpu, inputs, outputs }: GpuIo) -> Result<()> {
        let dtype = outputs[0].spec.dtype();
        for window in gpu.windows(outputs[0].spec.len(), dtype.size()) {
            // Windows begin at multiples of 2·`HALF` elements.
            let [len, first_counter] = kernel_sizes(op, [window.len(), window.start / 2])?;
            let ([key0, key1], threshold) = (self.key, self.threshold());
            let factor = (1.0 / (1.0 - self.p)) as f32;
            gpu.launch(Launch {
                name: op,
                program: program(dtype),
                params: DropoutParams { len, key0, key1, first_counter, threshold, factor },
                inputs: &[inputs[0].all().window(window.clone(), dtype.size())],
                outputs: &[outputs[0].all().window(window.clone(), dtype.size())],
                grid: Grid::elements(window.len()),
            })?;
        }
        Ok(())
    }
}

vectorized! {
    /// `y = x·factor`, or 0 where dropped, for elements that begin at this counter.
    fn drop_some<I: Isa, A: Real>(op: Dropout, counter: usize, factor: A, x: &[A], y: &mut [A]) {
        let (x, x_rest) = x.as_chunks();
        let (y, y_rest) = y.as_chunks_mut();
        for (i, (x, y)) in x.iter().zip(y).enumerate() {
            drop_chunk(op, counter + i * HALF, factor, x, y);
        }
        if !x_rest.is_empty() {
            let [mut padded_x, mut padded_y] = [[A::ZERO; 2 * HALF]; 2];
            padded_x[..x_rest.len()].copy_from_slice(x_rest);
            drop_chunk(op, counter + x.len() * HALF, factor, &padded_x, &mut padded_y);
            y_rest.copy_from_slice(&padded_y[..x_rest.len()]);
        }
    }
}

#[inline(always)]
fn drop_chunk<A: Real>(
    op: Dropout,
    counter: usize,
    factor: A,
    x: &[A; 2 * HALF],
    y: &mut [A; 2 * HALF],
) {
    // `counter` is a multiple of `HALF`: its upper word is that of all.
    let (low, high, threshold) = (counter as u32, (counter as u64 >> 32) as u32, op.threshold());
    for i in 0..HALF {
        let words = threefry_13(op.key, [low.wrapping_add(i as u32), high]);
        y[i] = if words[0] >= threshold { x[i] * factor } else { A::ZERO };
        y[HALF + i] = if words[1] >= threshold { x[HALF + i] * factor } else { A::ZERO };
    }
}

params! {
    struct DropoutParams {
        len: u32, key0: u32, key1: u32, first_counter: u32, threshold: u32, factor: f32,
    }
}

fn program(elem: DType) -> Program {
    let source = [THREEFRY, wgsl!("dropout.wgsl"), ELEMENTS];
    Program::new::<DropoutParams>(&source, &[("Elem", elem)], &[("HALF", HALF as u32)])
}

/// Every program of this file.
#[cfg(test)]
pub(super) fn programs(elem: DType) -> Vec<Program> {
    vec![program(elem)]
}
