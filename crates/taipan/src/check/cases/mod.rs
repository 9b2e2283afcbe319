//! The cases of this crate's ops. [`list`] has some for each op, which the tests and `taipan doctor`
//! run; the tests make more of the same functions, for every shape and variant.

pub mod attention;
pub mod conv1d;
pub mod discrete;
pub mod elementwise;
pub mod indexing;
pub mod layout;
pub mod linear;
pub mod losses;
pub mod norms;
pub mod reductions;
pub mod rotate;
pub mod scan;
pub mod ssd;

use super::{Array, Case};
use crate::{DType, Result, Tensor, concat};

/// Cases of every op, op by op. The first of an op is the one to run if only one
/// is run. Sizes are odd, and large enough for several workgroups or blocks of work and a rest.
pub fn list() -> Vec<Case> {
    let lists = [
        linear::list(),
        scan::list(),
        ssd::list(),
        attention::list(),
        rotate::list(),
        conv1d::list(),
        norms::list(),
        losses::list(),
        indexing::list(),
        reductions::list(),
        elementwise::list(),
        layout::list(),
        discrete::list(),
    ];
    lists.into_iter().flatten().collect()
}

/// Where sequences start: not 0 at these of so many steps.
fn starts(at: &[usize], steps: usize) -> Vec<u32> {
    (0..steps).map(|t| at.contains(&t) as u32 * (1 + t as u32)).collect()
}

/// A tensor in the type of a recurrence: f32 if it is in half precision.
fn widened(tensor: &Tensor) -> Result<Tensor> {
    match tensor.dtype() {
        DType::F16 | DType::BF16 => tensor.cast(DType::F32),
        _ => Ok(tensor.clone()),
    }
}

/// Output and final state, concatenated: a case has one result.
fn concat_results((y, state): (Tensor, Tensor)) -> Result<Tensor> {
    let state = state.cast(y.dtype())?;
    concat(&[&y.reshape(&[y.len()])?, &state.reshape(&[state.len()])?], 0)
}

/// The same of arrays.
fn concat_arrays((y, state): (Array, Array)) -> Array {
    let data = [y.data, state.data].concat();
    Array { shape: vec![data.len()], data }
}
