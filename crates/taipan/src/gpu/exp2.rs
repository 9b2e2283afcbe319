//! The accuracy of the adapter's own `exp2`. It is one instruction where a polynomial is eighteen,
//! but WGSL promises no more than 3 + 2·|x| ulp.

use super::buffer::Buffers;
use super::program::ELEMENTS;
use super::{Gpu, Grid, Launch, MapParams, Program, lock};
use crate::error::Result;

const OP: &str = "exp2";

/// The largest error, in ulp, with which kernels use it.
const MAX_ULP: f64 = 2.0;

impl Gpu {
    /// Whether kernels may use the builtin function `exp2`.
    pub(crate) fn has_accurate_exp2(&self) -> bool {
        self.0.accurate_exp2.get().copied().unwrap_or(false)
    }

    /// Measure it, once.
    pub(super) async fn measure_exp2(&self) -> Result<()> {
        let accurate = self.exp2_error().await? <= MAX_ULP;
        let _ = self.0.accurate_exp2.set(accurate);
        // The program's own memory begins with nothing.
        *lock(&self.0.buffers) = Buffers::new();
        Ok(())
    }

    /// The largest error found, in ulp of the result.
    async fn exp2_error(&self) -> Result<f64> {
        // Numbers of every magnitude from 2⁻²⁰ to 125, of both signs.
        let numbers = (0..4096).map(|i| {
            let magnitude = exp2(i as f64 * (27.0 / 4096.0) - 20.0).min(125.0) as f32;
            if i % 2 == 0 { magnitude } else { -magnitude }
        });
        let x: Vec<f32> = numbers.collect();
        let input = self.upload(OP, bytemuck::cast_slice(&x))?;
        let output = self.scratch(OP, size_of_val(&x[..]))?;
        self.launch(Launch {
            name: OP,
            program: program(),
            params: MapParams { len: x.len() as u32 },
            inputs: &[input.all()],
            outputs: &[output.all()],
            grid: Grid::elements(x.len()),
        })?;
        let mut y = vec![0f32; x.len()];
        output.read(OP, bytemuck::cast_slice_mut(&mut y)).await?;
        let error = |(&x, &y): (&f32, &f32)| {
            let expected = exp2(f64::from(x));
            let ulp = 2f64.powi(expected.log2().floor() as i32 - 23);
            ((f64::from(y) - expected) / ulp).abs()
        };
        // NaN is the largest error.
        let worse = |a: f64, b: f64| if b > a || b.is_nan() { b } else { a };
        Ok(x.iter().zip(&y).map(error).fold(0.0, worse))
    }
}

/// `2^x`, to some 1e-14. Not by `f64::exp2`, whose table a page would load for this alone.
fn exp2(x: f64) -> f64 {
    (x * std::f64::consts::LN_2).exp()
}

pub(super) fn program() -> Program {
    Program::new::<MapParams>(&[wgsl!("wgsl/exp2.wgsl"), ELEMENTS], &[], &[])
}
