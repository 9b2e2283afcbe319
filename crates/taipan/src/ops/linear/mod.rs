//! `φ(A·W + bias)`: a matrix product with its bias and activation fused in, and its gradient.

mod backward;
mod forward;
mod int8;

use self::backward::Backward;
use self::forward::{DerivativeFrom, Linear};
pub use self::int8::Int8;
use crate::autograd::apply_one;
use crate::error::{Error, Result, ensure};
use crate::function::Activation;
use crate::kernel::{Few, Kernel};
use crate::product::{Layout, Product};
use crate::spec::Spec;
use crate::tensor::Tensor;

const OP: &str = "linear";

/// A weight and how it is stored. A plain `&Tensor` is a [`Weight::kn`], an `&Int8` a
/// [`Weight::int8`].
#[derive(Clone, Copy, Debug)]
pub struct Weight<'a>(Stored<'a>);

#[derive(Clone, Copy, Debug)]
enum Stored<'a> {
    Float(&'a Tensor, Layout),
    Int8(&'a Int8),
}

impl<'a> Weight<'a> {
    /// `[k, n]`, one row per input; or `[…, k, n]`, one matrix per batch entry.
    pub fn kn(tensor: &'a Tensor) -> Weight<'a> {
        Weight(Stored::Float(tensor, Layout::RowMajor))
    }

    /// `[n, k]`, one row per output, as PyTorch's `nn.Linear` stores it; or `[…, n, k]`. It is
    /// read as it is: no transposed copy is made.
    pub fn nk(tensor: &'a Tensor) -> Weight<'a> {
        Weight(Stored::Float(tensor, Layout::Transposed))
    }

    /// `[n, k]` in 8 bits. It has no gradient, and neither have products with it: with a tracked
    /// input, [`linear`] is an error, unless it is called in [`no_grad`](crate::no_grad).
    pub fn int8(weight: &'a Int8) -> Weight<'a> {
        Weight(Stored::Int8(weight))
    }

    pub(super) fn is_int8(self) -> bool {
        matches!(self.0, Stored::Int8(_))
    }

    /// The tensor and its layout, for `op`, which does not take a weight in 8 bits.
    pub(super) fn float(self, op: &'static str) -> Result<(&'a Tensor, Layout)> {
        match self.0 {
            Stored::Float(tensor, layout) => Ok((tensor, layout)),
            Stored::Int8(_) => Err(int8::no_gradient(op)),
        }
    }
}

impl<'a> From<&'a Tensor> for Weight<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        Weight::kn(tensor)
    }
}

impl<'a> From<&'a Int8> for Weight<'a> {
    fn from(weight: &'a Int8) -> Self {
        Weight::int8(weight)
    }
}

/// `activation(x·w + bias)`, computed in one pass.
///
/// | tensor | shape |
/// |---|---|
/// | `x` | `[…, m, k]`, with any number of leading dimensions |
/// | `w` | `[k, n]` for all of them, or `[…, k, n]` one each; or [`Weight::nk`] |
/// | `bias` | `[n]` |
/// | result | `[…, m, n]` |
///
/// All have the same float type, except for an [`Int8`] weight. Sums are accumulated in f32 (f64 for f64), and each result is
/// rounded once. If a gradient is needed, `x` and `w` are saved for backward where it reads them,
/// and for the activation: nothing for `None`, the result for `Relu`, `Sigmoid`, `Tanh` and
/// `Softcap`, `x·w + bias` for the others.
///
/// ```
/// use taipan::{Activation, Device, Tensor, Weight, linear};
///
/// let x = Tensor::new(&[1f32, 2.0], &[1, 2], &Device::Cpu)?;
/// let w = Tensor::new(&[1f32, 0.0, -1.0, 1.0, 1.0, 1.0], &[2, 3], &Device::Cpu)?;
/// let bias = Tensor::new(&[0f32, -9.0, 0.0], &[3], &Device::Cpu)?;
/// let y = linear(&x, &w, Some(&bias), Activation::Relu)?;
/// assert_eq!(y.read_blocking::<f32>()?, [3.0, 0.0, 1.0]);
///
/// let y = linear(&y, Weight::nk(&w), None, Activation::None)?; // back through wᵀ
/// assert_eq!(y.read_blocking::<f32>()?, [2.0, 4.0]);
/// # Ok::<(), taipan::Error>(())
/// ```
pub fn linear<'a>(
    x: &Tensor,
    w: impl Into<Weight<'a>>,
    bias: Option<&Tensor>,
    activation: Activation,
) -> Result<Tensor> {
    apply(x, w.into(), bias, activation, DerivativeFrom::Saved)
}

/// [`linear`] with less memory and more time: only `x`, `w` and `bias` are saved for backward,
/// which recomputes the product if the derivative of the activation needs it. Values and gradients
/// are the same to the last bit.
///
/// ```
/// use taipan::{Activation, DType, Device, Tensor, linear_recomputing};
///
/// let x = Tensor::randn(&[5, 3], 1, DType::F32, &Device::Cpu)?.tracked();
/// let w = Tensor::randn(&[3, 4], 2, DType::F32, &Device::Cpu)?.tracked();
/// let y = linear_recomputing(&x, &w, None, Activation::Gelu)?;
/// assert_eq!(y.sum()?.backward()?.of(&w)?.shape(), [3, 4]);
/// # Ok::<(), taipan::Error>(())
/// ```
pub fn linear_recomputing<'a>(
    x: &Tensor,
    w: impl Into<Weight<'a>>,
    bias: Option<&Tensor>,
    activation: Activation,
) -> Result<Tensor> {
    apply(x, w.into(), bias, activation, DerivativeFrom::Inputs)
}

fn apply(
    x: &Tensor,
    w: Weight,
    bias: Option<&Tensor>,
    activation: Activation,
    derivative: DerivativeFrom,
) -> Result<Tensor> {
    let (w, layout) = match w.0 {
        Stored::Float(w, layout) => (w, layout),
        Stored::Int8(w) => return w.linear(x, bias, activation.into()),
    };
    let function = activation.into();
    let op = Linear { name: OP, layout, function, derivative, has_residual: false };
    let inputs: Few<&Tensor> = [x, w].into_iter().chain(bias).collect();
    apply_one(op, &inputs)
}

/// `x·w` for the op `name`, which has checked the shapes.
pub(super) fn product(name: &'static str, x: &Tensor, w: &Tensor) -> Result<Tensor> {
    let function = Activation::None.into();
    let derivative = DerivativeFrom::Saved;
    let layout = Layout::RowMajor;
    apply_one(Linear { name, layout, function, derivative, has_residual: false }, &[x, w])
}

/// `x·w + bias + residual`, computed in one pass: [`linear`] at the end of a residual block, without
/// another trip through memory. The residual has the shape and type of the result, and so has its
/// gradient, which is that of the result. The weight is not an [`Int8`].
///
/// ```
/// use taipan::{DType, Device, Tensor, linear_residual};
///
/// let x = Tensor::ones(&[2, 3], DType::F32, &Device::Cpu)?;
/// let w = Tensor::ones(&[3, 3], DType::F32, &Device::Cpu)?;
/// let y = linear_residual(&x, &w, None, &x)?;
/// assert_eq!(y.read_blocking::<f32>()?, [4.0; 6]);
/// # Ok::<(), taipan::Error>(())
/// ```
pub fn linear_residual<'a>(
    x: &Tensor,
    w: impl Into<Weight<'a>>,
    bias: Option<&Tensor>,
    residual: &Tensor,
) -> Result<Tensor> {
    const NAME: &str = "linear_residual";
    let (w, layout) = w.into().float(NAME)?;
    let (function, derivative) = (Activation::None.into(), DerivativeFrom::Saved);
    let op = Linear { name: NAME, layout, function, derivative, has_residual: true };
    let inputs: Vec<&Tensor> = [x, w].into_iter().chain(bias).chain([residual]).collect();
    apply_one(op, &inputs)
}

/// The gradients of [`linear`], from [`linear_backward`].
#[derive(Clone, Debug)]
pub struct LinearGrads {
    /// Of `x`, in its shape.
    pub dx: Tensor,
    /// Of `w`, in its shape: summed over the batch if the batch shares it.
    pub dw: Tensor,
    /// Of `bias`: `[n]`; absent without a bias.
    pub dbias: Option<Tensor>,
}

/// The gradients of `activation(x·w + bias)` given `dy`, the gradient of the result: for programs
/// with their own autograd. Nothing from the forward pass is needed; what the derivative of the
/// activation needs is recomputed.
///
/// ```
/// use taipan::{Activation, DType, Device, Tensor, linear_backward};
///
/// let x = Tensor::randn(&[5, 3], 1, DType::F32, &Device::Cpu)?;
/// let w = Tensor::randn(&[3, 4], 2, DType::F32, &Device::Cpu)?;
/// let dy = Tensor::randn(&[5, 4], 3, DType::F32, &Device::Cpu)?;
/// let grads = linear_backward(&x, &w, None, Activation::Gelu, &dy)?;
/// assert_eq!((grads.dx.shape(), grads.dw.shape()), (&[5, 3][..], &[3, 4][..]));
/// # Ok::<(), taipan::Error>(())
/// ```
pub fn linear_backward<'a>(
    x: &Tensor,
    w: impl Into<Weight<'a>>,
    bias: Option<&Tensor>,
    activation: Activation,
    dy: &Tensor,
) -> Result<LinearGrads> {
    let (w, layout) = w.into().float(OP)?;
    let derivative = DerivativeFrom::Inputs;
    let function = activation.into();
    let op = Linear { name: OP, layout, function, derivative, has_residual: false };
    let inputs: Vec<&Tensor> = [x, w].into_iter().chain(bias).collect();
    let specs: Vec<Spec> = inputs.iter().map(|t| t.spec.clone()).collect();
    let result = op.outputs(&specs.iter().collect::<Vec<_>>())?.swap_remove(0);
    let (found, expected) = (dy.shape(), result.shape());
    ensure!(OP, found == expected, "the upstream is {found:?}, expected {expected:?}");
    dy.dtype().ensure(result.dtype(), OP, "the upstream")?;
    dy.device().ensure(x.device(), OP, "the upstream")?;
    let inputs: Vec<Tensor> = inputs.into_iter().map(Tensor::detached).collect();
    let inputs: Vec<&Tensor> = inputs.iter().collect();
    let saved = op.recompute_saved(&inputs)?;
    let backward = Backward::new(&op, &specs, dy, saved, 2)?;
    let dx = backward.dx(w, None)?;
    let (dw, dbias) = backward.dw(x, bias.is_some())?;
    Ok(LinearGrads { dx, dw, dbias })
}

/// The product `x·w` of tensors that were checked. It has one entry, with all rows of the input,
/// unless there is a weight matrix for each entry of the batch.
fn product_of(layout: Layout, x: &Spec, w: &Spec) -> Product {
    let ([lead @ .., rows, k], [w_lead @ .., w0, w1]) = (x.shape(), w.shape()) else {
        unreachable!("the shapes were checked")
    };
    let batch: usize = lead.iter().product();
    let (entries, m) = if w_lead.is_empty() { (1, batch * rows) } else { (batch, *rows) };
    let n = if layout == Layout::RowMajor { *w1 } else { *w0 };
    Product { entries, m, n, k: *k, left: Layout::RowMajor, right: layout }
}

/// Check `x` and `w`, and `bias` if there is a third.
fn check(layout: Layout, inputs: &[&Spec]) -> Result<()> {
    let (x, w) = (inputs[0].shape(), inputs[1].shape());
    inputs[0].dtype().ensure_float(OP, "the input")?;
    inputs[1].dtype().ensure(inputs[0].dtype(), OP, "the weight")?;
    let (lead, [_, k]) = matrix("the input", x)?;
    let (w_lead, [w0, w1]) = matrix("the weight", w)?;
    let (w_k, n, form) = match layout {
        Layout::RowMajor => (w0, w1, "[…, k, n]"),
        Layout::Transposed => (w1, w0, "[…, n, k]"),
    };
    ensure!(OP, w_k == k, "the weight is {w:?}, expected {form} with k = {k} for {x:?}");
    ensure!(
        OP,
        w_lead.is_empty() || w_lead == lead,
        "the weight is {w:?}, expected 2 dimensions{} for {x:?}",
        if lead.is_empty() { String::new() } else { format!(" or {lead:?} in front") }
    );
    if let Some(bias) = inputs.get(2) {
        ensure!(OP, bias.shape() == [n], "bias is {:?}, expected [{n}]", bias.shape());
        bias.dtype().ensure(inputs[0].dtype(), OP, "bias")?;
    }
    Ok(())
}

/// A shape's leading dimensions and its last two.
fn matrix<'a>(name: &str, shape: &'a [usize]) -> Result<(&'a [usize], [usize; 2])> {
    match shape {
        [lead @ .., rows, columns] => Ok((lead, [*rows, *columns])),
        _ => {
            let why = format!("{name} is {shape:?}, expected 2 dimensions or more");
            Err(Error::Shape { op: OP, why })
        }
    }
}
