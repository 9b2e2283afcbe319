//! The sum of the gradients of all processes: each adds its slices, in the order of the tree.

use std::ops::Range;

use taipan::{DType, Device, Tensor};

use super::layout::{Layout, Slice};
use super::team::Team;
use super::tree::{Tree, nodes};
use crate::Result;
use crate::error::ensure;

/// A node of the tree that a process computes.
pub(super) struct Held {
    pub(super) range: Range<usize>,
    /// Micro-batches in it with targets; with none there is nothing to send.
    pub(super) leaves: usize,
}

/// The sum of the gradients of all processes, in progress.
pub(super) struct Reduction<'a> {
    team: &'a mut Team,
    /// The nodes of each process.
    held: Vec<Vec<Held>>,
    /// Of each parameter, the gradients of the nodes of this process, on the CPU and as they are
    /// sent, once they are complete and until they are sent.
    nodes: Vec<Option<Vec<Tensor>>>,
    /// Of each parameter, slices that are not sent yet.
    unsent: Vec<usize>,
    /// The first bucket that is not sent yet.
    next: usize,
}

/// The result of a [`Reduction`].
pub(super) struct Reduced {
    /// Of this process's slices, the gradients.
    pub(super) grads: Vec<Tensor>,
    /// The losses of this process's nodes.
    pub(super) losses: Vec<Tensor>,
    pub(super) held: Vec<Vec<Held>>,
}

impl Team {
    /// Begin to add gradients, given how many targets each micro-batch of the step has.
    pub(super) fn reduction(&mut self, targets: &[usize]) -> Reduction<'_> {
        let held = |rank| {
            let ranges = nodes(self.share(rank, targets.len())).into_iter();
            let leaves = |range: &Range<usize>| {
                targets[range.clone()].iter().filter(|targets| **targets > 0).count()
            };
            ranges.map(|range| Held { leaves: leaves(&range), range }).collect()
        };
        let slices = self.layout.slices.iter();
        let mut unsent = vec![0; self.parameters.len()];
        slices.for_each(|slice| unsent[slice.parameter] += 1);
        Reduction {
            held: (0..self.ranks.size()).map(held).collect(),
            nodes: self.parameters.iter().map(|_| None).collect(),
            unsent,
            next: 0,
            team: self,
        }
    }
}

impl Reduction<'_> {
    /// The type in which the gradient of a node is sent: of a single micro-batch, the parameter's.
    fn dtype(&self, parameter: usize, leaves: usize) -> DType {
        let own = self.team.parameters[parameter].dtype;
        self.team.reduce_dtype.unwrap_or(if leaves == 1 { own } else { own.wider() })
    }

    /// Take the gradients of a parameter, of all nodes of this process, and send what is complete.
    pub(super) fn add(&mut self, parameter: usize, nodes: Vec<Option<Tensor>>) -> Result<()> {
        let held = &self.held[self.team.ranks.rank()];
        let mut sent = Vec::new();
        for (node, held) in nodes.into_iter().zip(held) {
            let Some(node) = node else { continue };
            let dtype = self.dtype(parameter, held.leaves);
            let node = match self.team.reduce_dtype {
                Some(_) => node.cast(dtype)?,
                None => node,
            };
            let found = node.dtype();
            ensure!(found == dtype, "ranks", "a gradient in {found}, expected {dtype}");
            sent.push(node.to(&Device::Cpu)?);
        }
        self.nodes[parameter] = Some(sent);
        while self.is_complete() {
            self.send()?;
            self.next += 1;
        }
        Ok(())
    }

    /// Whether there is a next bucket, and all gradients for it.
    fn is_complete(&self) -> bool {
        let Layout { slices, buckets } = &self.team.layout;
        let is_there = |i: &usize| self.nodes[slices[*i].parameter].is_some();
        buckets.get(self.next).is_some_and(|bucket| bucket.iter().all(is_there))
    }

    /// Begin to send the next bucket.
    fn send(&mut self) -> Result<()> {
        let mut to = vec![Vec::new(); self.team.ranks.size()];
        for &i in &self.team.layout.buckets[self.next] {
            let Slice { parameter, elements, owner } = &self.team.layout.slices[i];
            for node in self.nodes[*parameter].as_ref().expect("it is complete") {
                let size = node.dtype().size();
                to[*owner]
                    .extend_from_slice(&node.bytes()?[elements.start * size..elements.end * size]);
            }
            self.unsent[*parameter] -= 1;
            if self.unsent[*parameter] == 0 {
                self.nodes[*parameter] = Some(Vec::new());
            }
        }
        let own = self.team.ranks.rank();
        let len = |held: &Vec<Held>| -> usize {
            let slices = self.team.layout.in_bucket(self.next, own);
            let sizes = slices.map(|i| {
                let Slice { parameter, elements, .. } = &self.team.layout.slices[i];
                let held = held.iter().filter(|node| node.leaves > 0);
                let sizes = held.map(|node| self.dtype(*parameter, node.leaves).size());
                elements.len() * sizes.sum::<usize>()
            });
            sizes.sum()
        };
        let lens: Vec<usize> = self.held.iter().map(len).collect();
        self.team.ranks.begin_exchange(to, &lens)
    }

    /// The sums of this process's slices, when all gradients were taken, given the losses of its
    /// nodes.
    pub(super) fn finish(self, losses: Vec<Option<Tensor>>) -> Result<Reduced> {
        let (rank, layout) = (self.team.ranks.rank(), &self.team.layout);
        let mut grads: Vec<Option<Tensor>> = layout.slices.iter().map(|_| None).collect();
        for bucket in 0..layout.buckets.len() {
            let received = self.team.ranks.end_exchange()?;
            let mut left: Vec<&[u8]> = received.iter().map(|bytes| &bytes[..]).collect();
            for i in layout.in_bucket(bucket, rank) {
                let Slice { parameter, elements, .. } = &layout.slices[i];
                let wide = self.team.parameters[*parameter].dtype.wider();
                let mut tree = Tree::default();
                for (held, left) in self.held.iter().zip(&mut left) {
                    for Held { range, leaves } in held {
                        let dtype = self.dtype(*parameter, *leaves);
                        let size = if *leaves > 0 { elements.len() * dtype.size() } else { 0 };
                        let (values, rest) = left.split_at(size);
                        *left = rest;
                        let values = (*leaves > 0)
                            .then(|| self.team.tensor(dtype, &[elements.len()], values));
                        tree.push_node(range.clone(), values.transpose()?)?;
                    }
                }
                let sum = tree.sum()?.expect("some micro-batch has targets");
                grads[i] = Some(sum.cast(wide)?);
            }
        }
        let mut grads: Vec<Tensor> = grads.into_iter().flatten().collect();
        if grads.is_empty() {
            let wide = self.team.parameters[0].dtype.wider();
            grads.push(Tensor::zeros(&[0], wide, &self.team.device)?);
        }
        Ok(Reduced { grads, losses: losses.into_iter().flatten().collect(), held: self.held })
    }
}
