//! Causal depthwise convolution: whole, in pieces, and of several texts in a row.

use taipan::{Activation, CausalConv1d, DType, Result, Tensor, causal_conv1d, concat};

use crate::harness::naive::Conv;
use crate::harness::{Array, Case, Input, Values, array, check, devices, input, input_of, tensor};

/// A convolution: its sizes, what is there, and where texts start.
#[derive(Clone, Debug)]
struct Layer {
    sizes: [usize; 4], // b, l, d, k
    bias: bool,
    window: bool,
    starts: Option<Vec<u32>>,
    activation: Activation,
}

impl Layer {
    /// With bias, window and silu, as Mamba has it.
    fn full(b: usize, l: usize, d: usize, k: usize) -> Layer {
        let activation = Activation::Silu;
        Layer { sizes: [b, l, d, k], bias: true, window: true, starts: None, activation }
    }

    fn plain(b: usize, l: usize, d: usize, k: usize) -> Layer {
        let activation = Activation::None;
        Layer { bias: false, window: false, activation, ..Layer::full(b, l, d, k) }
    }

    fn starting_at(self, times: &[(usize, usize)]) -> Layer {
        let [b, l, ..] = self.sizes;
        let mut starts = vec![0; b * l];
        times.iter().for_each(|&(b, t)| starts[b * l + t] = t as u32 + 1);
        Layer { starts: Some(starts), ..self }
    }

    fn inputs(&self) -> Vec<Input> {
        let [b, l, d, k] = self.sizes;
        let mut inputs = vec![input_of(&[b, l, d], Values::Between(-2.0, 2.0)), input(&[d, k])];
        inputs.extend(self.bias.then(|| input(&[d])));
        inputs.extend(self.window.then(|| input_of(&[b, k - 1, d], Values::Between(-2.0, 2.0))));
        inputs
    }

    /// Both results, along time.
    fn call(&self, t: &[Tensor]) -> Result<Tensor> {
        let [b, l, ..] = self.sizes;
        let starts = self.starts.as_ref().map(|starts| Tensor::new(starts, &[b, l], t[0].device()));
        let starts = starts.transpose()?;
        let (y, next) = causal_conv1d(&CausalConv1d {
            bias: self.bias.then(|| &t[2]),
            window: self.window.then(|| &t[t.len() - 1]),
            starts: starts.as_ref(),
            activation: self.activation,
            ..CausalConv1d::new(&t[0], &t[1])
        })?;
        concat(&[&y, &next], 1)
    }

    fn reference(&self, i: &[Array]) -> Array {
        Conv {
            x: &i[0],
            weight: &i[1],
            bias: self.bias.then(|| &i[2]),
            window: self.window.then(|| &i[i.len() - 1]),
            starts: self.starts.as_deref(),
            activation: self.activation,
        }
        .eval()
    }

    fn check(self) {
        let (call, terms) = (self.clone(), 2 * self.sizes[3] + 1);
        let case = Case::new(
            format!("{self:?}"),
            self.inputs(),
            move |t| call.call(t),
            move |i: &[Array]| self.reference(i),
        );
        check(&case.cancelling(terms));
    }
}

#[test]
fn every_activation() {
    for &activation in Activation::ALL {
        // A kink would spoil the finite differences of many sums.
        let l = match activation {
            Activation::Relu | Activation::LeakyRelu(_) => 3,
            _ => 9,
        };
        Layer { activation, ..Layer::full(2, l, 3, 4) }.check();
    }
}

#[test]
fn everything_is_optional() {
    for (bias, window, starts) in
        [(false, true, false), (true, false, true), (false, false, true), (false, true, true)]
    {
        let layer = Layer { bias, window, ..Layer::full(2, 7, 3, 4) };
        if starts { layer.starting_at(&[(0, 2), (1, 0), (1, 6)]) } else { layer }.check();
    }
}

/// Without inputs, with fewer than the window has, without channels or entries, with one tap.
#[test]
fn every_size() {
    for [b, l, d, k] in [
        [0, 3, 2, 4],
        [2, 0, 3, 4],
        [2, 3, 0, 4],
        [0, 0, 0, 1],
        [1, 1, 1, 1],
        [2, 0, 1, 1],
        [2, 1, 3, 4],
        [1, 2, 3, 4],
        [2, 3, 2, 4],
        [1, 4, 2, 4],
        [2, 5, 3, 1],
        [2, 5, 3, 2],
        [1, 5, 2, 3],
        [1, 3, 2, 5],
        [1, 6, 2, 9],
    ] {
        Layer::full(b, l, d, k).check();
        Layer::plain(b, l, d, k).check();
    }
}

/// More entries than could be counted in a lifetime, with nothing in them.
#[test]
fn many_entries_of_nothing() -> Result<()> {
    for device in devices() {
        for [l, d, k] in [[0, 0, 1], [0, 0, 4], [3, 0, 4], [0, 2, 1]] {
            let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &device);
            let (x, weight) = (zeros(&[1 << 40, l, d])?.tracked(), zeros(&[d, k])?.tracked());
            let (y, next) = causal_conv1d(&CausalConv1d::new(&x, &weight))?;
            assert_eq!(next.shape(), [1 << 40, k - 1, d]);
            let grads = y.backward_from(&y.detached())?;
            assert_eq!(array(grads.of(&weight)?).data, vec![0.0; d * k]);
        }
    }
    Ok(())
}

/// The borders of blocks of time and of strips of channels, with texts that start beside them.
#[test]
fn borders_of_blocks() {
    for (l, d) in [(63, 3), (64, 5), (65, 2), (67, 3), (129, 2), (5, 2047), (3, 2048), (5, 2049)] {
        Layer::full(1, l, d, 4).check();
    }
    Layer::full(2, 130, 2, 4)
        .starting_at(&[(0, 0), (0, 62), (0, 63), (0, 64), (1, 65), (1, 66), (1, 128), (1, 129)])
        .check();
    Layer::full(1, 70, 2, 70).starting_at(&[(0, 3)]).check();
    Layer::full(1, 145, 1, 71).check();
}

/// More blocks than one stage of the GPU's sums takes.
#[test]
fn many_blocks() {
    Layer::full(70, 3, 2, 4).check();
}

#[test]
fn texts_start_anywhere() {
    for starts in [
        &[(0, 0)][..],
        &[(0, 1)],
        &[(0, 5), (1, 4)],
        &[(0, 2), (0, 3), (0, 4), (1, 3)],
        &[(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (0, 5)],
    ] {
        Layer::full(2, 6, 2, 4).starting_at(starts).check();
        Layer { window: false, ..Layer::full(2, 6, 2, 3) }.starting_at(starts).check();
    }
    // Before the end of a short piece, so that the old window is not seen any more.
    Layer::full(1, 2, 3, 6).starting_at(&[(0, 1)]).check();
    Layer::full(1, 2, 3, 6).starting_at(&[(0, 0)]).check();
}

/// The values and gradients of everything, for comparisons.
fn outcome(leaves: &[&Tensor], y: &Tensor, dy: &Array) -> Result<Vec<Array>> {
    let grads = y.backward_from(&tensor(dy, y.dtype(), y.device()))?;
    let grads = leaves.iter().map(|leaf| Ok(array(grads.of(leaf)?)));
    [Ok(array(y))].into_iter().chain(grads).collect()
}

fn expect_close(what: &str, got: &[Array], want: &[Array]) {
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert_eq!(got.shape, want.shape, "{what}: the shape of {i}");
        for (got, want) in got.data.iter().zip(&want.data) {
            assert!((got - want).abs() <= 4e-6, "{what}: {got} of {i}, want {want}");
        }
    }
}

/// A text in two pieces, cut anywhere, is the text in one: values, and gradients of everything.
#[test]
fn pieces_are_the_whole() -> Result<()> {
    const L: usize = 9;
    for device in devices() {
        let randn = |shape: &[usize], seed| Tensor::randn(shape, seed, DType::F32, &device);
        for (k, starts) in [(4, None), (4, Some([0u32, 0, 1, 0, 0, 0, 9, 0, 0])), (1, None)] {
            let [x, window] = [(L, 1), (k - 1, 2)].map(|(l, seed)| randn(&[1, l, 3], seed));
            let (x, window) = (x?.tracked(), window?.tracked());
            let weight = randn(&[3, k], 3)?.scale(0.5)?.detached().tracked();
            let bias = randn(&[3], 4)?.tracked();
            let starts = starts.map(|starts| Tensor::new(&starts, &[1, L], &device)).transpose()?;
            let leaves = [&x, &window, &weight, &bias];
            let dy = array(&randn(&[1, L + k - 1, 3], 5)?);
            let run = |x: &Tensor, window: &Tensor, starts: Option<&Tensor>| {
                causal_conv1d(&CausalConv1d {
                    bias: Some(&bias),
                    window: Some(window),
                    starts,
                    activation: Activation::Silu,
                    ..CausalConv1d::new(x, &weight)
                })
            };
            let (y, next) = run(&x, &window, starts.as_ref())?;
            let want = outcome(&leaves, &concat(&[&y, &next], 1)?, &dy)?;
            for cut in 0..=L {
                let part = |range: std::ops::Range<usize>, window: &Tensor| {
                    let starts = starts.as_ref().map(|starts| starts.slice(1, range.clone()));
                    run(&x.slice(1, range.clone())?, window, starts.transpose()?.as_ref())
                };
                let (first, middle) = part(0..cut, &window)?;
                let (second, last) = part(cut..L, &middle)?;
                let got = outcome(&leaves, &concat(&[&first, &second, &last], 1)?, &dy)?;
                expect_close(&format!("k = {k}, cut at {cut} on {}", device.name()), &got, &want);
            }
        }
    }
    Ok(())
}

/// Texts in one row are the texts alone: values, and gradients of everything.
#[test]
fn packed_texts_are_the_texts() -> Result<()> {
    const K: usize = 4;
    const LENGTHS: [usize; 5] = [2, 1, 5, 3, 4];
    const L: usize = 15;
    for device in devices() {
        let randn = |shape: &[usize], seed| Tensor::randn(shape, seed, DType::F32, &device);
        let x = randn(&[1, L, 3], 1)?.tracked();
        let window = randn(&[1, K - 1, 3], 2)?.tracked();
        let weight = randn(&[3, K], 3)?.scale(0.5)?.detached().tracked();
        let bias = randn(&[3], 4)?.tracked();
        let leaves = [&x, &weight, &bias];
        let dy = array(&randn(&[1, L + K - 1, 3], 5)?);
        let conv = CausalConv1d {
            bias: Some(&bias),
            activation: Activation::Silu,
            ..CausalConv1d::new(&x, &weight)
        };
        let (mut starts, mut pieces, mut at) = ([0u32; L], Vec::new(), 0);
        for length in LENGTHS {
            starts[at] = 1;
            let text = x.slice(1, at..at + length)?;
            pieces.push(causal_conv1d(&CausalConv1d { x: &text, ..conv })?);
            at += length;
        }
        let last = &pieces[LENGTHS.len() - 1].1;
        let parts: Vec<&Tensor> = pieces.iter().map(|(y, _)| y).chain([last]).collect();
        let want = outcome(&leaves, &concat(&parts, 1)?, &dy)?;

        let starts = Tensor::new(&starts, &[1, L], &device)?;
        let packed = CausalConv1d { starts: Some(&starts), window: Some(&window), ..conv };
        let (y, next) = causal_conv1d(&packed)?;
        let both = [&x, &weight, &bias, &window];
        let mut got = outcome(&both, &concat(&[&y, &next], 1)?, &dy)?;
        let dwindow = got.pop().expect("the gradient of the window");
        assert!(dwindow.data.iter().all(|&dw| dw == 0.0), "the first text sees the window");
        expect_close(device.name(), &got, &want);
    }
    Ok(())
}

/// What is not seen is not computed with: NaN and infinities of another text do not spread.
#[test]
fn texts_do_not_spoil_each_other() -> Result<()> {
    for device in devices() {
        let x = Tensor::new(&[1f32, f32::NAN, 2.0, 3.0], &[1, 4, 1], &device)?;
        let window = Tensor::full(&[1, 2, 1], f64::INFINITY, DType::F32, &device)?;
        let weight = Tensor::new(&[0f32, 0.5, 1.0], &[1, 3], &device)?.tracked();
        let starts = Tensor::new(&[1u32, 0, 1, 0], &[1, 4], &device)?;
        let (y, next) = causal_conv1d(&CausalConv1d {
            starts: Some(&starts),
            window: Some(&window),
            ..CausalConv1d::new(&x, &weight)
        })?;
        let (got, name) = (y.read_blocking::<f32>()?, device.name());
        assert!(got[0] == 1.0 && got[1].is_nan() && got[2..] == [2.0, 4.0], "{got:?} on {name}");
        assert_eq!(next.read_blocking::<f32>()?, [2.0, 3.0], "on {name}");
        let dy = Tensor::new(&[1f32, 0.0, 1.0, 1.0], &[1, 4, 1], &device)?;
        let dw = y.backward_from(&dy)?.of(&weight)?.read_blocking::<f32>()?;
        assert!(dw[..2] == [0.0, 2.0] && dw[2].is_nan(), "{dw:?} on {name}");
    }
    Ok(())
}
