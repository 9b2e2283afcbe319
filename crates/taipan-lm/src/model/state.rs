//! What a model remembers.

use taipan::nn::{KvCache, Mamba3State, MambaState};
use taipan::{Tensor, embedding};

use super::layer::LayerState;
use super::mixer::MixerState;
use super::{LanguageModel, Role};
use crate::error::ensure;
use crate::{AttentionConfig, Config, Error, LayerKind, Mamba3Config, Result, Ssm};

/// The state of a model after some tokens, for each sequence of a batch. That of state-space mixers
/// has a size that does not depend on the number of tokens; attention keeps the keys and values of
/// all of them. Clones share memory and can be continued independently; of a model with attention,
/// one that is continued while another clone exists is copied.
///
/// To write one to a file, with what else a continuation needs, there is
/// [`Snapshot`](crate::Snapshot).
#[derive(Clone, Debug)]
pub struct State {
    pub(super) layers: Vec<LayerState>,
    pub(super) position: u64,
}

impl State {
    /// How many tokens of each sequence were processed.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The number of sequences.
    pub fn batch_size(&self) -> usize {
        self.layers.iter().flatten().next().map_or(0, |state| match state {
            MixerState::Mamba(state) => state.ssm_state.shape()[0],
            MixerState::Mamba3(state) => state.ssm_state.shape()[0],
            MixerState::Attention(cache) => cache.batch_size(),
        })
    }

    /// The states of some sequences of the batch, in this order; one that is named several times is
    /// forked.
    ///
    /// ```
    /// # use taipan::{DType, Device, Tensor};
    /// # use taipan_lm::{Config, LanguageModel, Preset};
    /// # let config = Config { hidden_size: 16, ..Preset::Tiny.config(10) };
    /// # let model = LanguageModel::new(&config, DType::F32, 1, &Device::Cpu)?;
    /// let ids = Tensor::new(&[3u32, 1, 4], &[1, 3], &Device::Cpu)?;
    /// let (_, state) = model.next(&ids, None)?;
    /// let forked = state.select(&[0, 0])?;
    /// assert_eq!((forked.batch_size(), forked.position()), (2, 3));
    /// # Ok::<(), taipan_lm::Error>(())
    /// ```
    pub fn select(&self, sequences: &[usize]) -> Result<State> {
        let mixer = |state: &MixerState| match state {
            MixerState::Mamba(MambaState { conv_state, ssm_state }) => {
                Ok(MixerState::Mamba(MambaState {
                    conv_state: select(conv_state, sequences)?,
                    ssm_state: select(ssm_state, sequences)?,
                }))
            }
            MixerState::Mamba3(Mamba3State { turns, ssm_state, k, x }) => {
                Ok(MixerState::Mamba3(Mamba3State {
                    turns: select(turns, sequences)?,
                    ssm_state: select(ssm_state, sequences)?,
                    k: select(k, sequences)?,
                    x: select(x, sequences)?,
                }))
            }
            MixerState::Attention(cache) => {
                let [keys, values] = cache.tensors()?;
                let (keys, values) = (select(&keys, sequences)?, select(&values, sequences)?);
                Ok(MixerState::Attention(KvCache::new(keys, values)?))
            }
        };
        let layer = |layer: &LayerState| layer.iter().map(mixer).collect();
        let layers = self.layers.iter().map(layer).collect::<Result<_>>()?;
        Ok(State { layers, position: self.position })
    }

    /// Its tensors, by name.
    pub(crate) fn tensors(&self) -> Result<Vec<(String, Tensor)>> {
        let mut all = Vec::new();
        for (i, layer) in self.layers.iter().enumerate() {
            for state in layer {
                let (names, tensors): (&[&str], _) = match state {
                    MixerState::Mamba(MambaState { conv_state, ssm_state }) => {
                        (&MAMBA, vec![conv_state.clone(), ssm_state.clone()])
                    }
                    MixerState::Mamba3(Mamba3State { turns, ssm_state, k, x }) => {
                        (&MAMBA3, [turns, ssm_state, k, x].map(Tensor::clone).into())
                    }
                    MixerState::Attention(cache) => (&ATTENTION, cache.tensors()?.into()),
                };
                all.extend(names.iter().map(|name| stored_name(i, name)).zip(tensors));
            }
        }
        Ok(all)
    }

    /// The state of a model with the tensors that `find` returns for a name and a shape.
    pub(crate) fn load(
        model: &LanguageModel,
        batch_size: usize,
        position: u64,
        mut find: impl FnMut(&str, &[usize]) -> Result<Tensor>,
    ) -> Result<State> {
        let config = model.config();
        let too_far = |_| {
            let why = format!("the position is {position}, expected at most {}", usize::MAX);
            Error::invalid("state", why)
        };
        let steps = usize::try_from(position).map_err(too_far)?;
        let mut tensor = |i: usize, name: &str, shape: &[usize], role: Role| {
            let tensor = find(&stored_name(i, name), shape)?;
            let (found, expected) = (tensor.dtype(), role.dtype(model.dtype()));
            let name = stored_name(i, name);
            ensure!(found == expected, "state", "{name} is in {found}, expected {expected}");
            Ok(tensor.to(model.device())?)
        };
        let mut layer = |(i, kind): (usize, &LayerKind)| {
            let mut states = Vec::new();
            if kind.has_ssm() {
                states.push(match config.ssm {
                    Ssm::Mamba { .. } | Ssm::Mamba2 { .. } => {
                        let [conv_shape, ssm_shape] = mamba_shapes(config, batch_size);
                        MixerState::Mamba(MambaState {
                            conv_state: tensor(i, MAMBA[0], &conv_shape, Role::Matrix)?,
                            ssm_state: tensor(i, MAMBA[1], &ssm_shape, Role::Recurrence)?,
                        })
                    }
                    Ssm::Mamba3(mamba3) => {
                        let [turns, ssm_state, k, x] = mamba3_shapes(config, mamba3, batch_size);
                        MixerState::Mamba3(Mamba3State {
                            turns: tensor(i, MAMBA3[0], &turns, Role::Recurrence)?,
                            ssm_state: tensor(i, MAMBA3[1], &ssm_state, Role::Recurrence)?,
                            k: tensor(i, MAMBA3[2], &k, Role::Matrix)?,
                            x: tensor(i, MAMBA3[3], &x, Role::Matrix)?,
                        })
                    }
                });
            }
            if let Some(attention) = config.attention.filter(|_| kind.has_attention()) {
                let AttentionConfig { num_key_value_heads, head_dim, .. } = attention;
                let shape = [batch_size, steps, num_key_value_heads, head_dim];
                let [keys, values] = ATTENTION.map(|name| tensor(i, name, &shape, Role::Matrix));
                states.push(MixerState::Attention(KvCache::new(keys?, values?)?));
            }
            Ok(states)
        };
        let layers = config.layers.iter().enumerate().map(&mut layer).collect::<Result<_>>()?;
        Ok(State { layers, position })
    }
}

/// What files call the tensors of the states of mixers.
const MAMBA: [&str; 2] = ["conv_state", "ssm_state"];
const MAMBA3: [&str; 4] = ["turns", "ssm_state", "k", "x"];
const ATTENTION: [&str; 2] = ["keys", "values"];

fn stored_name(layer: usize, name: &str) -> String {
    format!("layers.{layer}.{name}")
}

/// The shapes of [`MAMBA`].
fn mamba_shapes(config: &Config, batch_size: usize) -> [Vec<usize>; 2] {
    let (inner, n, k) = (config.inner_size(), config.state_size, config.conv_kernel);
    let ssm_shape = match config.ssm {
        Ssm::Mamba { .. } => vec![batch_size, inner, n],
        Ssm::Mamba2 { head_dim, .. } | Ssm::Mamba3(Mamba3Config { head_dim, .. }) => {
            vec![batch_size, inner / head_dim, head_dim, n]
        }
    };
    [vec![batch_size, k - 1, config.conv_channels()], ssm_shape]
}

/// The shapes of [`MAMBA3`].
fn mamba3_shapes(config: &Config, mamba3: Mamba3Config, batch_size: usize) -> [Vec<usize>; 4] {
    let (n, p) = (config.state_size, mamba3.head_dim);
    let h = config.inner_size() / p;
    let [_, ssm_state] = mamba_shapes(config, batch_size);
    let k = vec![batch_size, mamba3.ranks(), h, n];
    [vec![batch_size, h, mamba3.angles(n)], ssm_state, k, vec![batch_size, h, p]]
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
