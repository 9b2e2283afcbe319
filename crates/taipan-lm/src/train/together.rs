//! A run of several processes.

use taipan::optim::Group;
use taipan::{DType, Tensor};

use super::team::{Command, Team};
use super::{Trainer, optimizer, targets, trained, trained_mut};
use crate::Result;
use crate::error::ensure;
use crate::ranks::{Ranks, Traffic, check_same};

impl Trainer {
    /// Train together with other processes, each of which has a trainer of the same model, data and
    /// recipe; whatever differs is an error. The first process steps, evaluates and saves as if it
    /// were alone; the others [follow](Trainer::follow).
    ///
    /// Each computes the gradients of its share of a step's batches, whose number, the recipe's
    /// `grad_accum`, must be a multiple of the number of processes. The results are those of one
    /// process, to the bit, and so are the checkpoints, unless gradients are rounded to
    /// `reduce_dtype` before they are sent.
    pub async fn join(
        mut self,
        mut ranks: Box<dyn Ranks>,
        reduce_dtype: Option<DType>,
    ) -> Result<Trainer> {
        let (size, accum) = (ranks.size(), self.recipe.grad_accum);
        let why = format!("grad_accum is {accum}, expected a multiple of {size}, the number of");
        ensure!(accum.is_multiple_of(size), "recipe", "{why} ranks");
        let recipe = serde_json::to_string(&self.recipe).expect("numbers and strings");
        let own = [
            ("the version", env!("CARGO_PKG_VERSION").into()),
            ("the data", self.dataset.fingerprint().into()),
            ("the recipe", recipe),
            ("the step", self.steps_done.to_string()),
            ("the type of sent gradients", format!("{reduce_dtype:?}")),
            ("the model", self.model.fingerprint().await?),
        ];
        check_same(&mut *ranks, &own)?;
        if size == 1 {
            return Ok(self);
        }
        let all = trained(&self.model, &self.recipe)?;
        let tensors: Vec<&Tensor> = all.iter().map(|(tensor, _)| *tensor).collect();
        let team = Team::new(ranks, &tensors, reduce_dtype)?;
        let slices = team.own_slices(&tensors)?;
        let slices: Vec<(&Tensor, Group)> =
            slices.iter().map(|(parameter, slice)| (slice, all[*parameter].1)).collect();
        let mut adamw = optimizer(self.model.dtype(), &self.recipe, &slices)?;
        adamw.load_state(&team.own_state(self.adamw.state())?)?;
        self.adamw = adamw;
        self.team = Some(team);
        Ok(self)
    }

    /// The number of this process, and how many there are.
    pub(super) fn place(&self) -> (usize, usize) {
        self.team.as_ref().map_or((0, 1), |team| (team.ranks.rank(), team.ranks.size()))
    }

    /// Do what the first process does, until it [ends](Trainer::end) the run. `stop` says whether
    /// this process was asked to stop: see [`stop_requested`](Trainer::stop_requested).
    pub async fn follow(&mut self, stop: impl Fn() -> bool) -> Result<()> {
        while let Some(team) = &mut self.team {
            match team.receive(stop())? {
                Command::Step(lr) => drop(self.compute_step(lr).await?),
                Command::Evaluate(tokens) => drop(self.scores(tokens).await?),
                Command::GatherState => drop(team.gather_state(&self.adamw)?),
                Command::End => break,
            }
        }
        Ok(())
    }

    /// Let the processes that follow this one return. The first one calls it when it is done.
    pub fn end(&mut self) -> Result<()> {
        self.send(Command::End)
    }

    /// The processes, when the run is over.
    pub fn into_ranks(self) -> Option<Box<dyn Ranks>> {
        self.team.map(|team| team.ranks)
    }

    /// Whether a process that follows was asked to stop, when it last said so.
    pub fn stop_requested(&self) -> bool {
        self.team.as_ref().is_some_and(|team| team.stop_requested)
    }

    /// What this process has sent to others, and how long it has waited for them.
    pub fn traffic(&self) -> Traffic {
        self.team.as_ref().map_or(Traffic::default(), |team| team.ranks.traffic())
    }

    /// Tell the others, if there are any, what to do.
    pub(super) fn send(&mut self, command: Command) -> Result<()> {
        self.team.as_mut().map_or(Ok(()), |team| team.send(command))
    }

    /// A step of several processes; returns the loss of all batches.
    pub(super) fn step_together(&mut self, lr: f64) -> Result<Tensor> {
        let accum = self.recipe.grad_accum;
        let range = self.team.as_ref().expect("there are several").own_share(accum);
        let batches = self.batches(range.clone())?;
        let own: Vec<u64> = batches.iter().map(|batch| targets(batch) as u64).collect();
        let mut team = self.team.take().expect("there are several");
        let counts = team.all_gather_words(&own)?.concat();
        let counts: Vec<usize> = counts.into_iter().map(|count| count as usize).collect();
        let mut reduction = team.reduction(&counts);
        let losses = self
            .pass(range.start)?
            .run(&batches, counts.iter().sum(), |i, tree| reduction.add(i, tree.into_nodes()))?;
        let reduced = reduction.finish(losses.into_nodes())?;
        let parameters = &mut trained_mut(&mut self.model);
        let loss = team.update(lr, &mut self.adamw, parameters, reduced)?;
        self.team = Some(team);
        Ok(loss)
    }
}
