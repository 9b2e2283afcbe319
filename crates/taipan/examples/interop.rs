//! taipan inside a program that has a wgpu device of its own: tensors and the program's compute
//! passes share buffers, and nothing is copied.
//!
//!     cargo run --release -p taipan --example interop
//!
//! A pass of the program lays points on a circle, taipan turns them by 60 degrees, another pass
//! measures how far each has moved: by 1, on a circle of radius 1.

use std::error::Error;

use taipan::gpu::Gpu;
use taipan::wgpu::{self, BufferUsages};
use taipan::{DType, Device, Tensor};

const POINTS: u32 = 1000;

const LAY: &str = "
@group(0) @binding(0) var<storage, read_write> points: array<vec2<f32>>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < 1000u {
        let angle = 6.2831853 * f32(id.x) / 1000.0;
        points[id.x] = vec2(cos(angle), sin(angle));
    }
}";

const MEASURE: &str = "
@group(0) @binding(0) var<storage, read> points: array<vec2<f32>>;
@group(0) @binding(1) var<storage, read> turned: array<vec2<f32>>;
@group(0) @binding(2) var<storage, read_write> distances: array<f32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < 1000u {
        distances[id.x] = distance(points[id.x], turned[id.x]);
    }
}";

fn main() -> Result<(), Box<dyn Error>> {
    // What such a program has already: a device and a queue.
    let adapters = pollster::block_on(taipan::gpu::adapters());
    let adapter = adapters.first().ok_or("there is no adapter, not even in software")?;
    let (device, queue) = pollster::block_on(adapter.request_device(&Default::default()))?;
    println!("{}", adapter.get_info().name);

    let gpu = Gpu::on(&device, &queue)?;
    let buffer = |floats: u32| {
        device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: 4 * floats as u64,
            usage: BufferUsages::STORAGE | BufferUsages::COPY_SRC,
            mapped_at_creation: false,
        })
    };
    let (points, distances) = (buffer(2 * POINTS), buffer(POINTS));
    pass(&device, &queue, LAY, &[&points]);

    // The program's buffer as a tensor, [points, 2].
    let x = Tensor::from_wgpu(&gpu, &points, &[POINTS as usize, 2], DType::F32)?;
    let (sin, cos) = 60f32.to_radians().sin_cos();
    let turn = Tensor::new(&[cos, sin, -sin, cos], &[2, 2], &Device::Gpu(gpu.clone()))?;
    let turned = x.matmul(&turn)?;

    // The tensor as a buffer of the program's.
    pass(&device, &queue, MEASURE, &[&points, turned.wgpu_buffer()?, &distances]);
    let moved = Tensor::from_wgpu(&gpu, &distances, &[POINTS as usize], DType::F32)?;
    let (mean, most) = (moved.mean()?.item()?, moved.max()?.item()?);
    println!("{POINTS} points moved by {mean:.6} on average, by {most:.6} at most");
    match (mean - 1.0).abs() < 1e-5 && (most - 1.0).abs() < 1e-5 {
        true => Ok(()),
        false => Err("expected 1 for each".into()),
    }
}

/// Run a kernel of the program's on some buffers, an invocation for each point.
fn pass(device: &wgpu::Device, queue: &wgpu::Queue, source: &str, buffers: &[&wgpu::Buffer]) {
    let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
        label: None,
        source: wgpu::ShaderSource::Wgsl(source.into()),
    });
    let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: None,
        layout: None,
        module: &module,
        entry_point: Some("main"),
        compilation_options: Default::default(),
        cache: None,
    });
    let entries: Vec<_> = buffers
        .iter()
        .enumerate()
        .map(|(i, buffer)| wgpu::BindGroupEntry {
            binding: i as u32,
            resource: buffer.as_entire_binding(),
        })
        .collect();
    let group = device.create_bind_group(&wgpu::BindGroupDescriptor {
        label: None,
        layout: &pipeline.get_bind_group_layout(0),
        entries: &entries,
    });
    let mut encoder = device.create_command_encoder(&Default::default());
    let mut pass = encoder.begin_compute_pass(&Default::default());
    pass.set_pipeline(&pipeline);
    pass.set_bind_group(0, &group, &[]);
    pass.dispatch_workgroups(POINTS.div_ceil(64), 1, 1);
    drop(pass);
    queue.submit([encoder.finish()]);
}
