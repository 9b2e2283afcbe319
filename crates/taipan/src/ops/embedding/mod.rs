//! Rows of a table, looked up by index.

use std::ops::Range;

use crate::DType;
use crate::autograd::{Op, Saved, Slot, apply_one};
use crate::cpu::map::add;
use crate::cpu::threads::{GRAIN, for_chunks};
use crate::dtype::{Float, Real, with_dtype};
use crate::error::{Error, Result, ensure};
use crate::gpu::{
    ELEMENTS, Gpu, Grid, INDEX_ERRORS, Launch, MapParams, Program, kernel_sizes, params,
};
use crate::kernel::{CpuIo, GpuIo, Kernel, compute_one};
use crate::spec::Spec;
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
    apply_one(Embedding, &[table, ids])
}

/// Inputs `table` and `ids`.
struct Embedding;

impl Op for Embedding {
    fn saves(&self, slot: Slot, _: &[bool]) -> bool {
        slot == Slot::Input(1)
    }

    /// `dtable[id] = Σ dy[i]` over all `i` with `ids[i] = id`
    fn backward(&self, saved: &mut Saved, dys: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let table = saved.specs[0].clone();
        let inputs = [&dys[0], saved.input(1)];
        let grad = compute_one((OP, "backward"), &inputs, table, grad_on_cpu, grad_on_gpu)?;
        Ok(vec![Some(grad), None])
    }
}

impl Kernel for Embedding {
    fn name(&self) -> &'static str {
        OP
    }

    fn outputs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        let (table, ids) = (inputs[0], inputs[1]);
        table.dtype().ensure_float(OP, "the table")?;
        ids.dtype().ensure(DType::U32, OP, "the tensor of ids")?;
        let [v, d] = *table.shape() else {
            let why = format!("the table is {:?}, expected [v, d]", table.shape());
            return Err(Error::Shape { op: OP, why });
        };
        ensure!(OP, v > 0 || ids.len() == 0, "the table is [0, {d}], expected a row or more");
        Ok(vec![Spec::new(OP, &[ids.shape(), &[d]].concat(), table.dtype())?])
    }

    fn cpu(&self, CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
        let [v, d] = sizes(inputs[0].spec);
        let ids = inputs[1].as_slice::<u32>();
        ensure_below(OP, "id", ids, v, None)?;
        with_dtype!(inputs[0].spec.dtype(), T: Float => {
            let table = inputs[0].as_slice::<T>();
            for_chunks(outputs[0].as_mut_slice::<T>(), rows_for(d) * d, |start, chunk| {
                for (y, &id) in chunk.chunks_mut(d).zip(&ids[start / d..]) {
                    y.copy_from_slice(&table[id as usize * d..][..d]);
                }
            });
        });
        Ok(())
    }

    fn gpu(&self, GpuIo { gpu, inputs, outputs, .. }: GpuIo) -> Result<()> {
        let (table, ids, y) = (&inputs[0], &inputs[1], &outputs[0]);
        let [v, d] = sizes(table.spec);
        let row = d * table.spec.dtype().size();
        for rows in gpu.windows(v, row) {
            gpu.launch(Launch {
                name: OP,
                program: value_program(table.spec.dtype()),
                params: EmbeddingParams::new(gpu, y.spec.len(), [v, d], &rows)?,
                inputs: &[table.all().window(rows, row), ids.all()],
                outputs: &[y.all(), gpu.index_errors()],
                grid: Grid::elements(y.spec.len()),
            })?;
        }
        Ok(())
    }
}

/// Positions are sorted by id, stably; then rows are summed in parallel.
fn grad_on_cpu(CpuIo { inputs, outputs }: CpuIo) -> Result<()> {
    let [v, d] = sizes(outputs[0].spec);
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
                let id = start / d + i;
                let first = if id == 0 { 0 } else { ends[id - 1] };
                sum.fill(<T as Float>::Acc::ZERO);
                for &position in &positions[first..ends[id]] {
                    T::widen(&dy[position * d..][..d], &mut wide);
                    add(&mut sum, &wide);
                }
                T::narrow(&sum, row);
            }
        });
    });
    Ok(())
}

/// Each position is linked to the next of the same id; the first of an id follows the links.
fn grad_on_gpu(GpuIo { gpu, inputs, outputs, .. }: GpuIo) -> Result<()> {
    let (dy, ids, dtable) = (&inputs[0], &inputs[1], &outputs[0]);
    let [v, d] = sizes(dtable.spec);
    gpu.fill(OP, dtable.data, 0)?;
    let m = ids.spec.len();
    let links = gpu.scratch(OP, m * 2 * DType::U32.size())?; // [m, 2]
    gpu.launch(Launch {
        name: OP,
        program: links_program(),
        params: MapParams { len: m as u32 },
        inputs: &[ids.all()],
        outputs: &[links.all()],
        grid: Grid { work: (m as u64).pow(2), ..Grid::elements(m) },
    })?;
    let row = d * dtable.spec.dtype().size();
    for rows in gpu.windows(v, row) {
        gpu.launch(Launch {
            name: OP,
            program: grad_program(dtable.spec.dtype()),
            params: EmbeddingParams::new(gpu, m * d, [v, d], &rows)?,
            inputs: &[dy.all(), ids.all(), links.all()],
            outputs: &[dtable.all().window(rows, row)],
            grid: Grid::elements(m * d),
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

fn sizes(table: &Spec) -> [usize; 2] {
    [table.shape()[0], table.shape()[1]]
}

/// Rows of a chunk: enough to be worth a task.
fn rows_for(d: usize) -> usize {
    GRAIN.div_ceil(d.max(1))
}

params! {
    struct EmbeddingParams { len: u32, v: u32, d: u32, first: u32, rows: u32, slot: u32, nan: f32 }
}

impl EmbeddingParams {
    /// For a launch that binds some rows of the table.
    fn new(
        gpu: &Gpu,
        len: usize,
        [v, d]: [usize; 2],
        rows: &Range<usize>,
    ) -> Result<EmbeddingParams> {
        let [len, v, d, first, rows] = kernel_sizes(OP, [len, v, d, rows.start, rows.len()])?;
        Ok(EmbeddingParams {
            len,
            v,
            d,
            first,
            rows,
            slot: gpu.index_error_slot(OP, "id"),
            nan: f32::NAN,
        })
    }
}

fn value_program(elem: DType) -> Program {
    let source = [include_str!("lookup.wgsl"), INDEX_ERRORS, ELEMENTS];
    Program::new::<EmbeddingParams>(&source, &[("Elem", elem)], &[])
}

fn links_program() -> Program {
    Program::new::<MapParams>(&[include_str!("links.wgsl"), ELEMENTS], &[], &[])
}

fn grad_program(elem: DType) -> Program {
    let source = [include_str!("grad.wgsl"), ELEMENTS];
    Program::new::<EmbeddingParams>(&source, &[("Elem", elem)], &[])
}

/// Every program of this file.
#[cfg(test)]
pub(super) fn programs(elem: DType) -> Vec<Program> {
    vec![value_program(elem), links_program(), grad_program(elem)]
}
