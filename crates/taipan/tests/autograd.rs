//! How gradients behave, whatever the operation.

#[path = "harness/crowded.rs"]
mod crowded;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use taipan::{
    Activation, DType, Device, Error, Grads, Result, Tensor, concat, linear, linear_backward,
    no_grad,
};

const CPU: Device = Device::Cpu;

/// A vector of f64.
fn vector(data: &[f64]) -> Tensor {
    Tensor::new(data, &[data.len()], &CPU).unwrap()
}

/// The values of an f64 tensor.
fn read(x: &Tensor) -> Vec<f64> {
    x.read_blocking().unwrap()
}

/// Why a gradient is refused.
fn reason<T>(result: Result<T>) -> String {
    match result {
        Err(Error::Gradient { why, .. }) => why,
        Err(other) => panic!("another error: {other}"),
        Ok(_) => panic!("not refused"),
    }
}

#[test]
fn shared_use_sums() -> Result<()> {
    // y = 3x² + 2x through three uses of x and two of x².
    let x = vector(&[1.0, -2.0, 0.5]).tracked();
    let square = x.mul(&x)?;
    let y = square.add(&square)?.add(&square)?.add(&x)?.add(&x)?;
    let grads = y.backward_from(&vector(&[1.0, 10.0, -1.0]))?;
    assert_eq!(read(grads.of(&x)?), [8.0, -100.0, -5.0]);
    Ok(())
}

#[test]
fn a_diamond_waits_for_both_sides() -> Result<()> {
    // The long side adds its gradient to h after the short one.
    let x = vector(&[2.0]).tracked();
    let h = x.mul(&x)?;
    let short = h.scale(3.0)?;
    let long = h.scale(2.0)?.neg()?.scale(0.5)?.mul(&h)?;
    let y = long.add(&short)?; // -h² + 3h
    assert_eq!(read(y.backward()?.of(&x)?), [(-2.0 * 4.0 + 3.0) * 4.0]);
    Ok(())
}

#[test]
fn a_leaf_is_its_own_result() -> Result<()> {
    let x = vector(&[2.0]).tracked();
    assert_eq!(read(x.backward()?.of(&x)?), [1.0]);
    // It has no graph that could be consumed.
    assert_eq!(read(x.backward_from(&vector(&[3.0]))?.of(&x)?), [3.0]);
    Ok(())
}

#[test]
fn clones_are_the_same_leaf() -> Result<()> {
    let x = vector(&[2.0]).tracked();
    let grads = x.mul(&x.clone())?.backward()?;
    assert_eq!(read(grads.of(&x.clone())?), [4.0]);
    Ok(())
}

#[test]
fn tracking_again_makes_another_leaf() -> Result<()> {
    let x = vector(&[2.0]).tracked();
    let other = x.clone().tracked();
    let grads = x.mul(&other)?.scale(3.0)?.backward()?;
    assert_eq!((read(grads.of(&x)?), read(grads.of(&other)?)), (vec![6.0], vec![6.0]));
    let grads = x.exp()?.backward()?;
    assert_eq!(reason(grads.of(&other)), "the result does not depend on the tensor");
    Ok(())
}

#[test]
fn tracking_a_result_cuts_it_off() -> Result<()> {
    let x = vector(&[2.0]).tracked();
    let y = x.scale(3.0)?.tracked();
    let grads = y.mul(&y)?.backward()?;
    assert_eq!(read(grads.of(&y)?), [12.0]);
    assert_eq!(reason(grads.of(&x)), "the result does not depend on the tensor");
    Ok(())
}

#[test]
fn a_graph_is_used_once() -> Result<()> {
    let x = vector(&[2.0]).tracked();
    let h = x.exp()?;
    let (y, z) = (h.scale(2.0)?, h.scale(3.0)?);
    y.backward()?;
    let used = |op: &str| format!("the graph of {op} was used by an earlier backward");
    assert_eq!(reason(y.backward()), used("scale"));
    // The nodes that y and z share are consumed, too.
    assert_eq!(reason(z.backward()), used("exp"));
    // A new forward pass is a new graph.
    assert_eq!(read(x.scale(2.0)?.backward()?.of(&x)?), [2.0]);
    Ok(())
}

#[test]
fn a_refused_backward_leaves_the_graph() -> Result<()> {
    let x = vector(&[1.0, 2.0]).tracked();
    let y = x.mul(&x)?;
    reason(y.backward());
    assert!(y.backward_from(&vector(&[1.0])).is_err());
    assert_eq!(read(y.backward_from(&vector(&[1.0, 1.0]))?.of(&x)?), [2.0, 4.0]);
    Ok(())
}

#[test]
fn gradients_are_not_tracked() -> Result<()> {
    let x = vector(&[2.0]).tracked();
    let dy = vector(&[1.0]).tracked();
    let grads = x.mul(&x)?.backward_from(&dy)?;
    assert!(!grads.of(&x)?.is_tracked());
    assert_eq!(reason(grads.of(&dy)), "the result does not depend on the tensor");
    let w = Tensor::ones(&[1, 1], DType::F64, &CPU)?.tracked();
    let grads = linear(&w, &w, None, Activation::Gelu)?.backward()?;
    assert!(!grads.of(&w)?.is_tracked());
    Ok(())
}

#[test]
fn no_grad_results_are_untracked() -> Result<()> {
    let x = vector(&[2.0]).tracked();
    let y = no_grad(|| x.exp())?;
    assert!(!y.is_tracked() && x.is_tracked());
    assert_eq!(reason(y.backward()), "the tensor does not depend on any tracked tensor");
    assert!(
        !no_grad(|| linear(
            &x.reshape(&[1, 1])?,
            &Tensor::ones(&[1, 1], DType::F64, &CPU)?,
            None,
            Activation::Gelu
        ))?
        .is_tracked()
    );
    assert!(!no_grad(|| x.reshape(&[1, 1]))?.is_tracked());
    assert!(x.exp()?.is_tracked(), "afterwards it does");
    Ok(())
}

#[test]
fn no_grad_nests() {
    let x = vector(&[2.0]).tracked();
    no_grad(|| {
        no_grad(|| ());
        assert!(!x.exp().unwrap().is_tracked(), "the inner end does not end the outer");
    });
    assert!(x.exp().unwrap().is_tracked());
}

#[test]
fn no_grad_ends_with_a_panic() {
    let x = vector(&[2.0]).tracked();
    let panicked = catch_unwind(AssertUnwindSafe(|| no_grad(|| panic!("on purpose"))));
    assert!(panicked.is_err());
    assert!(x.exp().unwrap().is_tracked());
}

#[test]
fn no_grad_is_for_one_thread() {
    let x = vector(&[2.0]).tracked();
    no_grad(|| {
        thread::scope(|scope| {
            let other = scope.spawn(|| x.exp().unwrap().is_tracked());
            assert!(other.join().unwrap());
        });
    });
}

#[test]
fn detached_ends_the_graph() -> Result<()> {
    let x = vector(&[3.0]).tracked();
    let y = x.mul(&x.detached())?; // x·c
    assert!(!x.detached().is_tracked());
    assert_eq!(read(&x.detached()), [3.0]);
    assert_eq!(read(y.backward()?.of(&x)?), [3.0]);
    Ok(())
}

#[test]
fn integers_stay_untracked() -> Result<()> {
    for dtype in [DType::U32, DType::I64] {
        assert!(!Tensor::ones(&[2], dtype, &CPU)?.tracked().is_tracked());
    }
    let x = vector(&[1.5]).tracked();
    assert!(!x.cast(DType::U32)?.is_tracked(), "a conversion to integers ends the graph");
    assert!(!x.argmax(0)?.is_tracked());
    Ok(())
}

#[test]
fn untracked_inputs_get_no_gradient() -> Result<()> {
    let (x, c) = (vector(&[2.0]).tracked(), vector(&[5.0]));
    let grads = concat(&[&x, &c], 0)?.sum()?.backward()?;
    assert_eq!(read(grads.of(&x)?), [1.0]);
    assert_eq!(reason(grads.of(&c)), "the tensor is not tracked");
    assert!(!c.mul(&c)?.is_tracked());
    Ok(())
}

/// 200 000 steps on a stack that recursion would overflow.
#[test]
fn a_deep_graph_is_differentiated_and_dropped() {
    const STEPS: usize = 200_000;
    let run = || -> Result<()> {
        let x = vector(&[1.0]).tracked();
        let chain = || (0..STEPS).try_fold(x.clone(), |y, _| y.neg());
        let y = chain()?;
        assert_eq!(read(y.backward()?.of(&x)?), [1.0]);
        drop(y);
        drop(chain()?); // never differentiated: what it saved is dropped with it
        Ok(())
    };
    thread::Builder::new().stack_size(128 << 10).spawn(run).unwrap().join().unwrap().unwrap();
}

/// Two uses per step: the number of paths is 2^64, that of steps 64.
#[test]
fn the_number_of_paths_does_not_matter() -> Result<()> {
    let x = vector(&[1.0]).tracked();
    let y = (0..64).try_fold(x.clone(), |y, _| y.add(&y))?;
    assert_eq!(read(y.backward()?.of(&x)?), [2f64.powi(64)]);
    Ok(())
}

#[test]
fn tensors_can_be_sent_and_shared() {
    fn ok<T: Send + Sync>() {}
    ok::<Tensor>();
    ok::<Device>();
    ok::<Error>();
    ok::<Grads>();
}

#[test]
fn threads_use_one_tensor() {
    let x = Tensor::randn(&[40, 30], 1, DType::F64, &CPU).unwrap().tracked();
    let w = Tensor::randn(&[30, 20], 2, DType::F64, &CPU).unwrap().tracked();
    let step = || {
        let y = linear(&x, &w, None, Activation::Silu).unwrap();
        let grads = y.mul(&y).unwrap().sum().unwrap().backward().unwrap();
        (read(grads.of(&x).unwrap()), read(grads.of(&w).unwrap()))
    };
    let want = step();
    thread::scope(|scope| {
        let others: Vec<_> = (0..4).map(|_| scope.spawn(step)).collect();
        for other in others {
            assert!(other.join().unwrap() == want);
        }
    });
}

#[test]
fn a_graph_can_be_differentiated_in_another_thread() {
    let x = vector(&[3.0]).tracked();
    let y = x.mul(&x).unwrap();
    let grads = thread::spawn(move || y.backward().unwrap()).join().unwrap();
    assert_eq!(read(grads.of(&x).unwrap()), [6.0]);
}

/// A thread that waits for rayon inside `no_grad` may run tasks of other callers: grad mode is
/// enabled in those.
#[test]
fn no_grad_does_not_reach_other_tasks() {
    let x = Tensor::ones(&[200, 2000], DType::F32, &Device::Cpu).unwrap().tracked();
    crowded::tasks(|task| match task % 2 {
        0 => assert!(!no_grad(|| x.exp()).unwrap().is_tracked(), "task {task}"),
        _ => assert!(x.exp().unwrap().is_tracked(), "task {task}"),
    });
}

/// Any number of empty batches takes no time, and absent gradients are not allocated.
#[test]
fn gradients_of_nothing() -> Result<()> {
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Device::Cpu);
    let x = zeros(&[1 << 40, 0, 0])?;
    let grads = linear_backward(&x, &x, None, Activation::Gelu, &x)?;
    assert_eq!(grads.dw.shape(), [1 << 40, 0, 0]);
    let (x, w) = (zeros(&[0, 0])?, zeros(&[0, 1 << 60])?.tracked());
    let y = linear(&x, &w, None, Activation::None)?;
    let grads = y.backward_from(&zeros(&[0, 1 << 60])?)?;
    assert_eq!(grads.of(&w)?.shape(), [0, 1 << 60]);
    Ok(())
}

#[test]
fn an_infinite_upstream_stops_at_a_dead_relu() -> Result<()> {
    let x = vector(&[-1.0, 1.0]).tracked();
    let grads = x.relu()?.backward_from(&vector(&[f64::INFINITY; 2]))?;
    assert_eq!(read(grads.of(&x)?), [0.0, f64::INFINITY]);
    Ok(())
}
