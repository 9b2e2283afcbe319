//! Products of small matrices within a task: one thread, and no memory but that of the packed
//! operands, which is reused.

use super::micro::Micro;
use super::{Entry, Gemm, Tiles};
use crate::cpu::isa::Level;
use crate::dtype::Real;
use crate::error::Result;
use crate::product::Product;

/// Multiplies small matrices, one product after the other.
pub(crate) struct LocalGemm<A> {
    micro: Micro<A>,
    left: Vec<A>,
    right: Vec<A>,
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
        LocalGemm { micro: A::micro(Level::current()), left: Vec::new(), right: Vec::new() }
    }

    /// The product of the first entry, `[m, n]`. The order of the sums is that of `k`.
    pub(crate) fn run(&mut self, gemm: &Gemm<A>, sums: &mut [A], store: Store) -> Result<()> {
        let Product { m, n, k, .. } = gemm.product;
        assert!(sums.len() == m * n, "gemm: an output of another size");
        if m == 0 || n == 0 || k == 0 {
            if store == Store::Overwrite {
                sums.fill(A::ZERO);
            }
            return Ok(());
        }
        let Entry { left, right, .. } = gemm.entry(0);
        let (rows, columns) = (self.micro.rows, self.micro.columns);
        self.left.resize(m.next_multiple_of(rows) * k, A::ZERO);
        self.right.resize(n.next_multiple_of(columns) * k, A::ZERO);
        (self.micro.pack_left)(left, 0..m, 0..k, &mut self.left)?;
        (self.micro.pack_right)(right, 0..n, 0..k, &mut self.right)?;
        let tiles = Tiles {
            micro: &self.micro,
            depth: k,
            left: &self.left,
            right: &self.right,
            stride: n,
            add: store == Store::Add,
        };
        tiles.run(0..n, sums);
        Ok(())
    }
}
