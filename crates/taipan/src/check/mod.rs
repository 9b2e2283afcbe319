//! Tests of an op's values and gradients: the check that every op of this crate passes, for ops of
//! your own. It is behind the cargo feature `check`, for the tests of your crate:
//!
//! ```toml
//! [dev-dependencies]
//! taipan = { version = "0.1", features = ["check"] }
//! ```
//!
//! A [`Case`] has a name, inputs, the op, and a naive version of it in f64. [`check`] compares:
//!
//! - the value in f64 with the naive version;
//! - the gradient of each input in f64 with finite differences of the naive version, along a random
//!   direction and for a random upstream: an upstream of all ones hides errors;
//! - value and gradients in f16, bf16, f32 and f64, on every device that supports the type, with
//!   those in f64 on the CPU, within the [`Tolerance`] of the type; also with one input tracked and
//!   the others not;
//! - the bits of a second run, of a run whose memory was full of NaN before, and, on the CPU, of
//!   runs with one and with three threads, with those of the first.
//!
//! An op that is wrong somewhere panics, as `assert!` does, with what is wrong. Inputs are drawn
//! from the name of the case, so that a failure can be repeated.
//!
//! ```
//! use taipan::check::{Case, check, input};
//! use taipan::{BackwardReads, CustomOp, Number, Result, SavedTensors, Tensor, custom};
//!
//! /// `max(x, 0)²`, the activation of Primer (So et al. 2021).
//! struct SquaredRelu;
//!
//! impl CustomOp for SquaredRelu {
//!     const NAME: &'static str = "squared_relu";
//!     const INPUTS: &'static [&'static str] = &["x"];
//!     const BACKWARD_READS: BackwardReads = BackwardReads::Inputs;
//!     const WGSL: &'static str = "
//!         fn value(i: u32) -> f32 {
//!             let positive = max(f32(x[i]), 0.0);
//!             return positive * positive;
//!         }";
//!
//!     fn shape(&self, inputs: &[&[usize]]) -> std::result::Result<Vec<usize>, String> {
//!         Ok(inputs[0].to_vec())
//!     }
//!
//!     fn sizes(&self, _: &[&[usize]]) -> Vec<usize> {
//!         Vec::new()
//!     }
//!
//!     fn cpu<A: Number>(&self, inputs: &[&[A]], _: &[usize], first: usize, y: &mut [A]) {
//!         let zero = A::from_f64(0.0);
//!         for (y, &x) in y.iter_mut().zip(&inputs[0][first..]) {
//!             *y = if x > zero { x * x } else { zero };
//!         }
//!     }
//!
//!     /// `dx = 2·max(x, 0)·dy`
//!     fn backward(&self, saved: &SavedTensors, dy: &Tensor) -> Result<Vec<Option<Tensor>>> {
//!         Ok(vec![Some(saved.input(0)?.relu()?.mul(dy)?.scale(2.0)?)])
//!     }
//! }
//!
//! // Sizes 0 and 1, an odd one, and one that is several chunks of work.
//! for shape in [&[0][..], &[1], &[3, 5], &[2, 20_001]] {
//!     check(&Case::new(
//!         format!("squared_relu {shape:?}"),
//!         [input(shape)],
//!         |t| custom(SquaredRelu, &[&t[0]]),
//!         |i| i[0].map(|x| x.max(0.0).powi(2)),
//!     ));
//! }
//! ```
//!
//! What a case does not cover, such as infinities, is tested with the same parts: [`devices`],
//! [`FLOATS`], [`tensor`] and [`array()`], [`round`], [`tolerance`].
//!
//! [`Case::reference`] and [`Reference::examine`] are the same check without a panic, and tell how
//! large the errors are. With them, `taipan doctor` checks the [`cases`] of this crate's own ops.

mod array;
pub mod cases;
#[cfg(not(target_family = "wasm"))]
mod devices;
mod finding;
pub mod naive;
mod precision;
mod run;
#[cfg(target_family = "wasm")]
mod web;

use crate::{DType, Device, Tensor};

pub use self::array::{Array, Input, Random, Values, indices, input, input_of};
#[cfg(not(target_family = "wasm"))]
pub use self::devices::devices;
pub use self::finding::{Deviation, Finding, Kind, Mismatch};
pub use self::precision::{FLOATS, Tolerance, array, round, tensor, tolerance, ulp};
use self::run::{Outcome, Run, Tracked, ready};
#[cfg(target_family = "wasm")]
pub(crate) use self::web::block_on;
#[cfg(target_family = "wasm")]
pub use self::web::devices;
#[cfg(not(target_family = "wasm"))]
use pollster::block_on;

/// The op as called.
type Call = Box<dyn Fn(&[Tensor]) -> crate::Result<Tensor> + Sync>;
/// The op as the mathematics says it.
type Naive = Box<dyn Fn(&[Array]) -> Array + Sync>;

/// What is as it should be, or else what is wrong.
type Result<T> = std::result::Result<T, Mismatch>;

/// An op on some inputs, and what it should give.
pub struct Case {
    name: String,
    inputs: Vec<Input>,
    call: Call,
    naive: Naive,
    /// How many terms of about 1 each result sums, if they can cancel.
    terms: usize,
    /// Whether it is an op without a gradient, see [`Case::discrete`].
    discrete: bool,
    /// Those of [`devices`] unless the case chooses.
    devices: Option<Vec<Device>>,
}

impl Case {
    /// A case from its name, its inputs, the op, and a naive version of the op in f64 that never
    /// calls taipan. The op's result has the type of its inputs; what else it needs, such as
    /// indices, the closure makes on their device. The first word of the name is that of the op.
    pub fn new(
        name: impl Into<String>,
        inputs: impl Into<Vec<Input>>,
        call: impl Fn(&[Tensor]) -> crate::Result<Tensor> + Sync + 'static,
        naive: impl Fn(&[Array]) -> Array + Sync + 'static,
    ) -> Case {
        Case {
            name: name.into(),
            inputs: inputs.into(),
            call: Box::new(call),
            naive: Box::new(naive),
            terms: 0,
            discrete: false,
            devices: None,
        }
    }

    /// For an op whose results are sums of so many terms, of about 1 each, that can cancel: the
    /// error is then relative to the terms.
    pub fn cancelling(self, terms: usize) -> Case {
        Case { terms, ..self }
    }

    /// For an op without a gradient, whose results are indices, truth values or copies: they must be
    /// exactly those of the naive version, in whatever type.
    pub fn discrete(self) -> Case {
        Case { discrete: true, ..self }
    }

    /// Whether the op has a gradient.
    pub fn has_gradient(&self) -> bool {
        !self.discrete
    }

    /// Check on these devices instead of those of [`devices`].
    pub fn on(self, devices: impl Into<Vec<Device>>) -> Case {
        Case { devices: Some(devices.into()), ..self }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The op: the first word of the name.
    pub fn op(&self) -> &str {
        self.name.split(' ').next().unwrap_or_default()
    }

    /// What the case gives in f64 on the CPU, if that is what the naive version says: the value,
    /// and the gradients by finite differences.
    pub fn reference(&self) -> Result<Reference<'_>> {
        let mut random = Random::named(&self.name);
        let inputs: Vec<Array> = self.inputs.iter().map(|input| random.draw(input)).collect();
        let want = self.expected(&inputs)?;
        let dy = random.draw(&input(&want.shape));
        let exact = Run { case: self, device: &Device::Cpu, dtype: DType::F64 };
        let got = ready(exact.outcome(&inputs, &dy, Tracked::All))?;
        let mut deviation = Deviation::default();
        exact.compare_values(&got.value, &want, &mut deviation)?;
        exact.compare_with_differences(&inputs, &dy, &got, &mut random)?;
        let sizes = exact.sizes_of_grads(&dy.shape, &mut random)?;
        Ok(Reference { exact, deviation, inputs, dy, sizes })
    }

    /// The naive version of these inputs. Comparing it with anything else would miss elements if it
    /// had fewer than its shape says.
    fn expected(&self, inputs: &[Array]) -> Result<Array> {
        let y = (self.naive)(inputs);
        let (len, found) = (y.shape.iter().product::<usize>(), y.data.len());
        if found == len {
            return Ok(y);
        }
        let (name, shape) = (&self.name, &y.shape);
        let message =
            format!("{name}: the reference has {found} elements, expected {len} for {shape:?}");
        Err(Mismatch { kind: Kind::Error, message })
    }
}

/// What a case gives in f64 on the CPU, and other types and devices are compared with.
pub struct Reference<'a> {
    exact: Run<'a>,
    /// Of its value from the naive version.
    deviation: Deviation,
    inputs: Vec<Array>,
    dy: Array,
    /// Typical sizes of the gradients.
    sizes: Vec<f64>,
}

impl<'a> Reference<'a> {
    /// Compare value and gradients on a device, in a type that it supports, and the bits of
    /// repeated runs. The errors of f64 are those of the reference itself: of the value from the
    /// naive version; its gradients, compared with finite differences, have none in ulp.
    pub async fn examine(&self, device: &Device, dtype: DType) -> Finding {
        match self.rounded(dtype) {
            Ok(rounded) => rounded.examine(device).await,
            Err(mismatch) => Finding::from(mismatch),
        }
    }

    /// [`examine`](Reference::examine) for native callers.
    #[cfg(not(target_family = "wasm"))]
    pub fn examine_blocking(&self, device: &Device, dtype: DType) -> Finding {
        block_on(self.examine(device, dtype))
    }

    /// The same with inputs that a type can hold: what remains is the error of the op.
    fn rounded(&self, dtype: DType) -> Result<Rounded<'_, 'a>> {
        let inputs: Vec<Array> = self.inputs.iter().map(|x| x.map(|x| round(x, dtype))).collect();
        let dy = self.dy.map(|x| round(x, dtype));
        let want = ready(self.exact.outcome(&inputs, &dy, Tracked::All))?;
        Ok(Rounded { reference: self, dtype, inputs, dy, want })
    }
}

/// A [`Reference`] in f64 for the inputs of a type.
struct Rounded<'r, 'a> {
    reference: &'r Reference<'a>,
    dtype: DType,
    inputs: Vec<Array>,
    dy: Array,
    want: Outcome,
}

impl Rounded<'_, '_> {
    async fn examine(&self, device: &Device) -> Finding {
        let Rounded { reference, dtype, inputs, dy, want } = self;
        let run = Run { case: reference.exact.case, device, dtype: *dtype };
        let mut finding = run.check(inputs, dy, want, &reference.sizes).await;
        if *dtype == DType::F64 {
            finding.value = finding.value.max(reference.deviation);
        }
        finding
    }
}

/// Check a case as the [module](self) says.
///
/// # Panics
///
/// If anything differs. The message names the case, the device, the type and the element, what was
/// found and what was expected: `squared_relu [3, 5] on gpu in f32: the value at [0, 2]: found …`.
pub fn check(case: &Case) {
    let reference = case.reference().unwrap_or_else(|mismatch| panic!("{}", mismatch.message));
    let devices = case.devices.clone().unwrap_or_else(devices);
    assert!(!devices.is_empty(), "{}: no device to check on", case.name);
    for dtype in FLOATS {
        let supported = |device: &&Device| device.supports(dtype);
        let mut devices = devices.iter().filter(supported).peekable();
        if devices.peek().is_none() {
            continue;
        }
        let rounded =
            reference.rounded(dtype).unwrap_or_else(|mismatch| panic!("{}", mismatch.message));
        for device in devices {
            if let Some(mismatch) = block_on(rounded.examine(device)).mismatch {
                panic!("{}", mismatch.message);
            }
        }
    }
}
