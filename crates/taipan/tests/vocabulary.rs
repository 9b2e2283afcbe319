//! How much memory the loss of a large vocabulary takes, counted by the allocator itself. In a
//! process of its own: what other tests leave in the pool would not be counted.

#[path = "harness/allocator.rs"]
mod allocator;

use allocator::usage;
use taipan::{DType, Device, Tensor, Weight, linear_cross_entropy};

/// Tokens of a batch, and the vocabulary of a published model: the logits would be 412 MB.
const TOKENS: usize = 2048;
const V: usize = 50_280;
/// Fewer channels than the 768 of the model, to be quick.
const K: usize = 16;

/// The pool rounds sizes up by at most an eighth.
fn rounded(bytes: usize) -> usize {
    bytes + bytes / 8
}

/// Beside inputs, result and gradients, at most 64 MB are used at a time. What more channels would
/// take is subtracted from the bound: for `dx` twice the size of `x`, for `Weight::kn` a block of
/// `dw` in its own type, and for the products blocks of 6 MiB, of which few channels do not need
/// all.
#[test]
fn logits_are_never_materialised() {
    let ids: Vec<u32> = (0..TOKENS as u32).map(|i| i * 7919 % V as u32).collect();
    let targets = Tensor::new(&ids, &[TOKENS], &Device::Cpu).unwrap();
    let more = rounded((768 - K) * 4 * (2 * TOKENS + 1024)) + (7 << 20);
    let bound = 64_000_000 - more;
    for (dtype, form) in [(DType::F32, [V, K]), (DType::BF16, [V, K]), (DType::F32, [K, V])] {
        let randn =
            |shape: &[usize]| Tensor::randn(shape, 1, dtype, &Device::Cpu).unwrap().tracked();
        let (x, w) = (randn(&[TOKENS, K]), randn(&form));
        let weight = if form == [V, K] { Weight::nk(&w) } else { Weight::kn(&w) };
        let step = || linear_cross_entropy(&x, weight, &targets, None).unwrap().backward().unwrap();
        let (grads, usage) = usage(step);
        let results = rounded((TOKENS + V) * K * dtype.size());
        assert!(usage.peak <= bound + results, "{dtype} {form:?}: {usage:?}, bound {bound}");
        drop(grads);
    }
}
