//! The memory of a linear layer, counted by the allocator.
//!
//! Buffers that are dropped wait in a pool for the next one of their size: what a step needs is
//! seen in what it takes from the allocator, and what it gave back in what the next one does not.

#[path = "harness/allocator.rs"]
mod allocator;

use std::sync::{Mutex, MutexGuard, PoisonError};

use allocator::usage;
use taipan::{Activation, DType, Device, Result, Tensor, linear, linear_recomputing};

/// One test at a time: the counters belong to the process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The pool rounds sizes up by at most an eighth.
fn rounded(bytes: usize) -> usize {
    bytes + bytes / 8
}

fn randn(shape: &[usize], dtype: DType) -> Tensor {
    Tensor::randn(shape, 1, dtype, &Device::Cpu).unwrap()
}

/// The most that the product of `[m, k]` and `[k, n]` may use beside its result: a block of the
/// right side, at most 6 MiB; for each thread one of the left, at most 288 KiB, and as much to
/// read it through; for halves also sums, at most 1024 by 1024.
fn scratch(m: usize, k: usize, n: usize, dtype: DType) -> usize {
    let acc = if dtype == DType::F64 { 8 } else { 4 };
    let right = (n * k * acc).min(6 << 20);
    let left = (m * k * acc).min(288 << 10);
    let sums = if dtype.size() < 4 { acc * m.min(1024) * n.min(1024) } else { 0 };
    rounded(right + sums + rayon::current_num_threads() * 2 * left)
}

/// Raise the peak of the pool, so that it keeps all buffers that the following work drops.
fn make_room() {
    drop((0..16).map(|_| randn(&[4096, 512], DType::F32)).collect::<Vec<_>>());
}

const M: usize = 512;
const K: usize = 300;
const N: usize = 700;

/// No intermediate the size of the result, no converted or transposed copy of an operand.
#[test]
fn forward_takes_its_result_and_a_block() {
    let _alone = alone();
    for dtype in [DType::F32, DType::BF16] {
        let (x, w, bias) = (randn(&[M, K], dtype), randn(&[K, N], dtype), randn(&[N], dtype));
        let (y, usage) = usage(|| linear(&x, &w, Some(&bias), Activation::Gelu).unwrap());
        let result = rounded(M * N * dtype.size());
        let bound = result + scratch(M, K, N, dtype);
        assert!(usage.peak <= bound, "{dtype}: {usage:?}, expected at most {bound}");
        drop(y);
    }
}

/// `pre` is saved for Gelu; besides it, backward allocates the gradients and blocks.
#[test]
fn backward_takes_its_results_and_blocks() {
    let _alone = alone();
    for dtype in [DType::F32, DType::BF16] {
        let size = dtype.size();
        let leaves = [&[M, K][..], &[K, N], &[N]].map(|shape| randn(shape, dtype).tracked());
        let [x, w, bias] = &leaves;
        let dy = randn(&[M, N], dtype);
        let forward = || linear(x, w, Some(bias), Activation::Gelu).unwrap();
        let (y, forward) = usage(forward);
        let bound = 2 * rounded(M * N * size) + scratch(M, K, N, dtype);
        assert!(forward.peak <= bound, "{dtype} forward: {forward:?}, at most {bound}");
        let (grads, backward) = usage(|| y.backward_from(&dy).unwrap());
        let results = rounded((M * K + K * N + N) * size);
        let bound = results + scratch(M, N, K, dtype).max(scratch(K, M, N, dtype));
        assert!(backward.peak <= bound, "{dtype} backward: {backward:?}, at most {bound}");
        drop(grads);
    }
}

/// How many new `[m, n]` buffers of f32 are taken when `count` are wanted.
fn new_buffers(m: usize, n: usize, count: usize) -> usize {
    let make = || Tensor::zeros(&[m, n], DType::F32, &Device::Cpu).unwrap();
    let (buffers, usage) = usage(|| (0..count).map(|_| make()).collect::<Vec<_>>());
    drop(buffers);
    let one = m * n * 4;
    assert!(usage.taken % one < one / 4, "{usage:?}");
    usage.taken / one
}

/// What a layer of `[m, k]` to `[m, n]` saves for backward besides its inputs: how many `[m, n]`
/// buffers it takes, and how many of them come back when its result is dropped but its graph not.
fn taken_and_released(activation: Activation, m: usize) -> Result<(usize, usize)> {
    const K: usize = 8;
    const N: usize = 512;
    let x = randn(&[m, K], DType::F32).tracked();
    let w = randn(&[K, N], DType::F32).tracked();
    let (y, usage) = usage(|| linear(&x, &w, None, activation).unwrap());
    let one = m * N * 4;
    // The blocks of the product are smaller than a result, and in the pool or not.
    let taken = (usage.taken + one / 2) / one;
    let loss = y.sum()?; // saves nothing of y
    drop(y);
    let released = 4 - new_buffers(m, N, 4);
    loss.backward()?;
    Ok((taken, released))
}

/// Each has its own size, so that no other test leaves its buffers in the pool.
#[test]
fn only_what_backward_reads_is_saved() -> Result<()> {
    let _alone = alone();
    make_room();
    let taken = |activation, m| taken_and_released(activation, m).unwrap();
    assert_eq!(taken(Activation::None, 1600), (1, 1), "nothing");
    assert_eq!(taken(Activation::Relu, 2176), (1, 0), "the result");
    assert_eq!(taken(Activation::Sigmoid, 2432), (1, 0), "the result");
    assert_eq!(taken(Activation::Tanh, 2688), (1, 0), "the result");
    assert_eq!(taken(Activation::Gelu, 2944), (2, 1), "pre, not the result");
    assert_eq!(taken(Activation::GeluErf, 3200), (2, 1), "pre, not the result");
    assert_eq!(taken(Activation::Silu, 3456), (2, 1), "pre, not the result");
    Ok(())
}

/// Without a gradient to compute, nothing is saved: `pre` is not even computed.
#[test]
fn untracked_saves_nothing() {
    let _alone = alone();
    make_room();
    let (x, w) = (randn(&[1700, 8], DType::F32), randn(&[8, 513], DType::F32));
    let (y, usage) = usage(|| linear(&x, &w, None, Activation::Gelu).unwrap());
    assert!(usage.taken < rounded(4 * 1700 * 513) + (1 << 20), "{usage:?}");
    drop(y);
    let tracked = w.tracked();
    let no_grad = || taipan::no_grad(|| linear(&x, &tracked, None, Activation::Gelu).unwrap());
    let (y, usage) = allocator::usage(no_grad);
    assert!(usage.taken < 1 << 20, "the pool has the result's buffer: {usage:?}");
    drop(y);
}

/// Recomputing saves nothing of the result's size: neither `pre` nor the result.
#[test]
fn recomputing_saves_the_inputs_only() -> Result<()> {
    let _alone = alone();
    make_room();
    for (activation, m) in [(Activation::Gelu, 3712), (Activation::Tanh, 3968)] {
        let (x, w) = (randn(&[m, 8], DType::F32).tracked(), randn(&[8, 513], DType::F32));
        let y = linear_recomputing(&x, &w, None, activation)?;
        let z = y.neg()?; // holds the graph, not the result
        drop(y);
        assert_eq!(new_buffers(m, 513, 1), 0, "{activation:?}: the result's buffer is free");
        drop(z);
    }
    Ok(())
}

/// What a used graph saved is freed while its result still lives.
#[test]
fn backward_frees_what_was_saved() -> Result<()> {
    let _alone = alone();
    make_room();
    let x = randn(&[1234, 8], DType::F32).tracked();
    let w = randn(&[8, 777], DType::F32);
    let y = linear(&x, &w, None, Activation::Gelu)?;
    let dy = randn(&[1234, 777], DType::F32);
    assert_eq!(new_buffers(1234, 777, 1), 1, "pre is in use");
    let grads = y.backward_from(&dy)?;
    assert_eq!(new_buffers(1234, 777, 2), 0, "pre and the buffer made above are free");
    drop((y, grads));
    Ok(())
}
