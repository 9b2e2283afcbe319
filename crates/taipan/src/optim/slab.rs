//! The state of several parameters in a few tensors.

use crate::error::Result;
use crate::gpu::Strided;
use crate::kernel::{GpuIo, compute_one};
use crate::spec::Spec;
use crate::tensor::{Storage, Tensor};
use crate::{DType, Device};

use super::update::{Member, has_master};

const OP: &str = "optimizer";

/// The most bytes of a tensor of a slab with several members: what every WebGPU device can bind.
const MAX_BYTES: u64 = 128 << 20;

/// The elements of a member begin at a multiple of this: tensors in f32 can be bound there.
const ALIGNMENT: usize = 64;

/// See [`Member`].
pub(super) struct Slab {
    pub(super) members: Vec<Member>,
    /// The names of the moments.
    moments: &'static [&'static str],
    /// The moments and, for parameters in f16 and bf16, their master copies: `[len]` each, of the
    /// wider type.
    pub(super) state: Vec<Tensor>,
}

impl Slab {
    /// The names of the tensors of `state`.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.moments.iter().copied().chain(["master"])
    }

    /// Zero moments for these parameters, and their master copies.
    pub(super) fn of_all(
        parameters: &[&Tensor],
        moments: &'static [&'static str],
    ) -> Result<Vec<Slab>> {
        /// The members of a slab, and its length.
        struct Plan {
            dtype: DType,
            members: Vec<Member>,
            len: usize,
        }
        let mut plans: Vec<Plan> = Vec::new();
        for (index, parameter) in parameters.iter().enumerate() {
            let (dtype, len) = (parameter.dtype(), parameter.len());
            let most = match parameter.device() {
                Device::Cpu => None,
                Device::Gpu(gpu) => Some(gpu.limits().max_storage_buffer_binding_size),
            };
            let has_room = |plan: &&mut Plan| {
                let bytes = (start_after(plan.len) + len) * dtype.wider().size();
                plan.dtype == dtype && most.is_some_and(|most| bytes as u64 <= most.min(MAX_BYTES))
            };
            match plans.iter_mut().rev().find(has_room) {
                Some(plan) => {
                    let start = start_after(plan.len);
                    plan.members.push(Member { index, start });
                    plan.len = start + len;
                }
                None => plans.push(Plan { dtype, members: vec![Member { index, start: 0 }], len }),
            }
        }
        let new = |Plan { dtype, members, len }: Plan| {
            let zeros = || Tensor::zeros(&[len], dtype.wider(), parameters[0].device());
            let mut state = moments.iter().map(|_| zeros()).collect::<Result<Vec<_>>>()?;
            if has_master(dtype) {
                let cast =
                    |member: &Member| parameters[member.index].detached().cast(dtype.wider());
                let masters = members.iter().map(cast).collect::<Result<Vec<_>>>()?;
                state.push(joined(masters, &members, len)?);
            }
            Ok(Slab { members, moments, state })
        };
        plans.into_iter().map(new).collect()
    }

    /// The tensors of the `i`-th member, which share memory with those of the slab.
    pub(super) fn of_member(&self, i: usize, shape: &[usize]) -> Vec<Tensor> {
        let start = self.members[i].start;
        let window = |tensor: &Tensor| {
            let spec = Spec::new(OP, shape, tensor.dtype()).expect("as large as a parameter");
            let storage = match &tensor.storage {
                Storage::Gpu(data) if self.members.len() > 1 => {
                    let range = start..start + spec.len();
                    Storage::Gpu(data.shared_window(range, tensor.dtype().size()).into())
                }
                storage => storage.clone(),
            };
            Tensor::of(spec, storage)
        };
        self.state.iter().map(window).collect()
    }

    /// The same slab with the state that `take` finds by name, of the right shapes.
    pub(super) fn filled(&self, mut take: impl FnMut(&str) -> Option<Tensor>) -> Result<Slab> {
        let mut state = Vec::new();
        for (own, name) in self.state.iter().zip(self.names()) {
            let find = |member: &Member| take(&format!("{name}.{}", member.index));
            let tensors = self.members.iter().map(find).map(|found| found.expect("it was checked"));
            state.push(joined(tensors.collect(), &self.members, own.len())?);
        }
        Ok(Slab { members: self.members.clone(), moments: self.moments, state })
    }
}

/// Where the member after this many elements begins.
fn start_after(end: usize) -> usize {
    end.next_multiple_of(ALIGNMENT)
}

/// A tensor of a slab, `[len]`, from those of its members.
fn joined(mut tensors: Vec<Tensor>, members: &[Member], len: usize) -> Result<Tensor> {
    if tensors.len() == 1 {
        return tensors.swap_remove(0).reshape(&[len]);
    }
    let gpu = |GpuIo { op, gpu, inputs, outputs }: GpuIo| {
        inputs.iter().zip(members).try_for_each(|(x, member)| {
            let dims = vec![[x.spec.len(), 1, 1]];
            gpu.copy(op, x, &outputs[0], Strided { dims, from: 0, to: member.start })
        })
    };
    let spec = Spec::new(OP, &[len], tensors[0].dtype())?;
    let inputs: Vec<&Tensor> = tensors.iter().collect();
    compute_one((OP, ""), &inputs, spec, |_| unreachable!("one member on the CPU"), gpu)
}
