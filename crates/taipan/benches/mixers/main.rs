//! The scan of Mamba-2 and attention, forward and backward, against the peak of the multiply-adds in
//! their products; and a step of decoding of each.

#[path = "../report/mod.rs"]
mod report;

use report::{Contender, Options, Row, cpu_ms, race, race_by, wait};
use taipan::gpu::Gpu;
use taipan::{Attention, DType, Device, Result, Ssd, Tensor, attention, no_grad, ssd};

fn main() -> Result<()> {
    report::run(
        |options| {
            let peak = options.peak();
            compare(options, &Device::Cpu, Some(peak), [4, 1])
        },
        |options: &Options, gpu: &Gpu| {
            let device = Device::Gpu(gpu.clone());
            options.say(&device.describe());
            compare(options, &device, None, [1, 4])
        },
    )
}

/// With sequences shorter than on the CPU by the second factor.
fn compare(
    options: &Options,
    device: &Device,
    peak: Option<f64>,
    [batch, shorter]: [usize; 2],
) -> Result<()> {
    // The time of the one thread does not count what other programs take.
    let race = |contenders: &mut [Contender]| match peak.is_some() && options.threads == 1 {
        true => race_by(cpu_ms, contenders),
        false => race(contenders),
    };
    let report = |op, shape: &[usize], ms: f64, multiply_adds: f64| {
        let shape: Vec<_> = shape.iter().map(usize::to_string).collect();
        let (baseline, baseline_ms) = match peak {
            Some(peak) => ("FMA peak", 2e-6 * multiply_adds / peak),
            None => ("itself", ms),
        };
        let (shape, dtype) = (shape.join("x"), "f32".into());
        options.report(&Row { op, shape, dtype, ms, baseline, baseline_ms });
    };

    let [b, l, h, p, n] = [batch, 1024 / shorter, 24, 64, 128];
    let scan = ScanInputs::new([b, l, h, p, n], device)?;
    let ms = race(&mut [scan.forward(), scan.forward_backward()]);
    // Chunks of 64 rows; the products q·kᵀ are shared by all heads.
    let (tokens, (hf, pf, nf)) = ((b * l) as f64, (h as f64, p as f64, n as f64));
    let forward = tokens * (64.0 * nf + hf * (64.0 * pf + 2.0 * pf * nf));
    let backward = tokens * (3.0 * 64.0 * nf + hf * (2.0 * 64.0 * pf + 4.0 * pf * nf));
    report("ssd.forward", &[b, l, h, p, n], ms[0], forward);
    report("ssd.forward_backward", &[b, l, h, p, n], ms[1], forward + backward);

    const STEPS: usize = 100;
    let step = ScanInputs::new([1, 1, h, p, n], device)?;
    let ms = race(&mut [step.steps(STEPS)])[0] / STEPS as f64;
    report("ssd.step", &[1, 1, h, p, n], ms, 2.0 * hf * pf * nf);

    let [b, l, h, d] = [1, 2048 / shorter, 12, 64];
    let heads = AttentionInputs::new([b, l, l, h, d], device)?;
    let ms = race(&mut [heads.forward(), heads.forward_backward()]);
    // Half of the products of all queries with all keys.
    let product = (b * h * d * l * (l + 1) / 2) as f64;
    report("attention.forward", &[b, l, h, d], ms[0], 2.0 * product);
    report("attention.forward_backward", &[b, l, h, d], ms[1], 7.0 * product);

    let step = AttentionInputs::new([1, 1, l, h, d], device)?;
    let ms = race(&mut [step.forward()])[0];
    report("attention.step", &[1, 1, h, d], ms, 2.0 * (l * h * d) as f64);
    Ok(())
}

struct ScanInputs {
    x: Tensor,
    a: Tensor,
    k: Tensor,
    q: Tensor,
    scale: Tensor,
    d: Tensor,
}

impl ScanInputs {
    fn new([b, l, h, p, n]: [usize; 5], device: &Device) -> Result<ScanInputs> {
        let random = |shape: &[usize], seed| Tensor::randn(shape, seed, DType::F32, device);
        let scale = Tensor::rand(&[b, l, h], 4, DType::F32, device)?.scale(0.1)?;
        Ok(ScanInputs {
            x: random(&[b, l, h, p], 1)?,
            a: scale.scale(-4.0)?,
            k: random(&[b, l, 1, n], 2)?,
            q: random(&[b, l, 1, n], 3)?,
            scale,
            d: Tensor::ones(&[h], DType::F32, device)?,
        })
    }

    fn scan(&self) -> Ssd<'_> {
        let ScanInputs { x, a, k, q, scale, d } = self;
        Ssd { scale: Some(scale), d: Some(d), ..Ssd::new(x, a, k, q) }
    }

    fn forward(&self) -> Contender<'_> {
        Box::new(move || {
            Box::new(move || {
                ssd(&self.scan()).expect("forward");
                wait(self.x.device());
            })
        })
    }

    fn forward_backward(&self) -> Contender<'_> {
        Box::new(move || {
            let [x, a, k, q, scale, d] = [&self.x, &self.a, &self.k, &self.q, &self.scale, &self.d]
                .map(|tensor| tensor.clone().tracked());
            Box::new(move || {
                let inputs = ScanInputs { x, a, k, q, scale, d };
                let (y, _) = ssd(&inputs.scan()).expect("forward");
                let grads = y.backward_from(&self.x).expect("backward");
                grads.of(&inputs.x).expect("a gradient");
                wait(self.x.device());
            })
        })
    }

    fn steps(&self, steps: usize) -> Contender<'_> {
        Box::new(move || {
            Box::new(move || {
                let mut state = None;
                for _ in 0..steps {
                    let scan = Ssd { initial_state: state.as_ref(), ..self.scan() };
                    state = Some(no_grad(|| ssd(&scan)).expect("a step").1);
                }
                wait(self.x.device());
            })
        })
    }
}

struct AttentionInputs {
    q: Tensor,
    k: Tensor,
    v: Tensor,
}

impl AttentionInputs {
    fn new([b, l, s, h, d]: [usize; 5], device: &Device) -> Result<AttentionInputs> {
        let random = |l, seed| Tensor::randn(&[b, l, h, d], seed, DType::F32, device);
        Ok(AttentionInputs { q: random(l, 1)?, k: random(s, 2)?, v: random(s, 3)? })
    }

    fn forward(&self) -> Contender<'_> {
        Box::new(move || {
            Box::new(move || {
                attention(&Attention::new(&self.q, &self.k, &self.v)).expect("forward");
                wait(self.q.device());
            })
        })
    }

    fn forward_backward(&self) -> Contender<'_> {
        Box::new(move || {
            let [q, k, v] = [&self.q, &self.k, &self.v].map(|tensor| tensor.clone().tracked());
            Box::new(move || {
                let o = attention(&Attention::new(&q, &k, &v)).expect("forward");
                let grads = o.backward_from(&self.q).expect("backward");
                grads.of(&q).expect("a gradient");
                wait(self.q.device());
            })
        })
    }
}
