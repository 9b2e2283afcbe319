//! Mamba, the language model of Gu & Dao 2023 (arXiv 2312.00752).
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
//! A layer is
//!
//! ```text
//! hidden → norm → in_proj → x, z
//!          x → convolution, silu → x_proj → dt, B, C;  dt → dt_proj → delta
//!          selective scan of x, gated by z → out_proj → hidden, added to the residual stream
//! ```

mod fingerprint;
mod layer;
mod matrix;
mod parameter;
mod state;

use serde::{Deserialize, Serialize};
use taipan::{
    Activation, Arena, DType, Device, Int8, Tensor, Weight, linear, linear_cross_entropy,
};

use self::layer::{Layer, Observe, Stream};
use self::matrix::Matrix;
pub(crate) use self::parameter::ParameterSpec;
use self::parameter::{Init, ParameterBuilder};
pub use self::parameter::{Parameter, Role};
pub use self::state::State;
pub(crate) use self::state::select;
use crate::error::{Error, Result, ensure};
use crate::random::parameter_seed;
use crate::{Batch, Config, IGNORE};

/// A Mamba language model. Its parameters are tracked: [`loss`](Mamba::loss) can be differentiated.
///
/// ```
/// use taipan::{DType, Device};
/// use taipan_lm::{Batch, Config, Mamba, Preset};
///
/// let config = Config { hidden_size: 16, num_hidden_layers: 2, ..Preset::Tiny.config(10) };
/// let model = Mamba::new(&config, DType::F32, 1, &Device::Cpu)?;
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
///     assert_eq!(grads.of(parameter)?.shape(), parameter.shape());
/// }
/// # Ok::<(), taipan_lm::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Mamba {
    config: Config,
    dtype: DType,
    embeddings: Matrix, // [v, d]
    layers: Vec<Layer>,
    norm_f: Parameter,    // [d]
    head: Option<Matrix>, // [v, d]; the embeddings if there is none
    activations: Activations,
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

/// The parameters, by a reference of either kind, in a fixed order.
macro_rules! parameters {
    ($doc:literal, $name:ident, $($reference:tt)+) => {
        #[doc = $doc]
        pub fn $name($($reference)+ self) -> Vec<$($reference)+ Parameter> {
            let Mamba { embeddings, layers, norm_f, head, .. } = self;
            embeddings
                .$name()
                .into_iter()
                .chain(layers.into_iter().flat_map(|layer| layer.$name()))
                .chain([norm_f])
                .chain(head.into_iter().flat_map(|head| head.$name()))
                .collect()
        }
    };
}

impl Mamba {
    parameters!("Everything that can be trained, always in the same order.", parameters, &);
    parameters!("The same, to be changed.", parameters_mut, &mut);

    /// A model to be trained, with random weights as the paper's code draws them; the same seed
    /// gives the same model on every device, and one in half precision is that of f32, rounded.
    pub fn new(config: &Config, dtype: DType, seed: u64, device: &Device) -> Result<Mamba> {
        config.init.check()?;
        let mut count = 0;
        let values = &mut |spec: &ParameterSpec| {
            count += 1;
            Ok(spec.init.values(&spec.stored_shape(), parameter_seed(seed, count))?)
        };
        Mamba::build(config, &mut ParameterBuilder::new(dtype, device, values))
    }

    /// A model with the weights that `find` returns for a name in Hugging Face's files and a shape.
    /// They are converted to `dtype`, except for those of the recurrence, which are f32 in half
    /// precision: see [`Role`].
    pub fn load(
        config: &Config,
        dtype: DType,
        device: &Device,
        mut find: impl FnMut(&str, &[usize]) -> Result<Tensor>,
    ) -> Result<Mamba> {
        let values = &mut |spec: &ParameterSpec| {
            let ParameterSpec { stored, shape, rows, .. } = spec;
            let whole = find(stored, shape)?;
            let found = whole.shape();
            ensure!(found == *shape, "model", "{stored} is {found:?}, expected {shape:?}");
            match rows {
                Some((_, rows)) => Ok(whole.slice(0, rows.clone())?),
                None => Ok(whole),
            }
        };
        Mamba::build(config, &mut ParameterBuilder::new(dtype, device, values))
    }

    /// A model with the values that a closure gives for each parameter, of any type and on any
    /// device.
    pub(crate) fn build_from(
        config: &Config,
        dtype: DType,
        device: &Device,
        values: &mut dyn FnMut(&ParameterSpec) -> Result<Tensor>,
    ) -> Result<Mamba> {
        Mamba::build(config, &mut ParameterBuilder::new(dtype, device, values))
    }

    fn build(config: &Config, builder: &mut ParameterBuilder) -> Result<Mamba> {
        let dtype = builder.dtype;
        ensure!(dtype.is_float(), "model", "the dtype is {dtype}, expected a float");
        config.check()?;
        let (v, d) = (config.vocab_size, config.hidden_size);
        let table = |builder: &mut ParameterBuilder, name| {
            builder.whole(name, &[v, d], Role::Matrix, Init::Normal(config.init.initializer_range))
        };
        Ok(Mamba {
            config: config.clone(),
            dtype,
            embeddings: table(builder, "backbone.embeddings.weight")?.into(),
            layers: (0..config.num_hidden_layers)
                .map(|i| Layer::new(config, i, builder))
                .collect::<Result<_>>()?,
            norm_f: builder.whole("backbone.norm_f.weight", &[d], Role::Vector, Init::Ones)?,
            head: (!config.tie_word_embeddings)
                .then(|| table(builder, "lm_head.weight"))
                .transpose()?
                .map(Matrix::from),
            activations: Activations::Saved,
        })
    }

    /// The same model, which saves more or less for backward.
    pub fn with_activations(self, activations: Activations) -> Mamba {
        Mamba { activations, ..self }
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
        self.norm_f.device()
    }

    /// The same model with its matrices in 8 bits, for running it on the CPU: see [`taipan::Int8`]. The
    /// convolutions, norms, biases and the parameters of the recurrence stay as they are. It cannot
    /// be trained or saved.
    ///
    /// ```
    /// use taipan::{DType, Device, Tensor};
    /// use taipan_lm::{Config, Mamba, Preset};
    ///
    /// let config = Config { hidden_size: 64, num_hidden_layers: 2, ..Preset::Tiny.config(100) };
    /// let model = Mamba::new(&config, DType::F32, 1, &Device::Cpu)?;
    /// let bytes = |model: &Mamba| -> usize {
    ///     model.weights().iter().map(|weight| weight.len() * weight.dtype().size()).sum()
    /// };
    /// let before = bytes(&model);
    /// let model = model.quantized()?;
    /// assert!(bytes(&model) < before / 2);
    /// let (logits, _) = model.next(&Tensor::new(&[5u32], &[1, 1], &Device::Cpu)?, None)?;
    /// assert_eq!(logits.shape(), [1, 100]);
    /// # Ok::<(), taipan_lm::Error>(())
    /// ```
    pub fn quantized(self) -> Result<Mamba> {
        let mut arena = Arena::new();
        let layers = self.layers.into_iter().map(|layer| layer.quantized(&mut arena));
        let mut model = Mamba {
            layers: layers.collect::<Result<_>>()?,
            embeddings: self.embeddings.quantized(&mut arena)?,
            head: self.head.map(|head| head.quantized(&mut arena)).transpose()?,
            ..self
        };
        // The memory of the rest is freed only with that of the matrices.
        for parameter in model.parameters_mut() {
            parameter.tensor = arena.store(&parameter.tensor)?.tracked();
        }
        Ok(model)
    }

    /// Whether its matrices are in 8 bits.
    pub fn is_quantized(&self) -> bool {
        matches!(self.embeddings, Matrix::Int8(_))
    }

    /// The tensors that decoding a token reads. Embeddings that are not the head as well are left out:
    /// it reads a row of them.
    pub fn weights(&self) -> Vec<&Tensor> {
        let head = self.head.as_ref().unwrap_or(&self.embeddings);
        let layers = self.layers.iter().flat_map(Layer::parameters);
        let floats = layers.chain([&self.norm_f]).chain(head.parameters());
        let matrices = self.layers.iter().flat_map(Layer::matrices).chain([head]);
        let int8 = matrices.filter_map(Matrix::int8).flat_map(Int8::tensors);
        floats.map(|parameter| &parameter.tensor).chain(int8).collect()
    }

    fn matrices(&self) -> impl Iterator<Item = &Matrix> {
        let layers = self.layers.iter().flat_map(Layer::matrices);
        layers.chain([&self.embeddings]).chain(&self.head)
    }

    /// The mean of `−ln p(target)` over the targets of a batch: `[]`, in f32, or f64 for f64.
    pub fn loss(&self, batch: &Batch) -> Result<Tensor> {
        let shape = [batch.batch_size, batch.block_size];
        let targets = Tensor::new(&batch.targets, &shape, self.device())?;
        let normed = self.forward(batch)?;
        Ok(linear_cross_entropy(&normed, self.head(), &targets, Some(IGNORE))?)
    }

    /// The likeliest next token at each position of a batch, `[batch_size, block_size]` in u32. All
    /// logits are in memory at once: it is for small vocabularies.
    pub fn likeliest(&self, batch: &Batch) -> Result<Tensor> {
        taipan::no_grad(|| {
            let logits = linear(&self.forward(batch)?, self.head(), None, Activation::None)?;
            Ok(logits.argmax(2)?)
        })
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
    /// the beginning of a text.
    ///
    /// ```
    /// use taipan::{DType, Device, Tensor};
    /// use taipan_lm::{Config, Mamba, Preset};
    ///
    /// let config = Config { hidden_size: 16, num_hidden_layers: 2, ..Preset::Tiny.config(10) };
    /// let model = Mamba::new(&config, DType::F32, 1, &Device::Cpu)?;
    /// let ids = |ids: &[u32]| Tensor::new(ids, &[1, ids.len()], &Device::Cpu);
    /// let (logits, state) = model.next(&ids(&[3, 1, 4])?, None)?;
    /// let likeliest = logits.argmax(1)?.item()? as u32;
    /// let (logits, _) = model.next(&ids(&[likeliest])?, Some(&state))?;
    /// assert_eq!(logits.shape(), [1, 10]);
    /// # Ok::<(), taipan_lm::Error>(())
    /// ```
    pub fn next(&self, ids: &Tensor, initial: Option<&State>) -> Result<(Tensor, State)> {
        taipan::no_grad(|| {
            let (normed, state) = self.advance("next", ids, initial)?;
            let &[b, l, d] = normed.shape().as_array().expect("[b, l, d]");
            let last = normed.slice(1, l - 1..l)?.reshape(&[b, d])?;
            Ok((linear(&last, self.head(), None, Activation::None)?, state))
        })
    }

    /// [`loss`](Mamba::loss) without a gradient of one part of sequences, `[]`, and the final state.
    ///
    /// `ids` and `targets` are `[b, l]`, of type u32; the target of a position from which nothing
    /// is to be predicted is [`IGNORE`]. `initial` is the state after the tokens before them, none
    /// at the beginning of a text.
    pub fn loss_from(
        &self,
        ids: &Tensor,
        targets: &Tensor,
        initial: Option<&State>,
    ) -> Result<(Tensor, State)> {
        taipan::no_grad(|| {
            let (normed, state) = self.advance("loss_from", ids, initial)?;
            Ok((linear_cross_entropy(&normed, self.head(), targets, Some(IGNORE))?, state))
        })
    }

    /// `−ln p` of the last of two or more tokens, given those before it: `[]`, tracked.
    pub(crate) fn last_loss(&self, ids: &[u32], observe: Observe) -> Result<Tensor> {
        let (l, device) = (ids.len(), self.device());
        let mut stream = self.embed(&Tensor::new(ids, &[1, l], device)?)?;
        for layer in &self.layers {
            stream = layer.forward_observed(&stream, None, None, observe)?.0;
        }
        let normed = self.normed(&stream)?.slice(1, l - 2..l - 1)?;
        let last = Tensor::new(&ids[l - 1..], &[1, 1], device)?;
        Ok(linear_cross_entropy(&normed, self.head(), &last, None)?)
    }

    /// What the head reads, `[b, l, d]`, and the final state.
    fn advance(&self, op: &str, ids: &Tensor, initial: Option<&State>) -> Result<(Tensor, State)> {
        let &[_, l] = ids.shape() else {
            let why = format!("ids are {:?}, expected [b, l]", ids.shape());
            return Err(Error::invalid(op, why));
        };
        ensure!(l > 0, op, "ids are [b, 0], expected at least one token");
        let expected = self.layers.len();
        let found = initial.map_or(expected, |state| state.layers.len());
        ensure!(found == expected, op, "a state of {found} layers, expected {expected}");
        let mut stream = self.embed(ids)?;
        let mut layers = Vec::with_capacity(self.layers.len());
        for (i, layer) in self.layers.iter().enumerate() {
            let (next, state) =
                layer.forward(&stream, None, initial.map(|initial| &initial.layers[i]))?;
            stream = next;
            layers.push(state);
        }
        let position = initial.map_or(0, State::position) + l as u64;
        Ok((self.normed(&stream)?, State { layers, position }))
    }

    fn embed(&self, ids: &Tensor) -> taipan::Result<Stream> {
        let role = if self.config.residual_in_fp32 { Role::Recurrence } else { Role::Matrix };
        let (hidden, dtype) = (self.embeddings.rows(ids)?, role.dtype(self.dtype));
        let hidden = if self.is_quantized() { hidden.cast(self.dtype)? } else { hidden };
        Ok(Stream { hidden, residual: None, dtype })
    }

    fn normed(&self, stream: &Stream) -> taipan::Result<Tensor> {
        Ok(stream.normed(&self.norm_f, self.config.layer_norm_epsilon)?.0)
    }

    fn head(&self) -> Weight<'_> {
        self.head.as_ref().unwrap_or(&self.embeddings).weight()
    }
}
