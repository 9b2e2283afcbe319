//! Values and derivatives far out, at infinity, and of NaN.

use taipan::check::{Array, FLOATS, array, devices, round, tensor};
use taipan::{
    Activation, CausalConv1d, DType, Device, Result, Scan, Tensor, causal_conv1d, gated, linear,
    selective_scan, selective_scan_step,
};

const INF: f64 = f64::INFINITY;
const NAN: f64 = f64::NAN;

/// How far out; the types here can hold all of it.
const FAR: [f64; 3] = [1e4, 1e30, INF];

/// Value and derivative of a function of one number.
fn value_and_derivative(
    f: impl Fn(&Tensor) -> Result<Tensor>,
    x: f64,
    (dtype, device): (DType, &Device),
) -> Result<(f64, f64)> {
    let x = tensor(&Array { shape: vec![1, 1], data: vec![x] }, dtype, device).tracked();
    let y = f(&x)?;
    Ok((y.item()?, y.backward()?.of(&x)?.item()?))
}

/// Where these types are found.
fn places<const N: usize>(dtypes: [DType; N]) -> Vec<(DType, Device)> {
    let of = |device: &Device| {
        let supported = dtypes.into_iter().filter(|&dtype| device.supports(dtype));
        supported.map(|dtype| (dtype, device.clone())).collect::<Vec<_>>()
    };
    devices().iter().flat_map(of).collect()
}

/// Check value and derivative in one place; NaN is NaN.
fn expect_at(
    place: (DType, &Device),
    name: &str,
    f: impl Fn(&Tensor) -> Result<Tensor>,
    x: f64,
    want: (f64, f64),
) -> Result<()> {
    let got = value_and_derivative(f, x, place)?;
    let same = |got: f64, want: f64| got == want || got.is_nan() && want.is_nan();
    let (dtype, device) = (place.0, place.1.name());
    assert!(
        same(got.0, want.0) && same(got.1, want.1),
        "{name}({x:e}) on {device} in {dtype}: value and derivative are {got:?}, want {want:?}"
    );
    Ok(())
}

/// The same wherever f32 and f64 are found.
fn expect(
    name: &str,
    f: impl Fn(&Tensor) -> Result<Tensor>,
    x: f64,
    (value, derivative): (f64, f64),
) -> Result<()> {
    for (dtype, device) in places([DType::F32, DType::F64]) {
        let value = round(value, dtype); // as the input was
        expect_at((dtype, &device), name, &f, x, (value, derivative))?;
    }
    Ok(())
}

/// The method of an activation.
fn method(activation: Activation, x: &Tensor) -> Result<Tensor> {
    match activation {
        Activation::None => x.reshape(&[1, 1]),
        Activation::Relu => x.relu(),
        Activation::Gelu => x.gelu(),
        Activation::GeluErf => x.gelu_erf(),
        Activation::Silu => x.silu(),
        Activation::Sigmoid => x.sigmoid(),
        Activation::Tanh => x.tanh(),
        Activation::LeakyRelu(derivative) => x.leaky_relu(derivative),
        Activation::Softcap(cap) => x.softcap(cap),
        other => panic!("{other:?} has no method here"),
    }
}

/// Value and derivative of an activation at `±x`, far out.
fn limits(activation: Activation, x: f64) -> [(f64, f64); 2] {
    match activation {
        Activation::None => [(x, 1.0), (-x, 1.0)],
        Activation::Relu | Activation::Gelu | Activation::GeluErf | Activation::Silu => {
            [(x, 1.0), (0.0, 0.0)]
        }
        Activation::Sigmoid => [(1.0, 0.0), (0.0, 0.0)],
        Activation::Tanh => [(1.0, 0.0), (-1.0, 0.0)],
        Activation::LeakyRelu(derivative) => [(x, 1.0), (-derivative * x, derivative)],
        Activation::Softcap(cap) => [(cap, 0.0), (-cap, 0.0)],
        other => panic!("{other:?} has no limits here"),
    }
}

#[test]
fn activations_reach_their_limits() -> Result<()> {
    for &activation in Activation::ALL {
        for x in FAR {
            let [right, left] = limits(activation, x);
            let name = format!("{activation:?}");
            expect(&name, |x| method(activation, x), x, right)?;
            expect(&name, |x| method(activation, x), -x, left)?;
        }
    }
    Ok(())
}

#[test]
fn fused_activations_reach_their_limits() -> Result<()> {
    for &activation in Activation::ALL {
        let fused = |x: &Tensor| {
            let w = Tensor::ones(&[1, 1], x.dtype(), x.device())?;
            linear(x, &w, None, activation)
        };
        for x in FAR {
            let [right, left] = limits(activation, x);
            let name = format!("linear {activation:?}");
            expect(&name, fused, x, right)?;
            expect(&name, fused, -x, left)?;
        }
        let derivative = if activation == Activation::None { 1.0 } else { NAN };
        expect(&format!("linear {activation:?}"), fused, NAN, (NAN, derivative))?;
    }
    Ok(())
}

/// The limits hold in types that cannot hold 1e30, too.
#[test]
fn halves_reach_their_limits() -> Result<()> {
    for (dtype, device) in places([DType::F16, DType::BF16]) {
        for &activation in Activation::ALL {
            for x in [16384.0, INF] {
                for (x, want) in [x, -x].into_iter().zip(limits(activation, x)) {
                    let got = value_and_derivative(|x| method(activation, x), x, (dtype, &device))?;
                    assert_eq!(got, want, "{activation:?}({x}) on {} in {dtype}", device.name());
                }
            }
        }
    }
    Ok(())
}

fn ones_like(x: &Tensor) -> Result<Tensor> {
    Tensor::ones(x.shape(), x.dtype(), x.device())
}

/// The gate `z` at the last of some steps of a scan that, before the gate, is 1.
fn scan_gate(z: &Tensor, steps: usize) -> Result<Tensor> {
    let (device, dtype) = (z.device(), z.dtype());
    let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let ones = Tensor::ones(&[1, steps, 1], dtype, device)?;
    let zeros = Tensor::zeros(&[1, steps, 1], dtype, device)?;
    let (a_log, d) = (Tensor::zeros(&[1, 1], wide, device)?, Tensor::ones(&[1], wide, device)?);
    let z = z.reshape(&[1, 1, 1])?.add(&zeros)?;
    let scan = Scan::new(&ones, &zeros, &a_log, &zeros, &zeros);
    let (y, _) = selective_scan(&Scan { d: Some(&d), z: Some(&z), ..scan })?;
    y.slice(1, steps - 1..steps)
}

/// The same for one step of decoding.
fn scan_step_gate(z: &Tensor) -> Result<Tensor> {
    let (device, dtype) = (z.device(), z.dtype());
    let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let [zero, one] = [0.0, 1.0].map(|x| Tensor::full(&[1, 1], x, dtype, device));
    let (zero, one) = (zero?, one?);
    let (a_log, d) = (Tensor::zeros(&[1, 1], wide, device)?, Tensor::ones(&[1], wide, device)?);
    let scan = Scan::new(&one, &zero, &a_log, &zero, &zero);
    let (y, _) = selective_scan_step(&Scan { d: Some(&d), z: Some(z), ..scan })?;
    Ok(y)
}

/// Wherever silu is part of an op, forward and backward.
#[test]
fn every_silu_reaches_its_limits() -> Result<()> {
    type Silu = (&'static str, fn(&Tensor) -> Result<Tensor>);
    let silus: [Silu; 7] = [
        ("silu", Tensor::silu),
        ("gated", |x| gated(&ones_like(x)?, x, Activation::Silu)),
        ("linear", |x| linear(x, &ones_like(x)?, None, Activation::Silu)),
        ("causal_conv1d", |x| {
            let (weight, x) = (ones_like(x)?, x.reshape(&[1, 1, 1])?);
            let conv = CausalConv1d::new(&x, &weight);
            Ok(causal_conv1d(&CausalConv1d { activation: Activation::Silu, ..conv })?.0)
        }),
        ("selective_scan", |z| scan_gate(z, 20)),
        ("selective_scan of length 1", |z| scan_gate(z, 1)),
        ("selective_scan_step", scan_step_gate),
    ];
    let ends = [
        (INF, INF, 1.0),
        (16384.0, 16384.0, 1.0),
        (-16384.0, 0.0, 0.0),
        (-INF, 0.0, 0.0),
        (NAN, NAN, NAN),
    ];
    for (dtype, device) in places(FLOATS) {
        for ((name, silu), (x, value, derivative)) in
            silus.into_iter().flat_map(|silu| ends.map(|end| (silu, end)))
        {
            let name = format!("silu of {name}");
            expect_at((dtype, &device), &name, silu, x, (value, derivative))?;
        }
    }
    Ok(())
}

/// A sum too large for an f16 is infinite, and the derivative there is that of a large number.
#[test]
fn a_sum_too_large_for_f16_has_its_derivative() -> Result<()> {
    let activations = [Activation::Gelu, Activation::GeluErf, Activation::Silu, Activation::Relu];
    for (_, device) in places([DType::F16; 2]) {
        for (activation, sign) in activations.into_iter().flat_map(|a| [(a, 1.0), (a, -1.0)]) {
            let x = Tensor::full(&[1, 4], sign * 60000.0, DType::F16, &device)?.tracked();
            let w = Tensor::ones(&[4, 1], DType::F16, &device)?;
            let y = linear(&x, &w, None, activation)?;
            let (value, derivative) = if sign > 0.0 { (INF, 1.0) } else { (0.0, 0.0) };
            assert_eq!(y.item()?, value, "{activation:?} on {}", device.name());
            let dx = y.backward()?.of(&x)?.clone();
            assert_eq!(array(&dx).data, [derivative; 4], "{activation:?} on {}", device.name());
        }
    }
    Ok(())
}

#[test]
fn nan_gives_nan() -> Result<()> {
    type Function = (&'static str, fn(&Tensor) -> Result<Tensor>);
    let functions: [Function; 12] = [
        ("exp", Tensor::exp),
        ("exp_m1", Tensor::expm1),
        ("ln", Tensor::log),
        ("ln_1p", Tensor::log1p),
        ("sqrt", Tensor::sqrt),
        ("softplus", Tensor::softplus),
        ("heavy_tail", Tensor::heavy_tail),
        ("relu", Tensor::relu),
        ("gelu", Tensor::gelu),
        ("gelu_erf", Tensor::gelu_erf),
        ("silu", Tensor::silu),
        ("tanh", Tensor::tanh),
    ];
    for (name, f) in functions {
        expect(name, f, NAN, (NAN, NAN))?;
    }
    expect("sigmoid", Tensor::sigmoid, NAN, (NAN, NAN))?;
    expect("neg", Tensor::neg, NAN, (NAN, -1.0))
}

/// One NaN in a row of many does not spread to other rows, nor to the lanes beside it.
#[test]
fn nan_and_infinity_stay_in_their_row() -> Result<()> {
    for device in &devices() {
        // Few rows and more are kernels of their own.
        for (activation, rows) in Activation::ALL.iter().flat_map(|&a| [(a, 7), (a, 20)]) {
            let mut x = vec![0.5f32; rows * 5];
            x[3 * 5 + 2] = f32::NAN;
            let x = Tensor::new(&x, &[rows, 5], device)?;
            let w = Tensor::full(&[5, 9], 0.25, DType::F32, device)?;
            let y = linear(&x, &w, None, activation)?.read_blocking::<f32>()?;
            for (i, y) in y.iter().enumerate() {
                let name = device.name();
                assert_eq!(y.is_nan(), i / 9 == 3, "{activation:?} on {name} at {i}: {y}");
            }
        }
    }
    Ok(())
}

#[test]
fn elementary_functions_at_their_ends() -> Result<()> {
    type End = (&'static str, fn(&Tensor) -> Result<Tensor>, f64, (f64, f64));
    let ends: [End; 31] = [
        ("exp", Tensor::exp, 1e4, (INF, INF)),
        ("exp", Tensor::exp, -1e4, (0.0, 0.0)),
        ("exp", Tensor::exp, INF, (INF, INF)),
        ("exp", Tensor::exp, -INF, (0.0, 0.0)),
        ("exp", Tensor::exp, 0.0, (1.0, 1.0)),
        ("exp_m1", Tensor::expm1, 1e4, (INF, INF)),
        ("exp_m1", Tensor::expm1, -1e4, (-1.0, 0.0)),
        ("exp_m1", Tensor::expm1, -INF, (-1.0, 0.0)),
        ("exp_m1", Tensor::expm1, 0.0, (0.0, 1.0)),
        ("ln", Tensor::log, 0.0, (-INF, INF)),
        ("ln", Tensor::log, INF, (INF, 0.0)),
        ("ln", Tensor::log, -1.0, (NAN, -1.0)),
        ("ln", Tensor::log, 1.0, (0.0, 1.0)),
        ("ln_1p", Tensor::log1p, -1.0, (-INF, INF)),
        ("ln_1p", Tensor::log1p, INF, (INF, 0.0)),
        ("ln_1p", Tensor::log1p, -2.0, (NAN, -1.0)),
        ("ln_1p", Tensor::log1p, 0.0, (0.0, 1.0)),
        ("sqrt", Tensor::sqrt, 0.0, (0.0, INF)),
        ("sqrt", Tensor::sqrt, INF, (INF, 0.0)),
        ("sqrt", Tensor::sqrt, -1.0, (NAN, NAN)),
        ("softplus", Tensor::softplus, 1e4, (1e4, 1.0)),
        ("softplus", Tensor::softplus, -1e4, (0.0, 0.0)),
        ("softplus", Tensor::softplus, 1e30, (1e30, 1.0)),
        ("softplus", Tensor::softplus, -1e30, (0.0, 0.0)),
        ("softplus", Tensor::softplus, INF, (INF, 1.0)),
        ("softplus", Tensor::softplus, -INF, (0.0, 0.0)),
        ("heavy_tail", Tensor::heavy_tail, INF, (INF, 1.0)),
        ("heavy_tail", Tensor::heavy_tail, -INF, (0.0, 0.0)),
        ("heavy_tail", Tensor::heavy_tail, 0.0, (1.0, 1.0)),
        ("neg", Tensor::neg, INF, (-INF, -1.0)),
        ("sigmoid", Tensor::sigmoid, 0.0, (0.5, 0.25)),
    ];
    for (name, f, x, want) in ends {
        expect(name, f, x, want)?;
    }
    Ok(())
}
