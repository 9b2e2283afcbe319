//! Zero-order hold where `Δ·A` is small, and `exp(Δ·A) − 1` would cancel: values and gradients
//! against their formulas in f64.

use taipan::check::{
    Array, Random, Tolerance, Values, array, devices, input, input_of, round, tensor, tolerance,
};
use taipan::{DType, Device, Discretization, Result, Scan, StepSize, Tensor, selective_scan};

const B: usize = 2;
const L: usize = 19;
const D: usize = 24;
const N: usize = 3;

/// `φ₁(x) = (exp(x) − 1)/x`
fn phi1(x: f64) -> f64 {
    x.exp_m1() / x
}

/// `φ₁'(x) = Σ xᵏ·(k+1)/(k+2)!`, for small `x`.
fn phi1_derivative(x: f64) -> f64 {
    let (mut sum, mut power, mut factorial) = (0.0, 1.0, 1.0);
    for k in 0..20 {
        factorial *= (k + 2) as f64;
        sum += power * (k + 1) as f64 / factorial;
        power *= x;
    }
    sum
}

/// Every sequence is a single step, so that no earlier state hides the input's contribution to the
/// gradients. Step sizes differ between channels only, so that a sum over time has terms of similar
/// size.
struct Inputs {
    u: Array,
    delta: Array,
    a_log: Array,
    b: Array,
    c: Array,
    dy: Array,
    dfinal_state: Array,
}

impl Inputs {
    /// Values rounded to the type, with `|Δ·A|` from 1e-8 to 1e-1 over the channels, and
    /// alternating signs.
    fn new(dtype: DType) -> Inputs {
        let mut random = Random::named("small steps");
        let mut draw = |values: Values, shape: &[usize]| {
            random.draw(&input_of(shape, values)).map(|x| round(x, dtype))
        };
        let part = draw(Values::Between(0.5, 1.0), &[B, L, D]);
        let delta = Array::from_fn(&[B, L, D], |i| {
            let size = 10f64.powf(-8.0 + 7.0 * i[2] as f64 / (D - 1) as f64);
            round(part.at(i) * if i[2] % 2 == 0 { size } else { -size }, dtype)
        });
        let a_log = draw(Values::Between(-0.5, 0.0), &[D, N]);
        let mut plain = |shape: &[usize]| random.draw(&input(shape)).map(|x| round(x, dtype));
        let [u, dy] = [(); 2].map(|()| plain(&[B, L, D]));
        let [b, c] = [(); 2].map(|()| plain(&[B, L, N]));
        Inputs { u, delta, a_log, b, c, dy, dfinal_state: plain(&[B, D, N]) }
    }

    /// `y`, and the gradients of `u`, `delta`, `a_log`, `b` and `c`.
    fn run(&self, dtype: DType, device: &Device) -> Result<[Array; 6]> {
        let leaf = |x: &Array| tensor(x, dtype, device);
        let leaves =
            [&self.u, &self.delta, &self.a_log, &self.b, &self.c].map(|x| leaf(x).tracked());
        let [u, delta, a_log, b, c] = &leaves;
        let seq_start = Tensor::new(&[1u32; B * L], &[B, L], device)?;
        let (y, final_state) = selective_scan(&Scan {
            seq_start: Some(&seq_start),
            discretization: Discretization::ZeroOrderHold,
            step: StepSize::Plain,
            ..Scan::new(u, delta, a_log, b, c)
        })?;
        let value = array(&y);
        let loss = y
            .mul(&leaf(&self.dy))?
            .sum()?
            .add(&final_state.mul(&leaf(&self.dfinal_state))?.sum()?)?;
        let grads = loss.backward()?;
        let [du, ddelta, da_log, db, dc] = leaves.each_ref().map(|x| grads.of(x).map(array));
        Ok([value, du?, ddelta?, da_log?, db?, dc?])
    }

    /// The same by the formulas, and the sums of the absolute values of the terms: errors are
    /// relative to these.
    fn formulas(&self) -> [[Array; 2]; 6] {
        let shapes: [&[usize]; 6] =
            [&[B, L, D], &[B, L, D], &[B, L, D], &[D, N], &[B, L, N], &[B, L, N]];
        let mut sums = shapes.map(|shape| [0, 1].map(|_| Array::from_fn(shape, |_| 0.0)));
        let mut add = |which: usize, at: usize, [g, size]: [f64; 2], factor: f64| {
            let [sum, sizes] = &mut sums[which];
            sum.data[at] += g * factor;
            sizes.data[at] += size * factor.abs();
        };
        for ((i, t), (j, k)) in (0..B * L)
            .map(|row| (row / L, row % L))
            .flat_map(|row| (0..D * N).map(move |at| (row, (at / N, at % N))))
        {
            let (channel, state) = ([i, t, j], [i, t, k]);
            let (u, size, dy) =
                (self.u.at(&channel), self.delta.at(&channel), self.dy.at(&channel));
            let (a, b, c) = (-self.a_log.at(&[j, k]).exp(), self.b.at(&state), self.c.at(&state));
            let x = size * a;
            let b_factor = size * phi1(x);
            let dfinal_state = if t + 1 == L { self.dfinal_state.at(&[i, j, k]) } else { 0.0 };
            let g = [c * dy + dfinal_state, (c * dy).abs() + dfinal_state.abs()];
            let (wide, narrow) = ((i * L + t) * D + j, (i * L + t) * N + k);
            add(0, wide, [1.0; 2], c * b_factor * b * u);
            add(1, wide, g, b * b_factor);
            add(2, wide, g, u * b * x.exp());
            add(3, j * N + k, g, a * u * b * size * size * phi1_derivative(x));
            add(4, narrow, g, u * b_factor);
            add(5, narrow, [1.0; 2], dy * b_factor * b * u);
        }
        sums
    }
}

#[test]
fn small_steps_keep_their_digits() -> Result<()> {
    const NAMES: [&str; 6] = ["y", "du", "ddelta", "da_log", "db", "dc"];
    for device in &devices() {
        for dtype in [DType::F32, DType::F64].into_iter().filter(|&dtype| device.supports(dtype)) {
            let inputs = Inputs::new(dtype);
            let Tolerance { grad, tiny, .. } = tolerance(dtype);
            let results = inputs.run(dtype, device)?.into_iter().zip(inputs.formulas());
            for ((got, [want, size]), name) in results.zip(NAMES) {
                assert_eq!(got.shape, want.shape, "{name}");
                for (i, got) in got.data.iter().enumerate() {
                    let (want, within) = (want.data[i], grad * size.data[i] + tiny);
                    assert!(
                        (got - want).abs() <= within,
                        "{name} at {i} on {} in {dtype}: got {got:e}, want {want:e}, \
                         off by {:e}, tolerance {within:e}",
                        device.name(),
                        (got - want).abs()
                    );
                }
            }
        }
    }
    Ok(())
}
