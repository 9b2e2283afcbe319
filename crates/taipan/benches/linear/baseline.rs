//! A product by a kernel that is easy to write; `bench/` compares with it, too.

use taipan::gpu::Gpu;
use taipan::wgpu::util::DeviceExt;
use taipan::{DType, Device, Result, Tensor, wgpu};

/// A kernel in WGSL that computes `y = x·w` in blocks of 16×16, on `x` `[m, k]` and `w` `[k, n]`.
pub struct Baseline {
    gpu: Gpu,
    pipeline: wgpu::ComputePipeline,
    buffers: wgpu::BindGroup,
    pub y: Tensor,
    groups: [u32; 2],
}

impl Baseline {
    /// In 16×16 tiles.
    pub const TILE16: &str = include_str!("tile16.wgsl");
    /// Without tiles.
    pub const UNTILED: &str = include_str!("untiled.wgsl");

    pub fn new(gpu: &Gpu, source: &str, x: &Tensor, w: &Tensor) -> Result<Baseline> {
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
        let [m, k, n] = [x.shape()[0], x.shape()[1], w.shape()[1]];
        let sizes: Vec<u8> = [m, k, n, 0].iter().flat_map(|&x| (x as u32).to_le_bytes()).collect();
        let sizes = device.create_buffer_init(&wgpu::util::BufferInitDescriptor {
            label: None,
            contents: &sizes,
            usage: wgpu::BufferUsages::UNIFORM,
        });
        let y = Tensor::zeros(&[m, n], DType::F32, &Device::Gpu(gpu.clone()))?;
        let bound = [x.wgpu_buffer()?, w.wgpu_buffer()?, y.wgpu_buffer()?, &sizes];
        let entries: Vec<wgpu::BindGroupEntry> = (0..)
            .zip(&bound)
            .map(|(binding, buffer)| wgpu::BindGroupEntry {
                binding,
                resource: buffer.as_entire_binding(),
            })
            .collect();
        let buffers = device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &pipeline.get_bind_group_layout(0),
            entries: &entries,
        });
        // The inputs are there before the kernel, which is not in taipan's command stream.
        gpu.flush()?;
        let groups = [n.div_ceil(16) as u32, m.div_ceil(16) as u32];
        Ok(Baseline { gpu: gpu.clone(), pipeline, buffers, y, groups })
    }

    /// Begin to compute `y`.
    pub fn submit(&self) {
        let mut encoder = self.gpu.device().create_command_encoder(&Default::default());
        let mut pass = encoder.begin_compute_pass(&Default::default());
        pass.set_pipeline(&self.pipeline);
        pass.set_bind_group(0, &self.buffers, &[]);
        pass.dispatch_workgroups(self.groups[0], self.groups[1], 1);
        drop(pass);
        self.gpu.queue().submit([encoder.finish()]);
    }
}
