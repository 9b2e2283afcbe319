//! Causal depthwise convolution: in one call, in several, and of packed sequences.

use taipan::check::cases::conv1d::Layer;
use taipan::check::{Array, array, check, devices, tensor};
use taipan::{Activation, CausalConv1d, DType, Result, Tensor, causal_conv1d, concat};

#[test]
fn every_activation() {
    for &activation in Activation::ALL {
        // With many sums, finite differences would hit the kink.
        let l = match activation {
            Activation::Relu | Activation::LeakyRelu(_) => 3,
            _ => 9,
        };
        check(&Layer { activation, ..Layer::full(2, l, 3, 4) }.case());
    }
}

#[test]
fn everything_is_optional() {
    for (bias, conv_state, seq_start) in
        [(false, true, false), (true, false, true), (false, false, true), (false, true, true)]
    {
        let layer = Layer { bias, conv_state, ..Layer::full(2, 7, 3, 4) };
        let starting = |layer: Layer| layer.starting_at(&[(0, 2), (1, 0), (1, 6)]);
        check(&if seq_start { starting(layer) } else { layer }.case());
    }
}

/// Without inputs, with fewer than conv_state has, without channels or rows, with one tap.
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
        check(&Layer::full(b, l, d, k).case());
        check(&Layer::plain(b, l, d, k).case());
    }
}

/// 2⁴⁰ empty rows take no time; where addresses have 32 bits, 2⁸.
#[test]
fn many_empty_rows() -> Result<()> {
    const ROWS: usize = 1 << (usize::BITS - 24);
    for device in devices() {
        for [l, d, k] in [[0, 0, 1], [0, 0, 4], [3, 0, 4], [0, 2, 1]] {
            let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &device);
            let (x, weight) = (zeros(&[ROWS, l, d])?.tracked(), zeros(&[d, k])?.tracked());
            let (y, next) = causal_conv1d(&CausalConv1d::new(&x, &weight))?;
            assert_eq!(next.shape(), [ROWS, k - 1, d]);
            let grads = y.backward_from(&y.detached())?;
            assert_eq!(array(grads.of(&weight)?).data, vec![0.0; d * k]);
        }
    }
    Ok(())
}

/// The bounds of blocks of time and of strips of channels, with sequences that start next to them.
#[test]
fn bounds_of_blocks() {
    for (l, d) in [(63, 3), (64, 5), (65, 2), (67, 3), (129, 2), (5, 2047), (3, 2048), (5, 2049)] {
        check(&Layer::full(1, l, d, 4).case());
    }
    let starts = [(0, 0), (0, 62), (0, 63), (0, 64), (1, 65), (1, 66), (1, 128), (1, 129)];
    check(&Layer::full(2, 130, 2, 4).starting_at(&starts).case());
    check(&Layer::full(1, 70, 2, 70).starting_at(&[(0, 3)]).case());
    check(&Layer::full(1, 145, 1, 71).case());
}

/// More blocks than one pass of the GPU's reduction takes.
#[test]
fn many_blocks() {
    check(&Layer::full(70, 3, 2, 4).case());
}

#[test]
fn sequences_start_anywhere() {
    for seq_start in [
        &[(0, 0)][..],
        &[(0, 1)],
        &[(0, 5), (1, 4)],
        &[(0, 2), (0, 3), (0, 4), (1, 3)],
        &[(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (0, 5)],
    ] {
        check(&Layer::full(2, 6, 2, 4).starting_at(seq_start).case());
        check(
            &Layer { conv_state: false, ..Layer::full(2, 6, 2, 3) }.starting_at(seq_start).case(),
        );
    }
    // Before the end of a short row, whose next conv_state must not have inputs of the old one.
    check(&Layer::full(1, 2, 3, 6).starting_at(&[(0, 1)]).case());
    check(&Layer::full(1, 2, 3, 6).starting_at(&[(0, 0)]).case());
}

/// The values, and the gradients of the leaves.
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

/// Two calls, the second with the conv_state of the first, are one call: values and gradients.
#[test]
fn a_convolution_can_be_split_at_any_input() -> Result<()> {
    const L: usize = 9;
    for device in devices() {
        let randn = |shape: &[usize], seed| Tensor::randn(shape, seed, DType::F32, &device);
        for (k, seq_start) in [(4, None), (4, Some([0u32, 0, 1, 0, 0, 0, 9, 0, 0])), (1, None)] {
            let [x, conv_state] = [(L, 1), (k - 1, 2)].map(|(l, seed)| randn(&[1, l, 3], seed));
            let (x, conv_state) = (x?.tracked(), conv_state?.tracked());
            let weight = randn(&[3, k], 3)?.scale(0.5)?.detached().tracked();
            let bias = randn(&[3], 4)?.tracked();
            let seq_start =
                seq_start.map(|seq_start| Tensor::new(&seq_start, &[1, L], &device)).transpose()?;
            let leaves = [&x, &conv_state, &weight, &bias];
            let dy = array(&randn(&[1, L + k - 1, 3], 5)?);
            let run = |x: &Tensor, conv_state: &Tensor, seq_start: Option<&Tensor>| {
                causal_conv1d(&CausalConv1d {
                    bias: Some(&bias),
                    conv_state: Some(conv_state),
                    seq_start,
                    activation: Activation::Silu,
                    ..CausalConv1d::new(x, &weight)
                })
            };
            let (y, next) = run(&x, &conv_state, seq_start.as_ref())?;
            let want = outcome(&leaves, &concat(&[&y, &next], 1)?, &dy)?;
            for cut in 0..=L {
                let call = |range: std::ops::Range<usize>, conv_state: &Tensor| {
                    let seq_start =
                        seq_start.as_ref().map(|seq_start| seq_start.slice(1, range.clone()));
                    run(&x.slice(1, range.clone())?, conv_state, seq_start.transpose()?.as_ref())
                };
                let (first, middle) = call(0..cut, &conv_state)?;
                let (second, last) = call(cut..L, &middle)?;
                let got = outcome(&leaves, &concat(&[&first, &second, &last], 1)?, &dy)?;
                expect_close(&format!("k = {k}, cut at {cut} on {}", device.name()), &got, &want);
            }
        }
    }
    Ok(())
}

/// Packed sequences have the values and gradients of separate ones.
#[test]
fn packed_sequences_are_independent() -> Result<()> {
    const K: usize = 4;
    const LENGTHS: [usize; 5] = [2, 1, 5, 3, 4];
    const L: usize = 15;
    for device in devices() {
        let randn = |shape: &[usize], seed| Tensor::randn(shape, seed, DType::F32, &device);
        let x = randn(&[1, L, 3], 1)?.tracked();
        let conv_state = randn(&[1, K - 1, 3], 2)?.tracked();
        let weight = randn(&[3, K], 3)?.scale(0.5)?.detached().tracked();
        let bias = randn(&[3], 4)?.tracked();
        let leaves = [&x, &weight, &bias];
        let dy = array(&randn(&[1, L + K - 1, 3], 5)?);
        let conv = CausalConv1d {
            bias: Some(&bias),
            activation: Activation::Silu,
            ..CausalConv1d::new(&x, &weight)
        };
        let (mut seq_start, mut separate, mut at) = ([0u32; L], Vec::new(), 0);
        for length in LENGTHS {
            seq_start[at] = 1;
            let sequence = x.slice(1, at..at + length)?;
            separate.push(causal_conv1d(&CausalConv1d { x: &sequence, ..conv })?);
            at += length;
        }
        let last = &separate[LENGTHS.len() - 1].1;
        let results: Vec<&Tensor> = separate.iter().map(|(y, _)| y).chain([last]).collect();
        let want = outcome(&leaves, &concat(&results, 1)?, &dy)?;

        let seq_start = Tensor::new(&seq_start, &[1, L], &device)?;
        let packed =
            CausalConv1d { seq_start: Some(&seq_start), conv_state: Some(&conv_state), ..conv };
        let (y, next) = causal_conv1d(&packed)?;
        let both = [&x, &weight, &bias, &conv_state];
        let mut got = outcome(&both, &concat(&[&y, &next], 1)?, &dy)?;
        let dconv_state = got.pop().expect("the gradient of conv_state");
        assert!(dconv_state.data.iter().all(|&dx| dx == 0.0), "the first sequence uses conv_state");
        expect_close(device.name(), &got, &want);
    }
    Ok(())
}

/// NaN and infinities of one sequence do not spread to another.
#[test]
fn nan_stays_in_its_sequence() -> Result<()> {
    for device in devices() {
        let x = Tensor::new(&[1f32, f32::NAN, 2.0, 3.0], &[1, 4, 1], &device)?;
        let conv_state = Tensor::full(&[1, 2, 1], f64::INFINITY, DType::F32, &device)?;
        let weight = Tensor::new(&[0f32, 0.5, 1.0], &[1, 3], &device)?.tracked();
        let seq_start = Tensor::new(&[1u32, 0, 1, 0], &[1, 4], &device)?;
        let (y, next) = causal_conv1d(&CausalConv1d {
            seq_start: Some(&seq_start),
            conv_state: Some(&conv_state),
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
