//! What a step changes, what it does not, and how a state is loaded.

use super::*;

#[test]
fn clones_and_graphs_keep_the_values_of_before_a_step() -> Result<()> {
    for (device, dtype) in everywhere() {
        let what = format!("{dtype} on {}", device.name());
        let mut w = Tensor::full(&[3], 2.0, dtype, &device)?.tracked();
        let options = AdamWOptions::default();
        let mut adamw = AdamW::new(options, &[(&w, Group::without_decay())])?;
        let clone = w.clone();
        let earlier = w.mul(&w)?.sum()?;
        let later = w.mul(&w)?.sum()?;
        adamw.step(0.5, &mut [&mut w], &earlier.backward()?)?;
        assert_eq!(array(&clone).data, [2.0; 3], "{what}: a clone");
        assert!(array(&w).data.iter().all(|x| (x - 1.5).abs() < 1e-2), "{what}: the parameter");
        let grads = later.backward()?;
        assert_eq!(
            array(grads.of(&w)?).data,
            [4.0; 3],
            "{what}: the derivative of before, by the same leaf"
        );
        // Not shared any more: the step is in place, and the leaf is still the same.
        drop(clone);
        adamw.step(0.5, &mut [&mut w], &grads)?;
        let grads = w.sum()?.backward()?;
        assert_eq!(array(grads.of(&w)?).data, [1.0; 3], "{what}");
    }
    Ok(())
}

/// A gradient may share the memory of what a step changes.
#[test]
fn a_parameter_that_is_its_own_gradient_is_updated_once() -> Result<()> {
    for device in devices() {
        let mut w = Tensor::full(&[70_000], 2.0, DType::F32, &device)?.tracked();
        let mut adamw = AdamW::new(AdamWOptions::default(), &[(&w, Group::without_decay())])?;
        let grads = w.backward_from(&w)?;
        adamw.step(0.5, &mut [&mut w], &grads)?;
        assert!(array(&w).data.iter().all(|x| (x - 1.5).abs() < 1e-5));
        assert!(array(grads.of(&w)?).data.iter().all(|x| *x == 2.0));
    }
    Ok(())
}

#[test]
fn one_read_gives_the_status_and_a_loss() -> Result<()> {
    for (device, dtype) in everywhere() {
        let mut training = Training::new(dtype, &device)?;
        training.step(0)?;
        let adamw = &training.adamw;
        let expected = (adamw.status_blocking()?, 1.25);
        let read = |loss: &Tensor| pollster::block_on(adamw.status_and_loss(loss));
        assert_eq!(read(&Tensor::new(&[1.25_f32], &[], &device)?)?, expected);
        assert_eq!(read(&Tensor::new(&[1.25_f64], &[], &Device::Cpu)?)?, expected);
        let message = read(&Tensor::zeros(&[2], DType::F32, &device)?).unwrap_err().to_string();
        assert_eq!(message, "status_and_loss: the loss is [2], expected one element");
    }
    Ok(())
}

#[test]
fn a_loaded_state_continues_bit_for_bit() -> Result<()> {
    for (device, dtype) in everywhere() {
        let mut whole = Training::new(dtype, &device)?;
        (0..10).try_for_each(|i| whole.step(i))?;

        let mut first = Training::new(dtype, &device)?;
        (0..5).try_for_each(|i| first.step(i))?;
        // Through the host, as a checkpoint goes, and in another order.
        let mut state = first
            .adamw
            .state()
            .into_iter()
            .map(|(name, tensor)| Ok((name, tensor.to(&Device::Cpu)?)))
            .collect::<Result<Vec<_>>>()?;
        state.reverse();
        let saved = first.parameters.iter().map(array).collect::<Vec<_>>();
        let status = first.adamw.status_blocking()?;
        let mut second = Training::new(dtype, &device)?;
        second.parameters = saved.iter().map(|p| tensor(p, dtype, &device).tracked()).collect();
        second.adamw.load_state(&state)?;
        assert_eq!(second.adamw.status_blocking()?, status);
        assert_eq!((status.steps, status.skipped), (4, 1));
        (5..10).try_for_each(|i| second.step(i))?;
        let what = format!("{dtype} on {}", device.name());
        let same = bits(&second.adamw, &second.parameters) == bits(&whole.adamw, &whole.parameters);
        assert!(same, "{what}");
    }
    Ok(())
}

/// As `AdamW::state` gives it.
type State = Vec<(String, Tensor)>;

#[test]
fn a_state_of_another_optimiser_is_refused_and_changes_nothing() -> Result<()> {
    let device = &Device::Cpu;
    let w = Tensor::ones(&[2, 3], DType::BF16, device)?.tracked();
    let mut adamw = AdamW::new(dynamic(4.0, 9), &[(&w, Group::default())])?;
    let state = adamw.state();
    let names: Vec<&str> = state.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["m.0", "v.0", "master.0", "counters", "loss_scale"]);
    let mut refused = |change: &dyn Fn(&mut State)| {
        let mut state = adamw.state();
        // Tensors that could be loaded if the others were valid.
        state[0].1 = Tensor::ones(&[2, 3], DType::F32, device).unwrap();
        change(&mut state);
        let error = adamw.load_state(&state).unwrap_err().to_string();
        assert_eq!(array(&adamw.state()[0].1).data, [0.0; 6], "{error}");
        error
    };
    assert_eq!(refused(&|s| drop(s.remove(1))), "load_state: \"v.0\" is missing");
    assert_eq!(
        refused(&|s| s[2].1 = s[2].1.reshape(&[3, 2]).unwrap()),
        "load_state: \"master.0\" is [3, 2] in f32, expected [2, 3] in f32"
    );
    assert_eq!(
        refused(&|s| s[1].1 = s[1].1.cast(DType::F64).unwrap()),
        "load_state: \"v.0\" is [2, 3] in f64, expected [2, 3] in f32"
    );
    assert_eq!(
        refused(&|s| s.push(("v.1".into(), s[1].1.clone()))),
        "load_state: \"v.1\" is no name of this state"
    );
    assert_eq!(
        refused(&|s| s.push(s[1].clone())),
        "load_state: \"v.0\" is there twice, expected each name once"
    );
    Ok(())
}

#[test]
fn threads_do_not_change_a_bit() -> Result<()> {
    let run = |threads: usize, dtype: DType| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| -> Result<_> {
            let leaf = |(i, n): (usize, usize)| -> Result<Tensor> {
                Ok(Tensor::randn(&[n], i as u64, dtype, &Device::Cpu)?.tracked())
            };
            let lengths = [100_001, 3, 50_000, 17];
            let mut w: Vec<Tensor> =
                lengths.into_iter().enumerate().map(leaf).collect::<Result<_>>()?;
            let options = AdamWOptions { max_norm: Some(1.0), ..AdamWOptions::default() };
            let mut adamw = AdamW::new(options, &with_groups(&w, &[Group::default(); 4]))?;
            for _ in 0..3 {
                let grads: Vec<Tensor> = w.iter().map(Tensor::detached).collect();
                step(&mut adamw, 0.1, &mut w, &grads)?;
            }
            Ok(bits(&adamw, &w))
        })
    };
    for dtype in FLOATS {
        let one = run(1, dtype)?;
        assert!(run(2, dtype)? == one && run(3, dtype)? == one, "{dtype}");
    }
    Ok(())
}
