//! The accuracy of the adapter's own `exp2` and `tanh`, which WGSL leaves to it.

use taipan::check::ulp;
use taipan::{
    BackwardReads, CustomOp, DType, Device, Number, Result, SavedTensors, Tensor, custom,
};

use crate::Check;

/// How many numbers are tried.
const COUNT: usize = 1 << 14;

/// A function of WGSL: `tanh` or `exp2`.
struct Builtin<const TANH: bool>;

impl<const TANH: bool> CustomOp for Builtin<TANH> {
    const NAME: &'static str = "builtin";
    const INPUTS: &'static [&'static str] = &["x"];
    const BACKWARD_READS: BackwardReads = BackwardReads::Nothing;
    const WGSL: &'static str = match TANH {
        true => "fn value(i: u32) -> f32 { return tanh(f32(x[i])); }",
        false => "fn value(i: u32) -> f32 { return exp2(f32(x[i])); }",
    };

    fn shape(&self, inputs: &[&[usize]]) -> std::result::Result<Vec<usize>, String> {
        Ok(inputs[0].to_vec())
    }

    fn sizes(&self, _: &[&[usize]]) -> Vec<usize> {
        Vec::new()
    }

    fn cpu<A: Number>(&self, inputs: &[&[A]], _: &[usize], first: usize, y: &mut [A]) {
        let math = if TANH { f64::tanh } else { f64::exp2 };
        for (y, x) in y.iter_mut().zip(&inputs[0][first..]) {
            *y = A::from_f64(math(x.into_f64()));
        }
    }

    /// Only its value is of interest.
    fn backward(&self, _: &SavedTensors, _: &Tensor) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![None])
    }
}

/// Both, on a GPU; the CPU has no such functions.
pub async fn builtins(device: &Device) -> Vec<Check> {
    if *device == Device::Cpu {
        return Vec::new();
    }
    // In the units in which WGSL bounds the error.
    let exp2 = errors::<false>(device, 125.0, f64::exp2).await.map(|errors| {
        let ulps = |[x, expected, off]: [f64; 3]| (off / ulp(expected, DType::F32), x);
        let errors = errors.into_iter().map(ulps);
        let passed = errors.clone().all(|(ulps, x)| ulps <= 3.0 + 2.0 * x.abs());
        found(passed, format!("{:.1} ulp", worst(errors.map(|(ulps, _)| ulps))))
    });
    let tanh = errors::<true>(device, 15.0, f64::tanh).await.map(|errors| {
        let worst = worst(errors.into_iter().map(|[_, _, off]| off));
        found(worst <= 1e-5, format!("off by {worst:.0e}"))
    });
    vec![Check::new("exp2", exp2), Check::new("tanh", tanh)]
}

fn found(passed: bool, worst: String) -> (bool, String) {
    let limit = if passed { "within" } else { "more than" };
    (passed, format!("{worst} at most, {limit} what WGSL allows"))
}

/// The largest. NaN is larger.
fn worst(errors: impl Iterator<Item = f64>) -> f64 {
    errors.fold(0.0, |a, b| if b > a || b.is_nan() { b } else { a })
}

/// Numbers, what a function of them should be, and how far it is from that.
async fn errors<const TANH: bool>(
    device: &Device,
    limit: f64,
    math: fn(f64) -> f64,
) -> Result<Vec<[f64; 3]>> {
    // Of every magnitude down to 2⁻²⁰, of both signs.
    let numbers = (0..COUNT).map(|i| {
        let magnitude = limit * 2f64.powf((limit.log2() + 20.0) * (i as f64 / COUNT as f64 - 1.0));
        (if i % 2 == 0 { magnitude } else { -magnitude }) as f32
    });
    let x: Vec<f32> = numbers.collect();
    let y = custom(Builtin::<TANH>, &[&Tensor::new(&x, &[COUNT], device)?])?;
    let pairs = x.into_iter().map(f64::from).zip(y.read::<f32>().await?);
    Ok(pairs.map(|(x, y)| [x, math(x), (f64::from(y) - math(x)).abs()]).collect())
}
