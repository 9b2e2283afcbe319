//! Tokens drawn from logits.

use taipan::check::{Array, FLOATS, Random, Values, array, devices, input_of, round, tensor};
use taipan::{DType, Device, Result, Sampling, Tensor};

use crate::naive;

fn tokens(logits: &Tensor, sampling: &Sampling) -> Result<Vec<u32>> {
    let tokens = logits.sample(sampling)?;
    assert_eq!(tokens.dtype(), DType::U32);
    assert_eq!(tokens.shape(), &logits.shape()[..logits.rank() - 1]);
    assert!(!tokens.is_tracked());
    tokens.read_blocking::<u32>()
}

/// Those that are drawn at all, in their order.
fn distinct_tokens(logits: &Tensor, sampling: &Sampling) -> Result<Vec<u32>> {
    let mut tokens = tokens(logits, sampling)?;
    tokens.sort_unstable();
    tokens.dedup();
    Ok(tokens)
}

fn random(name: &str, shape: &[usize]) -> Array {
    Random::named(name).draw(&input_of(shape, Values::Between(-4.0, 4.0)))
}

/// Where a case runs.
fn places() -> Vec<(Device, DType)> {
    let of = |device: &Device| {
        let types = FLOATS.into_iter().filter(|&dtype| device.supports(dtype));
        types.map(|dtype| (device.clone(), dtype)).collect::<Vec<_>>()
    };
    devices().iter().flat_map(of).collect()
}

/// Every device and type draws what the naive version in f64 does, but for so many tokens.
fn expect_naive(x: &Array, sampling: &Sampling, most: usize) -> Result<()> {
    let want = naive::sample(x, sampling);
    for (device, dtype) in places() {
        let got = tokens(&tensor(x, dtype, &device), sampling)?;
        let differ = got.iter().zip(&want).filter(|(got, want)| got != want).count();
        let name = format!("{sampling:?} of {:?} on {} in {dtype}", x.shape, device.name());
        assert!(differ <= most, "{name}: {differ} tokens differ");
    }
    Ok(())
}

/// Every device and type draws what the naive version in f64 does, from what the type can hold.
/// Where two scores almost agree, either may be drawn: of 2000 rows, one at most.
#[test]
fn the_same_tokens_everywhere() -> Result<()> {
    let shapes: [(&[usize], u64); 4] =
        [(&[2000, 40], 0), (&[2000, 513], 1 << 40), (&[2, 3, 33], 5), (&[9], 6)];
    for (shape, step) in shapes {
        let x = random("the same tokens", shape).map(|x| round(round(x, DType::BF16), DType::F16));
        let n = *shape.last().unwrap();
        for top_k in [None, Some(1), Some(7), Some(n), Some(usize::MAX)] {
            let sampling =
                Sampling { temperature: 0.8, top_k, seed: !7, step, ..Sampling::default() };
            expect_naive(&x, &sampling, shape[0] / 2000)?;
        }
    }
    Ok(())
}

/// The same with the unlikely tokens left out. A threshold is a sum, so that rounding may move it by
/// a token where two sums almost agree.
#[test]
fn unlikely_tokens_are_left_out_everywhere() -> Result<()> {
    for (shape, step) in [(&[500, 40][..], 1), (&[500, 513], 2), (&[2, 3, 33], 3), (&[9], 4)] {
        let x = random("unlikely", shape).map(|x| round(round(x, DType::BF16), DType::F16));
        for (top_p, min_p, top_k) in [
            (0.9, 0.0, None),
            (0.3, 0.0, None),
            (1e-9, 0.0, None),
            (1.0, 0.05, None),
            (1.0, 1.0, None),
            (0.8, 0.1, None),
            (0.5, 0.0, Some(8)),
        ] {
            let sampling = Sampling { temperature: 1.5, top_k, top_p, min_p, seed: 5, step };
            expect_naive(&x, &sampling, shape[0] / 500)?;
        }
    }
    Ok(())
}

/// Logits whose probabilities are known, and the tokens that may be drawn.
#[test]
fn the_nucleus_is_as_small_as_possible() -> Result<()> {
    let shares = [0.1f64, 0.4, 0.2, 0.2, 0.05, 0.05];
    let cases: [(f64, f64, &[u32]); 8] = [
        (0.39, 0.0, &[1]),
        // Equally probable tokens stay together.
        (0.41, 0.0, &[1, 2, 3]),
        (0.79, 0.0, &[1, 2, 3]),
        (0.85, 0.0, &[0, 1, 2, 3]),
        (0.95, 0.0, &[0, 1, 2, 3, 4, 5]),
        (1.0, 0.49, &[1, 2, 3]),
        (1.0, 0.2, &[0, 1, 2, 3]),
        (0.79, 0.6, &[1]),
    ];
    for device in &devices() {
        let x = Array::from_fn(&[4000, 6], |i| shares[i[1]].ln() + 3.0);
        let x = tensor(&x, DType::F32, device);
        for (top_p, min_p, allowed) in cases {
            let sampling = Sampling { top_p, min_p, ..Sampling::default() };
            let got = distinct_tokens(&x, &sampling)?;
            assert_eq!(got, allowed, "{sampling:?} on {}", device.name());
        }
    }
    Ok(())
}

#[test]
fn tokens_that_were_there_before() -> Result<()> {
    let logits = [2.0, -3.0, 0.0, 5.0, f64::NEG_INFINITY, f64::INFINITY, 0.5, -0.25];
    // The second row has one token, and the same twice.
    let seen = [[0u32, 1, 2, 4, 5], [7, 7, u32::MAX, 8, u32::MAX]];
    let expected = [
        [1.0, -6.0, 0.0, 5.0, f64::NEG_INFINITY, f64::INFINITY, 0.5, -0.25],
        [2.0, -3.0, 0.0, 5.0, f64::NEG_INFINITY, f64::INFINITY, 0.5, -0.5],
    ];
    for (device, dtype) in places() {
        let x = tensor(&Array::from_fn(&[2, 1, 8], |i| logits[i[2]]), dtype, &device);
        let seen = Tensor::new(&seen.concat(), &[2, 1, 5], &device)?;
        let found = array(&x.repetition_penalty(&seen, 2.0)?);
        assert_eq!(found.data, expected.concat(), "{} in {dtype}", device.name());
        assert_eq!(array(&x).data, [logits; 2].concat(), "the input is unchanged");
    }
    Ok(())
}

/// A whole vocabulary, in more than one block.
#[test]
fn a_vocabulary() -> Result<()> {
    let x = random("a vocabulary", &[6, 50_280]).map(|x| round(x, DType::F16));
    for (top_k, top_p) in [(None, 1.0), (Some(50), 1.0), (Some(2000), 1.0), (None, 0.6)] {
        let sampling = Sampling { top_k, top_p, seed: 3, ..Sampling::default() };
        let want = naive::sample(&x, &sampling);
        for (device, dtype) in places().into_iter().filter(|(_, dtype)| *dtype != DType::BF16) {
            let got = tokens(&tensor(&x, dtype, &device), &sampling)?;
            assert_eq!(got, want, "{sampling:?} on {} in {dtype}", device.name());
        }
    }
    Ok(())
}

/// χ² of 100 000 draws against the probabilities, with 5 degrees of freedom and fewer.
#[test]
fn draws_have_the_probabilities_of_softmax() -> Result<()> {
    const DRAWS: usize = 100_000;
    let logits: [f64; 6] = [0.5, -1.0, 2.0, 0.0, 1.5, -3.0];
    let x = Array::from_fn(&[DRAWS, 6], |i| logits[i[1]]);
    for device in &devices() {
        let x = tensor(&x, DType::F32, device);
        for (temperature, top_k) in
            [(1.0, None), (0.5, None), (3.0, None), (1.0, Some(3)), (2.0, Some(2))]
        {
            let sampling =
                Sampling { temperature, top_k, seed: 11, step: 2, ..Sampling::default() };
            // The k largest of these are those above a bound.
            let mut sorted = logits;
            sorted.sort_by(|a, b| b.total_cmp(a));
            let bound = sorted[top_k.unwrap_or(6) - 1];
            let weight = |x: f64| if x < bound { 0.0 } else { (x / temperature).exp() };
            let total: f64 = logits.iter().map(|&x| weight(x)).sum();
            let mut counts = [0.0; 6];
            tokens(&x, &sampling)?.into_iter().for_each(|token| counts[token as usize] += 1.0);
            let mut chi_square = 0.0;
            for (&x, count) in logits.iter().zip(counts) {
                let expected = DRAWS as f64 * weight(x) / total;
                if expected == 0.0 {
                    assert_eq!(count, 0.0, "{sampling:?}: one of those that do not take part");
                } else {
                    chi_square += (count - expected).powi(2) / expected;
                }
            }
            // 1 of 1000 seeds would exceed this with 5 degrees of freedom.
            let name = device.name();
            assert!(chi_square < 20.5, "{sampling:?} on {name}: {chi_square}, {counts:?}");
        }
    }
    Ok(())
}

/// Small probabilities keep their size: a token of 1e-4 among others, drawn a million times.
#[test]
fn rare_tokens() -> Result<()> {
    let logits = [0.0, -9.2103404]; // e^-9.21… = 1e-4
    let x = Array::from_fn(&[1_000_000, 2], |i| logits[i[1]]);
    let x = tensor(&x, DType::F32, &Device::Cpu);
    let drawn: u32 = tokens(&x, &Sampling::default())?.iter().sum();
    // Poisson with mean 100: within four standard deviations.
    assert!((60..140).contains(&drawn), "{drawn}");
    Ok(())
}

/// Rows, steps and seeds have noise of their own: 64 equal logits agree by chance only.
#[test]
fn rows_steps_and_seeds_are_independent() -> Result<()> {
    for device in &devices() {
        let x = Tensor::zeros(&[1000, 64], DType::F32, device)?;
        let draw = |seed, step| tokens(&x, &Sampling { seed, step, ..Sampling::default() });
        let first = draw(1, 0)?;
        assert_eq!(first, draw(1, 0)?, "the same seed and step");
        let others =
            [draw(1, 1)?, draw(2, 0)?, draw(1 + (1 << 32), 0)?, draw(1, 1 << 32)?, draw(0, 1)?];
        let shifted = first.iter().skip(1).chain(&first[..1]).copied().collect();
        for other in others.into_iter().chain([shifted]) {
            let agree = first.iter().zip(&other).filter(|(a, b)| a == b).count();
            // 1000/64 = 16, with a standard deviation of 4.
            assert!(agree < 36, "{agree} tokens agree on {}", device.name());
        }
    }
    Ok(())
}

#[test]
fn temperature_0_is_argmax_and_so_is_almost_0() -> Result<()> {
    let x = random("greedy", &[50, 600]);
    for (device, dtype) in places() {
        let x = tensor(&x.map(|x| round(x, dtype)), dtype, &device);
        for temperature in [0.0, 1e-30, f64::MIN_POSITIVE] {
            for top_k in [None, Some(3)] {
                // Equal logits: argmax takes the first, a draw any of them.
                let sampling = Sampling { temperature, top_k, ..Sampling::default() };
                let (got, want) = (x.sample(&sampling)?, x.argmax(1)?);
                let values = |tokens: &Tensor| -> Vec<f64> {
                    let (x, tokens) = (array(&x), array(tokens).data);
                    tokens.iter().enumerate().map(|(i, &t)| x.at(&[i, t as usize])).collect()
                };
                assert_eq!(values(&got), values(&want), "{sampling:?} {dtype}");
                if temperature == 0.0 {
                    assert_eq!(array(&got), array(&want), "{dtype}");
                }
            }
        }
    }
    Ok(())
}

/// Logits, the temperature, and the tokens that may be drawn.
#[test]
fn extreme_logits() -> Result<()> {
    const INF: f64 = f64::INFINITY;
    const NAN: f64 = f64::NAN;
    let cases: [(&[f64], f64, &[u32]); 10] = [
        (&[-INF, 1.0, -INF, 1.0], 1.0, &[1, 3]),
        (&[-INF, -6e4, -INF], 1.0, &[1]),
        (&[-INF, 0.0, -INF], 1e300, &[1]),
        (&[-INF, -INF, -INF], 1.0, &[0]),
        (&[1.0, INF, 3.0, INF], 1.0, &[1]),
        (&[1.0, INF, NAN, 2.0, NAN], 1.0, &[2]),
        (&[NAN, NAN], 1.0, &[0]),
        (&[6e4, -6e4, 6e4], 1e-3, &[0, 2]),
        (&[6e4, -6e4], 1e300, &[0, 1]),
        // A common offset is none: the others are 60 below.
        (&[6e4, 6e4 - 64.0, 6e4 - 64.0], 1.0, &[0]),
    ];
    for (device, dtype) in places() {
        for (logits, temperature, allowed) in cases {
            if dtype == DType::BF16 && logits.contains(&(6e4 - 64.0)) {
                continue; // its numbers are too far apart
            }
            let x = Array::from_fn(&[400, logits.len()], |i| round(logits[i[1]], dtype));
            let sampling = Sampling { temperature, ..Sampling::default() };
            let got = distinct_tokens(&tensor(&x, dtype, &device), &sampling)?;
            assert_eq!(got, allowed, "{logits:?} at {temperature} on {} in {dtype}", device.name());
        }
    }
    Ok(())
}

#[test]
fn no_rows() -> Result<()> {
    for device in &devices() {
        for (top_k, top_p) in [(None, 1.0), (Some(2), 1.0), (None, 0.5)] {
            let sampling = Sampling { top_k, top_p, ..Sampling::default() };
            let x = Tensor::zeros(&[2, 0, 5], DType::F32, device)?;
            assert_eq!(x.sample(&sampling)?.shape(), [2, 0]);
        }
        assert_eq!(
            tokens(&Tensor::zeros(&[3, 1], DType::F32, device)?, &Sampling::default())?,
            [0; 3]
        );
    }
    Ok(())
}
