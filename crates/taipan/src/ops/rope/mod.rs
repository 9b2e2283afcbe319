//! Rotary position embedding: pairs of channels, turned by angles that grow with the position.

use std::f64::consts::TAU;

use smallvec::smallvec;

use crate::DType;
use crate::autograd::{Op, Saved, Slot, apply_one};
use crate::cpu::isa::vectorized;
use crate::cpu::threads::{GRAIN, for_chunks};
use crate::dtype::{Float, Real, fill_wide, widened, with_dtype};
use crate::error::{Error, Result, ensure};
use crate::gpu::{ELEMENTS, Grid, MATH, Program, kernel_sizes, params};
use crate::kernel::{CpuIo, GpuIo, Kernel, Results, run_one};
use crate::ops::rotate::Angles;
use crate::spec::Spec;
use crate::tensor::Tensor;

const OP: &str = "rope";

/// 2⁶⁴/2π
const INVERSE_TAU: u128 = 0x28be_60db_9391_054a;

params! { struct RopeParams { len: u32, steps: u32, heads: u32, pairs: u32, position: u32 } }

/// Rotary position embedding of queries or keys, `[b, l, h, d]`: channels `j` and `j + d/2` of step
/// `t` are turned by the angle `(position + t)·base^(−2j/d)`.
///
/// Products of queries and keys then depend on differences of positions only, so packed sequences
/// need no restart. `position` is that of the first step: the number of those in a cache.
///
/// Angles are reduced to a turn in integers of 64 bits: in f32 they are as accurate at position 10⁶
/// as at 1. Nothing is saved for backward.
///
/// ```
/// use taipan::{Device, Tensor, rope};
///
/// let x = Tensor::new(&[1f64, 0.0, 0.0, 2.0], &[1, 2, 1, 2], &Device::Cpu)?;
/// let y = rope(&x, 10000.0, 0)?.read_blocking::<f64>()?;
/// let (sin, cos) = 1f64.sin_cos();
/// let expected = [1.0, 0.0, -2.0 * sin, 2.0 * cos];
/// assert!(y.iter().zip(expected).all(|(y, expected)| (y - expected).abs() < 1e-14));
/// # Ok::<(), taipan::Error>(())
/// ```
pub fn rope(x: &Tensor, base: f64, position: usize) -> Result<Tensor> {
    let op = Rope { base, position, direction: Direction::Forward };
    op.check(&x.spec)?;
    apply_one(op, &[x, &op.turns(x)?])
}

#[derive(Clone, Copy, PartialEq)]
enum Direction {
    Forward,
    /// By the negative angles.
    Back,
}

/// Inputs `x` and its [`Rope::turns`].
#[derive(Clone, Copy)]
struct Rope {
    base: f64,
    position: usize,
    direction: Direction,
}

impl Rope {
    fn check(&self, x: &Spec) -> Result<()> {
        let (shape, base) = (x.shape(), self.base);
        x.dtype().ensure_float(OP, "the input")?;
        let &[_, l, _, d] = shape else {
            let why = format!("the input is {shape:?}, expected [b, l, h, d]");
            return Err(Error::Shape { op: OP, why });
        };
        ensure!(OP, d % 2 == 0, "the input is {shape:?}, expected an even number of channels");
        ensure!(OP, base >= 1.0 && base.is_finite(), "base is {base}, expected 1 or more");
        let end = (self.position as u64).saturating_add(l as u64);
        ensure!(OP, end <= u32::MAX.into(), "position {end}, expected less than 2³²");
        Ok(())
    }

    /// `[d/2, 2]`: by how much of a turn a pair turns with each position, times 2⁶⁴, as the upper
    /// and the lower 32 bits.
    fn turns(&self, x: &Tensor) -> Result<Tensor> {
        let d = x.shape()[3];
        let bits = (0..d / 2).flat_map(|j| {
            let angle = self.base.powf(-2.0 * j as f64 / d as f64) * 2f64.powi(63);
            let turn = ((angle as u128 * INVERSE_TAU) >> 63) as u64;
            let turn = match self.direction {
                Direction::Forward => turn,
                Direction::Back => turn.wrapping_neg(),
            };
            [(turn >> 32) as u32, turn as u32]
        });
        Tensor::new(&bits.collect::<Vec<u32>>(), &[d / 2, 2], x.device())
    }
}

impl Op for Rope {
    fn saves(&self, _: Slot, _: &[bool]) -> bool {
        false
    }

    /// `dx` is `dy` turned back.
    fn backward(&self, _: &mut Saved, dys: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let back = Rope { direction: Direction::Back, ..*self };
        Ok(vec![Some(run_one(&back, &[&dys[0], &back.turns(&dys[0])?])?), None])
    }
}

impl Kernel for Rope {
    fn name(&self) -> &'static str {
        OP
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Results<Spec>> {
        Ok(smallvec![inputs[0].clone()])
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        let [_, l, h, d] = *inputs[0].spec.shape().as_array().expect("checked");
        let turns: Vec<u64> = inputs[1]
            .as_slice::<u32>()
            .chunks(2)
            .map(|bits| (bits[0] as u64) << 32 | bits[1] as u64)
            .collect();
        let row = h * d;
        if row == 0 {
            return Ok(());
        }
        with_dtype!(inputs[0].spec.dtype(), T: Float => {
            let x = inputs[0].as_slice::<T>();
            let steps = GRAIN.div_ceil(row);
            for_chunks(outputs[0].as_mut_slice::<T>(), steps * row, |start, y| {
                let [mut wide, mut out] = [(); 2].map(|()| vec![<T as Float>::Acc::ZERO; row]);
                let mut angles = Angles::new(d / 2);
                for (i, y) in y.chunks_mut(row).enumerate() {
                    let at = start + i * row;
                    set_angles(&mut angles, &turns, (self.position + at / row % l) as u64);
                    let x = widened(&x[at..at + row], &mut wide);
                    fill_wide(y, &mut out, |y| turn(x, &angles, y));
                }
            });
        });
        Ok(())
    }

    fn gpu(&self, io: GpuIo) -> Result<()> {
        let [_, l, h, d] = *io.inputs[0].spec.shape().as_array().expect("checked");
        let pairs = io.outputs[0].spec.len() / 2;
        let [len, steps, heads, per_head, position] =
            kernel_sizes(OP, [pairs, l, h, d / 2, self.position])?;
        let params = RopeParams { len, steps, heads, pairs: per_head, position };
        io.launch(program(io.outputs[0].spec.dtype()), params, Grid::elements(pairs))
    }
}

/// The angles of the pairs at a position.
fn set_angles<A: Real>(angles: &mut Angles<A>, turns: &[u64], position: u64) {
    for (angle, turn) in angles.sin.iter_mut().zip(turns) {
        // Whole turns overflow; what is left is between −½ and ½.
        let turn = position.wrapping_mul(*turn) as i64;
        *angle = A::of(turn as f64 * (TAU / 2f64.powi(64)));
    }
    cos_sin(&mut angles.sin, &mut angles.cos);
}

vectorized! {
    /// `cos` and `sin` of the angles in `sin`.
    fn cos_sin<I: Isa, A: Real>(sin: &mut [A], cos: &mut [A]) {
        for (sin, cos) in sin.iter_mut().zip(cos) {
            let angle = *sin;
            *cos = angle.cos::<I>();
            *sin = angle.sin::<I>();
        }
    }

    /// The heads of a step.
    fn turn<I: Isa, A: Real>(x: &[A], angles: &Angles<A>, y: &mut [A]) {
        let half = angles.cos.len();
        let (cos, sin) = (&angles.cos[..half], &angles.sin[..half]);
        for (x, y) in x.chunks_exact(2 * half).zip(y.chunks_exact_mut(2 * half)) {
            let (x0, x1) = x.split_at(half);
            let (y0, y1) = y.split_at_mut(half);
            for j in 0..half {
                y0[j] = x0[j] * cos[j] - x1[j] * sin[j];
                y1[j] = x1[j] * cos[j] + x0[j] * sin[j];
            }
        }
    }
}

fn program(elem: DType) -> Program {
    let source = [MATH, wgsl!("rope.wgsl"), ELEMENTS];
    Program::new::<RopeParams>(&source, &[("Elem", elem)], &[])
}

/// Every program of this file.
#[cfg(test)]
pub(super) fn programs(elem: DType) -> Vec<Program> {
    vec![program(elem)]
}
