//! A layer: norm and mixer, the paper's figure 3.

use taipan::nn::{Init, Linear, MambaState, Module, RmsNorm, ScanObserver, Visitor};
use taipan::{DType, Tensor, recompute};

use super::mixer::Mixer;
use super::parameter::ParameterBuilder;
use crate::Config;
use crate::config::Names;
use crate::error::Result;

/// Adds `mixer(norm(r))` to the residual stream `r`.
#[derive(Clone, Debug)]
pub(super) struct Layer {
    names: &'static Names,
    norm: RmsNorm, // of d
    mixer: Mixer,
}

impl Module for Layer {
    fn visit<'a>(&'a self, visitor: &mut Visitor<'_, &'a Tensor>) {
        visitor.field(self.names.norm, &self.norm);
        visitor.field(self.names.mixer, &self.mixer);
    }

    fn visit_mut<'a>(&'a mut self, visitor: &mut Visitor<'_, &'a mut Tensor>) {
        visitor.field(self.names.norm, &mut self.norm);
        visitor.field(self.names.mixer, &mut self.mixer);
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
        index: usize,
        builder: &mut ParameterBuilder,
    ) -> Result<Layer> {
        let names = config.family.names();
        let layer = format!("{}.{index}", names.layers);
        let mut norm = None;
        let mixer = Mixer::ssm(config, &mut |parameter| {
            // The norm has its turn here: the weights of every seed follow from this order.
            if parameter.stored == "conv1d.weight" {
                let weight =
                    builder.whole(&format!("{layer}.{}.weight", names.norm), Init::Ones)?;
                norm = Some(RmsNorm { weight, eps: config.layer_norm_epsilon });
            }
            let stored = format!("{layer}.{}.{}", names.mixer, parameter.stored);
            builder.build(&stored, parameter.rows, parameter.init)
        })?;
        Ok(Layer { names, norm: norm.expect("a mixer has a convolution"), mixer })
    }

    /// Its projections, by their names in the layer.
    pub(super) fn projections(&self) -> impl Iterator<Item = (String, &Linear)> {
        let mixer = self.names.mixer;
        let name = move |(name, linear)| (format!("{mixer}.{name}"), linear);
        self.mixer.projections().into_iter().map(name)
    }

    /// [`projections`](Layer::projections), to be changed.
    pub(super) fn projections_mut(&mut self) -> impl Iterator<Item = (String, &mut Linear)> {
        let mixer = self.names.mixer;
        let name = move |(name, linear)| (format!("{mixer}.{name}"), linear);
        self.mixer.projections_mut().into_iter().map(name)
    }

    /// The residual stream after the layer, and the layer's final state.
    ///
    /// `seq_start` is that of a [`Batch`](crate::Batch); `initial` is the state before the first
    /// token, zeros if there is none.
    pub(super) fn forward(
        &self,
        stream: &Stream,
        seq_start: Option<&Tensor>,
        initial: Option<&MambaState>,
    ) -> taipan::Result<(Stream, MambaState)> {
        self.forward_observed(stream, seq_start, initial, &mut |_, y| Ok(y))
    }

    /// [`forward`](Layer::forward), which calls `observe` after the scan.
    pub(super) fn forward_observed(
        &self,
        stream: &Stream,
        seq_start: Option<&Tensor>,
        initial: Option<&MambaState>,
        observe: ScanObserver,
    ) -> taipan::Result<(Stream, MambaState)> {
        let (u, residual) = stream.normed(&self.norm)?;
        let (hidden, state) = self.mixer.forward(&u, seq_start, initial, observe)?;
        Ok((Stream { hidden, residual: Some(residual), dtype: stream.dtype }, state))
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
