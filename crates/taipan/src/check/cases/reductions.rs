//! Sums, means, extremes and spreads of lines; running sums; the largest elements.

use crate::check::{Array, Case, Values, input, input_of, naive};
use crate::{Result, Tensor};

/// A reduction: its name, the method, and the mathematics.
pub struct Reduction(&'static str, fn(&Tensor, &[usize]) -> Result<Tensor>, fn(&[f64]) -> f64);

/// Sum, mean, maximum and minimum.
pub const REDUCTIONS: [Reduction; 4] = [
    Reduction("sum_dims", Tensor::sum_dims, naive::sum),
    Reduction("mean_dims", Tensor::mean_dims, naive::mean),
    Reduction("max_dims", Tensor::max_dims, naive::max),
    Reduction("min_dims", Tensor::min_dims, naive::min),
];

impl Reduction {
    /// Along some dimensions.
    pub fn case(&self, shape: &[usize], dims: &[usize]) -> Case {
        let &Reduction(op, call, math) = self;
        let values = match op {
            "max_dims" | "min_dims" => Values::Distinct,
            _ => Values::Between(-1.0, 1.0),
        };
        let (name, own, dims) = (format!("{op} {shape:?} {dims:?}"), dims.to_vec(), dims.to_vec());
        let reference = move |i: &[Array]| naive::reduce(&i[0], &dims, math);
        let terms = if op == "sum_dims" { own.iter().map(|&d| shape[d]).product() } else { 1 };
        let call = move |t: &[Tensor]| call(&t[0], &own);
        Case::new(name, [input_of(shape, values)], call, reference).cancelling(terms)
    }
}

/// The same of what has a correction; the mathematics is a function of the variance.
pub struct Spread(&'static str, fn(&Tensor, &[usize], usize) -> Result<Tensor>, fn(f64) -> f64);

/// Variance and standard deviation.
pub const SPREADS: [Spread; 2] = [
    Spread("var_dims", Tensor::var_dims, |var| var),
    Spread("std_dims", Tensor::std_dims, f64::sqrt),
];

impl Spread {
    /// Along some dimensions.
    pub fn case(&self, shape: &[usize], dims: &[usize], correction: usize) -> Case {
        let &Spread(name, call, math) = self;
        let var = move |x: &[f64]| {
            let mean = naive::mean(x);
            let squares: Vec<f64> = x.iter().map(|x| (x - mean).powi(2)).collect();
            naive::sum(&squares) / (x.len() as f64 - correction as f64)
        };
        let terms = dims.iter().map(|&d| shape[d]).product::<usize>();
        let (own, dims) = (dims.to_vec(), dims.to_vec());
        let case = Case::new(
            format!("{name} {shape:?} {dims:?} {correction}"),
            [input(shape)],
            move |t| call(&t[0], &own, correction),
            move |i: &[Array]| naive::reduce(&i[0], &dims, |x| math(var(x))),
        );
        case.cancelling(terms)
    }
}

/// The logarithm of summed exponentials along some dimensions.
pub fn logsumexp(shape: &[usize], dims: &[usize]) -> Case {
    let math = |x: &[f64]| naive::sum(&x.iter().map(|x| x.exp()).collect::<Vec<_>>()).ln();
    let (own, dims) = (dims.to_vec(), dims.to_vec());
    let case = Case::new(
        format!("logsumexp {shape:?} {dims:?}"),
        [input_of(shape, Values::Between(-2.0, 2.0))],
        move |t| t[0].logsumexp(&own),
        move |i: &[Array]| naive::reduce(&i[0], &dims, math),
    );
    case.cancelling(8)
}

/// Running sums along a dimension.
pub fn cumsum(shape: &[usize], dim: usize) -> Case {
    let reference = move |i: &[Array]| {
        Array::from_fn(&i[0].shape, |at| {
            let terms = (0..=at[dim]).map(|j| naive::moved(&i[0], at, dim, j));
            naive::sum(&terms.collect::<Vec<_>>())
        })
    };
    let name = format!("cumsum {shape:?} {dim}");
    let case = Case::new(name, [input(shape)], move |t| t[0].cumsum(dim), reference);
    case.cancelling(2 * shape[dim])
}

/// The `k` largest elements of rows.
pub fn topk(shape: &[usize], k: usize) -> Case {
    let reference = move |i: &[Array]| naive::topk(&i[0], k).0;
    let call = move |t: &[Tensor]| Ok(t[0].topk(k)?.0);
    Case::new(format!("topk {shape:?} {k}"), [input_of(shape, Values::Distinct)], call, reference)
}

pub(super) fn list() -> Vec<Case> {
    let reductions = REDUCTIONS.iter().flat_map(|reduction| {
        [(&[17, 1025][..], &[1][..]), (&[300, 41], &[0]), (&[5, 70, 11], &[0, 2])]
            .map(|(shape, dims)| reduction.case(shape, dims))
    });
    let spreads = SPREADS.iter().flat_map(|spread| {
        [(&[3, 1030], &[1], 1), (&[1030, 3], &[0], 0)]
            .map(|(shape, dims, correction)| spread.case(shape, dims, correction))
    });
    let others = [
        logsumexp(&[3, 1030], &[1]),
        logsumexp(&[2, 3, 4], &[0, 2]),
        cumsum(&[3, 513], 1),
        cumsum(&[2050, 2], 0),
        topk(&[33, 65], 31),
        topk(&[2, 2050], 1025),
    ];
    reductions.chain(spreads).chain(others).collect()
}
