//! GGUF metadata under the names of config.json.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::source::Source;
use ropechat_platform::error::Result;

/// Metadata in the form of config.json.
#[derive(Default)]
pub(super) struct Translated {
    /// The values.
    pub values: Map<String, Value>,
    /// Where each key comes from, for messages: (path of config.json, key of the file).
    pub origins: BTreeMap<String, String>,
}

impl Translated {
    /// Copies the value of the architecture's key `own`. A list with one value for all layers is that value.
    pub fn take(&mut self, source: &Source<'_>, key: &str, own: &str) -> Result<()> {
        self.origins.insert(key.to_owned(), source.full(own));
        let value = match source.per_layer(own)? {
            Some(values) if values.first().is_some_and(|first| values.iter().all(|value| value == first)) => {
                values.into_iter().next()
            }
            Some(values) => Some(Value::Array(values)),
            None => source.get(own)?,
        };
        if let Some(value) = value {
            self.values.insert(key.to_owned(), value);
        }
        Ok(())
    }

    /// The whole number of a key that was taken.
    pub fn whole(&self, key: &str) -> Option<u64> {
        self.values.get(key)?.as_u64()
    }

    /// Sets a value that is in no key of the file.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.values.insert(key.to_owned(), value.into());
    }
}
