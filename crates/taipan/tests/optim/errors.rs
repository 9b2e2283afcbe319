//! Invalid arguments.

use super::*;

#[test]
fn mistakes_are_errors_that_say_what_was_expected() -> Result<()> {
    let device = &Device::Cpu;
    let leaf = |shape: &[usize], dtype| -> Result<Tensor> {
        Ok(Tensor::ones(shape, dtype, device)?.tracked())
    };
    let (mut a, mut b) = (leaf(&[2], DType::F32)?, leaf(&[3], DType::F16)?);
    let group = Group::default();
    let said = |result: Result<AdamW>| result.err().unwrap().to_string();
    let default = AdamWOptions::default();
    assert_eq!(said(AdamW::new(default, &[])), "adamw: no parameters found, expected some");
    let tokens = Tensor::zeros(&[2], DType::U32, device)?;
    assert_eq!(
        said(AdamW::new(default, &[(&tokens, group)])),
        "adamw: a parameter is u32, expected a float"
    );
    for (options, what) in [
        (AdamWOptions { beta1: 1.0, ..default }, "beta1 is 1, expected at least 0 and less than 1"),
        (
            AdamWOptions { beta2: f64::NAN, ..default },
            "beta2 is NaN, expected at least 0 and less than 1",
        ),
        (AdamWOptions { eps: 0.0, ..default }, "eps is 0, expected a number above 0"),
        (
            AdamWOptions { max_norm: Some(-1.0), ..default },
            "max_norm is -1, expected a number above 0",
        ),
        (dynamic(3.0, 1), "the initial loss scale is 3, expected a power of two from 2⁻²⁴ to 2²⁴"),
        (dynamic(2.0, 0), "growth_interval is 0, expected 1 or more"),
    ] {
        assert_eq!(said(AdamW::new(options, &[(&a, group)])), format!("adamw: {what}"));
    }
    let odd = Group { weight_decay: -0.1, ..group };
    let error = said(AdamW::new(default, &[(&a, odd)]));
    assert_eq!(error, "adamw: weight_decay is -0.1, expected 0 or more");

    let mut adamw = AdamW::new(default, &[(&a, group), (&b, group)])?;
    let both = grads_of(&[a.clone(), b.clone()], &[a.detached(), b.detached()])?;
    let before = bits(&adamw, &[a.clone(), b.clone()]);
    let mut refused = |lr, parameters: &mut [&mut Tensor], grads: &Grads| {
        adamw.step(lr, parameters, grads).unwrap_err().to_string()
    };
    assert_eq!(
        refused(f64::NAN, &mut [&mut a, &mut b], &both),
        "adamw: the learning rate is NaN, expected 0 or more"
    );
    assert_eq!(refused(0.1, &mut [&mut a], &both), "adamw: 1 parameters found, expected 2");
    assert_eq!(
        refused(0.1, &mut [&mut b, &mut a], &both),
        "adamw: parameter 0 is [3] in f16, expected [2] in f32"
    );
    let only_a = a.sum()?.backward()?;
    assert_eq!(
        refused(0.1, &mut [&mut a, &mut b], &only_a),
        "adamw: parameter 1 has no gradient: the result does not depend on the tensor"
    );
    assert_eq!(
        refused(0.1, &mut [&mut a.detached(), &mut b], &both),
        "adamw: parameter 0 has no gradient: the tensor is not tracked"
    );
    assert_eq!(bits(&adamw, &[a, b]), before);
    Ok(())
}
