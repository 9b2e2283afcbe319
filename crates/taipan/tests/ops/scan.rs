//! The selective scan against the recurrence, one state after the other.

use taipan::{
    DType, Device, Discretization, Result, Scan, StepSize, Tensor, concat, selective_scan,
    selective_scan_step,
};

use crate::harness::{
    Array, Case, Input, Random, Values, array, check, devices, input, input_of, naive, round,
    tensor,
};

/// Of a tensor that may be in half precision, the same in the type of the recurrence.
fn widened(tensor: &Tensor) -> Result<Tensor> {
    match tensor.dtype() {
        DType::F16 | DType::BF16 => tensor.cast(DType::F32),
        _ => Ok(tensor.clone()),
    }
}

/// The output and the last states.
fn call(form: &naive::Scan, t: &[Tensor]) -> Result<(Tensor, Tensor)> {
    let mut optional = t[5..].iter();
    let mut next = |given: bool| given.then(|| optional.next().unwrap());
    let (d, delta_bias, z) = (next(form.d), next(form.delta_bias), next(form.z));
    let state = next(form.state);
    let wide = |tensor: Option<&Tensor>| tensor.map(widened).transpose();
    let (a_log, d, delta_bias, state) =
        (widened(&t[2])?, wide(d)?, wide(delta_bias)?, wide(state)?);
    let starts = form.starts.as_ref().map(|starts| {
        let shape = &t[0].shape()[..2];
        Tensor::new(starts, shape, t[0].device())
    });
    let starts = starts.transpose()?;
    selective_scan(&Scan {
        d: d.as_ref(),
        delta_bias: delta_bias.as_ref(),
        z,
        state: state.as_ref(),
        starts: starts.as_ref(),
        discretization: form.discretization,
        step: form.step,
        ..Scan::new(&t[0], &t[1], &a_log, &t[3], &t[4])
    })
}

/// Output and last states, one behind the other.
fn call_joined(form: &naive::Scan, t: &[Tensor]) -> Result<Tensor> {
    let (y, last) = call(form, t)?;
    let last = last.cast(y.dtype())?;
    concat(&[&y.reshape(&[y.len()])?, &last.reshape(&[last.len()])?], 0)
}

fn joined((y, last): (Array, Array)) -> Array {
    let data = [y.data, last.data].concat();
    Array { shape: vec![data.len()], data }
}

fn inputs([b, l, d, n]: [usize; 4], form: &naive::Scan) -> Vec<Input> {
    let step = match form.step {
        StepSize::Softplus => Values::Between(-3.0, 1.0),
        StepSize::Plain => Values::Between(0.01, 1.0),
    };
    let optional = [
        (form.d, input(&[d])),
        (form.delta_bias, input_of(&[d], Values::Between(-0.1, 0.5))),
        (form.z, input_of(&[b, l, d], Values::Between(-2.0, 2.0))),
        (form.state, input(&[b, d, n])),
    ];
    let needed = [
        input(&[b, l, d]),
        input_of(&[b, l, d], step),
        input_of(&[d, n], Values::Between(-2.0, 2.0)),
        input(&[b, l, n]),
        input(&[b, l, n]),
    ];
    let optional = optional.into_iter().filter(|(given, _)| *given).map(|(_, input)| input);
    needed.into_iter().chain(optional).collect()
}

fn check_scan(sizes: [usize; 4], form: naive::Scan) {
    let name = format!("scan {sizes:?} {form:?}");
    let inputs = inputs(sizes, &form);
    let reference = form.clone();
    check(
        &Case::new(
            name,
            inputs,
            move |t| call_joined(&form, t),
            move |i| joined(naive::scan(&reference, i)),
        )
        .cancelling(4 * sizes[3]),
    );
}

/// Everything that is optional.
fn full(discretization: Discretization, step: StepSize) -> naive::Scan {
    naive::Scan {
        discretization,
        step,
        d: true,
        delta_bias: true,
        z: true,
        state: true,
        starts: None,
    }
}

/// Nothing that is optional.
fn bare(discretization: Discretization, step: StepSize) -> naive::Scan {
    naive::Scan {
        discretization,
        step,
        d: false,
        delta_bias: false,
        z: false,
        state: false,
        starts: None,
    }
}

const FORMS: [(Discretization, StepSize); 4] = [
    (Discretization::Euler, StepSize::Softplus),
    (Discretization::Euler, StepSize::Plain),
    (Discretization::ZeroOrderHold, StepSize::Softplus),
    (Discretization::ZeroOrderHold, StepSize::Plain),
];

#[test]
fn with_everything() {
    for (discretization, step) in FORMS {
        check_scan([2, 19, 5, 3], full(discretization, step));
    }
}

#[test]
fn with_nothing_optional() {
    for (discretization, step) in FORMS {
        check_scan([2, 19, 5, 3], bare(discretization, step));
    }
}

#[test]
fn with_one_optional_each() {
    let none = || bare(Discretization::Euler, StepSize::Softplus);
    for form in [
        naive::Scan { d: true, ..none() },
        naive::Scan { delta_bias: true, ..none() },
        naive::Scan { z: true, ..none() },
        naive::Scan { state: true, ..none() },
    ] {
        check_scan([2, 17, 3, 4], form);
    }
}

/// Lengths beside the borders of chunks, and none at all.
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

/// Where sequences start: at the first step, in neighbouring steps, at the borders of chunks, and
/// nowhere.
#[test]
fn packed() {
    let starts = |places: &[usize], l: usize| {
        let mut starts = vec![0; 2 * l];
        places.iter().for_each(|&t| starts[t] = 1 + t as u32);
        starts
    };
    for (discretization, step) in FORMS {
        for places in [&[0, 7, 8, 16, 20][..], &[31, 32, 33, 50, 79], &[0, 40]] {
            let form =
                naive::Scan { starts: Some(starts(places, 40)), ..full(discretization, step) };
            check_scan([2, 40, 3, 4], form);
        }
    }
    let form = bare(Discretization::Euler, StepSize::Softplus);
    check_scan([2, 20, 3, 4], naive::Scan { starts: Some(starts(&[5, 25], 20)), ..form });
}

/// Deterministic inputs of a scan with everything.
fn drawn(name: &str, sizes: [usize; 4], form: &naive::Scan) -> Vec<Array> {
    let mut random = Random::named(name);
    inputs(sizes, form).iter().map(|input| random.draw(input)).collect()
}

/// Part of the steps of an array `[b, l, …]`.
fn steps(x: &Array, from: usize, to: usize) -> Array {
    let (b, l) = (x.shape[0], x.shape[1]);
    let row: usize = x.shape[2..].iter().product();
    let data = (0..b).flat_map(|i| x.data[(i * l + from) * row..(i * l + to) * row].to_vec());
    Array { shape: [&[b, to - from], &x.shape[2..]].concat(), data: data.collect() }
}

/// Which inputs have steps: all but `a_log`, `d`, `delta_bias` and `state`.
const STEPPED: [bool; 9] = [true, true, false, true, true, false, false, true, false];

/// What a scan of f32 gives: output, last states, and the gradient of each input for fixed upstreams.
struct Scanned {
    y: Array,
    last: Array,
    grads: Vec<Array>,
}

impl Scanned {
    fn new(
        form: &naive::Scan,
        inputs: &[Array],
        dy: &Array,
        dlast: &Array,
        device: &Device,
    ) -> Result<Scanned> {
        let leaf = |x: &Array| tensor(x, DType::F32, device);
        let leaves: Vec<Tensor> = inputs.iter().map(|x| leaf(x).tracked()).collect();
        let (y, last) = call(form, &leaves)?;
        let (values, lasts) = (array(&y), array(&last));
        let loss = y.mul(&leaf(dy))?.sum()?.add(&last.mul(&leaf(dlast))?.sum()?)?;
        let grads = loss.backward()?;
        let grads = leaves.iter().map(|x| Ok(array(grads.of(x)?))).collect::<Result<_>>()?;
        Ok(Scanned { y: values, last: lasts, grads })
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

/// Scanning in two pieces, through the states, is scanning at once: values and gradients.
#[test]
fn split_anywhere() -> Result<()> {
    let sizes @ [b, l, d, n] = [2, 37, 5, 3];
    for device in &devices() {
        for discretization in [Discretization::Euler, Discretization::ZeroOrderHold] {
            let form = full(discretization, StepSize::Softplus);
            let inputs = drawn("split", sizes, &form);
            let mut random = Random::named("upstreams");
            let dy = random.draw(&input(&[b, l, d]));
            let dlast = random.draw(&input(&[b, d, n]));
            let whole = Scanned::new(&form, &inputs, &dy, &dlast, device)?;
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
                second[8] = before.last.clone();
                let after = Scanned::new(&form, &second, &steps(&dy, at, l), &dlast, device)?;
                // What flows back into the first piece comes through the states.
                let before =
                    Scanned::new(&form, &first, &steps(&dy, 0, at), &after.grads[8], device)?;
                for (piece, from, to) in [(&before, 0, at), (&after, at, l)] {
                    expect_close("y", &piece.y, &steps(&whole.y, from, to));
                    for i in (0..9).filter(|&i| STEPPED[i]) {
                        expect_close(
                            &format!("gradient {i}"),
                            &piece.grads[i],
                            &steps(&whole.grads[i], from, to),
                        );
                    }
                }
                expect_close("last", &after.last, &whole.last);
                for i in [2, 5, 6] {
                    let sum = naive::binary(&before.grads[i], &after.grads[i], |x, y| x + y);
                    expect_close(&format!("gradient {i}"), &sum, &whole.grads[i]);
                }
                expect_close("dstate", &before.grads[8], &whole.grads[8]);
            }
        }
    }
    Ok(())
}

/// Texts that share a row train as they would alone.
#[test]
fn packed_texts_are_alone() -> Result<()> {
    let sizes @ [b, l, d, n] = [1, 50, 4, 3];
    let texts = [(0, 9), (9, 10), (10, 32), (32, 50)];
    for device in &devices() {
        for discretization in [Discretization::Euler, Discretization::ZeroOrderHold] {
            let without = naive::Scan { state: false, ..full(discretization, StepSize::Softplus) };
            let mut starts = vec![0; l];
            texts.iter().for_each(|&(from, _)| starts[from] = 1);
            let form = naive::Scan { starts: Some(starts), ..without.clone() };
            let inputs = drawn("packed", sizes, &form);
            let mut random = Random::named("upstreams");
            let dy = random.draw(&input(&[b, l, d]));
            let zeros = Array::from_fn(&[b, d, n], |_| 0.0);
            let packed = Scanned::new(&form, &inputs, &dy, &zeros, device)?;
            let mut sums: Vec<Array> = [2, 5, 6].map(|i| packed.grads[i].map(|_| 0.0)).to_vec();
            for (from, to) in texts {
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
                    expect_close("last", &alone.last, &packed.last);
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

/// One step is a scan of length 1, and many are a scan.
#[test]
fn step_by_step() -> Result<()> {
    let sizes @ [b, l, d, n] = [2, 6, 21, 5];
    for device in &devices() {
        for discretization in [Discretization::Euler, Discretization::ZeroOrderHold] {
            let form = full(discretization, StepSize::Softplus);
            let t: Vec<Tensor> = drawn("steps", sizes, &form)
                .iter()
                .map(|x| tensor(x, DType::F32, device))
                .collect();
            let (y, last) = call(&form, &t)?;
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
                    state: Some(&state),
                    discretization,
                    ..Scan::new(&u, &delta, &t[2], &bs, &cs)
                })?;
                expect_close("y", &array(&out), &array(&at(&y, d)?));
                state = next;
            }
            expect_close("last", &array(&state), &array(&last));
        }
    }
    Ok(())
}

/// Steps and rates at the ends of what can be: results are finite where they should be, and those of f64.
#[test]
fn extremes() -> Result<()> {
    let sizes @ [b, l, d, n] = [1, 40, 3, 4];
    for (discretization, u_size, u_name) in [
        (Discretization::Euler, 1.0, "plain"),
        (Discretization::ZeroOrderHold, 1.0, "plain"),
        (Discretization::Euler, 1e30, "huge"),
        (Discretization::ZeroOrderHold, 1e30, "huge"),
        (Discretization::Euler, 1e-30, "tiny"),
        (Discretization::ZeroOrderHold, 1e-30, "tiny"),
    ] {
        let form = full(discretization, StepSize::Softplus);
        let mut inputs = drawn("extremes", sizes, &form);
        let mut random = Random::named("where");
        inputs[0] = inputs[0].map(|x| x * u_size);
        inputs[1] = inputs[1].map(|x| if random.unit() < 0.5 { x } else { 80.0 * x.signum() });
        inputs[2] = Array::from_fn(&[d, n], |i| [-10.0, 10.0, 0.5, -3.0][i[1]]);
        inputs[8] = inputs[8].map(|x| x * u_size);
        let rounded: Vec<Array> = inputs.iter().map(|x| x.map(|x| round(x, DType::F32))).collect();
        let dy = random.draw(&input(&[b, l, d])).map(|x| round(x, DType::F32));
        let outcome = |dtype: DType, device: &Device| -> Result<Vec<Array>> {
            let leaves: Vec<Tensor> =
                rounded.iter().map(|x| tensor(x, dtype, device).tracked()).collect();
            let (y, last) = call(&form, &leaves)?;
            let grads = y.backward_from(&tensor(&dy, dtype, device))?;
            let grads = leaves.iter().map(|x| Ok(array(grads.of(x)?)));
            [Ok(array(&y)), Ok(array(&last))].into_iter().chain(grads).collect()
        };
        let (y, last) = naive::scan(&form, &rounded);
        let want = outcome(DType::F64, &Device::Cpu)?;
        expect_close("y in f64", &want[0], &y);
        expect_close("last in f64", &want[1], &last);
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

/// So many rows and states that a GPU sums `db` and `dc` some rows at a time.
#[test]
fn many_rows_of_many_states() -> Result<()> {
    let sizes @ [b, l, d, n] = [2, 1100, 1, 256];
    let form = full(Discretization::Euler, StepSize::Softplus);
    let inputs = drawn("many", sizes, &form);
    let mut random = Random::named("upstreams");
    let dy = random.draw(&input(&[b, l, d]));
    let dlast = random.draw(&input(&[b, d, n]));
    let want = Scanned::new(&form, &inputs, &dy, &dlast, &Device::Cpu)?;
    for device in &devices() {
        let got = Scanned::new(&form, &inputs, &dy, &dlast, device)?;
        expect_close("y", &got.y, &want.y);
        expect_close("last", &got.last, &want.last);
        for (i, (got, want)) in got.grads.iter().zip(&want.grads).enumerate() {
            expect_close(&format!("gradient {i}"), got, want);
        }
    }
    Ok(())
}

/// What is no number in one text of a row is none of the others'.
#[test]
fn nan_stays_in_its_text() -> Result<()> {
    const START: usize = 144;
    let sizes @ [b, l, d, n] = [1, 300, 3, 2];
    let mut starts = vec![0; l];
    starts[START] = 1;
    let form = full(Discretization::Euler, StepSize::Softplus);
    let form = naive::Scan { starts: Some(starts), ..form };
    let clean = drawn("nan", sizes, &form);
    let dy = Random::named("upstream").draw(&input(&[b, l, d]));
    let zeros = Array::from_fn(&[b, d, n], |_| 0.0);
    for device in &devices() {
        let want = Scanned::new(&form, &clean, &dy, &zeros, device)?;
        // Forwards from the first text, backwards from the second.
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
