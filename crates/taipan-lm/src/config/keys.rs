//! The keys of a JSON object, as Python writes it.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{Error, InvalidValue, Result};

/// The keys of an object that have not been read, with their values as text. What is not asked for
/// is not parsed.
pub(super) struct Keys<'a>(BTreeMap<String, &'a RawValue>);

/// A type of values, with its name in errors.
pub(super) trait Field: for<'a> Deserialize<'a> {
    const EXPECTED: &str;
}

impl Field for usize {
    const EXPECTED: &str = "a whole number";
}

impl Field for f64 {
    const EXPECTED: &str = "a number";
}

impl Field for bool {
    const EXPECTED: &str = "true or false";
}

impl Field for String {
    const EXPECTED: &str = "a string";
}

/// The most of a value that an error shows.
const SHOWN: usize = 40;

impl<'a> Keys<'a> {
    /// Those of a JSON text, after [`quote_non_finite`].
    pub(super) fn parse(text: &'a str) -> Result<Keys<'a>> {
        serde_json::from_str(text).map(Keys).map_err(|error| Error::invalid(super::OWNER, error))
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The value of a key as text; none if it is absent or null.
    pub(super) fn raw(&mut self, name: &str) -> Option<&'a str> {
        self.0.remove(name).map(RawValue::get).filter(|value| *value != "null")
    }

    /// The value of a key; none if it is absent or null.
    pub(super) fn get<T: Field>(&mut self, name: &'static str) -> Result<Option<T>> {
        let Some(text) = self.raw(name) else { return Ok(None) };
        match serde_json::from_str(text) {
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(invalid(name, text, T::EXPECTED).into()),
        }
    }

    /// The value of a key, or this one if it is absent or null.
    pub(super) fn get_or<T: Field>(&mut self, name: &'static str, default: T) -> Result<T> {
        Ok(self.get(name)?.unwrap_or(default))
    }

    /// The strings of a key; none if it is absent or null.
    pub(super) fn list(&mut self, name: &'static str) -> Result<Option<Vec<String>>> {
        let Some(text) = self.raw(name) else { return Ok(None) };
        let list = serde_json::from_str(text);
        Ok(Some(list.map_err(|_| invalid(name, text, "a list of strings"))?))
    }

    /// The numbers of a key; none if it is absent or null.
    pub(super) fn numbers<const N: usize>(
        &mut self,
        name: &'static str,
    ) -> Result<Option<[f64; N]>> {
        let Some(text) = self.raw(name) else { return Ok(None) };
        let numbers = serde_json::from_str::<Vec<f64>>(text).ok();
        let numbers = numbers.and_then(|numbers| <[f64; N]>::try_from(numbers).ok());
        Ok(Some(numbers.ok_or_else(|| invalid(name, text, &format!("{N} numbers")))?))
    }

    /// A rank of the projection to Δ, which for `"auto"` is a 16th of the width.
    pub(super) fn rank(&mut self, name: &'static str, width: usize) -> Result<usize> {
        let automatic = width.div_ceil(16);
        match self.raw(name) {
            None | Some("\"auto\"") => Ok(automatic),
            Some(text) => serde_json::from_str(text)
                .map_err(|_| invalid(name, text, "a whole number or \"auto\"").into()),
        }
    }

    /// An error unless the value of a key, if it is there, is the only one that is supported.
    pub(super) fn expect(&mut self, name: &'static str, values: &[&str]) -> Result<()> {
        match self.raw(name) {
            Some(text) if !values.contains(&text) => Err(invalid(name, text, values[0]).into()),
            _ => Ok(()),
        }
    }

    /// A key that was not read, if there is one.
    pub(super) fn unread(&self) -> Option<&str> {
        self.0.keys().next().map(String::as_str)
    }
}

/// The error for a value, as it stands in the file.
pub(super) fn invalid(name: &'static str, found: &str, expected: &str) -> InvalidValue {
    let found = match found.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &found[..end]),
        None => found.to_owned(),
    };
    InvalidValue { owner: super::OWNER, name, found, expected: expected.into() }
}

/// Python writes `Infinity` and `NaN` where JSON knows no such number: make them strings, which no
/// number is read from. Text in strings stays.
pub(super) fn quote_non_finite(text: &str) -> String {
    let (mut out, mut in_string) = (String::with_capacity(text.len()), false);
    for part in text.split_inclusive('"') {
        match in_string {
            true => out += part,
            false => {
                let part = part.replace("NaN", "\"NaN\"").replace("Infinity", "\"Infinity\"");
                out += &part.replace("-\"Infinity\"", "\"-Infinity\"");
            }
        }
        // A quote behind an odd number of backslashes is part of the string.
        let before = part.strip_suffix('"').unwrap_or(part);
        let backslashes = before.len() - before.trim_end_matches('\\').len();
        in_string = !in_string || backslashes % 2 == 1;
    }
    out
}
