//! Each mistake a caller can make, and what the error says: the operation, what was found, what
//! was expected.

use taipan::{
    Activation, CausalConv1d, DType, Device, Error, Result, Sampling, Scan, Tensor, Weight,
    add_rms_norm, causal_conv1d, concat, gated, linear, linear_backward, rms_norm, selective_scan,
    selective_scan_step,
};

const CPU: Device = Device::Cpu;

/// Zeros of type f32.
fn zeros(shape: &[usize]) -> Tensor {
    Tensor::zeros(shape, DType::F32, &CPU).unwrap()
}

/// Zeros of a type.
fn zeros_of(dtype: DType, shape: &[usize]) -> Tensor {
    Tensor::zeros(shape, dtype, &CPU).unwrap()
}

/// Expect the mistake to be refused with this message.
#[track_caller]
fn refuses<T>(mistake: Result<T>, message: &str) {
    match mistake {
        Ok(_) => panic!("accepted, expected: {message}"),
        Err(error) => assert_eq!(error.to_string(), message),
    }
}

#[test]
fn making_tensors() {
    let device = &CPU;
    refuses(Tensor::new(&[1f32, 2.0], &[3], device), "tensor: 2 values found, expected 3 for [3]");
    refuses(Tensor::new(&[1f32], &[0], device), "tensor: 1 values found, expected 0 for [0]");
    refuses(Tensor::new::<f32>(&[], &[], device), "tensor: 0 values found, expected 1 for []");
    refuses(Tensor::arange(5, 3, DType::F32, device), "arange: the range 5..3 runs backwards");
    refuses(
        Tensor::rand(&[2], 1, DType::U32, device),
        "rand: the type asked for is u32, expected a float",
    );
    refuses(
        Tensor::randn(&[2], 1, DType::I64, device),
        "randn: the type asked for is i64, expected a float",
    );
}

#[test]
fn sizes_that_overflow() {
    let device = &CPU;
    refuses(
        Tensor::zeros(&[usize::MAX, 2], DType::F32, device),
        "zeros: the size of [18446744073709551615, 2] in f32 overflows",
    );
    // In whatever order the zero comes.
    for shape in [[1 << 40, 1 << 40, 0], [0, 1 << 40, 1 << 40], [1 << 40, 0, 1 << 40]] {
        refuses(
            Tensor::full(&shape, 1.0, DType::F32, device),
            &format!("full: the size of {shape:?} in f32 overflows"),
        );
        refuses(
            Tensor::new::<f32>(&[], &shape, device),
            &format!("tensor: the size of {shape:?} in f32 overflows"),
        );
        refuses(
            Tensor::rand(&shape, 1, DType::F16, device),
            &format!("rand: the size of {shape:?} in f16 overflows"),
        );
        refuses(
            zeros(&[0]).reshape(&shape),
            &format!("reshape: the size of {shape:?} in f32 overflows"),
        );
    }
    refuses(
        Tensor::arange(i64::MIN, i64::MAX, DType::U32, device),
        "arange: the size of [18446744073709551615] in u32 overflows",
    );
    // Results too large although the inputs are empty.
    let (tall, wide) = (zeros(&[1 << 40, 0]), zeros(&[0, 1 << 40]));
    refuses(
        linear(&tall, &wide, None, Activation::None),
        "linear: the size of [1099511627776, 1099511627776] in f32 overflows",
    );
    let (tall, wide) = (zeros(&[1 << 40, 1, 0]), zeros(&[1, 1 << 40, 0]));
    refuses(tall.add(&wide), "add: the size of [1099511627776, 1099511627776, 0] in f32 overflows");
    let wide = zeros_of(DType::F16, &[0, 1 << 61]);
    refuses(wide.cast(DType::F64), "cast: the size of [0, 2305843009213693952] in f64 overflows");
    let long = zeros_of(DType::F16, &[1 << 60, 0]);
    refuses(
        concat(&[&long, &long, &long, &long], 0),
        "concat: the size of [4611686018427387904, 0] in f16 overflows",
    );
}

/// More memory than any machine has: an error, not an abort.
#[test]
fn memory_that_does_not_exist() {
    let bytes = 1usize << 60;
    let memory = |op| Error::Memory { op, bytes, device: "cpu" };
    let made = Tensor::zeros(&[1 << 58], DType::F32, &CPU);
    assert_eq!(made.unwrap_err(), memory("zeros"));
    refuses(
        Tensor::rand(&[1 << 58], 1, DType::F32, &CPU),
        "rand: 1152921504606846976 bytes could not be allocated on cpu",
    );
    let (x, w) = (zeros(&[1 << 29, 0]), zeros(&[0, 1 << 29]));
    assert_eq!(linear(&x, &w, None, Activation::Gelu).unwrap_err(), memory("linear"));
    let tracked = linear(&x.tracked(), &w, None, Activation::Gelu);
    assert_eq!(tracked.unwrap_err(), memory("linear"));
    // After the failure there is memory for what fits.
    assert_eq!(zeros(&[3]).read_blocking::<f32>(), Ok(vec![0.0; 3]));
}

#[test]
fn reading() {
    refuses(zeros(&[2]).read_blocking::<f64>(), "read: the type asked for is f64, expected f32");
    refuses(
        zeros_of(DType::U32, &[2]).read_blocking::<i64>(),
        "read: the type asked for is i64, expected u32",
    );
    refuses(zeros(&[2, 1]).item(), "item: the tensor is [2, 1], expected one element");
    refuses(zeros(&[0]).item(), "item: the tensor is [0], expected one element");
}

#[test]
fn linear_of_shapes_that_do_not_fit() {
    let none = Activation::None;
    let layer = |x: &[usize], w: &[usize], bias: Option<&[usize]>| {
        linear(&zeros(x), &zeros(w), bias.map(zeros).as_ref(), none)
    };
    refuses(
        layer(&[2, 3], &[4, 5], None),
        "linear: the weight is [4, 5], expected […, k, n] with k = 3 for [2, 3]",
    );
    refuses(
        linear(&zeros(&[2, 3]), Weight::nk(&zeros(&[3, 5])), None, none),
        "linear: the weight is [3, 5], expected […, n, k] with k = 3 for [2, 3]",
    );
    refuses(layer(&[], &[3, 4], None), "linear: the input is [], expected 2 dimensions or more");
    refuses(layer(&[3], &[3, 4], None), "linear: the input is [3], expected 2 dimensions or more");
    refuses(layer(&[2, 3], &[3], None), "linear: the weight is [3], expected 2 dimensions or more");
    refuses(layer(&[2, 3], &[], None), "linear: the weight is [], expected 2 dimensions or more");
    refuses(layer(&[2, 3], &[3, 4], Some(&[3])), "linear: bias is [3], expected [4]");
    refuses(layer(&[2, 3], &[3, 4], Some(&[1])), "linear: bias is [1], expected [4]");
    refuses(layer(&[2, 3], &[3, 4], Some(&[])), "linear: bias is [], expected [4]");
    refuses(layer(&[2, 3], &[3, 4], Some(&[2, 4])), "linear: bias is [2, 4], expected [4]");
    refuses(
        layer(&[2, 3], &[5, 3, 4], None),
        "linear: the weight is [5, 3, 4], expected 2 dimensions for [2, 3]",
    );
    refuses(
        layer(&[5, 2, 3], &[4, 3, 4], None),
        "linear: the weight is [4, 3, 4], expected 2 dimensions or [5] in front for [5, 2, 3]",
    );
    refuses(
        layer(&[6, 5, 2, 3], &[5, 3, 4], None),
        "linear: the weight is [5, 3, 4], expected 2 dimensions or [6, 5] in front for [6, 5, 2, 3]",
    );
}

#[test]
fn linear_of_mixed_types() {
    let (f32, f16) = (DType::F32, DType::F16);
    let layer = |x: DType, w: DType, bias: DType| {
        let bias = zeros_of(bias, &[4]);
        linear(&zeros_of(x, &[2, 3]), &zeros_of(w, &[3, 4]), Some(&bias), Activation::Relu)
    };
    refuses(layer(f32, f16, f32), "linear: the weight is f16, expected f32");
    refuses(layer(f16, f32, f32), "linear: the weight is f32, expected f16");
    refuses(layer(f32, f32, f16), "linear: bias is f16, expected f32");
    refuses(layer(DType::U32, f32, f32), "linear: the input is u32, expected a float");
    refuses(layer(f32, DType::I64, f32), "linear: the weight is i64, expected f32");
}

#[test]
fn linear_backward_from_an_upstream_that_does_not_fit() {
    let (x, w) = (zeros(&[2, 3]), zeros(&[3, 4]));
    let backward = |dy: &Tensor| linear_backward(&x, &w, None, Activation::Gelu, dy);
    refuses(backward(&zeros(&[2, 3])), "linear: the upstream is [2, 3], expected [2, 4]");
    refuses(backward(&zeros(&[])), "linear: the upstream is [], expected [2, 4]");
    refuses(backward(&zeros_of(DType::F64, &[2, 4])), "linear: the upstream is f64, expected f32");
    refuses(
        linear_backward(&x, &zeros(&[4, 4]), None, Activation::Gelu, &zeros(&[2, 4])),
        "linear: the weight is [4, 4], expected […, k, n] with k = 3 for [2, 3]",
    );
}

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
    refuses(rms_norm(&x, &zeros(&[2]), 1e-5), "rms_norm: the weight is [2], expected [3]");
    refuses(rms_norm(&x, &zeros(&[1, 3]), 1e-5), "rms_norm: the weight is [1, 3], expected [3]");
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
fn matmul() {
    refuses(
        zeros(&[2, 3]).matmul(&zeros(&[4, 5])),
        "matmul: [2, 3] and [4, 5] do not fit, expected […, 3, n]",
    );
    refuses(
        zeros(&[2, 2, 3]).matmul(&zeros(&[3, 3, 5])),
        "matmul: [2, 2, 3] and [3, 3, 5] do not broadcast in their leading dimensions",
    );
    refuses(
        zeros(&[3]).matmul(&zeros(&[3, 5])),
        "matmul: [3] and [3, 5] do not fit, expected 2 dimensions or more",
    );
}

#[test]
fn arithmetic() {
    let (a, b) = (zeros(&[2, 3]), zeros(&[2, 4]));
    refuses(a.add(&b), "add: [2, 3] and [2, 4] do not broadcast");
    refuses(a.sub(&zeros(&[3, 3])), "sub: [2, 3] and [3, 3] do not broadcast");
    refuses(a.mul(&zeros(&[2])), "mul: [2, 3] and [2] do not broadcast");
    refuses(a.div(&zeros(&[0])), "div: [2, 3] and [0] do not broadcast");
    refuses(a.add(&zeros_of(DType::F64, &[2, 3])), "add: the right side is f64, expected f32");
    refuses(a.mul(&zeros_of(DType::U32, &[3])), "mul: the right side is u32, expected f32");
    let ints = zeros_of(DType::U32, &[3]);
    refuses(ints.add(&ints), "add: the left side is u32, expected a float");
    refuses(ints.scale(2.0), "scale: the input is u32, expected a float");
}

#[test]
fn too_many_dimensions() {
    refuses(zeros(&[1]).reshape(&[1; 65]), "reshape: 65 dimensions found, expected at most 64");
}

#[test]
fn broadcast_to() {
    refuses(zeros(&[2, 3]).broadcast_to(&[3]), "broadcast_to: [2, 3] does not broadcast to [3]");
    refuses(zeros(&[2]).broadcast_to(&[1]), "broadcast_to: [2] does not broadcast to [1]");
    refuses(zeros(&[2]).broadcast_to(&[3]), "broadcast_to: [2] does not broadcast to [3]");
    assert_eq!(zeros_of(DType::U32, &[1]).broadcast_to(&[3]).unwrap().shape(), [3]);
}

#[test]
fn functions_of_integers() {
    let x = zeros_of(DType::I64, &[2]);
    refuses(x.exp(), "exp: the input is i64, expected a float");
    refuses(x.gelu_erf(), "gelu_erf: the input is i64, expected a float");
    refuses(x.neg(), "neg: the input is i64, expected a float");
    refuses(x.sum(), "sum: the input is i64, expected a float");
    refuses(x.mean(), "mean: the input is i64, expected a float");
    refuses(x.max(), "max: the input is i64, expected a float");
    refuses(x.argmax(0), "argmax: the input is i64, expected a float");
    refuses(x.softmax(0), "softmax: the input is i64, expected a float");
    refuses(x.topk(1), "topk: the input is i64, expected a float");
    refuses(x.sample(&Sampling::default()), "sample: the input is i64, expected a float");
}

#[test]
fn the_largest_elements() {
    refuses(zeros(&[]).topk(0), "topk: the input is [], expected 1 dimension or more");
    refuses(zeros(&[2, 4]).topk(5), "topk: k is 5, expected at most 4 for [2, 4]");
    refuses(zeros(&[2, 0]).topk(1), "topk: k is 1, expected at most 0 for [2, 0]");
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

#[test]
fn dimensions_that_do_not_exist() {
    let x = zeros(&[2, 3]);
    refuses(x.sum_dims(&[2]), "sum: dimension 2 of [2, 3] does not exist");
    refuses(x.mean_dims(&[0, 5]), "mean: dimension 5 of [2, 3] does not exist");
    refuses(
        x.max_dims(&[usize::MAX]),
        "max: dimension 18446744073709551615 of [2, 3] does not exist",
    );
    refuses(x.sum_dims(&[1, 1]), "sum: dimension 1 is named twice");
    refuses(x.argmax(2), "argmax: dimension 2 of [2, 3] does not exist");
    refuses(x.softmax(2), "softmax: dimension 2 of [2, 3] does not exist");
    refuses(x.transpose(0, 2), "transpose: dimension 2 of [2, 3] does not exist");
    refuses(x.transpose(3, 0), "transpose: dimension 3 of [2, 3] does not exist");
    refuses(x.slice(2, 0..1), "slice: dimension 2 of [2, 3] does not exist");
    refuses(concat(&[&x, &x], 2), "concat: dimension 2 of [2, 3] does not exist");
    let scalar = zeros(&[]);
    refuses(scalar.sum_dims(&[0]), "sum: dimension 0 of [] does not exist");
    refuses(scalar.argmax(0), "argmax: dimension 0 of [] does not exist");
    refuses(scalar.softmax(0), "softmax: dimension 0 of [] does not exist");
    refuses(concat(&[&scalar], 0), "concat: dimension 0 of [] does not exist");
}

#[test]
fn the_largest_of_nothing() {
    refuses(zeros(&[0]).max(), "max: dimension 0 of [0] is empty");
    refuses(zeros(&[2, 0]).max_dims(&[1]), "max: dimension 1 of [2, 0] is empty");
    refuses(zeros(&[0, 2]).max_dims(&[0]), "max: dimension 0 of [0, 2] is empty");
    refuses(zeros(&[2, 0]).argmax(1), "argmax: dimension 1 of [2, 0] is empty");
}

#[test]
fn shapes_and_orders() {
    let x = zeros(&[2, 3]);
    refuses(x.reshape(&[4]), "reshape: [2, 3] does not fill [4]");
    refuses(x.reshape(&[]), "reshape: [2, 3] does not fill []");
    refuses(x.reshape(&[6, 0]), "reshape: [2, 3] does not fill [6, 0]");
    refuses(x.permute(&[0]), "permute: [0] is no order of the dimensions of [2, 3]");
    refuses(x.permute(&[0, 0]), "permute: [0, 0] is no order of the dimensions of [2, 3]");
    refuses(x.permute(&[1, 2]), "permute: [1, 2] is no order of the dimensions of [2, 3]");
    refuses(x.permute(&[0, 1, 2]), "permute: [0, 1, 2] is no order of the dimensions of [2, 3]");
}

#[test]
fn splits() {
    let x = zeros(&[2, 3]);
    let split = |dim, sizes: &[usize]| x.split(dim, sizes).map(|mut parts| parts.swap_remove(0));
    refuses(split(2, &[1]), "split: dimension 2 of [2, 3] does not exist");
    refuses(split(1, &[]), "split: there are no sizes, expected one or more");
    refuses(
        split(1, &[1, 1]),
        "split: the sizes [1, 1] add up to 2, expected 3 for dimension 1 of [2, 3]",
    );
    refuses(
        split(0, &[usize::MAX, 3]),
        "split: the sizes [18446744073709551615, 3] add up to 18446744073709551615, expected 2 \
         for dimension 0 of [2, 3]",
    );
}

#[test]
#[allow(clippy::reversed_empty_ranges)]
fn slices() {
    let x = zeros(&[2, 3]);
    refuses(x.slice(1, 0..4), "slice: 0..4 is not within dimension 1 of [2, 3]");
    refuses(x.slice(1, 4..4), "slice: 4..4 is not within dimension 1 of [2, 3]");
    refuses(x.slice(0, 2..1), "slice: 2..1 is not within dimension 0 of [2, 3]");
    refuses(
        x.slice(0, 1..usize::MAX),
        "slice: 1..18446744073709551615 is not within dimension 0 of [2, 3]",
    );
}

#[test]
fn concatenations() {
    let x = zeros(&[2, 3]);
    refuses(concat(&[], 0), "concat: there are no tensors to join");
    refuses(
        concat(&[&x, &zeros(&[2, 4])], 0),
        "concat: [2, 4] does not fit [2, 3], expected equal sizes in all dimensions but 0",
    );
    refuses(
        concat(&[&x, &zeros(&[3])], 0),
        "concat: [3] does not fit [2, 3], expected equal sizes in all dimensions but 0",
    );
    refuses(
        concat(&[&x, &zeros_of(DType::F64, &[2, 3])], 0),
        "concat: a tensor is f64, expected f32",
    );
}

#[test]
fn backward() -> Result<()> {
    let x = zeros(&[2, 3]).tracked();
    refuses(
        x.exp()?.backward(),
        "backward: the tensor is [2, 3], expected one element (or an upstream: backward_from)",
    );
    refuses(x.exp()?.backward_from(&zeros(&[3])), "backward: the upstream is [3], expected [2, 3]");
    refuses(
        x.exp()?.backward_from(&zeros_of(DType::F64, &[2, 3])),
        "backward: the upstream is f64, expected f32",
    );
    refuses(zeros(&[]).backward(), "backward: the tensor does not depend on any tracked tensor");
    let y = x.exp()?.sum()?;
    y.backward()?;
    refuses(y.backward(), "backward: the graph of sum was used by an earlier backward");
    Ok(())
}

#[test]
fn gradients_that_do_not_exist() -> Result<()> {
    let x = zeros(&[2]).tracked();
    let y = x.exp()?;
    let grads = y.sum()?.backward()?;
    refuses(grads.of(&zeros(&[2])), "grads: the tensor is not tracked");
    refuses(
        grads.of(&y),
        "grads: the tensor is not a leaf; gradients are kept for tracked leaves only",
    );
    refuses(grads.of(&zeros(&[2]).tracked()), "grads: the result does not depend on the tensor");
    Ok(())
}

/// Callers can tell mistakes apart without reading the message.
#[test]
fn variants_say_what_kind_of_mistake() {
    let x = zeros(&[2, 3]);
    assert!(matches!(x.reshape(&[5]), Err(Error::Shape { op: "reshape", .. })));
    let mixed = x.add(&zeros_of(DType::F16, &[3]));
    let found = DType::F16;
    assert!(matches!(mixed, Err(Error::DType { op: "add", found: f, .. }) if f == found));
    assert!(matches!(x.backward(), Err(Error::Gradient { op: "backward", .. })));
}

/// A scan of which one input may be wrong.
#[derive(Default)]
struct Scanned {
    u: Option<Tensor>,
    delta: Option<Tensor>,
    a_log: Option<Tensor>,
    b: Option<Tensor>,
    c: Option<Tensor>,
    d: Option<Tensor>,
    delta_bias: Option<Tensor>,
    z: Option<Tensor>,
    initial_state: Option<Tensor>,
    seq_start: Option<Tensor>,
}

impl Scanned {
    /// With `[b, l, d, n]` of `[2, 5, 3, 4]`.
    fn run(self) -> Result<(Tensor, Tensor)> {
        let or = |given: Option<Tensor>, shape: &[usize]| given.unwrap_or_else(|| zeros(shape));
        let (u, delta) = (or(self.u, &[2, 5, 3]), or(self.delta, &[2, 5, 3]));
        let a_log = or(self.a_log, &[3, 4]);
        let (b, c) = (or(self.b, &[2, 5, 4]), or(self.c, &[2, 5, 4]));
        selective_scan(&Scan {
            d: self.d.as_ref(),
            delta_bias: self.delta_bias.as_ref(),
            z: self.z.as_ref(),
            initial_state: self.initial_state.as_ref(),
            seq_start: self.seq_start.as_ref(),
            ..Scan::new(&u, &delta, &a_log, &b, &c)
        })
    }
}

#[test]
fn scans_of_shapes_that_do_not_fit() {
    let none = Scanned::default;
    let refuses = |scan: Scanned, message: &str| {
        refuses(scan.run(), &format!("selective_scan: {message}"));
    };
    assert!(none().run().is_ok());
    let wrong = |shape: &[usize]| Some(zeros(shape));
    refuses(Scanned { u: wrong(&[5, 3]), ..none() }, "u is [5, 3], expected [b, l, d]");
    refuses(Scanned { u: wrong(&[2, 6, 3]), ..none() }, "delta is [2, 5, 3], expected [2, 6, 3]");
    refuses(Scanned { a_log: wrong(&[3]), ..none() }, "a_log is [3], expected [d, n]");
    refuses(Scanned { a_log: wrong(&[2, 4]), ..none() }, "a_log is [2, 4], expected [3, 4]");
    refuses(Scanned { a_log: wrong(&[3, 0]), ..none() }, "a_log has 0 states, expected 1 to 256");
    refuses(
        Scanned { a_log: wrong(&[3, Scan::MAX_STATES + 1]), ..none() },
        "a_log has 257 states, expected 1 to 256",
    );
    refuses(Scanned { b: wrong(&[2, 5, 3]), ..none() }, "b is [2, 5, 3], expected [2, 5, 4]");
    refuses(Scanned { c: wrong(&[2, 4, 4]), ..none() }, "c is [2, 4, 4], expected [2, 5, 4]");
    refuses(Scanned { d: wrong(&[4]), ..none() }, "d is [4], expected [3]");
    refuses(Scanned { delta_bias: wrong(&[1]), ..none() }, "delta_bias is [1], expected [3]");
    refuses(Scanned { z: wrong(&[2, 5, 4]), ..none() }, "z is [2, 5, 4], expected [2, 5, 3]");
    refuses(
        Scanned { initial_state: wrong(&[2, 4, 3]), ..none() },
        "initial_state is [2, 4, 3], expected [2, 3, 4]",
    );
    let seq_start = Some(zeros_of(DType::U32, &[5, 2]));
    refuses(Scanned { seq_start, ..none() }, "seq_start is [5, 2], expected [2, 5]");
    let [u, delta] = [(); 2].map(|()| wrong(&[0, 1 << 52, 64]));
    let (a_log, rows) = (wrong(&[64, 256]), || wrong(&[0, 1 << 52, 256]));
    refuses(
        Scanned { u, delta, a_log, b: rows(), c: rows(), ..none() },
        "the size of [0, 281474976710656, 256, 64] in f32 overflows",
    );
}

#[test]
fn scans_of_mixed_types() {
    let none = Scanned::default;
    let refuses = |scan: Scanned, message: &str| {
        refuses(scan.run(), &format!("selective_scan: {message}"));
    };
    let half = |shape: &[usize]| Some(zeros_of(DType::F16, shape));
    refuses(
        Scanned { u: Some(zeros_of(DType::U32, &[2, 5, 3])), ..none() },
        "u is u32, expected a float",
    );
    refuses(Scanned { delta: half(&[2, 5, 3]), ..none() }, "delta is f16, expected f32");
    refuses(Scanned { b: half(&[2, 5, 4]), ..none() }, "b is f16, expected f32");
    refuses(Scanned { a_log: half(&[3, 4]), ..none() }, "a_log is f16, expected f32");
    refuses(
        Scanned { initial_state: half(&[2, 3, 4]), ..none() },
        "initial_state is f16, expected f32",
    );
    refuses(
        Scanned { seq_start: Some(zeros(&[2, 5])), ..none() },
        "seq_start is f32, expected u32",
    );
    // What belongs to the recurrence is in f32 for halves, too.
    let scan = Scanned {
        u: half(&[2, 5, 3]),
        delta: half(&[2, 5, 3]),
        b: half(&[2, 5, 4]),
        c: half(&[2, 5, 4]),
        d: half(&[3]),
        ..none()
    };
    refuses(scan, "d is f16, expected f32");
}

#[test]
fn steps_of_a_scan() {
    let (u, a_log, b) = (zeros(&[2, 3]), zeros(&[3, 4]), zeros(&[2, 4]));
    let step = Scan::new(&u, &u, &a_log, &b, &b);
    assert!(selective_scan_step(&step).is_ok());
    let wrong = zeros(&[2, 1, 3]);
    refuses(
        selective_scan_step(&Scan { z: Some(&wrong), ..step }),
        "selective_scan_step: z is [2, 1, 3], expected 2 dimensions",
    );
    let seq_start = zeros_of(DType::U32, &[2, 1]);
    refuses(
        selective_scan_step(&Scan { seq_start: Some(&seq_start), ..step }),
        "selective_scan_step: seq_start is given, expected none for a single step",
    );
}
