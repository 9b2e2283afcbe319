//! A layer: a norm and mixers, the paper's figure 3, and perhaps a norm and an MLP.

use taipan::nn::{
    BlockParameter, GatedMlp, GatedMlpOptions, Init, Linear, Module, Observer, RmsNorm, Visitor,
};
use taipan::{DType, Error, Tensor, recompute};

use super::mixer::{Mixer, MixerState, out_init};
use super::parameter::ParameterBuilder;
use crate::Config;
use crate::config::{LayerKind, MlpConfig, Names};
use crate::error::Result;

/// Adds `Σ output·mixer(input·norm(r))` to the residual stream `r`, and then perhaps
/// `output·mlp(norm'(r))`.
#[derive(Clone, Debug)]
pub(super) struct Layer {
    names: &'static Names,
    norm: RmsNorm, // of d
    mixers: Vec<Branch>,
    mlp: Option<Mlp>,
}

/// A mixer with its name and its factors.
#[derive(Clone, Debug)]
struct Branch {
    name: &'static str,
    mixer: Mixer,
    input: f64,
    output: f64,
}

#[derive(Clone, Debug)]
struct Mlp {
    norm: RmsNorm, // of d
    mlp: GatedMlp,
    output: f64,
}

/// What a layer remembers: a state for each of its mixers.
pub(super) type LayerState = Vec<MixerState>;

impl Module for Layer {
    fn visit<'a>(&'a self, visitor: &mut Visitor<'_, &'a Tensor>) {
        visitor.field(self.names.norm, &self.norm);
        self.mixers.iter().for_each(|branch| visitor.field(branch.name, &branch.mixer));
        if let Some(Mlp { norm, mlp, .. }) = &self.mlp {
            visitor.field(self.names.mlp_norm, norm);
            visitor.field(self.names.mlp, mlp);
        }
    }

    fn visit_mut<'a>(&'a mut self, visitor: &mut Visitor<'_, &'a mut Tensor>) {
        visitor.field(self.names.norm, &mut self.norm);
        self.mixers.iter_mut().for_each(|branch| visitor.field(branch.name, &mut branch.mixer));
        if let Some(Mlp { norm, mlp, .. }) = &mut self.mlp {
            visitor.field(self.names.mlp_norm, norm);
            visitor.field(self.names.mlp, mlp);
        }
    }
}

/// What one layer passes to the next: the residual stream is `residual + hidden`.
pub(super) struct Stream {
    /// `[b, l, d]`, of the model's type.
    pub(super) hidden: Tensor,
    /// `[b, l, d]`, of type `dtype`; before the first layer there is none.
    pub(super) residual: Option<Tensor>,
    /// The type of the sums.
    pub(super) dtype: DType,
}

impl Layer {
    pub(super) fn new(
        config: &Config,
        (index, kind): (usize, LayerKind),
        builder: &mut ParameterBuilder,
    ) -> Result<Layer> {
        let (names, factors) = (config.family.names(), &config.multipliers);
        let layer = format!("{}.{index}", names.layers);
        let new_norm = |name, builder: &mut ParameterBuilder| -> Result<RmsNorm> {
            let weight = builder.whole(&format!("{layer}.{name}.weight"), Init::Ones)?;
            Ok(RmsNorm { weight, eps: config.layer_norm_epsilon })
        };
        let mut norm = None;
        let mut make = |block: &str, parameter: BlockParameter| {
            // The norm has its turn here: the weights of every seed follow from this order.
            let first = ["conv1d.weight", "q_proj.weight", "B_norm.weight"];
            if norm.is_none() && first.contains(&parameter.stored) {
                norm = Some(new_norm(names.norm, builder)?);
            }
            let stored = format!("{layer}.{block}.{}", parameter.stored);
            builder.build(&stored, parameter.rows, parameter.init)
        };
        let mut mixers = Vec::new();
        if kind.has_ssm() {
            let name = names.ssm;
            let mixer = Mixer::ssm(config, &mut |parameter| make(name, parameter))?;
            mixers.push(Branch { name, mixer, input: factors.ssm_in, output: factors.ssm_out });
        }
        if let Some(attention) = config.attention.as_ref().filter(|_| kind.has_attention()) {
            let (name, input) = (names.attention, factors.attention_in);
            let mixer =
                Mixer::attention(config, attention, &mut |parameter| make(name, parameter))?;
            mixers.push(Branch { name, mixer, input, output: factors.attention_out });
        }
        let norm = norm.expect("a mixer has a convolution, queries or a norm of B");
        let mlp = config.mlp.map(|MlpConfig { size, use_bias }| {
            let norm = new_norm(names.mlp_norm, builder)?;
            let options = GatedMlpOptions {
                use_bias,
                layout: names.mlp_layout,
                gate_multiplier: factors.mlp_gate,
                out_init: out_init(config, size),
                ..GatedMlpOptions::new(config.hidden_size, size)
            };
            let mlp = GatedMlp::build(&options, &mut |parameter| {
                let stored = format!("{layer}.{}.{}", names.mlp, parameter.stored);
                builder.build(&stored, parameter.rows, parameter.init)
            })?;
            Ok::<_, crate::Error>(Mlp { norm, mlp, output: factors.mlp_out })
        });
        Ok(Layer { names, norm, mixers, mlp: mlp.transpose()? })
    }

    /// Its projections, by their names in the layer.
    pub(super) fn projections(&self) -> impl Iterator<Item = (String, &Linear)> {
        let mixers = self.mixers.iter().flat_map(|Branch { name, mixer, .. }| {
            mixer
                .projections()
                .into_iter()
                .map(move |(linear, of)| (format!("{name}.{linear}"), of))
        });
        let (mlp, name) = (self.mlp.iter(), self.names.mlp);
        let mlp = mlp.flat_map(|Mlp { mlp, .. }| mlp.projections());
        mixers.chain(mlp.map(move |(linear, of)| (format!("{name}.{linear}"), of)))
    }

    /// [`projections`](Layer::projections), to be changed.
    pub(super) fn projections_mut(&mut self) -> impl Iterator<Item = (String, &mut Linear)> {
        let mixers = self.mixers.iter_mut().flat_map(|Branch { name, mixer, .. }| {
            let all = mixer.projections_mut().into_iter();
            all.map(move |(linear, of)| (format!("{name}.{linear}"), of))
        });
        let (mlp, name) = (self.mlp.iter_mut(), self.names.mlp);
        let mlp = mlp.flat_map(|Mlp { mlp, .. }| mlp.projections_mut());
        mixers.chain(mlp.map(move |(linear, of)| (format!("{name}.{linear}"), of)))
    }

    /// The residual stream after the layer, and the layer's final state.
    ///
    /// `seq_start` is that of a [`Batch`](crate::Batch); `initial` is the state before the first
    /// token, zeros if there is none.
    pub(super) fn forward(
        &self,
        stream: &Stream,
        seq_start: Option<&Tensor>,
        initial: Option<LayerState>,
    ) -> taipan::Result<(Stream, LayerState)> {
        self.forward_observed(stream, seq_start, initial, &mut |_, y| Ok(y))
    }

    /// [`forward`](Layer::forward), which calls `observe` in each of its mixers.
    pub(super) fn forward_observed(
        &self,
        stream: &Stream,
        seq_start: Option<&Tensor>,
        initial: Option<LayerState>,
        observe: Observer,
    ) -> taipan::Result<(Stream, LayerState)> {
        let dtype = stream.dtype;
        let (u, residual) = stream.normed(&self.norm)?;
        let (mut sum, branches) =
            (None, self.initial_states(initial)?.into_iter().zip(&self.mixers));
        // From one list to the other, in the same memory.
        let states = branches.map(|(initial, Branch { mixer, input, output, .. })| {
            let (y, state) = mixer.forward(&u.scale(*input)?, seq_start, initial, observe)?;
            let y = y.scale(*output)?;
            sum = Some(match sum.take() {
                Some(sum) => Tensor::add(&sum, &y)?,
                None => y,
            });
            Ok(state)
        });
        let states = states.collect::<taipan::Result<_>>()?;
        let hidden = sum.expect("a layer has a mixer");
        let stream = Stream { hidden, residual: Some(residual), dtype };
        let Some(Mlp { norm, mlp, output }) = &self.mlp else { return Ok((stream, states)) };
        let (w, residual) = stream.normed(norm)?;
        let hidden = mlp.forward(&w)?.scale(*output)?;
        Ok((Stream { hidden, residual: Some(residual), dtype }, states))
    }

    /// Those of the mixers.
    fn initial_states(
        &self,
        initial: Option<LayerState>,
    ) -> taipan::Result<Vec<Option<MixerState>>> {
        let expected = self.mixers.len();
        match initial {
            None => Ok(vec![None; expected]),
            Some(states) if states.len() == expected => Ok(states.into_iter().map(Some).collect()),
            Some(states) => {
                let why = format!("states of {} mixers, expected {expected}", states.len());
                Err(Error::Shape { op: "layer", why })
            }
        }
    }

    /// [`forward`](Layer::forward) from zero states, of which only the inputs are saved for
    /// backward; the rest is recomputed there.
    pub(super) fn recomputed(
        &self,
        stream: &Stream,
        seq_start: Option<&Tensor>,
    ) -> taipan::Result<Stream> {
        let (layer, dtype) = (self.clone(), stream.dtype);
        let given = [stream.residual.as_ref(), seq_start];
        let [has_residual, has_seq_start] = given.map(|tensor| tensor.is_some());
        let inputs: Vec<&Tensor> = [&stream.hidden]
            .into_iter()
            .chain(given.into_iter().flatten())
            .chain(self.parameters().into_iter().map(|(_, tensor)| tensor))
            .collect();
        let results = recompute(&inputs, move |inputs| {
            let mut inputs = inputs.iter().cloned();
            let mut next = || inputs.next().expect("as many as above");
            let stream = Stream { hidden: next(), residual: has_residual.then(&mut next), dtype };
            let seq_start = has_seq_start.then(&mut next);
            let mut layer = layer.clone();
            layer.parameters_mut().into_iter().for_each(|(_, tensor)| *tensor = next());
            let (stream, _) = layer.forward(&stream, seq_start.as_ref(), None)?;
            Ok([stream.hidden].into_iter().chain(stream.residual).collect())
        })?;
        let [hidden, residual] = results.try_into().expect("two tensors of a stream");
        Ok(Stream { hidden, residual: Some(residual), dtype })
    }
}

impl Stream {
    /// The norm of the stream, and the stream.
    pub(super) fn normed(&self, norm: &RmsNorm) -> taipan::Result<(Tensor, Tensor)> {
        match &self.residual {
            Some(residual) => norm.forward_added(&self.hidden, residual),
            None => Ok((norm.forward(&self.hidden)?, self.hidden.cast(self.dtype)?)),
        }
    }
}
