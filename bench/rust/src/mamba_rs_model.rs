//! mamba-rs: its CPU trainer, and its language model, with its fastest features for the CPU.

use std::time::Instant;

use mamba_rs::hf::{HfMambaModel, load_mamba};
use mamba_rs::optim::BackwardOpts;
use mamba_rs::{MambaBackbone, MambaCpuTrainer, MambaLM, SampleParams, TrainSessionCfg};
use rayon::prelude::*;

use crate::case::{Case, LEARNING_RATE, MAX_NORM, STEPS, log_softmax};
use crate::clock::{Clock, cpu_seconds};
use crate::products::{Matrix, gemm};
use crate::{Contestant, Output, Result, unsupported};

pub fn prepare(case: &Case) -> Result<Box<dyn Contestant>> {
    // On the CPU its other types are f32, rounded.
    if case.dtype != "f32" {
        return unsupported(&case.dtype);
    }
    let model = load_mamba(&case.inputs)?;
    match case.task.as_str() {
        "step" => Ok(Box::new(Training::new(model, case)?)),
        task => Ok(Box::new(Run::new(model, case, task == "decode")?)),
    }
}

/// A step of its trainer. That trains the layers; embedding, head and loss are ours, by the crate
/// `gemm`, as its own products are.
struct Training {
    trainer: MambaCpuTrainer,
    /// `[vocab, d]`, tied.
    embedding: Vec<f32>,
    moments: [Vec<f32>; 2],
    steps: i32,
    d: usize,
    vocab: usize,
    ids: Vec<u32>,
    targets: Vec<u32>,
}

impl Training {
    fn new(model: HfMambaModel, case: &Case) -> Result<Training> {
        let (batch, length) = (case.size("batch")?, case.size("length")?);
        let d = model.cfg.d_model;
        let session = TrainSessionCfg {
            lr: LEARNING_RATE as f32,
            weight_decay: 0.0,
            ..TrainSessionCfg::new(d, batch, length)
        };
        let trainer = MambaCpuTrainer::new(&model.weights, model.cfg, session)?;
        let ids = case.ids()?;
        let (vocab, len) = (model.vocab_size, model.embed.len());
        Ok(Training {
            trainer,
            embedding: model.embed,
            moments: [vec![0.0; len], vec![0.0; len]],
            steps: 0,
            d,
            vocab,
            ids: ids[..batch * length].to_vec(),
            targets: ids[1..].to_vec(),
        })
    }

    fn step(&mut self) -> Result<f32> {
        let (d, vocab, tokens) = (self.d, self.vocab, self.ids.len());
        let rows = self.ids.iter().map(|&id| id as usize * d);
        let input: Vec<f32> =
            rows.clone().flat_map(|at| self.embedding[at..at + d].iter().copied()).collect();
        let mut hidden = vec![0.0; tokens * d];
        self.trainer.reset_state()?;
        self.trainer.forward(&input, &mut hidden)?;
        let mut logits = vec![0.0; tokens * vocab];
        {
            let (hidden, table) = (self.hidden(&hidden), self.table());
            gemm(&mut logits, hidden, table.transposed());
        }
        let loss = self.loss_and_gradient(&mut logits);
        // From here on `logits` is their gradient.
        let dlogits = Matrix::new(&logits, tokens, vocab);
        let mut dhidden = vec![0.0; tokens * d];
        gemm(&mut dhidden, dlogits, self.table());
        let mut dtable = vec![0.0; vocab * d];
        gemm(&mut dtable, dlogits.transposed(), self.hidden(&hidden));
        let mut dinput = vec![0.0; tokens * d];
        let options = BackwardOpts::default().with_clip_max_norm(MAX_NORM as f32);
        self.trainer.backward_step_input_grad(&dhidden, options, &mut dinput)?;
        for (at, row) in rows.zip(dinput.chunks(d)) {
            dtable[at..at + d].iter_mut().zip(row).for_each(|(sum, g)| *sum += g);
        }
        self.update_embedding(&dtable);
        Ok(loss)
    }

    fn hidden<'a>(&self, values: &'a [f32]) -> Matrix<'a> {
        Matrix::new(values, self.ids.len(), self.d)
    }

    fn table(&self) -> Matrix<'_> {
        Matrix::new(&self.embedding, self.vocab, self.d)
    }

    /// The mean cross-entropy; `logits` become their gradient.
    fn loss_and_gradient(&self, logits: &mut [f32]) -> f32 {
        let scale = 1.0 / self.targets.len() as f32;
        let rows = logits.par_chunks_mut(self.vocab).zip(&self.targets);
        let losses = rows.map(|(row, &target)| {
            let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let at_target = row[target as usize] - max;
            row.iter_mut().for_each(|x| *x = (*x - max).exp());
            let sum: f32 = row.iter().sum();
            row.iter_mut().for_each(|x| *x *= scale / sum);
            row[target as usize] -= scale;
            f64::from(sum.ln() - at_target)
        });
        losses.sum::<f64>() as f32 * scale
    }

    /// AdamW without decay.
    fn update_embedding(&mut self, gradient: &[f32]) {
        self.steps += 1;
        let [m, v] = &mut self.moments;
        let corrections = [0.9f32, 0.999].map(|beta| 1.0 - beta.powi(self.steps));
        let moments = m.par_iter_mut().zip(v);
        let update = |((w, (m, v)), g): ((&mut f32, (&mut f32, &mut f32)), &f32)| {
            *m = 0.9 * *m + 0.1 * g;
            *v = 0.999 * *v + 0.001 * g * g;
            *w -=
                LEARNING_RATE as f32 * *m / corrections[0] / ((*v / corrections[1]).sqrt() + 1e-8);
        };
        self.embedding
            .par_iter_mut()
            .zip(moments)
            .zip(gradient)
            .with_min_len(4096)
            .for_each(update);
    }
}

impl Contestant for Training {
    fn outputs(&mut self) -> Result<Vec<Output>> {
        let losses = (0..STEPS).map(|_| self.step()).collect::<Result<_>>()?;
        Ok(vec![("losses", losses)])
    }

    fn run(&mut self, times: usize, clock: &mut Clock) -> Result<()> {
        clock.time(|| (0..times).try_for_each(|_| self.step().map(drop)))
    }
}

/// A prompt, or decoding after it.
struct Run {
    model: MambaLM,
    prompt: Vec<u32>,
    /// To decode; none of a prompt.
    tokens: usize,
}

impl Run {
    fn new(model: HfMambaModel, case: &Case, decode: bool) -> Result<Run> {
        let d = model.cfg.d_model;
        let mut backbone = MambaBackbone::new(model.weights, model.cfg, d)?;
        backbone.pack_for_decode();
        let model = MambaLM::new(backbone, model.embed, model.lm_head, model.vocab_size)?;
        let mut prompt = case.ids()?;
        prompt.pop();
        Ok(Run { model, prompt, tokens: if decode { case.tokens } else { 0 } })
    }
}

fn greedy(max_tokens: usize) -> SampleParams {
    SampleParams { temperature: 0.0, max_tokens, ..SampleParams::default() }
}

impl Contestant for Run {
    fn outputs(&mut self) -> Result<Vec<Output>> {
        self.model.generate(&self.prompt, &greedy(0));
        Ok(vec![("logprobs", log_softmax(self.model.last_logits(0)))])
    }

    fn run(&mut self, times: usize, clock: &mut Clock) -> Result<()> {
        if self.tokens == 0 {
            let parameters = greedy(0);
            clock.time(|| {
                for _ in 0..times {
                    self.model.generate(&self.prompt, &parameters);
                }
            });
            return Ok(());
        }
        for _ in 0..times {
            // From the choice of the first token, with the prompt done, to the end.
            let mut started = None;
            self.model.generate_streaming(&self.prompt, &greedy(self.tokens), |_, _| {
                started.get_or_insert_with(|| (Instant::now(), cpu_seconds()));
            });
            let (wall, cpu) = started.ok_or("mamba-rs generated nothing")?;
            clock.wall += wall.elapsed().as_secs_f64();
            clock.cpu += cpu_seconds() - cpu;
        }
        Ok(())
    }
}
