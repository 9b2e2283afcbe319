//! Kernels for hardware differ from those for software adapters, which is what most machines that
//! test have. Here such an adapter is taken for a graphics card.

use std::sync::Arc;

use wgpu::DeviceType;

use super::Gpu;
use crate::check::{
    Array, Random, Values, array, devices, input, input_of, round, tensor, tolerance,
};
use crate::product::Layout;
use crate::{
    Activation, DType, Device, Discretization, Result, Scan, StepSize, Tensor, Weight, linear,
    selective_scan,
};

/// The GPU under test, taken for a graphics card, with or without an accurate `exp2`; none if it is
/// left out.
fn card(accurate_exp2: bool) -> Option<Gpu> {
    let Some(Device::Gpu(gpu)) = devices().pop() else { return None };
    let opened = Gpu::new(gpu.device().clone(), gpu.queue().clone(), Arc::default());
    let mut gpu = opened.unwrap();
    let inner = Arc::get_mut(&mut gpu.0).unwrap();
    inner.info.device_type = DeviceType::DiscreteGpu;
    inner.accurate_exp2.set(accurate_exp2).unwrap();
    Some(gpu)
}

/// What a scan is given beside its five tensors.
#[derive(Clone, Copy, Debug)]
struct Given {
    discretization: Discretization,
    gate: bool,
    seq_start: bool,
}

const GIVEN: [Given; 4] = [
    Given { discretization: Discretization::Euler, gate: true, seq_start: false },
    Given { discretization: Discretization::Euler, gate: false, seq_start: true },
    Given { discretization: Discretization::ZeroOrderHold, gate: true, seq_start: true },
    Given { discretization: Discretization::ZeroOrderHold, gate: false, seq_start: false },
];

/// The value of a scan and its gradients.
fn scan(
    [b, l, d, n]: [usize; 4],
    given: Given,
    dtype: DType,
    device: &Device,
) -> Result<Vec<Array>> {
    let mut random = Random::named("a scan on hardware");
    let mut draw = |shape: &[usize], values| {
        let x = random.draw(&input_of(shape, values)).map(|x| round(x, DType::F32));
        tensor(&x, dtype, device).tracked()
    };
    let between = Values::Between(-2.0, 2.0);
    let [u, delta, z, dy] = [(); 4].map(|()| draw(&[b, l, d], between));
    let [bm, c] = [(); 2].map(|()| draw(&[b, l, n], between));
    let a_log = draw(&[d, n], between);
    let starts: Vec<u32> = (0..b * l).map(|t| (t % 7 == 3) as u32).collect();
    let starts = Tensor::new(&starts, &[b, l], device)?;
    let (y, final_state) = selective_scan(&Scan {
        z: given.gate.then_some(&z),
        seq_start: given.seq_start.then_some(&starts),
        discretization: given.discretization,
        step: StepSize::Softplus,
        ..Scan::new(&u, &delta, &a_log, &bm, &c)
    })?;
    let loss = y.mul(&dy.detached())?.sum()?.add(&final_state.sum()?)?;
    let grads = loss.backward()?;
    let gate = given.gate.then_some(&z);
    let leaves = [&u, &delta, &a_log, &bm, &c].into_iter().chain(gate);
    let grads = leaves.map(|leaf| Ok(array(grads.of(leaf)?)));
    [Ok(array(&y))].into_iter().chain(grads).collect()
}

/// In one segment and in several.
#[test]
fn scans_agree_with_the_cpu() -> Result<()> {
    let tolerance = tolerance(DType::F32).grad;
    // The polynomial with Euler's method is what adapters in software use.
    for (accurate_exp2, given) in [(true, &GIVEN[..]), (false, &GIVEN[2..])] {
        let Some(gpu) = card(accurate_exp2) else { return Ok(()) };
        for (shape, &given) in [[1, 16, 3, 2], [2, 150, 70, 3]]
            .into_iter()
            .flat_map(|shape| given.iter().map(move |given| (shape, given)))
        {
            let got = scan(shape, given, DType::F32, &Device::Gpu(gpu.clone()))?;
            let want = scan(shape, given, DType::F64, &Device::Cpu)?;
            for (which, (got, want)) in got.iter().zip(&want).enumerate() {
                for (i, (got, want_i)) in got.data.iter().zip(&want.data).enumerate() {
                    let within = tolerance * (want_i.abs() + want.rms());
                    assert!(
                        (got - want_i).abs() <= within,
                        "{shape:?} {given:?}, exp2 {accurate_exp2}: {which} at {i}: \
                         {got:e}, expected {want_i:e}"
                    );
                }
            }
        }
    }
    Ok(())
}

/// Zero-order hold with the adapter's own `exp2`, from `|Δ·A|` = 10⁻⁸ to 10, of both signs. Every step
/// is a sequence and all else is positive: sums have terms of one sign, and nothing hides an error.
#[test]
fn steps_of_any_size_keep_their_digits() -> Result<()> {
    // Eight times that of others: the `exp2` of software adapters is not within 2 ulp.
    let tolerance = 8.0 * tolerance(DType::F32).grad;
    let Some(gpu) = card(true) else { return Ok(()) };
    let [b, l, d, n] = [1, 20, 200, 1];
    let mut random = Random::named("steps of any size");
    let mut draw = |shape: &[usize]| {
        random.draw(&input_of(shape, Values::Between(0.5, 1.0))).map(|x| round(x, DType::F32))
    };
    let size_of = |j: usize| 10f64.powf(-8.0 + 9.0 * j as f64 / d as f64);
    let (part, u, dy) = (draw(&[b, l, d]), draw(&[b, l, d]), draw(&[b, l, d]));
    let delta = Array::from_fn(&[b, l, d], |i| {
        let size = part.at(i) * size_of(i[2]);
        round(if i[2] % 2 == 0 { size } else { -size }, DType::F32)
    });
    let (a_log, bm, c) = (draw(&[d, n]), draw(&[b, l, n]), draw(&[b, l, n]));
    let run = |dtype: DType, device: &Device| -> Result<[Array; 4]> {
        let leaf = |x: &Array| tensor(x, dtype, device).tracked();
        let [u, delta, a_log, bm, c] = [&u, &delta, &a_log, &bm, &c].map(leaf);
        let starts = Tensor::new(&vec![1u32; b * l], &[b, l], device)?;
        let (y, _) = selective_scan(&Scan {
            seq_start: Some(&starts),
            discretization: Discretization::ZeroOrderHold,
            step: StepSize::Plain,
            ..Scan::new(&u, &delta, &a_log, &bm, &c)
        })?;
        let grads = y.backward_from(&tensor(&dy, dtype, device))?;
        Ok([array(&y), array(grads.of(&u)?), array(grads.of(&delta)?), array(grads.of(&a_log)?)])
    };
    let got = run(DType::F32, &Device::Gpu(gpu))?;
    let want = run(DType::F64, &Device::Cpu)?;
    // ddelta is the sum of u·du/Δ and another term, which for long steps have opposite signs.
    let term = |i: usize| u.data[i] * want[1].data[i] / delta.data[i];
    for ((got, want), name) in got.iter().zip(&want).zip(["y", "du", "ddelta", "da_log"]) {
        for (i, (got, want)) in got.data.iter().zip(&want.data).enumerate() {
            let rounding =
                if name == "ddelta" { 4.0 * f64::from(f32::EPSILON) * term(i) } else { 0.0 };
            assert!(
                (got - want).abs() <= tolerance * want.abs() + rounding.abs(),
                "{name} at {i}, |Δ| up to {:e}: {got:e}, expected {want:e}, off by {:e} of it",
                size_of(i % d),
                (got / want - 1.0).abs()
            );
        }
    }
    Ok(())
}

/// Tiles are staged in f16, or not, or are smaller: the sums are the same.
#[test]
fn products_have_the_same_bits() -> Result<()> {
    let Some(gpu) = card(false) else { return Ok(()) };
    if !gpu.supports(DType::F16) {
        return Ok(()); // with the limits of a browser
    }
    let product = |[m, k, n]: [usize; 3], layout: Layout, device: &Device| {
        let mut random = Random::named("a product on hardware");
        let mut draw =
            |shape: &[usize]| tensor(&random.draw(&input(shape)), DType::F16, device).tracked();
        let (x, bias, dy) = (draw(&[m, k]), draw(&[n]), draw(&[m, n]).detached());
        let w = match layout {
            Layout::RowMajor => draw(&[k, n]),
            Layout::Transposed => draw(&[n, k]),
        };
        let weight = match layout {
            Layout::RowMajor => Weight::kn(&w),
            Layout::Transposed => Weight::nk(&w),
        };
        let y = linear(&x, weight, Some(&bias), Activation::None)?;
        let grads = y.backward_from(&dy)?;
        let read = |x: &Tensor| x.cast(DType::F32)?.read_blocking::<f32>();
        let results = [&y, grads.of(&x)?, grads.of(&w)?, grads.of(&bias)?].map(read);
        results.into_iter().collect::<Result<Vec<_>>>()
    };
    let software = devices().pop().expect("there is a card");
    for shape in [[80, 48, 40], [130, 200, 132], [33, 37, 35]] {
        for layout in [Layout::RowMajor, Layout::Transposed] {
            let got = product(shape, layout, &Device::Gpu(gpu.clone()))?;
            assert!(got == product(shape, layout, &software)?, "{shape:?} {layout:?}");
        }
    }
    Ok(())
}

/// Backward of the scan reads and writes at most three times the bytes of its inputs, its outputs
/// and the saved states.
#[test]
fn backward_of_a_scan_moves_few_bytes() -> Result<()> {
    let Some(gpu) = card(true) else { return Ok(()) };
    let device = &Device::Gpu(gpu.clone());
    let (b, l, d, n) = (4, 256, 1024, 16);
    let rand = |shape: &[usize]| Tensor::rand(shape, 1, DType::F32, device);
    for gate in [false, true] {
        let [u, delta, z, dy] = [(); 4].map(|()| rand(&[b, l, d]));
        let [bm, c] = [(); 2].map(|()| rand(&[b, l, n]));
        let (u, delta, a_log) = (u?.tracked(), delta?.tracked(), rand(&[d, n])?.tracked());
        let (bm, c, z) = (bm?.tracked(), c?.tracked(), z?.tracked());
        let scan = Scan { z: gate.then_some(&z), ..Scan::new(&u, &delta, &a_log, &bm, &c) };
        let y = selective_scan(&scan)?.0;
        let dy = dy?;
        let before = gpu.work().bytes;
        y.backward_from(&dy)?;
        // Two tensors are overwritten by the main kernel: read and written, and counted once.
        let moved = gpu.work().bytes - before + 2 * (4 * u.len()) as u64;
        let saved = b * l.div_ceil(16) * n * d;
        let wide = if gate { 7 } else { 5 }; // u, delta, dy, z and gradients
        let own = 4 * (wide * u.len() + 2 * (bm.len() + c.len() + a_log.len()) + saved) as u64;
        assert!(moved <= 3 * own, "{moved} bytes, {own} of tensors, gate {gate}");
    }
    Ok(())
}
