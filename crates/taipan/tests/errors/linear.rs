//! Products of shapes and types that do not fit.

use taipan::{Activation, DType, Tensor, Weight, linear, linear_backward};

use crate::{refuses, zeros, zeros_of};

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
