//! Forward and backward of the micro-batches of a step.

use taipan::nn::Module;
use taipan::{DType, Tensor};

use super::tree::Tree;
use super::{Trainer, targets};
use crate::random::Key;
use crate::{Batch, Error, LanguageModel, Result};

/// What the gradients of micro-batches are computed from, besides their tokens.
pub(super) struct Pass<'a> {
    model: &'a LanguageModel,
    /// The factor of losses before backward.
    loss_scale: &'a Tensor,
    /// The parameters that are trained.
    trained: Vec<&'a Tensor>,
    /// Of the step.
    key: Key,
    drops: bool,
    /// The number of the first micro-batch in the step.
    first: usize,
    /// Micro-batches of the step.
    count: usize,
    step: u64,
}

impl Trainer {
    /// The next step's, from its `first` micro-batch on.
    pub(super) fn pass(&self, first: usize) -> Result<Pass<'_>> {
        let parameters = Module::parameters(&self.model).into_iter();
        Ok(Pass {
            model: &self.model,
            loss_scale: self.adamw.loss_scale(),
            trained: parameters.map(|(_, tensor)| tensor).filter(|t| t.is_tracked()).collect(),
            key: Key::new(self.recipe.seed).split(self.steps_done),
            drops: self.recipe.lora.as_ref().is_some_and(|lora| lora.dropout > 0.0),
            first,
            count: self.recipe.grad_accum,
            step: self.steps_done + 1,
        })
    }
}

impl Pass<'_> {
    /// The gradients of all parameters, times the loss scale, and the mean loss over the targets of
    /// all batches of a step.
    pub(super) fn sum(&self, batches: &[Batch]) -> Result<(Vec<Tensor>, Tensor)> {
        let all = batches.iter().map(targets).sum();
        let mut grads: Vec<Option<Tensor>> = vec![None; self.trained.len()];
        let losses = self.run(batches, all, |parameter, tree| {
            let sum = tree.sum()?;
            // Sums are of the wider type; so is a single one among micro-batches without targets.
            let dtype = |own: DType| if self.count > 1 { own.wider() } else { own };
            grads[parameter] = sum.map(|sum| sum.cast(dtype(sum.dtype()))).transpose()?;
            Ok(())
        })?;
        let loss = losses.sum()?.ok_or_else(|| self.no_targets())?;
        Ok((grads.into_iter().flatten().collect(), loss))
    }

    /// Compute the gradients of some micro-batches, given the targets of all in the step. `ready`
    /// takes those of a parameter, as soon as they are complete; returns the losses.
    pub(super) fn run(
        &self,
        batches: &[Batch],
        all: usize,
        mut ready: impl FnMut(usize, Tree<Tensor>) -> Result<()>,
    ) -> Result<Tree<Tensor>> {
        if all == 0 {
            return Err(self.no_targets());
        }
        let mut losses = Tree::default();
        let mut grads: Vec<Tree<Tensor>> = self.trained.iter().map(|_| Tree::default()).collect();
        for (i, batch) in batches.iter().enumerate() {
            let (index, is_last) = (self.first + i, i + 1 == batches.len());
            let mut push = |parameter: usize, grad: Option<Tensor>| {
                grads[parameter].push(index, grad)?;
                match is_last {
                    true => ready(parameter, std::mem::take(&mut grads[parameter])),
                    false => Ok(()),
                }
            };
            if targets(batch) == 0 {
                (0..self.trained.len()).try_for_each(|parameter| push(parameter, None))?;
                losses.push(index, None)?;
                continue;
            }
            let share = targets(batch) as f64 / all as f64;
            let loss = match self.drops {
                true => self.model.with_dropout(self.key.split(index as u64)).loss(batch)?,
                false => self.model.loss(batch)?,
            };
            let upstream = self.loss_scale.scale(share)?;
            loss.backward_each(&upstream, &self.trained, |parameter, grad| {
                push(parameter, Some(grad))
            })?;
            losses.push(index, Some(loss.detached().scale(share)?))?;
        }
        Ok(losses)
    }

    fn no_targets(&self) -> Error {
        Error::invalid(format!("step {}", self.step), "no targets in its batches")
    }
}
