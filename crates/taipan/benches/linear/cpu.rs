//! On the CPU, against the plain product of the crate `gemm`.

use std::sync::Mutex;

use taipan::{Activation, DType, Device, Result, Tensor};

use crate::Layer;
use crate::report::{Contender, Options, Row, race};

pub fn run(options: &Options) -> Result<()> {
    options.peak();
    for (m, k, n) in [(2048, 768, 3072), (8192, 256, 1024)] {
        compare(options, m, k, n)?;
    }
    activation_cost(options, 512, 512, 512)
}

/// Forward and backward with gelu: f32 against `gemm`, each other type against f32.
fn compare(options: &Options, m: usize, k: usize, n: usize) -> Result<()> {
    let report = |op, dtype: DType, ms, baseline, baseline_ms| {
        let (shape, dtype) = (format!("{m}x{k}x{n}"), dtype.to_string());
        options.report(&Row { op, shape, dtype, ms, baseline, baseline_ms });
    };
    let plain = Plain::new(m, k, n)?;
    let layer = Layer::new([m, k, n], DType::F32, &Device::Cpu)?;
    let gemm = || -> Contender { Box::new(|| Box::new(|| plain.run())) };
    let ms = race(&mut [gemm(), layer.forward(Activation::Gelu), layer.backward()]);
    let speed = 2e-6 * (m * k * n) as f64 / ms[0];
    options.say(&format!("gemm, plain product, {m}x{k}x{n} f32: {speed:.1} GF/s"));
    report("linear.forward", DType::F32, ms[1], "gemm", ms[0]);
    report("linear.backward", DType::F32, ms[2], "gemm", ms[0]);
    for dtype in [DType::F16, DType::BF16, DType::F64] {
        let other = Layer::new([m, k, n], dtype, &Device::Cpu)?;
        let ms = race(&mut [layer.forward(Activation::Gelu), other.forward(Activation::Gelu)]);
        report("linear.forward", dtype, ms[1], "taipan f32", ms[0]);
        let ms = race(&mut [layer.backward(), other.backward()]);
        report("linear.backward", dtype, ms[1], "taipan f32", ms[0]);
    }
    Ok(())
}

/// The product with gelu against the product without.
fn activation_cost(options: &Options, m: usize, k: usize, n: usize) -> Result<()> {
    let layer = Layer::new([m, k, n], DType::F32, &Device::Cpu)?;
    // Many short runs make one round.
    let repeated = |activation| -> Contender {
        let layer = &layer;
        Box::new(move || Box::new(move || (0..20).for_each(|_| layer.forward(activation)()())))
    };
    let ms = race(&mut [repeated(Activation::Gelu), repeated(Activation::None)]);
    let (shape, dtype) = (format!("{m}x{k}x{n}"), "f32".into());
    let (ms, baseline_ms) = (ms[0] / 20.0, ms[1] / 20.0);
    options.report(&Row { op: "linear.gelu", shape, dtype, ms, baseline: "no gelu", baseline_ms });
    Ok(())
}

/// The product alone, by `gemm`.
struct Plain {
    m: usize,
    k: usize,
    n: usize,
    x: Vec<f32>,
    w: Vec<f32>,
    dst: Mutex<Vec<f32>>,
}

impl Plain {
    fn new(m: usize, k: usize, n: usize) -> Result<Plain> {
        let random = |len, seed| {
            Tensor::randn(&[len], seed, DType::F32, &Device::Cpu)?.read_blocking::<f32>()
        };
        let dst = Mutex::new(vec![0.0; m * n]);
        Ok(Plain { m, k, n, x: random(m * k, 1)?, w: random(k * n, 2)?, dst })
    }

    fn run(&self) {
        let mut dst = self.dst.lock().expect("nobody panicked");
        let dst = dst.as_mut_ptr();
        let Plain { m, k, n, .. } = *self;
        let parallelism = match rayon::current_num_threads() {
            1 => gemm::Parallelism::None,
            threads => gemm::Parallelism::Rayon(threads),
        };
        // SAFETY: `dst` is [m, n], `x` is [m, k] and `w` is [k, n], all row-major.
        unsafe {
            let (k_, n_) = (k as isize, n as isize);
            let (x, w) = (self.x.as_ptr(), self.w.as_ptr());
            gemm::gemm(
                m,
                n,
                k,
                dst,
                1,
                n_,
                false,
                x,
                1,
                k_,
                w,
                1,
                n_,
                0f32,
                1f32,
                false,
                false,
                false,
                parallelism,
            );
        }
    }
}
