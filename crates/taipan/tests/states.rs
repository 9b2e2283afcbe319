//! The memory of the selective scan, counted by the allocator. In a process of its own: buffers
//! that other tests leave in the pool would not be counted.

#[path = "harness/allocator.rs"]
mod allocator;

use allocator::usage;
use taipan::{DType, Device, Scan, Tensor, selective_scan};

/// `[b, l, d, n]`: all states together would be 400 MB.
const SIZES: [usize; 4] = [4, 1024, 1536, 16];

/// Besides the inputs and the output, at most 120 MB are used at a time: the gradients, one state
/// in 16, and partial sums.
#[test]
fn states_are_never_materialised() {
    let [b, l, d, n] = SIZES;
    let full = |shape: &[usize], value| {
        Tensor::full(shape, value, DType::F32, &Device::Cpu).unwrap().tracked()
    };
    let (u, delta, z) = (full(&[b, l, d], 0.5), full(&[b, l, d], -4.0), full(&[b, l, d], 1.0));
    let (bs, cs) = (full(&[b, l, n], 0.25), full(&[b, l, n], 0.75));
    let (a_log, skip, bias) = (full(&[d, n], 1.0), full(&[d], 1.0), full(&[d], 0.125));
    let scan = Scan {
        d: Some(&skip),
        delta_bias: Some(&bias),
        z: Some(&z),
        ..Scan::new(&u, &delta, &a_log, &bs, &cs)
    };
    let dy = full(&[b, l, d], 1.0).detached();
    let step = || selective_scan(&scan).unwrap().0.backward_from(&dy).unwrap();
    let (grads, usage) = usage(step);
    let output = b * l * d * DType::F32.size();
    assert!(usage.peak <= output + 120_000_000, "{usage:?}");
    assert_eq!(grads.of(&u).unwrap().shape(), [b, l, d]);
}
