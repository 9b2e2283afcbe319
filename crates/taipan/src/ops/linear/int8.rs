//! A weight in 8 bits: [`Int8`].

use smallvec::smallvec;

use super::forward::Forward;
use super::{OP, matrix};
use crate::cpu::gemm::{self, INT8_BLOCK as BLOCK, quantize};
use crate::cpu::threads::for_tasks;
use crate::dtype::Float;
use crate::error::{Error, Result, ensure};
use crate::function::Function;
use crate::kernel::{CpuIo, Few, GpuIo, Kernel, Results, compute, compute_one, run_one};
use crate::ops::embedding::ensure_below;
use crate::product::{Layout, Product};
use crate::spec::{Spec, joined};
use crate::tensor::{Arena, Tensor};
use crate::{DType, Device, grad_mode};

const QUANTIZE: &str = "int8";

/// `with_dtype!` for the types whose sums are f32, of which the caller has made sure.
#[cfg(any(not(target_family = "wasm"), feature = "check"))]
macro_rules! with_half_or_single {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            DType::F16 => {
                type $T = half::f16;
                $body
            }
            DType::BF16 => {
                type $T = half::bf16;
                $body
            }
            _ => {
                type $T = f32;
                $body
            }
        }
    };
}

#[cfg(all(target_family = "wasm", not(feature = "check")))]
macro_rules! with_half_or_single {
    ($dtype:expr, $T:ident => $body:expr) => {
        crate::dtype::with_dtype!($dtype, $T: Float => $body)
    };
}

/// A weight `[n, k]` in 8 bits, for running a model in a quarter of the memory of f32, and of its
/// time where that is bound by memory: each block of 32 elements of a row has a scale, the largest
/// magnitude divided by 127, and each element is a whole number from −127 to 127 times the scale.
///
/// [`linear`](crate::linear) takes it as [`Weight::int8`](crate::Weight::int8). With at most 8 rows
/// of `x`, these are quantised in the same way, block by block. It is for the CPU, and has no
/// gradient.
///
/// ```
/// use taipan::{Activation, DType, Device, Int8, Tensor, Weight, linear};
///
/// let w = Tensor::randn(&[10, 64], 1, DType::F32, &Device::Cpu)?;
/// let int8 = Int8::quantize(&w)?;
/// assert_eq!(int8.bytes(), 10 * 64 + 10 * 2 * 4);
/// let x = Tensor::randn(&[1, 64], 2, DType::F32, &Device::Cpu)?;
/// let exact = linear(&x, Weight::nk(&w), None, Activation::None)?;
/// let near = linear(&x, &int8, None, Activation::None)?;
/// let error = near.sub(&exact)?.read_blocking::<f32>()?;
/// assert!(error.iter().all(|e| e.abs() < 0.4), "of sums of about 8");
/// # Ok::<(), taipan::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Int8 {
    /// `[n, blocks·8]`, u32, four codes each; those beyond `k` are 0.
    codes: Tensor,
    /// `[n, blocks]`, f32
    scales: Tensor,
    k: usize,
}

impl Int8 {
    /// The nearest weight in 8 bits. `weight` is `[n, k]`, in f32, f16 or bf16. A block with an
    /// infinity or NaN gives such results.
    pub fn quantize(weight: &Tensor) -> Result<Int8> {
        ensure_dtype(QUANTIZE, "the weight", weight.dtype())?;
        ensure_cpu(QUANTIZE, weight)?;
        let &[n, k] = weight.shape() else {
            let why = format!("the weight is {:?}, expected [n, k]", weight.shape());
            return Err(Error::Shape { op: QUANTIZE, why });
        };
        let blocks = k.div_ceil(BLOCK);
        let specs = smallvec![
            Spec::new(QUANTIZE, &[n, blocks * BLOCK / 4], DType::U32)?,
            Spec::new(QUANTIZE, &[n, blocks], DType::F32)?,
        ];
        let cpu = |CpuIo { inputs, outputs }: CpuIo| {
            let [codes, scales] = outputs else { unreachable!("two results") };
            with_half_or_single!(weight.dtype(), T => {
                let rows = inputs[0].as_slice::<T>().chunks(k.max(1));
                let codes = codes.as_mut_slice::<u32>().chunks_mut((blocks * BLOCK / 4).max(1));
                let scales = scales.as_mut_slice::<f32>().chunks_mut(blocks.max(1));
                let tasks = rows.zip(codes).zip(scales);
                for_tasks(tasks, n * k, |((row, codes), scales)| {
                    codes.fill(0);
                    let codes: &mut [i8] = bytemuck::cast_slice_mut(codes);
                    let mut wide = [0f32; BLOCK];
                    let blocks = row.chunks(BLOCK).zip(codes.chunks_mut(BLOCK));
                    for ((x, codes), scale) in blocks.zip(scales) {
                        let wide = &mut wide[..x.len()];
                        T::widen(x, wide);
                        *scale = quantize(wide, &mut codes[..x.len()]);
                    }
                });
            });
            Ok(())
        };
        let gpu = |_: GpuIo| unreachable!("refused above");
        let mut parts = compute((QUANTIZE, ""), &[weight], specs, cpu, gpu)?;
        let scales = parts.swap_remove(1);
        Ok(Int8 { codes: parts.swap_remove(0), scales, k })
    }

    /// A copy in an arena.
    pub fn stored_in(&self, arena: &mut Arena) -> Result<Int8> {
        let (codes, scales) = (arena.store(&self.codes)?, arena.store(&self.scales)?);
        Ok(Int8 { codes, scales, k: self.k })
    }

    /// `[n, k]`
    pub fn shape(&self) -> [usize; 2] {
        [self.codes.shape()[0], self.k]
    }

    /// Where it is.
    pub fn device(&self) -> &Device {
        self.codes.device()
    }

    /// The codes, four in a u32, and the scales.
    pub fn tensors(&self) -> [&Tensor; 2] {
        [&self.codes, &self.scales]
    }

    /// The bytes of codes and scales.
    pub fn bytes(&self) -> usize {
        self.codes.spec.bytes() + self.scales.spec.bytes()
    }

    /// The rows with the indices `ids`, u32, in f32: what [`embedding`](crate::embedding) gives for
    /// a table. An index that is not below `n` is an error.
    pub fn rows(&self, ids: &Tensor) -> Result<Tensor> {
        const OP: &str = "embedding";
        let [n, k] = self.shape();
        ids.dtype().ensure(DType::U32, OP, "the tensor of ids")?;
        let spec = Spec::new(OP, &joined(&[ids.shape(), &[k]]), DType::F32)?;
        let cpu = |CpuIo { inputs, outputs }: CpuIo| {
            let ids = inputs[2].as_slice::<u32>();
            ensure_below(OP, "id", ids, n, None)?;
            let table = source(inputs[0].as_slice(), inputs[1].as_slice(), inputs[1].spec);
            for (y, id) in outputs[0].as_mut_slice::<f32>().chunks_mut(k.max(1)).zip(ids) {
                gemm::Source::read(&table, *id as usize, 0, y);
            }
            Ok(())
        };
        let gpu = |_: GpuIo| unreachable!("there is none on a GPU");
        compute_one((OP, ""), &[&self.codes, &self.scales, ids], spec, cpu, gpu)
    }

    /// [`linear`](crate::linear) with this weight.
    pub(super) fn linear(
        &self,
        x: &Tensor,
        bias: Option<&Tensor>,
        function: Function,
    ) -> Result<Tensor> {
        let inputs: Few<&Tensor> = [x, &self.codes, &self.scales].into_iter().chain(bias).collect();
        if grad_mode::is_enabled() && inputs.iter().any(|input| input.is_tracked()) {
            return Err(no_gradient(OP));
        }
        run_one(&LinearInt8 { function, k: self.k }, &inputs)
    }
}

/// A tracked tensor reached a weight in 8 bits.
pub(super) fn no_gradient(op: &'static str) -> Error {
    let why = "the weight is int8, which has no gradient; expected no_grad, or a float weight";
    Error::Gradient { op, why: why.into() }
}

/// Inputs `x`, the codes, the scales and, if there is one, `bias`.
struct LinearInt8 {
    function: Function,
    k: usize,
}

impl Kernel for LinearInt8 {
    fn name(&self) -> &'static str {
        OP
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Results<Spec>> {
        let (dtype, x, k) = (inputs[0].dtype(), inputs[0].shape(), self.k);
        let n = inputs[1].shape()[0];
        ensure_dtype(OP, "the input of an int8 weight", dtype)?;
        let (lead, [rows, found]) = matrix("the input", x)?;
        ensure!(OP, found == k, "the weight is [{n}, {k}], expected [n, {found}] for {x:?}");
        if let Some(bias) = inputs.get(3) {
            ensure!(OP, bias.shape() == [n], "bias is {:?}, expected [{n}]", bias.shape());
            bias.dtype().ensure(dtype, OP, "bias")?;
        }
        Ok(smallvec![Spec::new(OP, &joined(&[lead, &[rows, n]]), dtype)?])
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        let (x, bias, function) = (&inputs[0], inputs.get(3), self.function);
        let (n, k) = (inputs[1].spec.shape()[0], self.k);
        let m = outputs[0].spec.len().checked_div(n).unwrap_or(0);
        let (left, right) = (Layout::RowMajor, Layout::Transposed);
        let product = Product { entries: 1, m, n, k, left, right };
        let right = &source(inputs[1].as_slice(), inputs[2].as_slice(), inputs[2].spec);
        with_half_or_single!(x.spec.dtype(), T => {
            let forward = Forward::<T> { product, function, x, bias, residual: None, right };
            forward.store(outputs[0].as_mut_slice(), None)
        })
    }

    fn gpu(&self, _: GpuIo) -> Result<()> {
        unreachable!("there is no int8 weight on a GPU")
    }
}

fn source<'a>(codes: &'a [u32], scales: &'a [f32], spec: &Spec) -> gemm::Int8<'a> {
    gemm::Int8 { codes: bytemuck::cast_slice(codes), scales, blocks: spec.shape()[1] }
}

fn ensure_dtype(op: &'static str, name: &'static str, found: DType) -> Result<()> {
    match found {
        DType::F32 | DType::F16 | DType::BF16 => Ok(()),
        _ => Err(Error::DType { op, name, found, expected: "f32, f16 or bf16".into() }),
    }
}

fn ensure_cpu(op: &'static str, weight: &Tensor) -> Result<()> {
    match weight.device() {
        Device::Cpu => Ok(()),
        device => {
            let device = device.describe();
            let why =
                format!("the weight is on {device}, expected the CPU; there, use f16 or bf16");
            Err(Error::Device { op, why })
        }
    }
}
