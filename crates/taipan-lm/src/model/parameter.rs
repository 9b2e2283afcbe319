//! The parameters of a model: what they are to files, the optimiser and half precision.

use std::collections::HashMap;
use std::ops::{Deref, Range};

use taipan::nn::{Init, Module, stored_name};
use taipan::{Arena, DType, Device, Tensor};

use crate::config::TensorSpec;
use crate::{Config, Result};

/// One trained tensor of a model. Where a `&Tensor` is expected, it is one.
///
/// A tensor of a file may be several parameters: `in_proj.weight`, `[2·inner, d]`, is two matrices
/// in memory, since their results are used separately. These parameters follow each other, with the
/// same `stored` name, and are concatenated in the file along the first dimension.
#[derive(Clone, Debug)]
pub struct Parameter<'a> {
    /// `backbone.layers.0.mixer.in_proj.weight[x]`: the stored name, and which of its slices this
    /// is.
    pub name: String,
    /// `backbone.layers.0.mixer.in_proj.weight`
    pub stored: String,
    /// The shape in the file, of this slice. A convolution's is `[inner, 1, k]`, and `[inner, k]`
    /// in memory.
    pub stored_shape: Vec<usize>,
    /// What it is to the optimiser, and in half precision.
    pub role: Role,
    /// The values.
    pub tensor: &'a Tensor,
}

impl Deref for Parameter<'_> {
    type Target = Tensor;

    fn deref(&self) -> &Tensor {
        self.tensor
    }
}

impl<'a> Parameter<'a> {
    /// The parameters of a model with this config.
    pub(super) fn all(config: &Config, model: &'a impl Module) -> Vec<Parameter<'a>> {
        let specs = specs(config);
        let parameter = |(name, tensor): (String, &'a Tensor)| {
            let stored = stored_name(&name);
            // What files of models do not have is of an adapter.
            let spec = specs.get(stored).cloned().unwrap_or_else(|| TensorSpec {
                name: stored.into(),
                shape: tensor.shape().to_vec(),
                role: Role::Matrix,
            });
            let TensorSpec { name: stored, shape: mut stored_shape, role } = spec;
            stored_shape[0] = tensor.shape()[0];
            Parameter { name, stored, stored_shape, role, tensor }
        };
        model.parameters().into_iter().map(parameter).collect()
    }
}

/// The tensors of a model's files, by name.
fn specs(config: &Config) -> HashMap<String, TensorSpec> {
    config.tensors().into_iter().map(|spec| (spec.name.clone(), spec)).collect()
}

/// Kinds of parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A matrix or a table. Weight decay is for these alone.
    Matrix,
    /// The weight of a norm, or a bias.
    Vector,
    /// `A_log`, `D`, the bias of Δ or, of Mamba-3, of B and C: half precision is not enough for the
    /// recurrence, so that these are f32 in such a model.
    Recurrence,
}

impl Role {
    /// The type of such a parameter in a model of the given type.
    pub fn dtype(self, model: DType) -> DType {
        match (self, model) {
            (Role::Recurrence, DType::F16 | DType::BF16) => DType::F32,
            _ => model,
        }
    }
}

/// A parameter whose values are asked for.
pub(crate) struct ParameterSpec<'a> {
    /// The tensor in the file.
    pub(crate) stored: &'a TensorSpec,
    /// The rows of it that this is.
    pub(crate) rows: Range<usize>,
    pub(super) init: Init,
}

/// Gives the values of a parameter, in the shape of the slice in the file.
pub(super) type Values<'a> = &'a mut dyn FnMut(&ParameterSpec) -> Result<Tensor>;

/// Makes parameters, one after the other.
pub(super) struct ParameterBuilder<'a> {
    pub(super) dtype: DType,
    device: &'a Device,
    values: Values<'a>,
    specs: HashMap<String, TensorSpec>,
    arena: Arena,
}

impl ParameterSpec<'_> {
    /// The shape of the slice in the file.
    pub(super) fn stored_shape(&self) -> Vec<usize> {
        let mut shape = self.stored.shape.clone();
        shape[0] = self.rows.len();
        shape
    }
}

impl<'a> ParameterBuilder<'a> {
    pub(super) fn new(
        config: &Config,
        dtype: DType,
        device: &'a Device,
        values: Values<'a>,
    ) -> ParameterBuilder<'a> {
        ParameterBuilder { dtype, device, values, specs: specs(config), arena: Arena::new() }
    }

    /// A parameter that is all of a stored tensor.
    pub(super) fn whole(&mut self, stored: &str, init: Init) -> Result<Tensor> {
        self.build(stored, None, init)
    }

    /// A parameter that is some rows of a stored tensor, or all.
    pub(super) fn build(
        &mut self,
        stored: &str,
        rows: Option<Range<usize>>,
        init: Init,
    ) -> Result<Tensor> {
        let stored = &self.specs[stored];
        let rows = rows.unwrap_or(0..stored.shape[0]);
        let values = (self.values)(&ParameterSpec { stored, rows, init })?;
        // The middle dimension of a depthwise convolution is 1.
        let values = match *values.shape() {
            [d, 1, k] if stored.name.ends_with("conv1d.weight") => values.reshape(&[d, k])?,
            _ => values,
        };
        let values = values.cast(stored.role.dtype(self.dtype))?.to(self.device)?;
        Ok(self.arena.store(&values)?.tracked())
    }
}
