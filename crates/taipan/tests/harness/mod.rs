//! The one check that every op passes, on every device and in every float type: a new op is a
//! [`Case`], a new device an entry of [`devices`].

#![allow(dead_code, unused_imports)] // Each test binary uses a part.

mod array;
mod devices;
pub mod naive;
mod precision;

use std::sync::OnceLock;

use rayon::{ThreadPool, ThreadPoolBuilder};
use taipan::{DType, Device, Result, Tensor};

pub use self::array::{Array, Input, Random, Values, indices, input, input_of};
pub use self::devices::{devices, gpu};
pub use self::precision::{FLOATS, Tolerance, array, round, tensor, tolerance};

/// Leave memory that is no number where results will be: every small size of the pool, some of
/// each.
pub fn poison(device: &Device) {
    for words in (6..14).flat_map(|log| (8..16).map(move |eighths| eighths << (log - 3))) {
        let poisoned = [(); 2].map(|()| Tensor::full(&[words], f64::NAN, DType::F32, device));
        poisoned.into_iter().for_each(|tensor| drop(tensor.unwrap()));
    }
}

/// The op as called.
type Call = Box<dyn Fn(&[Tensor]) -> Result<Tensor> + Sync>;
/// The op as the mathematics says it.
type Reference = Box<dyn Fn(&[Array]) -> Array + Sync>;

/// An op on some inputs, and what it should give.
pub struct Case {
    name: String,
    inputs: Vec<Input>,
    /// How many terms of about 1 each result sums, if they can cancel.
    terms: usize,
    call: Call,
    reference: Reference,
}

impl Case {
    /// A case from its name, its inputs, the op, and a naive version of the op in f64 that never
    /// calls taipan.
    pub fn new(
        name: impl Into<String>,
        inputs: impl Into<Vec<Input>>,
        call: impl Fn(&[Tensor]) -> Result<Tensor> + Sync + 'static,
        reference: impl Fn(&[Array]) -> Array + Sync + 'static,
    ) -> Case {
        Case {
            name: name.into(),
            inputs: inputs.into(),
            terms: 0,
            call: Box::new(call),
            reference: Box::new(reference),
        }
    }

    /// For an op whose results are sums of so many terms, of about 1 each, that can cancel: the
    /// error is then relative to the terms.
    pub fn cancelling(self, terms: usize) -> Case {
        Case { terms, ..self }
    }
}

/// What a run gives: the value, and the gradient of each input that was tracked.
#[derive(PartialEq)]
struct Outcome {
    value: Array,
    grads: Vec<Option<Array>>,
}

/// Which inputs are tracked.
#[derive(Clone, Copy)]
enum Tracked {
    All,
    Only(usize),
}

/// Check a case:
/// the f64 value against the reference, the f64 gradients against finite differences of the
/// reference, value and gradients in every type on every device against f64 on the CPU, and that
/// neither a second run nor the number of threads changes a bit.
pub fn check(case: &Case) {
    let mut random = Random::named(&case.name);
    let inputs: Vec<Array> = case.inputs.iter().map(|input| random.draw(input)).collect();
    let want = (case.reference)(&inputs);
    let dy = random.draw(&input(&want.shape));

    let exact = Run { case, device: &Device::Cpu, dtype: DType::F64 };
    let got = exact.outcome(&inputs, &dy, Tracked::All);
    exact.compare_values(&got.value, &want);
    exact.compare_with_differences(&inputs, &dy, &got, &mut random);
    let sizes = exact.sizes_of_grads(&dy.shape, &mut random);

    for device in &devices() {
        for dtype in FLOATS.into_iter().filter(|&dtype| device.supports(dtype)) {
            // Inputs that the type can hold: what remains is the error of the op.
            let inputs: Vec<Array> = inputs.iter().map(|x| x.map(|x| round(x, dtype))).collect();
            let dy = dy.map(|x| round(x, dtype));
            let want = exact.outcome(&inputs, &dy, Tracked::All);
            Run { case, device, dtype }.check(&inputs, &dy, &want, &sizes);
        }
    }
}

/// A case on a device in a type.
struct Run<'a> {
    case: &'a Case,
    device: &'a Device,
    dtype: DType,
}

impl Run<'_> {
    /// Value and gradients are those of f64, whatever is tracked, and always the same bits.
    fn check(&self, inputs: &[Array], dy: &Array, want: &Outcome, sizes: &[f64]) {
        let got = self.outcome(inputs, dy, Tracked::All);
        self.compare_values(&got.value, &want.value);
        self.compare_grads(&got, want, sizes);
        for i in (0..inputs.len()).filter(|_| inputs.len() > 1) {
            let alone = self.outcome(inputs, dy, Tracked::Only(i));
            self.compare_grads(&alone, want, sizes);
        }
        self.expect_same("a second run", &self.outcome(inputs, dy, Tracked::All), &got);
        if *self.device != Device::Cpu {
            poison(self.device);
            self.expect_same("stale memory", &self.outcome(inputs, dy, Tracked::All), &got);
            return;
        }
        for (threads, pool) in pools() {
            let repeated = pool.install(|| self.outcome(inputs, dy, Tracked::All));
            self.expect_same(&format!("{threads} thread(s)"), &repeated, &got);
        }
    }

    /// Run the op forward and backward.
    fn outcome(&self, inputs: &[Array], dy: &Array, tracked: Tracked) -> Outcome {
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
        let fail = |e: taipan::Error| -> ! { panic!("{self}: {e}") };
        let y = (self.case.call)(&tensors).unwrap_or_else(|e| fail(e));
        assert_eq!(y.dtype(), self.dtype, "{self}: the type of the result");
        assert_eq!(y.device(), self.device, "{self}: the device of the result");
        assert_eq!(y.shape(), dy.shape, "{self}: the shape of the result");
        let dy = tensor(dy, self.dtype, self.device);
        let grads = y.backward_from(&dy).unwrap_or_else(|e| fail(e));
        let grad = |x: &Tensor| {
            let dx = grads.of(x).unwrap_or_else(|e| fail(e));
            assert_eq!(dx.dtype(), self.dtype, "{self}: the type of a gradient");
            assert_eq!(dx.shape(), x.shape(), "{self}: the shape of a gradient");
            array(dx)
        };
        let grads = tensors.iter().map(|x| x.is_tracked().then(|| grad(x))).collect();
        Outcome { value: array(&y), grads }
    }

    fn compare_values(&self, got: &Array, want: &Array) {
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
    fn sizes_of_grads(&self, y: &[usize], random: &mut Random) -> Vec<f64> {
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
                "{self}: {what} at {index:?}: got {got:e}, want {want:e}, off by {:e}, tolerance {within:e}",
                (got - want).abs()
            );
        }
    }

    /// Each gradient against the central difference of `Σ dy·reference` along a random direction.
    fn compare_with_differences(
        &self,
        inputs: &[Array],
        dy: &Array,
        got: &Outcome,
        random: &mut Random,
    ) {
        const H: f64 = 1.0 / (1 << 17) as f64;
        for (i, grad) in got.grads.iter().enumerate() {
            let grad = grad.as_ref().expect("all inputs are tracked");
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
                let y = (self.case.reference)(&moved);
                y.data.iter().zip(&dy.data).map(|(y, dy)| y * dy).sum()
            };
            let want = (loss(H) - loss(-H)) / (2.0 * H);
            let terms: Vec<f64> =
                grad.data.iter().zip(&direction.data).map(|(g, d)| g * d).collect();
            let got: f64 = terms.iter().sum();
            let within = 1e-9 + 1e-7 * terms.iter().map(|x| x * x).sum::<f64>().sqrt();
            assert!(
                (got - want).abs() <= within,
                "{self}: gradient {i} along a direction: got {got:e}, the difference is {want:e}, tolerance {within:e}"
            );
        }
    }

    fn expect_same(&self, what: &str, repeated: &Outcome, first: &Outcome) {
        let bits = |x: &Array| x.data.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&repeated.value), bits(&first.value), "{self}: {what}: the value's bits");
        for (i, (repeated, first)) in repeated.grads.iter().zip(&first.grads).enumerate() {
            let (repeated, first) = (repeated.as_ref().map(bits), first.as_ref().map(bits));
            assert!(repeated == first, "{self}: {what}: the bits of gradient {i}");
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
fn pools() -> &'static [(usize, ThreadPool)] {
    static POOLS: OnceLock<Vec<(usize, ThreadPool)>> = OnceLock::new();
    POOLS.get_or_init(|| {
        let pool = |n| (n, ThreadPoolBuilder::new().num_threads(n).build().unwrap());
        vec![pool(1), pool(3)]
    })
}
