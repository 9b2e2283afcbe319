//! The block of Mamba-3 against its recurrence, step by step.

use std::f64::consts::TAU;

use taipan::check::{Array, Case, Input, Values, array, check, devices, input, input_of};
use taipan::nn::{
    BlockParameter, DecayActivation, Initializer, Mamba3Block, Mamba3Options, Mamba3State,
};
use taipan::{DType, Device, Error, Result, Tensor, concat};

use crate::mamba3::{Block, Inputs, Outputs};

const D: usize = 5;
const P: usize = 3;

fn siso() -> Block {
    Block {
        heads: 2,
        groups: 1,
        states: 4,
        ranks: None,
        angles: 1,
        softplus: false,
        floor: 1e-4,
        out_norm: false,
        initial: false,
        seq_start: None,
    }
}

fn mimo(ranks: usize) -> Block {
    Block { ranks: Some(ranks), ..siso() }
}

fn options(form: &Block) -> Mamba3Options {
    let softplus = form.softplus;
    Mamba3Options {
        d_inner: form.heads * P,
        head_dim: P,
        groups: form.groups,
        d_state: form.states,
        ranks: form.ranks,
        angles: form.angles,
        a_activation: match softplus {
            true => DecayActivation::Softplus,
            false => DecayActivation::HeavyTail,
        },
        a_floor: form.floor,
        use_out_norm: form.out_norm,
        ..Mamba3Options::new(D)
    }
}

/// The inputs of a block, by name.
fn inputs(form: &Block, [b, l]: [usize; 2]) -> Vec<(&'static str, Input)> {
    let (h, n, r, s) = (form.heads, form.states, form.ranks.unwrap_or(1), form.angles);
    let rows = 2 * h * P + 2 * r * form.groups * n + 3 * h + s;
    let mut all = vec![
        ("u", input(&[b, l, D])),
        ("in_proj.weight", input(&[rows, D])),
        ("dt_bias", input(&[h])),
        ("B_bias", input(&[h, r, n])),
        ("C_bias", input(&[h, r, n])),
        ("B_norm.weight", input_of(&[n], Values::Between(0.5, 1.5))),
        ("C_norm.weight", input_of(&[n], Values::Between(0.5, 1.5))),
        ("D", input(&[h])),
        ("out_proj.weight", input(&[D, h * P])),
    ];
    if form.ranks.is_some() {
        all.extend(["mimo_x", "mimo_z", "mimo_o"].map(|name| (name, input(&[h, r, P]))));
    }
    if form.out_norm {
        all.push(("norm.weight", input(&[h * P])));
    }
    if form.initial {
        all.extend([
            ("turns", input_of(&[b, h, s], Values::Between(-0.5, 0.5))),
            ("ssm_state", input(&[b, h, P, n])),
            ("k", input(&[b, r, h, n])),
            ("x", input(&[b, h, P])),
        ]);
    }
    all
}

/// The result and the state, concatenated; of angles, their cosines and sines.
fn call(form: &Block, names: &[&'static str], t: &[Tensor]) -> Result<Tensor> {
    let dtype = t[0].dtype();
    let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let wide: Vec<Tensor> = t.iter().map(|tensor| tensor.cast(wide)).collect::<Result<_>>()?;
    let get = |name: &str| &wide[names.iter().position(|found| *found == name).unwrap()];
    let block = Mamba3Block::build::<Error>(&options(form), &mut |parameter: BlockParameter| {
        let tensor = get(parameter.stored);
        match parameter.rows {
            Some(rows) => tensor.slice(0, rows),
            None => Ok(tensor.clone()),
        }
    })?;
    let u = get("u");
    let start = form.seq_start.as_ref().map(|x| Tensor::new(x, &u.shape()[..2], u.device()));
    let seq_start = start.transpose()?;
    let initial = form.initial.then(|| Mamba3State {
        turns: get("turns").clone(),
        ssm_state: get("ssm_state").clone(),
        k: get("k").clone(),
        x: get("x").clone(),
    });
    let (y, state) =
        block.forward_from(u, seq_start.as_ref(), initial.as_ref(), &mut |_, y| Ok(y))?;
    let angles = state.turns.scale(TAU)?;
    let all = [y, angles.cos()?, angles.sin()?, state.ssm_state, state.k, state.x];
    let all = all.map(|x| x.reshape(&[x.len()])).into_iter().collect::<Result<Vec<_>>>()?;
    concat(&all.iter().collect::<Vec<_>>(), 0)?.cast(dtype)
}

fn joined(Outputs { y, angles, ssm_state, k, x }: Outputs) -> Array {
    let all = [y, angles.map(f64::cos), angles.map(f64::sin), ssm_state, k, x];
    let data: Vec<f64> = all.into_iter().flat_map(|array| array.data).collect();
    Array { shape: vec![data.len()], data }
}

fn check_block(form: Block, sizes: [usize; 2]) {
    let (names, inputs): (Vec<_>, Vec<_>) = inputs(&form, sizes).into_iter().unzip();
    let (reference, of) = (form.clone(), names.clone());
    let case = Case::new(
        format!("mamba-3 {sizes:?} {form:?}"),
        inputs,
        move |t| call(&form, &names, t),
        move |i| joined(reference.eval(&Inputs(of.iter().copied().zip(i).collect()))),
    );
    // Sums of states over all steps, of ranks and of channels.
    check(&case.cancelling(512));
}

#[test]
fn one_input_and_output() {
    check_block(siso(), [2, 6]);
    check_block(Block { angles: 2, groups: 2, heads: 4, ..siso() }, [1, 5]);
    check_block(Block { states: 7, angles: 2, ..siso() }, [1, 4]);
}

#[test]
fn several_inputs_and_outputs() {
    check_block(mimo(1), [1, 5]);
    check_block(mimo(2), [2, 5]);
    check_block(Block { angles: 2, groups: 2, heads: 4, ..mimo(3) }, [1, 4]);
}

#[test]
fn norms_of_the_output() {
    check_block(Block { out_norm: true, ..siso() }, [1, 5]);
    check_block(Block { out_norm: true, ..mimo(2) }, [1, 5]);
}

/// The other function of decays, and a floor that some of them are below.
#[test]
fn decays() {
    check_block(Block { softplus: true, ..siso() }, [1, 5]);
    check_block(Block { floor: 0.9, ..siso() }, [1, 5]);
}

/// Several steps, which are a scan, and one, which is not.
#[test]
fn initial_states() {
    for l in [1, 4] {
        check_block(Block { initial: true, ..siso() }, [2, l]);
        check_block(Block { initial: true, ..mimo(2) }, [1, l]);
    }
}

/// Sequences that start at the first step, in between, and at the last.
#[test]
fn packed_sequences() {
    let starts = |at: &[usize], len: usize| {
        let mut seq_start = vec![0; len];
        at.iter().for_each(|&t| seq_start[t] = 1);
        Some(seq_start)
    };
    for form in [siso(), mimo(2)] {
        let with = |initial, seq_start| Block { initial, seq_start, ..form.clone() };
        check_block(with(false, starts(&[0, 3, 4, 6, 13], 14)), [2, 7]);
        check_block(with(true, starts(&[2, 7], 14)), [2, 7]);
        check_block(with(true, starts(&[1], 2)), [2, 1]);
    }
}

/// More steps than a chunk has.
#[test]
fn long_sequences() {
    check_block(siso(), [1, 70]);
    check_block(Block { initial: true, ..mimo(3) }, [1, 23]);
}

/// In parts of several steps and of one, from state to state, with a sequence that starts in a part.
#[test]
fn streaming_gives_the_whole() -> Result<()> {
    for device in devices() {
        for ranks in [None, Some(2)] {
            let options = Mamba3Options {
                head_dim: 8,
                d_state: 8,
                angles: 2,
                ranks,
                ..Mamba3Options::new(16)
            };
            let block = Mamba3Block::new(&options, &mut Initializer::new(1, DType::F32, &device))?;
            let l = 80;
            let x = Tensor::randn(&[2, l, 16], 2, DType::F32, &device)?;
            let mut start = vec![0u32; 2 * l];
            (start[0], start[75], start[l + 9], start[l + 76]) = (1, 1, 1, 1);
            let start = Tensor::new(&start, &[2, l], &device)?;
            let (whole, last) = block.forward_from(&x, Some(&start), None, &mut |_, y| Ok(y))?;
            let mut state: Option<Mamba3State> = None;
            let mut parts = Vec::new();
            for range in [0..1, 1..10, 10..11, 11..75, 75..76, 76..77, 77..80] {
                let (x, start) = (x.slice(1, range.clone())?, start.slice(1, range)?);
                let (y, next) =
                    block.forward_from(&x, Some(&start), state.as_ref(), &mut |_, y| Ok(y))?;
                parts.push(y);
                state = Some(next);
            }
            let state = state.expect("some parts");
            let streamed = concat(&parts.iter().collect::<Vec<_>>(), 1)?;
            let pairs = [
                (&streamed, &whole),
                (&state.ssm_state, &last.ssm_state),
                (&state.k, &last.k),
                (&state.x, &last.x),
                (&state.turns, &last.turns),
            ];
            for (found, expected) in pairs.map(|(a, b)| (array(a), array(b))) {
                let largest = expected.data.iter().fold(0f64, |most, x| most.max(x.abs()));
                for (found, expected) in found.data.iter().zip(&expected.data) {
                    let (name, off) = (device.name(), (found - expected).abs());
                    assert!(off <= 2e-6 * largest, "{found} {expected} {ranks:?} on {name}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn errors() {
    let mut init = Initializer::new(1, DType::F32, &Device::Cpu);
    let mut message =
        |options: Mamba3Options| Mamba3Block::new(&options, &mut init).unwrap_err().to_string();
    let small = Mamba3Options { head_dim: 8, d_state: 8, angles: 2, ..Mamba3Options::new(16) };
    assert_eq!(
        message(Mamba3Options { head_dim: 5, ..small }),
        "mamba-3 block: 32 channels in heads of 5, expected whole heads"
    );
    assert_eq!(
        message(Mamba3Options { groups: 3, ..small }),
        "mamba-3 block: 3 groups of 4 heads, expected a divisor"
    );
    assert_eq!(
        message(Mamba3Options { angles: 5, ..small }),
        "mamba-3 block: 5 angles of 8 states, expected 1 to one for each pair"
    );
    assert_eq!(
        message(Mamba3Options { ranks: Some(33), ..small }),
        "mamba-3 block: 33 ranks, expected 1 to 32"
    );
    assert_eq!(
        message(Mamba3Options { ranks: Some(2), d_state: 9, ..small }),
        "mamba-3 block: 9 states with ranks, expected an even number"
    );
    let block = Mamba3Block::new(&small, &mut init).unwrap();
    let x = Tensor::zeros(&[1, 0, 16], DType::F32, &Device::Cpu).unwrap();
    assert_eq!(
        block.forward(&x).unwrap_err().to_string(),
        "mamba-3 block: the input has no steps, expected at least one"
    );
}
