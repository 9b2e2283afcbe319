//! The scan of Mamba-2 against the naive recurrence, and against the selective scan.

use taipan::check::cases::ssd::{self as cases, full};
use taipan::check::{check, devices};
use taipan::{DType, Device, Result, Scan, Ssd, StepSize, Tensor, selective_scan, ssd};

use crate::naive;

fn check_ssd(sizes: cases::Sizes, form: naive::Ssd) {
    check(&cases::scan(sizes, form));
}

#[test]
fn with_and_without_optional_tensors() {
    for form in [
        full(),
        naive::Ssd::default(),
        naive::Ssd { own_scale: false, ..full() },
        naive::Ssd { scale: true, ..Default::default() },
        naive::Ssd { own_scale: true, ..Default::default() },
        naive::Ssd { d: true, ..Default::default() },
        naive::Ssd { initial_state: true, ..Default::default() },
    ] {
        check_ssd([2, 19, 1, 4, 3, 2, 5], form);
    }
}

/// Around multiples of the chunk, and 0.
#[test]
fn any_length() {
    for l in [0, 1, 2, 63, 64, 65, 130] {
        check_ssd([1, l, 1, 2, 3, 1, 4], full());
    }
}

/// Around multiples of the tiles of products.
#[test]
fn any_width() {
    for (p, n) in [(1, 1), (1, 65), (64, 3), (65, 16), (33, 128)] {
        check_ssd([1, 9, 1, 1, p, 1, n], full());
    }
}

#[test]
fn any_number_of_sequences_heads_and_groups() {
    for (b, h, g) in [(0, 1, 1), (3, 1, 1), (1, 6, 1), (1, 6, 2), (2, 6, 6)] {
        check_ssd([b, 7, 1, h, 2, g, 3], full());
    }
}

/// Ranks that divide a chunk and that do not.
#[test]
fn ranks() {
    for (l, r) in [(1, 2), (37, 2), (17, 4), (22, 3), (43, 3), (2, 64)] {
        check_ssd([1, l, r, 2, 3, 1, 4], full());
    }
}

/// Sequences start at the first step, at neighbouring steps, and at the bounds of chunks.
#[test]
fn packed_sequences() {
    for (l, r) in [(70, 1), (140, 1), (40, 2)] {
        let mut seq_start = vec![0; 2 * l];
        for t in [0, 3, 4, l / 2, 63, l + 5, l + 16, 2 * l - 1] {
            seq_start[t] = 1 + t as u32;
        }
        check_ssd([2, l, r, 2, 2, 1, 3], naive::Ssd { seq_start: Some(seq_start), ..full() });
    }
}

/// One decay for all channels and states: the selective scan computes the same.
#[test]
fn agrees_with_the_selective_scan() -> Result<()> {
    let (b, l, h, p, n) = (2, 150, 3, 4, 8);
    for device in devices() {
        let random = |shape: &[usize], seed| Tensor::randn(shape, seed, DType::F32, &device);
        let x = random(&[b, l, h, p], 1)?;
        let dt = Tensor::rand(&[b, l, h], 2, DType::F32, &device)?;
        let (k, q) = (random(&[b, l, 1, n], 3)?, random(&[b, l, 1, n], 4)?);
        let (y, state) = ssd(&Ssd { scale: Some(&dt), ..Ssd::new(&x, &dt.scale(-1.0)?, &k, &q) })?;
        let ones = Tensor::ones(&[b, l, h, p], DType::F32, &device)?;
        let delta = ones.mul(&dt.reshape(&[b, l, h, 1])?)?.reshape(&[b, l, h * p])?;
        let a_log = Tensor::zeros(&[h * p, n], DType::F32, &device)?;
        let (u, k, q) =
            (x.reshape(&[b, l, h * p])?, k.reshape(&[b, l, n])?, q.reshape(&[b, l, n])?);
        let scan = Scan { step: StepSize::Plain, ..Scan::new(&u, &delta, &a_log, &k, &q) };
        let (expected, expected_state) = selective_scan(&scan)?;
        for (found, expected) in [(y, expected), (state, expected_state)] {
            let (found, expected) =
                (found.read_blocking::<f32>()?, expected.read_blocking::<f32>()?);
            let largest = expected.iter().fold(0f32, |max, x| max.max(x.abs()));
            for (found, expected) in found.iter().zip(&expected) {
                assert!((found - expected).abs() <= 1e-5 * largest, "{found} {expected}");
            }
        }
    }
    Ok(())
}

#[test]
fn errors() -> Result<()> {
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Device::Cpu);
    let (x, a) = (zeros(&[2, 5, 4, 3])?, zeros(&[2, 5, 4])?);
    let message =
        |x: &Tensor, a: &Tensor, k: &Tensor| ssd(&Ssd::new(x, a, k, k)).unwrap_err().to_string();
    let k = zeros(&[2, 5, 3, 8])?;
    assert_eq!(message(&x, &a, &k), "ssd: 4 heads and 3 groups, expected a multiple of the groups");
    let k = zeros(&[2, 6, 2, 8])?;
    assert_eq!(message(&x, &a, &k), "ssd: k is [2, 6, 2, 8], expected [2, 5, 2, 8]");
    let k = zeros(&[2, 5, 2, 8])?;
    assert_eq!(message(&x, &zeros(&[2, 5])?, &k), "ssd: a is [2, 5], expected [2, 5, 4]");
    let half = x.cast(DType::F16)?;
    assert_eq!(message(&half, &a, &k), "ssd: k is f32, expected f16");
    Ok(())
}
