//! Kernels: WGSL with a generated header.

use std::fmt::Write;
use std::hash::{Hash, Hasher};

use super::Binding;
use crate::DType;
use crate::error::{Error, Result};

/// The default number of invocations of a workgroup: `GROUP` of the prelude.
pub(crate) const GROUP: usize = 256;

/// Elementary functions.
pub(crate) const MATH: &str = wgsl!("wgsl/math.wgsl");

/// The order of floats, as integers.
pub(crate) const FLOAT_ORDER: &str = wgsl!("wgsl/float_order.wgsl");

/// Random bits.
pub(crate) const THREEFRY: &str = wgsl!("wgsl/threefry.wgsl");

/// The reduction of one value per invocation of a workgroup; before it, the type of the values and
/// the function that joins two.
pub(crate) const WORKGROUP: &str = wgsl!("wgsl/workgroup.wgsl");

/// Before [`WORKGROUP`]: the sum of floats.
pub(crate) const SUM: &str = wgsl!("wgsl/sum.wgsl");

/// Before [`WORKGROUP`]: the greatest pair of an order and an index.
pub(crate) const GREATEST: &str = wgsl!("wgsl/greatest.wgsl");

/// Before [`WORKGROUP`]: the maximum, and the sum of exponentials relative to it.
pub(crate) const MAX_SUM_EXP: &str = wgsl!("wgsl/max_sum_exp.wgsl");

/// The entry point of kernels that define `element(i)` for each `i < p.len`.
pub(crate) const ELEMENTS: &str = wgsl!("wgsl/elements.wgsl");

/// The entry point of kernels that define `group_main(i, local)` for workgroup `i`, of `WIDTH`
/// invocations.
pub(crate) const GROUPS: &str = wgsl!("wgsl/groups.wgsl");

/// The entry point of kernels that define `line(i, local)` for each `i < p.lines`.
pub(crate) const LINES: &str = wgsl!("wgsl/lines.wgsl", "wgsl/groups.wgsl");

/// Invocations of a workgroup that processes one line: `WIDTH`, for short lines and for long ones.
pub(crate) const WIDTHS: [u32; 2] = [32, 256];

pub(crate) fn width(len: usize) -> u32 {
    WIDTHS[(len > 512) as usize]
}

/// The entry point of kernels over several tensors, of which each workgroup processes a block, and
/// calls `block(i, value, local)` with the index of the block and what `of_tensor` returned. Their
/// parameters are `dims`, two rows for each tensor, of which the first is the index of its first
/// block and its length; and `blocks`, their number.
pub(crate) const TENSORS: &str = wgsl!("wgsl/tensors.wgsl");

/// The most tensors of a kernel: [`Dims`] has two rows for each.
pub(crate) const MAX_TENSORS: usize = 16;

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
        Program::with_params(P::WGSL, source, types, consts)
    }

    /// [`new`](Program::new), compiled once for all kernels.
    fn with_params(
        params: &'static str,
        source: &[&'static str],
        types: &[(&'static str, DType)],
        consts: &[(&'static str, u32)],
    ) -> Program {
        Program {
            source: source.iter().copied().map(Source).collect(),
            types: types.to_vec(),
            consts: consts.to_vec(),
            parameter: None,
            params,
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
        text += wgsl!("wgsl/prelude.wgsl");
        if let Some(tensors) = &self.tensors {
            text += &tensors.wgsl();
        }
        for Source(source) in &self.source {
            text += source;
        }
        text
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
