//! The Rust of README and docs, compiled and run as doctests.

macro_rules! pages {
    ($($name:ident: $file:literal,)+) => {$(
        #[doc = include_str!(concat!("../../../", $file))]
        mod $name {}
    )+};
}

pages! {
    readme: "README.md",
    readme_taipan: "crates/taipan/README.md",
    readme_taipan_lm: "crates/taipan-lm/README.md",
    getting_started: "docs/getting-started.md",
    training: "docs/training.md",
    fine_tuning: "docs/fine-tuning.md",
    file_formats: "docs/file-formats.md",
    determinism: "docs/determinism.md",
    troubleshooting: "docs/troubleshooting.md",
}
