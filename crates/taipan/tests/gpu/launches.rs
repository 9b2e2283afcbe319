//! Launches of kernels: more workgroups than one dimension of a dispatch has, few
//! submissions, few pipelines.

use taipan::optim::{AdamW, AdamWOptions, Group};
use taipan::{Activation, DType, Device, Result, Tensor, concat, linear};

use crate::{floats, fresh, read, shared};

/// Workgroups a dispatch has along a dimension.
const GROUPS: usize = 65_535;
/// Elements of an element-wise launch that needs more: one each for 256 invocations.
const MANY: usize = GROUPS * 256 + 777;

/// Whole numbers from -3 to 3, in no simple order: sums of many are exact.
fn whole(i: usize) -> f32 {
    ((i as u32).wrapping_mul(2_654_435_761) >> 16) as f32 % 7.0 - 3.0
}

/// A tensor of such, and its values.
fn wholes(shape: &[usize], from: usize, device: &Device) -> Result<(Tensor, Vec<f32>)> {
    let len: usize = shape.iter().product();
    let data: Vec<f32> = (from..from + len).map(whole).collect();
    Ok((Tensor::new(&data, shape, device)?, data))
}

/// Compare without printing millions of numbers.
#[track_caller]
fn expect_same<T: PartialEq + Copy + std::fmt::Debug>(
    what: &str,
    got: &[T],
    want: impl IntoIterator<Item = T>,
) {
    let mut len = 0;
    for (i, want) in want.into_iter().enumerate() {
        assert!(got[i] == want, "{what} at {i}: got {:?}, want {want:?}", got[i]);
        len += 1;
    }
    assert_eq!(got.len(), len, "{what}");
}

#[test]
fn many_elements() -> Result<()> {
    let Some(device) = &shared().map(Device::Gpu) else { return Ok(()) };
    let (x, data) = wholes(&[MANY], 0, device)?;
    expect_same("scale", &read(&x.scale(0.5)?), data.iter().map(|x| 0.5 * x));
    expect_same("relu", &read(&x.relu()?), data.iter().map(|x| x.max(0.0)));
    expect_same("mul", &read(&x.mul(&x)?), data.iter().map(|x| x * x));
    let tracked = x.tracked();
    let (dy, upstream) = wholes(&[MANY], 5, device)?;
    let grads = tracked.relu()?.backward_from(&dy)?;
    let want = data.iter().zip(&upstream).map(|(x, dy)| if *x > 0.0 { *dy } else { 0.0 });
    expect_same("relu's gradient", &read(grads.of(&tracked)?), want);
    Ok(())
}

#[test]
fn many_elements_of_other_types() -> Result<()> {
    let Some(device) = &shared().map(Device::Gpu) else { return Ok(()) };
    let data: Vec<u32> = (0..MANY as u32).collect();
    let x = Tensor::new(&data, &[MANY], device)?;
    expect_same("cast", &read(&x.cast(DType::F32)?), data.iter().map(|&x| x as f32));
    let zeros = Tensor::full(&[MANY], 7.0, DType::U32, device)?.read_blocking::<u32>()?;
    expect_same("full", &zeros, (0..MANY).map(|_| 7));
    Ok(())
}

#[test]
fn many_elements_broadcast() -> Result<()> {
    let Some(device) = &shared().map(Device::Gpu) else { return Ok(()) };
    const ROWS: usize = 4099;
    const COLUMNS: usize = MANY.div_ceil(ROWS);
    let (rows, row) = wholes(&[ROWS, 1], 0, device)?;
    let (columns, column) = wholes(&[COLUMNS], 9, device)?;
    let want = row.iter().flat_map(|a| column.iter().map(move |b| a - b));
    expect_same("sub", &read(&rows.sub(&columns)?), want);
    Ok(())
}

/// Every element has a different value.
#[test]
fn many_elements_move() -> Result<()> {
    let Some(device) = &shared().map(Device::Gpu) else { return Ok(()) };
    const ROWS: usize = 4099;
    const COLUMNS: usize = MANY.div_ceil(ROWS) + 1;
    let data: Vec<u32> = (0..(ROWS * COLUMNS) as u32).collect();
    let x = Tensor::new(&data, &[ROWS, COLUMNS], device)?;
    let at = |row: usize, column: usize| (row * COLUMNS + column) as u32;
    let read = |x: Tensor| x.read_blocking::<u32>();
    let want = (0..COLUMNS).flat_map(|column| (0..ROWS).map(move |row| at(row, column)));
    expect_same("transpose", &read(x.transpose(0, 1)?)?, want);
    let want = (0..ROWS).flat_map(|row| (1..COLUMNS).map(move |column| at(row, column)));
    expect_same("slice", &read(x.slice(1, 1..COLUMNS)?)?, want);
    let first = x.slice(1, 0..1)?;
    let columns = |row| (0..=COLUMNS).map(move |column| at(row, column % COLUMNS));
    expect_same("concat", &read(concat(&[&x, &first], 1)?)?, (0..ROWS).flat_map(columns));
    Ok(())
}

/// A workgroup for each row.
#[test]
fn many_rows_are_reduced() -> Result<()> {
    let Some(device) = &shared().map(Device::Gpu) else { return Ok(()) };
    const ROWS: usize = GROUPS + 10;
    let (x, data) = wholes(&[ROWS, 65], 0, device)?;
    let sums = data.chunks(65).map(|row| row.iter().sum::<f32>());
    expect_same("sum", &read(&x.sum_dims(&[1])?), sums);

    let (x, data) = wholes(&[ROWS, 3], 0, device)?;
    let max = |row: &[f32]| row.iter().copied().fold(f32::MIN, f32::max);
    let first = |row: &[f32]| row.iter().position(|x| *x == max(row)).unwrap() as u32;
    expect_same("argmax", &x.argmax(1)?.read_blocking::<u32>()?, data.chunks(3).map(first));
    let x = x.tracked();
    let (dy, upstream) = wholes(&[ROWS], 5, device)?;
    let dx = read(x.max_dims(&[1])?.backward_from(&dy)?.of(&x)?);
    for ((row, dy), dx) in data.chunks(3).zip(upstream).zip(dx.chunks(3)) {
        let share = dy / row.iter().filter(|x| **x == max(row)).count() as f32;
        for (x, dx) in row.iter().zip(dx) {
            let want = if *x == max(row) { share } else { 0.0 };
            assert!((dx - want).abs() <= 1e-6, "max's gradient: {dx}, want {want}");
        }
    }
    Ok(())
}

#[test]
fn many_columns_are_reduced() -> Result<()> {
    let Some(device) = &shared().map(Device::Gpu) else { return Ok(()) };
    const COLUMNS: usize = GROUPS * 256 + 40; // twice as many f32 are almost 128 MiB
    let (x, data) = wholes(&[2, COLUMNS], 0, device)?;
    let (above, below) = data.split_at(COLUMNS);
    expect_same("sum", &read(&x.sum_dims(&[0])?), above.iter().zip(below).map(|(a, b)| a + b));
    Ok(())
}

#[test]
fn many_rows_of_softmax() -> Result<()> {
    let Some(device) = &shared().map(Device::Gpu) else { return Ok(()) };
    const ROWS: usize = GROUPS + 10;
    const N: usize = 5;
    let (x, data) = wholes(&[ROWS, N], 0, device)?;
    let (dy, upstream) = wholes(&[ROWS, N], 5, device)?;
    let x = x.tracked();
    let y = x.softmax(1)?;
    let dx = read(y.backward_from(&dy)?.of(&x)?);
    let y = read(&y);
    for at in (0..ROWS).map(|row| row * N..(row + 1) * N) {
        let exp = |i: usize| (data[i] as f64).exp();
        let sum: f64 = at.clone().map(exp).sum();
        let dot: f64 = at.clone().map(|i| exp(i) / sum * upstream[i] as f64).sum();
        for i in at {
            let want = exp(i) / sum;
            assert!((y[i] as f64 - want).abs() <= 1e-6 * want, "{i}: {} is not {want}", y[i]);
            let want = want * (upstream[i] as f64 - dot);
            assert!((dx[i] as f64 - want).abs() <= 1e-6, "{i}: {} is not {want}", dx[i]);
        }
    }
    Ok(())
}

/// Each entry of a batch is a workgroup, for one row as for a tile.
#[test]
fn many_entries_of_a_batch() -> Result<()> {
    let Some(device) = &shared().map(Device::Gpu) else { return Ok(()) };
    const ENTRIES: usize = GROUPS + 10;
    for [m, k, n] in [[1, 2, 3], [9, 1, 2]] {
        let (a, left) = wholes(&[ENTRIES, m, k], 0, device)?;
        let (b, right) = wholes(&[ENTRIES, k, n], 3, device)?;
        let (dy, upstream) = wholes(&[ENTRIES, m, n], 5, device)?;
        let b = b.tracked();
        let y = a.matmul(&b)?;
        let grads = y.backward_from(&dy)?;
        let (y, db) = (read(&y), read(grads.of(&b)?));
        for e in 0..ENTRIES {
            let [a, b, dy] = [(&left, m * k), (&right, k * n), (&upstream, m * n)]
                .map(|(x, len)| &x[e * len..][..len]);
            for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
                let want: f32 = (0..k).map(|l| a[i * k + l] * b[l * n + j]).sum();
                assert_eq!(y[(e * m + i) * n + j], want, "the value of entry {e} at {i}, {j}");
            }
            for (l, j) in (0..k).flat_map(|l| (0..n).map(move |j| (l, j))) {
                let want: f32 = (0..m).map(|i| a[i * k + l] * dy[i * n + j]).sum();
                assert_eq!(db[(e * k + l) * n + j], want, "the gradient of entry {e} at {l}, {j}");
            }
        }
    }
    Ok(())
}

#[test]
fn a_thousand_dependent_launches_are_few_submissions() -> Result<()> {
    let Some(gpu) = fresh() else { return Ok(()) };
    let device = Device::Gpu(gpu.clone());
    let one = Tensor::ones(&[64], DType::F32, &device)?;
    let mut x = Tensor::zeros(&[64], DType::F32, &device)?;
    let before = gpu.work();
    for _ in 0..1000 {
        x = x.add(&one)?;
    }
    assert_eq!(read(&x), [1000.0; 64]);
    let work = gpu.work();
    assert_eq!(work.launches - before.launches, 1000);
    let submissions = work.submissions - before.submissions;
    assert!((1..=10).contains(&submissions), "{submissions} submissions");
    Ok(())
}

#[test]
fn pending_launches_wait_for_flush() -> Result<()> {
    let Some(gpu) = fresh() else { return Ok(()) };
    let x = Tensor::ones(&[64], DType::F32, &Device::Gpu(gpu.clone()))?;
    let before = gpu.work().submissions;
    x.exp()?.neg()?;
    assert_eq!(gpu.work().submissions, before);
    gpu.flush()?;
    assert_eq!(gpu.work().submissions, before + 1);
    gpu.flush()?;
    assert_eq!(gpu.work().submissions, before + 1, "nothing is no submission");
    Ok(())
}

/// A linear layer forward and backward: `[m, k]·[k, n]`.
fn layer(device: &Device, dtype: DType, [m, k, n]: [usize; 3]) -> Result<()> {
    let randn = |shape: &[usize], seed| Tensor::randn(shape, seed, dtype, device);
    let (x, w, bias) =
        (randn(&[m, k], 1)?.tracked(), randn(&[k, n], 2)?.tracked(), randn(&[n], 3)?.tracked());
    let y = linear(&x, &w, Some(&bias), Activation::Gelu)?;
    let grads = y.backward_from(&randn(&[m, n], 4)?)?;
    [&x, &w, &bias].into_iter().try_for_each(|leaf| grads.of(leaf).map(drop))
}

#[test]
fn a_linear_layer_is_few_pipelines() -> Result<()> {
    let Some(gpu) = shared() else { return Ok(()) };
    // Sizes of one kind: multiples of four, or not. For the second kind the gradient of the weight
    // is split along k.
    let kinds = [
        [[256, 200, 300], [400, 260, 520]],
        [[8192, 64, 64], [6000, 60, 52]],
        [[8192, 63, 61], [6000, 57, 50]],
    ];
    for dtype in floats(&gpu) {
        for [first, other] in kinds {
            let gpu = fresh().expect("not skipped");
            let device = Device::Gpu(gpu.clone());
            layer(&device, dtype, first)?;
            let pipelines = gpu.work().pipelines;
            assert!((3..=6).contains(&pipelines), "{dtype} {first:?}: {pipelines} pipelines");
            layer(&device, dtype, first)?;
            assert_eq!(gpu.work().pipelines, pipelines, "{dtype}: {first:?} again");
            layer(&device, dtype, other)?;
            assert_eq!(gpu.work().pipelines, pipelines, "{dtype}: {other:?} after {first:?}");
        }
    }
    Ok(())
}

/// Launches over as many parameters as can be bound, and one that decides; in place; nothing is
/// submitted, let alone read.
#[test]
fn a_step_of_the_optimiser_stays_on_the_device() -> Result<()> {
    let Some(gpu) = fresh() else { return Ok(()) };
    let device = &Device::Gpu(gpu.clone());
    let leaf = |n: usize| Ok(Tensor::ones(&[n], DType::F32, device)?.tracked());
    let mut parameters = (1..=9).map(|i| leaf(i * i * 100)).collect::<Result<Vec<_>>>()?;
    let groups: Vec<_> = parameters.iter().map(|p| (p, Group::default())).collect();
    let options = AdamWOptions { max_norm: Some(1.0), ..AdamWOptions::default() };
    let mut adamw = AdamW::new(options, &groups)?;
    let mut grads = taipan::Grads::default();
    for parameter in &parameters {
        grads.accumulate(parameter.backward_from(&parameter.exp()?.detached())?)?;
    }
    let buffers = |parameters: &[Tensor]| -> Result<Vec<taipan::wgpu::Buffer>> {
        parameters.iter().map(|p| Ok(p.wgpu_buffer()?.clone())).collect()
    };
    let before = buffers(&parameters)?;
    let start = gpu.work();
    for _ in 0..2 {
        adamw.step(0.1, &mut parameters.iter_mut().collect::<Vec<_>>(), &grads)?;
    }
    let end = gpu.work();
    // The sums of squares are bound besides gradients; the plan and two moments, besides
    // gradients and parameters.
    let buffers_of_a_launch = gpu.limits().max_storage_buffers_per_shader_stage as u64;
    let at_once = [buffers_of_a_launch - 1, (buffers_of_a_launch - 3) / 2].map(|n| n.min(16));
    let launches: u64 = at_once.iter().map(|n| 9u64.div_ceil(*n)).sum();
    assert_eq!(end.launches - start.launches, 2 * (launches + 1));
    assert_eq!(end.submissions, start.submissions);
    // Launches over the most parameters, and over the rest if there is one.
    let pipelines = |n: &u64| if 9 > *n && 9 % n > 0 { 2 } else { 1 };
    assert_eq!(end.pipelines - start.pipelines, 1 + at_once.iter().map(pipelines).sum::<u64>());
    assert!(buffers(&parameters)? == before, "in place");
    Ok(())
}
