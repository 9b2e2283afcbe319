//! The training text when no files are given.

/// The sources this program was built from, by name: a megabyte of Rust, WGSL, Python and prose.
pub const SOURCES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/corpus.rs"));

#[cfg(test)]
mod tests {
    use super::SOURCES;

    #[test]
    fn the_corpus_is_sorted_and_has_this_file() {
        assert!(SOURCES.is_sorted_by(|a, b| a.0 < b.0), "sorted, and no name twice");
        let is_this = |name: &str| name.ends_with("src/train/corpus.rs");
        let (_, text) = SOURCES.iter().find(|(name, _)| is_this(name)).unwrap();
        assert!(text.starts_with("//! The training text"));
        assert!(SOURCES.iter().all(|(name, _)| !name.split('/').any(|part| part == "target")));
    }
}
