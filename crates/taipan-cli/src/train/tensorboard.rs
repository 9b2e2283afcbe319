//! TensorBoard's event files: TFRecords of protocol-buffer messages, as far as scalars need them.
//!
//! A record is `length: u64, crc(length): u32, data, crc(data): u32`, little-endian, with masked
//! CRC-32C. The data is an `Event`:
//!
//! ```text
//! Event      wall_time = 1: double, step = 2: int64, file_version = 3: string, summary = 5,
//!            session_log = 7
//! Summary    value = 1, repeated: { tag = 1: string, simple_value = 2: float }
//! SessionLog status = 1: enum { START = 1 }
//! ```

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use taipan_lm::Error;

use super::metrics::{Row, Timing};
use crate::Failure;

const PREFIX: &str = "events.out.tfevents.";
const SUFFIX: &str = ".taipan";

/// Whether a file has this name that a run gave it.
pub fn is_events(name: &str) -> bool {
    name.starts_with(PREFIX) && name.ends_with(SUFFIX)
}

/// An event file.
pub struct Events {
    path: PathBuf,
    file: File,
}

impl Events {
    /// A new file in the run directory, for a run that has come to `step`. Of older files
    /// TensorBoard forgets what is after it.
    pub fn create(directory: &Path, step: u64) -> Result<Events, Failure> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let names = std::fs::read_dir(directory).map_err(Error::io(directory))?;
        let names = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let path = directory.join(name_after(now, names));
        let file = File::create_new(&path).map_err(Error::io(&path))?;
        let mut events = Events { path, file };
        events.write(0, 3, b"brain.Event:2")?;
        let mut start = Vec::new();
        varint_field(&mut start, 1, 1);
        events.write(step + 1, 7, &start)?;
        Ok(events)
    }

    pub fn push(&mut self, row: &Row, timing: Option<&Timing>) -> Result<(), Failure> {
        let mut scalars = Vec::new();
        if let Some(training) = &row.training {
            scalars.push(("loss/train", training.loss));
            scalars.push(("lr", training.lr));
            scalars.extend(training.grad_norm.map(|norm| ("grad_norm", norm)));
        }
        if let Some(held_out) = &row.held_out {
            scalars.push(("loss/val", held_out.val_loss));
            scalars.extend(held_out.bits_per_byte.map(|bits| ("bits_per_byte", bits)));
        }
        scalars.extend(timing.map(|timing| ("tokens_per_second", timing.tokens_per_second)));
        self.write(row.step, 5, &summary(&scalars))
    }

    /// An event with one field besides time and step.
    fn write(&mut self, step: u64, field: u8, value: &[u8]) -> Result<(), Failure> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let record = record(&event(now.as_secs_f64(), step, field, value));
        Ok(self.file.write_all(&record).map_err(Error::io(&self.path))?)
    }
}

/// A name for a file of this time. TensorBoard reads files in the order of their names, so that it
/// comes after all that are there, though the clock may have been turned back.
fn name_after(now: Duration, names: impl Iterator<Item = String>) -> String {
    let time = |name: String| {
        let time = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?.split_once('.')?;
        Some(Duration::new(time.0.parse().ok()?, time.1.parse().ok()?))
    };
    let last = names.filter_map(time).max();
    let time = now.max(last.map_or(Duration::ZERO, |last| last + Duration::from_nanos(1)));
    format!("{PREFIX}{}.{:09}{SUFFIX}", time.as_secs(), time.subsec_nanos())
}

fn event(wall_time: f64, step: u64, field: u8, value: &[u8]) -> Vec<u8> {
    let mut event = Vec::new();
    event.push(1 << 3 | I64);
    event.extend(wall_time.to_le_bytes());
    varint_field(&mut event, 2, step);
    bytes_field(&mut event, field, value);
    event
}

fn summary(scalars: &[(&str, f64)]) -> Vec<u8> {
    let mut summary = Vec::new();
    for (name, scalar) in scalars {
        let mut value = Vec::new();
        bytes_field(&mut value, 1, name.as_bytes());
        value.push(2 << 3 | I32);
        value.extend((*scalar as f32).to_le_bytes());
        bytes_field(&mut summary, 1, &value);
    }
    summary
}

/// Protocol buffers' ways to write a value. They stand behind the number of the field, in one byte.
const VARINT: u8 = 0;
const I64: u8 = 1;
const LEN: u8 = 2;
const I32: u8 = 5;

fn varint_field(out: &mut Vec<u8>, field: u8, value: u64) {
    out.push(field << 3 | VARINT);
    varint(out, value);
}

fn bytes_field(out: &mut Vec<u8>, field: u8, value: &[u8]) {
    out.push(field << 3 | LEN);
    varint(out, value.len() as u64);
    out.extend(value);
}

/// Seven bits a byte, the lowest first; the top bit says that more follow.
fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn record(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    // Masked, so that the sum of data with sums in it is no multiple of them.
    let masked = |bytes| crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes();
    [&length[..], &masked(&length), data, &masked(data)].concat()
}

/// Castagnoli's polynomial, bit by bit: a record has some hundred bytes.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc: u32, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_file_comes_after_the_others() {
        let now = Duration::new(100, 5);
        let name = |names: &[&str]| name_after(now, names.iter().map(ToString::to_string));
        assert_eq!(name(&[]), "events.out.tfevents.100.000000005.taipan");
        let later = "events.out.tfevents.200.999999999.taipan";
        let earlier = "events.out.tfevents.99.000000000.taipan";
        assert_eq!(name(&[later, earlier]), "events.out.tfevents.201.000000000.taipan");
        assert_eq!(name(&[earlier, "loss.svg"]), "events.out.tfevents.100.000000005.taipan");
    }

    #[test]
    fn sums_are_those_of_rfc_3720() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
    }

    #[test]
    fn a_record_is_what_tensorboard_writes() {
        // tensorboard 2.21: RecordWriter(file).write(b"taipan")
        assert_eq!(record(b"taipan"), b"\x06\0\0\0\0\0\0\0si\xd57taipanm\xb5\xe6\xc9");
    }

    #[test]
    fn a_scalar_is_written_as_protocol_buffers_say() {
        let event = event(1.0, 300, 5, &summary(&[("lr", 0.5)]));
        let expected = [
            &b"\x09\0\0\0\0\0\0\xf0\x3f"[..], // 1: 1.0
            b"\x10\xac\x02",                  // 2: 300
            b"\x2a\x0b",                      // 5: 11 bytes
            b"\x0a\x09",                      // 1: 9 bytes
            b"\x0a\x02lr",                    // 1: "lr"
            b"\x15\0\0\0\x3f",                // 2: 0.5
        ];
        assert_eq!(event, expected.concat());
    }
}
