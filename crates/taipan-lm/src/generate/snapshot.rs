//! A place in a text, in a file.

use std::collections::BTreeMap;

use taipan::{DType, Device, Tensor};

use crate::error::ensure;
use crate::safetensors::{Safetensors, Stored, write_with};
use crate::{Error, LanguageModel, Result, State};

/// The format of these files.
const FORMAT: &str = "taipan-state-1";

/// Where a [`Generation`](crate::Generation) is: all that a continuation needs, for each sequence
/// of a batch. It is a few hundred kilobytes for a small model, whatever the length of the text; one
/// of a model with attention grows with it, by the keys and values of each token.
///
/// As a file it is in the format safetensors. Its metadata has the model's
/// [fingerprint](LanguageModel::fingerprint), the position, the seed and the counter; its tensors are
/// `layers.{i}.conv_state` and `ssm_state`, of Mamba-3 `turns`, `ssm_state`, `k` and `x`, of attention
/// `keys` and `values`; `logits` and `tokens`.
///
/// ```
/// use taipan::{DType, Device};
/// use taipan_lm::{Config, Generation, LanguageModel, Preset, Sampler, Snapshot};
///
/// # let path = std::env::temp_dir().join(format!("taipan-snapshot-{}", std::process::id()));
/// let config = Config { hidden_size: 16, ..Preset::Tiny.config(10) };
/// let model = LanguageModel::new(&config, DType::F32, 1, &Device::Cpu)?;
/// let fingerprint = pollster::block_on(model.fingerprint())?;
/// let mut generation = Generation::new(&model, Sampler::default())?;
/// generation.prompt(&[3, 1, 4])?;
/// generation.snapshot()?.save(&path, &model, &fingerprint)?;
/// let expected = generation.step_blocking()?;
///
/// let snapshot = Snapshot::load(&path, &model, &fingerprint)?;
/// let mut generation = Generation::resume(&model, Sampler::default(), snapshot)?;
/// assert_eq!(generation.step_blocking()?, expected);
/// # std::fs::remove_file(&path).unwrap();
/// # Ok::<(), taipan_lm::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// After all tokens.
    pub state: State,
    /// Of the next token, `[b, v]`.
    pub logits: Tensor,
    /// The sampler's seed.
    pub seed: u64,
    /// How many tokens were sampled for each sequence.
    pub counter: u64,
    /// The tokens of each sequence, each at least once, for the repetition penalty.
    pub tokens: Vec<Vec<u32>>,
}

impl Snapshot {
    /// Write it to `out`, chunk by chunk, for the model with this fingerprint.
    pub async fn write(
        &self,
        model: &LanguageModel,
        fingerprint: &str,
        out: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let metadata = BTreeMap::from([
            ("format", FORMAT.into()),
            ("model", fingerprint.into()),
            ("shape", shape(model)),
            ("position", self.state.position().to_string()),
            ("seed", self.seed.to_string()),
            ("counter", self.counter.to_string()),
        ]);
        let m = self.tokens.iter().map(Vec::len).max().unwrap_or(0);
        let padded = |tokens: &Vec<u32>| {
            let padding = std::iter::repeat_n(u32::MAX, m - tokens.len());
            tokens.iter().copied().chain(padding).collect::<Vec<u32>>()
        };
        let tokens: Vec<u32> = self.tokens.iter().flat_map(padded).collect();
        let tokens = Tensor::new(&tokens, &[self.tokens.len(), m], &Device::Cpu)?;
        let mut tensors = self.state.tensors()?;
        tensors.push(("logits".to_owned(), self.logits.clone()));
        tensors.push(("tokens".to_owned(), tokens));
        let stored: Vec<Stored> = tensors
            .iter()
            .map(|(name, tensor)| Stored {
                name: name.clone(),
                shape: tensor.shape().to_vec(),
                tensors: vec![tensor],
            })
            .collect();
        write_with(&metadata, &stored, out).await
    }

    /// Read what [`write`](Snapshot::write) wrote; errors begin with `name`. The state of another
    /// model is refused.
    pub fn parse(
        name: &str,
        bytes: impl AsRef<[u8]>,
        model: &LanguageModel,
        fingerprint: &str,
    ) -> Result<Snapshot> {
        Snapshot::of(&Safetensors::parse(name, bytes)?, name, model, fingerprint)
    }

    fn of<B: AsRef<[u8]>>(
        file: &Safetensors<B>,
        name: &str,
        model: &LanguageModel,
        fingerprint: &str,
    ) -> Result<Snapshot> {
        let text = |key: &str| {
            let missing = || Error::invalid(name, format!("no {key} in it, expected a state"));
            file.metadata(key).ok_or_else(missing)
        };
        let format = text("format")?;
        ensure!(format == FORMAT, name, "the format is {format:?}, expected {FORMAT:?}");
        let found = text("model")?;
        if found != fingerprint {
            let (theirs, ours) = (text("shape")?, shape(model));
            let found = format!("a state of the model {found} ({theirs})");
            let why = format!("{found}, expected one of {fingerprint} ({ours})");
            return Err(Error::invalid(name, why));
        }
        let number = |key: &str, most: u64| {
            let found = text(key)?;
            let number = found.parse().ok().filter(|number| *number <= most);
            let why = || format!("{key} is {found:?}, expected a number up to {most}");
            number.ok_or_else(|| Error::invalid(name, why()))
        };
        // What is counted from there does not overflow.
        const MOST: u64 = 1 << 62;
        let [b, m] = match file.view("tokens")? {
            view if view.dtype == DType::U32 && view.shape.len() == 2 && view.shape[0] > 0 => {
                [view.shape[0], view.shape[1]]
            }
            view => {
                let found = format!("tokens are {:?} in {}", view.shape, view.dtype);
                return Err(Error::invalid(name, format!("{found}, expected [b, m] in u32")));
            }
        };
        let view = file.view("tokens")?;
        let words = view.bytes.as_chunks::<4>().0;
        let tokens: Vec<u32> = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
        let list = |row: usize| {
            let tokens = tokens[row * m..(row + 1) * m].iter().copied();
            tokens.take_while(|token| *token != u32::MAX).collect()
        };
        let named = |error: Error| match error {
            Error::Invalid { subject, why } if subject == "state" => Error::invalid(name, why),
            error => error,
        };
        let state = State::load(model, b, number("position", MOST)?, |tensor, shape| {
            Ok(file.tensor(tensor, shape)?)
        });
        let logits = file.tensor("logits", &[b, model.config().vocab_size])?;
        let (found, expected) = (logits.dtype(), model.dtype());
        ensure!(found == expected, name, "logits are in {found}, expected {expected}");
        Ok(Snapshot {
            state: state.map_err(named)?,
            logits: logits.to(model.device())?,
            seed: number("seed", u64::MAX)?,
            counter: number("counter", MOST)?,
            tokens: (0..b).map(list).collect(),
        })
    }

    /// [`write`](Snapshot::write) it to a file, which is replaced as a whole.
    #[cfg(not(target_family = "wasm"))]
    pub fn save(
        &self,
        path: &std::path::Path,
        model: &LanguageModel,
        fingerprint: &str,
    ) -> Result<()> {
        crate::atomic::replace_file(path, |out| {
            pollster::block_on(self.write(model, fingerprint, |bytes| out.write(bytes)))
        })
    }

    /// [`parse`](Snapshot::parse) a file.
    #[cfg(not(target_family = "wasm"))]
    pub fn load(
        path: &std::path::Path,
        model: &LanguageModel,
        fingerprint: &str,
    ) -> Result<Snapshot> {
        let file = crate::safetensors::open(path)?;
        Snapshot::of(&file, &path.display().to_string(), model, fingerprint)
    }
}

/// What a person recognises a model by.
fn shape(model: &LanguageModel) -> String {
    let config = model.config();
    format!(
        "{} layers of width {}, vocabulary {}, {}",
        config.layers.len(),
        config.hidden_size,
        config.vocab_size,
        model.dtype()
    )
}
