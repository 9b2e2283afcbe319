//! Errors, as JavaScript gets them.

use std::io::ErrorKind;

use js_sys::{Error as JsError, Reflect};
use taipan_lm::Error;
use wasm_bindgen::JsValue;

/// An `Error` of JavaScript with the `kind` that the package documents.
pub(crate) struct Failure(JsValue);

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub(crate) fn new(kind: &str, message: &str) -> Failure {
        let error = JsError::new(message);
        Reflect::set(&error, &"kind".into(), &kind.into()).expect("an error takes properties");
        Failure(error.into())
    }
}

impl<E: Into<Error>> From<E> for Failure {
    fn from(error: E) -> Failure {
        let error = error.into();
        let message = error.to_string();
        let says = |words: &str| message.contains(words);
        let kind = match &error {
            Error::Tensor(taipan::Error::Memory { .. }) => "memory",
            Error::Tensor(taipan::Error::Device { .. }) if says("the GPU was lost") => "lost",
            Error::Tensor(taipan::Error::Device { .. }) if says("memory is full") => "memory",
            Error::Tensor(taipan::Error::Device { .. }) => "internal",
            Error::Io { source, .. } if source.kind() == ErrorKind::OutOfMemory => "memory",
            Error::Invalid { .. } if says("expected a finite number") => "notFinite",
            _ => "input",
        };
        Failure::new(kind, &message)
    }
}

impl From<Failure> for JsValue {
    fn from(failure: Failure) -> JsValue {
        failure.0
    }
}

/// A value of JSON that JavaScript sent.
pub(crate) fn parse<T: serde::de::DeserializeOwned>(name: &str, json: &str) -> Result<T> {
    serde_json::from_str(json).map_err(|error| Error::invalid(name, error).into())
}
