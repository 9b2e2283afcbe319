//! How long the device may be busy with one dispatch, and with one submission. Desktops reset a GPU
//! that does not answer for two seconds, and show no new picture meanwhile; so a launch is split
//! into several dispatches by an estimate of its time.

use wgpu::DeviceType;

/// The longest dispatch, in seconds, unless a single workgroup takes longer.
const DISPATCH: f64 = 0.05;

/// The longest submission, in seconds: it keeps the device busy while the next one is encoded.
pub(super) const SUBMISSION: f64 = 0.1;

/// What an adapter does in a second at least.
#[derive(Clone, Copy)]
pub(super) struct Rate {
    /// Multiply-adds.
    pub(super) work: f64,
    /// Bytes read or written.
    pub(super) bytes: f64,
}

impl Rate {
    /// At most half of what data sheets promise for slow GPUs: of laptops, as the Intel UHD 620
    /// (0.4 TFLOP/s, 34 GB/s), and of cards, as the GT 1030 (1.1 TFLOP/s, 48 GB/s). In a browser
    /// the type is unknown.
    pub(super) fn of(device_type: DeviceType) -> Rate {
        match device_type {
            DeviceType::DiscreteGpu => Rate { work: 2.5e11, bytes: 2e10 },
            _ => Rate { work: 1e11, bytes: 1.5e10 },
        }
    }

    /// An upper bound of the time, in seconds, of this much work on this many bytes.
    pub(super) fn seconds(self, work: u64, bytes: u64) -> f64 {
        work as f64 / self.work + bytes as f64 / self.bytes
    }
}

/// The number of workgroups for each dispatch of a launch of `groups` that takes so many seconds.
/// Each but the last fills its rows, of `row` workgroups, so that dispatches do not overlap.
pub(super) fn groups_at_once(groups: usize, seconds: f64, row: usize) -> usize {
    let dispatches = (seconds / DISPATCH).ceil() as usize;
    match groups.div_ceil(dispatches.max(1)) {
        all if all == groups => all,
        some if some > row => some / row * row,
        some => some.max(1),
    }
}

#[cfg(all(test, feature = "check"))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::check::devices;
    use crate::gpu::Gpu;
    use crate::optim::{AdamW, AdamWOptions, Group};
    use crate::{
        Activation, CausalConv1d, DType, Device, Result, Scan, Tensor, Weight, causal_conv1d,
        cross_entropy, embedding, linear, rms_norm, selective_scan,
    };

    #[test]
    fn dispatches_are_short_and_do_not_overlap() {
        const ROW: usize = 65_535;
        for (groups, seconds) in
            [(1, 9.0), (7, 0.01), (7, 0.2), (7, 9.0), (ROW * 3 + 5, 0.01), (ROW * 9 + 5, 0.2)]
        {
            let at_once = groups_at_once(groups, seconds, ROW);
            let dispatches = groups.div_ceil(at_once);
            assert!(
                at_once == 1 || seconds * at_once as f64 / groups as f64 <= 1.2 * DISPATCH,
                "{at_once} of {groups} in {seconds} s"
            );
            assert!(dispatches == 1 || at_once <= ROW || at_once.is_multiple_of(ROW), "{at_once}");
            assert_eq!(seconds <= DISPATCH || groups == 1, dispatches == 1, "{groups} {seconds}");
        }
        // A product of 4096³ takes 0.7 s on a laptop.
        let laptop = Rate::of(DeviceType::IntegratedGpu);
        assert_eq!(groups_at_once(64 * 32, laptop.seconds(1 << 36, 3 << 26), ROW), 2048 / 15 + 1);
    }

    /// The GPU under test, as it is and taken for one so slow that everything is split; none if it
    /// is left out.
    fn as_is_and_slow() -> Option<[Gpu; 2]> {
        let Some(Device::Gpu(gpu)) = devices().pop() else { return None };
        let open = || Gpu::new(gpu.device().clone(), gpu.queue().clone(), Arc::default()).unwrap();
        let [as_is, mut slow] = [open(), open()];
        Arc::get_mut(&mut slow.0).unwrap().rate = Rate { work: 1e4, bytes: 1e5 };
        let opened = [as_is, slow];
        opened.iter().for_each(|gpu| pollster::block_on(gpu.measure_exp2()).unwrap());
        Some(opened)
    }

    /// Compare the bits of what `f` returns, and check that its launches were split.
    fn check(gpus: &[Gpu; 2], what: &str, f: impl Fn(&Device) -> Result<Vec<Tensor>>) {
        let [as_is, slow] = gpus.each_ref().map(|gpu| {
            let before = gpu.work().launches;
            let results = f(&Device::Gpu(gpu.clone())).unwrap();
            let launches = gpu.work().launches - before;
            let bits = |x: &Tensor| -> Vec<u32> {
                x.read_blocking::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
            };
            (launches, results.iter().map(bits).collect::<Vec<_>>())
        });
        assert!(slow.0 > as_is.0, "{what}: {} launches, then {}", as_is.0, slow.0);
        assert!(as_is.1 == slow.1, "{what}: other bits");
    }

    fn randn(shape: &[usize], seed: u64, device: &Device) -> Result<Tensor> {
        Tensor::randn(shape, seed, DType::F32, device)
    }

    /// The value and the gradients.
    fn with_grads<const N: usize>(
        leaves: [Tensor; N],
        f: impl Fn(&[Tensor; N]) -> Result<Tensor>,
    ) -> Result<Vec<Tensor>> {
        let leaves = leaves.map(|leaf| leaf.tracked());
        let y = f(&leaves)?;
        let grads = y.backward_from(&randn(y.shape(), 99, y.device())?)?;
        let grads = leaves.iter().map(|leaf| Ok(grads.of(leaf)?.clone()));
        [Ok(y.detached())].into_iter().chain(grads).collect()
    }

    #[test]
    fn splitting_changes_no_bit() {
        let Some(gpus) = as_is_and_slow() else { return };
        for m in [4, 300] {
            check(&gpus, "linear", |device| {
                let leaves = [&[m, 70][..], &[130, 70], &[130]].map(|s| randn(s, 1, device));
                let [x, w, bias] = leaves;
                with_grads([x?, w?, bias?], |[x, w, bias]| {
                    linear(x, Weight::nk(w), Some(bias), Activation::Gelu)
                })
            });
        }
        // Many channels, and few, whose rows are split into segments.
        for [b, l, d, n] in [[3, 40, 130, 3], [1, 700, 5, 2]] {
            check(&gpus, "selective_scan", |device| {
                let shapes = [&[b, l, d][..], &[b, l, d], &[d, n], &[b, l, n], &[b, l, n]];
                let leaves = [0, 1, 2, 3, 4].map(|i| randn(shapes[i], i as u64, device));
                let [u, delta, a_log, bm, c] = leaves;
                with_grads([u?, delta?, a_log?, bm?, c?], |[u, delta, a_log, bm, c]| {
                    let scan = Scan { z: Some(u), ..Scan::new(u, delta, a_log, bm, c) };
                    Ok(selective_scan(&scan)?.0)
                })
            });
        }
        check(&gpus, "causal_conv1d", |device| {
            let leaves = [randn(&[2, 40, 70], 1, device)?, randn(&[70, 4], 2, device)?];
            with_grads(leaves, |[x, w]| Ok(causal_conv1d(&CausalConv1d::new(x, w))?.0))
        });
        check(&gpus, "rms_norm", |device| {
            let leaves = [randn(&[40, 70], 1, device)?, randn(&[70], 2, device)?];
            with_grads(leaves, |[x, w]| rms_norm(x, w, 1e-5))
        });
        let ids = |n: u32, device: &Device| {
            Tensor::new(&(0..40).map(|i| i * 7 % n).collect::<Vec<u32>>(), &[40], device)
        };
        check(&gpus, "cross_entropy", |device| {
            let ids = ids(1000, device)?;
            with_grads([randn(&[40, 1000], 1, device)?], |[x]| cross_entropy(x, &ids, None))
        });
        check(&gpus, "embedding", |device| {
            let ids = ids(11, device)?;
            with_grads([randn(&[11, 700], 1, device)?], |[x]| embedding(x, &ids))
        });
        check(&gpus, "softmax", |device| {
            with_grads([randn(&[40, 700], 1, device)?], |[x]| x.softmax(1)?.exp())
        });
        check(&gpus, "sum", |device| {
            with_grads([randn(&[40, 5, 70], 1, device)?], |[x]| x.sum_dims(&[1]))
        });
        check(&gpus, "AdamW", |device| {
            let mut parameters = [randn(&[3000], 1, device)?.tracked()];
            let mut adamw =
                AdamW::new(AdamWOptions::default(), &[(&parameters[0], Group::default())])?;
            for _ in 0..2 {
                let grads = parameters[0].exp()?.sum()?.backward()?;
                adamw.step(0.1, &mut parameters.iter_mut().collect::<Vec<_>>(), &grads)?;
            }
            let [parameter] = parameters;
            Ok(vec![parameter.detached()])
        });
    }
}
