//! On a GPU, against a naive baseline: a sequential scan by one invocation for each state.

use taipan::gpu::Gpu;
use taipan::wgpu::util::DeviceExt;
use taipan::{DType, Device, Discretization, Result, Tensor, selective_scan, wgpu};

use crate::Inputs;
use crate::report::{Contender, Options, Row, race, wait};

pub fn run(options: &Options, gpu: &Gpu) -> Result<()> {
    let device = Device::Gpu(gpu.clone());
    options.say(&format!("{}, {}", device.describe(), gpu.info().driver_info));
    compare(options, gpu, [2, 512, 256, 16])
}

fn compare(options: &Options, gpu: &Gpu, sizes: [usize; 4]) -> Result<()> {
    let device = Device::Gpu(gpu.clone());
    let report = |op, dtype: DType, ms, baseline, baseline_ms| {
        let (shape, dtype) = (sizes.map(|size| size.to_string()).join("x"), dtype.to_string());
        options.report(&Row { op, shape, dtype, ms, baseline, baseline_ms });
    };
    let inputs = Inputs::new(sizes, DType::F32, &device)?;
    let sequential = SequentialScan::new(gpu, &inputs, sizes)?;
    sequential.check(&inputs)?;
    let ms = race(&mut [
        sequential.contender(FORWARD),
        inputs.forward(Discretization::Euler),
        sequential.contender(FORWARD + BACKWARD),
        inputs.forward_backward(Discretization::Euler),
    ]);
    report("scan.forward", DType::F32, ms[1], "sequential", ms[0]);
    report("scan.forward_backward", DType::F32, ms[3], "sequential", ms[2]);
    if device.supports(DType::F16) {
        let half = Inputs::new(sizes, DType::F16, &device)?;
        let ms = race(&mut [
            inputs.forward(Discretization::Euler),
            half.forward(Discretization::Euler),
            inputs.forward_backward(Discretization::Euler),
            half.forward_backward(Discretization::Euler),
        ]);
        report("scan.forward", DType::F16, ms[1], "taipan f32", ms[0]);
        report("scan.forward_backward", DType::F16, ms[3], "taipan f32", ms[2]);
    }
    Ok(())
}

/// The number of kernels of the forward pass, and of the backward pass after them.
const FORWARD: usize = 3;
const BACKWARD: usize = 7;

/// The baseline: naive kernels.
struct SequentialScan<'a> {
    gpu: &'a Gpu,
    kernels: Vec<(wgpu::ComputePipeline, wgpu::BindGroup, u32)>,
    /// The output, and the gradients of `u`, `delta`, `a_log`, `b`, `c`, `d`, `delta_bias` and `z`.
    results: [Tensor; 9],
}

impl<'a> SequentialScan<'a> {
    fn new(gpu: &'a Gpu, inputs: &Inputs, [b, l, d, n]: [usize; 4]) -> Result<Self> {
        let device = gpu.device();
        let module = wgpu::ShaderModuleDescriptor {
            label: None,
            source: wgpu::ShaderSource::Wgsl(include_str!("sequential_scan.wgsl").into()),
        };
        // SAFETY: the kernels stay within their buffers. Without wgpu's checks, as taipan's own.
        let module = unsafe {
            device.create_shader_module_trusted(module, wgpu::ShaderRuntimeChecks::unchecked())
        };
        let words: Vec<u8> = [b, l, d, n].iter().flat_map(|&x| (x as u32).to_le_bytes()).collect();
        let sizes = device.create_buffer_init(&wgpu::util::BufferInitDescriptor {
            label: None,
            contents: &words,
            usage: wgpu::BufferUsages::UNIFORM,
        });
        let Inputs { u, delta, a_log, b: bs, c, d: skip, delta_bias, z, dy: dout } = inputs;
        let new = |like: &Tensor| Tensor::zeros(like.shape(), DType::F32, u.device());
        let states = || Tensor::zeros(&[b, l, d, n], DType::F32, u.device());
        let [step, h, y, dy, g] = [new(u)?, states()?, new(u)?, new(u)?, states()?];
        let [out, du, ddelta, da_log] = [new(u)?, new(u)?, new(u)?, new(a_log)?];
        let [db, dc, dskip, ddelta_bias, dz] = [new(bs)?, new(c)?, new(skip)?, new(skip)?, new(z)?];
        // By the number of the binding, from 1.
        let tensors = [
            u,
            delta,
            a_log,
            bs,
            c,
            skip,
            delta_bias,
            z,
            dout,
            &step,
            &h,
            &y,
            &out,
            &dy,
            &g,
            &du,
            &ddelta,
            &da_log,
            &db,
            &dc,
            &dskip,
            &ddelta_bias,
            &dz,
        ];
        // The entry point, its bindings, and the number of invocations.
        let kernels: [(&str, &[usize], usize); FORWARD + BACKWARD] = [
            ("step_sizes", &[2, 7, 10], b * l * d),
            ("states", &[1, 3, 4, 10, 11], b * d * n),
            ("outputs", &[1, 5, 6, 8, 11, 12, 13], b * l * d),
            ("gate", &[8, 9, 12, 14, 23], b * l * d),
            ("reverse", &[3, 5, 10, 14, 15], b * d * n),
            ("input_grads", &[4, 6, 10, 14, 15, 16], b * l * d),
            ("step_grads", &[1, 3, 4, 10, 11, 15, 17], b * l * d),
            ("row_grads", &[1, 10, 11, 14, 15, 19, 20], b * l * n),
            ("rate_grads", &[3, 10, 11, 15, 18], d * n),
            ("channel_grads", &[1, 14, 17, 21, 22], d),
        ];
        let kernels = kernels.map(|(entry_point, bindings, invocations)| {
            let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: None,
                layout: None,
                module: &module,
                entry_point: Some(entry_point),
                compilation_options: Default::default(),
                cache: None,
            });
            let mut entries =
                vec![wgpu::BindGroupEntry { binding: 0, resource: sizes.as_entire_binding() }];
            for &binding in bindings {
                entries.push(wgpu::BindGroupEntry {
                    binding: binding as u32,
                    resource: tensors[binding - 1].wgpu_buffer()?.as_entire_binding(),
                });
            }
            let bound = device.create_bind_group(&wgpu::BindGroupDescriptor {
                label: None,
                layout: &pipeline.get_bind_group_layout(0),
                entries: &entries,
            });
            Ok((pipeline, bound, invocations.div_ceil(64) as u32))
        });
        let kernels = kernels.into_iter().collect::<Result<_>>()?;
        let results = [out, du, ddelta, da_log, db, dc, dskip, ddelta_bias, dz];
        Ok(SequentialScan { gpu, kernels, results })
    }

    /// Run the first `count` kernels.
    fn run(&self, count: usize) {
        let mut encoder = self.gpu.device().create_command_encoder(&Default::default());
        let mut pass = encoder.begin_compute_pass(&Default::default());
        for (pipeline, bound, groups) in &self.kernels[..count] {
            pass.set_pipeline(pipeline);
            pass.set_bind_group(0, bound, &[]);
            pass.dispatch_workgroups(*groups, 1, 1);
        }
        drop(pass);
        self.gpu.queue().submit([encoder.finish()]);
        wait(self.results[0].device());
    }

    fn contender(&self, count: usize) -> Contender<'_> {
        Box::new(move || Box::new(move || self.run(count)))
    }

    /// Check that it computes the same as taipan.
    fn check(&self, inputs: &Inputs) -> Result<()> {
        wait(inputs.u.device());
        self.run(FORWARD + BACKWARD);
        let Inputs { u, delta, a_log, b, c, d, delta_bias, z, dy } = inputs;
        let leaves =
            [u, delta, a_log, b, c, d, delta_bias, z].map(|tensor| tensor.clone().tracked());
        let [u, delta, a_log, b, c, d, delta_bias, z] = leaves.clone();
        let tracked = Inputs { u, delta, a_log, b, c, d, delta_bias, z, dy: dy.clone() };
        let (y, _) = selective_scan(&tracked.scan(Discretization::Euler))?;
        let grads = y.backward_from(&tracked.dy)?;
        let mut expected = vec![y.detached()];
        for leaf in &leaves {
            expected.push(grads.of(leaf)?.clone());
        }
        for (got, want) in self.results.iter().zip(&expected) {
            let (got, want) = (got.read_blocking::<f32>()?, want.read_blocking::<f32>()?);
            let largest = want.iter().fold(0f32, |most, x| most.max(x.abs()));
            let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-3 * largest;
            assert!(
                got.iter().zip(&want).all(close),
                "the sequential scan computes something else"
            );
        }
        Ok(())
    }
}
