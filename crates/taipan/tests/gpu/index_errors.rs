//! Device-side index errors: the next read returns them, and later reads succeed.

use taipan::{
    DType, Device, Error, Result, Tensor, cross_entropy, embedding, linear_cross_entropy,
};

use crate::{fresh, read};

fn u32s(data: &[u32], device: &Device) -> Result<Tensor> {
    Tensor::new(data, &[data.len()], device)
}

/// Expect this index error.
#[track_caller]
fn expect(read: Result<Vec<f32>>, op: &'static str, name: &'static str, found: u32, limit: usize) {
    assert_eq!(read, Err(Error::Index { op, name, found, at: None, limit }));
}

#[test]
fn an_id_outside_the_table() -> Result<()> {
    let Some(device) = &fresh().map(Device::Gpu) else { return Ok(()) };
    let table = Tensor::ones(&[50, 4], DType::F32, device)?.tracked();
    for bad in [50, 70, u32::MAX] {
        let y = embedding(&table, &u32s(&[3, 0, bad, 49], device)?)?;
        expect(y.read_blocking(), "embedding", "id", bad, 50);
        // Reported once. Its row is NaN, the other rows are unaffected.
        let values = read(&y);
        assert!(values[8..12].iter().all(|x| x.is_nan()), "{values:?}");
        assert_eq!([&values[..8], &values[12..]].concat(), [1.0; 12]);
        // It has no gradient.
        let grads = y.sum()?.backward()?;
        let rows = grads.of(&table)?.sum_dims(&[1])?;
        let want: Vec<f32> = (0..50).map(|i| [0, 3, 49].contains(&i) as u8 as f32 * 4.0).collect();
        assert_eq!(read(&rows), want);
    }
    Ok(())
}

#[test]
fn indices_of_a_gather_and_a_scatter() -> Result<()> {
    let Some(device) = &fresh().map(Device::Gpu) else { return Ok(()) };
    let x = Tensor::ones(&[2, 3], DType::F32, device)?;
    let (ids, index) = (u32s(&[0, 7], device)?, u32s(&[1, 3, 0, 2], device)?.reshape(&[2, 2])?);
    let source = Tensor::ones(&[2, 2], DType::F32, device)?;
    expect(x.gather(1, &index)?.read_blocking(), "gather", "index", 3, 3);
    expect(x.scatter_add(1, &index, &source)?.read_blocking(), "scatter_add", "index", 3, 3);
    expect(x.index_select(1, &ids)?.read_blocking(), "index_select", "id", 7, 3);
    expect(ids.one_hot(3, DType::F32)?.read_blocking(), "scatter_add", "index", 7, 3);
    Ok(())
}

/// Of several errors, the greatest index of an op is reported; earlier reads are not affected.
#[test]
fn several_index_errors_are_one_error() -> Result<()> {
    let Some(gpu) = fresh() else { return Ok(()) };
    let device = &Device::Gpu(gpu.clone());
    let table = Tensor::ones(&[50, 4], DType::F32, device)?;
    let ones = embedding(&table, &u32s(&[1, 2], device)?)?;
    assert_eq!(read(&ones), [1.0; 8]);
    for ids in [[50, 0], [0, 90], [60, 61]] {
        embedding(&table, &u32s(&ids, device)?)?;
    }
    gpu.flush()?;
    expect(ones.read_blocking(), "embedding", "id", 90, 50);
    assert_eq!(read(&ones), [1.0; 8]);
    Ok(())
}

#[test]
fn a_target_that_is_no_class() -> Result<()> {
    let Some(device) = &fresh().map(Device::Gpu) else { return Ok(()) };
    let logits = Tensor::zeros(&[3, 7], DType::F32, device)?.tracked();
    for bad in [7, 8, u32::MAX] {
        let loss = cross_entropy(&logits, &u32s(&[0, bad, 6], device)?, Some(9))?;
        expect(loss.read_blocking(), "cross_entropy", "target", bad, 7);
        assert!(read(&loss)[0].is_nan());
        let dlogits = read(loss.backward()?.of(&logits)?);
        assert!(dlogits[7..14].iter().all(|x| x.is_nan()), "{dlogits:?}");
        let (x, w) = (logits.detached(), Tensor::ones(&[7, 7], DType::F32, device)?.tracked());
        let loss = linear_cross_entropy(&x, &w, &u32s(&[0, bad, 6], device)?, Some(9))?;
        expect(loss.read_blocking(), "linear_cross_entropy", "target", bad, 7);
        // An ignored target may have any value.
        let loss = cross_entropy(&logits, &u32s(&[0, bad, 6], device)?, Some(bad))?;
        assert!((read(&loss)[0] - 7f32.ln()).abs() < 1e-6);
    }
    Ok(())
}
