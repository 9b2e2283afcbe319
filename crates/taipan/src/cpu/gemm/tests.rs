//! The product against three nested loops, on every instruction set this processor has.

use half::{bf16, f16};

use super::*;
use crate::dtype::Element;

/// Small integers: their products are exact in every type.
fn whole_numbers<T: Element>(len: usize, seed: usize) -> Vec<T> {
    (0..len).map(|i| T::of_f64(((i * 7 + seed * 13 + i / 5) % 7) as f64 - 3.0)).collect()
}

/// The length of the lines of a matrix.
fn stride(layout: Layout, [rows, columns]: [usize; 2]) -> usize {
    if layout == Layout::RowMajor { columns } else { rows }
}

/// The index of an element of a matrix.
fn at(layout: Layout, sizes: [usize; 2], row: usize, column: usize) -> usize {
    let (line, from) = if layout == Layout::RowMajor { (row, column) } else { (column, row) };
    line * stride(layout, sizes) + from
}

/// Every instruction set, layout and side of the sums against three nested loops, exactly.
fn check<T: Float>(m: usize, n: usize, k: usize) {
    const ENTRIES: usize = 2;
    let (a, b) = (whole_numbers::<T>(ENTRIES * m * k, 1), whole_numbers::<T>(ENTRIES * k * n, 2));
    for level in Level::available() {
        for (left, right) in [Layout::RowMajor, Layout::Transposed]
            .map(|left| [(left, Layout::RowMajor), (left, Layout::Transposed)])
            .concat()
        {
            let at_a = |entry: usize, i: usize, p: usize| {
                a[entry * m * k + at(left, [m, k], i, p)].to_f64()
            };
            let at_b = |entry: usize, p: usize, j: usize| {
                b[entry * k * n + at(right, [k, n], p, j)].to_f64()
            };
            let gemm = Gemm {
                product: Product { entries: ENTRIES, m, n, k, left, right },
                left: &Dense { data: &a, stride: stride(left, [m, k]) },
                right: &Dense { data: &b, stride: stride(right, [k, n]) },
            };
            let mut out = vec![T::of_f64(f64::NAN); ENTRIES * m * n];
            let mut finished = vec![0; ENTRIES * m]; // columns of each row
            let finish = |count: &mut usize, columns: Range<usize>, sums: &mut [T::Acc]| {
                *count += columns.len();
                sums.iter_mut().for_each(|x| *x += T::Acc::ONE);
            };
            let sum_left = m.is_multiple_of(2);
            let lanes = if sum_left { m } else { n };
            let mut lane_sums = vec![T::Acc::of(f64::NAN); ENTRIES * lanes];
            let side = if sum_left { Side::Left } else { Side::Right };
            // Without sums, few rows take another path.
            let (mut same, mut same_finished) = (out.clone(), finished.clone());
            level.while_in_use(|| {
                let sums = Some((side, &mut lane_sums[..]));
                gemm.run(&mut out, &mut finished, &finish, sums).unwrap();
                gemm.run(&mut same, &mut same_finished, &finish, None).unwrap();
            });
            assert_eq!((&same, &same_finished), (&out, &finished), "{m}x{n}x{k} without sums");

            let what = format!("{m}x{n}x{k} {} {level:?}", T::DTYPE);
            for (row, count) in finished.iter().enumerate() {
                let (entry, i) = (row / m, row % m);
                assert_eq!(*count, n, "{what}: each column of row {row} is finished once");
                for j in 0..n {
                    let products = (0..k).map(|p| at_a(entry, i, p) * at_b(entry, p, j));
                    let want = T::of_f64(products.sum::<f64>() + 1.0).to_f64();
                    assert_eq!(out[row * n + j].to_f64(), want, "{what}: row {row}, column {j}");
                }
            }
            if m > 0 && n > 0 {
                for (at, sum) in lane_sums.iter().enumerate() {
                    let (entry, lane) = (at / lanes, at % lanes);
                    let at = |p| if sum_left { at_a(entry, lane, p) } else { at_b(entry, p, lane) };
                    let want = (0..k).map(at).sum::<f64>();
                    assert_eq!(sum.to_f64(), want, "{what}: sum of lane {lane} of {entry}");
                }
            }
        }
    }
}

fn check_types(m: usize, n: usize, k: usize) {
    check::<f32>(m, n, k);
    check::<f64>(m, n, k);
    check::<bf16>(m, n, k);
    check::<f16>(m, n, k);
}

#[test]
fn every_border_of_a_tile() {
    for m in [0, 1, 5, 6, 7, 11, 12, 13] {
        for n in [0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33] {
            for k in [0, 1, 3, 4, 5] {
                check_types(m, n, k);
            }
        }
    }
}

#[test]
fn every_border_of_a_block() {
    for (m, n, k) in [(143, 20, 3), (145, 9, 4), (3, 511, 5), (2, 513, 2), (7, 30, 257)] {
        check_types(m, n, k);
    }
    check_types(5, 9, 513);
    check_types(8, 3, 4097);
    check_types(6, 4097, 2);
    check_types(1025, 3, 2);
    check_types(3, 1025, 2);
}

/// A triangle leaves out zeros and what is not needed, and nothing else.
#[test]
fn triangles_of_every_block() {
    for (n, block) in [(1, 1), (31, 1), (64, 1), (64, 4), (63, 7), (70, 35)] {
        let is_lower = |i: usize, j: usize| j / block <= i / block;
        let (full, right) = (whole_numbers::<f32>(n * n, 1), whole_numbers::<f32>(n * n, 2));
        for level in Level::available() {
            let product = |triangle: Triangle, kept: &dyn Fn(usize, usize) -> bool| {
                let left: Vec<f32> = (0..n * n)
                    .map(|at| if kept(at / n, at % n) { full[at] } else { 0.0 })
                    .collect();
                let (left, right) =
                    (Dense { data: &left, stride: n }, Dense { data: &right, stride: n });
                let product = Product {
                    entries: 1,
                    m: n,
                    n,
                    k: n,
                    left: Layout::RowMajor,
                    right: Layout::RowMajor,
                };
                let gemm = Gemm { product, left: &left, right: &right };
                let mut sums = vec![1.0; n * n];
                level.while_in_use(|| LocalGemm::new().add(&gemm, &mut sums, triangle)).unwrap();
                sums
            };
            let what = format!("{n} in blocks of {block}, {level:?}");
            let lower = product(Triangle::None, &is_lower);
            assert_eq!(product(Triangle::LowerLeft(block), &is_lower), lower, "{what}");
            let is_upper = |i, j| is_lower(j, i);
            let upper = product(Triangle::None, &is_upper);
            assert_eq!(product(Triangle::UpperLeft(block), &is_upper), upper, "{what}");
            let (all, some) = [Triangle::None, Triangle::LowerSums(block)]
                .map(|triangle| product(triangle, &|_, _| true))
                .into();
            for at in (0..n * n).filter(|at| is_lower(at / n, at % n)) {
                assert_eq!(some[at], all[at], "{what}: row {}, column {}", at / n, at % n);
            }
        }
    }
}

/// Lines in 8 bits against f64: with few rows these are in 8 bits too, with more they are exact.
#[test]
fn lines_in_8_bits() {
    let wave = |i: usize, seed: usize| ((i * 7919 + seed * 31) % 1009) as f32 / 504.5 - 1.0;
    for (m, n, k) in [1usize, 2, 3, 4, 5, 8, 9, 13].into_iter().flat_map(|m| {
        [(m, 1, 1usize), (m, 3, 31), (m, 5, 32), (m, 2, 33), (m, 66, 100), (m, 7, 768)]
    }) {
        let blocks = k.div_ceil(INT8_BLOCK);
        let x: Vec<f32> = (0..m * k).map(|i| wave(i, 1)).collect();
        let w: Vec<f32> = (0..n * k).map(|i| wave(i, 2)).collect();
        let (mut codes, mut scales) = (vec![0; n * blocks * INT8_BLOCK], vec![0.0; n * blocks]);
        for (line, w) in w.chunks(k).enumerate() {
            for (block, w) in w.chunks(INT8_BLOCK).enumerate() {
                let at = line * blocks + block;
                let codes = &mut codes[at * INT8_BLOCK..][..w.len()];
                scales[at] = quantize(w, codes);
                for (w, code) in w.iter().zip(codes) {
                    let error = (*code as f32 * scales[at] - w).abs();
                    assert!(error <= 0.501 * scales[at], "{code} for {w} by {}", scales[at]);
                }
            }
        }
        let at_w = |j: usize, p: usize| {
            let scale = scales[j * blocks + p / INT8_BLOCK];
            codes[j * blocks * INT8_BLOCK + p] as f64 * scale as f64
        };
        let rounded: Vec<f64> = x
            .chunks(k)
            .flat_map(|row| row.chunks(INT8_BLOCK))
            .flat_map(|x| {
                let mut codes = vec![0; x.len()];
                let scale = quantize(x, &mut codes);
                codes.into_iter().map(move |code| code as f64 * scale as f64)
            })
            .collect();
        for level in Level::available() {
            let (left, right) = (Layout::RowMajor, Layout::Transposed);
            let gemm = Gemm {
                product: Product { entries: 1, m, n, k, left, right },
                left: &Dense { data: &x, stride: k },
                right: &Int8 { codes: &codes, scales: &scales, blocks },
            };
            let mut out = vec![f32::NAN; m * n];
            level.while_in_use(|| gemm.store(&mut out).unwrap());
            for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
                let at_x = |p: usize| match m {
                    0..=8 => rounded[i * k + p],
                    _ => x[i * k + p] as f64,
                };
                let want: f64 = (0..k).map(|p| at_x(p) * at_w(j, p)).sum();
                let size: f64 = (0..k).map(|p| (at_x(p) * at_w(j, p)).abs()).sum();
                let found = out[i * n + j] as f64;
                let what = format!("{m}x{n}x{k} {level:?}: row {i}, column {j}");
                assert!((found - want).abs() <= 1e-6 * size, "{what}: {found}, expected {want}");
            }
        }
    }
}

/// What cannot be represented is not hidden.
#[test]
fn codes_of_infinities_and_zeros() {
    let mut codes = [1; 3];
    assert_eq!((quantize(&[0.0, -0.0, 0.0], &mut codes), codes), (0.0, [0; 3]));
    assert!(quantize(&[1.0, f32::NAN, 0.0], &mut codes).is_nan());
    assert_eq!(quantize(&[1.0, f32::NEG_INFINITY, 0.0], &mut codes), f32::INFINITY);
    // Not even the smallest numbers are lost.
    assert_eq!((quantize(&[127e-44, -127e-44, 0.0], &mut codes), codes[1]), (1e-44, -codes[0]));
    assert!(codes[0] > 120, "{codes:?}");
}
