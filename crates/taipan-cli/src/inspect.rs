//! `taipan inspect`: the shape of a model.

use std::path::PathBuf;

use crate::Failure;
use taipan_lm::Config;

/// Print the shape of the model whose `config.json`, or the directory of it, is at `path`.
pub fn inspect(mut path: PathBuf) -> Result<(), Failure> {
    if path.is_dir() {
        path.push("config.json");
    }
    let named = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(&path).map_err(|error| named(&error))?;
    let config = Config::from_json(&text).map_err(|error| named(&error))?;
    let size = format!(
        "Mamba, {:.1} M parameters ({} MB in f32)",
        config.parameters() as f64 / 1e6,
        config.parameters() * 4 / 1_000_000
    );
    let layers = format!(
        "{} layers of width {}, {} channels inside, state {}, Δ of rank {}, convolution of {}",
        config.num_hidden_layers,
        config.hidden_size,
        config.inner_size(),
        config.state_size,
        config.time_step_rank,
        config.conv_kernel
    );
    let head = if config.tie_word_embeddings { "tied" } else { "of its own" };
    let vocabulary = format!("vocabulary {}, head {head}", config.vocab_size);
    Ok(crate::print(&format!("{size}\n{layers}\n{vocabulary}\n"))?)
}
