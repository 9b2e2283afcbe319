//! What a model remembers.

use taipan::nn::MambaState;
use taipan::{Tensor, embedding};

use super::{LanguageModel, Role};
use crate::error::ensure;
use crate::{Result, Ssm};

/// The recurrent state of a model after some tokens, for each sequence of a batch. Its size does not
/// depend on their number. Clones share memory and can be continued independently.
///
/// To write one to a file, with what else a continuation needs, there is
/// [`Snapshot`](crate::Snapshot).
#[derive(Clone, Debug)]
pub struct State {
    pub(super) layers: Vec<MambaState>,
    pub(super) position: u64,
}

impl State {
    /// How many tokens of each sequence were processed.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The number of sequences.
    pub fn batch_size(&self) -> usize {
        self.layers.first().map_or(0, |layer| layer.ssm_state.shape()[0])
    }

    /// The states of some sequences of the batch, in this order; one that is named several times is
    /// forked.
    ///
    /// ```
    /// # use taipan::{DType, Device, Tensor};
    /// # use taipan_lm::{Config, LanguageModel, Preset};
    /// # let config = Config { hidden_size: 16, num_hidden_layers: 2, ..Preset::Tiny.config(10) };
    /// # let model = LanguageModel::new(&config, DType::F32, 1, &Device::Cpu)?;
    /// let ids = Tensor::new(&[3u32, 1, 4], &[1, 3], &Device::Cpu)?;
    /// let (_, state) = model.next(&ids, None)?;
    /// let forked = state.select(&[0, 0])?;
    /// assert_eq!((forked.batch_size(), forked.position()), (2, 3));
    /// # Ok::<(), taipan_lm::Error>(())
    /// ```
    pub fn select(&self, sequences: &[usize]) -> Result<State> {
        let layer = |layer: &MambaState| {
            Ok(MambaState {
                conv_state: select(&layer.conv_state, sequences)?,
                ssm_state: select(&layer.ssm_state, sequences)?,
            })
        };
        let layers = self.layers.iter().map(layer).collect::<Result<_>>()?;
        Ok(State { layers, position: self.position })
    }

    /// Its tensors, by name.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = (String, &Tensor)> {
        self.layers.iter().enumerate().flat_map(|(i, layer)| {
            let [conv, ssm] = names(i);
            [(conv, &layer.conv_state), (ssm, &layer.ssm_state)]
        })
    }

    /// The state of a model with the tensors that `find` returns for a name and a shape.
    pub(crate) fn load(
        model: &LanguageModel,
        batch_size: usize,
        position: u64,
        mut find: impl FnMut(&str, &[usize]) -> Result<Tensor>,
    ) -> Result<State> {
        let config = model.config();
        let (inner, n, k) = (config.inner_size(), config.state_size, config.conv_kernel);
        let conv_shape = [batch_size, k - 1, config.conv_channels()];
        let ssm_shape = match config.ssm {
            Ssm::Mamba { .. } => vec![batch_size, inner, n],
            Ssm::Mamba2 { head_dim, .. } => vec![batch_size, inner / head_dim, head_dim, n],
        };
        let mut tensor = |name: &str, shape: &[usize], role: Role| {
            let tensor = find(name, shape)?;
            let (found, expected) = (tensor.dtype(), role.dtype(model.dtype()));
            ensure!(found == expected, "state", "{name} is in {found}, expected {expected}");
            Ok(tensor.to(model.device())?)
        };
        let mut layer = |i: usize| {
            let [conv, ssm] = names(i);
            Ok(MambaState {
                conv_state: tensor(&conv, &conv_shape, Role::Matrix)?,
                ssm_state: tensor(&ssm, &ssm_shape, Role::Recurrence)?,
            })
        };
        let layers = (0..config.num_hidden_layers).map(&mut layer).collect::<Result<_>>()?;
        Ok(State { layers, position })
    }
}

fn names(layer: usize) -> [String; 2] {
    ["conv_state", "ssm_state"].map(|name| format!("layers.{layer}.{name}"))
}

/// Some of the rows of a tensor `[b, …]` of floats.
pub(crate) fn select(tensor: &Tensor, rows: &[usize]) -> Result<Tensor> {
    let (b, shape) = (tensor.shape()[0], &tensor.shape()[1..]);
    for row in rows {
        ensure!(*row < b, "select", "sequence {row}, expected less than the batch size, {b}");
    }
    let ids: Vec<u32> = rows.iter().map(|row| *row as u32).collect();
    let ids = Tensor::new(&ids, &[ids.len()], tensor.device())?;
    let table = tensor.reshape(&[b, shape.iter().product()])?;
    Ok(embedding(&table, &ids)?.reshape(&[&[rows.len()], shape].concat())?)
}
