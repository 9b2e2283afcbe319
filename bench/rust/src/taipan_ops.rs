//! taipan: the linear layer and the scan, on the CPU or a GPU.

use taipan::{Activation, DType, Device, Scan, Tensor, linear, selective_scan};

use crate::case::Case;
use crate::clock::Clock;
use crate::{Contestant, Output, Result, unsupported};

pub fn prepare(case: &Case) -> Result<Box<dyn Contestant>> {
    let device = match case.device.as_str() {
        "gpu" => Device::gpu()?,
        _ => Device::Cpu,
    };
    match case.task.as_str() {
        "linear" => Ok(Box::new(Linear::new(case, &device)?)),
        _ => Ok(Box::new(Scanned::new(case, &device)?)),
    }
}

pub fn dtype(case: &Case) -> Result<DType> {
    match case.dtype.as_str() {
        "f32" => Ok(DType::F32),
        "f16" => Ok(DType::F16),
        "bf16" => Ok(DType::BF16),
        other => unsupported(other),
    }
}

/// Until the device has computed everything.
pub fn wait(device: &Device) -> Result<()> {
    if let Device::Gpu(gpu) = device {
        gpu.flush()?;
        gpu.device().poll(taipan::wgpu::PollType::wait_indefinitely())?;
    }
    Ok(())
}

fn values(tensor: &Tensor) -> Result<Vec<f32>> {
    Ok(tensor.cast(DType::F32)?.read_blocking::<f32>()?)
}

/// With bias and gelu.
pub struct Linear {
    pub x: Tensor,
    pub w: Tensor,
    pub bias: Tensor,
    pub dy: Tensor,
    backward: bool,
}

impl Linear {
    pub fn new(case: &Case, device: &Device) -> Result<Linear> {
        let [m, k, n] = case.product()?;
        let dtype = dtype(case)?;
        let input = |name, shape: &[usize]| -> Result<Tensor> {
            Ok(Tensor::new(&case.input(name)?, shape, device)?.cast(dtype)?)
        };
        Ok(Linear {
            x: input("x", &[m, k])?,
            w: input("w", &[k, n])?,
            bias: input("bias", &[n])?,
            dy: input("dy", &[m, n])?,
            backward: case.is_backward(),
        })
    }

    /// Inputs with a graph behind the result.
    fn tracked(&self) -> Result<([Tensor; 3], Tensor)> {
        let leaves = [&self.x, &self.w, &self.bias].map(|tensor| tensor.clone().tracked());
        let [x, w, bias] = &leaves;
        let y = linear(x, w, Some(bias), Activation::Gelu)?;
        wait(self.x.device())?;
        Ok((leaves, y))
    }

    fn forward(&self) -> Result<Tensor> {
        let y = linear(&self.x, &self.w, Some(&self.bias), Activation::Gelu)?;
        wait(self.x.device())?;
        Ok(y)
    }

    fn gradients(&self, leaves: &[Tensor; 3], y: &Tensor) -> Result<[Tensor; 3]> {
        let grads = y.backward_from(&self.dy)?;
        let [x, w, bias] = leaves;
        let found = [grads.of(x)?.clone(), grads.of(w)?.clone(), grads.of(bias)?.clone()];
        wait(self.x.device())?;
        Ok(found)
    }
}

impl Contestant for Linear {
    fn outputs(&mut self) -> Result<Vec<Output>> {
        if !self.backward {
            return Ok(vec![("y", values(&self.forward()?)?)]);
        }
        let (leaves, y) = self.tracked()?;
        let [dx, dw, dbias] = self.gradients(&leaves, &y)?;
        Ok(vec![("dx", values(&dx)?), ("dw", values(&dw)?), ("dbias", values(&dbias)?)])
    }

    fn run(&mut self, times: usize, clock: &mut Clock) -> Result<()> {
        if !self.backward {
            return clock.time(|| (0..times).try_for_each(|_| self.forward().map(drop)));
        }
        for _ in 0..times {
            // From saved values: the forward pass is not timed.
            let (leaves, y) = self.tracked()?;
            clock.time(|| self.gradients(&leaves, &y))?;
        }
        Ok(())
    }
}

const NAMES: [&str; 8] = ["u", "delta", "a_log", "b", "c", "d", "delta_bias", "z"];
const GRADIENTS: [&str; 8] = ["du", "ddelta", "da_log", "db", "dc", "dd", "ddelta_bias", "dz"];

struct Scanned {
    /// In the order of [`NAMES`].
    inputs: Vec<Tensor>,
    dy: Tensor,
    backward: bool,
}

impl Scanned {
    fn new(case: &Case, device: &Device) -> Result<Scanned> {
        let [b, l, d, n] = case.scan()?;
        let dtype = dtype(case)?;
        if dtype != DType::F32 {
            return unsupported(&case.dtype);
        }
        let input = |name: &str| -> Result<Tensor> {
            let shape = match name {
                "b" | "c" => vec![b, l, n],
                "a_log" => vec![d, n],
                "d" | "delta_bias" => vec![d],
                _ => vec![b, l, d],
            };
            Ok(Tensor::new(&case.input(name)?, &shape, device)?)
        };
        let inputs = NAMES.iter().map(|name| input(name)).collect::<Result<_>>()?;
        Ok(Scanned { inputs, dy: input("dy")?, backward: case.is_backward() })
    }

    fn forward(inputs: &[Tensor]) -> Result<Tensor> {
        let [u, delta, a_log, b, c, d, delta_bias, z] = inputs else {
            return Err("a scan has eight inputs".into());
        };
        let scan = Scan::new(u, delta, a_log, b, c);
        let scan = Scan { d: Some(d), delta_bias: Some(delta_bias), z: Some(z), ..scan };
        Ok(selective_scan(&scan)?.0)
    }

    /// The output, and the gradients of all inputs if they are asked for.
    fn once(&self) -> Result<Vec<Tensor>> {
        if !self.backward {
            return Ok(vec![Scanned::forward(&self.inputs)?]);
        }
        let leaves: Vec<Tensor> = self.inputs.iter().map(|t| t.clone().tracked()).collect();
        let y = Scanned::forward(&leaves)?;
        let grads = y.backward_from(&self.dy)?;
        let mut found = vec![y.detached()];
        for leaf in &leaves {
            found.push(grads.of(leaf)?.clone());
        }
        Ok(found)
    }
}

impl Contestant for Scanned {
    fn outputs(&mut self) -> Result<Vec<Output>> {
        let names = std::iter::once("y").chain(GRADIENTS);
        let found = self.once()?;
        names.zip(&found).map(|(name, tensor)| Ok((name, values(tensor)?))).collect()
    }

    fn run(&mut self, times: usize, clock: &mut Clock) -> Result<()> {
        clock.time(|| (0..times).try_for_each(|_| self.once().map(drop)))
    }
}
