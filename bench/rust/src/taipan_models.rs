//! taipan: a training step, a prompt, and decoding.

use taipan::nn::Module;
use taipan::optim::{AdamW, AdamWOptions, Group};
use taipan::{DType, Device, Tensor};
use taipan_lm::{Batch, LanguageModel, State};

use crate::case::{Case, LEARNING_RATE, MAX_NORM, STEPS, log_softmax};
use crate::clock::Clock;
use crate::taipan_ops::dtype;
use crate::{Contestant, Output, Result};

pub fn prepare(case: &Case) -> Result<Box<dyn Contestant>> {
    let quantized = case.dtype == "int8";
    let dtype = if quantized { DType::F32 } else { dtype(case)? };
    let model = LanguageModel::from_pretrained(&case.inputs, Some(dtype), &Device::Cpu)?;
    let model = if quantized { model.quantized()? } else { model };
    match case.task.as_str() {
        "step" => Ok(Box::new(Training::new(model, case)?)),
        "prefill" => Ok(Box::new(Prefill::new(model, case)?)),
        _ => Ok(Box::new(Decode { prefill: Prefill::new(model, case)?, tokens: case.tokens })),
    }
}

/// Forward, backward, clipping and AdamW.
struct Training {
    model: LanguageModel,
    adamw: AdamW,
    batch: Batch,
}

impl Training {
    fn new(model: LanguageModel, case: &Case) -> Result<Training> {
        let (batch_size, block_size) = (case.size("batch")?, case.size("length")?);
        let ids = case.ids()?;
        let tokens = batch_size * block_size;
        let batch = Batch {
            batch_size,
            block_size,
            ids: ids[..tokens].to_vec(),
            targets: ids[1..].to_vec(),
            seq_start: vec![0; tokens],
        };
        let options = AdamWOptions { max_norm: Some(MAX_NORM), ..AdamWOptions::default() };
        let group = Group { weight_decay: 0.0, ..Group::default() };
        let parameters: Vec<(&Tensor, Group)> =
            model.parameters().into_iter().map(|p| (p.tensor, group)).collect();
        let adamw = AdamW::new(options, &parameters)?;
        Ok(Training { model, adamw, batch })
    }

    fn step(&mut self) -> Result<f32> {
        let loss = self.model.loss(&self.batch)?;
        let grads = loss.backward()?;
        let mut parameters: Vec<&mut Tensor> =
            self.model.parameters_mut().into_iter().map(|(_, parameter)| parameter).collect();
        self.adamw.step(LEARNING_RATE, &mut parameters, &grads)?;
        Ok(loss.item()? as f32)
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

struct Prefill {
    model: LanguageModel,
    ids: Vec<u32>,
}

impl Prefill {
    fn new(model: LanguageModel, case: &Case) -> Result<Prefill> {
        let mut ids = case.ids()?;
        ids.pop();
        Ok(Prefill { model, ids })
    }

    /// The logits after tokens, and the state.
    fn next(&self, ids: &[u32], state: Option<State>) -> Result<(Tensor, State)> {
        let ids = Tensor::new(ids, &[1, ids.len()], &Device::Cpu)?;
        Ok(self.model.next(&ids, state)?)
    }
}

fn logprobs(logits: &Tensor) -> Result<Vec<Output>> {
    let logits = logits.cast(DType::F32)?.read_blocking::<f32>()?;
    Ok(vec![("logprobs", log_softmax(&logits))])
}

impl Contestant for Prefill {
    fn outputs(&mut self) -> Result<Vec<Output>> {
        logprobs(&self.next(&self.ids, None)?.0)
    }

    fn run(&mut self, times: usize, clock: &mut Clock) -> Result<()> {
        clock.time(|| (0..times).try_for_each(|_| self.next(&self.ids, None).map(drop)))
    }
}

struct Decode {
    prefill: Prefill,
    tokens: usize,
}

impl Contestant for Decode {
    /// Token by token.
    fn outputs(&mut self) -> Result<Vec<Output>> {
        let (first, rest) = self.prefill.ids.split_at(1);
        let (mut logits, mut state) = self.prefill.next(first, None)?;
        for id in rest {
            (logits, state) = self.prefill.next(&[*id], Some(state))?;
        }
        logprobs(&logits)
    }

    fn run(&mut self, times: usize, clock: &mut Clock) -> Result<()> {
        for _ in 0..times {
            let (mut logits, mut state) = self.prefill.next(&self.prefill.ids, None)?;
            clock.time(|| -> Result<()> {
                for _ in 0..self.tokens {
                    let token = logits.argmax(1)?.read_blocking::<u32>()?;
                    (logits, state) = self.prefill.next(&token, Some(state))?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }
}
