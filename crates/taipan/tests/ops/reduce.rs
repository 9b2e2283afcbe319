//! Sums, means, maxima and where these are.

use taipan::check::cases::reductions::{REDUCTIONS, SPREADS, logsumexp};
use taipan::check::{
    Array, Case, FLOATS, Random, Values, array, check, devices, input, input_of, round, tensor,
};
use taipan::{DType, Device, Result, Tensor};

use crate::naive;

/// All subsets of the dimensions of a shape.
fn subsets(rank: usize) -> impl Iterator<Item = Vec<usize>> {
    (0..1usize << rank).map(move |bits| (0..rank).filter(|d| bits >> d & 1 == 1).collect())
}

/// Shapes, and the dimensions that are reduced: at least two elements each.
const LINES: [(&[usize], &[usize]); 7] = [
    (&[5], &[0]),
    (&[3, 4], &[1]),
    (&[3, 4], &[0]),
    (&[2, 3, 4], &[0, 2]),
    (&[0, 3], &[1]),
    (&[3, 1030], &[1]),
    (&[1030, 3], &[0]),
];

#[test]
fn every_subset_of_dimensions() {
    for shape in [&[3, 2, 5, 4][..], &[1, 3, 1, 2], &[1, 1, 1, 1], &[4, 33, 3, 1]] {
        for dims in subsets(4) {
            REDUCTIONS.iter().for_each(|reduction| check(&reduction.case(shape, &dims)));
        }
    }
}

/// The sum of nothing is 0, its mean is NaN; nothing has sums.
#[test]
fn sizes_of_nothing() {
    for shape in [&[0][..], &[0, 3], &[3, 0], &[2, 0, 3], &[0, 0]] {
        for dims in subsets(shape.len()) {
            REDUCTIONS[..2].iter().for_each(|reduction| check(&reduction.case(shape, &dims)));
        }
    }
    for reduction in &REDUCTIONS[2..] {
        check(&reduction.case(&[0, 3], &[1]));
        check(&reduction.case(&[3, 0, 2], &[0]));
    }
}

#[test]
fn the_order_of_dimensions_does_not_matter() -> Result<()> {
    let x = Tensor::randn(&[2, 3, 4, 5], 1, DType::F64, &Device::Cpu)?;
    type Call = fn(&Tensor, &[usize]) -> Result<Tensor>;
    let calls: [Call; 4] =
        [Tensor::sum_dims, Tensor::mean_dims, Tensor::max_dims, Tensor::min_dims];
    for (op, call) in calls.into_iter().enumerate() {
        assert_eq!(array(&call(&x, &[3, 0, 1])?), array(&call(&x, &[0, 1, 3])?), "{op}");
    }
    Ok(())
}

/// Longer than one block of rows, columns, and one chunk of a thread.
#[test]
fn many_elements() {
    let shapes: [(&[usize], &[usize]); 7] = [
        (&[3, 2051], &[1]),
        (&[2051, 3], &[0]),
        (&[50_000], &[0]),
        (&[300, 301], &[0]),
        (&[17, 1025], &[1]),
        (&[20_000, 2], &[0]),
        (&[5, 700, 11], &[0, 2]),
    ];
    for (shape, dims) in shapes {
        REDUCTIONS.iter().for_each(|reduction| check(&reduction.case(shape, dims)));
    }
}

#[test]
fn all_dimensions() {
    for shape in [&[][..], &[1], &[7], &[3, 4, 5]] {
        let x = || [input_of(shape, Values::Distinct)];
        let all = |math: fn(&[f64]) -> f64| {
            move |i: &[Array]| Array { shape: vec![], data: vec![math(&i[0].data)] }
        };
        let case = Case::new(format!("sum {shape:?}"), x(), |t| t[0].sum(), all(naive::sum));
        check(&case.cancelling(60));
        let case = Case::new(format!("mean {shape:?}"), x(), |t| t[0].mean(), all(naive::mean));
        check(&case.cancelling(1));
        check(&Case::new(format!("max {shape:?}"), x(), |t| t[0].max(), all(naive::max)));
    }
}

/// Every device that has one of these types.
fn places(dtypes: &[DType]) -> Vec<(Device, DType)> {
    let of = |device: &Device| {
        let supported = dtypes.iter().filter(|&&dtype| device.supports(dtype));
        supported.map(|&dtype| (device.clone(), dtype)).collect::<Vec<_>>()
    };
    devices().iter().flat_map(of).collect()
}

/// Halves are summed in f32: 5000 ones are 5000, not the 2048 or 256 where adding 1 stops
/// changing a half.
#[test]
fn sums_of_halves_are_kept_in_f32() -> Result<()> {
    for (device, dtype) in places(&[DType::F16, DType::BF16]) {
        for (shape, dims) in [(&[5000, 1][..], [0]), (&[1, 5000], [1]), (&[5000, 3], [0])] {
            let sum = Tensor::ones(shape, dtype, &device)?.sum_dims(&dims)?;
            let name = device.name();
            assert_eq!(array(&sum).data[0], round(5000.0, dtype), "{shape:?} on {name} in {dtype}");
        }
    }
    Ok(())
}

/// 1/count need not be a number of the type, only dy/count: gradients of f16 are scaled up for
/// exactly this.
#[test]
fn the_gradient_of_a_long_mean_rounds_once() -> Result<()> {
    for (device, dtype) in places(&[DType::F16]) {
        let x = Tensor::zeros(&[1_000_000], dtype, &device)?.tracked();
        let dy = Tensor::full(&[], 60_000.0, dtype, &device)?;
        let grads = x.mean()?.backward_from(&dy)?;
        let (got, want) = (array(grads.of(&x)?).data[0], array(&dy).data[0] / 1e6);
        let within = taipan::check::tolerance(dtype).value * want;
        let name = device.name();
        assert!((got - want).abs() <= within, "{name}: {got}, want {want}, tolerance {within:e}");
    }
    Ok(())
}

#[test]
fn equal_maxima_share_the_gradient() -> Result<()> {
    for device in &devices() {
        let x = [1f32, 3.0, 3.0, 2.0, 5.0, 5.0, 5.0, 5.0];
        let x = Tensor::new(&x, &[2, 4], device)?.tracked();
        let dy = Tensor::new(&[6f32, 2.0], &[2], device)?;
        let grads = x.max_dims(&[1])?.backward_from(&dy)?;
        let want = [0.0, 3.0, 3.0, 0.0, 0.5, 0.5, 0.5, 0.5];
        assert_eq!(grads.of(&x)?.read_blocking::<f32>()?, want, "{}", device.name());
    }
    Ok(())
}

#[test]
fn a_nan_is_the_maximum() -> Result<()> {
    for (device, dtype) in places(&FLOATS) {
        // Rows and columns, in one window and in several.
        for (shape, at) in [[40, 1], [1, 40], [5000, 1], [1, 5000]]
            .into_iter()
            .flat_map(|shape| [0, 17, 39].map(|at| (shape, at * shape.iter().max().unwrap() / 40)))
        {
            let len = shape[0] * shape[1];
            let dim = usize::from(shape[0] == 1);
            let name = format!("{shape:?} on {} in {dtype} at {at}", device.name());
            let mut data = vec![1.0; len];
            data[at] = f64::NAN;
            data[(at + 5) % len] = f64::INFINITY;
            let x = tensor(&Array { shape: shape.to_vec(), data }, dtype, &device).tracked();
            let max = x.max_dims(&[dim])?;
            assert!(max.item()?.is_nan(), "{name}: {max}");
            assert_eq!(x.argmax(dim)?.item()?, at as f64, "{name}");
            let dy = tensor(&Array { shape: vec![1], data: vec![2.0] }, dtype, &device);
            let dx = array(max.backward_from(&dy)?.of(&x)?).data;
            let want: Vec<f64> = (0..len).map(|i| if i == at { 2.0 } else { 0.0 }).collect();
            assert!(dx == want, "{name}: the gradient");
        }
    }
    Ok(())
}

/// Columns are reduced several rows at a time, and the last rows one by one.
#[test]
fn a_nan_is_the_extremum_of_its_column() -> Result<()> {
    let [rows, columns] = [21, 35];
    for (device, dtype) in places(&FLOATS) {
        for row in 0..rows {
            let column = 3 * row % columns;
            let mut data: Vec<f64> = (0..rows * columns).map(|i| (i * 31 % 64) as f64).collect();
            data[row * columns + column] = f64::NAN;
            let x = tensor(&Array { shape: vec![rows, columns], data }, dtype, &device);
            for (name, found) in [("max", x.max_dims(&[0])?), ("min", x.min_dims(&[0])?)] {
                for (i, found) in array(&found).data.into_iter().enumerate() {
                    let name = format!("{name} of column {i} on {} in {dtype}", device.name());
                    assert_eq!(found.is_nan(), i == column, "{name}: {found}, NaN in row {row}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn the_largest_of_infinities() -> Result<()> {
    for device in &devices() {
        let x = Tensor::new(&[f32::NEG_INFINITY; 6], &[2, 3], device)?;
        assert_eq!(x.max()?.item()?, f64::NEG_INFINITY);
        assert_eq!(x.argmax(1)?.read_blocking::<u32>()?, [0, 0]);
    }
    Ok(())
}

#[test]
fn argmax_is_the_first_largest() -> Result<()> {
    let mut random = Random::named("argmax");
    for device in &devices() {
        for dtype in FLOATS.into_iter().filter(|&dtype| device.supports(dtype)) {
            for shape in [&[1][..], &[9], &[3, 0], &[3, 4], &[2, 5, 3], &[2, 3, 4, 5], &[7, 40_000]]
            {
                // Few distinct values: many ties.
                let x = random.draw(&input(shape)).map(|x| (x * 3.0).round());
                for dim in (0..shape.len()).filter(|&dim| shape[dim] > 0) {
                    let got = tensor(&x, dtype, device).tracked().argmax(dim)?;
                    let want = naive::reduce(&x, &[dim], |x| {
                        x.iter().position(|&v| v == naive::max(x)).unwrap() as f64
                    });
                    assert_eq!(got.dtype(), DType::U32);
                    assert!(!got.is_tracked(), "an index has no gradient");
                    assert!(array(&got) == want, "argmax of {shape:?} along {dim} in {dtype}");
                }
            }
        }
    }
    Ok(())
}

/// As without `keepdim`, in a shape that broadcasts with the input.
#[test]
fn dimensions_can_be_kept() -> Result<()> {
    type Call = fn(&Tensor, &[usize]) -> Result<Tensor>;
    let both: [(Call, Call); 7] = [
        (Tensor::sum_dims, Tensor::sum_keepdim),
        (Tensor::mean_dims, Tensor::mean_keepdim),
        (Tensor::max_dims, Tensor::max_keepdim),
        (Tensor::min_dims, Tensor::min_keepdim),
        (|x, dims| x.var_dims(dims, 1), |x, dims| x.var_keepdim(dims, 1)),
        (|x, dims| x.std_dims(dims, 0), |x, dims| x.std_keepdim(dims, 0)),
        (Tensor::logsumexp, Tensor::logsumexp_keepdim),
    ];
    let x = Tensor::randn(&[2, 3, 4], 1, DType::F64, &Device::Cpu)?;
    for (call, keeping) in both {
        for dims in subsets(3) {
            let kept = keeping(&x, &dims)?;
            let expected: Vec<usize> =
                (0..3).map(|d| if dims.contains(&d) { 1 } else { x.shape()[d] }).collect();
            assert_eq!(kept.shape(), expected);
            let (found, expected) = (array(&kept).data, array(&call(&x, &dims)?).data);
            assert!(found.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits()));
        }
        assert!(keeping(&x, &[3]).is_err() && keeping(&x, &[1, 1]).is_err());
    }
    assert_eq!(x.argmax_keepdim(1)?.shape(), [2, 1, 4]);
    assert!(x.argmax_keepdim(3).is_err());
    Ok(())
}

/// A mean over nothing but its own elements, against the formula.
#[test]
fn variances() {
    for (shape, dims) in LINES {
        for correction in [0, 1] {
            SPREADS.iter().for_each(|spread| check(&spread.case(shape, dims, correction)));
        }
    }
}

#[test]
fn log_of_summed_exponentials() -> Result<()> {
    for (shape, dims) in LINES.into_iter().chain([(&[1][..], &[0][..])]) {
        check(&logsumexp(shape, dims));
    }
    const INF: f32 = f32::INFINITY;
    for device in devices() {
        let of = |x: [f32; 2]| Tensor::new(&x, &[2], &device)?.logsumexp(&[0])?.item();
        assert_eq!(of([1e4, -INF])?, 1e4);
        assert_eq!(of([-INF, -INF])?, -INF as f64);
        assert_eq!(of([0.0, INF])?, INF as f64);
        assert!(of([0.0, f32::NAN])?.is_nan());
    }
    let empty = Tensor::zeros(&[2, 0], DType::F32, &Device::Cpu)?;
    let error = empty.logsumexp(&[1]).unwrap_err().to_string();
    assert_eq!(error, "logsumexp: a dimension of [2, 0] is empty");
    Ok(())
}
