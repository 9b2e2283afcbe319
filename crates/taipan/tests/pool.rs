//! Dropped buffers are reused for the next ones of their size, and the pool holds little more than
//! the peak of buffers in use.

#[path = "harness/allocator.rs"]
mod allocator;

use allocator::{live, usage};
use taipan::{Activation, DType, Device, Tensor, linear};

/// One test, because the pool belongs to the process; from small to large, because it remembers
/// the most that was in use.
#[test]
fn the_pool() {
    a_step_finds_its_buffers(DType::F32);
    a_step_finds_its_buffers(DType::BF16);
    sizes_do_not_pile_up();
    a_failed_allocation_changes_nothing();
}

fn randn(shape: &[usize], dtype: DType) -> Tensor {
    Tensor::randn(shape, 1, dtype, &Device::Cpu).unwrap()
}

/// From the second step on, a training loop takes nothing from the allocator.
fn a_step_finds_its_buffers(dtype: DType) {
    let leaves = [&[512, 300][..], &[300, 700], &[700]].map(|s| randn(s, dtype).tracked());
    let [x, w, bias] = &leaves;
    let dy = randn(&[512, 700], dtype);
    let step = || {
        let y = linear(x, w, Some(bias), Activation::Gelu).unwrap();
        y.backward_from(&dy).unwrap();
    };
    step();
    // Threads that pack at the same time take a buffer each, and how many do is up to chance: one
    // step of many will find them all.
    let least = (0..20).map(|_| usage(step).1.taken).min();
    // The graph, and jobs of rayon.
    assert!(least <= Some(64 << 10), "{dtype}: every step takes {least:?} bytes or more");
}

/// Another size at each step: idle buffers of earlier sizes are freed.
fn sizes_do_not_pile_up() {
    let step = |n: usize| {
        let x = randn(&[64, n], DType::F32).tracked();
        let w = randn(&[n, n], DType::F32).tracked();
        let y = linear(&x, &w, None, Activation::Silu).unwrap().sum().unwrap();
        y.backward().unwrap();
    };
    step(1500);
    let before = live();
    let ((), usage) = usage(|| (1..=20).for_each(|i| step(1500 - 16 * i)));
    // 20 steps need 20 times 18 MB for w and dw alone.
    assert!(before + usage.peak <= 2 * before, "{before} bytes, then {usage:?}");
}

/// A failed allocation does not count as memory in use.
fn a_failed_allocation_changes_nothing() {
    let make = |n: usize| drop(Tensor::zeros(&[n], DType::F32, &Device::Cpu).unwrap());
    const MOST: usize = 16 << 20;
    make(MOST);
    assert!(Tensor::zeros(&[1 << 58], DType::F32, &Device::Cpu).is_err());
    (0..20).for_each(|i| make(MOST - (i << 19)));
    assert!(live() <= 2 * 4 * MOST, "the pool holds {} bytes of {} at most", live(), 4 * MOST);
}
