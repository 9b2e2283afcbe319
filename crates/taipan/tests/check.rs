//! The check finds what can be wrong with an op, and says where.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use taipan::check::{Array, Case, check, input};
use taipan::{
    BackwardReads, CustomOp, DType, Device, Number, Result, SavedTensors, Tensor, custom,
};

/// Less than the tolerance of f64, and more than nothing.
const LAST_BITS: f64 = 1.0 / (1u64 << 51) as f64;

type Function = fn(&Tensor) -> Result<Tensor>;

/// The case of a function that should be `x²`.
fn square(call: Function) -> Case {
    let reference = |i: &[Array]| i[0].map(|x| x * x);
    Case::new("square", [input(&[3, 5])], move |t| call(&t[0]), reference)
}

/// What the check says about a case on the CPU.
fn message(case: Case) -> String {
    let case = case.on([Device::Cpu]);
    let panic = catch_unwind(AssertUnwindSafe(|| check(&case))).expect_err("it passes");
    *panic.downcast::<String>().expect("a message")
}

#[test]
fn what_is_right_passes_on_every_device() {
    check(&square(|x| x.mul(x)));
}

#[test]
fn what_is_wrong_is_told() {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let wrong: [(Function, &str); 8] = [
        (|x| x.mul(x)?.scale(1.0 + 1e-12), "in f64: the value at [0, 0]: found "),
        (|x| x.mul(&x.detached()), "in f64: gradient 0 along a direction: found "),
        (
            |x| match x.dtype() {
                DType::F32 => x.mul(x)?.cast(DType::F16)?.cast(DType::F32),
                _ => x.mul(x),
            },
            "in f32: the value at [0, 0]: found ",
        ),
        (
            |x| match x.dtype() {
                DType::BF16 => x.mul(&x.detached())?.scale(1.0),
                _ => x.mul(x),
            },
            "in bf16: gradient 0 at [0, 0]: found ",
        ),
        (
            |x| x.mul(x)?.scale(1.0 + (CALLS.fetch_add(1, Relaxed) % 2) as f64 * LAST_BITS),
            "in f64: a second run: the value at [0, 0]: found ",
        ),
        (|x| x.mul(x)?.cast(DType::F32), "in f64: the type of the result"),
        (|x| x.mul(x)?.reshape(&[15]), "in f64: the shape of the result"),
        (|x| x.mul(x)?.softmax(2), "in f64: softmax: "),
    ];
    for (call, why) in wrong {
        let said = message(square(call));
        assert!(said.contains(&format!("square on cpu {why}")), "{said}");
    }
}

#[test]
fn the_number_of_threads_is_told() {
    // The bits of one thread, and those of several: the default pool gives one of the two.
    let case =
        square(|x| x.mul(x)?.scale(1.0 + rayon::current_num_threads().min(2) as f64 * LAST_BITS));
    let said = message(case);
    assert!(said.contains(" thread(s): the value at [0, 0]: found "), "{said}");
}

/// What only one of two inputs needs is computed too.
#[test]
fn a_single_tracked_input_is_checked() {
    let call = |t: &[Tensor]| match t[0].is_tracked() {
        true => t[0].mul(&t[1]),
        false => t[0].mul(&t[1])?.add(&t[1].sub(&t[1].detached())?),
    };
    let reference = |i: &[Array]| Array::from_fn(&[7], |at| i[0].at(at) * i[1].at(at));
    let said = message(Case::new("product", [input(&[7]), input(&[7])], call, reference));
    assert!(said.starts_with("product on cpu in f16: gradient 1 at [0]: "), "{said}");
}

/// `x`, but for elements that are NaN where they should be written.
struct Stale;

impl CustomOp for Stale {
    const NAME: &'static str = "stale";
    const INPUTS: &'static [&'static str] = &["x"];
    const BACKWARD_READS: BackwardReads = BackwardReads::Nothing;
    const WGSL: &'static str = "fn value(i: u32) -> f32 { return f32(x[i]); }";

    fn shape(&self, inputs: &[&[usize]]) -> std::result::Result<Vec<usize>, String> {
        Ok(inputs[0].to_vec())
    }

    fn sizes(&self, _: &[&[usize]]) -> Vec<usize> {
        Vec::new()
    }

    fn cpu<A: Number>(&self, inputs: &[&[A]], _: &[usize], first: usize, y: &mut [A]) {
        for (y, &x) in y.iter_mut().zip(&inputs[0][first..]) {
            if !y.into_f64().is_nan() {
                *y = x;
            }
        }
    }

    fn backward(&self, _: &SavedTensors, dy: &Tensor) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(dy.clone())])
    }
}

#[test]
fn memory_that_is_not_written_is_told() {
    // A size of its own: other tests leave NaN in the memory of theirs.
    let inputs = [input(&[300, 1001])];
    let case = Case::new("stale", inputs, |t| custom(Stale, &[&t[0]]), |i| i[0].clone());
    let said = message(case);
    let expected = "stale on cpu in f32: stale memory: the value at [0, 0]: found NaN";
    assert!(said.starts_with(expected), "{said}");
}

#[test]
fn a_case_that_checks_nothing_fails() {
    let short = |i: &[Array]| Array { shape: i[0].shape.clone(), data: Vec::new() };
    let case = Case::new("short", [input(&[3])], |t| Ok(t[0].clone()), short);
    assert_eq!(message(case), "short: the reference has 0 elements, expected 3 for [3]");
    let nowhere = square(|x| x.mul(x)).on([]);
    let panic = catch_unwind(AssertUnwindSafe(|| check(&nowhere))).expect_err("it passes");
    assert_eq!(*panic.downcast::<String>().unwrap(), "square: no device to check on");
}
