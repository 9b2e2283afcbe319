//! burn: the linear layer by its wgpu backend, with fusion and autotuning.

use burn::tensor::activation::gelu_approximate;
use burn::tensor::{Device, DeviceKind, Tensor, TensorData};

use crate::case::Case;
use crate::clock::Clock;
use crate::{Contestant, Output, Result, unsupported};

pub fn prepare(case: &Case) -> Result<Box<dyn Contestant>> {
    if case.dtype != "f32" || case.device != "gpu" {
        return unsupported(&format!("{} on {}", case.dtype, case.device));
    }
    let [m, k, n] = case.product()?;
    let plain = Device::wgpu(DeviceKind::DefaultDevice);
    let device = if case.is_backward() { plain.clone().autodiff() } else { plain.clone() };
    let input = |name, shape: [usize; 2], device: &Device| -> Result<Tensor<2>> {
        Ok(Tensor::from_data(TensorData::new(case.input(name)?, shape), device))
    };
    Ok(Box::new(Linear {
        x: input("x", [m, k], &device)?,
        w: input("w", [k, n], &device)?,
        bias: input("bias", [1, n], &device)?,
        dy: input("dy", [m, n], &device)?,
        device,
        backward: case.is_backward(),
    }))
}

struct Linear {
    device: Device,
    x: Tensor<2>,
    w: Tensor<2>,
    /// `[1, n]`
    bias: Tensor<2>,
    dy: Tensor<2>,
    backward: bool,
}

impl Linear {
    fn wait(&self) -> Result<()> {
        self.device.sync().map_err(|error| format!("burn: {error:?}").into())
    }

    fn forward(&self, [x, w, bias]: [Tensor<2>; 3]) -> Result<Tensor<2>> {
        let y = gelu_approximate(x.matmul(w) + bias);
        self.wait()?;
        Ok(y)
    }

    fn inputs(&self) -> [Tensor<2>; 3] {
        [self.x.clone(), self.w.clone(), self.bias.clone()]
    }

    /// Inputs with a graph behind the result: a backward pass consumes it.
    fn tracked(&self) -> Result<([Tensor<2>; 3], Tensor<2>)> {
        let leaves = self.inputs().map(Tensor::require_grad);
        let y = self.forward(leaves.clone())?;
        Ok((leaves, y))
    }

    /// Its backward pass starts from a number.
    fn gradients(&self, leaves: &[Tensor<2>; 3], y: Tensor<2>) -> Result<Vec<Tensor<2>>> {
        let grads = (y * self.dy.clone()).sum().backward();
        let of = |leaf: &Tensor<2>| leaf.grad(&grads).ok_or_else(|| "no gradient".into());
        let found = leaves.iter().map(of).collect::<Result<_>>()?;
        self.wait()?;
        Ok(found)
    }
}

fn values(tensor: Tensor<2>) -> Result<Vec<f32>> {
    tensor.into_data().to_vec().map_err(|error| format!("burn: {error:?}").into())
}

impl Contestant for Linear {
    fn outputs(&mut self) -> Result<Vec<Output>> {
        if !self.backward {
            return Ok(vec![("y", values(self.forward(self.inputs())?)?)]);
        }
        let (leaves, y) = self.tracked()?;
        let found = self.gradients(&leaves, y)?;
        let names = ["dx", "dw", "dbias"];
        names.into_iter().zip(found).map(|(name, tensor)| Ok((name, values(tensor)?))).collect()
    }

    fn run(&mut self, times: usize, clock: &mut Clock) -> Result<()> {
        for _ in 0..times {
            if self.backward {
                let (leaves, y) = self.tracked()?;
                clock.time(|| self.gradients(&leaves, y))?;
            } else {
                clock.time(|| self.forward(self.inputs()))?;
            }
        }
        Ok(())
    }
}
