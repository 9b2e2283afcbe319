//! The selective scan, forward and backward, and one step of decoding.

mod cpu;
mod gpu;
#[path = "../report/mod.rs"]
mod report;

use report::{Contender, wait};
use taipan::{DType, Device, Discretization, Result, Scan, Tensor, selective_scan};

fn main() -> Result<()> {
    report::run(cpu::run, gpu::run)
}

/// The inputs of a scan as a Mamba block has them, and the upstream of its result.
struct Inputs {
    u: Tensor,
    delta: Tensor,
    a_log: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor,
    delta_bias: Tensor,
    z: Tensor,
    dy: Tensor,
}

impl Inputs {
    fn new([b, l, d, n]: [usize; 4], dtype: DType, device: &Device) -> Result<Inputs> {
        let random = |shape: &[usize], seed| Tensor::randn(shape, seed, dtype, device);
        let states: Vec<f32> = (0..d * n).map(|i| ((i % n + 1) as f32).ln()).collect();
        Ok(Inputs {
            u: random(&[b, l, d], 1)?,
            delta: random(&[b, l, d], 2)?,
            a_log: Tensor::new(&states, &[d, n], device)?,
            b: random(&[b, l, n], 3)?,
            c: random(&[b, l, n], 4)?,
            d: Tensor::ones(&[d], DType::F32, device)?,
            delta_bias: Tensor::full(&[d], -4.0, DType::F32, device)?,
            z: random(&[b, l, d], 5)?,
            dy: random(&[b, l, d], 6)?,
        })
    }

    fn scan(&self, discretization: Discretization) -> Scan<'_> {
        let scan = Scan::new(&self.u, &self.delta, &self.a_log, &self.b, &self.c);
        Scan {
            d: Some(&self.d),
            delta_bias: Some(&self.delta_bias),
            z: Some(&self.z),
            discretization,
            ..scan
        }
    }

    fn forward(&self, discretization: Discretization) -> Contender<'_> {
        Box::new(move || {
            Box::new(move || {
                selective_scan(&self.scan(discretization)).expect("forward");
                wait(self.u.device());
            })
        })
    }

    fn forward_backward(&self, discretization: Discretization) -> Contender<'_> {
        Box::new(move || {
            Box::new(move || {
                let tracked = |tensor: &Tensor| tensor.clone().tracked();
                let inputs = Inputs {
                    u: tracked(&self.u),
                    delta: tracked(&self.delta),
                    a_log: tracked(&self.a_log),
                    b: tracked(&self.b),
                    c: tracked(&self.c),
                    d: tracked(&self.d),
                    delta_bias: tracked(&self.delta_bias),
                    z: tracked(&self.z),
                    dy: self.dy.clone(),
                };
                let (y, _) = selective_scan(&inputs.scan(discretization)).expect("forward");
                let grads = y.backward_from(&inputs.dy).expect("backward");
                grads.of(&inputs.u).expect("a gradient");
                wait(self.u.device());
            })
        })
    }
}
