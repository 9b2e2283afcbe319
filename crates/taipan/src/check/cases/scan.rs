//! The selective scan.

use super::{concat_arrays, concat_results, starts, widened};
use crate::check::{Case, Input, Values, input, input_of, naive};
use crate::{Discretization, Result, Scan, StepSize, Tensor, selective_scan};

/// The selective scan of `[b, l, d]` with `n` states: output and final state, concatenated.
pub fn scan(sizes: [usize; 4], form: naive::Scan) -> Case {
    let (name, reference) = (format!("selective_scan {sizes:?} {form:?}"), form.clone());
    let case = Case::new(
        name,
        inputs(sizes, &form),
        move |t| concat_results(call(&form, t)?),
        move |i| concat_arrays(naive::scan(&reference, i)),
    );
    case.cancelling(4 * sizes[3])
}

/// The output and the final state.
pub fn call(form: &naive::Scan, t: &[Tensor]) -> Result<(Tensor, Tensor)> {
    let mut optional = t[5..].iter();
    let mut next = |given: bool| given.then(|| optional.next().unwrap());
    let (d, delta_bias, z) = (next(form.d), next(form.delta_bias), next(form.z));
    let state = next(form.initial_state);
    let wide = |tensor: Option<&Tensor>| tensor.map(widened).transpose();
    let (a_log, d, delta_bias, state) =
        (widened(&t[2])?, wide(d)?, wide(delta_bias)?, wide(state)?);
    let seq_start = form.seq_start.as_ref().map(|seq_start| {
        let shape = &t[0].shape()[..2];
        Tensor::new(seq_start, shape, t[0].device())
    });
    let seq_start = seq_start.transpose()?;
    selective_scan(&Scan {
        d: d.as_ref(),
        delta_bias: delta_bias.as_ref(),
        z,
        initial_state: state.as_ref(),
        seq_start: seq_start.as_ref(),
        discretization: form.discretization,
        step: form.step,
        ..Scan::new(&t[0], &t[1], &a_log, &t[3], &t[4])
    })
}

/// The inputs of a scan, in the order of [`Scan`].
pub fn inputs([b, l, d, n]: [usize; 4], form: &naive::Scan) -> Vec<Input> {
    let step = match form.step {
        StepSize::Softplus => Values::Between(-3.0, 1.0),
        StepSize::Plain => Values::Between(0.01, 1.0),
    };
    let optional = [
        (form.d, input(&[d])),
        (form.delta_bias, input_of(&[d], Values::Between(-0.1, 0.5))),
        (form.z, input_of(&[b, l, d], Values::Between(-2.0, 2.0))),
        (form.initial_state, input(&[b, d, n])),
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

/// With all optional tensors.
pub fn full(discretization: Discretization, step: StepSize) -> naive::Scan {
    naive::Scan {
        discretization,
        step,
        d: true,
        delta_bias: true,
        z: true,
        initial_state: true,
        seq_start: None,
    }
}

/// Without optional tensors.
pub fn bare(discretization: Discretization, step: StepSize) -> naive::Scan {
    naive::Scan {
        discretization,
        step,
        d: false,
        delta_bias: false,
        z: false,
        initial_state: false,
        seq_start: None,
    }
}

pub(super) fn list() -> Vec<Case> {
    let euler = || full(Discretization::Euler, StepSize::Softplus);
    let zero_order_hold = || full(Discretization::ZeroOrderHold, StepSize::Plain);
    let seq_start = starts(&[0, 7, 8, 16, 31, 32, 50, 79], 2 * 40);
    vec![
        scan([2, 37, 17, 16], euler()),
        scan([1, 130, 3, 2], euler()),
        scan([1, 18, 257, 2], euler()),
        scan([1, 17, 2, 100], euler()),
        scan([2, 19, 5, 3], zero_order_hold()),
        scan([2, 19, 5, 3], bare(Discretization::Euler, StepSize::Softplus)),
        scan([2, 40, 3, 4], naive::Scan { seq_start: Some(seq_start), ..zero_order_hold() }),
    ]
}
