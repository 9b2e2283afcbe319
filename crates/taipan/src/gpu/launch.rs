//! Kernels compiled once, and their launch.

use std::collections::HashMap;
#[cfg(not(target_family = "wasm"))]
use std::hash::{Hash, Hasher};
#[cfg(not(target_family = "wasm"))]
use std::path::PathBuf;
#[cfg(not(target_family = "wasm"))]
use std::sync::OnceLock;
use std::time::Duration;

use super::fault::scoped;
use super::program::{Grid, Launch, MAX_TENSORS, Params, Program};
use super::stream::{Dispatch, MOST_PARAMS};
use super::time_limit::groups_at_once;
use super::{Binding, Gpu, GpuBuffer, lock};
use crate::error::{Error, Result, ensure};

/// The most workgroups of a dispatch along one dimension.
const MOST_GROUPS: usize = 65_535;

/// The number of buffers that every WebGPU device lets a kernel bind.
pub(super) const MOST_BUFFERS: usize = 8;

/// The compiled programs of a GPU.
pub(super) struct Programs {
    compiled: HashMap<Program, Compiled>,
    /// Keyed by the numbers of inputs and outputs.
    layouts: HashMap<(usize, usize), wgpu::BindGroupLayout>,
    /// How long compiling took.
    compile_time: Duration,
    #[cfg(not(target_family = "wasm"))]
    disk: Option<super::disk::Disk>,
}

#[derive(Clone)]
struct Compiled {
    pipeline: wgpu::ComputePipeline,
    buffers: wgpu::BindGroupLayout,
}

impl Programs {
    pub(super) fn new(device: &wgpu::Device, info: &wgpu::AdapterInfo) -> Programs {
        #[cfg(target_family = "wasm")]
        let _ = (device, info);
        Programs {
            compiled: HashMap::new(),
            layouts: HashMap::new(),
            compile_time: Duration::ZERO,
            #[cfg(not(target_family = "wasm"))]
            disk: super::disk::Disk::open(device, info),
        }
    }

    /// The number of pipelines, and how long compiling them took.
    pub(super) fn compiled(&self) -> (u64, Duration) {
        (self.compiled.len() as u64, self.compile_time)
    }

    fn layout(
        &mut self,
        device: &wgpu::Device,
        inputs: usize,
        outputs: usize,
    ) -> wgpu::BindGroupLayout {
        let make = || {
            let entry = |binding: usize| wgpu::BindGroupLayoutEntry {
                binding: binding as u32,
                visibility: wgpu::ShaderStages::COMPUTE,
                ty: wgpu::BindingType::Buffer {
                    ty: wgpu::BufferBindingType::Storage { read_only: binding < inputs },
                    has_dynamic_offset: false,
                    min_binding_size: None,
                },
                count: None,
            };
            device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
                label: Some("taipan buffers"),
                entries: &(0..inputs + outputs).map(entry).collect::<Vec<_>>(),
            })
        };
        self.layouts.entry((inputs, outputs)).or_insert_with(make).clone()
    }
}

impl Gpu {
    /// The number of buffers that a kernel can bind.
    fn max_buffers(&self) -> usize {
        self.0.limits.max_storage_buffers_per_shader_stage as usize
    }

    /// The number of tensors of one launch, each with `bindings` besides `others` of the launch.
    pub(crate) fn max_tensors(&self, bindings: usize, others: usize) -> usize {
        ((self.max_buffers() - others) / bindings).min(MAX_TENSORS)
    }

    /// Add the launch of a kernel to the command stream, in as many dispatches as it takes for each
    /// to be short.
    pub(crate) fn launch<P: Params>(&self, launch: Launch<P>) -> Result<()> {
        let Launch { name, program, params, inputs, outputs, grid } = launch;
        debug_assert!(size_of::<P>() < MOST_PARAMS, "{name} has too many parameters");
        let params = bytemuck::bytes_of(&params);
        self.launch_bytes(Launch { name, program, params, inputs, outputs, grid })
    }

    /// [`launch`](Gpu::launch), compiled once for all kernels.
    fn launch_bytes(&self, launch: Launch<&[u8]>) -> Result<()> {
        let Launch { name, program, params, inputs, outputs, grid: Grid { groups, work } } = launch;
        self.check(name)?;
        if groups == 0 {
            return Ok(());
        }
        ensure!(
            name,
            groups <= MOST_GROUPS * MOST_GROUPS,
            "{groups} workgroups are needed, expected at most {}",
            MOST_GROUPS * MOST_GROUPS
        );
        debug_assert!(inputs.len() + outputs.len() <= self.max_buffers(), "{name} binds too much");
        inputs.iter().chain(outputs).try_for_each(|binding| self.ensure_bindable(name, binding))?;
        let Compiled { pipeline, buffers } =
            self.compiled(name, program, inputs.len(), outputs.len())?;
        let entries: Vec<_> = inputs.iter().chain(outputs).enumerate().map(entry).collect();
        let bind = |device: &wgpu::Device| {
            device.create_bind_group(&wgpu::BindGroupDescriptor {
                label: Some(name),
                layout: &buffers,
                entries: &entries,
            })
        };
        let buffers =
            scoped(&self.0.device, wgpu::ErrorFilter::Validation, bind).map_err(|why| {
                Error::Device { op: name, why: format!("a buffer is refused: {why}") }
            })?;
        let bytes = inputs.iter().chain(outputs).map(|binding| binding.bytes as u64).sum();
        let seconds = self.0.rate.seconds(work, bytes);
        let at_once = groups_at_once(groups, seconds, MOST_GROUPS);
        let mut stream = lock(&self.0.stream);
        for first in (0..groups).step_by(at_once) {
            let count = at_once.min(groups - first);
            let rows = count.div_ceil(MOST_GROUPS);
            let dispatch = Dispatch {
                pipeline: &pipeline,
                buffers: &buffers,
                params,
                first_group: first as u32,
                groups: [count.div_ceil(rows) as u32, rows as u32],
                seconds: seconds * count as f64 / groups as f64,
                bytes: if first == 0 { bytes } else { 0 },
            };
            stream.dispatch(&self.0, dispatch);
        }
        Ok(())
    }

    fn compiled(
        &self,
        name: &'static str,
        program: Program,
        inputs: usize,
        outputs: usize,
    ) -> Result<Compiled> {
        let mut programs = lock(&self.0.programs);
        if let Some(compiled) = programs.compiled.get(&program) {
            return Ok(compiled.clone());
        }
        #[cfg(not(target_family = "wasm"))]
        program.dump(name)?;
        let device = &self.0.device;
        let buffers = programs.layout(device, inputs, outputs);
        let params = lock(&self.0.stream).params_layout.clone();
        #[cfg(not(target_family = "wasm"))]
        let cache = programs.disk.as_mut().map(|disk| disk.cache());
        #[cfg(target_family = "wasm")]
        let cache = None;
        let make = |device: &wgpu::Device| {
            let module = wgpu::ShaderModuleDescriptor {
                label: Some(name),
                source: wgpu::ShaderSource::Wgsl(program.wgsl().into()),
            };
            let checks = wgpu::ShaderRuntimeChecks::unchecked();
            let module = match program.user_inputs {
                Some(_) => device.create_shader_module(module),
                // SAFETY: the source is the crate's own. Every access is within what is bound:
                // kernels compare each index with the sizes they are given, and launches bind
                // buffers of those sizes, none of which has more than 2³¹ elements (`MOST_BYTES`).
                // Every loop terminates: its counter grows to a limit that does not.
                None => unsafe { device.create_shader_module_trusted(module, checks) },
            };
            let layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
                label: Some(name),
                bind_group_layouts: &[Some(&buffers), Some(&params)],
                immediate_size: 0,
            });
            device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: Some(name),
                layout: Some(&layout),
                module: &module,
                entry_point: Some("main"),
                // Kernels write their workgroup memory before they read it.
                compilation_options: wgpu::PipelineCompilationOptions {
                    zero_initialize_workgroup_memory: false,
                    ..Default::default()
                },
                cache,
            })
        };
        // A browser compiles later, and WebAssembly has no clock.
        #[cfg(not(target_family = "wasm"))]
        let began = std::time::Instant::now();
        let pipeline = scoped(device, wgpu::ErrorFilter::Validation, make).map_err(|why| {
            Error::Device { op: name, why: format!("the kernel is refused: {why}") }
        })?;
        self.check(name)?;
        #[cfg(not(target_family = "wasm"))]
        {
            programs.compile_time += began.elapsed();
        }
        let compiled = Compiled { pipeline, buffers: buffers.clone() };
        programs.compiled.insert(program, compiled.clone());
        Ok(compiled)
    }

    /// An error unless kernels of this GPU can bind the buffer.
    pub(super) fn ensure_own(&self, op: &'static str, buffer: &GpuBuffer) -> Result<()> {
        let layout = lock(&self.0.programs).layout(&self.0.device, 1, 0);
        let bind = |device: &wgpu::Device| {
            device.create_bind_group(&wgpu::BindGroupDescriptor {
                label: Some(op),
                layout: &layout,
                entries: &[entry((0, &buffer.all().window(0..1, 4)))],
            })
        };
        let bound = scoped(&self.0.device, wgpu::ErrorFilter::Validation, bind);
        bound
            .map(drop)
            .map_err(|why| Error::Device { op, why: format!("the buffer is refused: {why}") })
    }

    /// Save compiled pipelines for the next run of the program.
    pub(super) fn save_pipelines(&self) {
        #[cfg(not(target_family = "wasm"))]
        {
            if let Some(disk) = &mut lock(&self.0.programs).disk {
                disk.save();
            }
        }
    }
}

fn entry<'a>((i, binding): (usize, &Binding<'a>)) -> wgpu::BindGroupEntry<'a> {
    wgpu::BindGroupEntry {
        binding: i as u32,
        resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
            buffer: binding.buffer,
            offset: binding.offset,
            size: wgpu::BufferSize::new(binding.bytes as u64),
        }),
    }
}

impl Program {
    /// The name of a file for its source: the op, the contents of the header, and a hash.
    #[cfg(not(target_family = "wasm"))]
    fn file_name(&self, op: &str) -> String {
        let types = self.types.iter().map(|(name, dtype)| format!("{name}-{dtype}"));
        let consts = self.consts.iter().map(|(name, value)| format!("{name}-{value}"));
        let mut name =
            [op.to_owned()].into_iter().chain(types.chain(consts)).collect::<Vec<_>>().join(".");
        // A length that every file system supports.
        name.truncate(200);
        let mut hasher = std::hash::DefaultHasher::new();
        self.wgsl().hash(&mut hasher);
        format!("{name}.{:08x}.wgsl", hasher.finish() as u32)
    }

    /// Write the source to the directory of the environment variable `TAIPAN_DUMP_WGSL`, if it is
    /// set.
    #[cfg(not(target_family = "wasm"))]
    fn dump(&self, op: &'static str) -> Result<()> {
        static DIRECTORY: OnceLock<Option<PathBuf>> = OnceLock::new();
        let directory =
            DIRECTORY.get_or_init(|| std::env::var_os("TAIPAN_DUMP_WGSL").map(Into::into));
        let Some(directory) = directory else { return Ok(()) };
        let path = directory.join(self.file_name(op));
        let written =
            std::fs::create_dir_all(directory).and_then(|()| std::fs::write(&path, self.wgsl()));
        written.map_err(|error| {
            let why = format!("TAIPAN_DUMP_WGSL: {}: {error}", path.display());
            Error::Device { op, why }
        })
    }
}
