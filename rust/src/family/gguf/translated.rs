//! GGUF metadata under the names of config.json.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::source::Source;
use crate::error::Result;

/// Metadata in the form of config.json.
#[derive(Default)]
pub(super) struct Translated {
    /// The values.
    pub values: Map<String, Value>,
    /// Where each key comes from, for messages: (path of config.json, key of the file).
    pub origins: BTreeMap<String, String>,
}

impl Translated {
    /// Copies the value of the architecture's key `own`.
    pub fn take(&mut self, source: &Source<'_>, key: &str, own: &str) -> Result<()> {
        self.origins.insert(key.to_owned(), source.full(own));
        if let Some(value) = source.get(own)? {
            self.values.insert(key.to_owned(), value);
        }
        Ok(())
    }

    /// Sets a value that is in no key of the file.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.values.insert(key.to_owned(), value.into());
    }
}
