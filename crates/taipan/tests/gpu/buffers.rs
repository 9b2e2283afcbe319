//! Memory on a GPU.

use half::f16;
use taipan::check::{Random, array, input, tensor};
use taipan::gpu::{Capabilities, Gpu};
use taipan::{
    Activation, DType, Device, Element, Error, Memory, Result, Tensor, Weight, linear,
    linear_cross_entropy,
};

use crate::{floats, fresh, limited, open, read, shared};

#[test]
fn memory_in_use_is_counted_and_comes_back() -> Result<()> {
    let Some(gpu) = fresh() else { return Ok(()) };
    let device = Device::Gpu(gpu.clone());
    assert_eq!(gpu.memory(), Memory::default());
    const BYTES: usize = 4 << 20;
    let make = || Tensor::zeros(&[BYTES / 4], DType::F32, &device);
    let x = make()?;
    assert_eq!(gpu.memory(), Memory { used: BYTES, cached: 0, peak: BYTES });
    let (clone, reshaped) = (x.clone(), x.reshape(&[2, BYTES / 8])?);
    assert_eq!(gpu.memory().used, BYTES, "these share");
    let y = make()?;
    assert_eq!(gpu.memory(), Memory { used: 2 * BYTES, cached: 0, peak: 2 * BYTES });
    drop((x, clone));
    assert_eq!(gpu.memory().used, 2 * BYTES, "one is left");
    drop(reshaped);
    assert_eq!(gpu.memory(), Memory { used: BYTES, cached: BYTES, peak: 2 * BYTES });
    let before = gpu.work().allocations;
    let z = make()?;
    assert_eq!(gpu.work().allocations, before, "idle buffers are reused");
    assert_eq!(gpu.memory(), Memory { used: 2 * BYTES, cached: 0, peak: 2 * BYTES });
    drop((y, z));
    assert_eq!(gpu.memory(), Memory { used: 0, cached: 2 * BYTES, peak: 2 * BYTES });
    Ok(())
}

/// Later steps reuse the buffers of the first ones, including the staging buffers of reads.
#[test]
fn training_allocates_nothing_after_the_first_steps() -> Result<()> {
    let Some(gpu) = fresh() else { return Ok(()) };
    let device = Device::Gpu(gpu.clone());
    for dtype in floats(&gpu) {
        let randn = |shape: &[usize], seed| Tensor::randn(shape, seed, dtype, &device);
        let (x, target) = (randn(&[96, 40], 1)?, randn(&[96, 70], 2)?);
        let mut w = randn(&[40, 70], 3)?.scale(0.1)?.tracked();
        let mut bias = randn(&[70], 4)?.tracked();
        let mut step = || -> Result<f64> {
            let error = linear(&x, &w, Some(&bias), Activation::Gelu)?.sub(&target)?;
            let loss = error.mul(&error)?.mean()?;
            let grads = loss.backward()?;
            for p in [&mut w, &mut bias] {
                *p = p.detached().sub(&grads.of(p)?.scale(2.0)?)?.tracked();
            }
            loss.item()
        };
        let first = step()?;
        (0..2).try_for_each(|_| step().map(drop))?;
        let before = (gpu.work().allocations, gpu.memory());
        let mut last = first;
        for _ in 0..20 {
            last = step()?;
        }
        assert_eq!((gpu.work().allocations, gpu.memory()), before, "{dtype}");
        assert!(last < 0.9 * first, "{dtype}: the loss was {first} and is {last}");
    }
    Ok(())
}

/// A fixed number of bits for each position.
fn bits(i: usize) -> u32 {
    (i as u32).wrapping_mul(2_654_435_761).rotate_left(7)
}

#[test]
fn every_length_of_every_type_goes_and_comes_back() -> Result<()> {
    fn check<T: Element>(device: &Device, value: impl Fn(usize) -> T) -> Result<()> {
        for len in (0..9).chain([63, 64, 65, 127, 129, 255, 257, 1001, 65_537]) {
            let data: Vec<T> = (0..len).map(&value).collect();
            let x = Tensor::new(&data, &[len], device)?;
            assert_eq!(x.read_blocking::<T>()?, data, "{len} of {}", T::DTYPE);
            let copied = x.to(&Device::Cpu)?;
            assert_eq!(copied.read_blocking::<T>()?, data, "{len} of {} moved", T::DTYPE);
            // Constants are written by a kernel, in words.
            let ones = Tensor::ones(&[len], T::DTYPE, device)?.read_blocking::<T>()?;
            assert_eq!(ones, vec![T::of_i64(1); len], "{len} ones of {}", T::DTYPE);
            if len > 0 {
                let last = x.slice(0, len - 1..len)?;
                assert_eq!(last.read_blocking::<T>()?, data[len - 1..], "the end of {len}");
            }
        }
        Ok(())
    }
    let Some(device) = &shared().map(Device::Gpu) else { return Ok(()) };
    check(device, bits)?;
    check(device, |i| bits(i) as f32)?;
    if device.supports(DType::F16) {
        check(device, |i| f16::from_f32((bits(i) >> 16) as f32))?;
    }
    Ok(())
}

/// Not a bit is changed by moving it: NaNs keep theirs, small numbers are not flushed.
#[test]
fn moving_keeps_every_bit() -> Result<()> {
    let Some(device) = &shared().map(Device::Gpu) else { return Ok(()) };
    let special = [0, 1 << 31, 1, 0x7f_ffff, 0x7f80_0001, 0x7fc0_1234, 0xff80_0000, 0xffff_ffff];
    let data: Vec<f32> = special.into_iter().map(f32::from_bits).collect();
    let there = Tensor::new(&data, &[8], device)?;
    let bits = |x: &Tensor| read(x).iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&there), special);
    assert_eq!(bits(&there.to(&Device::Cpu)?), special);
    assert_eq!(bits(&Tensor::new(&data, &[8], &Device::Cpu)?.to(device)?), special);
    if device.supports(DType::F16) {
        let all: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
        let back = Tensor::new(&all, &[1 << 16], device)?.read_blocking::<f16>()?;
        assert!(back.iter().map(|x| x.to_bits()).eq(0..=u16::MAX));
    }
    Ok(())
}

/// Transfers are made in chunks of 64 MiB.
#[test]
fn tensors_larger_than_a_chunk_of_a_transfer() -> Result<()> {
    let Some(device) = &shared().map(Device::Gpu) else { return Ok(()) };
    let data: Vec<u32> = (0..(16 << 20) + 12_345).map(bits).collect();
    let x = Tensor::new(&data, &[data.len()], device)?;
    assert!(x.read_blocking::<u32>()? == data, "u32");
    drop(x);
    if device.supports(DType::F16) {
        // The second chunk is not a whole number of words.
        let len = (32 << 20) + 3;
        let data: Vec<u16> = (0..len).map(|i| bits(i) as u16).collect();
        let halves: Vec<f16> = data.iter().copied().map(f16::from_bits).collect();
        let back = Tensor::new(&halves, &[len], device)?.read_blocking::<f16>()?;
        assert!(back.iter().map(|x| x.to_bits()).eq(data), "f16");
    }
    Ok(())
}

/// The message of a failure on the device.
#[track_caller]
fn reason<T>(result: Result<T>, expected: &'static str) -> String {
    match result {
        Err(Error::Device { op, why }) if op == expected => why,
        Err(other) => panic!("another error: {other}"),
        Ok(_) => panic!("{expected} is not refused"),
    }
}

/// `a tensor of 5 bytes exceeds max_buffer_size of …, which is 4`
fn too_large(gpu: &Gpu, bytes: usize, limit: &str, most: u64) -> String {
    format!("a tensor of {bytes} bytes exceeds {limit} of {}, which is {most}", gpu.name())
}

fn expect_too_large(gpu: &Gpu) {
    let device = Device::Gpu(gpu.clone());
    let limit = gpu.limits().max_buffer_size / 4 * 4;
    if limit > 1 << 60 {
        return; // then no tensor is too large
    }
    let most = (limit / 4) as usize; // words
    let before = (gpu.memory(), gpu.work());
    let why = reason(Tensor::zeros(&[most + 1], DType::F32, &device), "zeros");
    assert_eq!(why, too_large(gpu, 4 * most + 4, "max_buffer_size", limit));
    assert_eq!((gpu.memory(), gpu.work()), before, "nothing was done");
}

#[test]
fn too_large_a_tensor_is_refused_with_the_limit() -> Result<()> {
    let Some(gpu) = fresh() else { return Ok(()) };
    expect_too_large(&gpu);
    expect_too_large(&open(Capabilities::WebGpu).expect("not skipped"));
    // Sizes are rounded up, but not beyond the limit.
    let gpu = limited(1 << 20, 1 << 20).expect("not skipped");
    expect_too_large(&gpu);
    let device = Device::Gpu(gpu);
    for words in [1 << 18, (1 << 18) - 1, (1 << 18) - 9000] {
        let ones = Tensor::ones(&[words], DType::U32, &device)?;
        assert_eq!(ones.read_blocking::<u32>()?, vec![1; words]);
    }
    Ok(())
}

/// Results too large for one launch although the inputs are not.
#[test]
fn too_large_a_launch_is_refused_with_the_limit() -> Result<()> {
    let Some(gpu) = limited(1 << 20, 1 << 22) else { return Ok(()) };
    let device = Device::Gpu(gpu.clone());
    let side = 513;
    let (tall, wide) = (
        Tensor::ones(&[side, 1], DType::F32, &device)?,
        Tensor::ones(&[1, side], DType::F32, &device)?,
    );
    let why = too_large(&gpu, 4 * side * side, "max_storage_buffer_binding_size", 1 << 20);
    assert_eq!(reason(tall.add(&wide), "add"), why);
    assert_eq!(reason(tall.matmul(&wide), "matmul"), why);
    assert_eq!(tall.sum()?.item()?, side as f64, "afterwards all is well");
    Ok(())
}

#[test]
fn a_tensor_as_large_as_the_limit_works() -> Result<()> {
    // 128 MiB, on every adapter.
    let Some(gpu) = open(Capabilities::WebGpu) else { return Ok(()) };
    let device = Device::Gpu(gpu.clone());
    let len = (gpu.limits().max_storage_buffer_binding_size / 4) as usize;
    let x = Tensor::full(&[len], 0.5, DType::F32, &device)?;
    let ends = |x: &Tensor| -> Result<[f64; 2]> {
        Ok([x.slice(0, 0..1)?.item()?, x.slice(0, len - 1..len)?.item()?])
    };
    assert_eq!(ends(&x)?, [0.5; 2]);
    assert_eq!(x.mean()?.item()?, 0.5);
    assert_eq!(ends(&x.scale(3.0)?)?, [1.5; 2]);
    Ok(())
}

/// Another size at each step: idle buffers of earlier sizes are freed.
#[test]
fn sizes_do_not_pile_up() -> Result<()> {
    let Some(gpu) = fresh() else { return Ok(()) };
    let device = Device::Gpu(gpu.clone());
    const MOST: usize = 2 << 20; // words
    let step = |words: usize| -> Result<()> {
        let x = Tensor::ones(&[words], DType::F32, &device)?;
        assert_eq!(x.sum()?.item()?, words as f64);
        Ok(())
    };
    step(MOST)?;
    let peak = gpu.memory().peak;
    for i in 1..30 {
        step(MOST - i * 50_000)?;
        let memory = gpu.memory();
        assert_eq!(memory.peak, peak, "no step takes more than the first");
        assert!(memory.used + memory.cached <= peak + peak / 2, "step {i}: {memory:?}");
    }
    assert_eq!(gpu.memory().used, 0);
    Ok(())
}

/// Values are right although each buffer was another tensor's a moment before, whose launches
/// may not have begun.
#[test]
fn reused_buffers_have_the_new_values() -> Result<()> {
    let Some(device) = &fresh().map(Device::Gpu) else { return Ok(()) };
    let mut random = Random::named("used again");
    let mut sums = Vec::new();
    let mut wants = Vec::new();
    for _ in 0..40 {
        let x = random.draw(&input(&[1000])).map(|x| (x * 100.0).round());
        // Uploaded into a buffer that a pending launch of the step before still reads.
        sums.push(tensor(&x, DType::F32, device).scale(2.0)?.sum()?);
        wants.push(2.0 * x.data.iter().sum::<f64>());
    }
    let got: Vec<f64> = sums.iter().map(|x| array(x).data[0]).collect();
    assert_eq!(got, wants);
    Ok(())
}

/// A batch of 2048 tokens and the channels of a published model: beside inputs, result and
/// gradients, at most 64 MB are used, however large the vocabulary is. Here it makes three blocks.
#[test]
fn logits_are_never_materialised() -> Result<()> {
    const TOKENS: usize = 2048;
    const V: usize = 2200;
    const K: usize = 768;
    for form in [[V, K], [K, V]] {
        let Some(gpu) = fresh() else { return Ok(()) };
        let device = &Device::Gpu(gpu.clone());
        let randn = |shape: &[usize]| Tensor::randn(shape, 1, DType::F32, device);
        let (x, w) = (randn(&[TOKENS, K])?.tracked(), randn(&form)?.tracked());
        let weight = if form == [V, K] { Weight::nk(&w) } else { Weight::kn(&w) };
        let ids: Vec<u32> = (0..TOKENS as u32).map(|i| i % V as u32).collect();
        let targets = Tensor::new(&ids, &[TOKENS], device)?;
        let before = gpu.memory().used;
        let grads = linear_cross_entropy(&x, weight, &targets, None)?.backward()?;
        let peak = gpu.memory().peak - before - 4 * K * (TOKENS + V);
        assert!(peak <= 64_000_000, "{form:?}: {peak}");
        drop(grads);
    }
    Ok(())
}
