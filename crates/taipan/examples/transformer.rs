//! A character-level transformer, with attention from matrix products and softmax: it learns to
//! write the sentences of a small grammar; on the CPU, or with the argument `gpu` on a GPU.

use taipan::nn::{Embedding, Initializer, Linear, RmsNorm};
use taipan::optim::{AdamW, AdamWOptions};
use taipan::{Activation, DType, Device, Result, Tensor, cross_entropy, no_grad};

const WIDTH: usize = 64;
const HEADS: usize = 4;
const LENGTH: usize = 48;
const BATCH: usize = 16;
const STEPS: usize = 300;
const LETTERS: &[u8] = b" abcdefghijklmnopqrstuvwxyz";

struct Layer {
    norms: [RmsNorm; 2],
    qkv: Linear,
    out: Linear,
    mlp: [Linear; 2],
}
taipan::module!(Layer { norms, qkv, out, mlp });

struct Transformer {
    letters: Embedding,
    places: Embedding,
    layers: Vec<Layer>,
    norm: RmsNorm,
    head: Linear,
    mask: Tensor,
}
taipan::module!(Transformer { letters, places, layers, norm, head; mask });

impl Layer {
    fn new(init: &mut Initializer) -> Result<Layer> {
        Ok(Layer {
            norms: [RmsNorm::new(WIDTH, init)?, RmsNorm::new(WIDTH, init)?],
            qkv: Linear::without_bias(WIDTH, 3 * WIDTH, init)?,
            out: Linear::without_bias(WIDTH, WIDTH, init)?,
            mlp: [Linear::new(WIDTH, 4 * WIDTH, init)?, Linear::new(4 * WIDTH, WIDTH, init)?],
        })
    }

    /// `x`, `[b, l, WIDTH]`, to the same; `mask`, `[l, l]`, is −∞ for keys that come later.
    fn forward(&self, x: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let (b, l) = (x.shape()[0], x.shape()[1]);
        let qkv = self.qkv.forward(&self.norms[0].forward(x)?)?;
        let qkv = qkv.reshape(&[b, l, 3 * HEADS, WIDTH / HEADS])?.transpose(1, 2)?;
        let heads = qkv.split(1, &[HEADS; 3])?; // q, k, v: [b, HEADS, l, WIDTH / HEADS] each
        let scores = heads[0].matmul(&heads[1].transpose(2, 3)?)?; // [b, HEADS, l, l]
        let scores = scores.scale((HEADS as f64 / WIDTH as f64).sqrt())?.add(mask)?;
        let mixed = scores.softmax(3)?.matmul(&heads[2])?.transpose(1, 2)?;
        let x = x.add(&self.out.forward(&mixed.reshape(&[b, l, WIDTH])?)?)?;
        let hidden = self.mlp[0].activated(&self.norms[1].forward(&x)?, Activation::Gelu)?;
        x.add(&self.mlp[1].forward(&hidden)?)
    }
}

impl Transformer {
    fn new(device: &Device) -> Result<Transformer> {
        let init = &mut Initializer::new(1, DType::F32, device);
        let later = |i| if i % LENGTH > i / LENGTH { f32::NEG_INFINITY } else { 0.0 };
        let mask: Vec<f32> = (0..LENGTH * LENGTH).map(later).collect();
        Ok(Transformer {
            letters: Embedding::new(LETTERS.len(), WIDTH, init)?,
            places: Embedding::new(LENGTH, WIDTH, init)?,
            layers: vec![Layer::new(init)?, Layer::new(init)?],
            norm: RmsNorm::new(WIDTH, init)?,
            head: Linear::without_bias(WIDTH, LETTERS.len(), init)?,
            mask: Tensor::new(&mask, &[LENGTH, LENGTH], device)?,
        })
    }

    /// Letters `[b, LENGTH]` to logits of the letter after each, `[b, LENGTH, LETTERS.len()]`.
    fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        let places = Tensor::arange(0, LENGTH as i64, DType::U32, ids.device())?;
        let mut x = self.letters.forward(ids)?.add(&self.places.forward(&places)?)?;
        for layer in &self.layers {
            x = layer.forward(&x, &self.mask)?;
        }
        self.head.forward(&self.norm.forward(&x)?)
    }
}

/// So many words of sentences like `the cat sees a bird`, as letters.
fn text(count: usize) -> Vec<u32> {
    let words = [&["the ", "a "][..], &["cat ", "bird ", "child "], &["sees ", "hears "]];
    let (mut seed, mut text) = (1u64, String::new());
    for place in [0, 1, 2, 0, 1].into_iter().cycle().take(count) {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        text += words[place][(seed >> 33) as usize % words[place].len()];
    }
    let id = |letter: u8| LETTERS.iter().position(|l| *l == letter).expect("a letter") as u32;
    text.bytes().map(id).collect()
}

fn main() -> Result {
    let gpu = std::env::args().nth(1).as_deref() == Some("gpu");
    let device = if gpu { Device::gpu()? } else { Device::Cpu };
    let (mut model, text) = (Transformer::new(&device)?, text(STEPS * BATCH * LENGTH + 1));
    let mut adamw = AdamW::for_module(AdamWOptions::default(), &model, &[])?;
    for step in 1..=STEPS {
        let at = (step - 1) * BATCH * LENGTH..step * BATCH * LENGTH;
        let ids = Tensor::new(&text[at.clone()], &[BATCH, LENGTH], &device)?;
        let targets = Tensor::new(&text[at.start + 1..=at.end], &[BATCH, LENGTH], &device)?;
        let loss = cross_entropy(&model.forward(&ids)?, &targets, None)?;
        adamw.step_module(0.003, &mut model, &loss.backward()?)?;
        if step % 100 == 0 {
            println!("step {step}  loss {:.4}", loss.item()?);
        }
    }
    let mut written = text[..3].to_vec();
    while written.len() < LENGTH {
        let padded = [&written[..], &vec![0; LENGTH - written.len()]].concat();
        let logits = no_grad(|| model.forward(&Tensor::new(&padded, &[1, LENGTH], &device)?))?;
        written.push(logits.argmax(2)?.read_blocking::<u32>()?[written.len() - 1]);
    }
    println!("{}", written.iter().map(|id| LETTERS[*id as usize] as char).collect::<String>());
    Ok(())
}
