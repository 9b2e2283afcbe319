//! What is broken on purpose is found. A kernel is broken by a case whose op is broken: the program
//! itself needs no way to be broken.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use taipan::check::{Case, devices, input};
use taipan::{BackwardReads, CustomOp, Device, Number, Result, SavedTensors, Tensor, custom};
use taipan_doctor::{Row, Target, determinism};

use super::ops::examine;
use super::report::Report;
use super::screen::Screen;

const RIGHT: u8 = 0;
const WRONG_VALUE: u8 = 1;
const WRONG_GRADIENT: u8 = 2;
/// Elements behind the last whole block of 64 are not computed.
const MISSING_TAIL: u8 = 3;

/// `x²`, which on a GPU and in f32 is wrong in one way.
struct Square<const WRONG: u8>;

impl<const WRONG: u8> CustomOp for Square<WRONG> {
    const NAME: &'static str = "square";
    const INPUTS: &'static [&'static str] = &["x"];
    const BACKWARD_READS: BackwardReads = BackwardReads::Inputs;
    const WGSL: &'static str = match WRONG {
        WRONG_VALUE => "fn value(i: u32) -> f32 { return f32(x[i]) * f32(x[i]) * 1.01; }",
        MISSING_TAIL => {
            "fn value(i: u32) -> f32 {
                if i >= size(0u) / 64u * 64u { return 0.0; }
                return f32(x[i]) * f32(x[i]);
            }"
        }
        _ => "fn value(i: u32) -> f32 { return f32(x[i]) * f32(x[i]); }",
    };

    fn shape(&self, inputs: &[&[usize]]) -> std::result::Result<Vec<usize>, String> {
        Ok(inputs[0].to_vec())
    }

    fn sizes(&self, inputs: &[&[usize]]) -> Vec<usize> {
        vec![inputs[0].iter().product()]
    }

    fn cpu<A: Number>(&self, inputs: &[&[A]], sizes: &[usize], first: usize, y: &mut [A]) {
        let broken = size_of::<A>() == 4;
        for (i, y) in (first..).zip(y) {
            let x = inputs[0][i];
            *y = match WRONG {
                WRONG_VALUE if broken => x * x * A::from_f64(1.01),
                MISSING_TAIL if broken && i >= sizes[0] / 64 * 64 => A::from_f64(0.0),
                _ => x * x,
            };
        }
    }

    /// `dx = 2·x·dy`
    fn backward(&self, saved: &SavedTensors, dy: &Tensor) -> Result<Vec<Option<Tensor>>> {
        let wrong = WRONG == WRONG_GRADIENT && dy.dtype() != taipan::DType::F64;
        let factor = if wrong { 1.0 } else { 2.0 };
        Ok(vec![Some(saved.input(0)?.mul(dy)?.scale(factor)?)])
    }
}

fn square<const WRONG: u8>() -> Case {
    Case::new(
        format!("square of {WRONG}"),
        [input(&[70])],
        |t| custom(Square::<WRONG>, &[&t[0]]),
        |i| i[0].map(|x| x * x),
    )
}

/// What is found on every device, in f32.
fn found(case: fn() -> Case, expect: impl Fn(Row, Vec<Row>)) {
    for device in devices() {
        let target = Target::of(device);
        let mut rows = examine(&[case()], &[target], &mut Screen::hidden()).unwrap();
        let f32 = rows.iter().position(|row| row.dtype == "f32").expect("every device has f32");
        expect(rows.swap_remove(f32), rows);
    }
}

#[track_caller]
fn expect_failure(case: fn() -> Case, why: &str) {
    found(case, |row, others| {
        let failure = row.failure.expect(why);
        assert!(failure.contains(why), "{failure}");
        assert!(!row.passed);
        // What is right is not affected.
        assert!(others.iter().filter(|row| row.dtype == "f64").all(|row| row.passed));
    });
}

#[test]
fn what_is_right_passes() {
    found(square::<RIGHT>, |row, others| {
        assert!(row.passed && row.failure.is_none() && row.value_ulp < 1.0, "{:?}", row.failure);
        assert!(determinism(&others).passed && others.iter().all(|row| row.passed));
    });
}

#[test]
fn a_wrong_value_is_found() {
    expect_failure(square::<WRONG_VALUE>, " in f32: the value at [0]: found ");
    found(square::<WRONG_VALUE>, |row, _| {
        assert!((0.009..0.011).contains(&row.relative), "{}", row.relative);
        assert!(row.value_ulp > 1e4, "{}", row.value_ulp);
    });
}

#[test]
fn a_wrong_gradient_is_found() {
    expect_failure(square::<WRONG_GRADIENT>, " in f32: gradient 0 at [0]: found ");
}

#[test]
fn a_missing_tail_is_found() {
    expect_failure(square::<MISSING_TAIL>, " in f32: the value at [64]: found 0e0, expected ");
}

/// Sums in the order in which their terms come: each within the tolerance, and not the same.
fn race() -> Case {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let call = |t: &[Tensor]| match CALLS.fetch_add(1, Relaxed) % 2 {
        0 => t[0].add(&t[1])?.add(&t[2]),
        _ => t[0].add(&t[1].add(&t[2])?),
    };
    let sum = |i: &[taipan::check::Array]| {
        taipan::check::Array::from_fn(&[5000], |at| i[0].at(at) + i[1].at(at) + i[2].at(at))
    };
    Case::new("sum of three", [input(&[5000]), input(&[5000]), input(&[5000])], call, sum)
        .cancelling(8)
}

#[test]
fn a_race_is_found() {
    for device in devices() {
        let rows = examine(&[race()], &[Target::of(device)], &mut Screen::hidden()).unwrap();
        let row = rows.iter().find(|row| row.dtype == "f32").expect("every device has f32");
        let failure = row.failure.as_deref().expect("other bits");
        assert!(failure.contains("expected the bits of"), "{failure}");
        let check = determinism(&rows);
        assert!(!check.passed && check.found.contains("sum in f32"), "{}", check.found);
    }
}

/// The next op is examined all the same, and the verdict counts.
#[test]
fn a_panic_is_found() {
    let panics = || panic!("an index is out of bounds");
    let panicking = Case::new("panics", [input(&[3])], move |_| panics(), |i| i[0].map(|x| x * x));
    let cases = [panicking, square::<RIGHT>()];
    let targets = [Target::of(Device::Cpu)];
    let mut report = Report::new(&Device::Cpu, None);
    report.ops = examine(&cases, &targets, &mut Screen::hidden()).unwrap();
    report.finish(&targets, Default::default());
    assert_eq!(report.ops[0].failure.as_deref(), Some("panicked: an index is out of bounds"));
    assert_eq!(
        report.ops.iter().map(|row| row.passed).collect::<Vec<_>>(),
        [false, false, false, false, true, true, true, true]
    );
    assert_eq!((report.passed, &*report.verdict), (false, "4 of 8 checks failed"));
    let text = report.summary();
    assert!(text.contains("panicked: an index is out of bounds"), "{text}");
}

/// Each fault is reported, and the functions of the adapter are what WGSL allows.
#[test]
fn faults_and_functions() {
    for device in devices() {
        let (adapter, mut screen) = (super::adapter(&device).unwrap(), Screen::hidden());
        let mut checks = super::faults::checks(&device, adapter.as_ref(), &mut screen);
        checks.extend(pollster::block_on(taipan_doctor::builtins(&device)));
        for check in &checks {
            assert!(check.passed, "{}: {}", check.name, check.found);
        }
        let names: Vec<&str> = checks.iter().map(|check| check.name).collect();
        let gpu = ["bad index", "out of memory", "lost device", "exp2", "tanh"];
        assert_eq!(names, gpu[..if adapter.is_some() { 5 } else { 2 }]);
    }
}
