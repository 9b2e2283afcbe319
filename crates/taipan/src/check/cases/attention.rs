//! Attention, and rotary position embedding.

use super::starts;
use crate::check::{Array, Case, input, naive};
use crate::{Tensor, rope};

/// `[b, l, s, hq, hk, d]`
pub type Sizes = [usize; 6];

/// Attention of `q` `[b, l, hq, d]` to `k` and `v` `[b, s, hk, d]`.
pub fn attention([b, l, s, hq, hk, d]: Sizes, form: naive::Attention) -> Case {
    let (q, keys) = ([b, l, hq, d], [b, s, hk, d]);
    let reference = form.clone();
    let case = Case::new(
        format!("attention of {q:?} to {keys:?} {form:?}"),
        [&q, &keys, &keys].map(|shape| input(shape)),
        move |t| {
            let starts = form.seq_start.as_ref().map(|x| Tensor::new(x, &[b, s], t[0].device()));
            let seq_start = starts.transpose()?;
            crate::attention(&crate::Attention {
                scale: form.scale,
                position: form.position,
                seq_start: seq_start.as_ref(),
                ..crate::Attention::new(&t[0], &t[1], &t[2])
            })
        },
        move |i: &[Array]| naive::attention(&reference, i),
    );
    case.cancelling(4 * d)
}

/// Rotary position embedding of `[b, l, h, d]`, from position 5 on.
pub fn rotary([b, l, h, d]: [usize; 4]) -> Case {
    let case = Case::new(
        format!("rope {:?}", [b, l, h, d]),
        [input(&[b, l, h, d])],
        |t| rope(&t[0], 10000.0, 5),
        |i: &[Array]| naive::rope(&i[0], 10000.0, 5),
    );
    // Rounded angles, of up to 75 in radians.
    case.cancelling(32)
}

pub(super) fn list() -> Vec<Case> {
    let form = naive::Attention::default;
    let seq_start = starts(&[0, 3, 4, 35, 68, 75, 102, 139], 2 * 70);
    vec![
        attention([1, 70, 70, 4, 2, 17], form()),
        attention([1, 200, 200, 1, 1, 4], form()),
        attention([2, 3, 9, 4, 2, 65], naive::Attention { position: Some(4), ..form() }),
        attention([2, 70, 70, 2, 1, 3], naive::Attention { seq_start: Some(seq_start), ..form() }),
        rotary([2, 3, 4, 6]),
        rotary([1, 70, 2, 64]),
    ]
}
