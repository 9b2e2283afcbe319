//! Scans of inputs that do not fit.

use taipan::{DType, Result, Scan, Tensor, selective_scan, selective_scan_step};

use crate::{refuses, zeros, zeros_of};

/// A scan of which one input may be wrong.
#[derive(Default)]
struct Scanned {
    u: Option<Tensor>,
    delta: Option<Tensor>,
    a_log: Option<Tensor>,
    b: Option<Tensor>,
    c: Option<Tensor>,
    d: Option<Tensor>,
    delta_bias: Option<Tensor>,
    z: Option<Tensor>,
    initial_state: Option<Tensor>,
    seq_start: Option<Tensor>,
}

impl Scanned {
    /// With `[b, l, d, n]` of `[2, 5, 3, 4]`.
    fn run(self) -> Result<(Tensor, Tensor)> {
        let or = |given: Option<Tensor>, shape: &[usize]| given.unwrap_or_else(|| zeros(shape));
        let (u, delta) = (or(self.u, &[2, 5, 3]), or(self.delta, &[2, 5, 3]));
        let a_log = or(self.a_log, &[3, 4]);
        let (b, c) = (or(self.b, &[2, 5, 4]), or(self.c, &[2, 5, 4]));
        selective_scan(&Scan {
            d: self.d.as_ref(),
            delta_bias: self.delta_bias.as_ref(),
            z: self.z.as_ref(),
            initial_state: self.initial_state.as_ref(),
            seq_start: self.seq_start.as_ref(),
            ..Scan::new(&u, &delta, &a_log, &b, &c)
        })
    }
}

#[test]
fn scans_of_shapes_that_do_not_fit() {
    let none = Scanned::default;
    let refuses = |scan: Scanned, message: &str| {
        refuses(scan.run(), &format!("selective_scan: {message}"));
    };
    assert!(none().run().is_ok());
    let wrong = |shape: &[usize]| Some(zeros(shape));
    refuses(Scanned { u: wrong(&[5, 3]), ..none() }, "u is [5, 3], expected [b, l, d]");
    refuses(Scanned { u: wrong(&[2, 6, 3]), ..none() }, "delta is [2, 5, 3], expected [2, 6, 3]");
    refuses(Scanned { a_log: wrong(&[3]), ..none() }, "a_log is [3], expected [d, n]");
    refuses(Scanned { a_log: wrong(&[2, 4]), ..none() }, "a_log is [2, 4], expected [3, 4]");
    refuses(Scanned { a_log: wrong(&[3, 0]), ..none() }, "a_log has 0 states, expected 1 to 256");
    refuses(
        Scanned { a_log: wrong(&[3, Scan::MAX_STATES + 1]), ..none() },
        "a_log has 257 states, expected 1 to 256",
    );
    refuses(Scanned { b: wrong(&[2, 5, 3]), ..none() }, "b is [2, 5, 3], expected [2, 5, 4]");
    refuses(Scanned { c: wrong(&[2, 4, 4]), ..none() }, "c is [2, 4, 4], expected [2, 5, 4]");
    refuses(Scanned { d: wrong(&[4]), ..none() }, "d is [4], expected [3]");
    refuses(Scanned { delta_bias: wrong(&[1]), ..none() }, "delta_bias is [1], expected [3]");
    refuses(Scanned { z: wrong(&[2, 5, 4]), ..none() }, "z is [2, 5, 4], expected [2, 5, 3]");
    refuses(
        Scanned { initial_state: wrong(&[2, 4, 3]), ..none() },
        "initial_state is [2, 4, 3], expected [2, 3, 4]",
    );
    let seq_start = Some(zeros_of(DType::U32, &[5, 2]));
    refuses(Scanned { seq_start, ..none() }, "seq_start is [5, 2], expected [2, 5]");
    let [u, delta] = [(); 2].map(|()| wrong(&[0, 1 << 52, 64]));
    let (a_log, rows) = (wrong(&[64, 256]), || wrong(&[0, 1 << 52, 256]));
    refuses(
        Scanned { u, delta, a_log, b: rows(), c: rows(), ..none() },
        "the size of [0, 281474976710656, 256, 64] in f32 overflows",
    );
}

#[test]
fn scans_of_mixed_types() {
    let none = Scanned::default;
    let refuses = |scan: Scanned, message: &str| {
        refuses(scan.run(), &format!("selective_scan: {message}"));
    };
    let half = |shape: &[usize]| Some(zeros_of(DType::F16, shape));
    refuses(
        Scanned { u: Some(zeros_of(DType::U32, &[2, 5, 3])), ..none() },
        "u is u32, expected a float",
    );
    refuses(Scanned { delta: half(&[2, 5, 3]), ..none() }, "delta is f16, expected f32");
    refuses(Scanned { b: half(&[2, 5, 4]), ..none() }, "b is f16, expected f32");
    refuses(Scanned { a_log: half(&[3, 4]), ..none() }, "a_log is f16, expected f32");
    refuses(
        Scanned { initial_state: half(&[2, 3, 4]), ..none() },
        "initial_state is f16, expected f32",
    );
    refuses(
        Scanned { seq_start: Some(zeros(&[2, 5])), ..none() },
        "seq_start is f32, expected u32",
    );
    // What belongs to the recurrence is in f32 for halves, too.
    let scan = Scanned {
        u: half(&[2, 5, 3]),
        delta: half(&[2, 5, 3]),
        b: half(&[2, 5, 4]),
        c: half(&[2, 5, 4]),
        d: half(&[3]),
        ..none()
    };
    refuses(scan, "d is f16, expected f32");
}

#[test]
fn steps_of_a_scan() {
    let (u, a_log, b) = (zeros(&[2, 3]), zeros(&[3, 4]), zeros(&[2, 4]));
    let step = Scan::new(&u, &u, &a_log, &b, &b);
    assert!(selective_scan_step(&step).is_ok());
    let wrong = zeros(&[2, 1, 3]);
    refuses(
        selective_scan_step(&Scan { z: Some(&wrong), ..step }),
        "selective_scan_step: z is [2, 1, 3], expected 2 dimensions",
    );
    let seq_start = zeros_of(DType::U32, &[2, 1]);
    refuses(
        selective_scan_step(&Scan { seq_start: Some(&seq_start), ..step }),
        "selective_scan_step: seq_start is given, expected none for a single step",
    );
}
