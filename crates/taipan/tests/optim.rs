//! The optimiser: against PyTorch, and on every device and type against its formulas.

mod harness;

use half::f16;
use serde_json::Value;
use taipan::optim::{AdamW, AdamWOptions, Curve, Group, LossScale, Schedule, Status};
use taipan::{Activation, DType, Device, Grads, Result, Tensor, cross_entropy, linear};

use harness::{Array, FLOATS, Random, array, devices, input, round, tensor};

/// Each device with each float type it has.
fn everywhere() -> Vec<(Device, DType)> {
    let types = |device: Device| {
        let supported = FLOATS.into_iter().filter(move |&dtype| device.supports(dtype));
        supported.collect::<Vec<_>>()
    };
    let pairs =
        |device: Device| types(device.clone()).into_iter().map(move |t| (device.clone(), t));
    devices().into_iter().flat_map(pairs).collect()
}

/// Gradients as a backward would leave them.
fn grads_of(parameters: &[Tensor], grads: &[Tensor]) -> Result<Grads> {
    let mut all = Grads::default();
    for (parameter, grad) in parameters.iter().zip(grads) {
        all.accumulate(parameter.backward_from(grad)?)?;
    }
    Ok(all)
}

fn step(adamw: &mut AdamW, lr: f64, parameters: &mut [Tensor], grads: &[Tensor]) -> Result<()> {
    let grads = grads_of(parameters, grads)?;
    adamw.step(lr, &mut parameters.iter_mut().collect::<Vec<_>>(), &grads)
}

fn with_groups<'a>(parameters: &'a [Tensor], groups: &[Group]) -> Vec<(&'a Tensor, Group)> {
    parameters.iter().zip(groups.iter().copied()).collect()
}

/// All bits of parameters and state.
fn bits(adamw: &AdamW, parameters: &[Tensor]) -> Vec<Vec<u64>> {
    let state = adamw.state().into_iter().map(|(_, tensor)| tensor);
    let all = parameters.iter().cloned().chain(state);
    all.map(|t| array(&t).data.iter().map(|x| x.to_bits()).collect()).collect()
}

/// Steps by the formulas, in f64.
struct Naive {
    options: AdamWOptions,
    groups: Vec<Group>,
    theta: Vec<Vec<f64>>,
    m: Vec<Vec<f64>>,
    v: Vec<Vec<f64>>,
    t: i32,
}

impl Naive {
    fn new(options: AdamWOptions, groups: &[Group], parameters: &[Array]) -> Naive {
        let theta: Vec<Vec<f64>> = parameters.iter().map(|p| p.data.clone()).collect();
        let zeros: Vec<Vec<f64>> = theta.iter().map(|p| vec![0.0; p.len()]).collect();
        Naive { options, groups: groups.to_vec(), theta, m: zeros.clone(), v: zeros, t: 0 }
    }

    /// One step; returns the norm.
    fn step(&mut self, lr: f64, grads: &[Array]) -> f64 {
        let AdamWOptions { beta1, beta2, eps, max_norm, .. } = self.options;
        let norm = grads.iter().flat_map(|g| &g.data).map(|g| g * g).sum::<f64>().sqrt();
        let clip = max_norm.map_or(1.0, |most| (most / (norm + 1e-6)).min(1.0));
        self.t += 1;
        for (i, grad) in grads.iter().enumerate() {
            let Group { lr_scale, weight_decay } = self.groups[i];
            let lr = lr * lr_scale;
            for (j, g) in grad.data.iter().map(|g| clip * g).enumerate() {
                let (theta, m, v) = (&mut self.theta[i][j], &mut self.m[i][j], &mut self.v[i][j]);
                *m = beta1 * *m + (1.0 - beta1) * g;
                *v = beta2 * *v + (1.0 - beta2) * g * g;
                let m_hat = *m / (1.0 - beta1.powi(self.t));
                let v_hat = *v / (1.0 - beta2.powi(self.t));
                *theta = *theta * (1.0 - lr * weight_decay) - lr * m_hat / (v_hat.sqrt() + eps);
            }
        }
        norm
    }
}

fn golden(value: &Value) -> Array {
    let list = |value: &Value| value.as_array().unwrap().clone();
    Array {
        shape: list(&value["shape"]).iter().map(|n| n.as_u64().unwrap() as usize).collect(),
        data: list(&value["data"]).iter().map(|x| x.as_f64().unwrap()).collect(),
    }
}

/// 20 steps of `torch.optim.AdamW` with `clip_grad_norm_`, in f64: `tests/golden/optim.py` made them.
#[test]
fn adamw_with_clipping_is_that_of_pytorch() -> Result<()> {
    let case: Value = serde_json::from_str(include_str!("golden/optim.json")).unwrap();
    let number = |value: &Value| value.as_f64().unwrap();
    let each = |value: &Value| value.as_array().unwrap().clone();
    let double = |value: &Value| tensor(&golden(value), DType::F64, &Device::Cpu);
    let schedule = Schedule {
        peak: number(&case["schedule"]["peak"]),
        min: number(&case["schedule"]["min"]),
        warmup: case["schedule"]["warmup"].as_u64().unwrap(),
        total: case["schedule"]["total"].as_u64().unwrap(),
        curve: Curve::Cosine,
    };
    let group = |value: &Value| Group {
        lr_scale: number(&value["lr_scale"]),
        weight_decay: number(&value["weight_decay"]),
    };
    let groups: Vec<Group> = each(&case["groups"]).iter().map(group).collect();
    let mut parameters: Vec<Tensor> =
        each(&case["parameters"]).iter().map(|p| double(p).tracked()).collect();
    let options =
        AdamWOptions { max_norm: Some(number(&case["max_norm"])), ..AdamWOptions::default() };
    let mut adamw = AdamW::new(options, &with_groups(&parameters, &groups))?;
    let steps = each(&case["steps"]);
    assert_eq!(steps.len(), 20);
    let mut clipped = 0;
    for (i, golden_step) in steps.iter().enumerate() {
        let lr = schedule.lr(i as u64);
        assert!((lr - number(&golden_step["lr"])).abs() <= 1e-15, "step {i}: lr {lr}");
        let grads: Vec<Tensor> = each(&golden_step["grads"]).iter().map(double).collect();
        step(&mut adamw, lr, &mut parameters, &grads)?;
        let (got, want) = (adamw.status_blocking()?.norm, number(&golden_step["norm"]));
        assert!((got / want - 1.0).abs() <= 2f64.powi(-24), "step {i}: norm {got}, want {want}");
        clipped += (want > 1.0) as usize;
        for (got, want) in parameters.iter().zip(each(&golden_step["parameters"])) {
            let (got, want) = (array(got), golden(&want));
            assert_eq!(got.shape, want.shape);
            for (got, want) in got.data.iter().zip(&want.data) {
                assert!((got - want).abs() <= 1e-12, "step {i}: got {got:e}, want {want:e}");
            }
        }
    }
    assert!((4..=16).contains(&clipped), "{clipped} steps are clipped, and others not");
    Ok(())
}

/// How far θ may be from that of f64 after so many steps: in each, θ and the update, of about `lr`, are rounded
/// in the wide type, after some ten operations on the update. In f16 and bf16 θ is rounded once more.
fn tolerance(dtype: DType, steps: usize, lr: f64, theta: f64) -> f64 {
    let wide = if dtype == DType::F64 { 2f64.powi(-53) } else { 2f64.powi(-24) };
    let harness::Tolerance { value, tiny, .. } = harness::tolerance(dtype);
    let narrow = if matches!(dtype, DType::F16 | DType::BF16) { value } else { 0.0 };
    steps as f64 * wide * (theta.abs() + 32.0 * lr) + narrow * theta.abs() + tiny
}

#[test]
fn every_type_on_every_device_follows_the_formulas() -> Result<()> {
    const STEPS: usize = 12;
    let lengths = [1, 0, 3, 257, 1025, 16_384, 16_387, 70_001];
    let groups =
        [Group::default(), Group::without_decay(), Group { lr_scale: 0.5, weight_decay: 0.1 }];
    let groups: Vec<Group> = lengths.iter().enumerate().map(|(i, _)| groups[i % 3]).collect();
    for (device, dtype) in everywhere() {
        for max_norm in [None, Some(100.0)] {
            let what = format!("{dtype} on {}, max_norm {max_norm:?}", device.name());
            let mut random = Random::named(&what);
            let mut draw = |scale: f64| -> Vec<Array> {
                let draw = |&n: &usize| random.draw(&input(&[n])).map(|x| round(scale * x, dtype));
                lengths.iter().map(draw).collect()
            };
            let start = draw(1.0);
            let options = AdamWOptions { max_norm, ..AdamWOptions::default() };
            let mut naive = Naive::new(options, &groups, &start);
            let mut parameters: Vec<Tensor> =
                start.iter().map(|p| tensor(p, dtype, &device).tracked()).collect();
            let mut adamw = AdamW::new(options, &with_groups(&parameters, &groups))?;
            for i in 0..STEPS {
                let lr = 0.01 * (i + 1) as f64;
                // Norms on both sides of the limit.
                let grads = draw(if i % 2 == 0 { 0.1 } else { 2.0 });
                let tensors: Vec<Tensor> =
                    grads.iter().map(|g| tensor(g, dtype, &device)).collect();
                let want = naive.step(lr, &grads);
                step(&mut adamw, lr, &mut parameters, &tensors)?;
                let got = adamw.status_blocking()?.norm;
                assert!((got / want - 1.0).abs() < 1e-6, "{what}: norm {got}, want {want}");
            }
            for (i, (got, want)) in parameters.iter().zip(&naive.theta).enumerate() {
                assert_eq!(got.dtype(), dtype);
                for (j, (got, want)) in array(got).data.iter().zip(want).enumerate() {
                    let within = tolerance(dtype, STEPS, 0.12, *want);
                    assert!(
                        (got - want).abs() <= within,
                        "{what}: parameter {i} at {j}: got {got:e}, want {want:e}, tolerance {within:e}"
                    );
                }
            }
        }
    }
    Ok(())
}

/// Tensors of every size about a block's border, hundreds of them, and one with more workgroups than a dimension of
/// a dispatch has: each gradient counts once.
#[test]
fn the_norm_counts_every_element_of_every_tensor_once() -> Result<()> {
    let many: Vec<usize> = (0..300).map(|i| i % 41).collect();
    let cases: [&[usize]; 5] = [
        &[1],
        &[1023, 1, 1024, 1025, 4095, 4096, 4097],
        &many,
        &[65_535 * 256 + 259],
        &[9_000_001, 5],
    ];
    for device in devices() {
        for lengths in cases {
            let mut parameters: Vec<Tensor> = lengths
                .iter()
                .map(|&n| Ok(Tensor::ones(&[n], DType::F32, &device)?.tracked()))
                .collect::<Result<_>>()?;
            let options = AdamWOptions { max_norm: Some(1.0), ..AdamWOptions::default() };
            let groups = vec![Group::without_decay(); lengths.len()];
            let mut adamw = AdamW::new(options, &with_groups(&parameters, &groups))?;
            let grads: Vec<Tensor> = lengths
                .iter()
                .map(|&n| Tensor::full(&[n], 2.0, DType::F32, &device))
                .collect::<Result<_>>()?;
            step(&mut adamw, 0.5, &mut parameters, &grads)?;
            let count: usize = lengths.iter().sum();
            let (got, want) = (adamw.status_blocking()?.norm, 2.0 * (count as f64).sqrt());
            assert!((got / want - 1.0).abs() < 1e-6, "{count} elements: {got}, want {want}");
            // m shows that the clip was applied, and θ that every element moved, by lr in the first step.
            let m = array(&adamw.state()[0].1);
            let clipped = 0.1 * 2.0 / want;
            assert!(m.data.iter().all(|m| (m / clipped - 1.0).abs() < 1e-5), "{:e}", m.data[0]);
            for parameter in &parameters {
                assert!(array(parameter).data.iter().all(|x| (x - 0.5).abs() < 1e-3));
            }
        }
    }
    Ok(())
}

fn dynamic(initial: f64, growth_interval: u32) -> AdamWOptions {
    let loss_scale = LossScale::Dynamic { initial, growth_interval };
    AdamWOptions { max_norm: Some(1.0), loss_scale, ..AdamWOptions::default() }
}

#[test]
fn a_gradient_that_is_not_finite_skips_the_step_and_halves_the_loss_scale() -> Result<()> {
    for (device, dtype) in everywhere() {
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let what = format!("{bad} in {dtype} on {}", device.name());
            let mut parameters =
                [5, 2000].map(|n| Tensor::randn(&[n], 1, dtype, &device).unwrap().tracked());
            let groups = [Group::default(); 2];
            let mut adamw = AdamW::new(dynamic(64.0, 100), &with_groups(&parameters, &groups))?;
            let good = [5, 2000].map(|n| Tensor::ones(&[n], dtype, &device).unwrap());
            step(&mut adamw, 0.1, &mut parameters, &good)?;
            let moved = |adamw: &AdamW, parameters: &[Tensor]| {
                let mut all = bits(adamw, parameters);
                all.truncate(all.len() - 2); // the record and the loss scale
                all
            };
            let before = moved(&adamw, &parameters);
            let mut last = vec![1.0; 2000];
            last[1999] = bad;
            let last = tensor(&Array { shape: vec![2000], data: last }, dtype, &device);
            step(&mut adamw, 0.1, &mut parameters, &[good[0].clone(), last])?;
            assert_eq!(moved(&adamw, &parameters), before, "{what}");
            let status = adamw.status_blocking()?;
            assert!(!status.norm.is_finite(), "{what}: norm {}", status.norm);
            assert_eq!(status.norm.is_nan(), bad.is_nan(), "{what}");
            assert_eq!((status.steps, status.skipped, status.loss_scale), (1, 1, 32.0), "{what}");
            assert_eq!(adamw.loss_scale().item()?, 32.0, "{what}");
            step(&mut adamw, 0.1, &mut parameters, &good)?;
            let Status { steps, skipped, .. } = adamw.status_blocking()?;
            assert_eq!((steps, skipped), (2, 1), "{what}");
            assert_ne!(moved(&adamw, &parameters), before, "{what}: it goes on");
        }
    }
    Ok(())
}

#[test]
fn the_loss_scale_grows_after_so_many_steps_in_a_row_and_a_constant_one_does_not() -> Result<()> {
    for device in devices() {
        let mut parameters = [Tensor::ones(&[3], DType::F32, &device)?.tracked()];
        let good = [Tensor::ones(&[3], DType::F32, &device)?];
        let bad = [Tensor::full(&[3], f64::NAN, DType::F32, &device)?];
        let mut run = |options: AdamWOptions, finite: &[bool]| -> Result<Vec<f64>> {
            let mut adamw = AdamW::new(options, &with_groups(&parameters, &[Group::default()]))?;
            finite
                .iter()
                .map(|finite| {
                    let grads = if *finite { &good } else { &bad };
                    step(&mut adamw, 0.1, &mut parameters, grads)?;
                    assert_eq!(adamw.loss_scale().item()?, adamw.status_blocking()?.loss_scale);
                    adamw.loss_scale().item()
                })
                .collect()
        };
        let (yes, no) = (true, false);
        let scales = run(dynamic(8.0, 3), &[yes, yes, no, yes, yes, yes, yes, yes, yes])?;
        assert_eq!(scales, [8.0, 8.0, 4.0, 4.0, 4.0, 8.0, 8.0, 8.0, 16.0]);
        let top = 2f64.powi(24);
        assert_eq!(run(dynamic(top, 1), &[yes])?, [top]);
        assert_eq!(run(dynamic(1.0 / top, 1), &[no])?, [1.0 / top]);
        assert_eq!(run(AdamWOptions::default(), &[yes, no, yes])?, [1.0; 3]);
    }
    Ok(())
}

/// Scaled and unscaled gradients give the same step. With so large an eps it depends on their size.
#[test]
fn steps_divide_by_the_loss_scale() -> Result<()> {
    for device in devices() {
        let mut results = Vec::new();
        for scale in [1.0, 1024.0] {
            let mut w = [Tensor::randn(&[100], 3, DType::F32, &device)?.tracked()];
            let options = AdamWOptions { eps: 0.1, ..dynamic(scale, 100) };
            let mut adamw = AdamW::new(options, &with_groups(&w, &[Group::default()]))?;
            for _ in 0..3 {
                let grads = w[0].exp()?.sum()?.backward_from(adamw.loss_scale())?;
                adamw.step(0.1, &mut [&mut w[0]], &grads)?;
            }
            results.push((array(&w[0]), adamw.status_blocking()?.norm));
        }
        let [(one, norm), (other, other_norm)] = &results[..] else { unreachable!() };
        assert!((norm / other_norm - 1.0).abs() < 1e-6, "{norm} and {other_norm}");
        for (a, b) in one.data.iter().zip(&other.data) {
            assert!((a - b).abs() <= 1e-6, "{a} and {b} on {}", device.name());
        }
    }
    Ok(())
}

/// In f32 the square of a norm above 1.8e19 would leave an infinity in `v`, and the parameter would never move again.
#[test]
fn a_norm_whose_square_is_not_finite_skips_the_step() -> Result<()> {
    for device in devices() {
        let mut w = [Tensor::ones(&[3], DType::F32, &device)?.tracked()];
        let mut adamw = AdamW::new(AdamWOptions::default(), &with_groups(&w, &[Group::default()]))?;
        for size in [3e19, 1e30] {
            step(&mut adamw, 0.1, &mut w, &[Tensor::full(&[3], size, DType::F32, &device)?])?;
        }
        assert_eq!(array(&w[0]).data, [1.0; 3]);
        step(&mut adamw, 0.1, &mut w, &[Tensor::full(&[3], 1e18, DType::F32, &device)?])?;
        assert!((array(&w[0]).data[0] - 0.9).abs() < 0.01);
        let Status { steps, skipped, .. } = adamw.status_blocking()?;
        assert_eq!((steps, skipped), (1, 2));
    }
    Ok(())
}

/// On the CPU squares are summed in f64: neither end of f32 is lost.
#[test]
fn the_norm_of_tiny_gradients_is_not_zero() -> Result<()> {
    let mut w = [Tensor::ones(&[4], DType::F32, &Device::Cpu)?.tracked()];
    let mut adamw = AdamW::new(AdamWOptions::default(), &with_groups(&w, &[Group::default()]))?;
    step(&mut adamw, 0.1, &mut w, &[Tensor::full(&[4], 1e-30, DType::F32, &Device::Cpu)?])?;
    let norm = adamw.status_blocking()?.norm;
    assert!((norm / 2e-30 - 1.0).abs() < 1e-6, "{norm}");
    Ok(())
}

#[test]
fn clones_and_graphs_keep_the_values_of_before_a_step() -> Result<()> {
    for (device, dtype) in everywhere() {
        let what = format!("{dtype} on {}", device.name());
        let mut w = Tensor::full(&[3], 2.0, dtype, &device)?.tracked();
        let options = AdamWOptions::default();
        let mut adamw = AdamW::new(options, &[(&w, Group::without_decay())])?;
        let clone = w.clone();
        let earlier = w.mul(&w)?.sum()?;
        let later = w.mul(&w)?.sum()?;
        adamw.step(0.5, &mut [&mut w], &earlier.backward()?)?;
        assert_eq!(array(&clone).data, [2.0; 3], "{what}: a clone");
        assert!(array(&w).data.iter().all(|x| (x - 1.5).abs() < 1e-2), "{what}: the parameter");
        let grads = later.backward()?;
        assert_eq!(
            array(grads.of(&w)?).data,
            [4.0; 3],
            "{what}: the slope of before, by the same leaf"
        );
        // Nobody else's now: the step is in place, and the leaf is still the same.
        drop(clone);
        adamw.step(0.5, &mut [&mut w], &grads)?;
        let grads = w.sum()?.backward()?;
        assert_eq!(array(grads.of(&w)?).data, [1.0; 3], "{what}");
    }
    Ok(())
}

/// A gradient may share the memory of what a step changes.
#[test]
fn a_parameter_that_is_its_own_gradient_is_updated_once() -> Result<()> {
    for device in devices() {
        let mut w = Tensor::full(&[70_000], 2.0, DType::F32, &device)?.tracked();
        let mut adamw = AdamW::new(AdamWOptions::default(), &[(&w, Group::without_decay())])?;
        let grads = w.backward_from(&w)?;
        adamw.step(0.5, &mut [&mut w], &grads)?;
        assert!(array(&w).data.iter().all(|x| (x - 1.5).abs() < 1e-5));
        assert!(array(grads.of(&w)?).data.iter().all(|x| *x == 2.0));
    }
    Ok(())
}

/// Steps of a small network, with a gradient that is not finite in between.
struct Training {
    parameters: Vec<Tensor>,
    adamw: AdamW,
    x: Tensor,
    targets: Tensor,
}

impl Training {
    fn new(dtype: DType, device: &Device) -> Result<Training> {
        let leaf = |shape: &[usize], seed| -> Result<Tensor> {
            Ok(Tensor::randn(shape, seed, DType::F32, device)?.cast(dtype)?.tracked())
        };
        let parameters = vec![leaf(&[7, 33], 1)?, leaf(&[33], 2)?, leaf(&[33, 5], 3)?];
        let groups = [Group::default(), Group::without_decay(), Group::default()];
        let adamw = AdamW::new(dynamic(256.0, 4), &with_groups(&parameters, &groups))?;
        let x = Tensor::randn(&[16, 7], 4, DType::F32, device)?.cast(dtype)?;
        let targets = Tensor::arange(0, 16, DType::U32, &Device::Cpu)?;
        let targets: Vec<u32> = array(&targets).data.iter().map(|&i| i as u32 % 5).collect();
        Ok(Training { parameters, adamw, x, targets: Tensor::new(&targets, &[16], device)? })
    }

    fn step(&mut self, i: u64) -> Result<()> {
        let [w1, b1, w2] = &self.parameters[..] else { unreachable!() };
        let hidden = linear(&self.x, w1, Some(b1), Activation::Silu)?;
        let logits = linear(&hidden, w2, None, Activation::None)?;
        let mut loss = cross_entropy(&logits, &self.targets, None)?;
        if i == 2 {
            loss = loss.scale(f64::INFINITY)?;
        }
        let grads = loss.backward_from(self.adamw.loss_scale())?;
        let mut parameters: Vec<&mut Tensor> = self.parameters.iter_mut().collect();
        self.adamw.step(0.01 / (i + 1) as f64, &mut parameters, &grads)
    }
}

#[test]
fn a_loaded_state_goes_on_bit_for_bit() -> Result<()> {
    for (device, dtype) in everywhere() {
        let mut whole = Training::new(dtype, &device)?;
        (0..10).try_for_each(|i| whole.step(i))?;

        let mut first = Training::new(dtype, &device)?;
        (0..5).try_for_each(|i| first.step(i))?;
        // Through the host, as a checkpoint goes, and in another order.
        let mut state = first
            .adamw
            .state()
            .into_iter()
            .map(|(name, tensor)| Ok((name, tensor.to(&Device::Cpu)?)))
            .collect::<Result<Vec<_>>>()?;
        state.reverse();
        let saved = first.parameters.iter().map(array).collect::<Vec<_>>();
        let status = first.adamw.status_blocking()?;
        let mut second = Training::new(dtype, &device)?;
        second.parameters = saved.iter().map(|p| tensor(p, dtype, &device).tracked()).collect();
        second.adamw.load_state(&state)?;
        assert_eq!(second.adamw.status_blocking()?, status);
        assert_eq!((status.steps, status.skipped), (4, 1));
        (5..10).try_for_each(|i| second.step(i))?;
        let what = format!("{dtype} on {}", device.name());
        let same = bits(&second.adamw, &second.parameters) == bits(&whole.adamw, &whole.parameters);
        assert!(same, "{what}");
    }
    Ok(())
}

/// As `AdamW::state` gives it.
type State = Vec<(String, Tensor)>;

#[test]
fn a_state_of_another_optimiser_is_refused_and_changes_nothing() -> Result<()> {
    let device = &Device::Cpu;
    let w = Tensor::ones(&[2, 3], DType::BF16, device)?.tracked();
    let mut adamw = AdamW::new(dynamic(4.0, 9), &[(&w, Group::default())])?;
    let state = adamw.state();
    let names: Vec<&str> = state.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["m.0", "v.0", "master.0", "record", "loss_scale"]);
    let mut refused = |change: &dyn Fn(&mut State)| {
        let mut state = adamw.state();
        // What could be loaded, were the rest right.
        state[0].1 = Tensor::ones(&[2, 3], DType::F32, device).unwrap();
        change(&mut state);
        let error = adamw.load_state(&state).unwrap_err().to_string();
        assert_eq!(array(&adamw.state()[0].1).data, [0.0; 6], "{error}");
        error
    };
    assert_eq!(refused(&|s| drop(s.remove(1))), "load_state: \"v.0\" is missing");
    assert_eq!(
        refused(&|s| s[2].1 = s[2].1.reshape(&[3, 2]).unwrap()),
        "load_state: \"master.0\" is [3, 2] in f32, expected [2, 3] in f32"
    );
    assert_eq!(
        refused(&|s| s[1].1 = s[1].1.cast(DType::F64).unwrap()),
        "load_state: \"v.0\" is [2, 3] in f64, expected [2, 3] in f32"
    );
    assert_eq!(
        refused(&|s| s.push(("v.1".into(), s[1].1.clone()))),
        "load_state: \"v.1\" is no name of this state"
    );
    assert_eq!(
        refused(&|s| s.push(s[1].clone())),
        "load_state: \"v.0\" is there twice, expected each name once"
    );
    Ok(())
}

#[test]
fn threads_do_not_change_a_bit() -> Result<()> {
    let run = |threads: usize, dtype: DType| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| -> Result<_> {
            let leaf = |(i, n): (usize, usize)| -> Result<Tensor> {
                Ok(Tensor::randn(&[n], i as u64, dtype, &Device::Cpu)?.tracked())
            };
            let lengths = [100_001, 3, 50_000, 17];
            let mut w: Vec<Tensor> =
                lengths.into_iter().enumerate().map(leaf).collect::<Result<_>>()?;
            let options = AdamWOptions { max_norm: Some(1.0), ..AdamWOptions::default() };
            let mut adamw = AdamW::new(options, &with_groups(&w, &[Group::default(); 4]))?;
            for _ in 0..3 {
                let grads: Vec<Tensor> = w.iter().map(Tensor::detached).collect();
                step(&mut adamw, 0.1, &mut w, &grads)?;
            }
            Ok(bits(&adamw, &w))
        })
    };
    for dtype in FLOATS {
        let one = run(1, dtype)?;
        assert!(run(2, dtype)? == one && run(3, dtype)? == one, "{dtype}");
    }
    Ok(())
}

/// Slopes of 2⁻²⁷ are 0 in f16, and so would be what is learned from them.
#[test]
fn loss_scaling_lets_f16_learn_from_gradients_that_would_underflow() -> Result<()> {
    for device in devices().into_iter().filter(|device| device.supports(DType::F16)) {
        let run = |loss_scale: LossScale| -> Result<(Array, Status)> {
            let mut w = Tensor::ones(&[8], DType::F16, &device)?.tracked();
            let options = AdamWOptions { loss_scale, ..AdamWOptions::default() };
            let mut adamw = AdamW::new(options, &[(&w, Group::without_decay())])?;
            for _ in 0..20 {
                let loss = w.cast(DType::F32)?.sum()?.scale(2f64.powi(-27))?;
                let grads = loss.backward_from(adamw.loss_scale())?;
                adamw.step(1e-2, &mut [&mut w], &grads)?;
            }
            Ok((array(&w), adamw.status_blocking()?))
        };
        let (w, status) = run(LossScale::None)?;
        assert_eq!((w.data, status.norm), (vec![1.0; 8], 0.0));
        let (w, status) = run(LossScale::dynamic())?;
        assert_eq!(status.skipped, 0);
        let norm = 8f64.sqrt() * 2f64.powi(-27);
        assert!((status.norm / norm - 1.0).abs() < 1e-6, "{}", status.norm);
        // m̂/√v̂ is 1 for a constant gradient; eps, 1e-8, is not small beside 2⁻²⁷.
        let want = 1.0 - 20.0 * 1e-2 / (1.0 + 1e-8 * 2f64.powi(27));
        for w in w.data {
            assert!((w - want).abs() < 1e-3, "{w}, want {want}");
        }
    }
    Ok(())
}

#[test]
fn accumulated_micro_batches_are_one_large_batch() -> Result<()> {
    for (device, dtype) in everywhere() {
        let Training { parameters, adamw, x, targets } = Training::new(dtype, &device)?;
        let [w1, b1, w2] = &parameters[..] else { unreachable!() };
        let loss = |rows: std::ops::Range<usize>| -> Result<Tensor> {
            let hidden = linear(&x.slice(0, rows.clone())?, w1, Some(b1), Activation::Silu)?;
            let logits = linear(&hidden, w2, None, Activation::None)?;
            cross_entropy(&logits, &targets.slice(0, rows)?, None)
        };
        let whole = loss(0..16)?.backward_from(adamw.loss_scale())?;
        let mut sum = Grads::default();
        for i in 0..4 {
            let upstream = adamw.loss_scale().scale(0.25)?;
            sum.accumulate(loss(4 * i..4 * (i + 1))?.backward_from(&upstream)?)?;
        }
        let within = harness::tolerance(dtype).grad;
        for parameter in &parameters {
            let (got, want) = (sum.of(parameter)?, array(whole.of(parameter)?));
            let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
            assert_eq!(got.dtype(), wide);
            let rms = want.rms();
            for (got, want) in array(got).data.iter().zip(&want.data) {
                let off = (got - want).abs();
                assert!(off <= within * (want.abs() + rms), "{dtype}: got {got}, want {want}");
            }
        }
    }
    Ok(())
}

/// 1 + 2⁻¹² is no f16, but a sum of two.
#[test]
fn sums_of_f16_gradients_are_not_rounded_and_a_step_takes_them() -> Result<()> {
    for device in devices().into_iter().filter(|device| device.supports(DType::F16)) {
        let mut w = [Tensor::ones(&[3], DType::F16, &device)?.tracked()];
        let grad = |x: f64| Tensor::full(&[3], x, DType::F16, &device);
        let mut grads = grads_of(&w, &[grad(1.0)?])?;
        grads.accumulate(grads_of(&w, &[grad(2f64.powi(-12))?])?)?;
        assert_eq!(array(grads.of(&w[0])?).data, [1.0 + 2f64.powi(-12); 3]);
        let mut adamw =
            AdamW::new(AdamWOptions::default(), &with_groups(&w, &[Group::without_decay()]))?;
        adamw.step(0.25, &mut [&mut w[0]], &grads)?;
        assert_eq!(w[0].read_blocking::<f16>()?, [f16::from_f32(0.75); 3]);
        let m = array(&adamw.state()[0].1);
        let want = 0.1 * (1.0 + 2f64.powi(-12));
        assert!(m.data.iter().all(|m| (m / want - 1.0).abs() < 1e-6), "{:?}", m.data);
    }
    Ok(())
}

/// A thousand steps of 2⁻¹³ each: added to the rounded parameter, none would count.
#[test]
fn master_copies_add_up_what_the_parameter_would_round_away() -> Result<()> {
    for (device, dtype) in everywhere() {
        if !matches!(dtype, DType::F16 | DType::BF16) {
            continue;
        }
        let mut w = [Tensor::ones(&[3], dtype, &device)?.tracked()];
        let mut adamw =
            AdamW::new(AdamWOptions::default(), &with_groups(&w, &[Group::without_decay()]))?;
        let grad = [Tensor::ones(&[3], dtype, &device)?];
        for _ in 0..1000 {
            step(&mut adamw, 2f64.powi(-13), &mut w, &grad)?;
        }
        let want = 1.0 - 1000.0 * 2f64.powi(-13);
        for w in array(&w[0]).data {
            assert!((w - want).abs() < 4e-3, "{dtype} on {}: {w}, want {want}", device.name());
        }
    }
    Ok(())
}

#[test]
fn mistakes_are_errors_that_say_what_was_expected() -> Result<()> {
    let device = &Device::Cpu;
    let leaf = |shape: &[usize], dtype| -> Result<Tensor> {
        Ok(Tensor::ones(shape, dtype, device)?.tracked())
    };
    let (mut a, mut b) = (leaf(&[2], DType::F32)?, leaf(&[3], DType::F16)?);
    let group = Group::default();
    let said = |result: Result<AdamW>| result.err().unwrap().to_string();
    let default = AdamWOptions::default();
    assert_eq!(said(AdamW::new(default, &[])), "adamw: no parameters found, expected some");
    let tokens = Tensor::zeros(&[2], DType::U32, device)?;
    assert_eq!(
        said(AdamW::new(default, &[(&tokens, group)])),
        "adamw: a parameter is u32, expected a float"
    );
    for (options, what) in [
        (AdamWOptions { beta1: 1.0, ..default }, "beta1 is 1, expected at least 0 and less than 1"),
        (
            AdamWOptions { beta2: f64::NAN, ..default },
            "beta2 is NaN, expected at least 0 and less than 1",
        ),
        (AdamWOptions { eps: 0.0, ..default }, "eps is 0, expected a number above 0"),
        (
            AdamWOptions { max_norm: Some(-1.0), ..default },
            "max_norm is -1, expected a number above 0",
        ),
        (dynamic(3.0, 1), "the initial loss scale is 3, expected a power of two from 2⁻²⁴ to 2²⁴"),
        (dynamic(2.0, 0), "growth_interval is 0, expected 1 or more"),
    ] {
        assert_eq!(said(AdamW::new(options, &[(&a, group)])), format!("adamw: {what}"));
    }
    let odd = Group { weight_decay: -0.1, ..group };
    let error = said(AdamW::new(default, &[(&a, odd)]));
    assert_eq!(error, "adamw: weight_decay is -0.1, expected 0 or more");

    let mut adamw = AdamW::new(default, &[(&a, group), (&b, group)])?;
    let both = grads_of(&[a.clone(), b.clone()], &[a.detached(), b.detached()])?;
    let before = bits(&adamw, &[a.clone(), b.clone()]);
    let mut refused = |lr, parameters: &mut [&mut Tensor], grads: &Grads| {
        adamw.step(lr, parameters, grads).unwrap_err().to_string()
    };
    assert_eq!(
        refused(f64::NAN, &mut [&mut a, &mut b], &both),
        "adamw: the learning rate is NaN, expected 0 or more"
    );
    assert_eq!(refused(0.1, &mut [&mut a], &both), "adamw: 1 parameters found, expected 2");
    assert_eq!(
        refused(0.1, &mut [&mut b, &mut a], &both),
        "adamw: parameter 0 is [3] in f16, expected [2] in f32"
    );
    let only_a = a.sum()?.backward()?;
    assert_eq!(
        refused(0.1, &mut [&mut a, &mut b], &only_a),
        "adamw: parameter 1 has no gradient: the result does not depend on the tensor"
    );
    assert_eq!(
        refused(0.1, &mut [&mut a.detached(), &mut b], &both),
        "adamw: parameter 0 has no gradient: the tensor is not tracked"
    );
    assert_eq!(bits(&adamw, &[a, b]), before);
    Ok(())
}
