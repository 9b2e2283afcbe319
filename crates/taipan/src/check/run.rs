//! A case on one device in one type.

use std::pin::pin;
#[cfg(not(target_family = "wasm"))]
use std::sync::OnceLock;
use std::task::{Context, Poll, Waker};

#[cfg(not(target_family = "wasm"))]
use rayon::{ThreadPool, ThreadPoolBuilder};

use super::array::{Array, Random, index_of, input};
use super::finding::{Deviation, Finding, Kind, Mismatch};
use super::precision::{Tolerance, read, tolerance, write};
use super::{Case, Result};
use crate::{DType, Device, Error, Tensor};

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
    pub(super) async fn check(
        &self,
        inputs: &[Array],
        dy: &Array,
        want: &Outcome,
        sizes: &[f64],
    ) -> Finding {
        let mut finding = Finding::default();
        finding.mismatch = self.compare_all(inputs, dy, want, sizes, &mut finding).await.err();
        finding
    }

    async fn compare_all(
        &self,
        inputs: &[Array],
        dy: &Array,
        want: &Outcome,
        sizes: &[f64],
        finding: &mut Finding,
    ) -> Result<()> {
        let got = self.outcome(inputs, dy, Tracked::All).await?;
        let mut compare = |got: &Outcome| {
            self.compare_values(&got.value, &want.value, &mut finding.value)?;
            self.compare_grads(got, want, sizes, &mut finding.gradient)
        };
        compare(&got)?;
        for i in (0..inputs.len()).filter(|_| inputs.len() > 1 && self.case.has_gradient()) {
            compare(&self.outcome(inputs, dy, Tracked::Only(i)).await?)?;
        }
        let repeated = self.outcome(inputs, dy, Tracked::All).await?;
        self.expect_same("a second run", &repeated, &got)?;
        self.poison(inputs, dy)?;
        let repeated = self.outcome(inputs, dy, Tracked::All).await?;
        self.expect_same("stale memory", &repeated, &got)?;
        if *self.device != Device::Cpu {
            return Ok(());
        }
        #[cfg(not(target_family = "wasm"))]
        for (threads, pool) in pools() {
            let repeated = pool.install(|| ready(self.outcome(inputs, dy, Tracked::All)))?;
            self.expect_same(&format!("{threads} thread(s)"), &repeated, &got)?;
        }
        Ok(())
    }

    /// Leave NaN in idle memory: where inputs, result and gradients will be, and a few of every
    /// small size for what the op takes itself. All are held at once, so that none makes room for
    /// another; those of the case are dropped last, and so are the first to be reused.
    fn poison(&self, inputs: &[Array], dy: &Array) -> Result<()> {
        let words = (4..14).flat_map(|log| (8..16).map(move |eighths| (eighths << log) / 8));
        let small = words.flat_map(|words| [[words]; 2]).map(|shape| self.nans(&shape, DType::F32));
        let own = inputs.iter().chain([dy]).flat_map(|x| [x; 2]);
        let own = own.map(|x| self.nans(&x.shape, self.dtype));
        small.chain(own).collect::<Result<Vec<_>>>().map(drop)
    }

    fn nans(&self, shape: &[usize], dtype: DType) -> Result<Tensor> {
        Tensor::full(shape, f64::NAN, dtype, self.device).map_err(|e| self.failed(e))
    }

    fn tensor(&self, array: &Array) -> Result<Tensor> {
        write(array, self.dtype, self.device).map_err(|e| self.failed(e))
    }

    async fn read(&self, tensor: &Tensor) -> Result<Array> {
        read(tensor).await.map_err(|e| self.failed(e))
    }

    fn failed(&self, error: Error) -> Mismatch {
        self.mismatch(Kind::Error, error)
    }

    fn mismatch(&self, kind: Kind, why: impl std::fmt::Display) -> Mismatch {
        Mismatch { kind, message: format!("{self}: {why}") }
    }

    /// An error unless both are the same.
    fn expect<T: PartialEq + std::fmt::Debug>(
        &self,
        what: &str,
        found: T,
        expected: T,
    ) -> Result<()> {
        if found == expected {
            return Ok(());
        }
        Err(self.mismatch(Kind::Error, format!("{what} is {found:?}, expected {expected:?}")))
    }

    /// Run the op forward and, if it has a gradient, backward.
    pub(super) async fn outcome(
        &self,
        inputs: &[Array],
        dy: &Array,
        tracked: Tracked,
    ) -> Result<Outcome> {
        let tensors = inputs.iter().enumerate().map(|(i, x)| {
            let x = self.tensor(x)?;
            Ok(match tracked {
                Tracked::Only(only) if only != i => x,
                _ if self.case.discrete => x,
                _ => x.tracked(),
            })
        });
        let tensors = tensors.collect::<Result<Vec<Tensor>>>()?;
        let y = (self.case.call)(&tensors).map_err(|e| self.failed(e))?;
        self.expect("the device of the result", y.device(), self.device)?;
        self.expect("the shape of the result", y.shape(), &dy.shape)?;
        if self.case.discrete {
            return Ok(Outcome { grads: vec![None; inputs.len()], value: self.read(&y).await? });
        }
        self.expect("the type of the result", y.dtype(), self.dtype)?;
        let grads = y.backward_from(&self.tensor(dy)?).map_err(|e| self.failed(e))?;
        let mut read = Vec::new();
        for x in &tensors {
            if !x.is_tracked() {
                read.push(None);
                continue;
            }
            let dx = grads.of(x).map_err(|e| self.failed(e))?;
            self.expect("the type of a gradient", dx.dtype(), self.dtype)?;
            self.expect("the shape of a gradient", dx.shape(), x.shape())?;
            read.push(Some(self.read(dx).await?));
        }
        Ok(Outcome { grads: read, value: self.read(&y).await? })
    }

    pub(super) fn compare_values(
        &self,
        got: &Array,
        want: &Array,
        worst: &mut Deviation,
    ) -> Result<()> {
        let Tolerance { value, cancelled, tiny, .. } = tolerance(self.dtype);
        let floor = tiny + cancelled * self.case.terms as f64;
        let within = |want: f64| if self.case.discrete { 0.0 } else { value * want.abs() + floor };
        // What cancels is as exact as the other elements are.
        let size = if self.case.terms > 0 { want.rms() } else { 0.0 };
        worst.take(got, want, size, self.dtype);
        self.compare((Kind::Value, "the value"), got, want, within)
    }

    /// Compare gradients, given their typical sizes.
    fn compare_grads(
        &self,
        got: &Outcome,
        want: &Outcome,
        sizes: &[f64],
        worst: &mut Deviation,
    ) -> Result<()> {
        let Tolerance { grad, tiny, .. } = tolerance(self.dtype);
        for (i, (got, want)) in got.grads.iter().zip(&want.grads).enumerate() {
            if let (Some(got), Some(want)) = (got, want) {
                let within = |want: f64| grad * (want.abs() + sizes[i]) + tiny;
                worst.take(got, want, sizes[i], self.dtype);
                self.compare((Kind::Gradient, &format!("gradient {i}")), got, want, within)?;
            }
        }
        Ok(())
    }

    /// The root mean square of each input's gradient over several draws on the CPU: those of one
    /// alone can be small by chance.
    pub(super) fn sizes_of_grads(&self, y: &[usize], random: &mut Random) -> Result<Vec<f64>> {
        const DRAWS: usize = 4;
        let mut squares = vec![0.0; self.case.inputs.len()];
        for _ in 0..DRAWS {
            let inputs: Vec<Array> = self.case.inputs.iter().map(|x| random.draw(x)).collect();
            let dy = random.draw(&input(y));
            let outcome = ready(self.outcome(&inputs, &dy, Tracked::All))?;
            for (square, grad) in squares.iter_mut().zip(outcome.grads.iter().flatten()) {
                *square += grad.rms().powi(2) / DRAWS as f64;
            }
        }
        Ok(squares.into_iter().map(f64::sqrt).collect())
    }

    fn compare(
        &self,
        (kind, what): (Kind, &str),
        got: &Array,
        want: &Array,
        within: impl Fn(f64) -> f64,
    ) -> Result<()> {
        self.expect(&format!("the shape of {what}"), &got.shape, &want.shape)?;
        for (i, (&got, &value)) in got.data.iter().zip(&want.data).enumerate() {
            let within = within(value);
            let same = got == value || got.is_nan() && value.is_nan();
            let off = (got - value).abs();
            // NaN is not within.
            let passes = same || off <= within;
            if !passes {
                let why = format!(
                    "{what} at {:?}: found {got:e}, expected {value:e}, off by {off:e}, \
                     tolerance {within:e}",
                    index_of(i, &want.shape)
                );
                return Err(self.mismatch(kind, why));
            }
        }
        Ok(())
    }

    /// Each gradient against the central difference of `Σ dy·reference` along a random direction.
    pub(super) fn compare_with_differences(
        &self,
        inputs: &[Array],
        dy: &Array,
        got: &Outcome,
        random: &mut Random,
    ) -> Result<()> {
        const H: f64 = 1.0 / (1 << 17) as f64;
        for (i, grad) in got.grads.iter().enumerate() {
            let Some(grad) = grad.as_ref().filter(|grad| !grad.data.is_empty()) else { continue };
            // As large as the input, so that the step is small beside it.
            let size = inputs[i].rms();
            let direction = random.draw(&input(&grad.shape)).map(|d| size * d);
            let loss = |h: f64| -> Result<f64> {
                let mut moved = inputs.to_vec();
                for (x, d) in moved[i].data.iter_mut().zip(&direction.data) {
                    *x += h * d;
                }
                let y = self.case.expected(&moved)?;
                Ok(y.data.iter().zip(&dy.data).map(|(y, dy)| y * dy).sum())
            };
            let want = (loss(H)? - loss(-H)?) / (2.0 * H);
            let terms: Vec<f64> =
                grad.data.iter().zip(&direction.data).map(|(g, d)| g * d).collect();
            let got: f64 = terms.iter().sum();
            let within = 1e-9 + 1e-7 * terms.iter().map(|x| x * x).sum::<f64>().sqrt();
            let passes = (got - want).abs() <= within;
            if !passes {
                let why = format!(
                    "gradient {i} along a direction: found {got:e}, expected {want:e} by finite \
                     differences, tolerance {within:e}"
                );
                return Err(self.mismatch(Kind::Gradient, why));
            }
        }
        Ok(())
    }

    fn expect_same(&self, run: &str, repeated: &Outcome, first: &Outcome) -> Result<()> {
        self.compare_bits(&format!("{run}: the value"), &repeated.value, &first.value)?;
        for (i, (repeated, first)) in repeated.grads.iter().zip(&first.grads).enumerate() {
            if let (Some(repeated), Some(first)) = (repeated, first) {
                self.compare_bits(&format!("{run}: gradient {i}"), repeated, first)?;
            }
        }
        Ok(())
    }

    fn compare_bits(&self, what: &str, repeated: &Array, first: &Array) -> Result<()> {
        for (i, (repeated, value)) in repeated.data.iter().zip(&first.data).enumerate() {
            if repeated.to_bits() != value.to_bits() {
                let why = format!(
                    "{what} at {:?}: found {repeated:e}, expected the bits of {value:e}",
                    index_of(i, &first.shape)
                );
                return Err(self.mismatch(Kind::Bits, why));
            }
        }
        Ok(())
    }
}

/// `linear gelu on cpu in f32`
impl std::fmt::Display for Run<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} on {} in {}", self.case.name, self.device.name(), self.dtype)
    }
}

/// What a run on the CPU gives: its values are there already.
pub(super) fn ready<T>(outcome: impl Future<Output = T>) -> T {
    match pin!(outcome).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("the CPU waits for nothing"),
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
