//! Formatting of tensors: nested rows with aligned columns, the middle of long dimensions elided.

use std::fmt;

use super::{Storage, Tensor};
use crate::Device;
use crate::dtype::{DType, Element, with_dtype};

/// Above this many elements, only the ends of each dimension are shown.
const WHOLE: usize = 1000;
/// The number of elements at each end.
const EDGE: usize = 3;

/// The values: `[[1.0000, 2.0000], [3.0000, 4.0000]]`, a row per line.
impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = match self.detached().to(&Device::Cpu) {
            Ok(host) => host,
            Err(error) => return write!(f, "({error})"),
        };
        let Storage::Cpu(buffer) = &host.storage else { unreachable!("moved to the CPU") };
        match self.dtype() {
            _ if self.len() == 0 => f.write_str("[]"),
            DType::U32 => {
                Printer::new(self, buffer.as_slice::<u32>(), &|x, _| x.to_string()).print(f, 0, 0)
            }
            DType::I64 => {
                Printer::new(self, buffer.as_slice::<i64>(), &|x, _| x.to_string()).print(f, 0, 0)
            }
            float => with_dtype!(float, T: Element => {
                let text = |x: &T, style| match style {
                    Style::Fixed => format!("{:.4}", x.to_f64()),
                    Style::Scientific => format!("{:.4e}", x.to_f64()),
                };
                Printer::new(self, buffer.as_slice::<T>(), &text).print(f, 0, 0)
            }),
        }
    }
}

/// Shape, type, device and values.
impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tracked = if self.is_tracked() { " tracked" } else { "" };
        let (shape, dtype, device) = (self.shape(), self.dtype(), self.device().name());
        write!(f, "Tensor {shape:?} {dtype} {device}{tracked}\n{self}")
    }
}

struct Printer<'a, T> {
    shape: &'a [usize],
    values: &'a [T],
    text: &'a dyn Fn(&T, Style) -> String,
    style: Style,
    width: usize,
    edge: usize,
}

#[derive(Clone, Copy)]
enum Style {
    Fixed,
    Scientific,
}

impl<'a, T: Element> Printer<'a, T> {
    fn new(tensor: &'a Tensor, values: &'a [T], text: &'a dyn Fn(&T, Style) -> String) -> Self {
        let edge = if tensor.len() > WHOLE { EDGE } else { usize::MAX };
        let style = Style::Fixed;
        let mut printer = Printer { shape: tensor.shape(), values, text, style, width: 0, edge };
        let mut shown = Vec::new();
        printer.collect(0, 0, &mut shown);
        let magnitudes = shown.iter().map(|&i| values[i].to_f64().abs());
        let finite = magnitudes.filter(|x| x.is_finite() && *x != 0.0);
        let (low, high) =
            finite.fold((f64::INFINITY, 0f64), |(low, high), x| (low.min(x), high.max(x)));
        if high >= 1e6 || high > 0.0 && (high < 1e-2 || low < 1e-4 * high) {
            printer.style = Style::Scientific;
        }
        let width = shown.iter().map(|&i| text(&values[i], printer.style).len());
        printer.width = width.max().unwrap_or(0);
        printer
    }

    /// Call `f` with each index of dimension `dim` that is shown, and `None` for a gap.
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

    fn collect(&self, dim: usize, offset: usize, shown: &mut Vec<usize>) {
        if dim == self.shape.len() {
            return shown.push(offset);
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
            let text = (self.text)(&self.values[offset], self.style);
            return write!(f, "{text:>width$}", width = self.width);
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
