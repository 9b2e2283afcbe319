//! The product alone, by two kernels that are easy to write: in 16×16 tiles, and without tiles.

use taipan::gpu::Gpu;
use taipan::wgpu::util::DeviceExt;
use taipan::{DType, Device, Tensor, wgpu};

use crate::case::Case;
use crate::clock::Clock;
use crate::taipan_ops::{Linear, wait};
use crate::{Contestant, Output, Result, unsupported};

pub fn prepare(name: &str, case: &Case) -> Result<Box<dyn Contestant>> {
    if case.is_backward() {
        return unsupported("it has no backward pass");
    }
    let source = match name {
        "tile16" => include_str!("../../../crates/taipan/benches/linear/tile16.wgsl"),
        _ => include_str!("../../../crates/taipan/benches/linear/untiled.wgsl"),
    };
    let device = Device::gpu()?;
    let Device::Gpu(gpu) = &device else { return unsupported("there is no GPU") };
    let layer = Linear::new(case, &device)?;
    Ok(Box::new(Kernel::new(gpu, source, &layer, case.product()?)?))
}

struct Kernel {
    gpu: Gpu,
    pipeline: wgpu::ComputePipeline,
    buffers: wgpu::BindGroup,
    y: Tensor,
    groups: [u32; 2],
}

impl Kernel {
    fn new(gpu: &Gpu, source: &str, layer: &Linear, [m, k, n]: [usize; 3]) -> Result<Kernel> {
        let device = gpu.device();
        let module = wgpu::ShaderModuleDescriptor {
            label: None,
            source: wgpu::ShaderSource::Wgsl(source.into()),
        };
        // SAFETY: the kernel stays within its buffers. Without wgpu's checks, as taipan's own.
        let module = unsafe {
            device.create_shader_module_trusted(module, wgpu::ShaderRuntimeChecks::unchecked())
        };
        let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: None,
            layout: None,
            module: &module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions {
                zero_initialize_workgroup_memory: false,
                ..Default::default()
            },
            cache: None,
        });
        let sizes: Vec<u8> = [m, k, n, 0].iter().flat_map(|&x| (x as u32).to_le_bytes()).collect();
        let sizes = device.create_buffer_init(&wgpu::util::BufferInitDescriptor {
            label: None,
            contents: &sizes,
            usage: wgpu::BufferUsages::UNIFORM,
        });
        let y = Tensor::zeros(&[m, n], DType::F32, &Device::Gpu(gpu.clone()))?;
        let bound = [layer.x.wgpu_buffer()?, layer.w.wgpu_buffer()?, y.wgpu_buffer()?, &sizes];
        let entries: Vec<wgpu::BindGroupEntry> = bound
            .iter()
            .enumerate()
            .map(|(i, buffer)| wgpu::BindGroupEntry {
                binding: i as u32,
                resource: buffer.as_entire_binding(),
            })
            .collect();
        let buffers = device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &pipeline.get_bind_group_layout(0),
            entries: &entries,
        });
        // The inputs are there before the kernel, which is not in taipan's command stream.
        wait(y.device())?;
        let groups = [n.div_ceil(16) as u32, m.div_ceil(16) as u32];
        Ok(Kernel { gpu: gpu.clone(), pipeline, buffers, y, groups })
    }

    fn once(&self) -> Result<()> {
        let mut encoder = self.gpu.device().create_command_encoder(&Default::default());
        let mut pass = encoder.begin_compute_pass(&Default::default());
        pass.set_pipeline(&self.pipeline);
        pass.set_bind_group(0, &self.buffers, &[]);
        pass.dispatch_workgroups(self.groups[0], self.groups[1], 1);
        drop(pass);
        self.gpu.queue().submit([encoder.finish()]);
        wait(self.y.device())
    }
}

impl Contestant for Kernel {
    fn outputs(&mut self) -> Result<Vec<Output>> {
        self.once()?;
        Ok(vec![("product", self.y.read_blocking::<f32>()?)])
    }

    fn run(&mut self, times: usize, clock: &mut Clock) -> Result<()> {
        clock.time(|| (0..times).try_for_each(|_| self.once()))
    }
}
