//! Sums of angles over time, modulo a turn.

use smallvec::smallvec;

use crate::DType;
use crate::autograd::{Op, Saved, Slot, apply_one};
use crate::cpu::isa::vectorized;
use crate::cpu::map::add;
use crate::cpu::threads::for_tasks;
use crate::cpu::{CpuView, CpuViewMut};
use crate::dtype::{Float, Real, with_dtype};
use crate::error::{Result, ensure};
use crate::gpu::{GROUPS, Grid, Launch, Program, kernel_sizes, params};
use crate::kernel::{CpuIo, GpuIo, Kernel, Results, compute};
use crate::spec::{Spec, View};
use crate::tensor::Tensor;

const OP: &str = "turn_sum";

/// Lines that a workgroup of turn_sum.wgsl computes, and blocks of a line.
const TILE: [u32; 2] = [16, 16];

/// The arguments of [`turn_sum`].
#[derive(Clone, Copy, Debug)]
pub struct TurnSum<'a> {
    /// By how many turns each step turns, `[b, l, …]`.
    pub turns: &'a Tensor,
    /// The angle before the first step, `[b, …]`, of the type of `turns`; zeros if absent.
    pub initial: Option<&'a Tensor>,
    /// For packed sequences, `[b, l]`, of type u32: not 0 at the first step of each sequence, where
    /// the sum begins with 0.
    pub seq_start: Option<&'a Tensor>,
}

/// The sums of all turns up to each step, modulo 1: numbers from −½ to ½, in the shape of `turns`.
///
/// Whole turns count for nothing and are taken off exactly, so that a sum does not lose digits as it
/// grows. Feed the last step to `initial` to continue in another call.
///
/// ```
/// use taipan::{Device, Tensor, TurnSum, turn_sum};
///
/// let turns = Tensor::new(&[0.25f32, 0.5, 0.5], &[1, 3], &Device::Cpu)?;
/// let sums = turn_sum(&TurnSum { turns: &turns, initial: None, seq_start: None })?;
/// assert_eq!(sums.read_blocking::<f32>()?, [0.25, -0.25, 0.25]);
/// # Ok::<(), taipan::Error>(())
/// ```
pub fn turn_sum(sum: &TurnSum) -> Result<Tensor> {
    let optional = [sum.initial, sum.seq_start];
    let op = Sum { initial: sum.initial.is_some(), seq_start: sum.seq_start.is_some() };
    let inputs: Vec<_> = [sum.turns].into_iter().chain(optional.into_iter().flatten()).collect();
    apply_one(op, &inputs)
}

/// Inputs `turns`, `initial` and `seq_start`, if it has them.
#[derive(Clone, Copy)]
struct Sum {
    initial: bool,
    seq_start: bool,
}

/// Of a line: from the first step to the last, or the gradient, which is the other way round.
#[derive(Clone, Copy, PartialEq)]
enum Direction {
    Forward,
    Reverse,
}

impl Op for Sum {
    fn saves(&self, slot: Slot, _: &[bool]) -> bool {
        self.seq_start && slot == Slot::Input(1 + self.initial as usize)
    }

    /// `dturns_t = dy_t + dturns_{t+1}`, without the second term where `t + 1` is a start;
    /// `dinitial = dturns_0`, or 0.
    fn backward(&self, saved: &mut Saved, dys: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let seq_start = self.seq_start.then(|| saved.input(1 + self.initial as usize));
        let inputs: Vec<_> = [&dys[0]].into_iter().chain(seq_start).collect();
        let specs = saved.specs[..1 + self.initial as usize].into();
        let cpu = |io: CpuIo| {
            with_dtype!(io.inputs[0].spec.dtype(), T: Float => {
                let [dturns, dinitial @ ..] = io.outputs else { unreachable!("a gradient") };
                gradient::<T>(&io.inputs[0], io.inputs.get(1), dturns, dinitial.first_mut());
            });
            Ok(())
        };
        let gpu = |io: GpuIo| self.launch(io, Direction::Reverse);
        let grads = compute((OP, "backward"), &inputs, specs, cpu, gpu)?;
        let mut grads: Vec<_> = grads.into_iter().map(Some).collect();
        if self.seq_start {
            grads.push(None);
        }
        Ok(grads)
    }
}

impl Kernel for Sum {
    fn name(&self) -> &'static str {
        OP
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Results<Spec>> {
        let (turns, shape) = (inputs[0], inputs[0].shape());
        turns.dtype().ensure_float(OP, "turns")?;
        ensure!(OP, shape.len() >= 2, "turns is {shape:?}, expected [b, l, …]");
        let mut optional = inputs[1..].iter();
        if self.initial {
            let initial = optional.next().expect("given");
            let (found, expected) = (initial.shape(), [&shape[..1], &shape[2..]].concat());
            ensure!(OP, found == expected, "initial is {found:?}, expected {expected:?}");
            initial.dtype().ensure(turns.dtype(), OP, "initial")?;
        }
        if let Some(seq_start) = optional.next() {
            let (found, expected) = (seq_start.shape(), &shape[..2]);
            ensure!(OP, found == expected, "seq_start is {found:?}, expected {expected:?}");
            seq_start.dtype().ensure(DType::U32, OP, "seq_start")?;
        }
        Ok(smallvec![turns.clone()])
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        let (initial, seq_start) = inputs[1..].split_at(self.initial as usize);
        with_dtype!(inputs[0].spec.dtype(), T: Float => {
            sums::<T>(&inputs[0], initial.first(), seq_start.first(), &mut outputs[0]);
        });
        Ok(())
    }

    fn gpu(&self, io: GpuIo) -> Result<()> {
        self.launch(io, Direction::Forward)
    }
}

/// The steps of a sequence, and the elements of a step.
fn sizes(spec: &Spec) -> [usize; 2] {
    [spec.shape()[1], spec.shape()[2..].iter().product()]
}

/// Whether a sequence begins at a step, counted over all rows.
fn starts(seq_start: Option<&CpuView>) -> impl Fn(usize) -> bool {
    let seq_start = seq_start.map(|view| view.as_slice::<u32>());
    move |step| seq_start.is_some_and(|seq_start| seq_start[step] != 0)
}

fn sums<T: Float>(
    turns: &CpuView,
    initial: Option<&CpuView>,
    seq_start: Option<&CpuView>,
    y: &mut CpuViewMut,
) {
    let [l, inner] = sizes(turns.spec);
    let (x, starts) = (turns.as_slice::<T>(), starts(seq_start));
    let initial = initial.map(|initial| initial.as_slice::<T>());
    let tasks = y.as_mut_slice::<T>().chunks_mut((l * inner).max(1)).enumerate();
    for_tasks(tasks, x.len(), |(i, y)| {
        let [mut sum, mut row] = [(); 2].map(|()| vec![T::Acc::ZERO; inner]);
        if let Some(initial) = initial {
            T::widen(&initial[i * inner..][..inner], &mut sum);
        }
        for (t, y) in y.chunks_mut(inner).enumerate() {
            if starts(i * l + t) {
                sum.fill(T::Acc::ZERO);
            }
            T::widen(&x[(i * l + t) * inner..][..inner], &mut row);
            add_turns(&mut sum, &row);
            T::narrow(&sum, y);
        }
    });
}

fn gradient<T: Float>(
    dy: &CpuView,
    seq_start: Option<&CpuView>,
    dturns: &mut CpuViewMut,
    dinitial: Option<&mut CpuViewMut>,
) {
    let [l, inner] = sizes(dy.spec);
    let (starts, work) = (starts(seq_start), dy.spec.len());
    let dy = dy.as_slice::<T>();
    let mut dinitial = dinitial.map(|dinitial| {
        let dinitial = dinitial.as_mut_slice::<T>();
        dinitial.fill(T::of_f64(0.0));
        dinitial.chunks_mut(inner.max(1))
    });
    let dturns = dturns.as_mut_slice::<T>().chunks_mut((l * inner).max(1)).enumerate();
    let tasks = dturns.map(|(i, dturns)| {
        (i, dturns, dinitial.as_mut().and_then(Iterator::next).unwrap_or_default())
    });
    for_tasks(tasks, work, |(i, dturns, dinitial)| {
        let [mut sum, mut row] = [(); 2].map(|()| vec![T::Acc::ZERO; inner]);
        for (t, dturns) in dturns.chunks_mut(inner).enumerate().rev() {
            T::widen(&dy[(i * l + t) * inner..][..inner], &mut row);
            add(&mut sum, &row);
            T::narrow(&sum, dturns);
            if starts(i * l + t) {
                sum.fill(T::Acc::ZERO);
            }
        }
        if !dinitial.is_empty() {
            T::narrow(&sum, dinitial);
        }
    });
}

vectorized! {
    /// `sum += x`, modulo 1.
    fn add_turns<I: Isa, A: Real>(sum: &mut [A], x: &[A]) {
        for (sum, x) in sum.iter_mut().zip(x) {
            let next = *sum + *x;
            *sum = next - next.round();
        }
    }
}

params! { struct TurnSumParams { lines: u32, len: u32, inner: u32 } }

impl Sum {
    fn launch(&self, io: GpuIo, direction: Direction) -> Result<()> {
        let spec = io.inputs[0].spec;
        let [l, inner] = sizes(spec);
        let [lines, len, inner] = kernel_sizes(OP, [spec.shape()[0] * inner, l, inner])?;
        let x = io.inputs[0].all();
        let (initial, seq_start) = match direction {
            Direction::Forward => io.inputs[1..].split_at(self.initial as usize),
            Direction::Reverse => (&[][..], &io.inputs[1..]),
        };
        let [initial, seq_start] =
            [initial, seq_start].map(|given| given.first().map_or(x, View::all));
        let none = io.gpu.scratch(OP, 0)?;
        io.gpu.launch(Launch {
            name: OP,
            program: program(spec.dtype(), direction, *self),
            params: TurnSumParams { lines, len, inner },
            inputs: &[x, initial, seq_start],
            outputs: &[io.outputs[0].all(), io.outputs.get(1).map_or(none.all(), View::all)],
            grid: Grid { groups: lines.div_ceil(TILE[0]) as usize, work: 2 * spec.len() as u64 },
        })
    }
}

fn program(elem: DType, direction: Direction, op: Sum) -> Program {
    let consts = [
        ("WIDTH", TILE[0] * TILE[1]),
        ("LINES", TILE[0]),
        ("BLOCKS", TILE[1]),
        ("REVERSE", (direction == Direction::Reverse) as u32),
        ("INITIAL", op.initial as u32),
        ("SEQ_START", op.seq_start as u32),
    ];
    let source = [wgsl!("turn_sum.wgsl"), GROUPS];
    Program::new::<TurnSumParams>(&source, &[("Elem", elem)], &consts)
}

/// Every program of this file.
#[cfg(test)]
pub(super) fn programs(elem: DType) -> Vec<Program> {
    let both = [false, true];
    let ops = both.map(|initial| both.map(|seq_start| Sum { initial, seq_start }));
    let of = |op| [Direction::Forward, Direction::Reverse].map(|way| program(elem, way, op));
    ops.into_iter().flatten().flat_map(of).collect()
}
