//! Kernels: WGSL with a generated header, compiled once, and their launch.

use std::collections::HashMap;
use std::fmt::Write;
use std::hash::{Hash, Hasher};
#[cfg(not(target_family = "wasm"))]
use std::path::PathBuf;
#[cfg(not(target_family = "wasm"))]
use std::sync::OnceLock;

use super::fault::scoped;
use super::stream::{Dispatch, MOST_PARAMS};
use super::time_limit::groups_at_once;
use super::{Binding, Gpu, GpuBuffer, lock};
use crate::DType;
use crate::error::{Error, Result, ensure};

/// The most workgroups of a dispatch along one dimension.
const MOST_GROUPS: usize = 65_535;

/// The default number of invocations of a workgroup: `GROUP` of the prelude.
pub(crate) const GROUP: usize = 256;

/// Elementary functions.
pub(crate) const MATH: &str = include_str!("wgsl/math.wgsl");

/// The order of floats, as integers.
pub(crate) const FLOAT_ORDER: &str = include_str!("wgsl/float_order.wgsl");

/// Random bits.
pub(crate) const THREEFRY: &str = include_str!("wgsl/threefry.wgsl");

/// The reduction of one value per invocation of a workgroup; before it, the type of the values and
/// the function that joins two.
pub(crate) const WORKGROUP: &str = include_str!("wgsl/workgroup.wgsl");

/// Before [`WORKGROUP`]: the sum of floats.
pub(crate) const SUM: &str = include_str!("wgsl/sum.wgsl");

/// Before [`WORKGROUP`]: the greatest pair of an order and an index.
pub(crate) const GREATEST: &str = include_str!("wgsl/greatest.wgsl");

/// Before [`WORKGROUP`]: the maximum, and the sum of exponentials relative to it.
pub(crate) const MAX_SUM_EXP: &str = include_str!("wgsl/max_sum_exp.wgsl");

/// The entry point of kernels that define `element(i)` for each `i < p.len`.
pub(crate) const ELEMENTS: &str = include_str!("wgsl/elements.wgsl");

/// The entry point of kernels that define `group_main(i, local)` for workgroup `i`, of `WIDTH`
/// invocations.
pub(crate) const GROUPS: &str = include_str!("wgsl/groups.wgsl");

/// The entry point of kernels that define `line(i, local)` for each `i < p.lines`.
pub(crate) const LINES: &str =
    concat!(include_str!("wgsl/lines.wgsl"), include_str!("wgsl/groups.wgsl"));

/// Invocations of a workgroup that processes one line: `WIDTH`, for short lines and for long ones.
pub(crate) const WIDTHS: [u32; 2] = [32, 256];

pub(crate) fn width(len: usize) -> u32 {
    WIDTHS[(len > 512) as usize]
}

/// The entry point of kernels over several tensors, of which each workgroup processes a block, and
/// calls `block(i, value, local)` with the index of the block and what `of_tensor` returned. Their
/// parameters are `dims`, two rows for each tensor, of which the first is the index of its first
/// block and its length; and `blocks`, their number.
pub(crate) const TENSORS: &str = include_str!("wgsl/tensors.wgsl");

/// The most tensors of a kernel: [`Dims`] has two rows for each.
pub(crate) const MAX_TENSORS: usize = 16;

/// The number of buffers that every WebGPU device lets a kernel bind.
pub(super) const MOST_BUFFERS: usize = 8;

/// The arguments of a launch.
pub(crate) struct Launch<'a, P> {
    /// Names the operation in errors.
    pub(crate) name: &'static str,
    pub(crate) program: Program,
    /// The length of a bound buffer may be cast with `as u32`: a longer buffer is an error. Any
    /// other size goes through [`kernel_sizes`].
    pub(crate) params: P,
    /// Bound as `read`, in this order.
    pub(crate) inputs: &'a [Binding<'a>],
    /// Bound as `read_write` after the inputs.
    pub(crate) outputs: &'a [Binding<'a>],
    pub(crate) grid: Grid,
}

/// The size of a launch.
#[derive(Clone, Copy)]
pub(crate) struct Grid {
    /// The number of workgroups; the kernel gets its index from `flat`.
    pub(crate) groups: usize,
    /// The approximate number of multiply-adds, or elements: with the bytes that are bound, an
    /// estimate of the time it takes.
    pub(crate) work: u64,
}

impl Grid {
    /// For a kernel that ends with [`ELEMENTS`].
    pub(crate) fn elements(len: usize) -> Grid {
        Grid { groups: len.div_ceil(GROUP), work: len as u64 }
    }

    /// For a kernel that ends with [`LINES`].
    pub(crate) fn lines(lines: usize, work: usize) -> Grid {
        Grid { groups: lines, work: work as u64 }
    }
}

/// Sizes as `u32`; an error for one that does not fit.
pub(crate) fn kernel_sizes<const N: usize>(
    op: &'static str,
    sizes: [usize; N],
) -> Result<[u32; N]> {
    if let Some(size) = sizes.into_iter().find(|&size| u32::try_from(size).is_err()) {
        let why = format!("a size is {size}, expected at most {} on a GPU", u32::MAX);
        return Err(Error::Shape { op, why });
    }
    Ok(sizes.map(|size| size as u32))
}

/// The WGSL of a kernel: plain source, and the contents of its header, which declares the
/// parameters `p` as well. Bindings are group 0, the entry point is `main`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Program {
    pub(crate) source: Vec<Source>,
    /// `alias`es for element types.
    pub(crate) types: Vec<(&'static str, DType)>,
    /// `const`s of type `u32`.
    pub(crate) consts: Vec<(&'static str, u32)>,
    /// The bits of the constant `PARAMETER`, an `f32`.
    pub(crate) parameter: Option<u32>,
    /// The declaration of `Params`.
    pub(crate) params: &'static str,
    /// The inputs of a user's kernel, whose bindings are declared for it together with that of the
    /// result `y`. Its accesses are bounds-checked.
    pub(crate) user_inputs: Option<&'static [&'static str]>,
    /// For kernels over several tensors.
    pub(crate) tensors: Option<EachTensor>,
}

/// Tensors that one launch processes together, because a launch takes its time however small they
/// are. WGSL has no arrays of buffers: there is a copy of the source for each tensor, in which `#` is
/// its index. The source has the tensor's bindings and `of_tensor#(first, end, local) -> f32`, what
/// an invocation does with a block of its elements. The header adds `TENSORS`, their number, and
/// `of_tensor(t, first, end, local)`, for tensor `t`. See also [`TENSORS`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct EachTensor {
    pub(crate) source: Source,
    pub(crate) count: usize,
}

impl EachTensor {
    fn wgsl(&self) -> String {
        let mut text = format!("const TENSORS = {}u;\n", self.count);
        for t in 0..self.count {
            text += &self.source.0.replace('#', &t.to_string());
        }
        text += "fn of_tensor(t: u32, first: u32, end: u32, local: u32) -> f32 {\n    switch t {\n";
        for t in 0..self.count {
            let _ =
                writeln!(text, "        case {t}u: {{ return of_tensor{t}(first, end, local); }}");
        }
        text + "        default: { return 0.0; }\n    }\n}\n"
    }
}

/// A static source, compared by address: programs are looked up at every launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source(pub(crate) &'static str);

impl PartialEq for Source {
    fn eq(&self, other: &Source) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for Source {}

impl Hash for Source {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.0.as_ptr() as usize).hash(state);
    }
}

impl Program {
    pub(crate) fn new<P: Params>(
        source: &[&'static str],
        types: &[(&'static str, DType)],
        consts: &[(&'static str, u32)],
    ) -> Program {
        Program {
            source: source.iter().copied().map(Source).collect(),
            types: types.to_vec(),
            consts: consts.to_vec(),
            parameter: None,
            params: P::WGSL,
            user_inputs: None,
            tensors: None,
        }
    }

    /// With the constant `PARAMETER`, limited to what an f32 can hold.
    pub(crate) fn with_parameter(self, parameter: f64) -> Program {
        let parameter = parameter.clamp(f32::MIN as f64, f32::MAX as f64) as f32;
        Program { parameter: Some(parameter.to_bits()), ..self }
    }

    /// With a copy of this source for each of some tensors: see [`EachTensor`].
    pub(crate) fn for_each(self, source: &'static str, count: usize) -> Program {
        Program { tensors: Some(EachTensor { source: Source(source), count }), ..self }
    }

    /// With inputs of these names, of the type `Elem`.
    pub(crate) fn of_user(self, inputs: &'static [&'static str]) -> Program {
        Program { user_inputs: Some(inputs), ..self }
    }

    /// The complete source.
    pub(crate) fn wgsl(&self) -> String {
        let mut text = String::new();
        if self.types.iter().any(|(_, dtype)| *dtype == DType::F16) {
            text += "enable f16;\n";
        }
        for (name, dtype) in &self.types {
            let _ = writeln!(text, "alias {name} = {dtype};");
        }
        for (name, value) in &self.consts {
            let _ = writeln!(text, "const {name}: u32 = {value}u;");
        }
        if let Some(bits) = self.parameter {
            let _ = writeln!(text, "const PARAMETER: f32 = {:e}f;", f32::from_bits(bits));
        }
        text += self.params;
        text += "@group(1) @binding(0) var<uniform> p: Params;\n";
        if let Some(inputs) = self.user_inputs {
            let bindings = inputs.iter().map(|name| ("read", *name)).chain([("read_write", "y")]);
            for (i, (access, name)) in bindings.enumerate() {
                let _ = writeln!(
                    text,
                    "@group(0) @binding({i}) var<storage, {access}> {name}: array<Elem>;"
                );
            }
        }
        text += include_str!("wgsl/prelude.wgsl");
        if let Some(tensors) = &self.tensors {
            text += &tensors.wgsl();
        }
        for Source(source) in &self.source {
            text += source;
        }
        text
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

/// Sizes and strides, for kernels over any number of dimensions: without those of size 1, a tensor
/// that a `u32` can index has at most 31.
pub(crate) type Dims = [[u32; 4]; 32];

/// Parameters of a kernel: the same bytes in Rust and in WGSL, where the index of the first
/// workgroup of a dispatch follows them.
pub(crate) trait Params: bytemuck::Pod {
    /// The declaration of `Params`.
    const WGSL: &'static str;
}

/// Declare a [`Params`] of `u32` and `f32` fields and, optionally before them, `dims: Dims`.
macro_rules! params {
    ($(#[$meta:meta])* $visibility:vis struct $name:ident { $($field:ident: $type:tt),* $(,)? }) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
        $visibility struct $name { $($visibility $field: $crate::gpu::params!(@rust $type)),* }
        impl $crate::gpu::Params for $name {
            const WGSL: &'static str = concat!(
                "struct Params { ",
                $(stringify!($field), ": ", $crate::gpu::params!(@wgsl $type), ", ",)*
                "first_group: u32 }\n",
            );
        }
    };
    (@rust Dims) => { $crate::gpu::Dims };
    (@rust u32) => { u32 };
    (@rust f32) => { f32 };
    (@wgsl Dims) => { "array<vec4<u32>, 32>" };
    (@wgsl u32) => { "u32" };
    (@wgsl f32) => { "f32" };
}
pub(crate) use params;

/// The compiled programs of a GPU.
pub(super) struct Programs {
    compiled: HashMap<Program, Compiled>,
    /// Keyed by the numbers of inputs and outputs.
    layouts: HashMap<(usize, usize), wgpu::BindGroupLayout>,
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
            #[cfg(not(target_family = "wasm"))]
            disk: super::disk::Disk::open(device, info),
        }
    }

    /// The number of pipelines.
    pub(super) fn compiled(&self) -> u64 {
        self.compiled.len() as u64
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
        debug_assert!(size_of::<P>() < MOST_PARAMS, "{name} has too many parameters");
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
                params: bytemuck::bytes_of(&params),
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
        let pipeline = scoped(device, wgpu::ErrorFilter::Validation, make).map_err(|why| {
            Error::Device { op: name, why: format!("the kernel is refused: {why}") }
        })?;
        self.check(name)?;
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
