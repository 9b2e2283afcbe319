//! The optimiser's state of several processes: whole in checkpoints, in parts everywhere else.

use std::collections::HashMap;

use taipan::optim::AdamW;
use taipan::{Device, Tensor};

use super::layout::Slice;
use super::team::{Team, Trained};
use crate::Result;
use crate::safetensors::View;

impl Trained {
    /// The names of its tensors in the optimiser's state.
    fn state_names(&self) -> &'static [&'static str] {
        if self.dtype == self.dtype.wider() { &["m", "v"] } else { &["m", "v", "master"] }
    }
}

impl Team {
    /// The part of an optimiser's whole state that is this process's.
    pub(super) fn own_state(&self, state: Vec<(String, Tensor)>) -> Result<Vec<(String, Tensor)>> {
        let rank = self.ranks.rank();
        let mut own = Vec::new();
        for (name, tensor) in state {
            let Some((kind, parameter)) = name.split_once('.') else {
                own.push((name, tensor));
                continue;
            };
            let flat = tensor.reshape(&[tensor.len()])?;
            let mut count = 0;
            for (i, (_, slice)) in self.layout.of(rank).enumerate() {
                if slice.parameter.to_string() == parameter {
                    own.push((format!("{kind}.{i}"), flat.slice(0, slice.elements.clone())?));
                    count += 1;
                }
            }
            if count == 0 && parameter == "0" && self.layout.of(rank).next().is_none() {
                own.push((format!("{kind}.0"), flat.slice(0, 0..0)?));
            }
        }
        Ok(own)
    }

    /// The optimiser's state of all processes, in the first one.
    pub(super) fn gather_state(&mut self, adamw: &AdamW) -> Result<Option<Vec<(String, Tensor)>>> {
        let (rank, ranks) = (self.ranks.rank(), self.ranks.size());
        let is_own = |(name, _): &(String, Tensor)| name.contains('.');
        let (own, rest): (Vec<_>, Vec<_>) = adamw.state().into_iter().partition(is_own);
        let own = own.into_iter().map(|(name, tensor)| Ok((name, tensor.to(&Device::Cpu)?)));
        let own = own.collect::<Result<HashMap<_, _>>>()?;
        let numbers: Vec<usize> = (0..self.layout.of(rank).count()).collect();
        let number = self.by_slice(&numbers);
        let mut whole = Vec::new();
        for parameter in self.parameters.iter().filter(|_| rank == 0) {
            let Trained { dtype, shape } = parameter;
            let zeros = |_| Ok(Tensor::zeros(shape, dtype.wider(), &Device::Cpu)?);
            let tensors = parameter.state_names().iter().map(zeros);
            whole.push(tensors.collect::<Result<Vec<Tensor>>>()?);
        }
        for bucket in 0..self.layout.buckets.len() {
            let mut to = vec![Vec::new(); ranks];
            for i in self.layout.in_bucket(bucket, rank) {
                let number = number[i].expect("its owner has it");
                for name in self.parameters[self.layout.slices[i].parameter].state_names() {
                    to[0].extend_from_slice(own[&format!("{name}.{number}")].bytes()?);
                }
            }
            let len = |rank| -> usize {
                let sizes = self.layout.in_bucket(bucket, rank).map(|i| {
                    let slice = &self.layout.slices[i];
                    let parameter = &self.parameters[slice.parameter];
                    let tensors = parameter.state_names().len();
                    slice.elements.len() * parameter.dtype.wider().size() * tensors
                });
                sizes.sum()
            };
            let lens: Vec<usize> = match rank {
                0 => (0..ranks).map(len).collect(),
                _ => vec![0; ranks],
            };
            self.ranks.begin_exchange(to, &lens)?;
            let received = self.ranks.end_exchange()?;
            for (owner, bytes) in received.iter().enumerate().filter(|_| rank == 0) {
                let mut left = &bytes[..];
                for i in self.layout.in_bucket(bucket, owner) {
                    let Slice { parameter, elements, .. } = &self.layout.slices[i];
                    let dtype = self.parameters[*parameter].dtype.wider();
                    for tensor in &mut whole[*parameter] {
                        let (values, rest) = left.split_at(elements.len() * dtype.size());
                        let shape = [elements.len()];
                        let values = View { dtype, shape: &shape, bytes: values.into() };
                        tensor.write_elements(elements.start, &values.tensor()?)?;
                        left = rest;
                    }
                }
            }
        }
        let named = |(i, (parameter, tensors)): (usize, (&Trained, Vec<Tensor>))| {
            let names = parameter.state_names().iter().map(move |name| format!("{name}.{i}"));
            names.zip(tensors).collect::<Vec<_>>()
        };
        let all = self.parameters.iter().zip(whole).enumerate().flat_map(named);
        Ok((rank == 0).then(|| all.chain(rest).collect()))
    }
}
