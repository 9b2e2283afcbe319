//! The selective scan against the recurrence, one state after the other.

use taipan::{DType, Hold, Result, Scan, Step, Tensor, concat, selective_scan};

use crate::harness::{Array, Case, Input, Values, check, input, input_of, naive};

/// Of a tensor that may be in half precision, the same in the type of the recurrence.
fn widened(tensor: &Tensor) -> Result<Tensor> {
    match tensor.dtype() {
        DType::F16 | DType::BF16 => tensor.cast(DType::F32),
        _ => Ok(tensor.clone()),
    }
}

/// The output and the last states.
fn call(form: &naive::Scan, t: &[Tensor]) -> Result<(Tensor, Tensor)> {
    let mut optional = t[5..].iter();
    let mut next = |given: bool| given.then(|| optional.next().unwrap());
    let (d, delta_bias, z) = (next(form.d), next(form.delta_bias), next(form.z));
    let state = next(form.state);
    let wide = |tensor: Option<&Tensor>| tensor.map(widened).transpose();
    let (a_log, d, delta_bias, state) =
        (widened(&t[2])?, wide(d)?, wide(delta_bias)?, wide(state)?);
    let starts = form.starts.as_ref().map(|starts| {
        let shape = &t[0].shape()[..2];
        Tensor::new(starts, shape, t[0].device())
    });
    let starts = starts.transpose()?;
    selective_scan(&Scan {
        d: d.as_ref(),
        delta_bias: delta_bias.as_ref(),
        z,
        state: state.as_ref(),
        starts: starts.as_ref(),
        hold: form.hold,
        step: form.step,
        ..Scan::new(&t[0], &t[1], &a_log, &t[3], &t[4])
    })
}

/// Output and last states, one behind the other.
fn call_joined(form: &naive::Scan, t: &[Tensor]) -> Result<Tensor> {
    let (y, last) = call(form, t)?;
    let last = last.cast(y.dtype())?;
    concat(&[&y.reshape(&[y.len()])?, &last.reshape(&[last.len()])?], 0)
}

fn joined((y, last): (Array, Array)) -> Array {
    let data = [y.data, last.data].concat();
    Array { shape: vec![data.len()], data }
}

fn inputs([b, l, d, n]: [usize; 4], form: &naive::Scan) -> Vec<Input> {
    let step = match form.step {
        Step::Softplus => Values::Between(-3.0, 1.0),
        Step::Plain => Values::Between(0.01, 1.0),
    };
    let optional = [
        (form.d, input(&[d])),
        (form.delta_bias, input_of(&[d], Values::Between(-0.1, 0.5))),
        (form.z, input_of(&[b, l, d], Values::Between(-2.0, 2.0))),
        (form.state, input(&[b, d, n])),
    ];
    let needed = [
        input(&[b, l, d]),
        input_of(&[b, l, d], step),
        input_of(&[d, n], Values::Between(-2.0, 2.0)),
        input(&[b, l, n]),
        input(&[b, l, n]),
    ];
    let optional = optional.into_iter().filter(|(given, _)| *given).map(|(_, input)| input);
    needed.into_iter().chain(optional).collect()
}

fn check_scan(sizes: [usize; 4], form: naive::Scan) {
    let name = format!("scan {sizes:?} {form:?}");
    let inputs = inputs(sizes, &form);
    let reference = form.clone();
    check(
        &Case::new(
            name,
            inputs,
            move |t| call_joined(&form, t),
            move |i| joined(naive::scan(&reference, i)),
        )
        .cancelling(4 * sizes[3]),
    );
}

/// Everything that is optional.
fn full(hold: Hold, step: Step) -> naive::Scan {
    naive::Scan { hold, step, d: true, delta_bias: true, z: true, state: true, starts: None }
}

/// Nothing that is optional.
fn bare(hold: Hold, step: Step) -> naive::Scan {
    naive::Scan { hold, step, d: false, delta_bias: false, z: false, state: false, starts: None }
}

const FORMS: [(Hold, Step); 4] = [
    (Hold::Euler, Step::Softplus),
    (Hold::Euler, Step::Plain),
    (Hold::ZeroOrder, Step::Softplus),
    (Hold::ZeroOrder, Step::Plain),
];

#[test]
fn with_everything() {
    for (hold, step) in FORMS {
        check_scan([2, 19, 5, 3], full(hold, step));
    }
}

#[test]
fn with_nothing_optional() {
    for (hold, step) in FORMS {
        check_scan([2, 19, 5, 3], bare(hold, step));
    }
}

#[test]
fn with_one_optional_each() {
    let none = || bare(Hold::Euler, Step::Softplus);
    for form in [
        naive::Scan { d: true, ..none() },
        naive::Scan { delta_bias: true, ..none() },
        naive::Scan { z: true, ..none() },
        naive::Scan { state: true, ..none() },
    ] {
        check_scan([2, 17, 3, 4], form);
    }
}

/// Lengths beside the borders of chunks, and none at all.
#[test]
fn any_length() {
    for l in [0, 1, 2, 15, 16, 17, 33, 63, 64, 65, 130] {
        check_scan([1, l, 3, 2], full(Hold::Euler, Step::Softplus));
    }
    for l in [0, 1, 16, 37] {
        check_scan([2, l, 2, 3], full(Hold::ZeroOrder, Step::Softplus));
    }
}

#[test]
fn any_number_of_channels() {
    for d in [0, 1, 15, 16, 17, 31, 33, 64, 65, 100, 257] {
        check_scan([1, 18, d, 2], full(Hold::Euler, Step::Softplus));
    }
}

#[test]
fn any_number_of_states() {
    for n in [1, 2, 3, 4, 5, 7, 8, 16, 17, 20, 64, 100] {
        check_scan([1, 17, 2, n], full(Hold::Euler, Step::Softplus));
    }
    check_scan([1, 17, 2, 256], full(Hold::ZeroOrder, Step::Softplus));
}

#[test]
fn any_number_of_sequences() {
    for b in [0, 3, 70] {
        check_scan([b, 5, 3, 2], full(Hold::Euler, Step::Softplus));
    }
}

/// Where sequences start: at the first step, in neighbouring steps, at the borders of chunks, and
/// nowhere.
#[test]
fn packed() {
    let starts = |places: &[usize], l: usize| {
        let mut starts = vec![0; 2 * l];
        places.iter().for_each(|&t| starts[t] = 1 + t as u32);
        starts
    };
    for (hold, step) in FORMS {
        for places in [&[0, 7, 8, 16, 20][..], &[31, 32, 33, 50, 79], &[0, 40]] {
            let form = naive::Scan { starts: Some(starts(places, 40)), ..full(hold, step) };
            check_scan([2, 40, 3, 4], form);
        }
    }
    let form = bare(Hold::Euler, Step::Softplus);
    check_scan([2, 20, 3, 4], naive::Scan { starts: Some(starts(&[5, 25], 20)), ..form });
}
