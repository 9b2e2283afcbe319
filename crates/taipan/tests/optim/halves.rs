//! f16 and bf16: loss scale, sums and master copies.

use super::*;

/// Gradients of 2⁻²⁷ underflow in f16.
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
        let within = taipan::check::tolerance(dtype).grad;
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

/// 1 + 2⁻¹² is a sum of two f16, but not an f16.
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
