//! Which model this is.

use twox_hash::XxHash3_128;

use super::Mamba;
use crate::Result;
use crate::safetensors::{Stored, write};

impl Mamba {
    /// A checksum of its configuration and weights, as 32 hexadecimal digits: that of the same
    /// model is the same on every device, that of another one or of another dtype is different. All
    /// weights are read once.
    pub async fn fingerprint(&self) -> Result<String> {
        let mut hasher = XxHash3_128::new();
        hasher.write(self.config.to_json(self.dtype, None).as_bytes());
        let stored: Vec<Stored> = self
            .parameters()
            .into_iter()
            .map(|parameter| Stored {
                name: parameter.name.clone(),
                shape: parameter.shape().to_vec(),
                tensors: vec![&parameter.tensor],
            })
            .collect();
        write(&stored, |bytes| {
            hasher.write(bytes);
            Ok(())
        })
        .await?;
        Ok(format!("{:032x}", hasher.finish_128()))
    }
}
