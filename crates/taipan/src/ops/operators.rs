//! `+`, `−`, `·` and `/` between tensors and numbers.

use std::ops::{Add, Div, Mul, Neg, Sub};

use crate::error::Result;
use crate::tensor::Tensor;

/// The [operators](Tensor#operators) between a tensor and what is on its right.
macro_rules! operators {
    ($($trait:ident $method:ident, $number:expr, $number_left:expr;)*) => {$(
        operators!(@tensors $trait $method, &Tensor, &Tensor, |a, b| Tensor::$method(a, b));
        operators!(@tensors $trait $method, &Tensor, Tensor, |a, b| Tensor::$method(a, &b));
        operators!(@tensors $trait $method, Tensor, &Tensor, |a, b| Tensor::$method(&a, b));
        operators!(@tensors $trait $method, Tensor, Tensor, |a, b| Tensor::$method(&a, &b));
        operators!(@tensors $trait $method, &Tensor, Result<Tensor>, |a, b| a.$method(&b?));
        operators!(@tensors $trait $method, Tensor, Result<Tensor>, |a, b| (&a).$method(&b?));
        operators!(@tensors $trait $method, Result<Tensor>, &Tensor, |a, b| (&a?).$method(b));
        operators!(@tensors $trait $method, Result<Tensor>, Tensor, |a, b| (&a?).$method(&b));
        operators!(@tensors $trait $method, &Tensor, f64, |a, b| $number(a, b));
        operators!(@tensors $trait $method, Tensor, f64, |a, b| $number(&a, b));
        operators!(@tensors $trait $method, f64, &Tensor, |a, b| $number_left(a, b));
        operators!(@tensors $trait $method, f64, Tensor, |a, b| $number_left(a, &b));
    )*};
    (@tensors $trait:ident $method:ident, $left:ty, $right:ty, |$a:ident, $b:ident| $body:expr) => {
        impl $trait<$right> for $left {
            type Output = Result<Tensor>;
            fn $method(self, other: $right) -> Result<Tensor> {
                let ($a, $b) = (self, other);
                $body
            }
        }
    };
}

operators! {
    Add add, |a: &Tensor, b| a.affine(1.0, b), |a, b: &Tensor| b.affine(1.0, a);
    Sub sub, |a: &Tensor, b: f64| a.affine(1.0, -b), |a, b: &Tensor| b.affine(-1.0, a);
    Mul mul, |a: &Tensor, b| a.scale(b), |a, b: &Tensor| b.scale(a);
    Div div, |a: &Tensor, b: f64| a.scale(1.0 / b), divide;
}

/// `a/b`. In the wide type, so that f16 and bf16 are rounded once.
fn divide(a: f64, b: &Tensor) -> Result<Tensor> {
    b.cast(b.dtype().wider())?.recip()?.scale(a)?.cast(b.dtype())
}

impl Neg for &Tensor {
    type Output = Result<Tensor>;
    fn neg(self) -> Result<Tensor> {
        Tensor::neg(self)
    }
}

impl Neg for Tensor {
    type Output = Result<Tensor>;
    fn neg(self) -> Result<Tensor> {
        Tensor::neg(&self)
    }
}
