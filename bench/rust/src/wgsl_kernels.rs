//! The product alone, by two kernels that are easy to write: in 16×16 tiles, and without tiles.

use taipan::Device;

use crate::baseline::Baseline;
use crate::case::Case;
use crate::clock::Clock;
use crate::taipan_ops::{Linear, wait};
use crate::{Contestant, Output, Result, unsupported};

pub fn prepare(name: &str, case: &Case) -> Result<Box<dyn Contestant>> {
    if case.is_backward() {
        return unsupported("it has no backward pass");
    }
    let source = if name == "tile16" { Baseline::TILE16 } else { Baseline::UNTILED };
    let device = Device::gpu()?;
    let Device::Gpu(gpu) = &device else { return unsupported("there is no GPU") };
    let layer = Linear::new(case, &device)?;
    let kernel = Kernel(Baseline::new(gpu, source, &layer.x, &layer.w)?);
    wait(&device)?;
    Ok(Box::new(kernel))
}

struct Kernel(Baseline);

impl Kernel {
    fn once(&self) -> Result<()> {
        self.0.submit();
        wait(self.0.y.device())
    }
}

impl Contestant for Kernel {
    fn outputs(&mut self) -> Result<Vec<Output>> {
        self.once()?;
        Ok(vec![("product", self.0.y.read_blocking::<f32>()?)])
    }

    fn run(&mut self, times: usize, clock: &mut Clock) -> Result<()> {
        clock.time(|| (0..times).try_for_each(|_| self.once()))
    }
}
