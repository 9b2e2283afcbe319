//! SGD against PyTorch, and on every device and type against its formulas; groups by name.

use super::formulas::{golden, tolerance};
use super::*;
use taipan::nn::{Initializer, Linear, Module};
use taipan::optim::{Momentum, Sgd, SgdOptions};

const GROUPS: [Group; 3] = [
    Group { lr_scale: 1.0, weight_decay: 0.1 },
    Group { lr_scale: 1.0, weight_decay: 0.0 },
    Group { lr_scale: 0.5, weight_decay: 0.01 },
];

fn options(kind: Momentum) -> SgdOptions {
    SgdOptions { kind, max_norm: Some(1.0), ..SgdOptions::default() }
}

fn step(sgd: &mut Sgd, lr: f64, parameters: &mut [Tensor], grads: &[Tensor]) -> Result<()> {
    let grads = grads_of(parameters, grads)?;
    sgd.step(lr, &mut parameters.iter_mut().collect::<Vec<_>>(), &grads)
}

/// `torch.optim.SGD` with `clip_grad_norm_`, in f64: `tests/golden/optim.py` made the values.
#[test]
fn sgd_with_clipping_is_that_of_pytorch() -> Result<()> {
    let cases: Value = serde_json::from_str(include_str!("../golden/sgd.json")).unwrap();
    let each = |value: &Value| value.as_array().unwrap().clone();
    let double = |value: &Value| tensor(&golden(value), DType::F64, &Device::Cpu);
    for (case, kind) in each(&cases).iter().zip([Momentum::Polyak, Momentum::Nesterov]) {
        assert_eq!(case["nesterov"].as_bool().unwrap(), kind == Momentum::Nesterov);
        let mut parameters: Vec<Tensor> =
            each(&case["parameters"]).iter().map(|p| double(p).tracked()).collect();
        let mut sgd = Sgd::new(options(kind), &with_groups(&parameters, &GROUPS))?;
        for (i, golden_step) in each(&case["steps"]).iter().enumerate() {
            let grads: Vec<Tensor> = each(&golden_step["grads"]).iter().map(double).collect();
            step(&mut sgd, golden_step["lr"].as_f64().unwrap(), &mut parameters, &grads)?;
            for (got, want) in parameters.iter().zip(each(&golden_step["parameters"])) {
                for (got, want) in array(got).data.iter().zip(golden(&want).data) {
                    let error = (got - want).abs();
                    assert!(
                        error <= 1e-14 * (1.0 + want.abs()),
                        "{kind:?}, step {i}: off by {error:e}"
                    );
                }
            }
        }
    }
    Ok(())
}

#[test]
fn every_type_on_every_device_follows_the_formulas() -> Result<()> {
    const STEPS: usize = 6;
    let lengths = [1, 0, 257, 4097, 16_387, 5];
    let groups: Vec<Group> = (0..lengths.len()).map(|i| GROUPS[i % 3]).collect();
    for (device, dtype) in everywhere() {
        for kind in [Momentum::Polyak, Momentum::Nesterov] {
            let what = format!("{kind:?} in {dtype} on {}", device.name());
            let mut random = Random::named(&what);
            let mut draw = || -> Vec<Array> {
                let draw = |&n: &usize| random.draw(&input(&[n])).map(|x| round(x, dtype));
                lengths.iter().map(draw).collect()
            };
            let mut theta = draw();
            let mut m: Vec<Array> = theta.iter().map(|theta| theta.map(|_| 0.0)).collect();
            let mut parameters: Vec<Tensor> =
                theta.iter().map(|p| tensor(p, dtype, &device).tracked()).collect();
            let options = SgdOptions { max_norm: None, ..options(kind) };
            let mut sgd = Sgd::new(options, &with_groups(&parameters, &groups))?;
            for i in 0..STEPS {
                let (lr, grads) = (0.01 * (i + 1) as f64, draw());
                for ((theta, m), (grad, group)) in
                    theta.iter_mut().zip(&mut m).zip(grads.iter().zip(&groups))
                {
                    for ((theta, m), grad) in theta.data.iter_mut().zip(&mut m.data).zip(&grad.data)
                    {
                        let g = grad + group.weight_decay * *theta;
                        *m = 0.9 * *m + g;
                        let along = if kind == Momentum::Nesterov { g + 0.9 * *m } else { *m };
                        *theta -= lr * group.lr_scale * along;
                    }
                }
                let grads: Vec<Tensor> = grads.iter().map(|g| tensor(g, dtype, &device)).collect();
                step(&mut sgd, lr, &mut parameters, &grads)?;
            }
            for (i, (got, want)) in parameters.iter().zip(&theta).enumerate() {
                for (j, (got, want)) in array(got).data.iter().zip(&want.data).enumerate() {
                    // A moment of SGD is up to ten gradients.
                    let within = tolerance(dtype, STEPS, 10.0 * 0.06, *want);
                    let error = (got - want).abs();
                    assert!(error <= within, "{what}: parameter {i} at {j}: off by {error:e}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn a_state_continues_bit_for_bit() -> Result<()> {
    for (device, dtype) in everywhere() {
        let draw = |seed| Tensor::randn(&[300], seed, DType::F32, &device)?.cast(dtype);
        let run = |restart: bool| -> Result<Vec<f64>> {
            let mut parameters = vec![draw(1)?.tracked(), draw(2)?.tracked()];
            let groups = [Group::default(); 2];
            let new = |parameters: &[Tensor]| {
                Sgd::new(options(Momentum::Nesterov), &with_groups(parameters, &groups))
            };
            let mut sgd = new(&parameters)?;
            for i in 0..6 {
                if restart && i == 3 {
                    let state = sgd.state();
                    sgd = new(&parameters)?;
                    sgd.load_state(&state)?;
                }
                step(&mut sgd, 0.1, &mut parameters, &[draw(10 + i)?, draw(20 + i)?])?;
            }
            Ok(parameters.iter().flat_map(|p| array(p).data).collect())
        };
        assert_eq!(run(false)?, run(true)?, "{dtype} on {}", device.name());
    }
    Ok(())
}

#[test]
fn groups_are_found_by_name() -> Result<()> {
    for device in devices() {
        let mut layer = Linear::new(3, 2, &mut Initializer::new(1, DType::F32, &device))?;
        let read = |layer: &Linear| -> Vec<Vec<f64>> {
            layer.parameters().into_iter().map(|(_, p)| array(p).data).collect()
        };
        let before = read(&layer);
        let still = Group { lr_scale: 0.0, ..Group::default() };
        let plain = SgdOptions { momentum: 0.0, ..SgdOptions::default() };
        let groups = [("bias", still), ("*", Group::without_decay())];
        let mut sgd = Sgd::for_module(plain, &layer, &groups)?;
        let x = Tensor::ones(&[1, 3], DType::F32, &device)?;
        let grads = layer.forward(&x)?.sum()?.backward()?;
        sgd.step_module(0.5, &mut layer, &grads)?;
        let after = read(&layer);
        assert_eq!(before[1], after[1], "a learning rate of 0");
        for (before, after) in before[0].iter().zip(&after[0]) {
            assert!((before - 0.5 - after).abs() < 1e-6, "{before} {after}");
        }
        layer.freeze("weight")?;
        let mut sgd = Sgd::for_module(plain, &layer, &[])?;
        let grads = layer.forward(&x)?.sum()?.backward()?;
        sgd.step_module(0.5, &mut layer, &grads)?;
        assert_eq!(read(&layer)[0], after[0], "frozen");
        assert_ne!(read(&layer)[1], after[1]);
        assert_eq!(
            Sgd::for_module(plain, &layer, &[("*.bias", still)]).err().unwrap().to_string(),
            "sgd: \"*.bias\" matches no parameter, expected names like weight or bias"
        );
        assert_eq!(
            sgd.step_module(0.5, &mut layer, &Grads::default()).unwrap_err().to_string(),
            "sgd: bias has no gradient: the result does not depend on the tensor"
        );
    }
    let odd = SgdOptions { momentum: 1.0, ..SgdOptions::default() };
    let w = Tensor::ones(&[1], DType::F32, &Device::Cpu)?;
    assert_eq!(
        Sgd::new(odd, &[(&w, Group::default())]).err().unwrap().to_string(),
        "sgd: momentum is 1, expected at least 0 and less than 1"
    );
    Ok(())
}
