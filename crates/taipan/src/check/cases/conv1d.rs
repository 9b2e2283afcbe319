//! Causal depthwise convolution.

use crate::check::naive::Conv;
use crate::check::{Array, Case, Input, Values, input, input_of};
use crate::{Activation, CausalConv1d, Result, Tensor, causal_conv1d, concat};

/// A convolution: its sizes, which tensors it has, and where sequences start.
#[derive(Clone, Debug)]
pub struct Layer {
    /// `[b, l, d, k]`
    pub sizes: [usize; 4],
    /// `[d]`
    pub bias: bool,
    /// `[b, k − 1, d]`
    pub conv_state: bool,
    /// `[b, l]`
    pub seq_start: Option<Vec<u32>>,
    /// Of the sums.
    pub activation: Activation,
}

impl Layer {
    /// With bias, conv_state and silu, as in Mamba.
    pub fn full(b: usize, l: usize, d: usize, k: usize) -> Layer {
        let activation = Activation::Silu;
        Layer { sizes: [b, l, d, k], bias: true, conv_state: true, seq_start: None, activation }
    }

    /// Without anything optional.
    pub fn plain(b: usize, l: usize, d: usize, k: usize) -> Layer {
        let activation = Activation::None;
        Layer { bias: false, conv_state: false, activation, ..Layer::full(b, l, d, k) }
    }

    /// With sequences that start in these rows, at these times.
    pub fn starting_at(self, times: &[(usize, usize)]) -> Layer {
        let [b, l, ..] = self.sizes;
        let mut seq_start = vec![0; b * l];
        times.iter().for_each(|&(b, t)| seq_start[b * l + t] = t as u32 + 1);
        Layer { seq_start: Some(seq_start), ..self }
    }

    fn inputs(&self) -> Vec<Input> {
        let [b, l, d, k] = self.sizes;
        let mut inputs = vec![input_of(&[b, l, d], Values::Between(-2.0, 2.0)), input(&[d, k])];
        inputs.extend(self.bias.then(|| input(&[d])));
        inputs
            .extend(self.conv_state.then(|| input_of(&[b, k - 1, d], Values::Between(-2.0, 2.0))));
        inputs
    }

    /// Both results, concatenated along time.
    fn call(&self, t: &[Tensor]) -> Result<Tensor> {
        let [b, l, ..] = self.sizes;
        let seq_start =
            self.seq_start.as_ref().map(|seq_start| Tensor::new(seq_start, &[b, l], t[0].device()));
        let seq_start = seq_start.transpose()?;
        let (y, next) = causal_conv1d(&CausalConv1d {
            bias: self.bias.then(|| &t[2]),
            conv_state: self.conv_state.then(|| &t[t.len() - 1]),
            seq_start: seq_start.as_ref(),
            activation: self.activation,
            ..CausalConv1d::new(&t[0], &t[1])
        })?;
        concat(&[&y, &next], 1)
    }

    fn reference(&self, i: &[Array]) -> Array {
        Conv {
            x: &i[0],
            weight: &i[1],
            bias: self.bias.then(|| &i[2]),
            conv_state: self.conv_state.then(|| &i[i.len() - 1]),
            seq_start: self.seq_start.as_deref(),
            activation: self.activation,
        }
        .eval()
    }

    /// The result and the next conv_state, concatenated along time.
    pub fn case(self) -> Case {
        let (call, terms) = (self.clone(), 2 * self.sizes[3] + 1);
        let case = Case::new(
            format!("causal_conv1d {self:?}"),
            self.inputs(),
            move |t| call.call(t),
            move |i: &[Array]| self.reference(i),
        );
        case.cancelling(terms)
    }
}

pub(super) fn list() -> Vec<Case> {
    let starting = Layer::full(2, 130, 2, 4).starting_at(&[(0, 0), (0, 63), (1, 65), (1, 129)]);
    let layers = [
        Layer::full(2, 67, 33, 4),
        Layer::full(1, 5, 2049, 4),
        Layer::plain(2, 5, 3, 2),
        Layer::full(1, 2, 3, 6),
        starting,
    ];
    layers.into_iter().map(Layer::case).collect()
}
