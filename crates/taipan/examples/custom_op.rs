//! A user-defined operation on the CPU and on a GPU: rotary position embeddings (RoPE, Su et al.
//! 2021), which turn pairs of a head's channels by an angle that grows with the position.

use taipan::{
    BackwardReads, CustomOp, DType, Device, Number, Result, SavedTensors, Tensor, custom,
};

/// Pair `(j, j + d/2)` of `x` `[…, l, h, d]` at position `t` is turned by `turn·t·theta^(−2j/d)`.
pub struct Rope {
    /// The base of the angles.
    pub theta: f64,
    /// 1, or −1 to turn back.
    pub turn: f64,
}

impl CustomOp for Rope {
    const NAME: &'static str = "rope";
    const INPUTS: &'static [&'static str] = &["x"];
    const BACKWARD_READS: BackwardReads = BackwardReads::Nothing;
    const WGSL: &'static str = "
        fn value(i: u32) -> f32 {
            let half = size(2u) / 2u;
            let channel = i % size(2u);
            let j = channel % half;
            let position = i / (size(1u) * size(2u)) % size(0u);
            let frequency = pow(argument(0u), -2.0 * f32(j) / f32(size(2u)));
            let angle = argument(1u) * f32(position) * frequency;
            let first = f32(x[i - channel + j]);
            let second = f32(x[i - channel + j + half]);
            if channel < half {
                return first * cos(angle) - second * sin(angle);
            }
            return second * cos(angle) + first * sin(angle);
        }";

    fn shape(&self, inputs: &[&[usize]]) -> std::result::Result<Vec<usize>, String> {
        match inputs[0] {
            [.., _, _, d] if d % 2 == 0 => Ok(inputs[0].to_vec()),
            shape => Err(format!("x is {shape:?}, expected […, l, h, d] with an even d")),
        }
    }

    fn sizes(&self, inputs: &[&[usize]]) -> Vec<usize> {
        inputs[0][inputs[0].len() - 3..].to_vec() // [l, h, d]
    }

    fn arguments(&self) -> Vec<f64> {
        vec![self.theta, self.turn]
    }

    fn cpu<A: Number>(&self, inputs: &[&[A]], sizes: &[usize], first: usize, y: &mut [A]) {
        let &[l, h, d] = sizes else { unreachable!("three sizes") };
        for (i, y) in (first..).zip(y) {
            let (channel, position) = (i % d, i / (h * d) % l);
            let j = channel % (d / 2);
            let frequency = self.theta.powf(-2.0 * j as f64 / d as f64);
            let (sin, cos) = (self.turn * position as f64 * frequency).sin_cos();
            let (sin, cos) = (A::from_f64(sin), A::from_f64(cos));
            let pair = i - channel + j;
            let (first, second) = (inputs[0][pair], inputs[0][pair + d / 2]);
            *y = if channel < d / 2 {
                first * cos - second * sin
            } else {
                second * cos + first * sin
            };
        }
    }

    /// The inverse of a rotation is its transpose: gradients are turned back.
    fn backward(&self, _: &SavedTensors, dy: &Tensor) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(custom(Rope { theta: self.theta, turn: -self.turn }, &[dy])?)])
    }
}

#[cfg(not(target_family = "wasm"))] // where nothing may wait for a device
fn main() -> Result<()> {
    let shape = [2, 128, 4, 64];
    let on = |device: &Device| -> Result<[Vec<f32>; 2]> {
        let x = Tensor::randn(&shape, 1, DType::F32, device)?.tracked();
        let dy = Tensor::randn(&shape, 2, DType::F32, device)?;
        let y = custom(Rope { theta: 10_000.0, turn: 1.0 }, &[&x])?;
        let grads = y.backward_from(&dy)?;
        Ok([y.read_blocking()?, grads.of(&x)?.read_blocking()?])
    };
    let cpu = on(&Device::Cpu)?;
    println!("rope of {shape:?} on the CPU: {:?} …", &cpu[0][64..68]);
    let Ok(device) = Device::gpu() else {
        println!("no GPU to compare with");
        return Ok(());
    };
    let gpu = on(&device)?;
    for (name, cpu, gpu) in [("y", &cpu[0], &gpu[0]), ("dx", &cpu[1], &gpu[1])] {
        let difference = cpu.iter().zip(gpu).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        println!("{name}: at most {difference:.1e} apart from {}", device.describe());
        assert!(difference < 1e-3, "{name} differs");
    }
    Ok(())
}
