//! Models by their name on the Hugging Face Hub, in the cache that its own tools fill. Nothing is
//! downloaded.
//!
//! ```text
//! $HF_HUB_CACHE, $HF_HOME/hub, $XDG_CACHE_HOME/huggingface/hub or ~/.cache/huggingface/hub
//!   models--state-spaces--mamba-130m-hf/
//!     refs/main                    the name of a snapshot
//!     snapshots/<name>/            config.json, model.safetensors, …
//! ```

use std::env;
use std::path::{Path, PathBuf};

use crate::Failure;

/// The directory or file of a model: the path itself if there is something, or else the model of
/// this name in the cache.
pub fn locate(path: &Path) -> Result<PathBuf, Failure> {
    match path.to_str().filter(|_| !path.exists()).filter(|text| is_name(text)) {
        Some(name) => cached(name, cache().as_deref()),
        None => Ok(path.to_owned()),
    }
}

/// `state-spaces/mamba-130m-hf`. A name without an owner is a path that is missing.
fn is_name(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let is_part = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphanumeric()) && part.chars().all(allowed)
    };
    text.split_once('/').is_some_and(|(owner, name)| is_part(owner) && is_part(name))
}

/// The cache, where Hugging Face's tools look for it.
fn cache() -> Option<PathBuf> {
    let variable = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = || variable("XDG_CACHE_HOME").or_else(|| Some(env::home_dir()?.join(".cache")));
    let hugging_face = || variable("HF_HOME").or_else(|| Some(home()?.join("huggingface")));
    variable("HF_HUB_CACHE").or_else(|| Some(hugging_face()?.join("hub")))
}

/// The snapshot of a model.
fn cached(name: &str, cache: Option<&Path>) -> Result<PathBuf, Failure> {
    let repository = cache.map(|cache| cache.join(format!("models--{}", name.replace('/', "--"))));
    let snapshot = repository.as_ref().and_then(|repository| {
        let main = std::fs::read_to_string(repository.join("refs/main")).ok()?;
        Some(repository.join("snapshots").join(main.trim()))
    });
    if let Some(snapshot) = snapshot.filter(|snapshot| snapshot.join("config.json").exists()) {
        return Ok(snapshot);
    }
    let shown = cache.map_or("which has no place here".into(), |cache| cache.display().to_string());
    let found = format!("no such file or directory, and not in Hugging Face's cache ({shown})");
    Err(format!("{name}: {found}; to download it: hf download {name}").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_an_owner() {
        for name in ["state-spaces/mamba-130m-hf", "a/b", "Org1/model_v2.5"] {
            assert!(is_name(name), "{name}");
        }
        for path in ["run", "./a/b", "../a", "/a/b", "a/b/c", "a/", "/", "", "a/.b", "~/x", "a b/c"]
        {
            assert!(!is_name(path), "{path}");
        }
    }
}
