//! GPUs, without the cargo feature `gpu`: there are none. [`Gpu`] has no values, so that everything
//! for GPUs is checked as ever and never runs, and wgpu is not compiled.

mod fill;
pub(crate) mod gemm;
pub(crate) mod map;
mod program;
mod reduce;
mod strided;

use std::convert::Infallible;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

pub(crate) use self::map::{Elements, MapParams};
pub(crate) use self::program::{
    Dims, ELEMENTS, FLOAT_ORDER, GREATEST, GROUP, GROUPS, Grid, LINES, Launch, MATH, MAX_SUM_EXP,
    Params, Program, SUM, TENSORS, THREEFRY, WORKGROUP, kernel_sizes, params, width,
};
#[cfg(test)]
pub(crate) use self::program::{MAX_TENSORS, WIDTHS};
pub(crate) use self::strided::{Strided, dims_of};
use crate::error::{Error, Result};
use crate::pool::Memory;
use crate::spec::{Spec, View};
use crate::{DType, Device};

pub(crate) const INDEX_ERRORS: &str = wgsl!("wgsl/index_errors.wgsl");

/// A GPU: none, because taipan was compiled without the cargo feature `gpu`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gpu {}

/// Bytes on a GPU.
pub(crate) enum GpuBuffer {}

/// A window of a buffer.
#[derive(Clone, Copy)]
pub(crate) struct Binding<'a> {
    pub(crate) bytes: usize,
    none: Infallible,
    of: PhantomData<&'a ()>,
}

impl Binding<'_> {
    pub(crate) fn window(self, _: Range<usize>, _: usize) -> Self {
        match self.none {}
    }
}

/// A tensor that a kernel reads or writes.
pub(crate) type GpuView<'a> = View<'a, &'a GpuBuffer>;

impl<'a> GpuView<'a> {
    pub(crate) fn all(&self) -> Binding<'a> {
        match *self.data {}
    }

    pub(crate) fn elements(&self) -> (Binding<'a>, DType) {
        match *self.data {}
    }

    pub(crate) fn rows(&self, _: &'static str, _: Range<usize>) -> Result<LocalTensor> {
        match *self.data {}
    }
}

/// A tensor that exists within a kernel only.
pub(crate) struct LocalTensor {
    pub(crate) spec: Spec,
    data: GpuBuffer,
}

impl LocalTensor {
    pub(crate) fn new(_: &'static str, gpu: &Gpu, _: &[usize], _: DType) -> Result<LocalTensor> {
        match *gpu {}
    }

    pub(crate) fn view(&self) -> GpuView<'_> {
        View { spec: &self.spec, data: &self.data }
    }
}

impl GpuBuffer {
    pub(crate) fn shared_window(self: &Arc<Self>, _: Range<usize>, _: usize) -> GpuBuffer {
        match **self {}
    }

    pub(crate) fn copied(&self, _: &'static str) -> Result<GpuBuffer> {
        match *self {}
    }

    pub(crate) fn is_pooled(&self) -> bool {
        match *self {}
    }

    pub(crate) fn device(&self) -> &Device {
        match *self {}
    }

    pub(crate) fn all(&self) -> Binding<'_> {
        match *self {}
    }

    pub(crate) async fn read(&self, _: &'static str, _: &mut [u8]) -> Result<()> {
        match *self {}
    }
}

/// What is asked of an adapter.
pub(crate) struct Adapter {
    pub(crate) backend: &'static str,
}

/// What is asked of an adapter's limits.
pub(crate) struct Limits {
    pub(crate) max_storage_buffer_binding_size: u64,
}

/// The methods of a GPU, none of which can be called.
macro_rules! methods {
    ($($name:ident($($argument:ty),*) -> $result:ty;)+) => {
        impl Gpu {
            $(pub(crate) fn $name(&self, $(_: $argument),*) -> $result {
                match *self {}
            })+
        }
    };
}

methods! {
    name() -> &str;
    info() -> &Adapter;
    limits() -> &Limits;
    supports(DType) -> bool;
    ensure_type(&'static str, &'static str, DType) -> Result<()>;
    is_software() -> bool;
    memory() -> Memory;
    subgroup_size() -> Option<u32>;
    has_accurate_exp2() -> bool;
    check(&'static str) -> Result<()>;
    scratch(&'static str, usize) -> Result<GpuBuffer>;
    upload(&'static str, &[u8]) -> Result<GpuBuffer>;
    copy_bytes((&GpuBuffer, usize), (&GpuBuffer, usize), usize) -> ();
    windows(usize, usize) -> std::vec::IntoIter<Range<usize>>;
    max_tensors(usize, usize) -> usize;
    index_error_slot(&'static str, &'static str) -> u32;
    index_errors() -> Binding<'_>;
    copy_bandwidth() -> Result<f64>;
    multiply_add_rate() -> Result<f64>;
    clock() -> crate::profile::Clock;
    wait_until_idle() -> ();
}

impl Gpu {
    pub(crate) fn launch<P: Params>(&self, _: Launch<P>) -> Result<()> {
        match *self {}
    }

    /// None; an error if one is named.
    pub(crate) fn find(name: Option<&str>) -> Result<Option<Gpu>> {
        let Some(name) = name else { return Ok(None) };
        Err(Error::Device {
            op: "gpu",
            why: format!("no adapter is {name:?}; found {}", list(&[])),
        })
    }
}

pub(crate) async fn adapters() -> Vec<Infallible> {
    Vec::new()
}

pub(crate) fn list(_: &[Infallible]) -> String {
    "none: taipan was compiled without the cargo feature `gpu`".into()
}

/// Every program of the modules that are here.
#[cfg(test)]
pub(crate) fn programs(types: &[DType]) -> Vec<Program> {
    let floats = || types.iter().copied().filter(|dtype| dtype.is_float());
    [fill::program()]
        .into_iter()
        .chain(types.iter().map(|&dtype| strided::program(dtype)))
        .chain(floats().flat_map(map::programs))
        .chain(floats().flat_map(reduce::programs))
        .chain(floats().flat_map(gemm::programs))
        .collect()
}
