//! Tensors larger than a binding, on a device whose bindings are small.

use half::f16;
use taipan::check::{Random, array, input, tensor};
use taipan::optim::{AdamW, AdamWOptions, Group};
use taipan::{
    Activation, DType, Device, Result, Ssd, Tensor, Weight, concat, embedding, gpu::Gpu, linear,
    linear_cross_entropy, ssd,
};

use crate::{limited, read};

const BINDING: usize = 4 << 20;

/// A GPU with bindings of 4 MiB and buffers of 16.
fn small() -> Option<Gpu> {
    limited(BINDING as u64, 4 * BINDING as u64)
}

/// Not a multiple of anything, and more than two bindings of f32.
const LEN: usize = 2_500_013;

fn values(seed: usize) -> Vec<f32> {
    (0..LEN).map(|i| ((i + seed) * 7919 % 2003) as f32 / 1000.0 - 1.0).collect()
}

fn expect(got: &Tensor, want: impl Iterator<Item = f32>) {
    let got = read(got);
    let wrong = got.iter().zip(want).position(|(got, want)| *got != want);
    assert_eq!((got.len(), wrong), (LEN, None));
}

#[test]
fn values_round_trip() -> Result<()> {
    let Some(device) = &small().map(Device::Gpu) else { return Ok(()) };
    let x = Tensor::new(&values(1), &[LEN], device)?;
    expect(&x, values(1).into_iter());
    expect(&Tensor::full(&[LEN], 1.5, DType::F32, device)?, std::iter::repeat_n(1.5, LEN));
    expect(&Tensor::zeros(&[LEN], DType::F32, device)?, std::iter::repeat_n(0.0, LEN));
    Ok(())
}

#[test]
fn element_by_element() -> Result<()> {
    let Some(device) = &small().map(Device::Gpu) else { return Ok(()) };
    let [a, b] = [1, 2].map(values);
    let [x, y] = [&a, &b].map(|a| Tensor::new(a, &[LEN], device).unwrap().tracked());
    expect(&x.scale(2.0)?, a.iter().map(|a| 2.0 * a));
    expect(&x.relu()?, a.iter().map(|a| a.max(0.0)));
    expect(&x.sub(&y)?, a.iter().zip(&b).map(|(a, b)| a - b));
    // Gradients, and the sum of two.
    let dy = Tensor::new(&b, &[LEN], device)?;
    let grads = x.relu()?.add(&x.neg()?)?.backward_from(&dy)?;
    let derivative = |a: f32| if a > 0.0 { 1.0 } else { 0.0 };
    expect(grads.of(&x)?, a.iter().zip(&b).map(|(a, b)| derivative(*a) * b - b));
    if device.supports(DType::F16) {
        let half = x.cast(DType::F16)?;
        let want = a.iter().map(|a| f16::from_f32(*a).to_f32());
        expect(&half.scale(-1.0)?.scale(-1.0)?.cast(DType::F32)?, want);
    }
    let u32s = y.scale(100.0)?.cast(DType::U32)?.cast(DType::F32)?;
    expect(&u32s, b.iter().map(|b| (100.0 * b).max(0.0).trunc()));
    Ok(())
}

#[test]
fn slices_along_the_first_dimension() -> Result<()> {
    let Some(device) = &small().map(Device::Gpu) else { return Ok(()) };
    let a = values(3);
    let x = Tensor::new(&a, &[LEN], device)?.tracked();
    let (one, two) = (x.slice(0, 0..LEN - 5)?, x.slice(0, LEN - 5..LEN)?);
    assert_eq!(read(&two), a[LEN - 5..]);
    let joined = concat(&[&two, &one], 0)?;
    expect(&joined, a[LEN - 5..].iter().chain(&a[..LEN - 5]).copied());
    let grads = joined.backward_from(&x.detached())?;
    expect(grads.of(&x)?, a[5..].iter().chain(&a[..5]).copied());
    Ok(())
}

#[test]
fn sums_of_everything() -> Result<()> {
    let Some(gpu) = small() else { return Ok(()) };
    let device = &Device::Gpu(gpu.clone());
    let x = Tensor::new(&values(4), &[LEN], device)?;
    let want: f64 = values(4).iter().map(|&x| x as f64).sum();
    assert!((x.sum()?.item()? - want).abs() < 0.05, "{want}");
    assert!((x.mean()?.item()? - want / LEN as f64).abs() < 1e-6);
    assert_eq!(x.max()?.item()?, values(4).into_iter().fold(f32::MIN, f32::max) as f64);
    // The same bits as in a single window.
    let whole = crate::shared().expect("not skipped");
    let y = Tensor::new(&values(4), &[LEN], &Device::Gpu(whole))?;
    assert_eq!(x.sum()?.item()?, y.sum()?.item()?);
    Ok(())
}

#[test]
fn tables() -> Result<()> {
    let Some(gpu) = small() else { return Ok(()) };
    let (v, d) = (3001, 803);
    let table = Random::named("table").draw(&input(&[v, d]));
    let ids: Vec<u32> = [0, 2999, 3000, 1500, 1023, 1024, 1279, 1280, 0, 3000, 2047, 2048].into();
    let outcome = |device: &Device| -> Result<[Vec<f64>; 2]> {
        let table = tensor(&table.map(|x| x as f32 as f64), DType::F32, device).tracked();
        let y = embedding(&table, &Tensor::new(&ids, &[ids.len()], device)?)?;
        let grads = y.backward_from(&y.detached())?;
        Ok([array(&y).data, array(grads.of(&table)?).data])
    };
    let (got, want) = (outcome(&Device::Gpu(gpu.clone()))?, outcome(&Device::Cpu)?);
    assert!(got == want);
    // Outside all windows.
    let device = &Device::Gpu(gpu);
    let table = Tensor::zeros(&[v, d], DType::F32, device)?;
    let y = embedding(&table, &Tensor::new(&[3001u32], &[1], device)?)?;
    let message = "embedding: id 3001, expected less than 3001";
    assert_eq!(y.read_blocking::<f32>().unwrap_err().to_string(), message);
    Ok(())
}

#[test]
fn losses() -> Result<()> {
    let Some(gpu) = small() else { return Ok(()) };
    let (m, k, v) = (17, 200, 13_001);
    let mut random = Random::named("losses");
    let (x, w) = (random.draw(&input(&[m, k])), random.draw(&input(&[v, k])));
    let targets: Vec<u32> = (0..m as u32).map(|i| i * 811 % v as u32).collect();
    let outcome = |device: &Device| -> Result<[Vec<f64>; 3]> {
        let [x, w] = [&x, &w].map(|x| tensor(x, DType::F32, device).tracked());
        let targets = Tensor::new(&targets, &[m], device)?;
        let loss = linear_cross_entropy(&x, Weight::nk(&w), &targets, None)?;
        let grads = loss.backward()?;
        Ok([&loss, grads.of(&x)?, grads.of(&w)?].map(|x| array(x).data))
    };
    let (got, want) = (outcome(&Device::Gpu(gpu.clone()))?, outcome(&Device::Cpu)?);
    for (got, want) in got.iter().zip(&want) {
        let size = want.iter().map(|x| x.abs()).fold(0.0, f64::max);
        let off = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(off < 1e-5 * size, "off by {off} of {size}");
    }
    // The columns of a weight are copied from a single binding.
    let device = &Device::Gpu(gpu.clone());
    let (x, w) =
        (Tensor::zeros(&[m, k], DType::F32, device)?, Tensor::zeros(&[k, v], DType::F32, device)?);
    let error = linear_cross_entropy(&x, &w, &Tensor::new(&targets, &[m], device)?, None);
    let message = format!(
        "linear_cross_entropy: a tensor of {} bytes exceeds max_storage_buffer_binding_size of {}, which is {BINDING}",
        k * v * 4,
        gpu.name()
    );
    assert_eq!(error.unwrap_err().to_string(), message);
    Ok(())
}

/// States above one binding: several sequences, and one long one, of which each half is still too
/// large; with everything that is cut along. A single chunk cannot be cut.
#[test]
fn states_of_ssd() -> Result<()> {
    let Some(gpu) = small() else { return Ok(()) };
    let (h, p, g, n) = (16, 32, 2, 256);
    for (b, l) in [(3, 400), (1, 1100)] {
        assert!(b * l / 64 * h * p * n * 4 > 2 * BINDING);
        let mut random = Random::named("ssd");
        let mut draw = |shape: &[usize]| random.draw(&input(shape));
        let values = [
            draw(&[b, l, h, p]),
            draw(&[b, l, h]),
            draw(&[b, l, g, n]),
            draw(&[b, l, g, n]),
            draw(&[b, l, h]),
            draw(&[b, l, h]),
            draw(&[h]),
            draw(&[b, h, p, n]),
        ];
        let upstreams = [draw(&[b, l, h, p]), draw(&[b, h, p, n])];
        let starts: Vec<u32> = (0..b * l).map(|i| u32::from(i % 211 == 70)).collect();
        let outcome = |device: &Device| -> Result<Vec<Vec<f64>>> {
            let [x, a, k, q, scale, own, d, state] =
                values.each_ref().map(|x| tensor(x, DType::F32, device).tracked());
            let decay = a.abs()?.neg()?;
            let seq_start = Tensor::new(&starts, &[b, l], device)?;
            let (y, last) = ssd(&Ssd {
                scale: Some(&scale),
                own_scale: Some(&own),
                d: Some(&d),
                initial_state: Some(&state),
                seq_start: Some(&seq_start),
                ..Ssd::new(&x, &decay, &k, &q)
            })?;
            let [dy, dlast] = upstreams.each_ref().map(|x| tensor(x, DType::F32, device));
            let loss = y.mul(&dy)?.sum()?.add(&last.mul(&dlast)?.sum()?)?;
            let grads = loss.backward()?;
            let inputs = [&x, &a, &k, &q, &scale, &own, &d, &state];
            let grads = inputs.map(|input| grads.of(input).map(|grad| array(grad).data));
            [Ok(array(&y).data), Ok(array(&last).data)].into_iter().chain(grads).collect()
        };
        let (got, want) = (outcome(&Device::Gpu(gpu.clone()))?, outcome(&Device::Cpu)?);
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            let size = want.iter().map(|x| x.abs()).fold(0.0, f64::max);
            let off = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(got.len() == want.len() && off < 2e-5 * size, "{i}: off by {off} of {size}");
        }
    }
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Device::Gpu(gpu.clone()));
    let (k, q) = (zeros(&[1, 5, 1, 1 << 16])?, zeros(&[1, 5, 1, 1 << 16])?);
    let error = ssd(&Ssd::new(&zeros(&[1, 5, 1, 32])?, &zeros(&[1, 5, 1])?, &k, &q));
    let message = format!(
        "ssd: a tensor of {} bytes exceeds max_storage_buffer_binding_size of {}, which is {BINDING}",
        32 * (1 << 16) * 4,
        gpu.name()
    );
    assert_eq!(error.unwrap_err().to_string(), message);
    Ok(())
}

/// The logits of a few tokens, as in decoding.
#[test]
fn products_with_a_large_weight() -> Result<()> {
    let Some(gpu) = small() else { return Ok(()) };
    let (k, v) = (200, 13_001);
    let mut random = Random::named("products");
    let (w, bias) = (random.draw(&input(&[v, k])), random.draw(&input(&[v])));
    for m in [1, 3] {
        let x = random.draw(&input(&[m, k]));
        let value = |device: &Device| {
            let [x, w, bias] = [&x, &w, &bias].map(|x| tensor(x, DType::F32, device));
            array(&linear(&x, Weight::nk(&w), Some(&bias), Activation::Silu).unwrap()).data
        };
        let (got, want) = (value(&Device::Gpu(gpu.clone())), value(&Device::Cpu));
        let off = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(got.len() == m * v && off < 1e-4, "off by {off}");
    }
    Ok(())
}

/// Each element takes its first step, of `lr` against the sign of its gradient, and the norm counts
/// all of them; f16 with a master copy, too, and after a copy for a clone's sake.
#[test]
fn a_step_of_the_optimiser() -> Result<()> {
    let Some(device) = &small().map(Device::Gpu) else { return Ok(()) };
    let a = values(7);
    let norm = a.iter().map(|a| (*a as f64).powi(2)).sum::<f64>().sqrt();
    for dtype in [DType::F32, DType::F16].into_iter().filter(|&dtype| device.supports(dtype)) {
        let grad = Tensor::new(&a, &[LEN], device)?.cast(dtype)?;
        let mut w = Tensor::ones(&[LEN], dtype, device)?.tracked();
        let clone = w.clone();
        let options = AdamWOptions { eps: 1e-12, ..AdamWOptions::default() };
        let mut adamw = AdamW::new(options, &[(&w, Group::without_decay())])?;
        let grads = w.backward_from(&grad)?;
        adamw.step(0.25, &mut [&mut w], &grads)?;
        expect(&clone.cast(DType::F32)?, std::iter::repeat_n(1.0, LEN));
        let got = adamw.status_blocking()?.norm;
        assert!((got / norm - 1.0).abs() < 1e-3, "{got}, want {norm}");
        let near = |x: f32| (x * 1024.0).round() / 1024.0;
        let moved = read(&w.cast(DType::F32)?).into_iter().map(near);
        let want = a.iter().map(|a| if *a == 0.0 { 1.0 } else { 1.0 - 0.25 * a.signum() });
        let wrong = moved.zip(want).position(|(got, want)| got != want);
        assert_eq!((w.len(), wrong), (LEN, None));
    }
    Ok(())
}
