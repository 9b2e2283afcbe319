//! Tensors on several devices, and the types that each supports.

use std::thread;

use half::{bf16, f16};
use taipan::gpu::{Capabilities, Gpu};
use taipan::{Activation, DType, Device, Error, Result, Tensor, concat, linear, linear_backward};

use crate::{floats, fresh, open, read, shared};

const CPU: Device = Device::Cpu;

/// Expect an error about devices, with this message.
#[track_caller]
fn refuses_devices<T>(mistake: Result<T>, message: &str) {
    match mistake {
        Err(error @ Error::Device { .. }) => assert_eq!(error.to_string(), message),
        Err(other) => panic!("another kind of error: {other}"),
        Ok(_) => panic!("accepted, expected: {message}"),
    }
}

#[test]
fn inputs_on_two_devices_are_refused() -> Result<()> {
    let Some(gpu) = shared() else { return Ok(()) };
    let [there, other] = [gpu.clone(), fresh().expect("not skipped")].map(Device::Gpu);
    let name = format!("gpu {}", gpu.name());
    for (a, b, on) in [
        (&CPU, &there, format!("inputs are on cpu and on {name}")),
        (&there, &CPU, format!("inputs are on {name} and on cpu")),
        (&there, &other, format!("inputs are on {name} and on {name}")),
    ] {
        let ones = |device| Tensor::ones(&[2, 2], DType::F32, device);
        let (x, y) = (ones(a)?, ones(b)?);
        let none = Activation::None;
        refuses_devices(x.add(&y), &format!("add: {on}"));
        refuses_devices(x.matmul(&y), &format!("matmul: {on}"));
        refuses_devices(linear(&x, &y, None, none), &format!("linear: {on}"));
        let bias = Tensor::ones(&[2], DType::F32, b)?;
        refuses_devices(linear(&x, &x, Some(&bias), none), &format!("linear: {on}"));
        refuses_devices(concat(&[&x, &x, &y], 0), &format!("concat: {on}"));
        assert!(matches!(
            linear_backward(&x, &x, None, Activation::Gelu, &y),
            Err(Error::Device { .. })
        ));
        let tracked = x.clone().tracked();
        assert!(matches!(tracked.mul(&tracked)?.backward_from(&y), Err(Error::Device { .. })));
    }
    Ok(())
}

/// An upstream on another device does not become a gradient there.
#[test]
fn an_upstream_on_another_device_is_refused() -> Result<()> {
    let Some(gpu) = shared() else { return Ok(()) };
    let x = Tensor::ones(&[2], DType::F32, &Device::Gpu(gpu))?.tracked();
    let dy = Tensor::ones(&[2], DType::F32, &CPU)?;
    assert!(matches!(x.exp()?.backward_from(&dy), Err(Error::Device { .. })), "after an op");
    assert!(
        matches!(x.reshape(&[2])?.backward_from(&dy), Err(Error::Device { .. })),
        "after reshape"
    );
    assert!(matches!(x.backward_from(&dy), Err(Error::Device { .. })), "at the leaf");
    Ok(())
}

/// Expect a type to be refused, by the op that was called.
#[track_caller]
fn refuses_type(mistake: Result<Tensor>, expected: (&str, &str, DType, &str)) {
    match mistake {
        Err(Error::DType { op, name, found, expected: wanted }) => {
            assert_eq!((op, name, found, wanted.as_str()), expected);
        }
        Err(other) => panic!("another kind of error: {other}"),
        Ok(_) => panic!("accepted: {expected:?}"),
    }
}

#[test]
fn types_that_gpus_do_not_have_are_refused() -> Result<()> {
    let Some(device) = &shared().map(Device::Gpu) else { return Ok(()) };
    let has = match device.supports(DType::F16) {
        true => "f32, f16 or u32, which is what GPUs have",
        false => "f32 or u32, which is what this GPU has",
    };
    const NAME: &str = "the element type";
    refuses_type(Tensor::new(&[1f64], &[1], device), ("tensor", NAME, DType::F64, has));
    refuses_type(Tensor::new(&[bf16::ONE], &[1], device), ("tensor", NAME, DType::BF16, has));
    refuses_type(Tensor::new(&[1i64], &[1], device), ("tensor", NAME, DType::I64, has));
    for dtype in [DType::F64, DType::BF16, DType::I64] {
        assert!(!device.supports(dtype));
        for shape in [&[2][..], &[0], &[]] {
            refuses_type(Tensor::zeros(shape, dtype, device), ("zeros", NAME, dtype, has));
            refuses_type(Tensor::ones(shape, dtype, device), ("ones", NAME, dtype, has));
            refuses_type(Tensor::full(shape, 2.0, dtype, device), ("full", NAME, dtype, has));
            let here = Tensor::ones(shape, dtype, &CPU)?;
            refuses_type(here.to(device), ("to", NAME, dtype, has));
            let there = Tensor::ones(shape, DType::F32, device)?;
            refuses_type(there.cast(dtype), ("cast", "the result", dtype, has));
        }
    }
    Ok(())
}

/// The error names the function that was called, not one that it calls.
#[test]
fn types_that_gpus_do_not_have_are_refused_by_name() {
    let Some(device) = &shared().map(Device::Gpu) else { return };
    let op = |made: Result<Tensor>| match made {
        Err(Error::DType { op, .. }) => op,
        other => panic!("{other:?}"),
    };
    assert_eq!(op(Tensor::arange(0, 3, DType::I64, device)), "arange");
    assert_eq!(op(Tensor::rand(&[3], 1, DType::F64, device)), "rand");
    assert_eq!(op(Tensor::randn(&[3], 1, DType::BF16, device)), "randn");
}

#[test]
fn f16_is_refused_where_the_feature_is_missing() -> Result<()> {
    let Some(gpu) = open(Capabilities::WebGpu) else { return Ok(()) };
    let lacks = format!("f32 or u32: the GPU {} lacks the feature SHADER_F16", gpu.name());
    let device = &Device::Gpu(gpu);
    assert!(!device.supports(DType::F16));
    const F16: DType = DType::F16;
    const NAME: &str = "the element type";
    refuses_type(Tensor::new(&[f16::ONE], &[1], device), ("tensor", NAME, F16, &lacks));
    refuses_type(Tensor::zeros(&[2], F16, device), ("zeros", NAME, F16, &lacks));
    refuses_type(Tensor::ones(&[2], F16, &CPU)?.to(device), ("to", NAME, F16, &lacks));
    let x = Tensor::ones(&[2], DType::F32, device)?;
    refuses_type(x.cast(F16), ("cast", "the result", F16, &lacks));
    Ok(())
}

#[test]
fn f16_is_there_where_the_feature_is() -> Result<()> {
    let Some(gpu) = open(Capabilities::Full) else { return Ok(()) };
    let has = gpu.device().features().contains(taipan::wgpu::Features::SHADER_F16);
    let device = Device::Gpu(gpu);
    assert_eq!(device.supports(DType::F16), has);
    assert_eq!(Tensor::zeros(&[2], DType::F16, &device).is_ok(), has);
    Ok(())
}

#[test]
fn moving_to_the_same_device_shares() -> Result<()> {
    let Some(gpu) = fresh() else { return Ok(()) };
    let device = Device::Gpu(gpu.clone());
    let x = Tensor::ones(&[1000], DType::F32, &device)?;
    let before = (gpu.memory(), gpu.work());
    let same = x.to(&device)?;
    assert_eq!((gpu.memory(), gpu.work()), before);
    assert_eq!(read(&same), [1.0; 1000]);
    Ok(())
}

#[test]
fn tensors_move_between_gpus() -> Result<()> {
    let (Some(a), Some(b)) = (shared(), fresh()) else { return Ok(()) };
    let [a, b] = [a, b].map(Device::Gpu);
    let data: Vec<f32> = (0..1000).map(|i| i as f32).collect();
    let x = Tensor::new(&data, &[1000], &a)?.tracked();
    let y = x.to(&b)?;
    assert_eq!(y.device(), &b);
    assert_eq!(read(&y.scale(2.0)?), data.iter().map(|x| 2.0 * x).collect::<Vec<_>>());
    let dy = Tensor::new(&data, &[1000], &b)?;
    let grads = y.mul(&y)?.backward_from(&dy)?;
    let dx = grads.of(&x)?;
    assert_eq!(dx.device(), &a);
    assert_eq!(read(dx), data.iter().map(|x| 2.0 * x * x).collect::<Vec<_>>());
    Ok(())
}

/// d(3·x²)/dx through the GPU and back, and of a term that stays on the CPU.
#[test]
fn gradients_flow_back_to_the_original_device() -> Result<()> {
    let Some(gpu) = shared() else { return Ok(()) };
    let there = Device::Gpu(gpu);
    let dy = [5.0f32, -1.0, 0.25];
    for (home, away) in [(&CPU, &there), (&there, &CPU)] {
        let x = Tensor::new(&[1f32, -2.0, 3.0], &[3], home)?.tracked();
        let squares = x.to(away)?.mul(&x.to(away)?)?;
        assert!(squares.is_tracked() && squares.device() == away);
        let y = squares.scale(3.0)?.to(home)?.add(&x)?;
        let grads = y.backward_from(&Tensor::new(&dy, &[3], home)?)?;
        let dx = grads.of(&x)?;
        assert_eq!(dx.device(), home);
        assert_eq!(read(dx), [7.0 * 5.0, 11.0, 19.0 * 0.25], "from {home:?}");
        assert!(!taipan::no_grad(|| x.to(away))?.is_tracked());
        assert!(!x.detached().to(away)?.is_tracked());
    }
    Ok(())
}

#[test]
fn tensors_on_a_gpu_show_their_values() -> Result<()> {
    let Some(device) = &shared().map(Device::Gpu) else { return Ok(()) };
    let x = Tensor::new(&[1f32, -20.5, 0.25, f32::NAN], &[2, 2], device)?;
    assert_eq!(x.to_string(), "[[  1.0000, -20.5000],\n [  0.2500,      NaN]]");
    assert_eq!(format!("{x:?}"), format!("Tensor [2, 2] f32 gpu\n{x}"));
    assert_eq!(format!("{:?}", x.tracked()).lines().next(), Some("Tensor [2, 2] f32 gpu tracked"));
    let x = Tensor::arange(0, 2000, DType::U32, device)?;
    assert_eq!(x.to_string(), "[   0,    1,    2, …, 1997, 1998, 1999]");
    assert_eq!(Tensor::zeros(&[0, 3], DType::F32, device)?.to_string(), "[]");
    Ok(())
}

/// Forward and backward of a layer of a size that depends on `i`: all its bits.
fn step(device: &Device, dtype: DType, i: usize) -> Result<Vec<u64>> {
    let (m, k, n) = (20 + i, 30 + 7 * i, 40 + 3 * i);
    let randn = |shape: &[usize], seed| Tensor::randn(shape, seed + i as u64, dtype, device);
    let (x, w) = (randn(&[m, k], 1)?.tracked(), randn(&[k, n], 100)?.tracked());
    let y = linear(&x, &w, None, Activation::Silu)?;
    let grads = y.backward_from(&randn(&[m, n], 200)?)?;
    let softmax = grads.of(&w)?.softmax(1)?;
    let results = [&y, grads.of(&x)?, &softmax, &softmax.sum()?];
    Ok(results.iter().flat_map(|x| taipan::check::array(x).data).map(f64::to_bits).collect())
}

#[test]
fn threads_share_a_gpu() -> Result<()> {
    let Some(gpu) = shared() else { return Ok(()) };
    let gpus: [Gpu; 2] = [gpu, fresh().expect("not skipped")]; // the second compiles meanwhile
    for dtype in floats(&gpus[0]) {
        let wants: Vec<_> =
            (0..6).map(|i| step(&Device::Gpu(gpus[0].clone()), dtype, i)).collect::<Result<_>>()?;
        for gpu in &gpus {
            let device = &Device::Gpu(gpu.clone());
            thread::scope(|scope| {
                let thread = |t: usize| {
                    let wants = &wants;
                    scope.spawn(move || {
                        for i in (0..6).map(|i| (i + t) % 6).cycle().take(18) {
                            let got = step(device, dtype, i).unwrap();
                            assert!(got == wants[i], "thread {t}: size {i} in {dtype}");
                        }
                    })
                };
                let threads: Vec<_> = (0..4).map(thread).collect();
                threads.into_iter().for_each(|thread| thread.join().unwrap());
            });
        }
    }
    Ok(())
}

/// A tensor made by one thread is read by others while it goes on.
#[test]
fn threads_share_a_tensor() -> Result<()> {
    let Some(gpu) = shared() else { return Ok(()) };
    let device = Device::Gpu(gpu);
    let x = Tensor::arange(0, 5000, DType::F32, &device)?;
    thread::scope(|scope| {
        for t in 0..4 {
            let x = &x;
            scope.spawn(move || {
                for _ in 0..20 {
                    let y = read(&x.scale(t as f64).unwrap());
                    assert!(y.iter().enumerate().all(|(i, y)| *y == (i * t) as f32));
                }
            });
        }
    });
    Ok(())
}
