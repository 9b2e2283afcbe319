//! Tensors that cannot be made, read or combined.

use taipan::{Activation, DType, Error, Sampling, Tensor, concat, linear};

use crate::{CPU, refuses, zeros, zeros_of};

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
