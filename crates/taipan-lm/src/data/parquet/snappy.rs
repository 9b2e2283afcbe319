//! Snappy, as a block without frames (<https://github.com/google/snappy/blob/main/format_description.txt>).

use super::thrift::{take, varint};

/// What is compressed in `bytes`, if it is `size` bytes.
pub(super) fn decompress(mut bytes: &[u8], size: usize) -> Option<Vec<u8>> {
    if varint(&mut bytes)? != size as u64 {
        return None;
    }
    let mut out: Vec<u8> = Vec::new();
    while let Some(tag) = take(&mut bytes, 1) {
        let tag = tag[0];
        let high = usize::from(tag >> 2);
        let (length, offset) = match tag & 3 {
            0 if high < 60 => (high + 1, 0),
            0 => (number(&mut bytes, high - 59)?.checked_add(1)?, 0),
            1 => ((high & 7) + 4, (high >> 3) << 8 | number(&mut bytes, 1)?),
            kind => (high + 1, number(&mut bytes, 2 * usize::from(kind - 1))?),
        };
        if length > size - out.len() {
            return None;
        }
        if tag & 3 == 0 {
            out.extend(take(&mut bytes, length)?);
            continue;
        }
        let from = out.len().checked_sub(offset).filter(|from| *from < out.len())?;
        // The copy may overlap what it makes.
        for at in from..from + length {
            out.push(out[at]);
        }
    }
    (out.len() == size).then_some(out)
}

/// A number of some bytes, the lowest first.
fn number(bytes: &mut &[u8], count: usize) -> Option<usize> {
    Some(take(bytes, count)?.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_and_copies() {
        let copies = [b"\x0a\x08abc".as_slice(), &[0b1_0001, 3], &[0b10, 8, 0]].concat();
        // abc, eight more of them by a copy that overlaps itself would be too many.
        assert_eq!(decompress(&copies, 10), None);
        let copies = [b"\x09\x08abc".as_slice(), &[0b0000_0101, 3], &[0b10, 7, 0]].concat();
        assert_eq!(decompress(&copies, 9).unwrap(), b"abcabcabb");
        let long = [vec![0xc8, 0x01, 0xf0, 199], vec![b'x'; 200]].concat();
        assert_eq!(decompress(&long, 200).unwrap(), [b'x'; 200]);
        for end in 0..long.len() {
            assert_eq!(decompress(&long[..end], 200), None);
        }
        assert_eq!(decompress(&[4, 0b101, 0], 4), None, "a copy of nothing");
    }
}
