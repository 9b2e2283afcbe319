//! Profiles of a GPU, by its own clock and by the host's.

use std::collections::BTreeMap;
use std::time::Duration;

use taipan::gpu::{Capabilities, Gpu};
use taipan::profile::{Clock, Profile};
use taipan::wgpu::Features;
use taipan::{Activation, DType, Device, Result, Scan, Tensor, linear, profile, selective_scan};

use crate::{open, read};

/// The GPU under test with a clock of its own, if it has one, and without.
fn both() -> Vec<(Device, Clock)> {
    let with_clock = |gpu: Gpu| {
        let has = gpu.device().features().contains(Features::TIMESTAMP_QUERY_INSIDE_ENCODERS);
        (Device::Gpu(gpu), if has { Clock::Device } else { Clock::Host })
    };
    let capabilities = [Capabilities::Full, Capabilities::WebGpu].into_iter();
    capabilities.filter_map(open).map(with_clock).collect()
}

fn calls(profile: &Profile) -> BTreeMap<&str, usize> {
    profile.spans.iter().map(|span| (span.name.as_str(), span.calls)).collect()
}

fn time(profile: &Profile, name: &str) -> Duration {
    profile.spans.iter().filter(|span| span.name == name).map(|span| span.time).sum()
}

#[test]
fn kernels_are_counted_under_their_names_and_compute_the_same() -> Result<()> {
    for &(ref device, clock) in &both() {
        let Device::Gpu(gpu) = device else { unreachable!("both are GPUs") };
        let randn = |shape: &[usize], seed| Tensor::randn(shape, seed, DType::F32, device);
        let (b, l, d, n) = (2, 20, 8, 4);
        let x = vec![0.5f32; b * l * d];
        let w = randn(&[d, d], 2)?.tracked();
        let (a_log, bs, cs) = (randn(&[d, n], 4)?, randn(&[b, l, n], 5)?, randn(&[b, l, n], 6)?);
        let dy = randn(&[b, l, d], 7)?;
        let dw = || {
            let x = Tensor::new(&x, &[b, l, d], device)?.tracked();
            let u = linear(&x, &w, None, Activation::Silu)?;
            let delta = linear(&u, &w, None, Activation::None)?;
            let (y, _) = selective_scan(&Scan::new(&u, &delta, &a_log, &bs, &cs))?;
            Ok(read(y.backward_from(&dy)?.of(&w)?))
        };
        let alone: Result<Vec<f32>> = dw();
        let before = gpu.work().launches;
        let (measured, profile) = profile(dw);
        assert_eq!(measured?, alone?);
        assert_eq!(profile.dispatches() as u64, gpu.work().launches - before, "{profile}");
        let dispatches = |name: &str| {
            profile.spans.iter().find(|span| span.name == name).map(|span| span.dispatches)
        };
        assert_eq!((dispatches("linear"), dispatches("read")), (Some(2), Some(0)), "{profile}");
        let mut calls = calls(&profile);
        // How many batches there are is the recorder's business; by the host's clock, one for each
        // op.
        assert!(calls.remove("submit").unwrap() > 0);
        let expected = [
            // Of w; that of u from the scan is added in the product.
            ("add", 1),
            ("linear", 2),
            ("linear: dw", 2),
            ("linear: dx", 2),
            ("linear: grad_pre", 1),
            ("read", 1),
            ("selective_scan", 1),
            ("selective_scan: backward", 1),
            ("upload", 1),
            ("zeros", 1),
        ];
        assert_eq!(calls, BTreeMap::from(expected), "{clock:?}");
        assert_eq!(profile.gpu_clock, Some(clock));
        let sum: Duration = profile.spans.iter().map(|span| span.time).sum();
        assert!(sum <= profile.total, "{profile}");
    }
    Ok(())
}

/// Products that take long enough to be told from everything else, also where other tests keep the
/// machine busy.
fn products(device: &Device) -> Result<impl Fn() -> Result<()>> {
    let x = Tensor::randn(&[768, 768], 1, DType::F32, device)?;
    linear(&x, &x, None, Activation::None)?.sum()?.item()?; // compiled, and done
    Ok(move || (0..8).try_for_each(|_| linear(&x, &x, None, Activation::None).map(drop)))
}

/// Time of the device after an op has returned belongs to the op, with and without a read after it.
#[test]
fn the_time_of_a_kernel_is_that_of_the_op_that_launched_it() -> Result<()> {
    for &(ref device, clock) in &both() {
        let products = products(device)?;
        let small = Tensor::ones(&[1], DType::F32, device)?;
        let (done, profile) = profile(|| {
            small.exp()?;
            products()?;
            small.exp()
        });
        done?;
        assert!(time(&profile, "linear") > profile.total / 2, "{clock:?}: {profile}");
    }
    Ok(())
}

#[test]
fn what_was_launched_before_is_not_counted() -> Result<()> {
    for &(ref device, clock) in &both() {
        let products = products(device)?;
        let small = Tensor::ones(&[1], DType::F32, device)?;
        small.exp()?.item()?;
        let (done, all) = profile(&products);
        done?;
        products()?;
        let (value, after) = profile(|| small.exp()?.item());
        assert!((value? - 1f64.exp()).abs() < 1e-5);
        assert!(after.total < all.total / 2, "{clock:?}: {all} {after}");
    }
    Ok(())
}

#[test]
fn another_threads_launches_are_not_counted() -> Result<()> {
    for &(ref device, clock) in &both() {
        let products = &products(device)?;
        let x = Tensor::ones(&[4], DType::F32, device)?;
        let (value, profile) = profile(|| {
            let y = x.exp()?;
            // In the batch between two launches that are measured.
            std::thread::scope(|scope| scope.spawn(move || products().unwrap()).join().unwrap());
            y.log()?.sum()?.item()
        });
        assert!((value? - 4.0).abs() < 1e-5);
        let mut calls = calls(&profile);
        calls.remove("submit");
        let expected = [("exp", 1), ("log", 1), ("read", 1), ("sum", 1)];
        assert_eq!(calls, BTreeMap::from(expected), "{clock:?}");
        if clock == Clock::Device {
            let own: Duration = ["exp", "log", "sum"].map(|name| time(&profile, name)).iter().sum();
            assert!(profile.total > 2 * own, "{profile}");
        }
    }
    Ok(())
}

/// More launches than a batch has, and several profiles one after the other.
#[test]
fn many_launches_are_all_measured() -> Result<()> {
    for &(ref device, clock) in &both() {
        let x = Tensor::ones(&[1 << 16], DType::F32, device)?;
        x.neg()?.sum()?.item()?;
        for _ in 0..2 {
            let (y, profile) = profile(|| (0..301).try_fold(x.clone(), |x, _| x.neg()));
            assert_eq!(read(&y?)[..2], [-1.0, -1.0]);
            assert_eq!(profile.spans.iter().find(|p| p.name == "neg").unwrap().calls, 301);
            let sum: Duration = profile.spans.iter().map(|span| span.time).sum();
            assert!(
                sum <= profile.total && sum > profile.total.mul_f64(0.8),
                "{clock:?} {profile}"
            );
        }
    }
    Ok(())
}
