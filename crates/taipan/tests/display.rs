//! Tensors as people see them.

use taipan::{DType, Device, Result, Tensor};

const CPU: Device = Device::Cpu;

#[test]
fn rows_are_lines_and_columns_align() -> Result<()> {
    let x = Tensor::new(&[1f32, -20.5, 0.25, 3.0], &[2, 2], &CPU)?;
    assert_eq!(x.to_string(), "[[  1.0000, -20.5000],\n [  0.2500,   3.0000]]");
    assert_eq!(format!("{x:?}"), format!("Tensor [2, 2] f32 cpu\n{x}"));
    assert!(format!("{:?}", x.tracked()).starts_with("Tensor [2, 2] f32 cpu tracked\n"));
    Ok(())
}

#[test]
fn a_number_is_a_number() -> Result<()> {
    assert_eq!(Tensor::new(&[2.5f64], &[], &CPU)?.to_string(), "2.5000");
    let x = Tensor::new(&[f32::NAN, f32::INFINITY, 1.0], &[3], &CPU)?;
    assert_eq!(x.to_string(), "[   NaN,    inf, 1.0000]");
    Ok(())
}

#[test]
fn very_large_and_very_small_numbers_are_scientific() -> Result<()> {
    let x = Tensor::new(&[1e-5f32, 1.0], &[2], &CPU)?;
    assert_eq!(x.to_string(), "[1.0000e-5,  1.0000e0]");
    Ok(())
}

#[test]
fn integers_are_exact() -> Result<()> {
    let x = Tensor::new(&[(1i64 << 53) + 1, i64::MAX, -1], &[3], &CPU)?;
    assert_eq!(x.to_string(), "[   9007199254740993, 9223372036854775807,                  -1]");
    Ok(())
}

#[test]
fn the_middle_of_a_long_tensor_is_left_out() -> Result<()> {
    let x = Tensor::arange(0, 2000, DType::U32, &CPU)?;
    assert_eq!(x.to_string(), "[   0,    1,    2, …, 1997, 1998, 1999]");
    let lines = x.reshape(&[1000, 2])?.to_string();
    assert_eq!(lines.lines().count(), 7);
    assert_eq!(lines.lines().nth(3), Some(" …,"));
    Ok(())
}

#[test]
fn nothing_is_brackets() -> Result<()> {
    assert_eq!(Tensor::zeros(&[1 << 40, 0], DType::F32, &CPU)?.to_string(), "[]");
    Ok(())
}
