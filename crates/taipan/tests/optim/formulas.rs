//! Steps against PyTorch's, and against the formulas in f64.

use super::*;

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

pub(super) fn golden(value: &Value) -> Array {
    let list = |value: &Value| value.as_array().unwrap().clone();
    Array {
        shape: list(&value["shape"]).iter().map(|n| n.as_u64().unwrap() as usize).collect(),
        data: list(&value["data"]).iter().map(|x| x.as_f64().unwrap()).collect(),
    }
}

/// 20 steps of `torch.optim.AdamW` with `clip_grad_norm_`, in f64: `tests/golden/optim.py` made
/// them.
#[test]
fn adamw_with_clipping_is_that_of_pytorch() -> Result<()> {
    let case: Value = serde_json::from_str(include_str!("../golden/optim.json")).unwrap();
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

/// How far θ may be from that of f64 after so many steps: in each, θ and the update, of about `lr`,
/// are rounded in the wide type, after some ten operations on the update. In f16 and bf16 θ is
/// rounded once more.
pub(super) fn tolerance(dtype: DType, steps: usize, lr: f64, theta: f64) -> f64 {
    let wide = if dtype == DType::F64 { 2f64.powi(-53) } else { 2f64.powi(-24) };
    let taipan::check::Tolerance { value, tiny, .. } = taipan::check::tolerance(dtype);
    let narrow = if matches!(dtype, DType::F16 | DType::BF16) { value } else { 0.0 };
    steps as f64 * wide * (theta.abs() + 32.0 * lr) + narrow * theta.abs() + tiny
}

#[test]
fn every_type_on_every_device_follows_the_formulas() -> Result<()> {
    const STEPS: usize = 12;
    // More than one launch on a GPU takes, and sizes next to those of its blocks.
    let lengths =
        [1, 0, 3, 257, 1025, 16_384, 16_387, 70_001, 4095, 4096, 4097, 5, 6, 7, 8, 9, 10, 11];
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
