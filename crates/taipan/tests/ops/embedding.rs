//! Rows of a table.

use taipan::check::cases::indexing::rows;
use taipan::check::{array, check, devices};
use taipan::{DType, Device, Error, Result, Tensor, embedding};

fn ids(ids: &[u32], shape: &[usize], device: &Device) -> Tensor {
    Tensor::new(ids, shape, device).unwrap()
}

#[test]
fn rows_of_a_table() {
    let cases: [(usize, usize, &[usize]); 11] = [
        (1, 1, &[1]),
        (5, 3, &[]),
        (5, 3, &[0]),
        (0, 3, &[2, 0]),
        (5, 0, &[4]),
        (7, 1, &[2, 9]),
        (4, 5, &[3, 2, 7]),
        (300, 2, &[70]),
        (50, 33, &[6, 43]),
        (3, 257, &[65]),
        (70_000, 1, &[9]),
    ];
    cases.into_iter().for_each(|(v, d, shape)| check(&rows([v, d], shape)));
}

/// Sums in the wide type, rounded once: each term alone would be lost in f16.
#[test]
fn many_uses_of_a_row_lose_nothing() -> Result<()> {
    for device in devices().into_iter().filter(|device| device.supports(DType::F16)) {
        let table = Tensor::zeros(&[3, 2], DType::F16, &device)?.tracked();
        let y = embedding(&table, &ids(&[1; 5000], &[5000], &device))?;
        let grads = y.sum_dims(&[0])?.backward_from(&Tensor::ones(&[2], DType::F16, &device)?)?;
        assert_eq!(array(grads.of(&table)?).data, [0.0, 0.0, 5000.0, 5000.0, 0.0, 0.0]);
    }
    Ok(())
}

/// The GPU's behaviour is tested in `gpu/index_errors`.
#[test]
fn an_id_outside_the_table() -> Result<()> {
    let table = Tensor::ones(&[50, 4], DType::F32, &Device::Cpu)?;
    for bad in [50, 70, u32::MAX] {
        let error = embedding(&table, &ids(&[3, 0, 49, bad, 1], &[5], &Device::Cpu)).unwrap_err();
        let want = Error::Index { op: "embedding", name: "id", found: bad, at: Some(3), limit: 50 };
        assert_eq!(error, want);
        let message = format!("embedding: id {bad} at position 3, expected less than 50");
        assert_eq!(error.to_string(), message);
    }
    Ok(())
}

#[test]
fn what_is_refused() {
    let zeros = |dtype, shape: &[usize]| Tensor::zeros(shape, dtype, &Device::Cpu).unwrap();
    let refuses = |table: &Tensor, ids: &Tensor, message: &str| {
        assert_eq!(embedding(table, ids).unwrap_err().to_string(), message);
    };
    let (table, ids) = (zeros(DType::F32, &[2, 3]), zeros(DType::U32, &[2]));
    refuses(&ids, &ids, "embedding: the table is u32, expected a float");
    refuses(&table, &table, "embedding: the tensor of ids is f32, expected u32");
    refuses(&zeros(DType::F32, &[2]), &ids, "embedding: the table is [2], expected [v, d]");
    refuses(
        &zeros(DType::F32, &[0, 3]),
        &ids,
        "embedding: dimension 0 of [0, 3] is empty, expected an index or more",
    );
}
