//! The loss from logits.

use taipan::check::cases::losses::{cross_entropy_of, some_targets};
use taipan::check::{Array, FLOATS, array, check, devices, round, tensor};
use taipan::{DType, Device, Error, Result, Tensor, cross_entropy};

/// Targets of the shape of the logits but for the last dimension.
fn loss(logits: &Tensor, targets: &[u32], ignore: Option<u32>) -> Result<Tensor> {
    let shape = &logits.shape()[..logits.rank() - 1];
    cross_entropy(logits, &Tensor::new(targets, shape, logits.device())?, ignore)
}

fn check_case(shape: &[usize], targets: Vec<u32>, ignore: Option<u32>) {
    check(&cross_entropy_of(shape, targets, ignore));
}

#[test]
fn shapes() {
    let shapes: [&[usize]; 13] = [
        &[1, 1],
        &[5, 1],
        &[7],
        &[0, 3],
        &[0, 0],
        &[2, 0, 4],
        &[1, 33],
        &[65, 32],
        &[2, 3, 5],
        &[4, 513],
        &[3, 1025],
        &[2, 4096],
        &[300, 17],
    ];
    for shape in shapes {
        let (v, lead) = shape.split_last().unwrap();
        check_case(shape, some_targets(lead.iter().product(), (*v).max(1)), None);
    }
}

#[test]
fn ignored_targets() {
    check_case(&[6, 5], vec![1, 99, 4, 99, 99, 0], Some(99));
    check_case(&[6, 5], vec![1, 0, 4, 0, 2, 0], Some(0)); // a class can be ignored
    check_case(&[3, 5], vec![1, 2, 4], Some(99)); // none is
    check_case(&[4, 3], vec![u32::MAX; 4], Some(u32::MAX)); // all are
}

/// Where a target is ignored the gradient is exactly 0, even of logits that are no numbers.
#[test]
fn ignored_rows_have_no_gradient() -> Result<()> {
    for device in devices() {
        let data = [0.5f32, 1.0, f32::NAN, f32::INFINITY, 2.0, 0.0];
        let logits = Tensor::new(&data, &[3, 2], &device)?.tracked();
        let value = loss(&logits, &[0, 7, 1], Some(7))?;
        assert!(value.item()?.is_finite());
        let grad = array(value.backward()?.of(&logits)?).data;
        assert_eq!(grad[2..4], [0.0, 0.0]);
        assert!(grad.iter().all(|x| x.is_finite()), "{grad:?}");
        let value = loss(&logits, &[7, 7, 7], Some(7))?;
        assert_eq!(value.item()?, 0.0);
        assert_eq!(array(value.backward()?.of(&logits)?).data, [0.0; 6]);
    }
    Ok(())
}

/// Logits and a target, the loss they have, and the gradient.
#[test]
fn extreme_logits() -> Result<()> {
    const INF: f64 = f64::INFINITY;
    const NAN: f64 = f64::NAN;
    let ln2 = std::f64::consts::LN_2;
    let cases: [(&[f64], u32, f64, &[f64]); 9] = [
        (&[1e4, 0.0, -1e4], 0, 0.0, &[0.0, 0.0, 0.0]),
        (&[1e4, 0.0, -1e4], 2, 2e4, &[1.0, 0.0, -1.0]),
        (&[-1e4, -1e4], 1, ln2, &[0.5, -0.5]),
        (&[6e4, -6e4, 6e4], 0, ln2, &[-0.5, 0.0, 0.5]),
        (&[-INF, 1.0, 1.0], 1, ln2, &[0.0, -0.5, 0.5]),
        (&[-INF, 1.0], 0, INF, &[-1.0, 1.0]),
        (&[NAN, 1.0], 1, NAN, &[NAN, NAN]),
        (&[-INF, -INF], 1, NAN, &[NAN, NAN]),
        (&[INF, 1.0], 1, NAN, &[NAN, NAN]),
    ];
    let huge: [(&[f64], u32, f64, &[f64]); 2] =
        [(&[1e30, 1e30, -1e30], 1, ln2, &[0.5, -0.5, 0.0]), (&[-1e30, 0.0], 0, 1e30, &[-1.0, 1.0])];
    for device in devices() {
        for dtype in FLOATS.into_iter().filter(|&dtype| device.supports(dtype)) {
            let wide = matches!(dtype, DType::F32 | DType::F64);
            for (x, target, want, grad) in cases.iter().chain(huge.iter().filter(|_| wide)) {
                let data: Vec<f64> = x.iter().map(|&x| round(x, dtype)).collect();
                let logits = tensor(&Array { shape: vec![1, x.len()], data }, dtype, &device);
                let logits = logits.tracked();
                let value = loss(&logits, &[*target], None)?;
                let close = |got: f64, want: f64| {
                    got == want
                        || (got - want).abs() <= 1e-2 * want.abs()
                        || got.is_nan() && want.is_nan()
                };
                let exact = |got: f64, want: f64| {
                    (got - want).abs() < 1e-6 || got.is_nan() && want.is_nan()
                };
                let got = value.item()?;
                // Logits of 1e4 are rounded in 16 bits.
                let ok = if want.abs() < 1.0 { exact(got, *want) } else { close(got, *want) };
                assert!(ok, "{x:?} on {} in {dtype}: {got}, want {want}", device.name());
                let got = array(value.backward()?.of(&logits)?).data;
                assert!(
                    got.iter().zip(*grad).all(|(got, want)| exact(*got, *want)),
                    "{x:?} on {} in {dtype}: {got:?}, want {grad:?}",
                    device.name()
                );
            }
        }
    }
    Ok(())
}

/// The loss of f16 logits is f32: scaled, f16 could not hold it.
#[test]
fn the_loss_is_of_the_wider_type() -> Result<()> {
    for device in devices() {
        for dtype in FLOATS.into_iter().filter(|&dtype| device.supports(dtype)) {
            let logits = Tensor::zeros(&[2, 3], dtype, &device)?.tracked();
            let value = loss(&logits, &[0, 2], None)?;
            assert_eq!(value.shape(), &[] as &[usize]);
            let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
            assert_eq!(value.dtype(), wide);
            // A scale that f16 does not have, and gradients that it has.
            let scaled = value.scale(131_072.0)?;
            assert!((scaled.item()? - 131_072.0 * 3f64.ln()).abs() < 0.1);
            let grad = array(scaled.scale(0.125)?.backward()?.of(&logits)?).data;
            let step = 131_072.0 / 8.0 / 2.0 / 3.0;
            let want = [-2.0 * step, step, step, step, step, -2.0 * step];
            let off = grad.iter().zip(want).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max);
            assert!(off < step / 128.0, "{dtype}: {grad:?}, want {want:?}");
        }
    }
    Ok(())
}

/// Many rows of equal logits: the mean loses nothing.
#[test]
fn many_rows() -> Result<()> {
    for device in devices() {
        let logits = Tensor::zeros(&[100_000, 2], DType::F32, &device)?;
        let value = loss(&logits, &vec![1; 100_000], None)?.item()?;
        assert!((value - std::f64::consts::LN_2).abs() < 1e-6, "{value}");
    }
    Ok(())
}

/// The GPU's behaviour is tested in `gpu/index_errors`.
#[test]
fn a_target_that_is_no_class() -> Result<()> {
    let logits = Tensor::zeros(&[3, 50], DType::F32, &Device::Cpu)?;
    let error = loss(&logits, &[3, 49, 50], None).unwrap_err();
    let want =
        Error::Index { op: "cross_entropy", name: "target", found: 50, at: Some(2), limit: 50 };
    assert_eq!(error, want);
    let message = "cross_entropy: target 50 at position 2, expected less than 50";
    assert_eq!(error.to_string(), message);
    loss(&logits, &[3, 49, 50], Some(50)).map(drop)
}

#[test]
fn what_is_refused() {
    let zeros = |dtype, shape: &[usize]| Tensor::zeros(shape, dtype, &Device::Cpu).unwrap();
    let refuses = |logits: &Tensor, targets: &Tensor, message: &str| {
        assert_eq!(cross_entropy(logits, targets, None).unwrap_err().to_string(), message);
    };
    let (logits, targets) = (zeros(DType::F32, &[2, 3]), zeros(DType::U32, &[2]));
    refuses(&targets, &targets, "cross_entropy: the tensor of logits is u32, expected a float");
    refuses(&logits, &logits, "cross_entropy: the tensor of targets is f32, expected u32");
    refuses(&zeros(DType::F32, &[]), &targets, "cross_entropy: the logits are [], expected […, v]");
    refuses(&zeros(DType::F32, &[3, 3]), &targets, "cross_entropy: targets are [2], expected [3]");
    refuses(
        &zeros(DType::F32, &[2, 0]),
        &targets,
        "cross_entropy: the logits are [2, 0], expected a class or more",
    );
}
