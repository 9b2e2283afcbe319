//! The language model: an embedding, layers that add to a residual stream, a norm and a head.
//!
//! What the layers compute is said by a [`Config`]; what files call its parts by a
//! [`Family`](crate::Family). The names of Mamba (Gu & Dao 2023, arXiv 2312.00752):
//!
//! | here | paper | |
//! |---|---|---|
//! | `b`, `l` | B, L | sequences per batch, tokens per sequence |
//! | `d` | D | width of the residual stream, `hidden_size` |
//! | `inner` | E·D | channels inside a layer, `intermediate_size` or `expand·hidden_size` |
//! | `n` | N | states per channel, `state_size` |
//! | `k` | | taps of the convolution, `conv_kernel` |
//! | `r` | R | rank of the projection to Δ, `time_step_rank` |
//! | `a_log`, `skip` | A = −exp(a_log), D | decay of the states; the skip connection |
//! | `dt`, `delta` | s_Δ(x), Δ | the step size, before and after its projection to all channels |
//! | `b`, `c` of a scan | B, C | how inputs enter states, and states outputs |
//! | `x`, `z` | | the two branches of a layer: the sequence, and its gate |
//!
//! Every layer adds to the residual stream, `r += Σ mixer(norm(r))`, and perhaps
//! `r += mlp(norm'(r))`. With the mixer of Mamba it is
//!
//! ```text
//! hidden → norm → in_proj → x, z
//!          x → convolution, silu → x_proj → dt, B, C;  dt → dt_proj → delta
//!          selective scan of x, gated by z → out_proj → hidden, added to the residual stream
//! ```

mod adapt;
mod fingerprint;
mod layer;
mod mixer;
mod parameter;
mod state;

use serde::{Deserialize, Serialize};
use taipan::nn::{Embedding, Init, Linear, Matrix, Module, Observer, RmsNorm, Visitor};
use taipan::{Activation, Arena, DType, Device, Int8, Tensor, linear, linear_cross_entropy};

pub(crate) use self::adapt::TargetModule;
use self::layer::{Layer, LayerState, Stream};
pub(crate) use self::parameter::ParameterSpec;
pub use self::parameter::{Parameter, Role};
use self::parameter::{ParameterBuilder, Values};
pub use self::state::State;
pub(crate) use self::state::select;
use crate::config::{HEAD, TensorSpec};
use crate::error::{Error, Result, ensure};
use crate::random::parameter_seed;
use crate::{Batch, Config, IGNORE};

/// A language model. Its parameters are tracked: [`loss`](LanguageModel::loss) can be differentiated.
///
/// ```
/// use taipan::{DType, Device};
/// use taipan_lm::{Batch, Config, LanguageModel, Preset};
///
/// let config = Config { hidden_size: 16, ..Preset::Tiny.config(10) };
/// let model = LanguageModel::new(&config, DType::F32, 1, &Device::Cpu)?;
/// let batch = Batch {
///     batch_size: 1,
///     block_size: 4,
///     ids: vec![0, 1, 2, 3],
///     targets: vec![1, 2, 3, 4],
///     seq_start: vec![1, 0, 0, 0],
/// };
/// let loss = model.loss(&batch)?;
/// assert!((loss.item()? - 10f64.ln()).abs() < 0.1, "it knows nothing yet");
/// let grads = loss.backward()?;
/// for parameter in model.parameters() {
///     assert_eq!(grads.of(&parameter)?.shape(), parameter.shape());
/// }
/// # Ok::<(), taipan_lm::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct LanguageModel {
    config: Config,
    dtype: DType,
    embeddings: Embedding, // [v, d]
    layers: Vec<Layer>,
    norm_f: RmsNorm,      // of d
    head: Option<Linear>, // [v, d]; the embeddings if there is none
    activations: Activations,
}

impl Module for LanguageModel {
    fn visit<'a>(&'a self, visitor: &mut Visitor<'_, &'a Tensor>) {
        let names = self.config.family.names();
        visitor.field(names.embeddings, &self.embeddings);
        visitor.field(names.layers, &self.layers);
        visitor.field(names.norm_f, &self.norm_f);
        visitor.field("lm_head", &self.head);
    }

    fn visit_mut<'a>(&'a mut self, visitor: &mut Visitor<'_, &'a mut Tensor>) {
        let names = self.config.family.names();
        visitor.field(names.embeddings, &mut self.embeddings);
        visitor.field(names.layers, &mut self.layers);
        visitor.field(names.norm_f, &mut self.norm_f);
        visitor.field("lm_head", &mut self.head);
    }
}

/// What the layers save for backward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activations {
    /// All activations that backward needs.
    #[default]
    #[serde(rename = "kept")]
    Saved,
    /// Only the input of each layer; the rest is recomputed in backward (activation checkpointing).
    /// Takes a third more time, and little more memory than the activations of one layer.
    Recomputed,
}

impl LanguageModel {
    /// Everything that can be trained, always in the same order: the parameters of the [`Module`],
    /// and what files and the optimiser need to know of them.
    pub fn parameters(&self) -> Vec<Parameter<'_>> {
        Parameter::all(&self.config, self)
    }

    /// A model to be trained, with random weights as the paper's code draws them; the same seed
    /// gives the same model on every device, and one in half precision is that of f32, rounded.
    pub fn new(config: &Config, dtype: DType, seed: u64, device: &Device) -> Result<LanguageModel> {
        config.init.check()?;
        let mut count = 0;
        let values = &mut |spec: &ParameterSpec| {
            count += 1;
            Ok(spec.init.values(&spec.stored_shape(), parameter_seed(seed, count))?)
        };
        LanguageModel::build(config, dtype, device, values)
    }

    /// A model with the weights that `find` returns for a name in Hugging Face's files and a shape.
    /// They are converted to `dtype`, except for those of the recurrence, which are f32 in half
    /// precision: see [`Role`].
    pub fn load(
        config: &Config,
        dtype: DType,
        device: &Device,
        mut find: impl FnMut(&str, &[usize]) -> Result<Tensor>,
    ) -> Result<LanguageModel> {
        LanguageModel::build(config, dtype, device, &mut |spec: &ParameterSpec| {
            let TensorSpec { name, shape, .. } = spec.stored;
            let whole = find(name, shape)?;
            let found = whole.shape();
            ensure!(found == *shape, "model", "{name} is {found:?}, expected {shape:?}");
            match spec.rows.len() == shape[0] {
                true => Ok(whole),
                false => Ok(whole.slice(0, spec.rows.clone())?),
            }
        })
    }

    /// A model with the values that a closure gives for each parameter, of any type and on any
    /// device.
    pub(crate) fn build(
        config: &Config,
        dtype: DType,
        device: &Device,
        values: Values,
    ) -> Result<LanguageModel> {
        ensure!(dtype.is_float(), "model", "the dtype is {dtype}, expected a float");
        config.check()?;
        let builder = &mut ParameterBuilder::new(config, dtype, device, values);
        let range = Init::Normal(config.init.initializer_range);
        let embeddings = builder.whole(&config.embeddings(), range)?;
        let layers = config.layers.iter().copied().enumerate();
        let layers = layers.map(|layer| Layer::new(config, layer, builder));
        let layers = layers.collect::<Result<_>>()?;
        let norm_f = format!("{}.weight", config.family.names().norm_f);
        let weight = builder.whole(&norm_f, Init::Ones)?;
        let head = (!config.tie_word_embeddings).then(|| builder.whole(HEAD, range)).transpose()?;
        Ok(LanguageModel {
            config: config.clone(),
            dtype,
            embeddings: Embedding::from_tensor(embeddings),
            layers,
            norm_f: RmsNorm { weight, eps: config.layer_norm_epsilon },
            head: head.map(|weight| Linear::from_tensors(weight, None)).transpose()?,
            activations: Activations::Saved,
        })
    }

    /// The same model, which saves more or less for backward.
    pub fn with_activations(self, activations: Activations) -> LanguageModel {
        LanguageModel { activations, ..self }
    }

    /// Its shape.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The type of its matrices.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Where it is.
    pub fn device(&self) -> &Device {
        self.norm_f.weight.device()
    }

    /// The same model with its matrices in 8 bits, for running it on the CPU: see [`taipan::Int8`].
    /// The convolutions, norms, biases and the parameters of the recurrence stay as they are. It
    /// cannot be trained or saved.
    ///
    /// ```
    /// use taipan::{DType, Device, Tensor};
    /// use taipan_lm::{Config, LanguageModel, Preset};
    ///
    /// let config = Config { hidden_size: 64, ..Preset::Tiny.config(100) };
    /// let model = LanguageModel::new(&config, DType::F32, 1, &Device::Cpu)?;
    /// let bytes = |model: &LanguageModel| -> usize {
    ///     model.weights().iter().map(|weight| weight.len() * weight.dtype().size()).sum()
    /// };
    /// let before = bytes(&model);
    /// let model = model.quantized()?;
    /// assert!(bytes(&model) < before / 2);
    /// let (logits, _) = model.next(&Tensor::new(&[5u32], &[1, 1], &Device::Cpu)?, None)?;
    /// assert_eq!(logits.shape(), [1, 100]);
    /// # Ok::<(), taipan_lm::Error>(())
    /// ```
    pub fn quantized(mut self) -> Result<LanguageModel> {
        let mut arena = Arena::new();
        self.embeddings.quantize(&mut arena)?;
        self.linears_mut().into_iter().try_for_each(|(_, linear)| linear.quantize(&mut arena))?;
        // The memory of the rest is freed only with that of the matrices.
        for (_, parameter) in self.parameters_mut() {
            *parameter = arena.store(parameter)?.tracked();
        }
        Ok(self)
    }

    /// Whether its matrices are in 8 bits.
    pub fn is_quantized(&self) -> bool {
        self.embeddings.weight().int8().is_some()
    }

    /// The tensors that decoding a token reads. Embeddings that are not the head as well are left
    /// out: it reads a row of them.
    pub fn weights(&self) -> Vec<&Tensor> {
        let mut all = Vec::new();
        let see = &mut |_: &str, tensor| all.push(tensor);
        let mut visitor = Visitor::new(see);
        self.layers.visit(&mut visitor);
        self.norm_f.visit(&mut visitor);
        let head = self.head_matrix();
        head.visit(&mut visitor);
        let matrices = self.projections().chain([head]);
        all.extend(matrices.filter_map(Matrix::int8).flat_map(Int8::tensors));
        all
    }

    /// The matrices of the layers.
    fn projections(&self) -> impl Iterator<Item = &Matrix> {
        let linears = self.layers.iter().flat_map(Layer::projections);
        linears.flat_map(|(_, linear)| linear.blocks().iter().map(|block| &block.weight))
    }

    /// All matrices.
    fn matrices(&self) -> impl Iterator<Item = &Matrix> {
        let head = self.head.as_ref().map(|_| self.head_matrix());
        self.projections().chain([self.embeddings.weight()]).chain(head)
    }

    /// The matrix of the head, which may be that of the embeddings.
    fn head_matrix(&self) -> &Matrix {
        match &self.head {
            Some(head) => &head.blocks()[0].weight,
            None => self.embeddings.weight(),
        }
    }

    /// The mean of `−ln p(target)` over the targets of a batch: `[]`, in f32, or f64 for f64.
    pub fn loss(&self, batch: &Batch) -> Result<Tensor> {
        let shape = [batch.batch_size, batch.block_size];
        let targets = Tensor::new(&batch.targets, &shape, self.device())?;
        self.cross_entropy(&self.forward(batch)?, &targets)
    }

    /// The likeliest next token at each position of a batch, `[batch_size, block_size]` in u32. All
    /// logits are in memory at once: it is for small vocabularies.
    pub fn likeliest(&self, batch: &Batch) -> Result<Tensor> {
        taipan::no_grad(|| Ok(self.logits(&self.forward(batch)?)?.argmax(2)?))
    }

    /// What the head reads, `[b, l, d]`.
    fn forward(&self, batch: &Batch) -> Result<Tensor> {
        let shape = [batch.batch_size, batch.block_size];
        let on_device = |values: &[u32]| Tensor::new(values, &shape, self.device());
        let ids = on_device(&batch.ids)?;
        let is_reset = batch.seq_start.contains(&1);
        let seq_start = is_reset.then(|| on_device(&batch.seq_start)).transpose()?;
        let mut stream = self.embed(&ids)?;
        for layer in &self.layers {
            stream = match self.activations {
                Activations::Saved => layer.forward(&stream, seq_start.as_ref(), None)?.0,
                Activations::Recomputed => layer.recomputed(&stream, seq_start.as_ref())?,
            };
        }
        Ok(self.normed(&stream)?)
    }

    /// The logits after the last token of each sequence, `[b, v]`, and the final state.
    ///
    /// `ids` is `[b, l]`, of type u32; `initial` is the state after the tokens before them, none at
    /// the beginning of a text. It is taken, so that attention can add to its cache in place.
    ///
    /// ```
    /// use taipan::{DType, Device, Tensor};
    /// use taipan_lm::{Config, LanguageModel, Preset};
    ///
    /// let config = Config { hidden_size: 16, ..Preset::Tiny.config(10) };
    /// let model = LanguageModel::new(&config, DType::F32, 1, &Device::Cpu)?;
    /// let ids = |ids: &[u32]| Tensor::new(ids, &[1, ids.len()], &Device::Cpu);
    /// let (logits, state) = model.next(&ids(&[3, 1, 4])?, None)?;
    /// let likeliest = logits.argmax(1)?.item()? as u32;
    /// let (logits, _) = model.next(&ids(&[likeliest])?, Some(state))?;
    /// assert_eq!(logits.shape(), [1, 10]);
    /// # Ok::<(), taipan_lm::Error>(())
    /// ```
    pub fn next(&self, ids: &Tensor, initial: Option<State>) -> Result<(Tensor, State)> {
        let next = || {
            taipan::no_grad(|| {
                let (normed, state) = self.advance("next", ids, initial)?;
                let &[b, l, d] = normed.shape().as_array().expect("[b, l, d]");
                let last = normed.slice(1, l - 1..l)?.reshape(&[b, d])?;
                Ok((self.logits(&last)?, state))
            })
        };
        match self.device() {
            Device::Cpu => taipan::with_threads_awake(next),
            _ => next(),
        }
    }

    /// [`loss`](LanguageModel::loss) without a gradient of one part of sequences, `[]`, and the final
    /// state.
    ///
    /// `ids` and `targets` are `[b, l]`, of type u32; the target of a position from which nothing
    /// is to be predicted is [`IGNORE`]. `initial` is the state after the tokens before them, none
    /// at the beginning of a text.
    pub fn loss_from(
        &self,
        ids: &Tensor,
        targets: &Tensor,
        initial: Option<State>,
    ) -> Result<(Tensor, State)> {
        taipan::no_grad(|| {
            let (normed, state) = self.advance("loss_from", ids, initial)?;
            Ok((self.cross_entropy(&normed, targets)?, state))
        })
    }

    /// `−ln p` of the last of two or more tokens, given those before it: `[]`, tracked.
    pub(crate) fn last_loss(&self, ids: &[u32], observe: Observer) -> Result<Tensor> {
        let (l, device) = (ids.len(), self.device());
        let mut stream = self.embed(&Tensor::new(ids, &[1, l], device)?)?;
        for layer in &self.layers {
            stream = layer.forward_observed(&stream, None, None, observe)?.0;
        }
        let normed = self.normed(&stream)?.slice(1, l - 2..l - 1)?;
        let last = Tensor::new(&ids[l - 1..], &[1, 1], device)?;
        self.cross_entropy(&normed, &last)
    }

    /// What the head reads, `[b, l, d]`, and the final state.
    fn advance(&self, op: &str, ids: &Tensor, initial: Option<State>) -> Result<(Tensor, State)> {
        let &[_, l] = ids.shape() else {
            let why = format!("ids are {:?}, expected [b, l]", ids.shape());
            return Err(Error::invalid(op, why));
        };
        ensure!(l > 0, op, "ids are [b, 0], expected at least one token");
        let expected = self.layers.len();
        let position = initial.as_ref().map_or(0, State::position) + l as u64;
        let initial: Vec<Option<LayerState>> = match initial {
            Some(state) => state.layers.into_iter().map(Some).collect(),
            None => vec![None; expected],
        };
        let found = initial.len();
        ensure!(found == expected, op, "a state of {found} layers, expected {expected}");
        let mut stream = self.embed(ids)?;
        // From one list to the other, in the same memory.
        let layers = initial.into_iter().zip(&self.layers).map(|(initial, layer)| {
            let (next, state) = layer.forward(&stream, None, initial)?;
            stream = next;
            Ok(state)
        });
        let layers = layers.collect::<Result<_>>()?;
        Ok((self.normed(&stream)?, State { layers, position }))
    }

    fn embed(&self, ids: &Tensor) -> taipan::Result<Stream> {
        let role = if self.config.residual_in_fp32 { Role::Recurrence } else { Role::Matrix };
        let (hidden, dtype) = (self.embeddings.forward(ids)?, role.dtype(self.dtype));
        let hidden = if self.is_quantized() { hidden.cast(self.dtype)? } else { hidden };
        let hidden = hidden.scale(self.config.multipliers.embedding)?;
        Ok(Stream { hidden, residual: None, dtype })
    }

    /// What the head reads, with the factor of the logits.
    fn normed(&self, stream: &Stream) -> taipan::Result<Tensor> {
        stream.normed(&self.norm_f)?.0.scale(self.config.multipliers.logits)
    }

    /// `[…, d]` to `[…, v]`.
    fn logits(&self, normed: &Tensor) -> taipan::Result<Tensor> {
        match &self.head {
            Some(head) => head.forward(normed),
            None => linear(normed, self.head_matrix().weight(), None, Activation::None),
        }
    }

    /// The mean of `−ln p(target)` over the targets but [`IGNORE`]: `[]`.
    fn cross_entropy(&self, normed: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let (normed, matrix) = match &self.head {
            Some(head) => &head.operands(normed)?,
            None => &(normed.clone(), self.head_matrix().clone()),
        };
        Ok(linear_cross_entropy(normed, matrix.weight(), targets, Some(IGNORE))?)
    }

    /// The matrix of an untied head, if it is in floats.
    pub(crate) fn head_weight(&self) -> Option<&Tensor> {
        match &self.head.as_ref()?.blocks()[0].weight {
            Matrix::Float(weight) => Some(weight),
            Matrix::Int8(_) => None,
        }
    }
}
