//! Profiles of the CPU. Those of a GPU are in `gpu`.

#[path = "harness/crowded.rs"]
mod crowded;

use std::collections::BTreeMap;
use std::time::Duration;

use taipan::profile::{Clock, Profile, Span};
use taipan::{Activation, DType, Device, Result, Scan, Tensor, linear, profile, selective_scan};

fn randn(shape: &[usize], seed: u64) -> Tensor {
    Tensor::randn(shape, seed, DType::F32, &Device::Cpu).unwrap()
}

/// The number of calls of each span, by name.
fn calls(profile: &Profile) -> BTreeMap<&str, usize> {
    profile.spans.iter().map(|span| (span.name.as_str(), span.calls)).collect()
}

#[test]
fn kernels_are_counted_under_their_names() -> Result<()> {
    let (b, l, d, n) = (2, 20, 8, 4);
    let x = randn(&[b, l, d], 1);
    let w = randn(&[d, d], 2).tracked();
    let bias = randn(&[d], 3).tracked();
    let (a_log, bs, cs) = (randn(&[d, n], 4), randn(&[b, l, n], 5), randn(&[b, l, n], 6));
    let dy = randn(&[b, l, d], 7);
    let (grads, profile) = profile(|| {
        let u = linear(&x, &w, Some(&bias), Activation::Silu)?;
        let delta = linear(&u, &w, None, Activation::None)?;
        let (y, _) = selective_scan(&Scan::new(&u, &delta, &a_log, &bs, &cs))?;
        y.add(&u)?.backward_from(&dy)
    });
    assert_eq!(grads?.of(&w)?.shape(), [d, d]);
    let expected = [
        // Of w twice; of u by the sum, the scan and the second product.
        ("add", 1 + 3),
        ("linear", 2),
        ("linear: dw", 2),
        ("linear: dx", 1),
        ("linear: grad_pre", 1),
        ("selective_scan", 1),
        ("selective_scan: backward", 1),
        // The upstream of the final state, which is not used.
        ("zeros", 1),
    ];
    assert_eq!(calls(&profile), BTreeMap::from(expected));
    assert_eq!(profile.gpu_clock, None);
    Ok(())
}

#[test]
fn creating_and_reading_tensors_are_spans() -> Result<()> {
    let (sum, profile) = profile(|| {
        let x = Tensor::new(&[1f32, 2.0], &[2], &Device::Cpu)?;
        let noise = randn(&[2], 1);
        x.add(&noise)?.sub(&noise)?.sum()?.item()
    });
    assert!((sum? - 3.0).abs() < 1e-5);
    let expected = [("add", 1), ("randn", 1), ("read", 1), ("sub", 1), ("sum", 1), ("tensor", 1)];
    assert_eq!(calls(&profile), BTreeMap::from(expected));
    Ok(())
}

/// The bound is far below the 95 % of a training step: other programs may run at the same time.
#[test]
fn spans_are_sorted_and_add_up_to_most_of_the_total() -> Result<()> {
    let (x, w) = (randn(&[512, 512], 1), randn(&[512, 512], 2).tracked());
    let (grads, profile) = profile(|| {
        let mut y = x.clone();
        for _ in 0..8 {
            y = linear(&y, &w, None, Activation::Tanh)?;
        }
        y.mean()?.backward()
    });
    grads?;
    let sum: Duration = profile.spans.iter().map(|span| span.time).sum();
    assert_eq!(profile.rest(), profile.total - sum, "the sum is at most the total");
    assert!(sum > profile.total.mul_f64(0.8), "{profile}");
    assert!(profile.spans.is_sorted_by(|a, b| a.time >= b.time), "{profile}");
    Ok(())
}

/// An op that fails, and one that fails before it runs: nothing is counted twice, and
/// no span stays open.
#[test]
fn an_op_that_fails_is_a_span() {
    let (x, y) = (randn(&[3, 4], 1), randn(&[3, 4], 2));
    let table = randn(&[2, 4], 3);
    let beyond = Tensor::new(&[5u32], &[1], &Device::Cpu).unwrap();
    let ((), profile) = profile(|| {
        taipan::embedding(&table, &beyond).unwrap_err();
        x.matmul(&y).unwrap_err(); // refused before anything runs
        x.add(&y).unwrap();
    });
    assert_eq!(calls(&profile), BTreeMap::from([("add", 1), ("embedding", 1)]));
}

#[test]
fn nested_profiles_both_count() -> Result<()> {
    let x = randn(&[100], 1);
    let (inner, outer) = profile(|| {
        x.exp().unwrap();
        let ((), inner) = profile(|| drop((x.exp().unwrap(), x.log().unwrap())));
        x.log().unwrap();
        inner
    });
    assert_eq!(calls(&inner), BTreeMap::from([("exp", 1), ("log", 1)]));
    assert_eq!(calls(&outer), BTreeMap::from([("exp", 2), ("log", 2)]));
    assert!(inner.total <= outer.total);
    let sum: Duration = outer.spans.iter().map(|span| span.time).sum();
    assert!(sum <= outer.total);
    Ok(())
}

#[test]
fn ops_outside_or_on_another_thread_are_not_counted() -> Result<()> {
    let x = randn(&[100], 1);
    x.log()?;
    let (y, first) = profile(|| {
        std::thread::scope(|scope| scope.spawn(|| x.sqrt().unwrap()).join().unwrap());
        x.exp()
    });
    y?.neg()?;
    assert_eq!(calls(&first), BTreeMap::from([("exp", 1)]));
    let ((), second) = profile(|| ());
    assert_eq!(calls(&second), BTreeMap::new());
    Ok(())
}

/// A thread that waits for rayon may run tasks of other callers, which its profile must not count.
#[test]
fn other_tasks_of_the_pool_are_not_counted() {
    let x = randn(&[200, 2000], 1);
    crowded::tasks(|task| match task % 2 {
        0 => {
            let (_, profile) = profile(|| x.exp().unwrap());
            assert_eq!(calls(&profile), BTreeMap::from([("exp", 1)]), "task {task}");
        }
        _ => drop(x.log().unwrap()),
    });
}

#[test]
fn a_panic_ends_a_profile() -> Result<()> {
    let x = randn(&[100], 1);
    let ((), outer) = profile(|| {
        let caught = std::panic::catch_unwind(|| profile(|| panic!("on purpose")));
        assert!(caught.is_err());
        x.exp().unwrap();
    });
    assert_eq!(calls(&outer), BTreeMap::from([("exp", 1)]));
    Ok(())
}

#[test]
fn a_profile_prints_as_a_table() {
    let span = |name: &str, calls, dispatches, micros| {
        let time = Duration::from_micros(micros);
        Span { name: name.into(), calls, dispatches, time }
    };
    let spans =
        vec![span("selective_scan: backward", 4, 36, 7_500), span("linear", 120, 120, 2_000)];
    let total = Duration::from_millis(10);
    let profile = Profile { total, spans, gpu_clock: Some(Clock::Device) };
    let expected = "\
total: 10.000 ms, 156 dispatches; kernels by the GPU's clock
span                       calls dispatches          ms   share
selective_scan: backward       4         36       7.500   75.0%
linear                       120        120       2.000   20.0%
between the ops                                   0.500    5.0%";
    assert_eq!(profile.to_string(), expected);
    let on_cpu = Profile { gpu_clock: None, ..profile };
    let expected = "\
total: 10.000 ms
span                       calls          ms   share
selective_scan: backward       4       7.500   75.0%
linear                       120       2.000   20.0%
between the ops                        0.500    5.0%";
    assert_eq!(on_cpu.to_string(), expected);
    let nothing = Profile { total: Duration::ZERO, spans: Vec::new(), gpu_clock: None };
    assert!(nothing.to_string().ends_with("   0.0%"), "{nothing}");
}
