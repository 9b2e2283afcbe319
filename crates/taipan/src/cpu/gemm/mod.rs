//! The matrix product, with a fused prologue and epilogue.
//!
//! `out = finish(left·right)`. An operand is read through a [`Source`], line by line, while it
//! is packed for the inner kernel: conversions, transposes and element-wise factors need no extra
//! pass. `finish` is called for ranges of columns of each row once these are complete and still in
//! cache: bias and activation need no extra pass either.
//!
//! The loops are those of Goto and van de Geijn: blocks of `right` `[depth, columns]` packed once
//! and shared by all threads, blocks of `left` `[rows, depth]` packed by each thread, and a
//! register tile in the middle. Each output is summed in the same order whatever the number of
//! threads.

mod dots;
mod int8;
mod local;
mod micro;
mod pack;
#[cfg(test)]
mod tests;
mod thin;
mod tiles;
#[cfg(target_arch = "x86_64")]
mod vector;

use std::ops::Range;

pub(crate) use self::dots::{Dots, dots_bf16, dots_f16, dots_f32, dots_f64};
use self::dots::{Lines, Rows, Strip};
pub(crate) use self::int8::{BLOCK as INT8_BLOCK, Int8, quantize};
pub(crate) use self::local::{LocalGemm, Panels, Store};
#[cfg(not(target_family = "wasm"))]
pub(crate) use self::micro::multiply_adds;
use self::micro::{AddPanel, Micro};
use self::tiles::Tiles;
pub(crate) use self::tiles::Triangle;
use crate::cpu::isa::Level;
use crate::cpu::prefetch::prefetch;
use crate::cpu::threads::{self, try_for_tasks};
use crate::cpu::{CpuBuffer, CpuView};
use crate::dtype::{DType, Float, Real, widened};
use crate::error::Result;
use crate::product::{Layout, Product, Side};

/// Where an operand's elements come from.
pub(crate) trait Source<A>: Sync {
    /// The elements of `line` from `from` on, as many as `buffer` holds: borrowed where they are
    /// stored in this form, otherwise written to `buffer`.
    fn read<'a>(&'a self, line: usize, from: usize, buffer: &'a mut [A]) -> &'a [A];

    /// Whether the elements are bf16, or may be rounded to it.
    fn is_bf16(&self) -> bool {
        false
    }

    /// Convert rows for [`dots`](Source::dots), once for all lines.
    fn prepare(&self, _rows: &mut Rows<A>) -> Result<()> {
        Ok(())
    }

    /// The dot products of some lines, from their beginning, with a few rows.
    fn dots(&self, lines: Range<usize>, rows: &Rows<A>, strip: Strip<A>) -> Result<()>
    where
        A: Real,
    {
        dots::by_reading(self, lines, rows, strip)
    }
}

/// A matrix in memory; each line is a row of it.
pub(crate) struct Dense<'a, T> {
    pub(crate) data: &'a [T],
    /// Elements from one line to the next.
    pub(crate) stride: usize,
}

impl<'a, T: Float> Dense<'a, T> {
    /// The rows of a tensor.
    pub(crate) fn of(view: &CpuView<'a>) -> Dense<'a, T> {
        Dense { data: view.as_slice(), stride: view.spec.shape().last().copied().unwrap_or(1) }
    }
}

impl<T: Float> Source<T::Acc> for Dense<'_, T> {
    fn read<'a>(&'a self, line: usize, from: usize, buffer: &'a mut [T::Acc]) -> &'a [T::Acc] {
        let start = line * self.stride + from;
        prefetch_lines(self.data, start, self.stride, buffer.len());
        widened(&self.data[start..][..buffer.len()], buffer)
    }

    fn is_bf16(&self) -> bool {
        T::DTYPE == DType::BF16
    }

    fn dots(&self, lines: Range<usize>, rows: &Rows<T::Acc>, strip: Strip<T::Acc>) -> Result<()> {
        let Some(dots) = T::dots(Level::current()) else {
            return dots::by_reading(self, lines, rows, strip);
        };
        let data = &self.data[lines.start * self.stride..];
        dots(&Lines { data, stride: self.stride, count: lines.len() }, rows, strip);
        Ok(())
    }
}

/// Prefetch the line after the next: lines are read in order, but they are too far apart for the
/// hardware prefetcher.
pub(crate) fn prefetch_lines<T>(data: &[T], start: usize, stride: usize, len: usize) {
    let ahead = start + 2 * stride;
    prefetch(data.get(ahead..ahead + len).unwrap_or_default());
}

/// The epilogue, called for complete columns of a row: `finish(row_data, columns, sums)` may change
/// the sums, which are then stored, and the data of the row.
pub(crate) type Finish<'a, A, X> = &'a (dyn Fn(&mut X, Range<usize>, &mut [A]) + Sync);

/// A product and its operands. The lines of a source are the rows of what is stored, those of one
/// entry after those of the other.
pub(crate) struct Gemm<'a, A> {
    pub(crate) product: Product,
    pub(crate) left: &'a dyn Source<A>,
    pub(crate) right: &'a dyn Source<A>,
}

/// One sum over `k` for each row of the left side, or each column of the right one, of all entries.
/// This needs no extra pass.
type LaneSums<'a, A> = Option<(Side, &'a mut [A])>;

impl<A: Real> Gemm<'_, A> {
    /// `out = left·right`, `[entries, m, n]`
    pub(crate) fn store<T: Float<Acc = A>>(&self, out: &mut [T]) -> Result<()> {
        self.run(out, &mut self.no_row_data(), &|_, _, _| {}, None)
    }

    /// [`store`](Gemm::store), and the sums over `k` of one side: of each row of the left one,
    /// `[entries, m]`, or of each column of the right one, `[entries, n]`.
    pub(crate) fn store_and_sum<T: Float<Acc = A>>(
        &self,
        out: &mut [T],
        side: Side,
        sums: &mut [A],
    ) -> Result<()> {
        self.run(out, &mut self.no_row_data(), &|_, _, _| {}, Some((side, sums)))
    }

    /// `out = finish(left·right)`, with one `row_data` for each row of `out`.
    pub(crate) fn store_finished<T: Float<Acc = A>, X: Send>(
        &self,
        out: &mut [T],
        row_data: &mut [X],
        finish: Finish<A, X>,
    ) -> Result<()> {
        self.run(out, row_data, finish, None)
    }

    fn no_row_data(&self) -> Vec<()> {
        vec![(); self.product.entries * self.product.m]
    }

    fn run<T: Float<Acc = A>, X: Send>(
        &self,
        out: &mut [T],
        row_data: &mut [X],
        finish: Finish<A, X>,
        mut lane_sums: LaneSums<A>,
    ) -> Result<()> {
        let Product { entries, m, n, k, .. } = self.product;
        let rows = entries * m;
        assert!(out.len() == rows * n && row_data.len() == rows, "gemm: outputs of another size");
        if let Some((_, sums)) = &mut lane_sums {
            sums.fill(A::ZERO);
        }
        if out.is_empty() {
            return Ok(());
        }
        let mut lane_sums =
            lane_sums.map(|(side, sums)| (side, sums.chunks_mut(sums.len() / entries)));
        let mut next_sums =
            || lane_sums.as_mut().and_then(|(side, sums)| Some((*side, sums.next()?)));
        let tasks = out
            .chunks_mut(m * n)
            .zip(row_data.chunks_mut(m))
            .map(|(out, row_data)| (out, row_data, next_sums()));
        let micro = match self.left.is_bf16() && self.right.is_bf16() {
            true => A::micro_bf16(Level::current()),
            false => A::micro(Level::current()),
        };
        let work = entries.saturating_mul(m).saturating_mul(k).saturating_mul(n);
        try_for_tasks(tasks, threads_for(work), |entry, (out, row_data, sums)| {
            self.entry(entry).store(&micro, out, row_data, finish, sums)
        })
    }

    fn entry(&self, entry: usize) -> Entry<'_, A> {
        let Product { m, n, k, left, right, .. } = self.product;
        let operand = |source, side, layout, [rows, columns]: [usize; 2]| {
            let lines = if layout == Layout::RowMajor { rows } else { columns };
            Operand { source, side, layout, first_line: entry * lines }
        };
        Entry {
            m,
            n,
            k,
            left: operand(self.left, Side::Left, left, [m, k]),
            right: operand(self.right, Side::Right, right, [k, n]),
        }
    }
}

/// One side of a product. Its *lanes* are the rows of the left side or the columns of the right
/// one; its *depth* is the dimension that is summed over.
#[derive(Clone, Copy)]
struct Operand<'a, A> {
    source: &'a dyn Source<A>,
    side: Side,
    layout: Layout,
    first_line: usize,
}

impl<'a, A> Operand<'a, A> {
    /// Whether a line is a lane, along the depth; otherwise it is a step of the depth, along the
    /// lanes.
    fn lines_are_lanes(&self) -> bool {
        (self.side == Side::Left) == (self.layout == Layout::RowMajor)
    }

    /// See [`Source::read`].
    fn read<'b>(&self, line: usize, from: usize, buffer: &'b mut [A]) -> &'b [A]
    where
        'a: 'b,
    {
        self.source.read(self.first_line + line, from, buffer)
    }
}

/// The product of one entry.
#[derive(Clone, Copy)]
struct Entry<'a, A> {
    m: usize,
    n: usize,
    k: usize,
    left: Operand<'a, A>,
    right: Operand<'a, A>,
}

/// Depth of a block: long enough for the sums to be loaded and stored rarely.
const DEPTH: usize = 512;
/// Bytes of a block of `left`: most of the second-level cache.
const LEFT_BYTES: usize = 288 << 10;
/// Bytes of a block of `right`: most of the last-level cache.
const RIGHT_BYTES: usize = 6 << 20;
/// Columns per call of `finish`: with the rows of a block, they fit the second-level cache.
const GROUP: usize = 512;
/// Side of the block of sums, if the output cannot hold them itself.
const SUMS: usize = 1024;

/// Types the inner kernel exists for.
pub(crate) trait Tiled: Sized {
    /// The kernel for an instruction set.
    fn micro(level: Level) -> Micro<Self>;
    /// That for operands of bf16: with AVX-512 BF16 it multiplies pairs of them, and sums in f32.
    fn micro_bf16(level: Level) -> Micro<Self> {
        Self::micro(level)
    }
}

impl<A: Real> Entry<'_, A> {
    /// `out = finish(left·right)`, `[m, n]`; lane sums are added to those given.
    fn store<T: Float<Acc = A>, X: Send>(
        &self,
        micro: &Micro<A>,
        out: &mut [T],
        row_data: &mut [X],
        finish: Finish<A, X>,
        lane_sums: LaneSums<A>,
    ) -> Result<()> {
        let Entry { m, n, .. } = *self;
        let (mut left_sums, mut right_sums) = match lane_sums {
            None if thin::is_thin(self) => return thin::thin(self, out, row_data, finish),
            None => (None, None),
            Some((Side::Left, sums)) => (Some(sums), None),
            Some((Side::Right, sums)) => (None, Some(sums)),
        };
        if let Some(sums) = T::as_acc_mut(out) {
            let block =
                Block { micro, product: self, rows: 0..m, columns: 0..n, left_sums, right_sums };
            return block.run(sums, row_data, finish);
        }
        // Sums of f16 and bf16 are f32: compute a block of them at a time.
        let mut sums = CpuBuffer::scratch("gemm", SUMS.min(m) * SUMS.min(n) * size_of::<A>())?;
        for rows in blocks(0..m, SUMS) {
            for columns in blocks(0..n, SUMS) {
                let sums = &mut sums.as_mut_slice::<A>()[..rows.len() * columns.len()];
                let mut row_data: Vec<(&mut X, &mut [T])> = row_data[rows.clone()]
                    .iter_mut()
                    .zip(out[rows.start * n..].chunks_mut(n))
                    .collect();
                let finish =
                    |(x, out): &mut (&mut X, &mut [T]), columns: Range<usize>, sums: &mut _| {
                        finish(x, columns.clone(), sums);
                        T::narrow(sums, &mut out[columns]);
                    };
                let block = Block {
                    micro,
                    product: self,
                    left_sums: left_sums.as_deref_mut().filter(|_| columns.start == 0),
                    right_sums: right_sums.as_deref_mut().filter(|_| rows.start == 0),
                    rows: rows.clone(),
                    columns,
                };
                block.run(sums, &mut row_data, &finish)?;
            }
        }
        Ok(())
    }
}

/// `range` in blocks of at most `len`.
fn blocks(range: Range<usize>, len: usize) -> impl Iterator<Item = Range<usize>> {
    range.clone().step_by(len).map(move |start| start..(start + len).min(range.end))
}

/// The size of equal blocks of at most `most`, in multiples of `unit`, that cover `size`.
fn even(size: usize, most: usize, unit: usize) -> usize {
    let blocks = size.div_ceil(most).max(1);
    size.div_ceil(blocks).next_multiple_of(unit).max(unit)
}

/// Whether a product with so many rows rounds an operand of bf16 that is computed while it is packed.
pub(crate) fn rounds_bf16(rows: usize) -> bool {
    rows > thin::ROWS && f32::micro_bf16(Level::current()).steps > 1
}

/// The number of threads for a product of this size. Does not change its result.
pub(crate) fn threads_for(multiply_adds: usize) -> usize {
    match multiply_adds {
        0..3_000_000 => 1, // 20 µs
        _ => threads::count(),
    }
}

/// A rectangle of a product.
struct Block<'a, A> {
    micro: &'a Micro<A>,
    product: &'a Entry<'a, A>,
    rows: Range<usize>,
    columns: Range<usize>,
    /// Sums of the lanes of this block are added to these, `[m]` and `[n]`.
    left_sums: Option<&'a mut [A]>,
    right_sums: Option<&'a mut [A]>,
}

impl<A: Real> Block<'_, A> {
    /// Fill `sums`, `[rows, columns]`.
    fn run<X: Send>(
        mut self,
        sums: &mut [A],
        row_data: &mut [X],
        finish: Finish<A, X>,
    ) -> Result<()> {
        let (k, height, width) = (self.product.k, self.rows.len(), self.columns.len());
        if height == 0 || width == 0 {
            return Ok(());
        }
        if k == 0 {
            for (row, x) in sums.chunks_mut(width).zip(row_data) {
                row.fill(A::ZERO);
                finish(x, self.columns.clone(), row);
            }
            return Ok(());
        }
        let threads = threads_for(height.saturating_mul(width).saturating_mul(k));
        let steps = self.micro.steps;
        let depth_step = even(k, DEPTH * steps, steps);
        let lane_bytes = self.micro.packed(depth_step) * size_of::<A>();
        let row_blocks = self.row_blocks(threads, LEFT_BYTES / lane_bytes);
        let columns_most = RIGHT_BYTES / lane_bytes;
        let column_step = even(width, columns_most, self.micro.columns);
        let depths: Vec<Range<usize>> = blocks(0..k, depth_step).collect();
        // As many blocks of the depth at a time as there is room for: threads synchronise twice for
        // each.
        let together = (columns_most / column_step).clamp(1, depths.len());
        let mut packed = CpuBuffer::scratch("gemm", column_step * lane_bytes * together)?;
        for columns in blocks(self.columns.clone(), column_step) {
            for depths in depths.chunks(together) {
                let lanes = columns.len().next_multiple_of(self.micro.columns);
                let mut rest = &mut packed.as_mut_slice::<A>()[..];
                let mut right: Vec<&mut [A]> = depths
                    .iter()
                    .map(|depth| lanes * self.micro.packed(depth.len()))
                    .map(|len| rest.split_off_mut(..len).unwrap_or_default())
                    .collect();
                self.pack_right(columns.clone(), depths, &mut right, threads)?;
                let strips: Vec<PackedStrip<A>> = depths
                    .iter()
                    .zip(&right)
                    .map(|(depth, right)| PackedStrip {
                        micro: self.micro,
                        product: self.product,
                        block: self.columns.clone(),
                        columns: columns.clone(),
                        depth: depth.clone(),
                        right,
                    })
                    .collect();
                // The left side is packed once per block of columns, but summed only once.
                let first = columns.start == self.columns.start;
                let left_sums = self.left_sums.as_deref_mut().filter(|_| first);
                let mut left_sums = left_sums.map(|sums| &mut sums[self.rows.clone()]);
                let (mut sums, mut row_data) = (&mut *sums, &mut *row_data);
                let mut tasks = Vec::with_capacity(row_blocks.len());
                for rows in &row_blocks {
                    let task = (
                        self.rows.start + rows.start,
                        sums.split_off_mut(..rows.len() * width).unwrap_or_default(),
                        row_data.split_off_mut(..rows.len()).unwrap_or_default(),
                        left_sums
                            .as_mut()
                            .and_then(|sums| sums.split_off_mut(..rows.len()))
                            .unwrap_or_default(),
                    );
                    tasks.push(task);
                }
                try_for_tasks(tasks, threads, |_, (first, sums, row_data, left_sums)| {
                    strips
                        .iter()
                        .try_for_each(|strip| strip.run(first, sums, row_data, finish, left_sums))
                })?;
            }
        }
        Ok(())
    }

    /// The rows in blocks of about `most` rows and of whole tiles: the same number for each thread,
    /// and of about the same size.
    fn row_blocks(&self, threads: usize, most: usize) -> Vec<Range<usize>> {
        let (height, mr) = (self.rows.len(), self.micro.rows);
        let tiles = height.div_ceil(mr);
        let blocks = (threads * height.div_ceil(threads * most.max(1))).min(tiles);
        let start = |block: usize| (block * tiles / blocks * mr).min(height);
        (0..blocks).map(|block| start(block)..start(block + 1)).collect()
    }

    /// Pack a block of the right side for each block of the depth, in groups of panels whose lines
    /// are long enough to be worth a call.
    fn pack_right(
        &mut self,
        columns: Range<usize>,
        depths: &[Range<usize>],
        packed: &mut [&mut [A]],
        threads: usize,
    ) -> Result<()> {
        let (right, micro, nr) = (self.product.right, self.micro, self.micro.columns);
        let width = columns.len();
        let group = even(width, GROUP.min(width.div_ceil(threads)), nr);
        let mut groups: Vec<Vec<&mut [A]>> = Vec::new();
        groups.resize_with(width.div_ceil(group), || Vec::with_capacity(depths.len()));
        for (depth, packed) in depths.iter().zip(packed) {
            let blocks = packed.chunks_mut(group * micro.packed(depth.len()));
            groups.iter_mut().zip(blocks).for_each(|(group, block)| group.push(block));
        }
        let mut sums =
            self.right_sums.as_deref_mut().map(|sums| sums[columns.clone()].chunks_mut(group));
        let mut next_sums = || sums.as_mut().and_then(Iterator::next).unwrap_or_default();
        let tasks: Vec<_> = groups.into_iter().map(|blocks| (blocks, next_sums())).collect();
        try_for_tasks(tasks, threads, |i, (blocks, sums)| {
            let start = columns.start + i * group;
            let columns = start..(start + group).min(columns.end);
            for (depth, block) in depths.iter().zip(blocks) {
                (micro.pack_right)(right, columns.clone(), depth.clone(), block)?;
                add_depth(micro.add_panel, block, nr * micro.packed(depth.len()), nr, sums);
            }
            Ok(())
        })
    }
}

/// A packed block of the right side, to be multiplied by rows of the left one.
struct PackedStrip<'a, A> {
    micro: &'a Micro<A>,
    product: &'a Entry<'a, A>,
    /// The columns of the sums.
    block: Range<usize>,
    /// The columns and the range of the depth that are packed.
    columns: Range<usize>,
    depth: Range<usize>,
    right: &'a [A],
}

impl<A: Real> PackedStrip<'_, A> {
    /// Multiply the rows from `first` on, one for each `row_data`, in one thread.
    fn run<X>(
        &self,
        first: usize,
        sums: &mut [A],
        row_data: &mut [X],
        finish: Finish<A, X>,
        left_sums: &mut [A],
    ) -> Result<()> {
        let (mr, width) = (self.micro.rows, self.block.len());
        let depth = self.micro.packed(self.depth.len());
        let len = row_data.len().next_multiple_of(mr) * depth;
        let mut packed = CpuBuffer::scratch("gemm", len * size_of::<A>())?;
        let packed = packed.as_mut_slice::<A>();
        let rows = first..first + row_data.len();
        (self.micro.pack_left)(self.product.left, rows, self.depth.clone(), packed)?;
        add_depth(self.micro.add_panel, packed, mr * depth, mr, left_sums);
        let tiles = Tiles {
            micro: self.micro,
            depth,
            left: packed,
            right: self.right,
            stride: width,
            add: self.depth.start > 0,
            triangle: Triangle::None,
        };
        let offset = self.columns.start - self.block.start;
        for group in blocks(0..self.columns.len(), GROUP.next_multiple_of(self.micro.columns)) {
            tiles.run(group.clone(), &mut sums[offset..]);
            if self.depth.end == self.product.k {
                let columns = self.columns.start + group.start..self.columns.start + group.end;
                for (row, x) in sums.chunks_mut(width).zip(&mut *row_data) {
                    let sums = &mut row[offset + group.start..offset + group.end];
                    finish(x, columns.clone(), sums);
                }
            }
        }
        Ok(())
    }
}

/// Add each lane of the packed panels, summed over the depth, to `sums`, which may be empty.
fn add_depth<A>(
    add_panel: AddPanel<A>,
    packed: &[A],
    panel_len: usize,
    width: usize,
    sums: &mut [A],
) {
    for (panel, sums) in packed.chunks(panel_len).zip(sums.chunks_mut(width)) {
        add_panel(panel, width, sums);
    }
}
