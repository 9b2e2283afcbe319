//! The other ops of a Mamba block, and sampling.

use taipan::{
    Activation, CausalConv1d, DType, Result, Sampling, Tensor, add_rms_norm, causal_conv1d, gated,
    rms_norm,
};

use crate::{refuses, zeros, zeros_of};

/// A convolution of `x` `[b, l, d]` with `weight` `[d, k]`, and what else there is.
#[derive(Default)]
struct Conv {
    x: Option<Tensor>,
    weight: Option<Tensor>,
    bias: Option<Tensor>,
    conv_state: Option<Tensor>,
    seq_start: Option<Tensor>,
}

impl Conv {
    /// With `[2, 5, 3]` and `[3, 4]` where nothing else is said.
    fn run(self) -> Result<(Tensor, Tensor)> {
        let x = self.x.unwrap_or_else(|| zeros(&[2, 5, 3]));
        let weight = self.weight.unwrap_or_else(|| zeros(&[3, 4]));
        causal_conv1d(&CausalConv1d {
            bias: self.bias.as_ref(),
            conv_state: self.conv_state.as_ref(),
            seq_start: self.seq_start.as_ref(),
            ..CausalConv1d::new(&x, &weight)
        })
    }
}

#[test]
fn convolutions_of_shapes_that_do_not_fit() {
    let x = |shape: &[usize]| Conv { x: Some(zeros(shape)), ..Conv::default() }.run();
    refuses(x(&[5, 3]), "causal_conv1d: the input is [5, 3], expected [b, l, d]");
    refuses(x(&[]), "causal_conv1d: the input is [], expected [b, l, d]");
    refuses(
        x(&[2, 5, 4]),
        "causal_conv1d: the weight is [3, 4], expected [4, k] with k of 1 or more",
    );
    let weight = |shape: &[usize]| Conv { weight: Some(zeros(shape)), ..Conv::default() }.run();
    for shape in [&[3, 0][..], &[3], &[3, 1, 4], &[4, 4]] {
        refuses(
            weight(shape),
            &format!("causal_conv1d: the weight is {shape:?}, expected [3, k] with k of 1 or more"),
        );
    }
    let (x, weight) = (Some(zeros(&[1 << 40, 0, 0])), Some(zeros(&[0, 1 << 40])));
    refuses(
        Conv { x, weight, ..Conv::default() }.run(),
        "causal_conv1d: the size of [1099511627776, 1099511627775, 0] in f32 overflows",
    );
    let bias = Conv { bias: Some(zeros(&[4])), ..Conv::default() };
    refuses(bias.run(), "causal_conv1d: bias is [4], expected [3]");
    let conv_state = Conv { conv_state: Some(zeros(&[2, 4, 3])), ..Conv::default() };
    refuses(conv_state.run(), "causal_conv1d: conv_state is [2, 4, 3], expected [2, 3, 3]");
    let seq_start = Conv { seq_start: Some(zeros_of(DType::U32, &[5, 2])), ..Conv::default() };
    refuses(seq_start.run(), "causal_conv1d: seq_start is [5, 2], expected [2, 5]");
}

#[test]
fn convolutions_of_mixed_types() {
    let of = |shape: &[usize]| Some(zeros_of(DType::F16, shape));
    let ints = Conv { x: Some(zeros_of(DType::U32, &[2, 5, 3])), ..Conv::default() };
    refuses(ints.run(), "causal_conv1d: the input is u32, expected a float");
    let weight = Conv { weight: of(&[3, 4]), ..Conv::default() };
    refuses(weight.run(), "causal_conv1d: the weight is f16, expected f32");
    let bias = Conv { bias: of(&[3]), ..Conv::default() };
    refuses(bias.run(), "causal_conv1d: bias is f16, expected f32");
    let conv_state = Conv { conv_state: of(&[2, 3, 3]), ..Conv::default() };
    refuses(conv_state.run(), "causal_conv1d: conv_state is f16, expected f32");
    for dtype in [DType::F32, DType::I64] {
        let seq_start = Conv { seq_start: Some(zeros_of(dtype, &[2, 5])), ..Conv::default() };
        refuses(seq_start.run(), &format!("causal_conv1d: seq_start is {dtype}, expected u32"));
    }
}

#[test]
fn norms() {
    let (x, weight) = (zeros(&[2, 3]), zeros(&[3]));
    refuses(
        rms_norm(&zeros(&[]), &weight, 1e-5),
        "rms_norm: the input is [], expected 1 dimension or more",
    );
    refuses(
        rms_norm(&x, &zeros(&[2]), 1e-5),
        "rms_norm: the weight is [2], expected [3] or more of the last dimensions of [2, 3]",
    );
    refuses(
        rms_norm(&x, &zeros_of(DType::F64, &[3]), 1e-5),
        "rms_norm: the weight is f64, expected f32",
    );
    let ints = zeros_of(DType::I64, &[3]);
    refuses(rms_norm(&ints, &ints, 1e-5), "rms_norm: the input is i64, expected a float");
    for eps in [-1.0, f64::NAN, f64::INFINITY] {
        refuses(
            rms_norm(&x, &weight, eps),
            &format!("rms_norm: eps is {eps}, expected 0 or a number above"),
        );
    }
    refuses(
        add_rms_norm(&x, &zeros(&[3]), &weight, 1e-5),
        "add_rms_norm: the residual is [3], expected [2, 3]",
    );
    // The wider type, and no other.
    for (dtype, residual, wide) in [
        (DType::F32, DType::F16, DType::F32),
        (DType::F32, DType::F64, DType::F32),
        (DType::F16, DType::BF16, DType::F32),
        (DType::F16, DType::F64, DType::F32),
        (DType::F64, DType::F32, DType::F64),
        (DType::F32, DType::U32, DType::F32),
    ] {
        let (x, weight) = (zeros_of(dtype, &[2, 3]), zeros_of(dtype, &[3]));
        refuses(
            add_rms_norm(&x, &zeros_of(residual, &[2, 3]), &weight, 1e-5),
            &format!("add_rms_norm: the residual is {residual}, expected {wide}"),
        );
    }
}

#[test]
fn gates() {
    let x = zeros(&[2, 3]);
    let gate = |gate: &Tensor| gated(&x, gate, Activation::Silu);
    refuses(gate(&zeros(&[3])), "gated: the gate is [3], expected [2, 3]");
    refuses(gate(&zeros_of(DType::F16, &[2, 3])), "gated: the gate is f16, expected f32");
    let ints = zeros_of(DType::U32, &[3]);
    refuses(gated(&ints, &ints, Activation::Silu), "gated: the input is u32, expected a float");
}

#[test]
fn drawing_tokens() {
    let default = Sampling::default();
    refuses(zeros(&[]).sample(&default), "sample: the input is [], expected 1 dimension or more");
    refuses(zeros(&[2, 0]).sample(&default), "sample: dimension 1 of [2, 0] is empty");
    for (temperature, found) in [(-1.0, "-1"), (f64::NAN, "NaN"), (f64::INFINITY, "inf")] {
        refuses(
            zeros(&[2]).sample(&Sampling { temperature, ..default.clone() }),
            &format!("sample: the temperature is {found}, expected a finite number of 0 or more"),
        );
    }
    for temperature in [0.0, 1.0] {
        refuses(
            zeros(&[2]).sample(&Sampling { temperature, top_k: Some(0), ..default.clone() }),
            "sample: top_k is 0, expected 1 or more",
        );
    }
    for (top_p, found) in [(0.0, "0"), (1.5, "1.5"), (f64::NAN, "NaN")] {
        refuses(
            zeros(&[2]).sample(&Sampling { top_p, ..default.clone() }),
            &format!("sample: top_p is {found}, expected above 0 and at most 1"),
        );
    }
    for (min_p, found) in [(-0.5, "-0.5"), (2.0, "2"), (f64::NAN, "NaN")] {
        refuses(
            zeros(&[2]).sample(&Sampling { min_p, ..default.clone() }),
            &format!("sample: min_p is {found}, expected 0 to 1"),
        );
    }
    let tokens = zeros_of(DType::U32, &[2, 3]);
    let op = "repetition_penalty";
    for penalty in [0.0, -1.0, f64::INFINITY] {
        refuses(
            zeros(&[2, 9]).repetition_penalty(&tokens, penalty),
            &format!("{op}: the penalty is {penalty}, expected a finite number above 0"),
        );
    }
    for (shape, shown) in [(&[3, 9][..], "[3, 9]"), (&[9], "[9]"), (&[], "[]")] {
        refuses(
            zeros(shape).repetition_penalty(&tokens, 2.0),
            &format!(
                "{op}: the input is {shown} and tokens are [2, 3], expected […, n] and […, m]"
            ),
        );
    }
    refuses(
        zeros(&[2, 9]).repetition_penalty(&zeros(&[2, 3]), 2.0),
        "repetition_penalty: the tensor of tokens is f32, expected u32",
    );
}
