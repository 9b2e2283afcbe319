//! Pairs of channels turned by angles that are data, as the states of Mamba-3 are.

use std::f64::consts::TAU;

use smallvec::smallvec;

use crate::DType;
use crate::autograd::{Op, Saved, Slot, apply_one};
use crate::cpu::isa::vectorized;
use crate::cpu::threads::{GRAIN, for_tasks};
use crate::dtype::{Float, Real, fill_wide, widened, with_dtype};
use crate::error::{Result, ensure};
use crate::gpu::{ELEMENTS, Grid, MATH, Program, kernel_sizes, params};
use crate::kernel::{CpuIo, GpuIo, Kernel, Results, compute};
use crate::spec::Spec;
use crate::tensor::Tensor;

const OP: &str = "rotate";

/// Which channels are pairs: see [`rotate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairs {
    /// `2i` and `2i + 1`
    Adjacent,
    /// `i` and `i + n/2`, of an even number `n` of channels.
    Halves,
}

/// Pairs of channels turned by angles: `(ξ, ζ)` to `(ξ·cos − ζ·sin, ξ·sin + ζ·cos)`.
///
/// | tensor | shape | type |
/// |---|---|---|
/// | `x` | `[b, l, h, n]` or `[b, l, r, h, n]` | any float type |
/// | `turns` | `[b, l, h, s]` | f32; f64 if `x` is |
/// | result | that of `x` | that of `x` |
///
/// Pair `i` of each of the `r` ranks is turned by `turns[…, i]`, in whole turns of 2π: `¼` is a right
/// angle. The first `s` pairs are turned, and the other channels stay. The result and `turns` are
/// saved for backward.
///
/// ```
/// use taipan::{Device, Pairs, Tensor, rotate};
///
/// let x = Tensor::new(&[1f64, 0.0, 0.0, 2.0], &[1, 1, 1, 4], &Device::Cpu)?;
/// let turns = Tensor::new(&[0.25], &[1, 1, 1, 1], &Device::Cpu)?;
/// let y = rotate(&x, &turns, Pairs::Adjacent)?.read_blocking::<f64>()?;
/// assert!(y.iter().zip([0.0, 1.0, 0.0, 2.0]).all(|(y, expected)| (y - expected).abs() < 1e-15));
/// # Ok::<(), taipan::Error>(())
/// ```
pub fn rotate(x: &Tensor, turns: &Tensor, pairs: Pairs) -> Result<Tensor> {
    apply_one(Rotate { pairs }, &[x, turns])
}

/// Inputs `x` and `turns`.
#[derive(Clone, Copy)]
struct Rotate {
    pairs: Pairs,
}

/// The sizes of a rotation.
#[derive(Clone, Copy)]
struct Sizes {
    steps: usize,
    r: usize,
    h: usize,
    n: usize,
    s: usize,
}

impl Sizes {
    /// From the specs of `x` and `turns`.
    fn of(x: &Spec, turns: &Spec) -> Sizes {
        let (shape, s) = (x.shape(), turns.shape()[3]);
        let [h, n] = *shape.last_chunk().expect("checked");
        let r = if shape.len() == 5 { shape[2] } else { 1 };
        Sizes { steps: shape[0] * shape[1], r, h, n, s }
    }

    /// Elements of `x` of a step.
    fn step(self) -> usize {
        self.r * self.h * self.n
    }

    /// Steps of a task.
    fn steps_per_task(self) -> usize {
        GRAIN.div_ceil(self.step().max(1))
    }
}

impl Op for Rotate {
    fn saves(&self, slot: Slot, _: &[bool]) -> bool {
        matches!(slot, Slot::Input(1) | Slot::Output(0))
    }

    /// `dx` is `dy` turned back; with `(ξ, ζ)` a pair of `y` and `(dξ, dζ)` its gradient,
    /// `dturns = 2π·Σ_r (ξ·dζ − ζ·dξ)`.
    fn backward(&self, saved: &mut Saved, dys: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let inputs = [&dys[0], saved.input(1), saved.output(0)];
        let specs = saved.specs[..].into();
        let cpu = |io: CpuIo| {
            with_dtype!(io.inputs[0].spec.dtype(), T: Float => self.cpu_backward::<T>(io));
            Ok(())
        };
        let gpu = |io: GpuIo| self.launch(io, Direction::Back);
        let grads = compute((OP, "backward"), &inputs, specs, cpu, gpu)?;
        Ok(grads.into_iter().map(Some).collect())
    }
}

impl Kernel for Rotate {
    fn name(&self) -> &'static str {
        OP
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Results<Spec>> {
        let (x, turns) = (inputs[0].shape(), inputs[1].shape());
        inputs[0].dtype().ensure_float(OP, "x")?;
        inputs[1].dtype().ensure(inputs[0].dtype().wider(), OP, "turns")?;
        let form = matches!(x.len(), 4 | 5);
        ensure!(OP, form, "x is {x:?}, expected [b, l, h, n] or [b, l, r, h, n]");
        let [h, n] = *x.last_chunk().expect("four dimensions");
        let fits = turns.len() == 4 && turns[..3] == [x[0], x[1], h] && 2 * turns[3] <= n;
        let expected = [x[0], x[1], h, n / 2];
        ensure!(OP, fits, "turns is {turns:?}, expected {expected:?}, or fewer pairs");
        let even = self.pairs == Pairs::Adjacent || n.is_multiple_of(2);
        ensure!(OP, even, "x is {x:?}, expected an even number of channels");
        Ok(smallvec![inputs[0].clone()])
    }

    fn cpu(&self, io: CpuIo) -> Result<()> {
        with_dtype!(io.inputs[0].spec.dtype(), T: Float => self.cpu_forward::<T>(io));
        Ok(())
    }

    fn gpu(&self, io: GpuIo) -> Result<()> {
        self.launch(io, Direction::Forward)
    }
}

impl Rotate {
    fn cpu_forward<T: Float>(&self, CpuIo { inputs, outputs }: CpuIo) {
        let sizes = Sizes::of(inputs[0].spec, inputs[1].spec);
        let Sizes { h, n, s, .. } = sizes;
        let (x, turns) = (inputs[0].as_slice::<T>(), inputs[1].as_slice::<T::Acc>());
        let block = sizes.steps_per_task();
        let y = outputs[0].as_mut_slice::<T>().chunks_mut((block * sizes.step()).max(1));
        for_tasks(y.enumerate(), x.len(), |(i, y)| {
            let [mut wide, mut out] = [(); 2].map(|()| vec![T::Acc::ZERO; n]);
            let mut angles = Angles::new(s);
            for (j, y) in y.chunks_mut(sizes.step()).enumerate() {
                let step = i * block + j;
                for head in 0..h {
                    angles.set(&turns[(step * h + head) * s..][..s]);
                    for (rank, y) in y.chunks_mut(h * n).enumerate() {
                        let at = (step * sizes.r + rank) * h * n + head * n;
                        let x = widened(&x[at..at + n], &mut wide);
                        let y = &mut y[head * n..][..n];
                        fill_wide(y, &mut out, |y| self.turn(x, &angles, y));
                    }
                }
            }
        });
    }

    /// Inputs `dy`, `turns` and `y`; results `dx` and `dturns`.
    fn cpu_backward<T: Float>(&self, CpuIo { inputs, outputs }: CpuIo) {
        let sizes = Sizes::of(inputs[0].spec, inputs[1].spec);
        let Sizes { h, n, s, .. } = sizes;
        let (dy, y) = (inputs[0].as_slice::<T>(), inputs[2].as_slice::<T>());
        let turns = inputs[1].as_slice::<T::Acc>();
        let [dx, dturns] = outputs else { unreachable!("two gradients") };
        let block = sizes.steps_per_task();
        let dx = dx.as_mut_slice::<T>().chunks_mut((block * sizes.step()).max(1));
        let dturns = dturns.as_mut_slice::<T::Acc>();
        dturns.fill(T::Acc::ZERO);
        let mut dturns = dturns.chunks_mut((block * h * s).max(1));
        let tasks = dx.enumerate().map(|(i, dx)| (i, dx, dturns.next().unwrap_or_default()));
        for_tasks(tasks, dy.len(), |(i, dx, dturns)| {
            let [mut wide, mut wide_y, mut out] = [(); 3].map(|()| vec![T::Acc::ZERO; n]);
            let mut angles = Angles::new(s);
            for (j, dx) in dx.chunks_mut(sizes.step()).enumerate() {
                let step = i * block + j;
                for head in 0..h {
                    angles.set(&turns[(step * h + head) * s..][..s]);
                    angles.reverse();
                    for (rank, dx) in dx.chunks_mut(h * n).enumerate() {
                        let at = (step * sizes.r + rank) * h * n + head * n;
                        let dy = widened(&dy[at..at + n], &mut wide);
                        let y = widened(&y[at..at + n], &mut wide_y);
                        let dturns = &mut dturns[(j * h + head) * s..][..s];
                        self.add_turn_gradients(y, dy, dturns);
                        let dx = &mut dx[head * n..][..n];
                        fill_wide(dx, &mut out, |dx| self.turn(dy, &angles, dx));
                    }
                }
            }
        });
    }

    fn turn<A: Real>(&self, x: &[A], angles: &Angles<A>, y: &mut [A]) {
        y.copy_from_slice(x);
        match self.pairs {
            Pairs::Adjacent => turn_adjacent(x, angles, y),
            Pairs::Halves => turn_halves(x, angles, y),
        }
    }

    fn add_turn_gradients<A: Real>(&self, y: &[A], dy: &[A], dturns: &mut [A]) {
        match self.pairs {
            Pairs::Adjacent => add_adjacent(y, dy, dturns),
            Pairs::Halves => add_halves(y, dy, dturns),
        }
    }

    fn launch(&self, io: GpuIo, direction: Direction) -> Result<()> {
        let Sizes { steps, r, h, n, s } = Sizes::of(io.inputs[0].spec, io.inputs[1].spec);
        // A pair, or a channel that stays, of all ranks.
        let len = steps * h * (n - s);
        let [len, ranks, heads, channels, pairs] = kernel_sizes(OP, [len, r, h, n, s])?;
        let params = RotateParams { len, ranks, heads, channels, pairs };
        let program = program(io.inputs[0].spec.dtype(), self.pairs, direction);
        let work = io.inputs[0].spec.len() as u64;
        io.launch(program, params, Grid { work, ..Grid::elements(len as usize) })
    }
}

/// Forward, or backward: by the negative angles, and with the gradient of `turns`.
#[derive(Clone, Copy, PartialEq)]
enum Direction {
    Forward,
    Back,
}

/// The angles of the pairs of a head.
pub(super) struct Angles<A> {
    pub(super) cos: Vec<A>,
    pub(super) sin: Vec<A>,
}

impl<A: Real> Angles<A> {
    pub(super) fn new(pairs: usize) -> Angles<A> {
        let [cos, sin] = [(); 2].map(|()| vec![A::ZERO; pairs]);
        Angles { cos, sin }
    }

    fn set(&mut self, turns: &[A]) {
        cos_sin(turns, &mut self.cos, &mut self.sin);
    }

    fn reverse(&mut self) {
        self.sin.iter_mut().for_each(|sin| *sin = -*sin);
    }
}

/// `(ξ·cos − ζ·sin, ξ·sin + ζ·cos)`
#[inline(always)]
fn turned<A: Real>([a, b]: [A; 2], cos: A, sin: A) -> [A; 2] {
    [a * cos - b * sin, a * sin + b * cos]
}

vectorized! {
    fn cos_sin<I: Isa, A: Real>(turns: &[A], cos: &mut [A], sin: &mut [A]) {
        for ((turn, cos), sin) in turns.iter().zip(cos).zip(sin) {
            let angle = A::of(TAU) * (*turn - turn.round());
            *cos = angle.cos::<I>();
            *sin = angle.sin::<I>();
        }
    }

    fn turn_adjacent<I: Isa, A: Real>(x: &[A], angles: &Angles<A>, y: &mut [A]) {
        let angles = angles.cos.iter().zip(&angles.sin);
        let pairs = x.chunks_exact(2).zip(y.chunks_exact_mut(2));
        for ((x, y), (cos, sin)) in pairs.zip(angles) {
            [y[0], y[1]] = turned([x[0], x[1]], *cos, *sin);
        }
    }

    fn turn_halves<I: Isa, A: Real>(x: &[A], angles: &Angles<A>, y: &mut [A]) {
        let s = angles.cos.len();
        let (cos, sin) = (&angles.cos[..s], &angles.sin[..s]);
        let (a, b) = x.split_at(x.len() / 2);
        let (to_a, to_b) = y.split_at_mut(x.len() / 2);
        let (a, b, to_a, to_b) = (&a[..s], &b[..s], &mut to_a[..s], &mut to_b[..s]);
        for i in 0..s {
            [to_a[i], to_b[i]] = turned([a[i], b[i]], cos[i], sin[i]);
        }
    }

    fn add_adjacent<I: Isa, A: Real>(y: &[A], dy: &[A], dturns: &mut [A]) {
        let pairs = y.chunks_exact(2).zip(dy.chunks_exact(2));
        for ((y, dy), dturn) in pairs.zip(dturns) {
            *dturn += A::of(TAU) * (y[0] * dy[1] - y[1] * dy[0]);
        }
    }

    fn add_halves<I: Isa, A: Real>(y: &[A], dy: &[A], dturns: &mut [A]) {
        let (a, b) = y.split_at(y.len() / 2);
        let (da, db) = dy.split_at(y.len() / 2);
        for (i, dturn) in dturns.iter_mut().enumerate() {
            *dturn += A::of(TAU) * (a[i] * db[i] - b[i] * da[i]);
        }
    }
}

params! { struct RotateParams { len: u32, ranks: u32, heads: u32, channels: u32, pairs: u32 } }

fn program(elem: DType, pairs: Pairs, direction: Direction) -> Program {
    let own = match direction {
        Direction::Forward => wgsl!("forward.wgsl"),
        Direction::Back => wgsl!("backward.wgsl"),
    };
    let halves = pairs == Pairs::Halves;
    let source = [MATH, wgsl!("places.wgsl"), own, ELEMENTS];
    Program::new::<RotateParams>(&source, &[("Elem", elem)], &[("HALVES", halves as u32)])
}

/// Every program of this file.
#[cfg(test)]
pub(super) fn programs(elem: DType) -> Vec<Program> {
    let of = |pairs| {
        [Direction::Forward, Direction::Back].map(|direction| program(elem, pairs, direction))
    };
    [Pairs::Adjacent, Pairs::Halves].into_iter().flat_map(of).collect()
}
