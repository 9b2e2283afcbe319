//! Thrift's compact protocol, in which Parquet writes what is not data.

use std::collections::BTreeMap;

/// Structs within structs at most.
const DEPTH: usize = 32;

/// A value; absent ones are `Other`.
#[derive(Debug)]
pub(super) enum Value {
    Int(i64),
    Text(Vec<u8>),
    List(Vec<Value>),
    Struct(BTreeMap<i64, Value>),
    Other,
}

impl Value {
    /// A field of a struct, by its number.
    pub fn field(&self, number: i64) -> &Value {
        match self {
            Value::Struct(fields) => fields.get(&number).unwrap_or(&Value::Other),
            _ => &Value::Other,
        }
    }

    /// The list in a field of a struct.
    pub fn list(&self, number: i64) -> &[Value] {
        match self.field(number) {
            Value::List(values) => values,
            _ => &[],
        }
    }

    pub fn int(&self) -> Option<i64> {
        match self {
            Value::Int(value) => Some(*value),
            _ => None,
        }
    }

    pub fn text(&self) -> &[u8] {
        match self {
            Value::Text(text) => text,
            _ => &[],
        }
    }
}

/// The struct that `bytes` begin with; they are then what is behind it.
pub(super) fn read(bytes: &mut &[u8]) -> Option<Value> {
    value(bytes, 12, DEPTH)
}

pub(super) fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (first, rest) = bytes.split_at_checked(count)?;
    *bytes = rest;
    Some(first)
}

/// An unsigned number of seven bits per byte.
pub(super) fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = take(bytes, 1)?[0];
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

fn zigzag(bytes: &mut &[u8]) -> Option<i64> {
    let number = varint(bytes)?;
    Some((number >> 1) as i64 ^ -((number & 1) as i64))
}

fn value(bytes: &mut &[u8], kind: u8, depth: usize) -> Option<Value> {
    let depth = depth.checked_sub(1)?;
    Some(match kind {
        1 | 2 => Value::Int(i64::from(kind == 1)),
        3 => Value::Int(i64::from(take(bytes, 1)?[0])),
        4..=6 => Value::Int(zigzag(bytes)?),
        7 => {
            take(bytes, 8)?;
            Value::Other
        }
        8 => {
            let length = varint(bytes)?;
            Value::Text(take(bytes, usize::try_from(length).ok()?)?.to_vec())
        }
        9 | 10 => {
            let head = take(bytes, 1)?[0];
            let count = if head >> 4 == 15 { varint(bytes)? } else { u64::from(head >> 4) };
            let mut values = Vec::new();
            for _ in 0..count {
                values.push(element(bytes, head & 15, depth)?);
            }
            Value::List(values)
        }
        11 => {
            let count = varint(bytes)?;
            let kinds = if count > 0 { take(bytes, 1)?[0] } else { 0 };
            for _ in 0..count {
                element(bytes, kinds >> 4, depth)?;
                element(bytes, kinds & 15, depth)?;
            }
            Value::Other
        }
        12 => {
            let (mut fields, mut number) = (BTreeMap::new(), 0_i64);
            loop {
                let head = take(bytes, 1)?[0];
                if head == 0 {
                    break Value::Struct(fields);
                }
                number = match head >> 4 {
                    0 => zigzag(bytes)?,
                    delta => number.checked_add(i64::from(delta))?,
                };
                fields.insert(number, value(bytes, head & 15, depth)?);
            }
        }
        _ => return None,
    })
}

/// A value in a list, where a boolean has a byte of its own. None is without any byte, so that a
/// long list cannot be written in few.
fn element(bytes: &mut &[u8], kind: u8, depth: usize) -> Option<Value> {
    let kind = if matches!(kind, 1 | 2) { take(bytes, 1)?[0] } else { kind };
    value(bytes, kind, depth)
}
