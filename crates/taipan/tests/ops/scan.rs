//! The selective scan against the naive recurrence.

use taipan::check::cases::scan::{self as cases, bare, call, full, inputs};
use taipan::check::{Array, Random, array, check, devices, input, round, tensor};
use taipan::{DType, Device, Discretization, Result, Scan, StepSize, Tensor, selective_scan_step};

use crate::naive;

fn check_scan(sizes: [usize; 4], form: naive::Scan) {
    check(&cases::scan(sizes, form));
}

const FORMS: [(Discretization, StepSize); 4] = [
    (Discretization::Euler, StepSize::Softplus),
    (Discretization::Euler, StepSize::Plain),
    (Discretization::ZeroOrderHold, StepSize::Softplus),
    (Discretization::ZeroOrderHold, StepSize::Plain),
];

#[test]
fn with_all_optional_tensors() {
    for (discretization, step) in FORMS {
        check_scan([2, 19, 5, 3], full(discretization, step));
    }
}

#[test]
fn without_optional_tensors() {
    for (discretization, step) in FORMS {
        check_scan([2, 19, 5, 3], bare(discretization, step));
    }
}

#[test]
fn with_one_optional_tensor() {
    let none = || bare(Discretization::Euler, StepSize::Softplus);
    for form in [
        naive::Scan { d: true, ..none() },
        naive::Scan { delta_bias: true, ..none() },
        naive::Scan { z: true, ..none() },
        naive::Scan { initial_state: true, ..none() },
    ] {
        check_scan([2, 17, 3, 4], form);
    }
}

/// Lengths around multiples of the chunk, and 0.
#[test]
fn any_length() {
    for l in [0, 1, 2, 15, 16, 17, 33, 63, 64, 65, 130] {
        check_scan([1, l, 3, 2], full(Discretization::Euler, StepSize::Softplus));
    }
    for l in [0, 1, 16, 37] {
        check_scan([2, l, 2, 3], full(Discretization::ZeroOrderHold, StepSize::Softplus));
    }
}

#[test]
fn any_number_of_channels() {
    for d in [0, 1, 15, 16, 17, 31, 33, 64, 65, 100, 257] {
        check_scan([1, 18, d, 2], full(Discretization::Euler, StepSize::Softplus));
    }
}

#[test]
fn any_number_of_states() {
    for n in [1, 2, 3, 4, 5, 7, 8, 16, 17, 20, 64, 100] {
        check_scan([1, 17, 2, n], full(Discretization::Euler, StepSize::Softplus));
    }
    check_scan(
        [1, 17, 2, Scan::MAX_STATES],
        full(Discretization::ZeroOrderHold, StepSize::Softplus),
    );
}

#[test]
fn any_number_of_sequences() {
    for b in [0, 3, 70] {
        check_scan([b, 5, 3, 2], full(Discretization::Euler, StepSize::Softplus));
    }
}

/// Sequences start at the first step, at neighbouring steps, at the bounds of chunks, and nowhere.
#[test]
fn packed_sequences() {
    let seq_start = |places: &[usize], l: usize| {
        let mut seq_start = vec![0; 2 * l];
        places.iter().for_each(|&t| seq_start[t] = 1 + t as u32);
        seq_start
    };
    for (discretization, step) in FORMS {
        for places in [&[0, 7, 8, 16, 20][..], &[31, 32, 33, 50, 79], &[0, 40]] {
            let form = naive::Scan {
                seq_start: Some(seq_start(places, 40)),
                ..full(discretization, step)
            };
            check_scan([2, 40, 3, 4], form);
        }
    }
    let form = bare(Discretization::Euler, StepSize::Softplus);
    check_scan([2, 20, 3, 4], naive::Scan { seq_start: Some(seq_start(&[5, 25], 20)), ..form });
}

/// Deterministic inputs.
fn drawn(name: &str, sizes: [usize; 4], form: &naive::Scan) -> Vec<Array> {
    let mut random = Random::named(name);
    inputs(sizes, form).iter().map(|input| random.draw(input)).collect()
}

/// Some of the steps of an array `[b, l, …]`.
fn steps(x: &Array, from: usize, to: usize) -> Array {
    let (b, l) = (x.shape[0], x.shape[1]);
    let row: usize = x.shape[2..].iter().product();
    let data = (0..b).flat_map(|i| x.data[(i * l + from) * row..(i * l + to) * row].to_vec());
    Array { shape: [&[b, to - from], &x.shape[2..]].concat(), data: data.collect() }
}

/// Which inputs have steps: all but `a_log`, `d`, `delta_bias` and `initial_state`.
const STEPPED: [bool; 9] = [true, true, false, true, true, false, false, true, false];

/// The results of a scan in f32: output, final state, and the gradient of each input.
struct Scanned {
    y: Array,
    final_state: Array,
    grads: Vec<Array>,
}

impl Scanned {
    fn new(
        form: &naive::Scan,
        inputs: &[Array],
        dy: &Array,
        dfinal_state: &Array,
        device: &Device,
    ) -> Result<Scanned> {
        let leaf = |x: &Array| tensor(x, DType::F32, device);
        let leaves: Vec<Tensor> = inputs.iter().map(|x| leaf(x).tracked()).collect();
        let (y, final_state) = call(form, &leaves)?;
        let (values, final_states) = (array(&y), array(&final_state));
        let loss = y.mul(&leaf(dy))?.sum()?.add(&final_state.mul(&leaf(dfinal_state))?.sum()?)?;
        let grads = loss.backward()?;
        let grads = leaves.iter().map(|x| Ok(array(grads.of(x)?))).collect::<Result<_>>()?;
        Ok(Scanned { y: values, final_state: final_states, grads })
    }

    /// Call `expect` with the name of each array, its value here and in `want`.
    fn compare(&self, want: &Scanned, expect: impl Fn(&str, &Array, &Array)) {
        expect("y", &self.y, &want.y);
        expect("final state", &self.final_state, &want.final_state);
        for (i, (got, want)) in self.grads.iter().zip(&want.grads).enumerate() {
            expect(&format!("gradient {i}"), got, want);
        }
    }
}

/// Equal but for the order of sums.
fn expect_close(what: &str, got: &Array, want: &Array) {
    assert_eq!(got.shape, want.shape, "{what}");
    let rms = want.rms();
    for (i, (got, want)) in got.data.iter().zip(&want.data).enumerate() {
        assert!((got - want).abs() <= 1e-5 * (want.abs() + rms), "{what} {i}: {got} and {want}");
    }
}

/// Two scans, the second from the final state of the first, are one scan: values and gradients.
#[test]
fn a_scan_can_be_split_at_any_step() -> Result<()> {
    let sizes @ [b, l, d, n] = [2, 37, 5, 3];
    for device in &devices() {
        for discretization in [Discretization::Euler, Discretization::ZeroOrderHold] {
            let form = full(discretization, StepSize::Softplus);
            let inputs = drawn("split", sizes, &form);
            let mut random = Random::named("upstreams");
            let dy = random.draw(&input(&[b, l, d]));
            let dfinal_state = random.draw(&input(&[b, d, n]));
            let whole = Scanned::new(&form, &inputs, &dy, &dfinal_state, device)?;
            for at in [0, 1, 16, 17, 30, 37] {
                let part = |from, to| -> Vec<Array> {
                    let part = |(x, stepped): (&Array, bool)| {
                        if stepped { steps(x, from, to) } else { x.clone() }
                    };
                    inputs.iter().zip(STEPPED).map(part).collect()
                };
                let first = part(0, at);
                let zeros = Array::from_fn(&[b, d, n], |_| 0.0);
                let before = Scanned::new(&form, &first, &steps(&dy, 0, at), &zeros, device)?;
                let mut second = part(at, l);
                second[8] = before.final_state.clone();
                let after =
                    Scanned::new(&form, &second, &steps(&dy, at, l), &dfinal_state, device)?;
                // The gradient of the final state of the first scan comes from the second.
                let before =
                    Scanned::new(&form, &first, &steps(&dy, 0, at), &after.grads[8], device)?;
                for (half, from, to) in [(&before, 0, at), (&after, at, l)] {
                    expect_close("y", &half.y, &steps(&whole.y, from, to));
                    for i in (0..9).filter(|&i| STEPPED[i]) {
                        expect_close(
                            &format!("gradient {i}"),
                            &half.grads[i],
                            &steps(&whole.grads[i], from, to),
                        );
                    }
                }
                expect_close("final state", &after.final_state, &whole.final_state);
                for i in [2, 5, 6] {
                    let sum = naive::binary(&before.grads[i], &after.grads[i], |x, y| x + y);
                    expect_close(&format!("gradient {i}"), &sum, &whole.grads[i]);
                }
                expect_close("dinitial_state", &before.grads[8], &whole.grads[8]);
            }
        }
    }
    Ok(())
}

/// Packed sequences have the values and gradients of separate ones.
#[test]
fn packed_sequences_are_independent() -> Result<()> {
    let sizes @ [b, l, d, n] = [1, 50, 4, 3];
    let sequences = [(0, 9), (9, 10), (10, 32), (32, 50)];
    for device in &devices() {
        for discretization in [Discretization::Euler, Discretization::ZeroOrderHold] {
            let without =
                naive::Scan { initial_state: false, ..full(discretization, StepSize::Softplus) };
            let mut seq_start = vec![0; l];
            sequences.iter().for_each(|&(from, _)| seq_start[from] = 1);
            let form = naive::Scan { seq_start: Some(seq_start), ..without.clone() };
            let inputs = drawn("packed", sizes, &form);
            let mut random = Random::named("upstreams");
            let dy = random.draw(&input(&[b, l, d]));
            let zeros = Array::from_fn(&[b, d, n], |_| 0.0);
            let packed = Scanned::new(&form, &inputs, &dy, &zeros, device)?;
            let mut sums: Vec<Array> = [2, 5, 6].map(|i| packed.grads[i].map(|_| 0.0)).to_vec();
            for (from, to) in sequences {
                let part = |(x, stepped): (&Array, bool)| {
                    if stepped { steps(x, from, to) } else { x.clone() }
                };
                let alone: Vec<Array> = inputs.iter().zip(STEPPED).map(part).collect();
                let alone = Scanned::new(&without, &alone, &steps(&dy, from, to), &zeros, device)?;
                expect_close("y", &alone.y, &steps(&packed.y, from, to));
                for i in (0..8).filter(|&i| STEPPED[i]) {
                    expect_close(
                        &format!("gradient {i}"),
                        &alone.grads[i],
                        &steps(&packed.grads[i], from, to),
                    );
                }
                for (sum, i) in sums.iter_mut().zip([2, 5, 6]) {
                    *sum = naive::binary(sum, &alone.grads[i], |x, y| x + y);
                }
                if to == l {
                    expect_close("final state", &alone.final_state, &packed.final_state);
                }
            }
            for (sum, i) in sums.iter().zip([2, 5, 6]) {
                expect_close(&format!("gradient {i}"), &packed.grads[i], sum);
            }
        }
    }
    Ok(())
}

/// A sequence of 65 536 steps, values and gradients.
#[test]
fn a_long_sequence() {
    check_scan([1, 65_536, 2, 2], full(Discretization::Euler, StepSize::Softplus));
}

/// A scan of length `l` is `l` single steps.
#[test]
fn single_steps_are_a_scan() -> Result<()> {
    let sizes @ [b, l, d, n] = [2, 6, 21, 5];
    for device in &devices() {
        for discretization in [Discretization::Euler, Discretization::ZeroOrderHold] {
            let form = full(discretization, StepSize::Softplus);
            let t: Vec<Tensor> = drawn("steps", sizes, &form)
                .iter()
                .map(|x| tensor(x, DType::F32, device))
                .collect();
            let (y, final_state) = call(&form, &t)?;
            let mut state = t[8].clone();
            for step in 0..l {
                let at =
                    |x: &Tensor, width: usize| x.slice(1, step..step + 1)?.reshape(&[b, width]);
                let (u, delta, z) = (at(&t[0], d)?, at(&t[1], d)?, at(&t[7], d)?);
                let (bs, cs) = (at(&t[3], n)?, at(&t[4], n)?);
                let (out, next) = selective_scan_step(&Scan {
                    d: Some(&t[5]),
                    delta_bias: Some(&t[6]),
                    z: Some(&z),
                    initial_state: Some(&state),
                    discretization,
                    ..Scan::new(&u, &delta, &t[2], &bs, &cs)
                })?;
                expect_close("y", &array(&out), &array(&at(&y, d)?));
                state = next;
            }
            expect_close("final state", &array(&state), &array(&final_state));
        }
    }
    Ok(())
}

/// Extreme step sizes and rates: results are finite where they should be, and close to those of
/// f64. No smaller inputs: with them `Δ·u·φ₁'`, which is `u/(Δ·A²)` for long steps, is below the
/// least normal number, and some GPUs take it for 0.
#[test]
fn extremes() -> Result<()> {
    let sizes @ [b, l, d, n] = [1, 40, 3, 4];
    let methods = [Discretization::Euler, Discretization::ZeroOrderHold];
    let cases = [
        (StepSize::Softplus, 1.0, "plain"),
        (StepSize::Softplus, 1e30, "huge"),
        (StepSize::Softplus, 1e-25, "tiny"),
        (StepSize::Plain, 1.0, "plain"),
    ];
    for (discretization, (step, u_size, u_name)) in
        methods.into_iter().flat_map(|method| cases.map(|case| (method, case)))
    {
        let form = full(discretization, step);
        let mut inputs = drawn("extremes", sizes, &form);
        let mut random = Random::named("where");
        inputs[0] = inputs[0].map(|x| x * u_size);
        inputs[1] = inputs[1].map(|x| match step {
            StepSize::Softplus if random.unit() < 0.5 => x,
            StepSize::Softplus => 80.0 * x.signum(),
            _ if random.unit() < 0.5 => x.abs(),
            _ => [0.0, 1e-30, 1e10, 1e19][(4.0 * random.unit()) as usize],
        });
        inputs[6] = inputs[6].map(|x| if step == StepSize::Plain { 0.0 } else { x });
        inputs[2] = Array::from_fn(&[d, n], |i| [-10.0, 10.0, 0.5, -3.0][i[1]]);
        inputs[8] = inputs[8].map(|x| x * u_size);
        let rounded: Vec<Array> = inputs.iter().map(|x| x.map(|x| round(x, DType::F32))).collect();
        let dy = random.draw(&input(&[b, l, d])).map(|x| round(x, DType::F32));
        let outcome = |dtype: DType, device: &Device| -> Result<Vec<Array>> {
            let leaves: Vec<Tensor> =
                rounded.iter().map(|x| tensor(x, dtype, device).tracked()).collect();
            let (y, final_state) = call(&form, &leaves)?;
            let grads = y.backward_from(&tensor(&dy, dtype, device))?;
            let grads = leaves.iter().map(|x| Ok(array(grads.of(x)?)));
            [Ok(array(&y)), Ok(array(&final_state))].into_iter().chain(grads).collect()
        };
        let (y, final_state) = naive::scan(&form, &rounded);
        let want = outcome(DType::F64, &Device::Cpu)?;
        expect_close("y in f64", &want[0], &y);
        expect_close("final state in f64", &want[1], &final_state);
        for device in &devices() {
            let got = outcome(DType::F32, device)?;
            for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                assert!(
                    got.data.iter().all(|x| x.is_finite()),
                    "{discretization:?} {u_name} u: result {i}"
                );
                expect_close(
                    &format!("{discretization:?}, {u_name} u, {}, result {i}", device.name()),
                    got,
                    want,
                );
            }
        }
    }
    Ok(())
}

/// Enough rows and states for a GPU to sum `db` and `dc` some rows at a time.
#[test]
fn many_rows_of_many_states() -> Result<()> {
    let sizes @ [b, l, d, n] = [2, 1100, 1, 256];
    let form = full(Discretization::Euler, StepSize::Softplus);
    let inputs = drawn("many", sizes, &form);
    let mut random = Random::named("upstreams");
    let dy = random.draw(&input(&[b, l, d]));
    let dfinal_state = random.draw(&input(&[b, d, n]));
    let want = Scanned::new(&form, &inputs, &dy, &dfinal_state, &Device::Cpu)?;
    for device in &devices() {
        let got = Scanned::new(&form, &inputs, &dy, &dfinal_state, device)?;
        got.compare(&want, expect_close);
    }
    Ok(())
}

/// Where a NaN in a step size or a rate leads to NaN, it does so on every device.
#[test]
fn nan_is_not_lost() -> Result<()> {
    let sizes @ [b, l, d, n] = [1, 40, 3, 2];
    let form = full(Discretization::Euler, StepSize::Softplus);
    let dy = Random::named("upstream").draw(&input(&[b, l, d]));
    let dfinal_state = Array::from_fn(&[b, d, n], |_| 1.0);
    for (which, at) in [(1, 20 * d + 1), (2, n)] {
        let mut inputs = drawn("nan", sizes, &form);
        inputs[which].data[at] = f64::NAN;
        let want = Scanned::new(&form, &inputs, &dy, &dfinal_state, &Device::Cpu)?;
        for device in &devices() {
            let got = Scanned::new(&form, &inputs, &dy, &dfinal_state, device)?;
            assert!(want.y.data.iter().any(|y| y.is_nan()));
            got.compare(&want, |what, got, want| {
                let lost =
                    got.data.iter().zip(&want.data).position(|(x, y)| y.is_nan() && !x.is_nan());
                assert_eq!(lost, None, "{what} of input {which} on {}", device.name());
            });
        }
    }
    Ok(())
}

/// A NaN in one packed sequence does not affect the others.
#[test]
fn nan_stays_in_its_sequence() -> Result<()> {
    const START: usize = 144;
    let sizes @ [b, l, d, n] = [1, 300, 3, 2];
    let mut seq_start = vec![0; l];
    seq_start[START] = 1;
    let form = full(Discretization::Euler, StepSize::Softplus);
    let form = naive::Scan { seq_start: Some(seq_start), ..form };
    let clean = drawn("nan", sizes, &form);
    let dy = Random::named("upstream").draw(&input(&[b, l, d]));
    let zeros = Array::from_fn(&[b, d, n], |_| 0.0);
    for device in &devices() {
        let want = Scanned::new(&form, &clean, &dy, &zeros, device)?;
        // Forwards from the first sequence, backwards from the second.
        for (at, from, to) in [(100, START, l), (200, 0, START)] {
            let mut inputs = clean.clone();
            inputs[0].data[at * d..][..d].fill(f64::NAN);
            inputs[7].data[at * d..][..d].fill(f64::NAN);
            let got = Scanned::new(&form, &inputs, &dy, &zeros, device)?;
            let name = device.name();
            expect_close(
                &format!("{name}: y"),
                &steps(&got.y, from, to),
                &steps(&want.y, from, to),
            );
            for i in (0..9).filter(|&i| STEPPED[i]) {
                let part = |grads: &[Array]| steps(&grads[i], from, to);
                expect_close(&format!("{name}: {i}"), &part(&got.grads), &part(&want.grads));
            }
            assert!(steps(&got.y, at, at + 1).data.iter().all(|y| y.is_nan()), "{name}");
        }
    }
    Ok(())
}
