//! An error of the device is returned by the next call, and only there.

#[cfg(target_os = "linux")]
use std::path::Path;

use taipan::gpu::Gpu;
use taipan::{Activation, DType, Device, Error, Result, Tensor, linear, wgpu};

#[cfg(target_os = "linux")]
use crate::{CRASHED, child_of};
use crate::{child, fresh, in_child, read, shared, without_hanging};

/// A call that can fail, given the GPU and a tensor on it.
type Call = (&'static str, fn(&Gpu, &Tensor) -> Result<()>);

/// Those that make or launch something.
const WORK: [Call; 5] = [
    ("new", |_, x| Tensor::new(&[1f32, 2.0], &[2], x.device()).map(drop)),
    ("zeros", |_, x| Tensor::zeros(&[3], DType::F32, x.device()).map(drop)),
    ("a large tensor", |_, x| Tensor::zeros(&[1 << 20], DType::F32, x.device()).map(drop)),
    ("exp", |_, x| x.exp().map(drop)),
    ("linear", |_, x| linear(x, x, None, Activation::Gelu).map(drop)),
];

/// Those that wait, or submit what was launched.
const WAITS: [Call; 5] = [
    ("read", |_, x| x.read_blocking::<f32>().map(drop)),
    ("item", |_, x| x.slice(0, 0..1)?.sum()?.item().map(drop)),
    ("to", |_, x| x.to(&Device::Cpu).map(drop)),
    ("flush", |gpu, _| gpu.flush()),
    ("wgpu_buffer", |_, x| x.wgpu_buffer().map(drop)),
];

fn matrix(device: &Device) -> Result<Tensor> {
    Ok(Tensor::new(&[1f32, 2.0, 3.0, 4.0], &[2, 2], device)?.tracked())
}

/// The error says that the GPU was lost.
fn expect_lost(name: &str, result: Result<()>) {
    match result {
        Err(Error::Device { why, .. }) => {
            assert!(why.contains("the GPU was lost"), "{name}: {why}")
        }
        other => panic!("{name}: {other:?}"),
    }
}

/// Expect it of a call, the first after the loss, then of all others.
fn expect_lost_at_once((first, call): Call) {
    without_hanging(move || {
        let gpu = fresh().expect("not skipped");
        let x = matrix(&Device::Gpu(gpu.clone())).unwrap();
        x.exp().unwrap(); // recorded, not submitted
        gpu.device().destroy();
        expect_lost(&format!("{first}, at once"), call(&gpu, &x));
        for (name, call) in WORK.into_iter().chain(WAITS) {
            expect_lost(&format!("{name} after {first}"), call(&gpu, &x));
        }
        assert!(x.to_string().contains("the GPU was lost"), "{x}");
    });
}

#[test]
fn waiting_for_a_lost_gpu_is_an_error() {
    let Some(shared) = shared() else { return };
    WAITS.into_iter().for_each(expect_lost_at_once);
    // Others go on.
    let y = matrix(&Device::Gpu(shared)).unwrap().scale(2.0).unwrap();
    assert_eq!(read(&y), [2.0, 4.0, 6.0, 8.0]);
}

#[test]
fn launching_on_a_lost_gpu_is_an_error() {
    let Some(_) = shared() else { return };
    WORK.into_iter().for_each(expect_lost_at_once);
}

/// The graph is on a device that is gone: an error, and what is on the CPU stays usable.
#[test]
fn backward_on_a_lost_gpu_is_an_error() -> Result<()> {
    let Some(gpu) = fresh() else { return Ok(()) };
    let leaf = Tensor::new(&[1f32, 2.0], &[2], &Device::Cpu)?.tracked();
    let y = leaf.to(&Device::Gpu(gpu.clone()))?.exp()?;
    let loss = y.sum()?;
    loss.item()?;
    gpu.device().destroy();
    without_hanging(move || assert!(loss.backward().is_err()));
    assert_eq!(read(leaf.scale(2.0)?.backward_from(&leaf.detached())?.of(&leaf)?), [2.0, 4.0]);
    Ok(())
}

/// The device is found lost and another is opened in its place.
#[test]
fn a_program_can_continue_after_its_gpu_was_lost() {
    let Some(gpu) = shared() else { return };
    if !in_child() {
        child("faults::a_program_can_continue_after_its_gpu_was_lost", |command| {
            command.env("TAIPAN_ADAPTER", gpu.name());
        });
        return;
    }
    let device = Device::gpu().unwrap();
    let x = matrix(&device).unwrap();
    gpu.device().destroy();
    without_hanging(move || assert!(x.read_blocking::<f32>().is_err()));
    let again = Device::gpu().unwrap();
    assert_ne!(again, device);
    assert_eq!(read(&matrix(&again).unwrap().neg().unwrap()), [-1.0, -2.0, -3.0, -4.0]);
}

/// Work, some of it submitted and some pending.
fn pending(device: &Device) -> Result<Vec<Tensor>> {
    let x = Tensor::full(&[100, 100], 0.01, DType::F32, device)?;
    (0..200).map(|_| linear(&x, &x, None, Activation::Gelu)).collect()
}

#[test]
fn losing_the_gpu_with_work_pending_does_not_hang() {
    let Some(gpu) = fresh() else { return };
    without_hanging(move || {
        let results = pending(&Device::Gpu(gpu.clone())).unwrap();
        gpu.device().destroy();
        expect_lost("read", results[0].read_blocking::<f32>().map(drop));
        drop(gpu);
        drop(results);
    });
}

#[test]
fn dropping_everything_with_work_pending_does_not_hang() {
    for last in ["the results", "the GPU"] {
        let Some(gpu) = fresh() else { return };
        without_hanging(move || {
            let results = pending(&Device::Gpu(gpu.clone())).unwrap();
            match last {
                "the GPU" => drop((results, gpu)),
                _ => drop((gpu, results)),
            }
        });
    }
}

/// A tensor keeps its device.
#[test]
fn tensors_outlive_the_gpu_they_were_made_with() -> Result<()> {
    let Some(gpu) = fresh() else { return Ok(()) };
    let x = matrix(&Device::Gpu(gpu))?;
    assert_eq!(read(&x.add(&x)?), [2.0, 4.0, 6.0, 8.0]);
    Ok(())
}

/// What the program itself does wrong on the device, taipan hears of and returns once. Nothing that
/// was launched is lost.
#[test]
fn an_error_on_the_device_is_returned_once() -> Result<()> {
    let Some(gpu) = fresh() else { return Ok(()) };
    let x = matrix(&Device::Gpu(gpu.clone()))?;
    for (name, call) in WORK.into_iter().chain(WAITS) {
        let _ = gpu.device().create_buffer(&wgpu::BufferDescriptor {
            label: Some("a mistake"),
            size: 16,
            usage: wgpu::BufferUsages::empty(),
            mapped_at_creation: false,
        });
        match call(&gpu, &x) {
            Err(Error::Device { why, .. }) => assert!(why.contains("a mistake"), "{name}: {why}"),
            other => panic!("{name}: {other:?}"),
        }
        assert_eq!(call(&gpu, &x), Ok(()), "{name}, the next time");
        assert_eq!(read(&x), [1.0, 2.0, 3.0, 4.0]);
    }
    Ok(())
}

/// A buffer of the program's that is gone when its batch is submitted: nothing of the batch is read
/// as if it had been computed, not even the second time.
#[test]
fn a_refused_batch_gives_no_values() -> Result<()> {
    let Some(gpu) = fresh() else { return Ok(()) };
    let device = Device::Gpu(gpu.clone());
    let buffer = gpu.device().create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: 16,
        usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC,
        mapped_at_creation: false,
    });
    let lent = Tensor::from_wgpu(&gpu, &buffer, &[4], DType::F32)?;
    drop(Tensor::full(&[4], 777.0, DType::F32, &device)?);
    gpu.flush()?;
    let y = Tensor::ones(&[4], DType::F32, &device)?.exp()?;
    let z = lent.exp()?;
    buffer.destroy();
    for x in [&y, &z, &y, &z] {
        let read = x.read_blocking::<f32>();
        assert!(matches!(read, Err(Error::Device { .. })), "{read:?}");
    }
    Ok(())
}

/// Memory that ends: an error, and what is held stays as it is. Software takes its memory from the
/// process, which `ulimit` bounds; that of a real GPU is not to be filled on a machine in use.
#[cfg(target_os = "linux")]
#[test]
fn out_of_memory_is_an_error() -> Result<()> {
    let Some(gpu) = shared() else { return Ok(()) };
    if gpu.info().device_type != wgpu::DeviceType::Cpu {
        eprintln!("skipped: {} is no software", gpu.name());
        return Ok(());
    }
    const NAME: &str = "faults::out_of_memory_is_an_error";
    if !in_child() {
        let test = std::env::current_exe().unwrap();
        let out = child_of(Path::new("/bin/sh"), NAME, |command| {
            command.args(["-c", "ulimit -v 3000000 && exec \"$0\" \"$@\""]).arg(test);
        });
        if out == CRASHED {
            // llvmpipe 25 hands out memory that it did not get; nothing can be done about that.
            eprintln!("skipped: the driver of {} fails when memory ends", gpu.name());
        }
        return Ok(());
    }
    const WORDS: usize = 8 << 20; // 32 MiB
    let device = Device::Gpu(gpu.clone());
    let make = || Tensor::ones(&[WORDS], DType::F32, &device);
    assert_eq!(make()?.sum()?.item()?, WORDS as f64); // compiles what is used below
    let mut held = Vec::new();
    let error = loop {
        match make().and_then(|x| gpu.flush().map(|()| x)) {
            Ok(x) => held.push(x),
            Err(error) => break error,
        }
        assert!(held.len() < 100, "3 GB do not end");
    };
    assert_eq!(error, Error::Memory { op: "ones", bytes: 4 * WORDS, device: "gpu" });
    let used = gpu.memory().used;
    assert_eq!(used, held.len() * 4 * WORDS);
    let last = held.pop().unwrap();
    held.clear();
    assert_eq!(last.sum()?.item()?, WORDS as f64, "what was held");
    assert_eq!(make()?.sum()?.item()?, WORDS as f64, "what is made of it");
    Ok(())
}
