//! The product alone, by crates that have nothing else: `gemm` and `faer`.

use std::num::NonZeroUsize;

use crate::case::Case;
use crate::clock::Clock;
use crate::{Contestant, Output, Result, unsupported};

/// A matrix with a stride for rows and one for columns.
#[derive(Clone, Copy)]
pub struct Matrix<'a> {
    values: &'a [f32],
    rows: usize,
    columns: usize,
    strides: [usize; 2],
}

impl<'a> Matrix<'a> {
    pub fn new(values: &'a [f32], rows: usize, columns: usize) -> Matrix<'a> {
        assert_eq!(values.len(), rows * columns);
        Matrix { values, rows, columns, strides: [columns, 1] }
    }

    pub fn transposed(self) -> Matrix<'a> {
        let [row, column] = self.strides;
        let (rows, columns) = (self.columns, self.rows);
        Matrix { rows, columns, strides: [column, row], ..self }
    }
}

/// `dst`, row-major, becomes `lhs·rhs`.
type Product = fn(dst: &mut [f32], lhs: Matrix, rhs: Matrix);

pub fn gemm(dst: &mut [f32], lhs: Matrix, rhs: Matrix) {
    let (m, k, n) = (lhs.rows, lhs.columns, rhs.columns);
    assert_eq!((dst.len(), rhs.rows), (m * n, k));
    let parallelism = match rayon::current_num_threads() {
        1 => gemm::Parallelism::None,
        threads => gemm::Parallelism::Rayon(threads),
    };
    let [lhs_row, lhs_column] = lhs.strides.map(|stride| stride as isize);
    let [rhs_row, rhs_column] = rhs.strides.map(|stride| stride as isize);
    // SAFETY: `dst` is [m, n], `lhs` is [m, k] and `rhs` is [k, n], as asserted, and the strides of
    // a `Matrix` stay inside its values.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            dst.as_mut_ptr(),
            1,
            n as isize,
            false,
            lhs.values.as_ptr(),
            lhs_column,
            lhs_row,
            rhs.values.as_ptr(),
            rhs_column,
            rhs_row,
            0f32,
            1f32,
            false,
            false,
            false,
            parallelism,
        );
    }
}

pub fn faer(dst: &mut [f32], lhs: Matrix, rhs: Matrix) {
    let (m, n) = (lhs.rows, rhs.columns);
    let parallelism = match NonZeroUsize::new(rayon::current_num_threads()) {
        Some(threads) if threads.get() > 1 => faer::Par::Rayon(threads),
        _ => faer::Par::Seq,
    };
    let view = |matrix: Matrix<'_>| -> faer::MatRef<'_, f32> {
        let (rows, columns) = (matrix.rows, matrix.columns);
        let Matrix { values, .. } = matrix;
        // SAFETY: values and strides are those of a `Matrix`, and outlive the view: it does not
        // leave this function.
        unsafe {
            let [row, column] = matrix.strides.map(|stride| stride as isize);
            faer::MatRef::from_raw_parts(values.as_ptr(), rows, columns, row, column)
        }
    };
    let dst = faer::MatMut::from_row_major_slice_mut(dst, m, n);
    let (lhs, rhs) = (view(lhs), view(rhs));
    faer::linalg::matmul::matmul(dst, faer::Accum::Replace, lhs, rhs, 1.0, parallelism);
}

pub fn prepare(product: Product, case: &Case) -> Result<Box<dyn Contestant>> {
    if case.dtype != "f32" {
        return unsupported(&case.dtype);
    }
    let [m, k, n] = case.product()?;
    Ok(Box::new(Products {
        product,
        sizes: [m, k, n],
        backward: case.is_backward(),
        x: case.input("x")?,
        w: case.input("w")?,
        dy: case.input("dy")?,
        y: vec![0.0; m * n],
        dx: vec![0.0; m * k],
        dw: vec![0.0; k * n],
    }))
}

struct Products {
    product: Product,
    /// `m`, `k`, `n`
    sizes: [usize; 3],
    backward: bool,
    x: Vec<f32>,
    w: Vec<f32>,
    dy: Vec<f32>,
    y: Vec<f32>,
    dx: Vec<f32>,
    dw: Vec<f32>,
}

impl Products {
    fn once(&mut self) {
        let [m, k, n] = self.sizes;
        let (x, w) = (Matrix::new(&self.x, m, k), Matrix::new(&self.w, k, n));
        if self.backward {
            let dy = Matrix::new(&self.dy, m, n);
            (self.product)(&mut self.dx, dy, w.transposed());
            (self.product)(&mut self.dw, x.transposed(), dy);
        } else {
            (self.product)(&mut self.y, x, w);
        }
    }
}

impl Contestant for Products {
    fn outputs(&mut self) -> Result<Vec<Output>> {
        self.once();
        if self.backward {
            return Ok(vec![("product_dx", self.dx.clone()), ("product_dw", self.dw.clone())]);
        }
        Ok(vec![("product", self.y.clone())])
    }

    fn run(&mut self, times: usize, clock: &mut Clock) -> Result<()> {
        clock.time(|| (0..times).for_each(|_| self.once()));
        Ok(())
    }
}
