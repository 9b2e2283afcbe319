//! Products of small matrices within a task: one thread, and packed operands that are used again.

use std::marker::PhantomData;

use super::micro::Micro;
use super::{Gemm, Operand, Side, Source, Tiles, Triangle};
use crate::cpu::CpuBuffer;
use crate::cpu::isa::Level;
use crate::dtype::Real;
use crate::error::Result;
use crate::product::{Layout, Product};

/// Multiplies small matrices, one product after the other.
pub(crate) struct LocalGemm<A> {
    micro: Micro<A>,
    left: Panels<A>,
    right: Panels<A>,
}

/// A packed operand.
pub(crate) struct Panels<A> {
    packed: Option<CpuBuffer>,
    lanes: usize,
    depth: usize,
    element: PhantomData<A>,
}

impl<A> Default for Panels<A> {
    fn default() -> Self {
        Panels { packed: None, lanes: 0, depth: 0, element: PhantomData }
    }
}

/// What becomes of the sums that are there already.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Store {
    /// `sums = left·right`
    Overwrite,
    /// `sums += left·right`
    Add,
}

impl<A: Real> LocalGemm<A> {
    pub(crate) fn new() -> Self {
        let [left, right] = [Panels::default(), Panels::default()];
        LocalGemm { micro: A::micro(Level::current()), left, right }
    }

    /// Pack the left operand, `[m, k]`.
    pub(crate) fn pack_left(
        &self,
        source: &dyn Source<A>,
        layout: Layout,
        [m, k]: [usize; 2],
        panels: &mut Panels<A>,
    ) -> Result<()> {
        let operand = Operand { source, side: Side::Left, layout, first_line: 0 };
        match panels.resize(m, k, self.micro.rows)? {
            [] => Ok(()),
            packed => (self.micro.pack_left)(operand, 0..m, 0..k, packed),
        }
    }

    /// Pack the right operand, `[k, n]`.
    pub(crate) fn pack_right(
        &self,
        source: &dyn Source<A>,
        layout: Layout,
        [k, n]: [usize; 2],
        panels: &mut Panels<A>,
    ) -> Result<()> {
        let operand = Operand { source, side: Side::Right, layout, first_line: 0 };
        match panels.resize(n, k, self.micro.columns)? {
            [] => Ok(()),
            packed => (self.micro.pack_right)(operand, 0..n, 0..k, packed),
        }
    }

    /// The product of packed operands, `[m, n]`. The order of the sums is that of `k`.
    pub(crate) fn multiply(
        &self,
        left: &Panels<A>,
        right: &Panels<A>,
        sums: &mut [A],
        store: Store,
    ) {
        self.multiply_triangle(left, right, sums, store, Triangle::None);
    }

    /// [`multiply`](Self::multiply), without what the triangle leaves out.
    pub(crate) fn multiply_triangle(
        &self,
        left: &Panels<A>,
        right: &Panels<A>,
        sums: &mut [A],
        store: Store,
        triangle: Triangle,
    ) {
        let n = right.lanes;
        assert!(left.depth == right.depth, "gemm: operands of another depth");
        assert!(sums.len() == left.lanes * n, "gemm: an output of another size");
        if left.depth == 0 && store == Store::Overwrite {
            sums.fill(A::ZERO);
        }
        if sums.is_empty() || left.depth == 0 {
            return;
        }
        let tiles = Tiles {
            micro: &self.micro,
            depth: left.depth,
            left: left.packed(),
            right: right.packed(),
            stride: n,
            add: store == Store::Add,
            triangle,
        };
        tiles.run(0..n, sums);
    }

    /// `sums += left·right`, of the first entry, `[m, n]`, without what the triangle leaves out.
    pub(crate) fn add(&mut self, gemm: &Gemm<A>, sums: &mut [A], triangle: Triangle) -> Result<()> {
        let Product { m, n, k, left: left_layout, right: right_layout, .. } = gemm.product;
        let (mut left, mut right) =
            (std::mem::take(&mut self.left), std::mem::take(&mut self.right));
        self.pack_left(gemm.left, left_layout, [m, k], &mut left)?;
        self.pack_right(gemm.right, right_layout, [k, n], &mut right)?;
        self.multiply_triangle(&left, &right, sums, Store::Add, triangle);
        (self.left, self.right) = (left, right);
        Ok(())
    }
}

impl<A: Real> Panels<A> {
    fn packed(&self) -> &[A] {
        self.packed.as_ref().map_or(&[], CpuBuffer::as_slice)
    }

    /// The memory for so many lanes and such a depth.
    fn resize(&mut self, lanes: usize, depth: usize, width: usize) -> Result<&mut [A]> {
        let len = lanes.next_multiple_of(width) * depth;
        (self.lanes, self.depth) = (lanes, depth);
        if self.packed().len() < len {
            self.packed = Some(CpuBuffer::scratch("gemm", len * size_of::<A>())?);
        }
        Ok(self.packed.as_mut().map_or(&mut [], |packed| &mut packed.as_mut_slice()[..len]))
    }
}
