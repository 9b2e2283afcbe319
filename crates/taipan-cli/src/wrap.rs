//! Text that fits a terminal: broken between words, and aligned under its first line.

/// Break a text into lines of at most `width` columns where there are spaces; a longer word has a
/// line of its own. All lines but the first begin with `indent` spaces.
pub fn wrap(text: &str, indent: usize, width: usize) -> String {
    let room = width.saturating_sub(indent).max(1);
    let (mut result, mut used) = (String::new(), 0);
    for word in text.split(' ') {
        let columns = word.chars().count();
        if used > 0 && used + 1 + columns > room {
            result.push('\n');
            result.extend(std::iter::repeat_n(' ', indent));
            used = 0;
        } else if used > 0 {
            result.push(' ');
            used += 1;
        }
        result.push_str(word);
        used += columns;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::wrap;

    #[test]
    fn lines_break_between_words() {
        assert_eq!(wrap("one two three", 2, 9), "one two\n  three");
        assert_eq!(wrap("one two three", 2, 80), "one two three");
        assert_eq!(wrap("a taipan-run/checkpoint b", 0, 5), "a\ntaipan-run/checkpoint\nb");
        assert_eq!(wrap("", 4, 3), "");
    }
}
