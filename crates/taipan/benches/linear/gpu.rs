//! On a GPU, against naive kernels: in 16×16 tiles, and without tiles.

use taipan::gpu::Gpu;
use taipan::wgpu::util::DeviceExt;
use taipan::{Activation, DType, Device, Result, Tensor, wgpu};

use crate::Layer;
use crate::report::{Contender, Options, Row, cpu_ms, race, wait};

pub fn run(options: &Options, gpu: &Gpu) -> Result<()> {
    let device = Device::Gpu(gpu.clone());
    options.say(&format!("{}, {}", device.describe(), gpu.info().driver_info));
    for sizes in [[512; 3], [1024; 3], [2048, 256, 1024], [2048, 768, 64], [1, 768, 3072]] {
        compare(options, gpu, sizes)?;
    }
    overhead(options, gpu)
}

/// Forward and backward with gelu against the plain product of the baselines.
fn compare(options: &Options, gpu: &Gpu, sizes: [usize; 3]) -> Result<()> {
    let device = Device::Gpu(gpu.clone());
    let [m, k, n] = sizes;
    let report = |op, dtype: DType, ms, baseline, baseline_ms| {
        let (shape, dtype) = (format!("{m}x{k}x{n}"), dtype.to_string());
        options.report(&Row { op, shape, dtype, ms, baseline, baseline_ms });
    };
    let layer = Layer::new(sizes, DType::F32, &device)?;
    let tile16 = Yardstick::new(gpu, include_str!("tile16.wgsl"), &layer, sizes)?;
    let untiled = Yardstick::new(gpu, include_str!("untiled.wgsl"), &layer, sizes)?;
    for baseline in [&tile16, &untiled] {
        baseline.check(&layer)?;
    }
    let ms = race(&mut [
        tile16.contender(),
        untiled.contender(),
        layer.forward(Activation::Gelu),
        layer.backward(),
    ]);
    let speed = |ms: f64| 2e-6 * (m * k * n) as f64 / ms;
    options.say(&format!(
        "{m}x{k}x{n}: tile16 {:.2} GF/s, untiled {:.2}, taipan {:.2}",
        speed(ms[0]),
        speed(ms[1]),
        speed(ms[2])
    ));
    report("linear.forward", DType::F32, ms[2], "tile16", ms[0]);
    report("linear.forward", DType::F32, ms[2], "untiled", ms[1]);
    report("linear.backward", DType::F32, ms[3], "tile16", ms[0]);
    report("linear.backward", DType::F32, ms[3], "forward", ms[2]);
    if device.supports(DType::F16) {
        let half = Layer::new(sizes, DType::F16, &device)?;
        let ms = race(&mut [
            layer.forward(Activation::Gelu),
            half.forward(Activation::Gelu),
            layer.backward(),
            half.backward(),
        ]);
        report("linear.forward", DType::F16, ms[1], "taipan f32", ms[0]);
        report("linear.backward", DType::F16, ms[3], "taipan f32", ms[2]);
    }
    Ok(())
}

/// The cost of a launch on the host: the time of this thread for an op on tiny tensors.
fn overhead(options: &Options, gpu: &Gpu) -> Result<()> {
    const OPS: usize = 1000;
    let device = Device::Gpu(gpu.clone());
    let x = Tensor::randn(&[16], 1, DType::F32, &device)?;
    let chain = || (0..OPS).try_fold(x.clone(), |y, _| y.add(&x));
    chain()?;
    let mut best = f64::INFINITY;
    let before = gpu.work();
    for _ in 0..5 {
        let start = cpu_ms();
        chain()?;
        best = best.min((cpu_ms() - start) / OPS as f64);
    }
    let submissions = (gpu.work().submissions - before.submissions) as f64 / 5.0;
    wait(&device);
    options.say(&format!("{OPS} dependent launches: {submissions:.1} submissions"));
    let (shape, dtype) = ("16".into(), "f32".into());
    options.report(&Row {
        op: "add",
        shape,
        dtype,
        ms: best,
        baseline: "40 µs",
        baseline_ms: 0.04,
    });
    Ok(())
}

/// A naive kernel.
struct Yardstick<'a> {
    gpu: &'a Gpu,
    pipeline: wgpu::ComputePipeline,
    buffers: wgpu::BindGroup,
    y: Tensor,
    groups: [u32; 2],
}

impl<'a> Yardstick<'a> {
    fn new(gpu: &'a Gpu, source: &str, layer: &Layer, [m, k, n]: [usize; 3]) -> Result<Self> {
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
        let buffers = device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &pipeline.get_bind_group_layout(0),
            entries: &bound
                .iter()
                .enumerate()
                .map(|(i, buffer)| wgpu::BindGroupEntry {
                    binding: i as u32,
                    resource: buffer.as_entire_binding(),
                })
                .collect::<Vec<_>>(),
        });
        let groups = [n.div_ceil(16) as u32, m.div_ceil(16) as u32];
        Ok(Yardstick { gpu, pipeline, buffers, y, groups })
    }

    fn run(&self) {
        let mut encoder = self.gpu.device().create_command_encoder(&Default::default());
        let mut pass = encoder.begin_compute_pass(&Default::default());
        pass.set_pipeline(&self.pipeline);
        pass.set_bind_group(0, &self.buffers, &[]);
        pass.dispatch_workgroups(self.groups[0], self.groups[1], 1);
        drop(pass);
        self.gpu.queue().submit([encoder.finish()]);
        wait(self.y.device());
    }

    fn contender(&self) -> Contender<'_> {
        Box::new(|| Box::new(|| self.run()))
    }

    /// Check that it computes the same as taipan.
    fn check(&self, layer: &Layer) -> Result<()> {
        self.run();
        let expected = layer.x.matmul(&layer.w)?.read_blocking::<f32>()?;
        let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-3;
        let y = self.y.read_blocking::<f32>()?;
        assert!(y.iter().zip(&expected).all(close), "a baseline computes something else");
        Ok(())
    }
}
