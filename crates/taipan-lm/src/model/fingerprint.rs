//! Which model this is.

use taipan::nn::{Matrix, Module};
use taipan::{Int8, Tensor};
use twox_hash::XxHash3_128;

use super::LanguageModel;
use crate::safetensors::{Stored, write};
use crate::{Error, Result};

impl LanguageModel {
    /// A checksum of its configuration and weights, as 32 hexadecimal digits: that of the same
    /// model is the same on every device, that of another one, of another dtype or in 8 bits is
    /// different. All weights are read once.
    pub async fn fingerprint(&self) -> Result<String> {
        let mut hasher = XxHash3_128::new();
        hasher.write(self.config.to_json(self.dtype, None).as_bytes());
        for (_, adapter) in self.adapters() {
            hasher.write(&adapter.scale.to_le_bytes());
        }
        let stored = |name: String, tensor| Stored {
            name,
            shape: Tensor::shape(tensor).to_vec(),
            tensors: vec![tensor],
        };
        let floats =
            Module::parameters(self).into_iter().map(|(name, tensor)| stored(name, tensor));
        let int8 = self.matrices().filter_map(Matrix::int8).flat_map(Int8::tensors);
        let int8 = int8.enumerate().map(|(i, tensor)| stored(format!("int8.{i}"), tensor));
        let stored: Vec<Stored> = floats.chain(int8).collect();
        write(&stored, |bytes| {
            hasher.write(bytes);
            Ok::<_, Error>(())
        })
        .await?;
        Ok(format!("{:032x}", hasher.finish_128()))
    }
}
