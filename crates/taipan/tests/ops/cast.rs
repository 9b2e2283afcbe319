//! Conversions between element types.

use taipan::check::{
    Array, FLOATS, Random, Values, array, devices, input, input_of, round, tensor,
};
use taipan::{DType, Device, Result, Tensor};

const ALL: [DType; 6] = [DType::F16, DType::BF16, DType::F32, DType::F64, DType::U32, DType::I64];

/// The element of `dtype` nearest to `x`; integers are truncated and saturated.
fn converted(x: f64, dtype: DType) -> f64 {
    match dtype {
        DType::U32 => x as u32 as f64,
        DType::I64 => x as i64 as f64,
        float => round(x, float),
    }
}

/// Every pair of these types on every device that has both.
fn pairs(from: &[DType], to: &[DType]) -> Vec<(Device, DType, DType)> {
    let mut all = Vec::new();
    for device in devices() {
        for &from in from.iter().filter(|&&dtype| device.supports(dtype)) {
            let to = to.iter().filter(|&&dtype| device.supports(dtype));
            all.extend(to.map(|&to| (device.clone(), from, to)));
        }
    }
    all
}

#[test]
fn every_pair_of_types() -> Result<()> {
    for (device, from, to) in pairs(&ALL, &ALL) {
        for shape in [&[][..], &[0], &[1], &[3, 5], &[17_000]] {
            let mut random = Random::named("cast");
            let x = random.draw(&input_of(shape, Values::Between(-300.0, 300.0)));
            let x = x.map(|x| converted(x, from));
            let y = tensor(&x, from, &device).cast(to)?;
            assert_eq!(y.dtype(), to);
            for (x, got) in x.data.iter().zip(array(&y).data) {
                let on = device.name();
                assert_eq!(got, converted(*x, to), "{x:e} on {on} from {from} to {to}");
            }
        }
    }
    Ok(())
}

/// Numbers on, beside and between the halfway points of the smaller types.
#[test]
fn casts_round_to_the_nearest_even() -> Result<()> {
    let mut data = Vec::new();
    for to in [DType::F16, DType::BF16, DType::F32] {
        for exponent in [-24, -15, -14, -1, 0, 3, 15] {
            for odd in [1.0, 2.0, 3.0, 4.0] {
                // A number of the type, then half a step, a little less and a little more.
                let base = round((1.0 + odd / 1024.0) * 2f64.powi(exponent), to);
                let digits = match to {
                    DType::F16 => 11,
                    DType::BF16 => 8,
                    _ => 24,
                };
                let half = 2f64.powi(exponent - digits);
                for part in [0.0, 0.25, 0.5, 0.75, 1.0, 1.5] {
                    let between = base + part * half;
                    // The last bit of an f64, where conversions by way of f32 go wrong, too.
                    for nudge in [0, 1, u64::MAX] {
                        data.push(f64::from_bits(between.to_bits().wrapping_add(nudge)));
                        data.push(-f64::from_bits(between.to_bits().wrapping_add(nudge)));
                    }
                }
            }
        }
    }
    data.extend([65504.0, 65519.0, 65520.0, 65536.0, 1e39, f64::INFINITY, 1e-40, 1e-50, 0.0]);
    let halves = [DType::F16, DType::BF16, DType::F32];
    for (device, from, to) in pairs(&[DType::F64, DType::F32], &halves) {
        let x: Vec<f64> = data.iter().map(|&x| round(x, from)).collect();
        let x = Array { shape: vec![x.len()], data: x };
        let y = array(&tensor(&x, from, &device).cast(to)?);
        for (x, got) in x.data.iter().zip(y.data) {
            let want = round(*x, to);
            assert_eq!(got, want, "{x:e} on {} from {from} to {to}", device.name());
        }
    }
    Ok(())
}

#[test]
fn nan_and_infinity_stay() -> Result<()> {
    let special = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
    for (device, from, to) in pairs(&FLOATS, &ALL) {
        let x = Array { shape: vec![3], data: special.to_vec() };
        let y = array(&tensor(&x, from, &device).cast(to)?).data;
        let name = format!("on {} from {from} to {to}: {y:?}", device.name());
        match to {
            DType::U32 => assert_eq!(y, [0.0, u32::MAX as f64, 0.0], "{name}"),
            DType::I64 => assert_eq!(y, [0.0, i64::MAX as f64, i64::MIN as f64], "{name}"),
            _ => assert!(y[0].is_nan() && y[1..] == special[1..], "{name}"),
        }
    }
    Ok(())
}

/// From an integer an f64 cannot hold, the nearest f32 all the same: not the nearest to the
/// nearest f64.
#[test]
fn large_integers_round_once() -> Result<()> {
    let halfway = (1i64 << 60) + (1 << 36); // between two f32s
    let x = Tensor::new(&[halfway + 1, halfway - 1, -halfway - 1], &[3], &Device::Cpu)?;
    let want = [halfway + 1, halfway - 1, -halfway - 1].map(|x| x as f32);
    assert_eq!(x.cast(DType::F32)?.read_blocking::<f32>()?, want);
    Ok(())
}

#[test]
fn the_gradient_comes_back_in_the_type_of_the_input() -> Result<()> {
    let mut random = Random::named("cast gradient");
    for (device, from, to) in pairs(&FLOATS, &FLOATS) {
        let x = random.draw(&input(&[7, 3])).map(|x| round(x, from));
        let dy = random.draw(&input(&[7, 3])).map(|x| round(x, to));
        let x = tensor(&x, from, &device).tracked();
        let grads = x.cast(to)?.backward_from(&tensor(&dy, to, &device))?;
        let dx = grads.of(&x)?;
        assert_eq!(dx.dtype(), from);
        let want = dy.map(|x| round(x, from));
        assert_eq!(array(dx), want, "on {} from {from} to {to}", device.name());
    }
    Ok(())
}
