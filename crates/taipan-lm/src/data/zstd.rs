//! Zstandard (RFC 8878): any number of frames, one after the other.

use std::io::{self, BufRead, Error, ErrorKind, Read};

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// What the frames contain. Their checksums are verified, and skippable frames skipped.
pub(super) struct ZstdReader<R> {
    source: R,
    decoder: FrameDecoder,
    is_inside: bool,
}

impl<R: BufRead> ZstdReader<R> {
    pub fn new(source: R) -> ZstdReader<R> {
        ZstdReader { source, decoder: FrameDecoder::new(), is_inside: false }
    }

    /// Begin the next frame, or skip it; whether there is one.
    fn next_frame(&mut self) -> io::Result<bool> {
        if self.source.fill_buf()?.is_empty() {
            return Ok(false);
        }
        match self.decoder.reset(&mut self.source) {
            Ok(()) => self.is_inside = true,
            Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                length,
                ..
            })) => {
                let length = u64::from(length);
                let skipped = io::copy(&mut self.source.by_ref().take(length), &mut io::sink())?;
                if skipped < length {
                    return Err(ErrorKind::UnexpectedEof.into());
                }
            }
            Err(error) => return Err(invalid(error)),
        }
        Ok(true)
    }
}

fn invalid(error: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::InvalidData, format!("not valid Zstandard data: {error}"))
}

impl<R: BufRead> Read for ZstdReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while !buffer.is_empty() {
            let decoder = &mut self.decoder;
            if !self.is_inside {
                if !self.next_frame()? {
                    break;
                }
            } else if decoder.can_collect() > 0 {
                return decoder.read(buffer);
            } else if !decoder.is_finished() {
                let one = BlockDecodingStrategy::UptoBlocks(1);
                decoder.decode_blocks(&mut self.source, one).map_err(invalid)?;
            } else {
                let expected = decoder.get_checksum_from_data();
                if expected.is_some() && expected != decoder.get_calculated_checksum() {
                    return Err(invalid("the checksum does not match"));
                }
                self.is_inside = false;
            }
        }
        Ok(0)
    }
}
