//! The loss of logits that are a product.

use taipan::check::cases::losses::{linear_cross_entropy_of, some_targets};
use taipan::check::{
    Array, FLOATS, Random, array, check, devices, input, round, tensor, tolerance,
};
use taipan::{
    Activation, DType, Device, Error, Result, Tensor, Weight, cross_entropy, linear,
    linear_cross_entropy,
};

use crate::naive::Layout;

fn weight(w: &Tensor, layout: Layout) -> Weight<'_> {
    match layout {
        Layout::Kn => Weight::kn(w),
        Layout::Nk => Weight::nk(w),
    }
}

/// Targets of the shape of `x` but for the last dimension.
fn loss(
    x: &Tensor,
    w: &Tensor,
    layout: Layout,
    targets: &[u32],
    ignore: Option<u32>,
) -> Result<Tensor> {
    let targets = Tensor::new(targets, &x.shape()[..x.rank() - 1], x.device())?;
    linear_cross_entropy(x, weight(w, layout), &targets, ignore)
}

/// `x` of this shape with a weight for `v` classes.
fn check_case(shape: &[usize], v: usize, targets: &[u32], ignore: Option<u32>) {
    for layout in [Layout::Kn, Layout::Nk] {
        check(&linear_cross_entropy_of(shape, v, layout, targets, ignore));
    }
}

#[test]
fn shapes() {
    let shapes: [(&[usize], usize); 12] = [
        (&[1, 1], 1),
        (&[3, 4], 1),
        (&[5], 7),
        (&[0, 3], 5),
        (&[0, 3], 0),
        (&[4, 0], 3),
        (&[2, 3, 5], 9),
        (&[33, 6], 130),
        (&[1, 8], 513),
        (&[70, 17], 65),
        (&[9, 3], 600),
        (&[70, 40], 600), // work for several threads
    ];
    for (shape, v) in shapes {
        let rows = shape[..shape.len() - 1].iter().product();
        check_case(shape, v, &some_targets(rows, v.max(1)), None);
    }
}

/// Classes are taken in blocks of at most 4096.
#[test]
fn several_blocks() {
    check_case(&[3, 2], 4096, &[0, 4095, 77], None);
    check_case(&[3, 2], 4097, &[4095, 4096, 5], None);
    check_case(&[10, 3], 8200, &[0, 4095, 4096, 8191, 8192, 8199, 9, 9, 5000, 4097], Some(9));
}

#[test]
fn ignored_targets() {
    check_case(&[6, 3], 5, &[1, 99, 4, 99, 99, 0], Some(99));
    check_case(&[6, 3], 5, &[1, 0, 4, 0, 2, 0], Some(0)); // a class can be ignored
    check_case(&[3, 3], 5, &[9; 3], Some(9)); // all are
}

/// Value and gradients are those of a product and a loss of its own, with blocks as narrow as they
/// get: there are more rows than elements in a block.
#[test]
fn fused_equals_unfused() -> Result<()> {
    let (m, k, v) = (9001, 5, 700);
    let mut random = Random::named("fused equals unfused");
    let (x, w) = (random.draw(&input(&[m, k])), random.draw(&input(&[v, k])));
    let targets = some_targets(m, v + 3);
    let ignored: Vec<u32> = targets.iter().map(|&t| if t < v as u32 { t } else { 1000 }).collect();
    for device in devices() {
        for dtype in [DType::F32, DType::F64].into_iter().filter(|&dtype| device.supports(dtype)) {
            let [x, w] =
                [&x, &w].map(|a| tensor(&a.map(|x| round(x, dtype)), dtype, &device).tracked());
            let fused = loss(&x, &w, Layout::Nk, &ignored, Some(1000))?;
            let logits = linear(&x, Weight::nk(&w), None, Activation::None)?;
            let targets = Tensor::new(&ignored, &[m], &device)?;
            let unfused = cross_entropy(&logits, &targets, Some(1000))?;
            let within = tolerance(dtype).grad;
            let (a, b) = (fused.item()?, unfused.item()?);
            assert!((a - b).abs() <= within * b.abs(), "{a} and {b} in {dtype}");
            let grads = [fused.backward()?, unfused.backward()?];
            for leaf in [&x, &w] {
                let [a, b] = [array(grads[0].of(leaf)?), array(grads[1].of(leaf)?)];
                let size = b.rms();
                for (a, b) in a.data.iter().zip(&b.data) {
                    assert!((a - b).abs() <= within * (b.abs() + size), "{a} and {b} in {dtype}");
                }
            }
        }
    }
    Ok(())
}

/// Logits of ±6e4, which f16 holds and squares of which it does not.
#[test]
fn huge_logits() -> Result<()> {
    for device in devices() {
        for dtype in FLOATS.into_iter().filter(|&dtype| device.supports(dtype)) {
            let of = |data: &[f64], shape: &[usize]| {
                let data = Array { shape: shape.to_vec(), data: data.to_vec() };
                tensor(&data, dtype, &device).tracked()
            };
            let (x, w) = (of(&[256.0, -256.0], &[2, 1]), of(&[256.0, -256.0], &[2, 1]));
            let value = loss(&x, &w, Layout::Nk, &[0, 0], None)?;
            assert_eq!(value.item()?, 65_536.0, "0 and 2¹⁷, in {dtype}");
            let grads = value.backward()?;
            assert_eq!(array(grads.of(&x)?).data, [0.0, -256.0], "{dtype}");
            assert_eq!(array(grads.of(&w)?).data, [128.0, -128.0], "{dtype}");
        }
    }
    Ok(())
}

/// The GPU's behaviour is tested in `gpu/index_errors`.
#[test]
fn a_target_that_is_no_class() -> Result<()> {
    let (x, w) = (
        Tensor::zeros(&[3, 2], DType::F32, &Device::Cpu)?,
        Tensor::zeros(&[2, 50], DType::F32, &Device::Cpu)?,
    );
    let error = loss(&x, &w, Layout::Kn, &[3, 50, 49], None).unwrap_err();
    let (op, name) = ("linear_cross_entropy", "target");
    assert_eq!(error, Error::Index { op, name, found: 50, at: Some(1), limit: 50 });
    Ok(())
}

#[test]
fn what_is_refused() {
    let zeros = |dtype, shape: &[usize]| Tensor::zeros(shape, dtype, &Device::Cpu).unwrap();
    let refuses = |x: &Tensor, w: Weight, targets: &Tensor, message: &str| {
        let error = linear_cross_entropy(x, w, targets, None).unwrap_err();
        assert_eq!(error.to_string(), format!("linear_cross_entropy: {message}"));
    };
    let (x, w, targets) =
        (zeros(DType::F32, &[4, 3]), zeros(DType::F32, &[3, 5]), zeros(DType::U32, &[4]));
    refuses(&targets, Weight::kn(&w), &targets, "the input is u32, expected a float");
    let half = zeros(DType::F16, &[3, 5]);
    refuses(&x, Weight::kn(&half), &targets, "the weight is f16, expected f32");
    refuses(&x, Weight::kn(&w), &x, "the tensor of targets is f32, expected u32");
    let scalar = zeros(DType::F32, &[]);
    refuses(&scalar, Weight::kn(&w), &targets, "the input is [], expected […, k]");
    refuses(
        &x,
        Weight::nk(&w),
        &targets,
        "the weight is [3, 5], expected [v, k] with k = 3 for [4, 3]",
    );
    let batch = zeros(DType::F32, &[4, 3, 5]);
    refuses(
        &x,
        Weight::kn(&batch),
        &targets,
        "the weight is [4, 3, 5], expected [k, v] with k = 3 for [4, 3]",
    );
    let five = zeros(DType::U32, &[5]);
    refuses(&x, Weight::kn(&w), &five, "targets are [5], expected [4]");
    let none = zeros(DType::F32, &[3, 0]);
    refuses(&x, Weight::kn(&none), &targets, "the weight is [3, 0], expected a class or more");
}
