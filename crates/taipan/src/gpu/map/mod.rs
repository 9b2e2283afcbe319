//! Element-wise kernels.

use super::program::ELEMENTS;
use super::{Binding, Gpu, GpuView, Grid, Launch, Params, Program, params};
use crate::DType;
use crate::error::Result;
use crate::function::Function;

/// A kernel whose `element(i)` reads and writes nothing but element `i` of each buffer.
pub(crate) struct Elements<'a, P> {
    /// Names the operation in errors.
    pub(crate) name: &'static str,
    pub(crate) program: Program,
    /// The parameters for so many elements.
    pub(crate) params: &'a dyn Fn(u32) -> P,
    pub(crate) inputs: &'a [(Binding<'a>, DType)],
    pub(crate) output: (Binding<'a>, DType),
    pub(crate) len: usize,
}

params! {
    /// The parameters of element-wise kernels that need no other.
    pub(crate) struct MapParams { len: u32 }
}

impl Gpu {
    /// Launch a kernel over elements, once for each window of them that can be bound.
    pub(crate) fn map<P: Params>(&self, elements: Elements<P>) -> Result<()> {
        let Elements { name, program, params, inputs, output, len } = elements;
        let all = || inputs.iter().copied().chain([output]);
        let size = all().map(|(_, dtype)| dtype.size()).max().unwrap_or(1);
        for window in self.windows(len, size) {
            let bind =
                |(buffer, dtype): (_, DType)| Binding::window(buffer, window.clone(), dtype.size());
            self.launch(Launch {
                name,
                program: program.clone(),
                params: params(window.len() as u32),
                inputs: &inputs.iter().copied().map(bind).collect::<Vec<_>>(),
                outputs: &[bind(output)],
                grid: Grid::elements(window.len()),
            })?;
        }
        Ok(())
    }

    /// `dx = dy·f'`, from what the function saves; `dx` may have a wider type than `dy`. If nothing
    /// is saved, `saved` may be any tensor of the same size and type.
    pub(crate) fn map_gradient(
        &self,
        op: &'static str,
        function: Function,
        [dy, saved]: [&GpuView; 2],
        dx: &GpuView,
    ) -> Result<()> {
        self.map(Elements {
            name: op,
            program: gradient_program(function, dy.spec.dtype(), dx.spec.dtype()),
            params: &|len| MapParams { len },
            inputs: &[dy.elements(), saved.elements()],
            output: dx.elements(),
            len: dx.spec.len(),
        })
    }
}

/// `y = f(x)`
pub(crate) fn value_program(function: Function, elem: DType) -> Program {
    let source = [wgsl!("value.wgsl"), ELEMENTS];
    function.program::<MapParams>(&source, &[("Elem", elem)], &[])
}

/// From `dy` of type `elem`, the gradient of type `out`.
fn gradient_program(function: Function, elem: DType, out: DType) -> Program {
    let source = [wgsl!("gradient.wgsl"), ELEMENTS];
    function.program::<MapParams>(&source, &[("Elem", elem), ("Out", out)], &[])
}

/// Every program of this file.
#[cfg(test)]
pub(super) fn programs(elem: DType) -> Vec<Program> {
    let gradients = |f| [elem, DType::F32].map(|out| gradient_program(f, elem, out));
    let of = |f| [value_program(f, elem)].into_iter().chain(gradients(f));
    Function::all().into_iter().flat_map(of).collect()
}
