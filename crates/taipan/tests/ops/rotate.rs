//! Pairs that turn by angles which are data, and the sums of such angles.

use taipan::check::cases::rotate::{rotation, sum};
use taipan::check::{array, check, devices, tolerance};
use taipan::{DType, Device, Pairs, Result, Tensor, TurnSum, rotate, turn_sum};

/// All pairs and fewer, ranks, an odd number of channels, and nothing.
#[test]
fn any_shape() {
    use Pairs::{Adjacent, Halves};
    let shapes: [(&[usize], usize, Pairs); 9] = [
        (&[2, 3, 4, 6], 3, Adjacent),
        (&[2, 3, 4, 6], 3, Halves),
        (&[1, 5, 3, 2, 8], 2, Adjacent),
        (&[1, 5, 3, 2, 8], 2, Halves),
        (&[1, 2, 1, 7], 2, Adjacent),
        (&[1, 2, 2, 4], 0, Halves),
        (&[1, 70, 2, 4, 128], 32, Adjacent),
        (&[1, 70, 2, 4, 128], 64, Halves),
        (&[0, 3, 2, 4], 1, Adjacent),
    ];
    for (shape, s, pairs) in shapes {
        check(&rotation(shape, s, pairs));
    }
}

/// Around the blocks of a workgroup, and of several.
#[test]
fn sums_of_any_length() {
    for shape in [[2, 1, 3], [1, 16, 16], [1, 17, 17], [3, 40, 7], [1, 300, 33]] {
        check(&sum(shape, false, None));
        check(&sum(shape, true, None));
    }
    for shape in [[0, 3, 2], [2, 0, 2], [2, 3, 0]] {
        check(&sum(shape, true, None));
    }
}

/// Sequences start at the first step, at neighbouring ones, at the last, and nowhere.
#[test]
fn sums_of_packed_sequences() {
    for l in [5, 40] {
        let mut seq_start = vec![0; 3 * l];
        for t in [0, 2, 3, l - 1, l + 4] {
            seq_start[t] = 1 + t as u32;
        }
        check(&sum([3, l, 5], true, Some(seq_start.clone())));
        check(&sum([3, l, 5], false, Some(seq_start)));
    }
}

/// A sum of a hundred thousand steps, with thousands of whole turns, is as exact as its terms.
#[test]
fn whole_turns_count_for_nothing() -> Result<()> {
    let (l, step) = (100_000, 0.3f32);
    for device in devices() {
        let turns = Tensor::full(&[1, l, 1], step as f64, DType::F32, &device)?;
        let sums = turn_sum(&TurnSum { turns: &turns, initial: None, seq_start: None })?;
        for (t, sum) in array(&sums).data.iter().enumerate().step_by(997) {
            let exact = step as f64 * (t + 1) as f64;
            let off = sum - (exact - exact.round());
            // Each addition is rounded to 2⁻²⁵ at most.
            let within = 2f64.powi(-25) * ((t + 1) as f64).min(3e4) + tolerance(DType::F32).value;
            assert!((off - off.round()).abs() < within, "{t} on {}: {off}", device.name());
            assert!(sum.abs() <= 0.5);
        }
    }
    Ok(())
}

/// Steps in two calls, the second from the angle of the first.
#[test]
fn sums_in_two_calls() -> Result<()> {
    let turns = Tensor::randn(&[2, 9, 3], 1, DType::F64, &Device::Cpu)?;
    let sum = |turns: &Tensor, initial: Option<&Tensor>| {
        turn_sum(&TurnSum { turns, initial, seq_start: None })
    };
    let whole = sum(&turns, None)?;
    let last = whole.slice(1, 3..4)?.reshape(&[2, 3])?;
    let end = sum(&turns.slice(1, 4..9)?, Some(&last))?;
    assert_eq!(array(&whole.slice(1, 4..9)?).data, array(&end).data);
    Ok(())
}

#[test]
fn errors() -> Result<()> {
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Device::Cpu);
    let message = |x: &[usize], turns: &[usize], pairs| -> Result<String> {
        Ok(rotate(&zeros(x)?, &zeros(turns)?, pairs).unwrap_err().to_string())
    };
    let (x, turns) = ([2, 3, 4, 5], [2, 3, 4, 2]);
    assert_eq!(
        message(&x[..3], &turns, Pairs::Adjacent)?,
        "rotate: x is [2, 3, 4], expected [b, l, h, n] or [b, l, r, h, n]"
    );
    assert_eq!(
        message(&x, &[2, 3, 4, 3], Pairs::Adjacent)?,
        "rotate: turns is [2, 3, 4, 3], expected [2, 3, 4, 2], or fewer pairs"
    );
    assert_eq!(
        message(&x, &turns, Pairs::Halves)?,
        "rotate: x is [2, 3, 4, 5], expected an even number of channels"
    );
    let half = zeros(&x)?.cast(DType::F16)?;
    assert_eq!(
        rotate(&half, &zeros(&turns)?.cast(DType::F16)?, Pairs::Adjacent).unwrap_err().to_string(),
        "rotate: turns is f16, expected f32"
    );
    let sum = |turns: &[usize], initial: &[usize]| -> Result<String> {
        let (turns, initial) = (zeros(turns)?, zeros(initial)?);
        let sum = TurnSum { turns: &turns, initial: Some(&initial), seq_start: None };
        Ok(turn_sum(&sum).unwrap_err().to_string())
    };
    assert_eq!(sum(&[2], &[2])?, "turn_sum: turns is [2], expected [b, l, …]");
    assert_eq!(sum(&[2, 3, 4], &[2, 3])?, "turn_sum: initial is [2, 3], expected [2, 4]");
    Ok(())
}
