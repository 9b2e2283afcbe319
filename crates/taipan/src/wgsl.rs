//! Kernels' source as it is compiled in: without comments, which would be a fifth of the text that a
//! page loads, and for a page without indentation.

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

/// Whether lines keep their indentation: a page loads them without.
const INDENTED: bool = cfg!(not(target_family = "wasm"));

/// The length of [`without_comments`].
pub(crate) const fn code_len(source: &[u8]) -> usize {
    let (mut len, mut at) = (0, 0);
    while at < source.len() {
        let Line { begin, end, next } = line(source, at, INDENTED);
        len += end - begin;
        at = next;
    }
    len
}

/// The lines of `source`, without comments and without those that have nothing else. `N` is
/// [`code_len`].
pub(crate) const fn without_comments<const N: usize>(source: &[u8]) -> [u8; N] {
    let (mut code, mut len, mut at) = ([b'\n'; N], 0, 0);
    while at < source.len() {
        let Line { begin, end, next } = line(source, at, INDENTED);
        // The last byte of a line, its end, is there already.
        let mut i = begin;
        while i + 1 < end {
            code[len + i - begin] = source[i];
            i += 1;
        }
        len += end - begin;
        at = next;
    }
    code
}

/// A line of a source.
struct Line {
    /// Where its code begins.
    begin: usize,
    /// One more than the end of its code, for the line's end, or `begin` if there is no code.
    end: usize,
    /// Where the next line begins.
    next: usize,
}

const fn line(source: &[u8], at: usize, indented: bool) -> Line {
    let (mut begin, mut end, mut i, mut comment) = (at, at, at, false);
    while i < source.len() && source[i] != b'\n' {
        comment = comment || (source[i] == b'/' && i + 1 < source.len() && source[i + 1] == b'/');
        i += 1;
        if !comment && source[i - 1] != b' ' {
            if end == at && !indented {
                begin = i - 1;
            }
            end = i;
        }
    }
    let end = if end == at { begin } else { end + 1 };
    Line { begin, end, next: i + 1 }
}

#[cfg(test)]
mod tests {
    use super::{Line, code_len, line, without_comments};

    #[test]
    fn comments_and_empty_lines_go() {
        const SOURCE: &[u8] =
            b"// Says what.\n\nfn f(x: f32) -> f32 { // [n]\n    return x / 2.0; // half\n\n    // end\n}";
        let code = without_comments::<{ code_len(SOURCE) }>(SOURCE);
        let expected = "fn f(x: f32) -> f32 {\n    return x / 2.0;\n}\n";
        assert_eq!(std::str::from_utf8(&code).unwrap(), expected);
    }

    #[test]
    fn a_page_has_no_indentation() {
        let source = b"    x += 1; // one\n    // two\n}";
        let Line { begin, end, next } = line(source, 0, false);
        assert_eq!(&source[begin..end - 1], b"x += 1;");
        let Line { begin, end, next } = line(source, next, false);
        assert_eq!(begin, end, "no code");
        let Line { begin, end, next } = line(source, next, false);
        assert_eq!((&source[begin..end - 1], next), (&b"}"[..], source.len() + 1));
    }
}
