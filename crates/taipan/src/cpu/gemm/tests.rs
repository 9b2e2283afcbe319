//! The product against three nested loops, on every instruction set this processor has.

use half::bf16;

use super::*;
use crate::dtype::Element;

/// Small integers: their products are exact in every type.
fn whole_numbers<T: Element>(len: usize, seed: usize) -> Vec<T> {
    (0..len).map(|i| T::of_f64(((i * 7 + seed * 13 + i / 5) % 7) as f64 - 3.0)).collect()
}

/// Every instruction set, layout and side of the sums against three nested loops, exactly.
fn check<T: Float>(m: usize, n: usize, k: usize) {
    let (a, b) = (whole_numbers::<T>(m * k, 1), whole_numbers::<T>(k * n, 2));
    for level in Level::available() {
        for (left_lines, right_lines) in
            [Lines::Lanes, Lines::Depth].map(|l| [(l, Lines::Lanes), (l, Lines::Depth)]).concat()
        {
            let at_a = |i: usize, p: usize| match left_lines {
                Lines::Lanes => a[i * k + p].to_f64(),
                Lines::Depth => a[p * m + i].to_f64(),
            };
            let at_b = |p: usize, j: usize| match right_lines {
                Lines::Lanes => b[j * k + p].to_f64(),
                Lines::Depth => b[p * n + j].to_f64(),
            };
            let stride = |lines, lanes| if lines == Lines::Lanes { k } else { lanes };
            let left = Dense { data: &a, stride: stride(left_lines, m) };
            let right = Dense { data: &b, stride: stride(right_lines, n) };
            let product = Product {
                m,
                n,
                k,
                left: Operand { source: &left, lines: left_lines },
                right: Operand { source: &right, lines: right_lines },
            };
            let mut out = vec![T::of_f64(f64::NAN); m * n];
            let mut finished = vec![0; m]; // columns of each row
            let finish = |count: &mut usize, columns: Range<usize>, sums: &mut [T::Acc]| {
                *count += columns.len();
                sums.iter_mut().for_each(|x| *x += T::Acc::ONE);
            };
            let sum_left = m.is_multiple_of(2);
            let mut lane_sums = vec![T::Acc::of(f64::NAN); if sum_left { m } else { n }];
            let sums = match sum_left {
                true => LaneSums::Left(&mut lane_sums),
                false => LaneSums::Right(&mut lane_sums),
            };
            let micro = T::Acc::micro(level);
            gemm_with(&micro, &product, &mut out, &mut finished, &finish, sums).unwrap();
            // Without sums, few rows take another path.
            let (mut same, mut same_finished) = (out.clone(), vec![0; m]);
            let none = LaneSums::None;
            gemm_with(&micro, &product, &mut same, &mut same_finished, &finish, none).unwrap();
            assert_eq!((&same, &same_finished), (&out, &finished), "{m}x{n}x{k} without sums");

            let what = format!("{m}x{n}x{k} {} {level:?}", T::DTYPE);
            for i in 0..m {
                assert_eq!(finished[i], n, "{what}: each column of row {i} is finished once");
                for j in 0..n {
                    let want: f64 = (0..k).map(|p| at_a(i, p) * at_b(p, j)).sum::<f64>() + 1.0;
                    let want = T::of_f64(want).to_f64();
                    assert_eq!(out[i * n + j].to_f64(), want, "{what}: row {i}, column {j}");
                }
            }
            if m > 0 && n > 0 {
                for (lane, sum) in lane_sums.iter().enumerate() {
                    let at = |p| if sum_left { at_a(lane, p) } else { at_b(p, lane) };
                    let want = (0..k).map(at).sum::<f64>();
                    assert_eq!(sum.to_f64(), want, "{what}: sum of lane {lane}");
                }
            }
        }
    }
}

fn check_types(m: usize, n: usize, k: usize) {
    check::<f32>(m, n, k);
    check::<f64>(m, n, k);
    check::<bf16>(m, n, k);
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
    check_types(6, 4097, 2);
    check_types(1025, 3, 2);
    check_types(3, 1025, 2);
}
