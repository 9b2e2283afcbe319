//! `linear`, `linear_backward` and `matmul`.

use taipan::check::cases::linear::{Layer, Weights, matmul};
use taipan::check::{Array, Case, FLOATS, Random, check, input, round, tensor};
use taipan::{
    Activation, DType, Device, Result, Tensor, Weight, concat, linear, linear_backward,
    linear_recomputing, linear_residual,
};

use crate::naive::{self, Layout};

/// Every combination of activation, bias, layout and sharing.
fn variants(x: &[usize], n: usize) -> impl Iterator<Item = Layer> {
    let x = x.to_vec();
    (0..8 * Activation::ALL.len()).map(move |i| Layer {
        x: x.clone(),
        n,
        weights: if i % 2 == 0 { Weights::Shared } else { Weights::PerEntry },
        layout: if i / 2 % 2 == 0 { Layout::Kn } else { Layout::Nk },
        bias: i / 4 % 2 == 0,
        activation: Activation::ALL[i / 8],
    })
}

#[test]
fn every_variant_in_rank_3() {
    variants(&[3, 7, 5], 9).for_each(|layer| check(&layer.case()));
}

#[test]
fn every_variant_in_rank_4() {
    variants(&[2, 2, 4, 6], 5).for_each(|layer| check(&layer.case()));
}

#[test]
fn sizes_of_nothing_and_one() {
    for (i, size) in [0, 1, 3].into_iter().enumerate() {
        for (j, k) in [0, 1, 3].into_iter().enumerate() {
            for (l, n) in [0, 1, 3].into_iter().enumerate() {
                let variant = i + j + l;
                check(&Layer::plain(size, k, n).variant(variant).case());
                check(&Layer { bias: true, ..Layer::plain(size, k, n) }.case());
            }
        }
    }
}

#[test]
fn batches_of_nothing_and_one() {
    for lead in [&[0][..], &[1], &[2, 0], &[0, 2], &[1, 1], &[1, 3], &[3, 1]] {
        for layer in variants(&[lead, &[2, 3]].concat(), 2) {
            if matches!(layer.activation, Activation::None | Activation::Gelu) {
                check(&layer.case());
            }
        }
    }
    for weights in [Weights::Shared, Weights::PerEntry] {
        for (m, k, n) in [(0, 2, 3), (2, 0, 3), (2, 3, 0)] {
            for layout in [Layout::Kn, Layout::Nk] {
                let layer = Layer { weights, layout, bias: true, ..Layer::plain(m, k, n) };
                check(&Layer { x: vec![2, m, k], ..layer }.case());
            }
        }
    }
}

/// Sizes beside the borders of register tiles, whose sides are 6, 12, 8, 16 and 32.
const TILES: [usize; 15] = [4, 5, 6, 7, 8, 9, 11, 12, 13, 15, 16, 17, 31, 32, 33];

#[test]
fn rows_and_columns_around_register_tiles() {
    let mut i = 0;
    for m in TILES {
        for n in TILES {
            check(&Layer::plain(m, 3, n).variant(i).case());
            i += 1;
        }
    }
}

#[test]
fn depths_around_register_tiles() {
    for (i, k) in TILES.into_iter().enumerate() {
        check(&Layer::plain(7, k, 17).variant(i).case());
        check(&Layer::plain(13, k, 33).variant(i + 3).case());
    }
}

/// Sizes beside the borders of blocks: of rows 144, of depth 256 or 512, of columns 512.
const BLOCKS: [usize; 9] = [143, 144, 145, 255, 256, 257, 511, 512, 513];

#[test]
fn each_size_around_blocks() {
    for (i, size) in BLOCKS.into_iter().enumerate() {
        check(&Layer::plain(size, 19, 23).variant(i).case());
        check(&Layer::plain(19, size, 23).variant(i + 1).case());
        check(&Layer::plain(19, 23, size).variant(i + 2).case());
    }
}

#[test]
fn two_sizes_around_blocks() {
    for (i, (a, b)) in [(145, 257), (289, 513), (143, 255), (257, 511)].into_iter().enumerate() {
        check(&Layer::plain(a, b, 9).variant(i).case());
        check(&Layer::plain(b, 9, a).variant(i + 1).case());
        check(&Layer::plain(9, a, b).variant(i + 2).case());
    }
}

/// Each size of two layers in each place, with these variants.
fn check_rotations(sizes: [[usize; 3]; 2], variants: [usize; 6]) {
    let rotations = sizes.into_iter().flat_map(|[a, b, c]| [[a, b, c], [c, a, b], [b, c, a]]);
    for ([m, k, n], variant) in rotations.zip(variants) {
        check(&Layer::plain(m, k, n).variant(variant).case());
    }
}

/// Sums of f16 and bf16 are computed in blocks of 1024 by 1024.
#[test]
fn sizes_beyond_1024() {
    check_rotations([[1030, 37, 29], [1027, 3, 1025]], [4, 5, 2, 8, 4, 9]);
}

/// A block of the right side has 6 MiB at most, one of the left 288 KiB: many columns and rows of
/// a long depth. What is wide in `y` is deep in `dx`, and what is tall, in `dw`.
#[test]
fn sizes_beyond_a_block_of_bytes() {
    check_rotations([[2, 512, 3100], [2, 3100, 512]], [2, 2, 5, 3, 4, 3]);
}

#[test]
fn large_batches_share_a_weight() {
    for i in 0..4 {
        check(&Layer { x: vec![5, 29, 17], ..Layer::plain(0, 0, 21) }.variant(i).case());
        let layer =
            Layer { x: vec![2, 3, 25, 17], weights: Weights::PerEntry, ..Layer::plain(0, 0, 21) };
        check(&layer.variant(i).case());
    }
}

/// `linear_recomputing` and `linear_backward` recompute what autograd saves: the same bits.
#[test]
fn computing_again_gives_the_gradients_of_keeping() -> Result<()> {
    for dtype in FLOATS {
        let shapes: [(&[usize], usize); 3] =
            [(&[2, 7, 5], 6), (&[1, 40, 300], 33), (&[2, 9, 33], 6)];
        for layer in shapes.into_iter().flat_map(|(x, n)| variants(x, n)) {
            let mut random = Random::named("linear_backward");
            let mut draw = |shape: &[usize]| {
                let array = random.draw(&input(shape)).map(|x| round(x, dtype));
                tensor(&array, dtype, &Device::Cpu)
            };
            let inputs: Vec<Tensor> =
                layer.shapes().iter().map(|shape| draw(shape).tracked()).collect();
            let y = layer.call(&inputs)?;
            let dy = draw(y.shape());
            let want = y.backward_from(&dy)?;
            let (w, bias) = (layer.weight(&inputs[1]), inputs.get(2));
            let recomputed = linear_recomputing(&inputs[0], w, bias, layer.activation)?;
            let array = taipan::check::array;
            assert_eq!(array(&recomputed), array(&y), "{layer:?} in {dtype}: recomputing");
            let recomputed = recomputed.backward_from(&dy)?;
            for input in &inputs {
                let (got, want) = (array(recomputed.of(input)?), array(want.of(input)?));
                assert_eq!(got, want, "{layer:?} in {dtype}: recomputing");
            }
            let got = linear_backward(&inputs[0], w, bias, layer.activation, &dy)?;
            assert_eq!(got.dbias.is_some(), bias.is_some(), "{layer:?} in {dtype}: dbias");
            let got = [Some(got.dx), Some(got.dw), got.dbias];
            for (got, input) in got.iter().flatten().zip(&inputs) {
                assert!(!got.is_tracked(), "{layer:?} in {dtype}");
                assert_eq!(got.dtype(), dtype, "{layer:?}");
                let (got, want) =
                    (taipan::check::array(got), taipan::check::array(want.of(input)?));
                assert_eq!(got, want, "{layer:?} in {dtype}");
            }
        }
    }
    Ok(())
}

/// A plain tensor is a weight stored as `[k, n]`.
#[test]
fn a_tensor_is_a_kn_weight() -> Result<()> {
    let x = Tensor::randn(&[3, 4], 1, DType::F64, &Device::Cpu)?;
    let w = Tensor::randn(&[4, 4], 2, DType::F64, &Device::Cpu)?;
    let read = |y: Tensor| y.read_blocking::<f64>();
    let plain = read(linear(&x, &w, None, Activation::None)?)?;
    assert_eq!(plain, read(linear(&x, Weight::kn(&w), None, Activation::None)?)?);
    assert_ne!(plain, read(linear(&x, Weight::nk(&w), None, Activation::None)?)?);
    Ok(())
}

#[test]
fn matmul_broadcasts_its_batches() {
    let shapes: [(&[usize], &[usize]); 13] = [
        (&[3, 4], &[4, 5]),
        (&[2, 3, 4], &[4, 5]),
        (&[3, 4], &[2, 4, 5]),
        (&[2, 3, 4], &[2, 4, 5]),
        (&[2, 1, 3, 4], &[3, 4, 5]),
        (&[1, 3, 4], &[6, 4, 5]),
        (&[6, 3, 4], &[1, 4, 5]),
        (&[2, 3, 1, 4], &[2, 1, 4, 1]),
        (&[1, 1, 3, 4], &[2, 3, 4, 2]),
        (&[0, 3, 4], &[1, 4, 5]),
        (&[1, 3, 4], &[0, 4, 5]),
        (&[2, 3, 0], &[0, 5]),
        (&[2, 0, 4], &[1, 2, 4, 5]),
    ];
    shapes.into_iter().for_each(|(a, b)| check(&matmul(a, b)));
}

/// Few rows and many terms: sums must not be one long chain, in which 1 is lost beside 2²⁴.
#[test]
fn long_sums_of_few_rows_are_exact() -> Result<()> {
    let k = 1 << 25;
    let ones = |shape: &[usize]| Tensor::ones(shape, DType::F32, &Device::Cpu);
    for w in [ones(&[k, 1])?, ones(&[1, k])?] {
        let w = if w.shape()[0] == 1 { Weight::nk(&w) } else { Weight::kn(&w) };
        let y = linear(&ones(&[1, k])?, w, None, Activation::None)?;
        assert_eq!(y.read_blocking::<f32>()?, [k as f32]);
    }
    // Along the depth, with rows long enough for the path of few rows.
    let dw = linear_backward(
        &ones(&[k / 32, 2])?,
        &ones(&[2, 64])?,
        None,
        Activation::None,
        &ones(&[k / 32, 64])?.scale(1.0 + 1.0 / 1024.0)?,
    )?
    .dw;
    let want = (k / 32) as f32 * (1.0 + 1.0 / 1024.0);
    let worst = dw.read_blocking::<f32>()?.iter().map(|x| (x - want).abs()).fold(0.0, f32::max);
    assert!(worst <= 1e-6 * want, "off by {worst} of {want}");
    Ok(())
}

/// On a GPU, the gradient of `x` from one product is added in the other, or in both to one that is
/// there.
#[test]
fn gradients_of_a_shared_input_add_up() {
    for (m, k, n) in [(37, 20, 33), (8, 16, 5), (130, 64, 72)] {
        let product =
            |x: &Array, w: &Array| naive::linear(x, w, None, Layout::Kn, Activation::None);
        // Side by side, so that each value is rounded once.
        let call = |t: &[Tensor]| {
            let a = linear(&t[0], &t[1], None, Activation::None)?;
            let b = linear(&t[0], &t[2], None, Activation::Tanh)?;
            let c = linear(&t[0], &t[2], None, Activation::None)?;
            concat(&[&a, &b, &c, &t[0]], 1)
        };
        let reference = move |i: &[Array]| {
            let (a, b) = (product(&i[0], &i[1]), product(&i[0], &i[2]));
            Array::from_fn(&[m, 3 * n + k], |at| {
                let (row, column) = (at[0], at[1] % n);
                match at[1] / n {
                    0 => a.at(&[row, column]),
                    1 => b.at(&[row, column]).tanh(),
                    2 => b.at(&[row, column]),
                    _ => i[0].at(&[row, at[1] - 3 * n]),
                }
            })
        };
        let inputs = [input(&[m, k]), input(&[k, n]), input(&[k, n])];
        let name = format!("shared input {m} {k} {n}");
        let terms = 4 * m.max(k).max(n);
        check(&Case::new(name, inputs, call, reference).cancelling(terms));
    }
}

/// On a GPU, the gradient of `w` has several terms, which are summed at the end if `w` is a leaf,
/// and at once if it is not.
#[test]
fn gradients_of_a_deep_shared_weight_add_up() {
    let (m, k, n) = (1100, 5, 3);
    let call = |t: &[Tensor]| {
        let a = linear(&t[0], &t[1], None, Activation::None)?;
        let b = linear(&t[0], &t[1], None, Activation::Tanh)?;
        let c = linear(&t[0], &t[1].scale(0.5)?, None, Activation::None)?;
        concat(&[&a, &b, &c, &t[1]], 0)
    };
    let reference = move |i: &[Array]| {
        let a = naive::linear(&i[0], &i[1], None, Layout::Kn, Activation::None);
        Array::from_fn(&[3 * m + k, n], |at| match (at[0] / m, at[0] % m, at[1]) {
            (0, row, column) => a.at(&[row, column]),
            (1, row, column) => a.at(&[row, column]).tanh(),
            (2, row, column) => 0.5 * a.at(&[row, column]),
            (_, row, column) => i[1].at(&[row, column]),
        })
    };
    let inputs = [input(&[m, k]), input(&[k, n])];
    check(&Case::new("deep shared weight", inputs, call, reference).cancelling(4 * m));
}

/// `x·w + bias + residual`, with tiles that are whole and not, few rows, and a matrix per entry.
#[test]
fn with_a_residual() {
    let layers = [
        Layer::plain(1, 3, 5),
        Layer::plain(5, 4, 3),
        Layer::plain(8, 64, 40),
        Layer::plain(70, 33, 130),
        Layer::plain(0, 3, 2),
        Layer { x: vec![2, 3, 4], ..Layer::plain(0, 0, 5) },
        Layer { x: vec![2, 9, 4], weights: Weights::PerEntry, ..Layer::plain(0, 0, 5) },
    ];
    for layer in layers {
        for (layout, bias) in
            [(Layout::Kn, false), (Layout::Kn, true), (Layout::Nk, false), (Layout::Nk, true)]
        {
            check(&Layer { layout, bias, ..layer.clone() }.residual());
        }
    }
}

/// The input itself is the residual: its gradient has both parts.
#[test]
fn a_residual_that_is_the_input() {
    let call = |t: &[Tensor]| {
        let x = t[0].scale(2.0)?;
        linear_residual(&x, &t[1], None, &x)
    };
    let reference = |i: &[Array]| {
        let x = i[0].map(|x| 2.0 * x);
        let y = naive::linear(&x, &i[1], None, Layout::Kn, Activation::None);
        naive::binary(&y, &x, |y, x| y + x)
    };
    let inputs = [input(&[9, 5]), input(&[5, 5])];
    check(&Case::new("residual that is the input", inputs, call, reference).cancelling(14));
}

#[test]
fn errors_of_a_residual() -> Result<()> {
    let x = Tensor::ones(&[2, 3], DType::F32, &Device::Cpu)?;
    let w = Tensor::ones(&[3, 4], DType::F32, &Device::Cpu)?;
    let error = linear_residual(&x, &w, None, &x).unwrap_err().to_string();
    assert_eq!(error, "linear_residual: the residual is [2, 3], expected [2, 4]");
    let half = Tensor::ones(&[2, 4], DType::F16, &Device::Cpu)?;
    let error = linear_residual(&x, &w, None, &half).unwrap_err().to_string();
    assert_eq!(error, "linear_residual: the residual is f16, expected f32");
    Ok(())
}
