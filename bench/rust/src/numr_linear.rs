//! numr: its fused product with bias and gelu, and the gradients of that, on the CPU and by wgpu.

use numr::ops::{GemmActivation, GemmEpilogueOps};
use numr::prelude::*;

use crate::case::Case;
use crate::clock::Clock;
use crate::{Contestant, Output, unsupported};

pub fn prepare(case: &Case) -> crate::Result<Box<dyn Contestant>> {
    if case.device == "gpu" {
        // Its adapters are numbered as wgpu lists them; drivers are chosen by the environment.
        let device = WgpuDevice::new(0);
        return Ok(Box::new(Linear::<WgpuRuntime>::new(case, device)?));
    }
    Ok(Box::new(Linear::<CpuRuntime>::new(case, CpuDevice::new())?))
}

struct Linear<R: Runtime> {
    client: R::Client,
    x: Tensor<R>,
    w: Tensor<R>,
    bias: Tensor<R>,
    dy: Tensor<R>,
    backward: bool,
}

impl<R: Runtime<DType = DType>> Linear<R>
where
    R::Client: GemmEpilogueOps<R> + TypeConversionOps<R>,
{
    fn new(case: &Case, device: R::Device) -> crate::Result<Linear<R>> {
        let [m, k, n] = case.product()?;
        let client = R::default_client(&device);
        let dtype = match case.dtype.as_str() {
            "f32" => DType::F32,
            "bf16" => DType::BF16,
            other => return unsupported(other),
        };
        let input = |name, shape: &[usize]| -> crate::Result<Tensor<R>> {
            let tensor = Tensor::<R>::from_slice(&case.input(name)?, shape, &device)?;
            Ok(if dtype == DType::F32 { tensor } else { client.cast(&tensor, dtype)? })
        };
        Ok(Linear {
            x: input("x", &[m, k])?,
            w: input("w", &[k, n])?,
            bias: input("bias", &[n])?,
            dy: input("dy", &[m, n])?,
            backward: case.is_backward(),
            client,
        })
    }

    fn once(&self) -> crate::Result<Vec<Tensor<R>>> {
        let (x, w, bias, gelu) = (&self.x, &self.w, &self.bias, GemmActivation::GELU);
        let found = if self.backward {
            let (dx, dw, dbias) =
                self.client.matmul_bias_activation_bwd(&self.dy, x, w, bias, gelu)?;
            vec![dx, dw, dbias]
        } else {
            vec![self.client.matmul_bias_activation(x, w, bias, gelu)?]
        };
        self.client.synchronize();
        Ok(found)
    }
}

impl<R: Runtime<DType = DType>> Contestant for Linear<R>
where
    R::Client: GemmEpilogueOps<R> + TypeConversionOps<R>,
{
    fn outputs(&mut self) -> crate::Result<Vec<Output>> {
        let names: &[&'static str] = if self.backward { &["dx", "dw", "dbias"] } else { &["y"] };
        let found = self.once()?;
        let values = |tensor: &Tensor<R>| -> crate::Result<Vec<f32>> {
            if tensor.dtype() == DType::F32 {
                return Ok(tensor.to_vec());
            }
            Ok(self.client.cast(tensor, DType::F32)?.to_vec())
        };
        names.iter().zip(&found).map(|(name, tensor)| Ok((*name, values(tensor)?))).collect()
    }

    fn run(&mut self, times: usize, clock: &mut Clock) -> crate::Result<()> {
        clock.time(|| (0..times).try_for_each(|_| self.once().map(drop)))
    }
}
