//! Kernels' source as it is compiled in: without comments, which would be a fifth of the text that a
//! page loads.

/// The WGSL of these files, one after the other, without comments. In every file: no `use` needed.
macro_rules! wgsl {
    ($($file:literal),+) => {{
        const FILES: &[u8] = concat!($(include_str!($file)),+).as_bytes();
        const CODE: &[u8] =
            &$crate::wgsl::without_comments::<{ $crate::wgsl::code_len(FILES) }>(FILES);
        // One address wherever it is used: `Source` is compared by it.
        static TEXT: &str = match std::str::from_utf8(CODE) {
            Ok(text) => text,
            Err(_) => panic!("WGSL is UTF-8"),
        };
        TEXT
    }};
}

/// The length of [`without_comments`].
pub(crate) const fn code_len(source: &[u8]) -> usize {
    let (mut len, mut at) = (0, 0);
    while at < source.len() {
        let (end, next) = line(source, at);
        len += end - at;
        at = next;
    }
    len
}

/// The lines of `source`, without comments and without those that have nothing else. `N` is
/// [`code_len`].
pub(crate) const fn without_comments<const N: usize>(source: &[u8]) -> [u8; N] {
    let (mut code, mut len, mut at) = ([b'\n'; N], 0, 0);
    while at < source.len() {
        let (end, next) = line(source, at);
        // The last byte of a line, its end, is there already.
        let mut i = at;
        while i + 1 < end {
            code[len + i - at] = source[i];
            i += 1;
        }
        len += end - at;
        at = next;
    }
    code
}

/// Of the line that begins at `at`: one more than the end of its code, for the line's end, or `at` if
/// there is no code; and where the next line begins.
const fn line(source: &[u8], at: usize) -> (usize, usize) {
    let (mut end, mut i, mut comment) = (at, at, false);
    while i < source.len() && source[i] != b'\n' {
        comment = comment || (source[i] == b'/' && i + 1 < source.len() && source[i + 1] == b'/');
        i += 1;
        if !comment && source[i - 1] != b' ' {
            end = i;
        }
    }
    (if end == at { at } else { end + 1 }, i + 1)
}

#[cfg(test)]
mod tests {
    use super::{code_len, without_comments};

    #[test]
    fn comments_and_empty_lines_go() {
        const SOURCE: &[u8] =
            b"// Says what.\n\nfn f(x: f32) -> f32 { // [n]\n    return x / 2.0; // half\n\n    // end\n}";
        let code = without_comments::<{ code_len(SOURCE) }>(SOURCE);
        let expected = "fn f(x: f32) -> f32 {\n    return x / 2.0;\n}\n";
        assert_eq!(std::str::from_utf8(&code).unwrap(), expected);
    }
}
