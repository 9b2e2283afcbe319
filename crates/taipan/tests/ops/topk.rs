//! The largest elements of rows.

use taipan::check::cases::reductions::topk;
use taipan::check::{
    Array, FLOATS, Random, Values, array, check, devices, input, input_of, tensor,
};
use taipan::{DType, Device, Result};

use crate::naive;

#[test]
fn values_and_their_gradient() {
    let shapes: [(&[usize], &[usize]); 9] = [
        (&[1], &[0, 1]),
        (&[0], &[0]),
        (&[7], &[0, 1, 6, 7]),
        (&[3, 0], &[0]),
        (&[0, 4], &[0, 2, 4]),
        (&[2, 3, 5], &[1, 4, 5]),
        (&[33, 65], &[1, 31, 32, 33, 65]),
        (&[3, 513], &[2, 513]),
        // Chunks of 1024 on a GPU.
        (&[2, 2050], &[1, 1023, 1024, 1025, 2049, 2050]),
    ];
    for (shape, ks) in shapes {
        ks.iter().for_each(|&k| check(&topk(shape, k)));
    }
}

/// Indices and values of the naive version, whatever the ties.
fn expect_same(x: &Array, k: usize, (dtype, device): (DType, &Device)) -> Result<()> {
    let (values, indices) = tensor(x, dtype, device).tracked().topk(k)?;
    let want = naive::topk(x, k);
    let name = format!("{:?}, k = {k}, on {} in {dtype}", x.shape, device.name());
    assert_eq!(indices.dtype(), DType::U32);
    assert!(values.is_tracked() && !indices.is_tracked(), "an index has no gradient");
    assert!(array(&indices) == want.1, "{name}: the indices");
    let same = |(a, b): (&f64, &f64)| a == b || a.is_nan() && b.is_nan();
    assert!(array(&values).data.iter().zip(&want.0.data).all(same), "{name}: the values");
    Ok(())
}

/// On every device, in every type.
fn everywhere(mut f: impl FnMut(DType, &Device) -> Result<()>) -> Result<()> {
    for device in &devices() {
        for dtype in FLOATS.into_iter().filter(|&dtype| device.supports(dtype)) {
            f(dtype, device)?;
        }
    }
    Ok(())
}

#[test]
fn equal_elements_come_in_order() -> Result<()> {
    let mut random = Random::named("topk of ties");
    // Few distinct values, one, and blocks of ever larger ones.
    let some = random.draw(&input(&[3, 3000])).map(|x| (x * 3.0).round());
    let one = Array::from_fn(&[2, 2500], |_| 1.5);
    let rising = Array::from_fn(&[2, 3000], |i| (i[1] / 300) as f64);
    everywhere(|dtype, device| {
        for x in [&some, &one, &rising] {
            for k in [1, 40, 1024, 1500, 2500] {
                expect_same(x, k, (dtype, device))?;
            }
        }
        Ok(())
    })
}

#[test]
fn nan_and_infinities() -> Result<()> {
    const INF: f64 = f64::INFINITY;
    const NAN: f64 = f64::NAN;
    let row = [1.0, -INF, NAN, 0.0, INF, -0.0, -2.0, NAN, -INF, INF];
    let x = Array { shape: vec![2, 5], data: row.to_vec() };
    let long = Array::from_fn(&[1, 1500], |i| row[i[1] % 10]);
    let nothing = Array::from_fn(&[1, 40], |_| -INF);
    everywhere(|dtype, device| {
        (0..=5).try_for_each(|k| expect_same(&x, k, (dtype, device)))?;
        [1, 299, 301, 1500].iter().try_for_each(|&k| expect_same(&long, k, (dtype, device)))?;
        expect_same(&nothing, 3, (dtype, device))
    })
}

/// As many rows as a vocabulary is long, and the other way round.
#[test]
fn long_rows_and_many() -> Result<()> {
    let mut random = Random::named("topk of long rows");
    let [long, many] = [[2, 50_280], [9000, 3]]
        .map(|shape| random.draw(&input_of(&shape, Values::Between(-9.0, 9.0))));
    everywhere(|dtype, device| {
        let round = |x: &Array| x.map(|x| taipan::check::round(x, dtype));
        expect_same(&round(&long), 50, (dtype, device))?;
        expect_same(&round(&many), 2, (dtype, device))
    })
}
