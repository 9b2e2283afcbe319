//! The loss on a GPU, from the logits of some classes at a time.

use std::ops::Range;

use crate::DType;
use crate::error::Result;
use crate::gpu::{
    Binding, ELEMENTS, GROUP, Gpu, GpuView, Grid, INDEX_ERRORS, LINES, Launch, MATH, MAX_SUM_EXP,
    Program, WORKGROUP, params, width,
};

/// What the kernels of a loss have in common.
pub(in crate::ops) struct GpuLoss<'a> {
    pub(in crate::ops) op: &'static str,
    pub(in crate::ops) gpu: &'a Gpu,
    pub(in crate::ops) ignore: Option<u32>,
    pub(in crate::ops) classes: usize,
    pub(in crate::ops) targets: &'a GpuView<'a>,
}

impl GpuLoss<'_> {
    /// Compute the loss and, if there are outputs for them, the rows and the count. `take_all` adds
    /// the logits of all classes to the rows it is given.
    pub(in crate::ops) fn forward(
        &self,
        outputs: &[GpuView],
        take_all: impl FnOnce(Binding) -> Result<()>,
    ) -> Result<()> {
        let scratch = |len: usize| self.gpu.scratch(self.op, len * DType::F32.size());
        let (rows, count);
        let (rows, count) = match outputs {
            [_, rows, count] => (rows.data, count.data),
            _ => {
                (rows, count) = (scratch(self.rows() * 3)?, scratch(1)?);
                (&rows, &count)
            }
        };
        take_all(rows.all())?;
        self.gpu.launch(Launch {
            name: self.op,
            program: mean_program(),
            params: self.params(1, 0..0),
            inputs: &[rows.all(), self.targets.all()],
            outputs: &[outputs[0].all(), count.all()],
            grid: Grid::lines(1, self.rows()),
        })
    }

    /// Add the logits of these classes, `[rows, classes]`, to the rows. Class 0 must come first.
    pub(in crate::ops) fn take(
        &self,
        (logits, dtype): (Binding, DType),
        classes: Range<usize>,
        rows: Binding,
    ) -> Result<()> {
        let n = classes.len();
        self.gpu.launch(Launch {
            name: self.op,
            program: rows_program(dtype, width(n)),
            params: self.params(self.rows(), classes),
            inputs: &[logits, self.targets.all()],
            outputs: &[rows, self.gpu.index_errors()],
            grid: Grid::lines(self.rows(), self.rows() * n),
        })
    }

    /// The gradients of the logits of these classes, from the rows, the count and `dy`.
    pub(in crate::ops) fn grad(
        &self,
        (logits, from): (Binding, DType),
        classes: Range<usize>,
        [rows, count, dy]: [Binding; 3],
        (dlogits, to): (Binding, DType),
    ) -> Result<()> {
        let len = self.rows() * classes.len();
        self.gpu.launch(Launch {
            name: self.op,
            program: grad_program(from, to),
            params: self.params(len, classes),
            inputs: &[logits, self.targets.all(), rows, count, dy],
            outputs: &[dlogits],
            grid: Grid::elements(len),
        })
    }

    fn rows(&self) -> usize {
        self.targets.spec.len()
    }

    fn params(&self, lines: usize, classes: Range<usize>) -> LossParams {
        let [len, rows, classes_, first, n] =
            [lines, self.rows(), self.classes, classes.start, classes.len()].map(|x| x as u32);
        LossParams {
            lines: len,
            len,
            rows,
            classes: classes_,
            first,
            n,
            ignores: self.ignore.is_some() as u32,
            ignore: self.ignore.unwrap_or(0),
            slot: self.gpu.index_error_slot(self.op, "target"),
            nan: f32::NAN,
        }
    }
}

params! {
    struct LossParams {
        lines: u32, len: u32, rows: u32, classes: u32, first: u32, n: u32,
        ignores: u32, ignore: u32, slot: u32, nan: f32,
    }
}

fn rows_program(elem: DType, width: u32) -> Program {
    let kernel = wgsl!("rows.wgsl");
    let source = [MATH, MAX_SUM_EXP, WORKGROUP, kernel, INDEX_ERRORS, LINES];
    Program::new::<LossParams>(&source, &[("Elem", elem)], &[("WIDTH", width)])
}

fn mean_program() -> Program {
    let (partial, kernel) = (wgsl!("partial.wgsl"), wgsl!("mean.wgsl"));
    let source = [MATH, partial, WORKGROUP, kernel, LINES];
    Program::new::<LossParams>(&source, &[], &[("WIDTH", GROUP as u32)])
}

fn grad_program(elem: DType, out: DType) -> Program {
    let source = [MATH, wgsl!("grad.wgsl"), ELEMENTS];
    Program::new::<LossParams>(&source, &[("Elem", elem), ("Out", out)], &[])
}

/// Every program of this file.
#[cfg(test)]
pub(in crate::ops) fn programs(elem: DType) -> Vec<Program> {
    let rows = crate::gpu::WIDTHS.map(|width| rows_program(elem, width));
    [mean_program(), grad_program(elem, elem)].into_iter().chain(rows).collect()
}
