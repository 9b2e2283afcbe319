//! Operations of a user's own.

use taipan::check::{Array, Case, check, devices, input};
use taipan::{
    BackwardReads, CustomOp, DType, Device, Error, Number, Result, SavedTensors, Tensor, custom,
};

#[allow(dead_code)] // Its `main` is for the example.
#[path = "../../examples/custom_op.rs"]
mod example;

/// `y[r, c] = w[c]·x[r, c]²`, with both gradients, and what can be wrong with an op.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Squares {
    Right,
    OneGradientTooFew,
    NoGradient,
    WrongShape,
    ReadsOutput,
}

impl CustomOp for Squares {
    const NAME: &'static str = "squares";
    const INPUTS: &'static [&'static str] = &["x", "w"];
    const BACKWARD_READS: BackwardReads = BackwardReads::Inputs;
    const WGSL: &'static str = "
        fn value(i: u32) -> f32 {
            return f32(w[i % size(0u)]) * f32(x[i]) * f32(x[i]);
        }";

    fn shape(&self, inputs: &[&[usize]]) -> std::result::Result<Vec<usize>, String> {
        match (inputs[0], inputs[1]) {
            ([_, n], [w]) if n == w => Ok(inputs[0].to_vec()),
            (x, w) => Err(format!("x is {x:?} and w {w:?}, expected [m, n] and [n]")),
        }
    }

    fn sizes(&self, inputs: &[&[usize]]) -> Vec<usize> {
        vec![inputs[1][0]]
    }

    fn cpu<A: Number>(&self, inputs: &[&[A]], sizes: &[usize], first: usize, y: &mut [A]) {
        for (i, y) in (first..).zip(y) {
            *y = inputs[1][i % sizes[0]] * inputs[0][i] * inputs[0][i];
        }
    }

    fn backward(&self, saved: &SavedTensors, dy: &Tensor) -> Result<Vec<Option<Tensor>>> {
        if *self == Squares::ReadsOutput {
            saved.output()?;
        }
        let (x, w) = (saved.input(0)?, saved.input(1)?);
        let dx = match saved.needs(0) {
            true => Some(dy.mul(x)?.mul(w)?.scale(2.0)?),
            false => None,
        };
        let dw = match saved.needs(1) {
            true => Some(dy.mul(x)?.mul(x)?.sum_dims(&[0])?),
            false => None,
        };
        Ok(match self {
            Squares::OneGradientTooFew => vec![dx],
            Squares::NoGradient => vec![None, dw],
            Squares::WrongShape => vec![dw, dx],
            _ => vec![dx, dw],
        })
    }
}

fn naive(i: &[Array]) -> Array {
    let (x, w) = (&i[0], &i[1]);
    let n = w.data.len();
    let data = x.data.iter().enumerate().map(|(i, x)| w.data[i % n] * x * x).collect();
    Array { shape: x.shape.clone(), data }
}

#[test]
fn values_and_gradients_on_every_device() {
    for [m, n] in [[0, 3], [1, 1], [3, 7], [70, 257], [3, 20_000]] {
        let inputs = [input(&[m, n]), input(&[n])];
        let name = format!("squares [{m}, {n}]");
        let call = |t: &[Tensor]| custom(Squares::Right, &[&t[0], &t[1]]);
        check(&Case::new(name, inputs, call, naive).cancelling(m));
    }
}

/// On the CPU: in WGSL, sines and cosines need only be within 2⁻¹¹, and the example compares those.
#[test]
fn the_op_of_the_example() {
    for [l, h, d] in [[0, 1, 2], [1, 1, 2], [5, 3, 8], [130, 2, 64]] {
        let call = |t: &[Tensor]| custom(example::Rope { theta: 100.0, turn: 1.0 }, &[&t[0]]);
        let reference = move |i: &[Array]| {
            Array::from_fn(&[2, l, h, d], |at| {
                let (position, j) = (at[1] as f64, at[3] % (d / 2));
                let (sin, cos) = (position * 100f64.powf(-2.0 * j as f64 / d as f64)).sin_cos();
                let x = |channel| i[0].at(&[at[0], at[1], at[2], channel]);
                match at[3] < d / 2 {
                    true => cos * x(j) - sin * x(j + d / 2),
                    false => sin * x(j) + cos * x(j + d / 2),
                }
            })
        };
        let name = format!("rope [2, {l}, {h}, {d}]");
        let case = Case::new(name, [input(&[2, l, h, d])], call, reference);
        check(&case.cancelling(2).on([Device::Cpu]));
    }
}

#[test]
fn what_is_wrong_with_an_op_is_told() -> Result<()> {
    let of = |shape: &[usize]| Tensor::ones(shape, DType::F32, &Device::Cpu);
    let (x, w) = (of(&[2, 3])?.tracked(), of(&[3])?.tracked());
    let error = |op| custom(op, &[&x, &w]).and_then(|y| y.sum()?.backward()).unwrap_err();
    for (op, why) in [
        (Squares::OneGradientTooFew, "backward gives 1 gradients, expected 2"),
        (Squares::NoGradient, "backward gives none for x"),
        (Squares::WrongShape, "the gradient of x is [3] in f32, expected [2, 3] in f32"),
        (Squares::ReadsOutput, "backward reads the result, but BACKWARD_READS is Inputs"),
    ] {
        assert_eq!(error(op), Error::Gradient { op: "squares", why: why.into() });
    }
    let refused = |inputs: &[&Tensor]| custom(Squares::Right, inputs).unwrap_err().to_string();
    assert_eq!(refused(&[&x]), "squares: 1 inputs found, expected 2 (1 to 7)");
    let expected = "squares: x is [2, 3] and w [2, 3], expected [m, n] and [n]";
    assert_eq!(refused(&[&x, &x]), expected);
    let half = w.cast(DType::F16)?;
    assert_eq!(refused(&[&x, &half]), "squares: w is f16, expected f32");
    Ok(())
}

/// WGSL that does not compile, and WGSL that reads beyond its input.
struct Bad<const COMPILES: bool>;

impl<const COMPILES: bool> CustomOp for Bad<COMPILES> {
    const NAME: &'static str = "bad";
    const INPUTS: &'static [&'static str] = &["x"];
    const BACKWARD_READS: BackwardReads = BackwardReads::Nothing;
    const WGSL: &'static str = match COMPILES {
        true => "fn value(i: u32) -> f32 { return f32(x[i + 1000000u]); }",
        false => "fn value(i: u32) -> f32 { return nothing; }",
    };

    fn shape(&self, inputs: &[&[usize]]) -> std::result::Result<Vec<usize>, String> {
        Ok(inputs[0].to_vec())
    }

    fn sizes(&self, _: &[&[usize]]) -> Vec<usize> {
        Vec::new()
    }

    fn cpu<A: Number>(&self, _: &[&[A]], _: &[usize], _: usize, y: &mut [A]) {
        y.fill(A::from_f64(0.0));
    }

    fn backward(&self, _: &SavedTensors, dy: &Tensor) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(dy.clone())])
    }
}

/// Not in a browser, which compiles later: there, some later call returns the error.
#[cfg(not(target_family = "wasm"))]
#[test]
fn bad_wgsl_is_an_error() -> Result<()> {
    for device in devices().into_iter().filter(|device| *device != Device::Cpu) {
        let x = Tensor::full(&[10], 3.0, DType::F32, &device)?;
        let error = custom(Bad::<false>, &[&x]).unwrap_err().to_string();
        assert!(error.starts_with("bad: the kernel is refused: "), "{error}");
    }
    Ok(())
}

#[test]
fn bad_wgsl_never_reads_foreign_memory() -> Result<()> {
    for device in devices().into_iter().filter(|device| *device != Device::Cpu) {
        let x = Tensor::full(&[10], 3.0, DType::F32, &device)?;
        let read = custom(Bad::<true>, &[&x])?.read_blocking::<f32>()?;
        assert!(read.iter().all(|y| [0.0, 3.0].contains(y)), "{read:?}");
    }
    Ok(())
}
