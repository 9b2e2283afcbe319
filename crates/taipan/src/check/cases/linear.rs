//! Products: `linear`, `linear_residual` and `matmul`.

use crate::check::naive::{self, Layout};
use crate::check::{Array, Case, Input, Values, input, input_of};
use crate::{Activation, Result, Tensor, Weight, linear, linear_residual};

/// A linear layer: its sizes and variants.
#[derive(Clone, Debug)]
pub struct Layer {
    /// `[…, m, k]`
    pub x: Vec<usize>,
    /// The width of the result.
    pub n: usize,
    /// Whether the batch shares a weight.
    pub weights: Weights,
    /// How a weight is stored.
    pub layout: Layout,
    /// `[n]`
    pub bias: bool,
    /// Of the sums.
    pub activation: Activation,
}

/// Whether the batch shares a weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Weights {
    /// One for all.
    Shared,
    /// One for each entry of the batch.
    PerEntry,
}

impl Layer {
    /// The plain product of `[m, k]` and `[k, n]`.
    pub fn plain(m: usize, k: usize, n: usize) -> Layer {
        Layer {
            x: vec![m, k],
            n,
            weights: Weights::Shared,
            layout: Layout::Kn,
            bias: false,
            activation: Activation::None,
        }
    }

    /// The `i`th of all variants that differ in layout, bias and smooth activation. Relu's kink
    /// would spoil the finite differences of large products.
    pub fn variant(self, i: usize) -> Layer {
        const SMOOTH: [Activation; 6] = [
            Activation::Gelu,
            Activation::None,
            Activation::Silu,
            Activation::Tanh,
            Activation::GeluErf,
            Activation::Sigmoid,
        ];
        Layer {
            layout: if i.is_multiple_of(2) { Layout::Kn } else { Layout::Nk },
            bias: !(i / 2).is_multiple_of(3),
            activation: SMOOTH[i % SMOOTH.len()],
            ..self
        }
    }

    /// The shapes of `x`, `w` and perhaps `bias`.
    pub fn shapes(&self) -> Vec<Vec<usize>> {
        let (lead, k) = (&self.x[..self.x.len() - 2], self.x[self.x.len() - 1]);
        let matrix = match self.layout {
            Layout::Kn => [k, self.n],
            Layout::Nk => [self.n, k],
        };
        let w = match self.weights {
            Weights::Shared => matrix.to_vec(),
            Weights::PerEntry => [lead, &matrix].concat(),
        };
        [self.x.clone(), w].into_iter().chain(self.bias.then(|| vec![self.n])).collect()
    }

    /// The weight, stored as it is.
    pub fn weight<'a>(&self, w: &'a Tensor) -> Weight<'a> {
        match self.layout {
            Layout::Kn => Weight::kn(w),
            Layout::Nk => Weight::nk(w),
        }
    }

    /// The layer of its inputs.
    pub fn call(&self, inputs: &[Tensor]) -> Result<Tensor> {
        linear(&inputs[0], self.weight(&inputs[1]), inputs.get(2), self.activation)
    }

    /// `φ(x·w + bias)`
    pub fn case(self) -> Case {
        let Layer { x, n, weights, layout, bias, activation } = &self;
        let bias = if *bias { "bias" } else { "no bias" };
        let name = format!("linear {x:?} to {n} {weights:?} {layout:?} {bias} {activation:?}");
        // Weights so large that `pre` is about 1: where activations bend.
        let sqrt_k = (self.x[self.x.len() - 1].max(1) as f64).sqrt();
        let most = |i| if i == 1 { 3.0 / sqrt_k } else { 1.0 };
        let inputs: Vec<_> = (self.shapes().iter().enumerate())
            .map(|(i, shape)| input_of(shape, Values::Between(-most(i), most(i))))
            .collect();
        let (layout, activation) = (*layout, *activation);
        let reference =
            move |i: &[Array]| naive::linear(&i[0], &i[1], i.get(2), layout, activation);
        let terms = 3 * sqrt_k as usize + 8; // as if they were 1; and those of the activation
        Case::new(name, inputs, move |inputs| self.call(inputs), reference).cancelling(terms)
    }

    /// `x·w + bias + residual`
    pub fn residual(self) -> Case {
        let out = [&self.x[..self.x.len() - 1], &[self.n]].concat();
        let inputs: Vec<Input> = self.shapes().iter().chain([&out]).map(|s| input(s)).collect();
        let name = format!("linear_residual {self:?}");
        let (terms, own) = (self.x[self.x.len() - 1] + 2, self.clone());
        let call = move |t: &[Tensor]| {
            let bias = self.bias.then(|| &t[2]);
            linear_residual(&t[0], self.weight(&t[1]), bias, &t[t.len() - 1])
        };
        let reference = move |i: &[Array]| {
            let bias = own.bias.then(|| &i[2]);
            let y = naive::linear(&i[0], &i[1], bias, own.layout, Activation::None);
            naive::binary(&y, &i[i.len() - 1], |y, r| y + r)
        };
        Case::new(name, inputs, call, reference).cancelling(terms)
    }
}

/// The product of `[…, m, k]` and `[…, k, n]`, whose batches broadcast.
pub fn matmul(a: &[usize], b: &[usize]) -> Case {
    let reference = |i: &[Array]| {
        let ([a, b], [ra, rb]) = ([&i[0], &i[1]], [i[0].shape.len(), i[1].shape.len()]);
        let lead = naive::broadcast(&a.shape[..ra - 2], &b.shape[..rb - 2]);
        let (m, k, n) = (a.shape[ra - 2], a.shape[ra - 1], b.shape[rb - 1]);
        Array::from_fn(&[&lead[..], &[m, n]].concat(), |at| {
            let (lead, i, j) = (&at[..at.len() - 2], at[at.len() - 2], at[at.len() - 1]);
            (0..k)
                .map(|p| {
                    let a = a.at_broadcast(&[lead, &[i, p]].concat());
                    a * b.at_broadcast(&[lead, &[p, j]].concat())
                })
                .sum()
        })
    };
    let name = format!("matmul {a:?} {b:?}");
    Case::new(name, [input(a), input(b)], |t| t[0].matmul(&t[1]), reference).cancelling(4)
}

pub(super) fn list() -> Vec<Case> {
    let batch = Layer { x: vec![2, 9, 4], weights: Weights::PerEntry, ..Layer::plain(0, 0, 5) };
    // With many sums, finite differences would hit the kink.
    let kinked = |activation| Layer { activation, ..Layer::plain(4, 6, 5) }.case();
    vec![
        Layer::plain(70, 33, 130).variant(5).case(),
        Layer::plain(1, 300, 33).variant(3).case(),
        Layer::plain(13, 17, 33).variant(0).case(),
        Layer::plain(145, 257, 9).variant(2).case(),
        batch.clone().variant(4).case(),
        kinked(Activation::Relu),
        kinked(Activation::LeakyRelu(0.01)),
        Layer { bias: true, ..Layer::plain(70, 33, 130) }.residual(),
        Layer { layout: Layout::Nk, ..Layer::plain(8, 64, 40) }.residual(),
        batch.residual(),
        matmul(&[2, 1, 3, 4], &[3, 4, 5]),
        matmul(&[2, 3, 4], &[4, 5]),
    ]
}
