//! A step by several processes: each computes the gradients of some micro-batches, adds and updates
//! its slices of all parameters, and has the moments of these alone (ZeRO-1).
//!
//! Every sum is in the order of the [tree](super::tree) or of the parameters, never in that of
//! arrival: the bits are those of one process.

use std::ops::Range;

use taipan::optim::{AdamW, shard_alignment};
use taipan::{DType, Device, Tensor};

use super::layout::{Layout, Slice};
use super::reduction::{Held, Reduced};
use super::tree::Tree;
use crate::error::ensure;
use crate::ranks::{Ranks, bytes, words};
use crate::safetensors::View;
use crate::{Error, Result};

/// Elements of a bucket that each process receives from each other: enough that a message takes
/// longer than to begin it.
const PER_RANK: usize = 1 << 18;

/// The most elements of a bucket: MPI counts bytes in 32 bits.
const MOST: usize = 1 << 27;

/// The processes of a run, as one of them sees them.
pub(super) struct Team {
    pub(super) ranks: Box<dyn Ranks>,
    pub(super) layout: Layout,
    pub(super) parameters: Vec<Trained>,
    pub(super) device: Device,
    /// The type in which gradients are sent, if not in their own.
    pub(super) reduce_dtype: Option<DType>,
    /// Whether another process was asked to stop.
    pub(super) stop_requested: bool,
    /// On the web there is one process: the compiler leaves out what only a team needs.
    #[cfg(target_family = "wasm")]
    _never: std::convert::Infallible,
    /// The first process whose loss was not finite in the last step.
    not_finite: Option<usize>,
}

/// What is known of a parameter that is trained.
pub(super) struct Trained {
    pub(super) dtype: DType,
    pub(super) shape: Vec<usize>,
}

/// What the first process asks the others to do with it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Command {
    /// A step at a learning rate.
    Step(f64),
    /// An evaluation on so many tokens.
    Evaluate(u64),
    /// Send the optimiser's state, for a checkpoint.
    GatherState,
    /// Nothing more.
    End,
}

impl Command {
    fn to_words(self) -> [u64; 2] {
        match self {
            Command::Step(lr) => [0, lr.to_bits()],
            Command::Evaluate(tokens) => [1, tokens],
            Command::GatherState => [2, 0],
            Command::End => [3, 0],
        }
    }

    fn of_words(words: &[u64]) -> Result<Command> {
        Ok(match *words {
            [0, lr] => Command::Step(f64::from_bits(lr)),
            [1, tokens] => Command::Evaluate(tokens),
            [2, _] => Command::GatherState,
            [3, _] => Command::End,
            _ => return Err(Error::invalid("ranks", format!("{words:?} is no command"))),
        })
    }
}

impl Team {
    #[cfg_attr(target_family = "wasm", allow(unreachable_code))]
    pub(super) fn new(
        ranks: Box<dyn Ranks>,
        trained: &[&Tensor],
        reduce_dtype: Option<DType>,
    ) -> Result<Team> {
        let device = trained[0].device().clone();
        if let Some(dtype) = reduce_dtype {
            let supported = dtype.is_float() && device.supports(dtype);
            ensure!(supported, "ranks", "{} cannot reduce in {dtype}", device.describe());
        }
        let lens: Vec<usize> = trained.iter().map(|tensor| tensor.len()).collect();
        let block = shard_alignment(&device);
        let bucket = (PER_RANK * ranks.size()).min(MOST).div_ceil(block);
        let parameter = |t: &&Tensor| Trained { dtype: t.dtype(), shape: t.shape().to_vec() };
        Ok(Team {
            layout: Layout::new(&lens, block, ranks.size(), bucket),
            parameters: trained.iter().map(parameter).collect(),
            device,
            reduce_dtype,
            ranks,
            stop_requested: false,
            #[cfg(target_family = "wasm")]
            _never: unreachable!("no ranks on the web"),
            not_finite: None,
        })
    }

    /// Tell the others what to do.
    pub(super) fn send(&mut self, command: Command) -> Result<()> {
        let rank = self.ranks.rank();
        ensure!(rank == 0, "ranks", "{command:?} in rank {rank}, expected it to follow rank 0");
        let all = self.all_gather_words(&command.to_words())?;
        self.stop_requested |= all[1..].iter().any(|words| words[0] != 0);
        Ok(())
    }

    /// What the first process says; `stop` asks it to stop.
    pub(super) fn receive(&mut self, stop: bool) -> Result<Command> {
        let all = self.all_gather_words(&[stop.into(), 0])?;
        Command::of_words(&all[0])
    }

    /// The numbers of every process, of which each has the same count.
    pub(super) fn all_gather_words(&mut self, own: &[u64]) -> Result<Vec<Vec<u64>>> {
        let lens = vec![8 * own.len(); self.ranks.size()];
        let all = self.ranks.all_gather(&bytes(own.iter().copied()), &lens)?;
        Ok(all.iter().map(|bytes| words(bytes)).collect())
    }

    /// The micro-batches of a process, of so many.
    pub(super) fn share(&self, rank: usize, count: usize) -> Range<usize> {
        let share = count / self.ranks.size();
        rank * share..(rank + 1) * share
    }

    /// Those of this one.
    pub(super) fn own_share(&self, count: usize) -> Range<usize> {
        self.share(self.ranks.rank(), count)
    }

    /// The slices that this process updates. One that has none has an empty one, so that it has an
    /// optimiser, with the counters that all have.
    pub(super) fn own_slices(&self, trained: &[&Tensor]) -> Result<Vec<(usize, Tensor)>> {
        let cut = |slice: &Slice| -> Result<(usize, Tensor)> {
            let whole = trained[slice.parameter].detached();
            let flat = whole.reshape(&[whole.len()])?;
            Ok((slice.parameter, flat.slice(0, slice.elements.clone())?))
        };
        let own = self.layout.of(self.ranks.rank()).map(|(_, slice)| cut(slice));
        let own = own.collect::<Result<Vec<_>>>()?;
        let none = Slice { parameter: 0, elements: 0..0, owner: 0 };
        if own.is_empty() { Ok(vec![cut(&none)?]) } else { Ok(own) }
    }

    /// Update the parameters, given the sums of the gradients of this process's slices and the
    /// losses of its nodes; returns the sum of all losses.
    pub(super) fn update(
        &mut self,
        lr: f64,
        adamw: &mut AdamW,
        trained: &mut [&mut Tensor],
        reduced: Reduced,
    ) -> Result<Tensor> {
        let Reduced { grads, losses, held } = reduced;
        let grads: Vec<&Tensor> = grads.iter().collect();
        let sums = adamw.square_sums(&grads)?;
        let (loss, sums) = self.gather_sums(&losses, &sums, &held)?;
        let own = self.own_slices(&trained.iter().map(|t| &**t).collect::<Vec<_>>())?;
        let mut own: Vec<Tensor> = own.into_iter().map(|(_, slice)| slice).collect();
        adamw.step_shard(lr, &mut own.iter_mut().collect::<Vec<_>>(), &grads, &sums)?;
        self.spread(&own, trained)?;
        Ok(loss)
    }

    /// The sum of the losses of all processes; and the sums of squares of all slices, in order.
    fn gather_sums(
        &mut self,
        losses: &[Tensor],
        sums: &Tensor,
        held: &[Vec<Held>],
    ) -> Result<(Tensor, Tensor)> {
        let block = shard_alignment(&self.device);
        let blocks = |slice: &Slice| slice.elements.len().div_ceil(block);
        let (sum_dtype, loss_dtype) = (sums.dtype(), self.loss_dtype());
        let loss_lens: Vec<usize> = held
            .iter()
            .map(|held| loss_dtype.size() * held.iter().filter(|node| node.leaves > 0).count())
            .collect();
        let lens: Vec<usize> = (0..self.ranks.size())
            .map(|rank| {
                let blocks: usize = self.layout.of(rank).map(|(_, slice)| blocks(slice)).sum();
                loss_lens[rank] + sum_dtype.size() * blocks
            })
            .collect();
        let mut message = Vec::new();
        for tensor in losses.iter().chain([sums]) {
            message.extend_from_slice(tensor.to(&Device::Cpu)?.bytes()?);
        }
        let all = self.ranks.all_gather(&message, &lens)?;
        let losses = all.iter().zip(&loss_lens).map(|(all, len)| &all[..*len]);
        self.not_finite = losses.enumerate().find_map(|(rank, losses)| {
            let mut losses = losses.chunks(loss_dtype.size());
            losses.any(|bytes| !is_finite(bytes)).then_some(rank)
        });
        let mut tree = Tree::default();
        for (held, all) in held.iter().zip(&all) {
            let mut values = all.chunks(loss_dtype.size());
            for Held { range, leaves } in held {
                let value = (*leaves > 0).then(|| values.next().expect("as many as nodes"));
                let value = value.map(|bytes| self.tensor(loss_dtype, &[], bytes)).transpose()?;
                tree.push_node(range.clone(), value)?;
            }
        }
        let mut at = loss_lens;
        let mut in_order = Vec::new();
        for slice in &self.layout.slices {
            let len = sum_dtype.size() * blocks(slice);
            let start = at[slice.owner];
            in_order.extend_from_slice(&all[slice.owner][start..start + len]);
            at[slice.owner] += len;
        }
        let count = in_order.len() / sum_dtype.size();
        let loss = tree.sum()?.expect("some micro-batch has targets");
        Ok((loss, self.tensor(sum_dtype, &[count], &in_order)?))
    }

    /// The first process whose loss was not finite in the last step, and where it runs.
    pub(super) fn not_finite(&self) -> Option<String> {
        self.not_finite.map(|rank| self.ranks.describe(rank))
    }

    /// The type of losses.
    fn loss_dtype(&self) -> DType {
        let double = self.parameters.iter().all(|parameter| parameter.dtype == DType::F64);
        if double { DType::F64 } else { DType::F32 }
    }

    /// Send the slices of this process to all, and write those of the others.
    fn spread(&mut self, own: &[Tensor], trained: &mut [&mut Tensor]) -> Result<()> {
        let rank = self.ranks.rank();
        let own = own.iter().map(|slice| Ok(slice.to(&Device::Cpu)?));
        let own = own.collect::<Result<Vec<Tensor>>>()?;
        let own = self.by_slice(&own);
        let size =
            |slice: &Slice| slice.elements.len() * self.parameters[slice.parameter].dtype.size();
        for bucket in 0..self.layout.buckets.len() {
            let mut message = Vec::new();
            for i in self.layout.in_bucket(bucket, rank) {
                message.extend_from_slice(own[i].expect("its owner has it").bytes()?);
            }
            let len = |rank| {
                self.layout.in_bucket(bucket, rank).map(|i| size(&self.layout.slices[i])).sum()
            };
            let lens: Vec<usize> = (0..self.ranks.size()).map(len).collect();
            let all = self.ranks.all_gather(&message, &lens)?;
            for (rank, all) in all.iter().enumerate() {
                let mut at = 0;
                for i in self.layout.in_bucket(bucket, rank) {
                    let slice = &self.layout.slices[i];
                    let dtype = self.parameters[slice.parameter].dtype;
                    let values = &all[at..at + size(slice)];
                    let values = self.tensor(dtype, &[slice.elements.len()], values)?;
                    trained[slice.parameter].write_elements(slice.elements.start, &values)?;
                    at += size(slice);
                }
            }
        }
        Ok(())
    }

    /// For each slice of the layout, what this process has of it, given what it has in order.
    pub(super) fn by_slice<'a, T>(&self, own: &'a [T]) -> Vec<Option<&'a T>> {
        let rank = self.ranks.rank();
        let mut own = own.iter();
        let slices = self.layout.slices.iter();
        slices.map(|slice| if slice.owner == rank { own.next() } else { None }).collect()
    }

    /// A tensor on the device, from its bytes.
    pub(super) fn tensor(&self, dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<Tensor> {
        let rows = [shape.iter().product()];
        let flat =
            View { dtype, shape: &rows, bytes: bytes.into() }.rows(0..rows[0], &self.device)?;
        Ok(flat.reshape(shape)?)
    }
}

/// Of the bytes of an f32 or f64.
fn is_finite(bytes: &[u8]) -> bool {
    match *bytes {
        [a, b, c, d] => f32::from_le_bytes([a, b, c, d]).is_finite(),
        _ => bytes.try_into().is_ok_and(|bytes| f64::from_le_bytes(bytes).is_finite()),
    }
}
