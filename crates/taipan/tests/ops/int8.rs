//! Weights in 8 bits.

use taipan::{
    Activation, DType, Device, Int8, Tensor, Weight, cross_entropy, embedding, linear,
    linear_backward, linear_cross_entropy, no_grad,
};

fn randn(shape: &[usize], seed: u64) -> Tensor {
    Tensor::randn(shape, seed, DType::F32, &Device::Cpu).unwrap()
}

fn values(x: &Tensor) -> Vec<f64> {
    let x = x.cast(DType::F64).unwrap().read_blocking::<f64>().unwrap();
    assert!(x.iter().all(|x| x.is_finite()));
    x
}

/// `‖a − b‖/‖b‖`
fn distance(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    norm(&mut a.iter().zip(b).map(|(a, b)| a - b)) / norm(&mut b.iter().copied())
}

/// `x·wᵀ + bias` in f64.
fn exact(x: &Tensor, w: &Tensor, bias: &Tensor) -> Vec<f64> {
    let (x, w, bias, k) = (values(x), values(w), values(bias), w.shape()[1]);
    let sum = |x: &[f64], w: &[f64]| x.iter().zip(w).map(|(x, w)| x * w).sum::<f64>();
    x.chunks(k)
        .flat_map(|x| w.chunks(k).zip(&bias).map(move |(w, bias)| sum(x, w) + bias))
        .collect()
}

/// Rounding of a normal weight to one of 255 levels is off by 0.6 % of its size, and so is that of
/// `x`, which is rounded with few rows only.
#[test]
fn a_product_is_close_to_the_exact_one() {
    for (m, limit) in [(1, 0.012), (2, 0.012), (8, 0.012), (9, 0.009), (40, 0.009)] {
        for (n, k) in [(80, 48), (200, 768), (33, 1537)] {
            let (x, w, bias) = (randn(&[m, k], 1), randn(&[n, k], 2), randn(&[n], 3));
            let int8 = Int8::quantize(&w).unwrap();
            assert_eq!(int8.shape(), [n, k]);
            for dtype in [DType::F32, DType::BF16, DType::F16] {
                let [x, bias] = [&x, &bias].map(|x| x.cast(dtype).unwrap());
                let y = linear(&x, &int8, Some(&bias), Activation::None).unwrap();
                assert_eq!((y.shape(), y.dtype()), (&[m, n][..], dtype));
                let error = distance(&values(&y), &exact(&x, &w, &bias));
                assert!(error < limit, "[{m}, {k}]·[{k}, {n}] in {dtype}: off by {error}");
                assert!(error > 0.001, "this is not in 8 bits: off by {error}");
            }
        }
    }
}

/// A sequence is computed with the same bits whatever else is in its batch.
#[test]
fn rows_do_not_depend_on_each_other() {
    let (x, w) = (randn(&[8, 100], 1), Int8::quantize(&randn(&[70, 100], 2)).unwrap());
    let product =
        |x: &Tensor| linear(x, &w, None, Activation::Silu).unwrap().read_blocking::<f32>().unwrap();
    let all = product(&x);
    for row in 0..8 {
        assert_eq!(product(&x.slice(0, row..row + 1).unwrap()), all[row * 70..(row + 1) * 70]);
    }
}

#[test]
fn rows_are_looked_up() {
    let table = randn(&[50, 40], 1);
    let ids = Tensor::new(&[3u32, 49, 0, 3], &[2, 2], &Device::Cpu).unwrap();
    let rows = Int8::quantize(&table).unwrap().rows(&ids).unwrap();
    assert_eq!(rows.shape(), [2, 2, 40]);
    let error = distance(&values(&rows), &values(&embedding(&table, &ids).unwrap()));
    assert!(error < 0.009 && error > 0.001, "{error}");
}

#[test]
fn a_loss_takes_it() {
    let (x, w) = (randn(&[2, 3, 64], 1), randn(&[30, 64], 2));
    let targets = Tensor::new(&[1u32, 2, 3, 29, 0, 5], &[2, 3], &Device::Cpu).unwrap();
    let int8 = Int8::quantize(&w).unwrap();
    let loss = linear_cross_entropy(&x, &int8, &targets, Some(0)).unwrap();
    let logits = linear(&x, &int8, None, Activation::None).unwrap();
    let want = cross_entropy(&logits, &targets, Some(0)).unwrap();
    assert_eq!(loss.item().unwrap(), want.item().unwrap());
}

/// A gradient that is missing would look like slow learning.
#[test]
fn a_tracked_input_is_an_error() {
    let int8 = Int8::quantize(&randn(&[4, 8], 1)).unwrap();
    let (x, bias) = (randn(&[2, 8], 2), randn(&[4], 3).tracked());
    let message = "linear: the weight is int8, which has no gradient; expected no_grad, or a \
                   float weight";
    for (x, bias) in [(x.clone().tracked(), None), (x.clone(), Some(&bias))] {
        let error = linear(&x, &int8, bias, Activation::None).unwrap_err();
        assert_eq!(error.to_string(), message);
        no_grad(|| linear(&x, &int8, bias, Activation::None)).unwrap();
    }
    let dy = randn(&[2, 4], 4);
    let error = linear_backward(&x, &int8, None, Activation::None, &dy).unwrap_err();
    assert_eq!(error.to_string(), message);
}

#[test]
fn what_does_not_fit_is_refused() {
    let int8 = Int8::quantize(&randn(&[4, 8], 1)).unwrap();
    let error = |x: Tensor, bias: Option<&Tensor>| {
        linear(&x, Weight::int8(&int8), bias, Activation::None).unwrap_err().to_string()
    };
    assert_eq!(
        error(randn(&[2, 9], 1), None),
        "linear: the weight is [4, 8], expected [n, 9] for [2, 9]"
    );
    assert_eq!(
        error(randn(&[8], 1), None),
        "linear: the input is [8], expected 2 dimensions or more"
    );
    assert_eq!(
        error(randn(&[2, 8], 1), Some(&randn(&[5], 1))),
        "linear: bias is [5], expected [4]"
    );
    assert_eq!(
        error(randn(&[2, 8], 1).cast(DType::F64).unwrap(), None),
        "linear: the input of an int8 weight is f64, expected f32, f16 or bf16"
    );
    let error = Int8::quantize(&randn(&[4], 1)).unwrap_err();
    assert_eq!(error.to_string(), "int8: the weight is [4], expected [n, k]");
    let ids = Tensor::new(&[4u32], &[1], &Device::Cpu).unwrap();
    let error = int8.rows(&ids).unwrap_err();
    assert_eq!(error.to_string(), "embedding: id 4 at position 0, expected less than 4");
}

#[test]
fn sizes_of_zero() {
    for (m, n, k) in [(0, 3, 4), (2, 0, 4), (2, 3, 0)] {
        let int8 = Int8::quantize(&randn(&[n, k], 1)).unwrap();
        let y = linear(&randn(&[m, k], 2), &int8, None, Activation::None).unwrap();
        assert_eq!(y.read_blocking::<f32>().unwrap(), vec![0.0; m * n]);
    }
}
