//! Attention against a naive softmax.

use taipan::check::cases::attention as cases;
use taipan::check::{array, check, devices};
use taipan::{Attention, DType, Device, Result, Tensor, attention, concat};

use crate::naive;

fn check_attention(sizes: cases::Sizes, form: naive::Attention) {
    check(&cases::attention(sizes, form));
}

/// Around multiples of blocks and tiles, and 0. For a single key everything but `dv` is 0.
#[test]
fn any_length() {
    for l in [0, 2, 31, 33, 64, 65, 97, 200] {
        check_attention([1, l, l, 1, 1, 4], naive::Attention::default());
    }
}

#[test]
fn any_width() {
    for d in [1, 3, 16, 17, 64, 65, 130] {
        check_attention([1, 9, 9, 1, 1, d], naive::Attention::default());
    }
}

#[test]
fn any_number_of_sequences_and_heads() {
    for (b, hq, hk) in [(0, 1, 1), (3, 1, 1), (1, 6, 6), (2, 6, 2), (1, 6, 1)] {
        check_attention([b, 20, 20, hq, hk, 3], naive::Attention::default());
    }
    // Tasks of several blocks of rows, and of several tasks for a head.
    check_attention([1, 110, 110, 4, 2, 8], naive::Attention::default());
}

/// Queries behind the keys of earlier steps, in a cache that is full or not.
#[test]
fn queries_at_a_position() {
    for (l, s, position) in
        [(1, 5, None), (1, 150, None), (3, 9, Some(4)), (70, 190, Some(101)), (40, 50, Some(0))]
    {
        let form = naive::Attention { position, ..Default::default() };
        check_attention([2, l, s, 4, 2, 5], form);
    }
}

#[test]
fn scales() {
    for scale in [0.0, -0.5, 1.5] {
        let form = naive::Attention { scale: Some(scale), ..Default::default() };
        check_attention([1, 12, 12, 1, 1, 4], form);
    }
}

/// Sequences start at the first key, at neighbouring ones, and at the bounds of blocks.
#[test]
fn packed_sequences() {
    for (l, s) in [(70, 70), (210, 210), (40, 120), (1, 40)] {
        let mut seq_start = vec![0; 2 * s];
        for j in [0, 3, 4, s / 2, s - 2, s + 5, s + 32, 2 * s - 1] {
            seq_start[j] = 1 + j as u32;
        }
        let form = naive::Attention { seq_start: Some(seq_start), ..Default::default() };
        check_attention([2, l, s, 2, 1, 3], form);
    }
}

/// Products of thousands: exponentials of differences to the largest do not overflow.
#[test]
fn large_products() -> Result<()> {
    for device in devices() {
        let q = Tensor::full(&[1, 100, 1, 1], 300.0, DType::F32, &device)?;
        let k: Vec<f32> = (0..100).map(|j| j as f32 - 50.0).collect();
        let k = Tensor::new(&k, &[1, 100, 1, 1], &device)?;
        let o = attention(&Attention { scale: Some(1.0), ..Attention::new(&q, &k, &k) })?;
        // The last key, which is the largest, has all the weight.
        assert_eq!(array(&o).data, array(&k).data, "{}", device.name());
    }
    Ok(())
}

/// What is behind the last query is not read.
#[test]
fn free_part_of_a_cache() -> Result<()> {
    for device in devices() {
        let random = |l, seed| Tensor::randn(&[1, l, 2, 8], seed, DType::F32, &device);
        let (q, k, v) = (random(3, 1)?, random(9, 2)?, random(9, 3)?);
        let free = Tensor::full(&[1, 11, 2, 8], f64::NAN, DType::F32, &device)?;
        let (longer_k, longer_v) = (concat(&[&k, &free], 1)?, concat(&[&v, &free], 1)?);
        let expected = attention(&Attention::new(&q, &k, &v))?;
        let position = Some(6);
        let inputs = Attention { position, ..Attention::new(&q, &longer_k, &longer_v) };
        assert_eq!(array(&attention(&inputs)?).data, array(&expected).data, "{}", device.name());
    }
    Ok(())
}

#[test]
fn errors() -> Result<()> {
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Device::Cpu);
    let message = |q: &[usize], k: &[usize], v: &[usize]| -> Result<String> {
        let (q, k, v) = (zeros(q)?, zeros(k)?, zeros(v)?);
        Ok(attention(&Attention::new(&q, &k, &v)).unwrap_err().to_string())
    };
    let (q, k) = ([2, 5, 4, 8], [2, 7, 2, 8]);
    assert_eq!(message(&q[..3], &k, &k)?, "attention: q is [2, 5, 4], expected [b, l, hq, d]");
    assert_eq!(
        message(&q, &[2, 7, 2, 6], &k)?,
        "attention: k is [2, 7, 2, 6], expected [2, s, hk, 8]"
    );
    assert_eq!(
        message(&q, &k, &[2, 6, 2, 8])?,
        "attention: v is [2, 6, 2, 8], expected [2, 7, 2, 8]"
    );
    assert_eq!(
        message(&q, &[2, 7, 3, 8], &[2, 7, 3, 8])?,
        "attention: 4 query heads and 3 key heads, expected a multiple of the key heads"
    );
    assert_eq!(
        message(&q, &[2, 4, 2, 8], &[2, 4, 2, 8])?,
        "attention: 5 queries from position 0 on, expected at most 4 keys"
    );
    Ok(())
}
