//! Every tile gives the product, for the products of a training step. The output of this test shows
//! how good the choice of tiles is: the time of the chosen one beside those of all others.
//!
//!     cargo test --workspace --lib every_tile -- --nocapture

use std::time::{Duration, Instant};

use super::{Fused, Gemm, Tile};
use crate::check::devices;
use crate::gpu::{Gpu, GpuBuffer, GpuView};
use crate::product::{Layout, Product, Side};
use crate::spec::Spec;
use crate::{DType, Device, Result};

const OP: &str = "tiles";

/// Tokens, and the sizes `[n, k]` of the weights of a layer: in_proj, x_proj, dt_proj, out_proj.
const STEPS: [(usize, [[usize; 2]; 4]); 2] = [
    (1024, [[512, 256], [48, 512], [512, 16], [256, 512]]),
    (512, [[1536, 768], [80, 1536], [1536, 48], [768, 1536]]), // mamba-130m
];

/// Each is measured this many times, one after the other; the shortest counts.
const ROUNDS: usize = 2;

#[test]
fn every_tile_gives_the_product() -> Result<()> {
    let Some(Device::Gpu(gpu)) = devices().pop() else { return Ok(()) };
    let mut sums = [Duration::ZERO; 2];
    println!("| product | m | n | k | 64×128 | 64×64 | 64×32 | 32×32 | chosen | slower by |");
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for (m, [n, k]) in STEPS.into_iter().flat_map(|(m, sizes)| sizes.map(|size| (m, size))) {
        let (left, right) = (Layout::RowMajor, Layout::Transposed);
        let forward = Product { entries: 1, m, n, k, left, right };
        for (name, product) in [
            ("y", forward),
            ("dx", forward.gradient(Side::Left).0),
            ("dw", forward.gradient(Side::Right).0),
        ] {
            let (chosen, times) = times_of(&gpu, product, name == "dw")?;
            let best = *times.iter().min().expect("there are tiles");
            sums = [sums[0] + times[chosen], sums[1] + best];
            let Product { m, n, k, .. } = product;
            let slower = slower_by(times[chosen], best);
            let [a, b, c, d] = times.map(|time| format!("{:.2}", time.as_secs_f64() * 1e3));
            let [rows, columns] = Tile::BLOCKS[chosen].size();
            println!(
                "| {name} | {m} | {n} | {k} | {a} | {b} | {c} | {d} | {rows}×{columns} | {slower} |"
            );
        }
    }
    println!("All together, what is chosen is slower by {}", slower_by(sums[0], sums[1]));
    Ok(())
}

fn slower_by(time: Duration, best: Duration) -> String {
    format!("{:.0} %", (time.as_secs_f64() / best.as_secs_f64() - 1.0) * 100.0)
}

/// Which of the tiles is chosen, and the time of each.
fn times_of(gpu: &Gpu, product: Product, split_k: bool) -> Result<(usize, [Duration; 4])> {
    let Product { m, n, k, .. } = product;
    let [a, b] = [(m * k, 7), (k * n, 5)].map(|(len, modulus)| integers(len, modulus));
    let upload = |shape: [usize; 2], values: &[f32]| -> Result<(GpuBuffer, Spec)> {
        let spec = Spec::new(OP, &shape, DType::F32)?;
        Ok((gpu.upload(OP, bytemuck::cast_slice(values))?, spec))
    };
    let tensors = [upload([m, k], &a)?, upload([k, n], &b)?, upload([m, n], &vec![0.0; m * n])?];
    let [left, right, y] = tensors.each_ref().map(|(data, spec)| GpuView { spec, data });
    let gemm = Gemm { product, left: &left, right: &right, fused: Fused::NONE, split_k };
    let chosen = Tile::BLOCKS.iter().position(|&tile| tile == gemm.tile(gpu));
    let mut times = [Duration::MAX; 4];
    for round in 0..=ROUNDS {
        for (tile, time) in Tile::BLOCKS.into_iter().zip(&mut times) {
            gpu.fill(OP, &tensors[2].0, f32::NAN.to_bits())?;
            gpu.synchronize()?;
            let start = Instant::now();
            gemm.store_by(tile, OP, gpu, &y)?;
            gpu.synchronize()?;
            // Kernels are compiled in the first round.
            match round {
                0 => check(product, [&a, &b], &tensors[2].0)?,
                _ => *time = start.elapsed().min(*time),
            }
        }
    }
    Ok((chosen.expect("no product has few rows"), times))
}

/// Small integers: their sums are exact in any order.
fn integers(len: usize, modulus: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * i + i / 3) % modulus) as f32 - 2.0).collect()
}

/// Compare some hundred elements with sums of their own, the last of all among them.
fn check(product: Product, [a, b]: [&[f32]; 2], y: &GpuBuffer) -> Result<()> {
    let Product { m, n, k, left, right, .. } = product;
    let at = |layout, values: &[f32], [row, column]: [usize; 2], [rows, columns]: [usize; 2]| {
        values[match layout {
            Layout::RowMajor => row * columns + column,
            Layout::Transposed => column * rows + row,
        }]
    };
    let mut found = vec![0f32; m * n];
    pollster::block_on(y.read(OP, bytemuck::cast_slice_mut(&mut found)))?;
    for index in (0..m * n).rev().step_by(m * n / 512 + 1) {
        let (i, j) = (index / n, index % n);
        let sum: f32 =
            (0..k).map(|p| at(left, a, [i, p], [m, k]) * at(right, b, [p, j], [k, n])).sum();
        assert_eq!(found[index], sum, "{product:?}, element [{i}, {j}]");
    }
    Ok(())
}
