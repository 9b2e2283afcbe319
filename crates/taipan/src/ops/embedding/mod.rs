//! Rows of a table, looked up by index; and indices of any dimension.

use std::ops::Range;

use smallvec::smallvec;

use crate::DType;
use crate::autograd::{Op, Saved, Slot, apply_one};
use crate::cpu::map::add;
use crate::cpu::threads::{GRAIN, for_chunks};
use crate::dtype::{Float, Real, with_dtype};
use crate::error::{Error, Result, ensure};
use crate::gpu::{
    ELEMENTS, Gpu, Grid, INDEX_ERRORS, Launch, MapParams, Program, kernel_sizes, params,
};
use crate::kernel::{CpuIo, GpuIo, Kernel, Results, compute_one};
use crate::spec::{Spec, ensure_dim, joined};
use crate::tensor::Tensor;

const OP: &str = "embedding";

/// The rows of `table` with the indices `ids`.
///
/// | tensor | shape |
/// |---|---|
/// | `table` | `[v, d]`, of any float type |
/// | `ids` | any, of type `u32` |
/// | result | that of `ids`, then `d` |
///
/// An id that is not below `v` is an error. On a GPU it is a device-side error: its row is NaN, and
/// the next read of any tensor returns the error.
///
/// The gradient of a row is the sum over its uses, in the order of `ids`.
///
/// ```
/// use taipan::{Device, Tensor, embedding};
///
/// let table = Tensor::new(&[0f32, 1.0, 10.0, 11.0, 20.0, 21.0], &[3, 2], &Device::Cpu)?.tracked();
/// let ids = Tensor::new(&[2u32, 0, 2], &[3], &Device::Cpu)?;
/// let y = embedding(&table, &ids)?;
/// assert_eq!(y.read_blocking::<f32>()?, [20.0, 21.0, 0.0, 1.0, 20.0, 21.0]);
/// let grads = y.sum()?.backward()?;
/// assert_eq!(grads.of(&table)?.read_blocking::<f32>()?, [1.0, 1.0, 0.0, 0.0, 2.0, 2.0]);
/// # Ok::<(), taipan::Error>(())
/// ```
pub fn embedding(table: &Tensor, ids: &Tensor) -> Result<Tensor> {
    table.dtype().ensure_float(OP, "the table")?;
    let is_table = table.rank() == 2;
    ensure!(OP, is_table, "the table is {:?}, expected [v, d]", table.shape());
    apply_one(Select { name: OP, dim: 0 }, &[table, ids])
}

impl Tensor {
    /// The elements whose index along `dim` is one of `ids`, in their order: the shape of `ids`
    /// takes the place of the dimension. An id that is too large is an error, as in
    /// [`embedding`](crate::embedding). The gradient of an index is the sum over its uses.
    ///
    /// ```
    /// use taipan::{DType, Device, Tensor};
    ///
    /// let x = Tensor::arange(0, 6, DType::F32, &Device::Cpu)?.reshape(&[2, 3])?;
    /// let ids = Tensor::new(&[2u32, 0, 2, 1], &[4], &Device::Cpu)?;
    /// let y = x.index_select(1, &ids)?;
    /// assert_eq!(y.read_blocking::<f32>()?, [2.0, 0.0, 2.0, 1.0, 5.0, 3.0, 5.0, 4.0]);
    /// # Ok::<(), taipan::Error>(())
    /// ```
    pub fn index_select(&self, dim: usize, ids: &Tensor) -> Result<Tensor> {
        apply_one(Select { name: "index_select", dim }, &[self, ids])
    }

    /// The dimension in reverse order.
    pub fn flip(&self, dim: usize) -> Result<Tensor> {
        const OP: &str = "flip";
        ensure_dim(OP, dim, self.shape())?;
        let [len] = kernel_sizes(OP, [self.shape()[dim]])?;
        let ids: Vec<u32> = (0..len).rev().collect();
        let ids = Tensor::new(&ids, &[ids.len()], self.device())?;
        apply_one(Select { name: OP, dim }, &[self, &ids])
    }
}

/// Inputs `table`, `[outer…, v, inner…]`, and `ids`. The result is `[outer…, ids…, inner…]`.
struct Select {
    name: &'static str,
    dim: usize,
}

/// The sizes of a selection.
#[derive(Clone, Copy)]
struct Sizes {
    /// Of dimensions before the one that is indexed.
    outer: usize,
    v: usize,
    /// Of the dimensions behind it: the length of a row.
    d: usize,
    /// The number of ids.
    count: usize,
}

impl Select {
    fn sizes(&self, table: &Spec, ids: &Spec) -> Sizes {
        let shape = table.shape();
        let [outer, d] = [&shape[..self.dim], &shape[self.dim + 1..]];
        let [outer, d] = [outer, d].map(|dims| dims.iter().product());
        Sizes { outer, v: shape[self.dim], d, count: ids.len() }
    }
}

impl Op for Select {
    fn saves(&self, slot: Slot, _: &[bool]) -> bool {
        slot == Slot::Input(1)
    }

    /// `dtable[id] = Σ dy[i]` over all `i` with `ids[i] = id`
    fn backward(&self, saved: &mut Saved, dys: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let table = saved.specs[0].clone();
        let sizes = self.sizes(&table, &saved.specs[1]);
        let inputs = [&dys[0], saved.input(1)];
        let cpu = |io: CpuIo| grad_on_cpu(io, sizes);
        let gpu = |io: GpuIo| grad_on_gpu(io, sizes);
        let grad = compute_one((self.name, "backward"), &inputs, table, cpu, gpu)?;
        Ok(vec![Some(grad), None])
    }
}

impl Kernel for Select {
    fn name(&self) -> &'static str {
        self.name
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Results<Spec>> {
        let (op, dim, table, ids) = (self.name, self.dim, inputs[0], inputs[1]);
        ids.dtype().ensure(DType::U32, op, "the tensor of ids")?;
        ensure_dim(op, dim, table.shape())?;
        let shape = table.shape();
        let has_rows = shape[dim] > 0 || ids.len() == 0;
        ensure!(op, has_rows, "dimension {dim} of {shape:?} is empty, expected an index or more");
        let shape = joined(&[&shape[..dim], ids.shape(), &shape[dim + 1..]]);
        Ok(smallvec![Spec::new(op, &shape, table.dtype())?])
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        let Sizes { v, d, count, .. } = self.sizes(inputs[0].spec, inputs[1].spec);
        let ids = inputs[1].as_slice::<u32>();
        ensure_below(self.name, "id", ids, v, None)?;
        with_dtype!(inputs[0].spec.dtype(), T: Bits => {
            let table = inputs[0].as_slice::<T>();
            for_chunks(outputs[0].as_mut_slice::<T>(), rows_for(d) * d, |start, chunk| {
                for (i, y) in chunk.chunks_mut(d).enumerate() {
                    let row = start / d + i;
                    let from = row / count * v + ids[row % count] as usize;
                    y.copy_from_slice(&table[from * d..][..d]);
                }
            });
        });
        Ok(())
    }

    fn gpu(&self, GpuIo { op, gpu, inputs, outputs }: GpuIo) -> Result<()> {
        let (table, ids, y) = (&inputs[0], &inputs[1], &outputs[0]);
        let sizes @ Sizes { outer, v, d, .. } = self.sizes(table.spec, ids.spec);
        let row = d * table.spec.dtype().size();
        for rows in gpu.windows(outer * v, row) {
            gpu.launch(Launch {
                name: op,
                program: value_program(table.spec.dtype()),
                params: SelectParams::new(op, gpu, sizes, &rows)?,
                inputs: &[table.all().window(rows, row), ids.all()],
                outputs: &[y.all(), gpu.index_errors()],
                grid: Grid::elements(y.spec.len()),
            })?;
        }
        Ok(())
    }
}

/// Positions are sorted by id, stably; then rows are summed in parallel.
fn grad_on_cpu(CpuIo { inputs, outputs }: CpuIo, sizes: Sizes) -> Result<()> {
    let Sizes { v, d, count, .. } = sizes;
    let ids = inputs[1].as_slice::<u32>();
    // The end of the positions of each id, which is the start of those of the next.
    let mut ends = vec![0; v + 1];
    ids.iter().for_each(|&id| ends[id as usize + 1] += 1);
    for id in 0..v {
        ends[id + 1] += ends[id];
    }
    let mut positions = vec![0; ids.len()];
    for (position, &id) in ids.iter().enumerate() {
        positions[ends[id as usize]] = position;
        ends[id as usize] += 1;
    }
    with_dtype!(inputs[0].spec.dtype(), T: Float => {
        let dy = inputs[0].as_slice::<T>();
        for_chunks(outputs[0].as_mut_slice::<T>(), rows_for(d) * d, |start, chunk| {
            let [mut sum, mut wide] = [(); 2].map(|()| vec![<T as Float>::Acc::ZERO; d]);
            for (i, row) in chunk.chunks_mut(d).enumerate() {
                let (outer, id) = ((start / d + i) / v, (start / d + i) % v);
                let first = if id == 0 { 0 } else { ends[id - 1] };
                sum.fill(<T as Float>::Acc::ZERO);
                for &position in &positions[first..ends[id]] {
                    T::widen(&dy[(outer * count + position) * d..][..d], &mut wide);
                    add(&mut sum, &wide);
                }
                T::narrow(&sum, row);
            }
        });
    });
    Ok(())
}

/// Each position is linked to the next of the same id; the first of an id follows the links.
fn grad_on_gpu(GpuIo { op, gpu, inputs, outputs }: GpuIo, sizes: Sizes) -> Result<()> {
    let (dy, ids, dtable) = (&inputs[0], &inputs[1], &outputs[0]);
    let Sizes { outer, v, d, count } = sizes;
    gpu.fill(op, dtable.data, 0)?;
    let links = gpu.scratch(op, count * 2 * DType::U32.size())?; // [count, 2]
    gpu.launch(Launch {
        name: op,
        program: links_program(),
        params: MapParams { len: count as u32 },
        inputs: &[ids.all()],
        outputs: &[links.all()],
        grid: Grid { work: (count as u64).pow(2), ..Grid::elements(count) },
    })?;
    let row = d * dtable.spec.dtype().size();
    for rows in gpu.windows(outer * v, row) {
        gpu.launch(Launch {
            name: op,
            program: grad_program(dtable.spec.dtype()),
            params: SelectParams::new(op, gpu, sizes, &rows)?,
            inputs: &[dy.all(), ids.all(), links.all()],
            outputs: &[dtable.all().window(rows, row)],
            grid: Grid::elements(outer * count * d),
        })?;
    }
    Ok(())
}

/// An error unless every index is less than `limit`, or `except`.
pub(super) fn ensure_below(
    op: &'static str,
    name: &'static str,
    indices: &[u32],
    limit: usize,
    except: Option<u32>,
) -> Result<()> {
    let wrong = |&index: &u32| index as usize >= limit && Some(index) != except;
    match indices.iter().position(wrong) {
        Some(at) => Err(Error::Index { op, name, found: indices[at], at: Some(at), limit }),
        None => Ok(()),
    }
}

/// Rows of a chunk: enough to be worth a task.
fn rows_for(d: usize) -> usize {
    GRAIN.div_ceil(d.max(1))
}

params! {
    struct SelectParams {
        len: u32, v: u32, d: u32, count: u32, first: u32, rows: u32, slot: u32, nan: f32,
    }
}

impl SelectParams {
    /// For a launch that binds some of the `[outer, v]` rows of the table.
    fn new(
        op: &'static str,
        gpu: &Gpu,
        Sizes { outer, v, d, count }: Sizes,
        rows: &Range<usize>,
    ) -> Result<SelectParams> {
        let sizes = [outer * count * d, v, d, count, rows.start, rows.len()];
        let [len, v, d, count, first, rows] = kernel_sizes(op, sizes)?;
        let slot = gpu.index_error_slot(op, "id");
        Ok(SelectParams { len, v, d, count, first, rows, slot, nan: f32::NAN })
    }
}

fn value_program(elem: DType) -> Program {
    let source = [wgsl!("lookup.wgsl"), INDEX_ERRORS, ELEMENTS];
    Program::new::<SelectParams>(&source, &[("Elem", elem)], &[])
}

fn links_program() -> Program {
    Program::new::<MapParams>(&[wgsl!("links.wgsl"), ELEMENTS], &[], &[])
}

fn grad_program(elem: DType) -> Program {
    let source = [wgsl!("grad.wgsl"), ELEMENTS];
    Program::new::<SelectParams>(&source, &[("Elem", elem)], &[])
}

/// Every program of this file.
#[cfg(test)]
pub(super) fn programs(elem: DType) -> Vec<Program> {
    vec![value_program(elem), links_program(), grad_program(elem)]
}
