//! Each mistake a caller can make, and what the error says: the operation, what was found, what
//! was expected.

mod block;
mod gradients;
mod linear;
mod scan;
mod tensors;

use taipan::{DType, Device, Result, Tensor};

const CPU: Device = Device::Cpu;

/// Zeros of type f32.
fn zeros(shape: &[usize]) -> Tensor {
    Tensor::zeros(shape, DType::F32, &CPU).unwrap()
}

/// Zeros of a type.
fn zeros_of(dtype: DType, shape: &[usize]) -> Tensor {
    Tensor::zeros(shape, dtype, &CPU).unwrap()
}

/// Expect the mistake to be refused with this message.
#[track_caller]
fn refuses<T>(mistake: Result<T>, message: &str) {
    match mistake {
        Ok(_) => panic!("accepted, expected: {message}"),
        Err(error) => assert_eq!(error.to_string(), message),
    }
}
