//! Tensors as text: nested rows with aligned columns, the middle of long ones left out.

use std::fmt;

use super::{Storage, Tensor};
use crate::dtype::{DType, Element, with_dtype};

/// Above this many elements, only the ends of each dimension are shown.
const WHOLE: usize = 1000;
/// How many elements an end has.
const EDGE: usize = 3;

/// The values: `[[1.0000, 2.0000], [3.0000, 4.0000]]`, a row per line.
impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Storage::Cpu(buffer) = &self.storage;
        with_dtype!(self.dtype(), T: Element => {
            let values = buffer.of::<T>();
            Printer::new(self, |i| values[i].to_f64()).print(f, 0, 0)
        })
    }
}

/// What the tensor is, and its values.
impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tracked = if self.is_tracked() { " tracked" } else { "" };
        let (shape, dtype, device) = (self.shape(), self.dtype(), self.device().name());
        write!(f, "Tensor {shape:?} {dtype} {device}{tracked}\n{self}")
    }
}

struct Printer<'a, F> {
    shape: &'a [usize],
    value: F,
    style: Style,
    width: usize,
    edge: usize,
}

#[derive(Clone, Copy)]
enum Style {
    Integer,
    Fixed,
    Scientific,
}

impl<'a, F: Fn(usize) -> f64> Printer<'a, F> {
    fn new(tensor: &'a Tensor, value: F) -> Self {
        let edge = if tensor.len() > WHOLE { EDGE } else { usize::MAX };
        let style = Style::Fixed;
        let mut printer = Printer { shape: tensor.shape(), value, style, width: 0, edge };
        let mut shown = Vec::new();
        printer.collect(0, 0, &mut shown);
        let finite = shown.iter().filter(|x| x.is_finite() && **x != 0.0).map(|x| x.abs());
        let (low, high) =
            finite.fold((f64::INFINITY, 0f64), |(low, high), x| (low.min(x), high.max(x)));
        printer.style = match tensor.dtype() {
            DType::U32 | DType::I64 => Style::Integer,
            _ if high >= 1e6 || high > 0.0 && (high < 1e-2 || low < 1e-4 * high) => {
                Style::Scientific
            }
            _ => Style::Fixed,
        };
        printer.width = shown.iter().map(|&x| printer.text(x).len()).max().unwrap_or(0);
        printer
    }

    fn text(&self, x: f64) -> String {
        match self.style {
            Style::Integer => format!("{x:.0}"),
            Style::Fixed => format!("{x:.4}"),
            Style::Scientific => format!("{x:.4e}"),
        }
    }

    /// Calls `f` with each index of dimension `dim` that is shown, `None` for a gap.
    fn each<E>(
        &self,
        dim: usize,
        mut f: impl FnMut(Option<usize>) -> Result<(), E>,
    ) -> Result<(), E> {
        let n = self.shape[dim];
        if n / 2 <= self.edge {
            return (0..n).try_for_each(|i| f(Some(i)));
        }
        (0..self.edge).try_for_each(|i| f(Some(i)))?;
        f(None)?;
        (n - self.edge..n).try_for_each(|i| f(Some(i)))
    }

    fn collect(&self, dim: usize, offset: usize, shown: &mut Vec<f64>) {
        if dim == self.shape.len() {
            return shown.push((self.value)(offset));
        }
        let _ = self.each(dim, |i| {
            if let Some(i) = i {
                self.collect(dim + 1, offset * self.shape[dim] + i, shown);
            }
            Ok::<(), ()>(())
        });
    }

    fn print(&self, f: &mut fmt::Formatter<'_>, dim: usize, offset: usize) -> fmt::Result {
        if dim == self.shape.len() {
            return write!(f, "{:>width$}", self.text((self.value)(offset)), width = self.width);
        }
        let last = dim + 1 == self.shape.len();
        let mut first = true;
        f.write_str("[")?;
        self.each(dim, |i| {
            if !std::mem::take(&mut first) {
                match last {
                    true => f.write_str(", ")?,
                    false => write!(f, ",\n{:indent$}", "", indent = dim + 1)?,
                }
            }
            match i {
                Some(i) => self.print(f, dim + 1, offset * self.shape[dim] + i),
                None => f.write_str("…"),
            }
        })?;
        f.write_str("]")
    }
}
