//! The fused linear layer against plain products.

mod baseline;
mod cpu;
mod gpu;
#[path = "../report/mod.rs"]
mod report;

use report::{Contender, wait};
use taipan::{Activation, DType, Device, Result, Tensor, linear};

fn main() -> Result<()> {
    report::run(cpu::run, gpu::run)
}

/// A layer with gelu and bias, and the upstream of its result.
struct Layer {
    x: Tensor,
    w: Tensor,
    bias: Tensor,
    dy: Tensor,
}

impl Layer {
    fn new([m, k, n]: [usize; 3], dtype: DType, device: &Device) -> Result<Layer> {
        let random = |shape: &[usize], seed| Tensor::randn(shape, seed, dtype, device);
        let w = random(&[k, n], 2)?.scale((k as f64).powf(-0.5))?;
        Ok(Layer { x: random(&[m, k], 1)?, w, bias: random(&[n], 3)?, dy: random(&[m, n], 4)? })
    }

    fn forward(&self, activation: Activation) -> Contender<'_> {
        Box::new(move || {
            Box::new(move || {
                linear(&self.x, &self.w, Some(&self.bias), activation).expect("forward");
                wait(self.x.device());
            })
        })
    }

    /// From saved values: the forward pass is not timed.
    fn backward(&self) -> Contender<'_> {
        Box::new(move || {
            let [x, w, bias] = [&self.x, &self.w, &self.bias].map(|t| t.clone().tracked());
            let y = linear(&x, &w, Some(&bias), Activation::Gelu).expect("forward");
            wait(self.x.device());
            Box::new(move || {
                let grads = y.backward_from(&self.dy).expect("backward");
                for leaf in [&x, &w, &bias] {
                    grads.of(leaf).expect("a gradient");
                }
                wait(self.x.device());
            })
        })
    }
}
