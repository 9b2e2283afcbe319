//! The norm of all gradients, what is skipped for it, and the loss scale.

use super::*;

/// Hundreds of tensors of sizes around multiples of a block, and one with more workgroups
/// than a dimension of a dispatch has: each gradient counts once.
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
            // m shows that the clip was applied, and θ that every element moved, by lr in the first
            // step.
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
                all.truncate(all.len() - 2); // the counters and the loss scale
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

/// In f32 the square of a norm above 1.8e19 would leave an infinity in `v`, and the parameter would
/// never move again.
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
