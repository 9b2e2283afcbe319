//! A case on one device in one type.

#[cfg(not(target_family = "wasm"))]
use std::sync::OnceLock;

#[cfg(not(target_family = "wasm"))]
use rayon::{ThreadPool, ThreadPoolBuilder};

use super::Case;
use super::array::{Array, Random, indices, input};
use super::precision::{Tolerance, read, tensor, tolerance};
use crate::{DType, Device, Error, Tensor};

const ALL_TRACKED: &str = "all inputs are tracked";

/// What a run gives: the value, and the gradient of each input that was tracked.
pub(super) struct Outcome {
    pub(super) value: Array,
    grads: Vec<Option<Array>>,
}

/// Which inputs are tracked.
#[derive(Clone, Copy)]
pub(super) enum Tracked {
    All,
    Only(usize),
}

/// A case on a device in a type.
pub(super) struct Run<'a> {
    pub(super) case: &'a Case,
    pub(super) device: &'a Device,
    pub(super) dtype: DType,
}

impl Run<'_> {
    /// Value and gradients are those of f64, whatever is tracked, and always the same bits.
    pub(super) fn check(&self, inputs: &[Array], dy: &Array, want: &Outcome, sizes: &[f64]) {
        let got = self.outcome(inputs, dy, Tracked::All);
        self.compare_values(&got.value, &want.value);
        self.compare_grads(&got, want, sizes);
        for i in (0..inputs.len()).filter(|_| inputs.len() > 1) {
            let alone = self.outcome(inputs, dy, Tracked::Only(i));
            self.compare_values(&alone.value, &want.value);
            self.compare_grads(&alone, want, sizes);
        }
        self.expect_same("a second run", &self.outcome(inputs, dy, Tracked::All), &got);
        self.poison(inputs, dy);
        self.expect_same("stale memory", &self.outcome(inputs, dy, Tracked::All), &got);
        if *self.device != Device::Cpu {
            return;
        }
        #[cfg(not(target_family = "wasm"))]
        for (threads, pool) in pools() {
            let repeated = pool.install(|| self.outcome(inputs, dy, Tracked::All));
            self.expect_same(&format!("{threads} thread(s)"), &repeated, &got);
        }
    }

    /// Leave NaN in idle memory: where inputs, result and gradients will be, and a few of every
    /// small size for what the op takes itself. All are held at once, so that none makes room for
    /// another; those of the case are dropped last, and so are the first to be reused.
    fn poison(&self, inputs: &[Array], dy: &Array) {
        let words = (4..14).flat_map(|log| (8..16).map(move |eighths| (eighths << log) / 8));
        let small = words.flat_map(|words| [[words]; 2]).map(|shape| self.nans(&shape, DType::F32));
        let own = inputs.iter().chain([dy]).flat_map(|x| [x; 2]);
        drop(small.chain(own.map(|x| self.nans(&x.shape, self.dtype))).collect::<Vec<_>>());
    }

    fn nans(&self, shape: &[usize], dtype: DType) -> Tensor {
        Tensor::full(shape, f64::NAN, dtype, self.device).unwrap_or_else(|e| self.fail(e))
    }

    fn read(&self, tensor: &Tensor) -> Array {
        read(tensor).unwrap_or_else(|e| self.fail(e))
    }

    fn fail(&self, error: Error) -> ! {
        panic!("{self}: {error}")
    }

    /// Run the op forward and backward.
    pub(super) fn outcome(&self, inputs: &[Array], dy: &Array, tracked: Tracked) -> Outcome {
        let tensors: Vec<Tensor> = inputs
            .iter()
            .enumerate()
            .map(|(i, x)| {
                let x = tensor(x, self.dtype, self.device);
                match tracked {
                    Tracked::Only(only) if only != i => x,
                    _ => x.tracked(),
                }
            })
            .collect();
        let y = (self.case.call)(&tensors).unwrap_or_else(|e| self.fail(e));
        assert_eq!(y.dtype(), self.dtype, "{self}: the type of the result");
        assert_eq!(y.device(), self.device, "{self}: the device of the result");
        assert_eq!(y.shape(), dy.shape, "{self}: the shape of the result");
        let dy = tensor(dy, self.dtype, self.device);
        let grads = y.backward_from(&dy).unwrap_or_else(|e| self.fail(e));
        let grad = |x: &Tensor| {
            let dx = grads.of(x).unwrap_or_else(|e| self.fail(e));
            assert_eq!(dx.dtype(), self.dtype, "{self}: the type of a gradient");
            assert_eq!(dx.shape(), x.shape(), "{self}: the shape of a gradient");
            self.read(dx)
        };
        let grads = tensors.iter().map(|x| x.is_tracked().then(|| grad(x))).collect();
        Outcome { value: self.read(&y), grads }
    }

    pub(super) fn compare_values(&self, got: &Array, want: &Array) {
        let Tolerance { value, cancelled, tiny, .. } = tolerance(self.dtype);
        let floor = tiny + cancelled * self.case.terms as f64;
        self.compare("the value", got, want, |want| value * want.abs() + floor);
    }

    /// Compare gradients, given their typical sizes.
    fn compare_grads(&self, got: &Outcome, want: &Outcome, sizes: &[f64]) {
        let Tolerance { grad, tiny, .. } = tolerance(self.dtype);
        for (i, (got, want)) in got.grads.iter().zip(&want.grads).enumerate() {
            if let (Some(got), Some(want)) = (got, want) {
                let within = |want: f64| grad * (want.abs() + sizes[i]) + tiny;
                self.compare(&format!("gradient {i}"), got, want, within);
            }
        }
    }

    /// The root mean square of each input's gradient over several draws: those of one alone can
    /// be small by chance.
    pub(super) fn sizes_of_grads(&self, y: &[usize], random: &mut Random) -> Vec<f64> {
        const DRAWS: usize = 4;
        let mut squares = vec![0.0; self.case.inputs.len()];
        for _ in 0..DRAWS {
            let inputs: Vec<Array> = self.case.inputs.iter().map(|x| random.draw(x)).collect();
            let dy = random.draw(&input(y));
            let outcome = self.outcome(&inputs, &dy, Tracked::All);
            for (square, grad) in squares.iter_mut().zip(outcome.grads.iter().flatten()) {
                *square += grad.rms().powi(2) / DRAWS as f64;
            }
        }
        squares.into_iter().map(f64::sqrt).collect()
    }

    fn compare(&self, what: &str, got: &Array, want: &Array, within: impl Fn(f64) -> f64) {
        assert_eq!(got.shape, want.shape, "{self}: the shape of {what}");
        for (index, (&got, &want)) in
            indices(&want.shape).iter().zip(got.data.iter().zip(&want.data))
        {
            let within = within(want);
            let same = got == want || got.is_nan() && want.is_nan();
            assert!(
                same || (got - want).abs() <= within,
                "{self}: {what} at {index:?}: found {got:e}, expected {want:e}, \
                 off by {:e}, tolerance {within:e}",
                (got - want).abs()
            );
        }
    }

    /// Each gradient against the central difference of `Σ dy·reference` along a random direction.
    pub(super) fn compare_with_differences(
        &self,
        inputs: &[Array],
        dy: &Array,
        got: &Outcome,
        random: &mut Random,
    ) {
        const H: f64 = 1.0 / (1 << 17) as f64;
        for (i, grad) in got.grads.iter().enumerate() {
            let grad = grad.as_ref().expect(ALL_TRACKED);
            if grad.data.is_empty() {
                continue;
            }
            // As large as the input, so that the step is small beside it.
            let size = inputs[i].rms();
            let direction = random.draw(&input(&grad.shape)).map(|d| size * d);
            let loss = |h: f64| -> f64 {
                let mut moved = inputs.to_vec();
                for (x, d) in moved[i].data.iter_mut().zip(&direction.data) {
                    *x += h * d;
                }
                let y = self.case.expected(&moved);
                y.data.iter().zip(&dy.data).map(|(y, dy)| y * dy).sum()
            };
            let want = (loss(H) - loss(-H)) / (2.0 * H);
            let terms: Vec<f64> =
                grad.data.iter().zip(&direction.data).map(|(g, d)| g * d).collect();
            let got: f64 = terms.iter().sum();
            let within = 1e-9 + 1e-7 * terms.iter().map(|x| x * x).sum::<f64>().sqrt();
            assert!(
                (got - want).abs() <= within,
                "{self}: gradient {i} along a direction: found {got:e}, expected {want:e} by \
                 finite differences, tolerance {within:e}"
            );
        }
    }

    fn expect_same(&self, run: &str, repeated: &Outcome, first: &Outcome) {
        self.compare_bits(&format!("{run}: the value"), &repeated.value, &first.value);
        for (i, (repeated, first)) in repeated.grads.iter().zip(&first.grads).enumerate() {
            let (repeated, first) = (repeated.as_ref(), first.as_ref());
            let (repeated, first) = (repeated.expect(ALL_TRACKED), first.expect(ALL_TRACKED));
            self.compare_bits(&format!("{run}: gradient {i}"), repeated, first);
        }
    }

    fn compare_bits(&self, what: &str, repeated: &Array, first: &Array) {
        let pairs = repeated.data.iter().zip(&first.data);
        for (index, (repeated, first)) in indices(&first.shape).iter().zip(pairs) {
            assert!(
                repeated.to_bits() == first.to_bits(),
                "{self}: {what} at {index:?}: found {repeated:e}, expected the bits of {first:e}"
            );
        }
    }
}

/// `linear gelu on cpu in f32`
impl std::fmt::Display for Run<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} on {} in {}", self.case.name, self.device.name(), self.dtype)
    }
}

/// Pools of one and of three threads.
#[cfg(not(target_family = "wasm"))]
fn pools() -> &'static [(usize, ThreadPool)] {
    static POOLS: OnceLock<Vec<(usize, ThreadPool)>> = OnceLock::new();
    POOLS.get_or_init(|| {
        let pool = |n| (n, ThreadPoolBuilder::new().num_threads(n).build().unwrap());
        vec![pool(1), pool(3)]
    })
}
