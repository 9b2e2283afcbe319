//! The scan of Mamba-2.

use super::{concat_arrays, concat_results, starts, widened};
use crate::check::{Case, Input, Values, input, input_of, naive};
use crate::{Result, Ssd, Tensor, ssd};

/// `[b, l, r, h, p, g, n]`; one rank is left out.
pub type Sizes = [usize; 7];

/// The scan: output and final state, concatenated.
pub fn scan(sizes: Sizes, form: naive::Ssd) -> Case {
    let (name, reference) = (format!("ssd {sizes:?} {form:?}"), form.clone());
    let case = Case::new(
        name,
        inputs(sizes, &form),
        move |t| concat_results(call(&form, t)?),
        move |i| concat_arrays(naive::ssd(&reference, i)),
    );
    case.cancelling(4 * sizes[6] * sizes[2])
}

fn call(form: &naive::Ssd, t: &[Tensor]) -> Result<(Tensor, Tensor)> {
    let wide = t.iter().map(widened).collect::<Result<Vec<_>>>()?;
    let mut optional = wide[4..].iter();
    let mut next = |given: bool| given.then(|| optional.next().unwrap());
    let [scale, own_scale, d, initial_state] =
        [form.scale, form.own_scale, form.d, form.initial_state].map(&mut next);
    let shape = [t[0].shape()[0], t[0].shape()[1]];
    let start = form.seq_start.as_ref().map(|start| Tensor::new(start, &shape, t[0].device()));
    let seq_start = start.transpose()?;
    ssd(&Ssd {
        scale,
        own_scale,
        d,
        initial_state,
        seq_start: seq_start.as_ref(),
        ..Ssd::new(&t[0], &wide[1], &t[2], &t[3])
    })
}

fn inputs([b, l, r, h, p, g, n]: Sizes, form: &naive::Ssd) -> Vec<Input> {
    let rows = |last: [usize; 2]| match r {
        1 => [&[b, l][..], &last].concat(),
        _ => [&[b, l, r][..], &last].concat(),
    };
    let optional = [
        (form.scale, input_of(&[b, l, h], Values::Between(0.1, 1.0))),
        (form.own_scale, input_of(&[b, l, h], Values::Between(0.1, 1.0))),
        (form.d, input(&[h])),
        (form.initial_state, input(&[b, h, p, n])),
    ];
    let needed = [
        input(&rows([h, p])),
        input_of(&[b, l, h], Values::Between(-1.0, -0.01)),
        input(&rows([g, n])),
        input(&rows([g, n])),
    ];
    let optional = optional.into_iter().filter(|(given, _)| *given).map(|(_, input)| input);
    needed.into_iter().chain(optional).collect()
}

/// With all optional tensors.
pub fn full() -> naive::Ssd {
    naive::Ssd { scale: true, own_scale: true, d: true, initial_state: true, seq_start: None }
}

pub(super) fn list() -> Vec<Case> {
    let seq_start = starts(&[0, 3, 4, 35, 63, 75, 86, 139], 2 * 70);
    vec![
        scan([2, 67, 1, 4, 3, 2, 5], full()),
        scan([1, 9, 1, 1, 65, 1, 16], full()),
        scan([1, 22, 3, 2, 3, 1, 4], full()),
        scan([2, 19, 1, 4, 3, 2, 5], naive::Ssd::default()),
        scan([2, 70, 1, 2, 2, 1, 3], naive::Ssd { seq_start: Some(seq_start), ..full() }),
    ]
}
