//! A layer: norm and mixer, the paper's figure 3.

use taipan::{
    Activation, Arena, CausalConv1d, DType, Scan, Tensor, add_rms_norm, causal_conv1d, linear,
    recompute, rms_norm, selective_scan,
};

use super::matrix::Matrix;
use super::parameter::{Init, Parameter, ParameterBuilder, ParameterSpec, Role};
use crate::Config;
use crate::config::{Initialization, TimeStepInit};
use crate::error::Result;

/// See the glossary of the module above for the sizes.
#[derive(Clone, Debug)]
pub(super) struct Layer {
    norm: Parameter,                 // [d]
    in_x: Matrix,                    // [inner, d]
    in_z: Matrix,                    // [inner, d]
    in_bias: Option<[Parameter; 2]>, // [inner] each
    conv: Parameter,                 // [inner, k]
    conv_bias: Option<Parameter>,    // [inner]
    x_proj: Matrix,                  // [r + 2n, inner]
    dt_proj: Matrix,                 // [inner, r]
    dt_bias: Parameter,              // [inner]
    a_log: Parameter,                // [inner, n]
    skip: Parameter,                 // [inner]
    out: Matrix,                     // [d, inner]
    out_bias: Option<Parameter>,     // [d]
    n: usize,
    r: usize,
    eps: f64,
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

/// The recurrent state of a layer.
#[derive(Clone, Debug)]
pub(super) struct LayerState {
    /// `[b, k−1, inner]`: the last inputs of the convolution.
    pub(super) conv_state: Tensor,
    /// `[b, inner, n]`
    pub(super) ssm_state: Tensor,
}

/// Is called with the arguments of a layer's scan and its output `[b, l, inner]`, and returns the
/// output with which the layer continues.
pub(crate) type Observe<'a> = &'a mut dyn FnMut(&Scan, Tensor) -> taipan::Result<Tensor>;

/// The parameters, by a reference of either kind, in a fixed order.
macro_rules! parameters {
    ($name:ident, $($reference:tt)+) => {
        pub(super) fn $name($($reference)+ self) -> Vec<$($reference)+ Parameter> {
            let Layer { norm, in_x, in_z, in_bias, conv, conv_bias, .. } = self;
            let Layer { x_proj, dt_proj, dt_bias, a_log, skip, out, out_bias, .. } = self;
            [norm]
                .into_iter()
                .chain(in_x.$name())
                .chain(in_z.$name())
                .chain(in_bias.into_iter().flatten())
                .chain([conv])
                .chain(conv_bias)
                .chain(x_proj.$name())
                .chain(dt_proj.$name())
                .chain([dt_bias, a_log, skip])
                .chain(out.$name())
                .chain(out_bias)
                .collect()
        }
    };
}

impl Layer {
    parameters!(parameters, &);
    parameters!(parameters_mut, &mut);

    pub(super) fn new(
        config: &Config,
        index: usize,
        builder: &mut ParameterBuilder,
    ) -> Result<Layer> {
        let (d, inner, n) = (config.hidden_size, config.inner_size(), config.state_size);
        let (k, r) = (config.conv_kernel, config.time_step_rank);
        let stored = |name: &str| format!("backbone.layers.{index}.{name}");
        // The initialisation of torch's layers, which the paper's code leaves as it is.
        let uniform = |inputs: usize| Init::Uniform(1.0 / (inputs as f64).sqrt());
        let mut halves = |name: &str, shape: &[usize], role, init| -> Result<[Parameter; 2]> {
            let mut half = |label, rows| {
                let (stored, rows) = (stored(name), Some((label, rows)));
                builder.build(ParameterSpec { stored, shape, rows, role, init })
            };
            Ok([half("x", 0..inner)?, half("z", inner..2 * inner)?])
        };
        let weight = [2 * inner, d];
        let [in_x, in_z] = halves("mixer.in_proj.weight", &weight, Role::Matrix, uniform(d))?;
        let biases = || halves("mixer.in_proj.bias", &weight[..1], Role::Vector, Init::Zeros);
        let in_bias = config.use_bias.then(biases).transpose()?;
        let mut whole = |name: &str, shape: &[usize], role, init| {
            builder.whole(stored(name), shape, role, init)
        };
        let mut bias = |name, len, used: bool, init| {
            used.then(|| whole(name, &[len], Role::Vector, init)).transpose()
        };
        let conv_bias = bias("mixer.conv1d.bias", inner, config.use_conv_bias, uniform(k))?;
        let out_bias = bias("mixer.out_proj.bias", d, config.use_bias, Init::Zeros)?;
        // Every layer adds to the residual stream, whose variance must not grow with their number.
        let out = Init::Uniform(1.0 / ((inner * config.num_hidden_layers) as f64).sqrt());
        let selected = [r + 2 * n, inner];
        let Initialization { time_step_min: min, time_step_max: max, .. } = config.init;
        let steps = Init::StepBias { min, max, floor: config.init.time_step_floor };
        let magnitude = (r as f64).powf(-0.5) * config.init.time_step_scale;
        let dt = match config.init.time_step_init_scheme {
            TimeStepInit::Random => Init::Uniform(magnitude),
            TimeStepInit::Constant => Init::Constant(magnitude),
        };
        Ok(Layer {
            norm: whole("norm.weight", &[d], Role::Vector, Init::Ones)?,
            in_x: in_x.into(),
            in_z: in_z.into(),
            in_bias,
            conv: whole("mixer.conv1d.weight", &[inner, 1, k], Role::Matrix, uniform(k))?,
            conv_bias,
            x_proj: whole("mixer.x_proj.weight", &selected, Role::Matrix, uniform(inner))?.into(),
            dt_proj: whole("mixer.dt_proj.weight", &[inner, r], Role::Matrix, dt)?.into(),
            dt_bias: whole("mixer.dt_proj.bias", &[inner], Role::Recurrence, steps)?,
            a_log: whole("mixer.A_log", &[inner, n], Role::Recurrence, Init::LogArange)?,
            skip: whole("mixer.D", &[inner], Role::Recurrence, Init::Ones)?,
            out: whole("mixer.out_proj.weight", &[d, inner], Role::Matrix, out)?.into(),
            out_bias,
            n,
            r,
            eps: config.layer_norm_epsilon,
        })
    }

    /// The same layer with its projections in 8 bits.
    pub(super) fn quantized(self, arena: &mut Arena) -> Result<Layer> {
        Ok(Layer {
            in_x: self.in_x.quantized(arena)?,
            in_z: self.in_z.quantized(arena)?,
            x_proj: self.x_proj.quantized(arena)?,
            dt_proj: self.dt_proj.quantized(arena)?,
            out: self.out.quantized(arena)?,
            ..self
        })
    }

    /// The matrices of its projections.
    pub(super) fn matrices(&self) -> [&Matrix; 5] {
        [&self.in_x, &self.in_z, &self.x_proj, &self.dt_proj, &self.out]
    }

    /// The residual stream after the layer, and the layer's final state.
    ///
    /// `seq_start` is that of a [`Batch`](crate::Batch); `initial` is the state before the first
    /// token, zeros if there is none.
    pub(super) fn forward(
        &self,
        stream: &Stream,
        seq_start: Option<&Tensor>,
        initial: Option<&LayerState>,
    ) -> taipan::Result<(Stream, LayerState)> {
        self.forward_observed(stream, seq_start, initial, &mut |_, y| Ok(y))
    }

    /// [`forward`](Layer::forward), which calls `observe` after the scan.
    pub(super) fn forward_observed(
        &self,
        stream: &Stream,
        seq_start: Option<&Tensor>,
        initial: Option<&LayerState>,
        observe: Observe,
    ) -> taipan::Result<(Stream, LayerState)> {
        let &Layer { n, r, eps, .. } = self;
        let (u, residual) = stream.normed(&self.norm, eps)?;
        let bias = |i: usize| self.in_bias.as_ref().map(|biases| &*biases[i]);
        let x = linear(&u, self.in_x.weight(), bias(0), Activation::None)?; // [b, l, inner]
        let z = linear(&u, self.in_z.weight(), bias(1), Activation::None)?;
        let (x, conv_state) = causal_conv1d(&CausalConv1d {
            bias: self.conv_bias.as_deref(),
            conv_state: initial.map(|initial| &initial.conv_state),
            seq_start,
            activation: Activation::Silu,
            ..CausalConv1d::new(&x, &self.conv)
        })?;
        // [b, l, r + 2n]
        let selected = linear(&x, self.x_proj.weight(), None, Activation::None)?;
        let parts = selected.split(2, &[r, n, n])?;
        let [dt, b, c] = &parts[..] else { unreachable!("as many parts as sizes") };
        // [b, l, inner]
        let delta = linear(dt, self.dt_proj.weight(), None, Activation::None)?;
        let scan = Scan {
            d: Some(&self.skip),
            delta_bias: Some(&self.dt_bias),
            z: Some(&z),
            initial_state: initial.map(|initial| &initial.ssm_state),
            seq_start,
            ..Scan::new(&x, &delta, &self.a_log, b, c)
        };
        let (y, ssm_state) = selective_scan(&scan)?;
        let y = observe(&scan, y)?;
        let hidden = linear(&y, self.out.weight(), self.out_bias.as_deref(), Activation::None)?;
        let stream = Stream { hidden, residual: Some(residual), dtype: stream.dtype };
        Ok((stream, LayerState { conv_state, ssm_state }))
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
            .chain(self.parameters().into_iter().map(|parameter| &parameter.tensor))
            .collect();
        let results = recompute(&inputs, move |inputs| {
            let mut inputs = inputs.iter().cloned();
            let mut next = || inputs.next().expect("as many as above");
            let stream = Stream { hidden: next(), residual: has_residual.then(&mut next), dtype };
            let seq_start = has_seq_start.then(&mut next);
            let mut layer = layer.clone();
            layer.parameters_mut().into_iter().for_each(|parameter| parameter.tensor = next());
            let (stream, _) = layer.forward(&stream, seq_start.as_ref(), None)?;
            Ok([stream.hidden].into_iter().chain(stream.residual).collect())
        })?;
        let [hidden, residual] = results.try_into().expect("two tensors of a stream");
        Ok(Stream { hidden, residual: Some(residual), dtype })
    }
}

impl Stream {
    /// The norm of the stream, and the stream.
    pub(super) fn normed(&self, weight: &Tensor, eps: f64) -> taipan::Result<(Tensor, Tensor)> {
        match &self.residual {
            Some(residual) => add_rms_norm(&self.hidden, residual, weight, eps),
            None => Ok((rms_norm(&self.hidden, weight, eps)?, self.hidden.cast(self.dtype)?)),
        }
    }
}
