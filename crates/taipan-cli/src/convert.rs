//! `taipan convert`: a model in another layout, dtype or number of files, or with its adapter merged.

use std::path::PathBuf;

use clap::ValueEnum;
use taipan_lm::{Conversion, Layout, ModelFiles};

use crate::machine::Dtype;
use crate::model::find_adapted;
use crate::{Failure, bytes, hub, usage};

/// `taipan convert MODEL OUT`
#[derive(clap::Args)]
pub struct Flags {
    /// A model: its directory, a checkpoint or a run, the file with its tensors, or a name on the
    /// Hugging Face Hub that was downloaded with hf download
    model: PathBuf,
    /// The directory to write, which must be new or empty
    out: PathBuf,
    /// Dtype of the weights; in f16 and bf16 those of the recurrence stay f32 [default: as stored]
    #[arg(long, value_name = "TYPE")]
    dtype: Option<Dtype>,
    /// Whose names and config.json the files have
    #[arg(long, value_name = "NAME", default_value = "hf")]
    layout: LayoutName,
    /// Maximum size of a file, for example 2GB or 500MiB [default: one file]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    max_shard_size: Option<u64>,
    /// Merge a LoRA adapter into the model: that of --adapter, or the one that MODEL is
    #[arg(long)]
    merge: bool,
    /// The adapter to merge: a directory with adapter_config.json, as PEFT writes it
    #[arg(long, value_name = "DIR", requires = "merge")]
    adapter: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum LayoutName {
    /// Hugging Face's transformers
    Hf,
    /// The paper's code, state-spaces/mamba
    Original,
}

/// Convert a model, and say what was written.
pub fn convert(flags: &Flags) -> Result<(), Failure> {
    let layout = match flags.layout {
        LayoutName::Hf => Layout::HuggingFace,
        LayoutName::Original => Layout::Original,
    };
    let dtype = flags.dtype.map(Into::into);
    let (path, adapter) = match flags.merge {
        true => find_adapted(&flags.model, flags.adapter.as_deref())?,
        false => (hub::locate(&flags.model)?, None),
    };
    if flags.merge && adapter.is_none() {
        return usage("--merge needs --adapter, or the directory of an adapter as MODEL");
    }
    let (max_shard_size, merge) = (flags.max_shard_size, adapter.as_ref());
    let conversion = Conversion { layout, dtype, max_shard_size, merge };
    ModelFiles::open(path)?.convert(&flags.out, &conversion)?;
    let written = ModelFiles::open(&flags.out)?;
    let mut size = 0;
    for path in written.weight_files() {
        size += path.metadata().map_err(taipan_lm::Error::io(path))?.len();
    }
    let (out, dtype, files) =
        (flags.out.display(), written.dtype(), written.weight_files().count());
    let files = if files == 1 { "1 file".into() } else { format!("{files} files") };
    Ok(crate::print(&format!("{out}: {dtype}, {} in {files}\n", bytes(size)))?)
}

/// `2GB`, `500MiB`: the units of the field, powers of 1000 and of 1024.
fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text[digits.len()..].to_ascii_uppercase();
    let factor = ["", "K", "M", "G", "T"].iter().zip(0..).find_map(|(prefix, power)| {
        let names = [format!("{prefix}B"), prefix.to_string(), format!("{prefix}IB")];
        let which = names.iter().position(|name| *name == unit)?;
        Some(if which == 2 { 1024f64 } else { 1000f64 }.powi(power))
    });
    let size = factor.zip(digits.parse::<f64>().ok()).map(|(factor, number)| factor * number);
    let size = size.filter(|size| (1.0..1e18).contains(size));
    size.map(|size| size as u64)
        .ok_or_else(|| format!("{text:?} is no size, expected one as 2GB or 500MiB"))
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_have_units() {
        for (text, expected) in [
            ("1", 1),
            ("2GB", 2_000_000_000),
            ("2gb", 2_000_000_000),
            ("500MiB", 500 << 20),
            ("1.5K", 1500),
            ("3B", 3),
            ("1T", 1_000_000_000_000),
        ] {
            assert_eq!(size(text), Ok(expected), "{text}");
        }
        for wrong in ["", "GB", "-1GB", "0", "1XB", "1e30", "NaN", "infGB", "1 GB x", "1é"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
