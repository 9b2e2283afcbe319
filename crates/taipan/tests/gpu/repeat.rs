//! The same inputs give the same bits: in another run, on a device opened anew, in memory that
//! held something else; for sizes where several launches make one sum.

use taipan::check::array;
use taipan::{Activation, DType, Device, Result, Tensor, linear};

use crate::{floats, fresh};

/// A computation on a device: its results.
type Computation = (&'static str, fn(&Device, DType) -> Result<Vec<Tensor>>);

const COMPUTATIONS: [Computation; 4] = [
    // The gradient of the weight is a deep product, split along k.
    ("linear [8192, 64]·[64, 64]", |device, dtype| {
        let randn = |shape: &[usize], seed| Tensor::randn(shape, seed, dtype, device);
        let (x, w) = (randn(&[8192, 64], 1)?.tracked(), randn(&[64, 64], 2)?.scale(0.1)?.tracked());
        let bias = randn(&[64], 3)?.tracked();
        let y = linear(&x, &w, Some(&bias), Activation::Gelu)?;
        let grads = y.backward_from(&randn(&[8192, 64], 4)?.scale(0.1)?)?;
        Ok(vec![y.clone(), grads.of(&x)?.clone(), grads.of(&w)?.clone(), grads.of(&bias)?.clone()])
    }),
    // Few elements of a result, reduced in two passes and in three.
    ("sum of a million", |device, dtype| {
        let x = Tensor::randn(&[1_000_003], 1, dtype, device)?;
        Ok(vec![x.sum()?, x.mean()?, x.max()?])
    }),
    ("sums of long columns", |device, dtype| {
        let x = Tensor::randn(&[9001, 33], 1, dtype, device)?;
        Ok(vec![x.sum_dims(&[0])?, x.mean_dims(&[0])?, x.max_dims(&[0])?])
    }),
    ("softmax of long rows", |device, dtype| {
        let x = Tensor::randn(&[7, 50_001], 1, dtype, device)?.tracked();
        let y = x.softmax(1)?;
        let grads = y.backward_from(&Tensor::randn(&[7, 50_001], 2, dtype, device)?)?;
        Ok(vec![y.clone(), grads.of(&x)?.clone()])
    }),
];

fn bits(tensors: &[Tensor]) -> Vec<Vec<u64>> {
    tensors.iter().map(|x| array(x).data.iter().map(|x| x.to_bits()).collect()).collect()
}

/// Leave memory that is no number in the pool: eight buffers of every size up to 4 MiB. All are
/// held at once, so that none makes room for another.
fn poison(device: &Device) -> Result<()> {
    let sizes = (6..20).flat_map(|log| (8..16).map(move |eighths| eighths << (log - 3)));
    let words = sizes.flat_map(|words: usize| [words; 8]);
    let poisoned: Result<Vec<_>> =
        words.map(|words| Tensor::full(&[words], f64::NAN, DType::F32, device)).collect();
    poisoned.map(drop)
}

#[test]
fn the_same_bits_every_time() -> Result<()> {
    let Some(gpu) = fresh() else { return Ok(()) };
    let device = Device::Gpu(gpu.clone());
    let anew = Device::Gpu(fresh().expect("not skipped"));
    for dtype in floats(&gpu) {
        for (name, compute) in COMPUTATIONS {
            let want = bits(&compute(&device, dtype)?);
            assert!(bits(&compute(&device, dtype)?) == want, "{name} in {dtype}: a second run");
            assert!(bits(&compute(&anew, dtype)?) == want, "{name} in {dtype}: opened anew");
            poison(&device)?;
            let before = gpu.work().allocations;
            assert!(bits(&compute(&device, dtype)?) == want, "{name} in {dtype}: stale memory");
            assert_eq!(gpu.work().allocations, before, "{name} in {dtype}: memory was not stale");
        }
    }
    Ok(())
}

/// Sums of whole numbers are exact in any order: equal to those of the CPU, all the same.
#[test]
fn sums_in_several_launches_miss_nothing() -> Result<()> {
    let Some(gpu) = fresh() else { return Ok(()) };
    // From -2 to 2.
    let whole = |shape: &[usize], seed: u32, device: &Device| -> Result<Tensor> {
        let len: usize = shape.iter().product();
        let value =
            |i: usize| ((i as u32 + seed).wrapping_mul(2_654_435_761) >> 20) as f32 % 5.0 - 2.0;
        Tensor::new(&(0..len).map(value).collect::<Vec<_>>(), shape, device)
    };
    let there = Device::Gpu(gpu);
    for [m, k, n] in [[8192, 64, 64], [5001, 33, 70], [1100, 130, 9], [70_001, 3, 5]] {
        let run = |device: &Device| -> Result<Vec<Vec<f64>>> {
            let (x, w) =
                (whole(&[m, k], 0, device)?.tracked(), whole(&[k, n], 7, device)?.tracked());
            let bias = whole(&[n], 3, device)?.tracked();
            let y = linear(&x, &w, Some(&bias), Activation::Relu)?;
            let grads = y.backward_from(&whole(&[m, n], 11, device)?)?;
            let results = [&y, grads.of(&x)?, grads.of(&w)?, grads.of(&bias)?];
            Ok(results.map(|x| array(x).data).to_vec())
        };
        assert!(run(&there)? == run(&Device::Cpu)?, "linear [{m}, {k}]·[{k}, {n}]");
    }
    for (shape, dims) in [
        (&[3_000_001][..], &[0][..]),
        (&[3, 200_001], &[1]),
        (&[70_001, 5], &[0]),
        (&[2, 5000, 3], &[1]),
        (&[500, 7, 300], &[0, 2]),
    ] {
        let run = |device: &Device| -> Result<Vec<f64>> {
            Ok(array(&whole(shape, 0, device)?.sum_dims(dims)?).data)
        };
        assert_eq!(run(&there)?, run(&Device::Cpu)?, "sums of {shape:?} over {dims:?}");
    }
    Ok(())
}
