//! The file's metadata, which records the keys that were read, so that law 6 holds here too.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Number, Value as Json};

use crate::checkpoint::gguf::{Metadata, Value};
use crate::checkpoint::{Checkpoint, escape_for_terminal};
use ropechat_platform::error::{Error, Result};

/// The key that names the architecture.
const ARCHITECTURE: &str = "general.architecture";
/// Longest list of a model's own: one entry per layer or pair.
const LONGEST_LIST: usize = 1 << 16;

/// Keys of an architecture that never change what is computed.
const NO_MATHS: &[&str] = &[
    // Of pictures: a text has one position per token.
    "deepstack_mapping",
    "n_deepstack_layers",
    "rope.dimension_sections",
    "rope.scaling.finetuned",
    "tensor_data_layout",
];
/// Keys that do nothing with a value of one.
const INERT: &[&str] = &["expert_group_count", "expert_group_used_count", "expert_weights_scale"];
/// How many of the last layers predict further tokens; they are not part of the model.
const NEXTN: &str = "nextn_predict_layers";

/// A `.gguf` file, seen as a model.
pub(super) struct Source<'a> {
    pub checkpoint: &'a Checkpoint,
    pub metadata: Metadata<'a>,
    /// `general.architecture`.
    pub arch: String,
    read: RefCell<BTreeSet<String>>,
}

impl<'a> Source<'a> {
    /// Errors: `Config` without an architecture, `Unsupported` for what is no model (an adapter, a part for pictures).
    pub fn new(checkpoint: &'a Checkpoint, metadata: Metadata<'a>) -> Result<Source<'a>> {
        let bad = |key: &str, what: String| Error::Config {
            path: checkpoint.path().to_owned(),
            key: key.to_owned(),
            what: format!("{what}; the name of an architecture is needed; download the file again"),
        };
        let arch = match metadata.get(ARCHITECTURE) {
            None => return Err(bad(ARCHITECTURE, "it is missing".to_owned())),
            Some(value) => value.text().ok_or_else(|| bad(ARCHITECTURE, value.to_string()))?,
        };
        let source = Source { checkpoint, metadata, arch, read: RefCell::default() };
        match metadata.get("general.type") {
            None => Ok(source),
            Some(value) if value.text().as_deref() == Some("model") => Ok(source),
            Some(other) => {
                let what =
                    format!("must be \"model\" (got {other}); open the model that this file belongs to");
                Err(source.unsupported("general.type", what))
            }
        }
    }

    pub fn path(&self) -> &'a Path {
        self.checkpoint.path()
    }

    /// The whole name of a key of the architecture.
    pub fn full(&self, key: &str) -> String {
        format!("{}.{key}", escape_for_terminal(&self.arch))
    }

    /// The value of a key of the architecture, as JSON. Marks it as understood.
    ///
    /// Errors: `Config` for numbers and texts that JSON does not have, and for lists longer than any model's.
    pub fn get(&self, key: &str) -> Result<Option<Json>> {
        let full = format!("{}.{key}", self.arch);
        self.read.borrow_mut().insert(full.clone());
        self.of_file(&full)
    }

    /// The number of layers, without those that predict further tokens; None when the file states none.
    pub fn num_layers(&self) -> Result<Option<u64>> {
        let further = self.whole(NEXTN)?.unwrap_or(0);
        Ok(self.whole("block_count")?.map(|all| all.saturating_sub(further)))
    }

    /// A value per layer; None when the key is absent or holds no list.
    pub fn per_layer(&self, key: &str) -> Result<Option<Vec<Json>>> {
        let Some(Json::Array(mut values)) = self.get(key)? else {
            return Ok(None);
        };
        if let Some(layers) = self.num_layers()?.and_then(|layers| usize::try_from(layers).ok()) {
            values.truncate(layers);
        }
        Ok(Some(values))
    }

    /// A number per layer, also infinite ones.
    pub fn numbers(&self, key: &str) -> Option<Vec<f64>> {
        self.read.borrow_mut().insert(key.to_owned());
        let Some(Value::List(list)) = self.metadata.get(key) else {
            return None;
        };
        let number = |value| match value {
            Value::Float(number) => Some(number),
            _ => None,
        };
        if list.len() > LONGEST_LIST { None } else { list.iter().map(number).collect() }
    }

    /// The value of any key.
    pub fn of_file(&self, key: &str) -> Result<Option<Json>> {
        let Some(value) = self.metadata.get(key) else {
            return Ok(None);
        };
        json(value).map(Some).ok_or_else(|| {
            self.bad(
                key,
                format!("must be a finite number, UTF-8 text or a short list of them (got {value})"),
            )
        })
    }

    /// A whole number of the architecture; None when it is absent or something else, which its reader will refuse.
    pub fn whole(&self, key: &str) -> Result<Option<u64>> {
        Ok(self.get(key)?.and_then(|value| value.as_u64()))
    }

    /// `what` is `must be X (got Y)`; `key` is whole.
    pub fn bad(&self, key: &str, what: String) -> Error {
        let what = format!("{what}; correct the file, or download it again");
        Error::Config { path: self.path().to_owned(), key: escape_for_terminal(key), what }
    }

    /// `what` is `must be X (got Y)`; `key` is whole.
    pub fn unsupported(&self, key: &str, what: String) -> Error {
        Error::Unsupported { path: self.path().to_owned(), key: escape_for_terminal(key), what }
    }

    /// Is there a tensor of that name in the first layer?
    pub fn has_in_layer(&self, name: &str) -> bool {
        self.checkpoint.contains(&format!("blk.0.{name}"))
    }

    /// Is there a tensor of that name in a layer?
    pub fn has_in_layers(&self, name: &str) -> bool {
        self.checkpoint.names().any(|full| below_layer(full) == Some(name))
    }

    /// The shape of the tensor of that name in the first layer that has one.
    pub fn shape_in_layers(&self, name: &str) -> Option<&'a [usize]> {
        let full = self.checkpoint.names().find(|full| below_layer(full) == Some(name))?;
        Some(self.checkpoint.tensor(full)?.shape)
    }

    /// Refuses every key of the architecture that was not read: it may change what the model computes.
    pub fn refuse_unread(&self) -> Result<()> {
        let read = self.read.borrow();
        let prefix = format!("{}.", self.arch);
        for (key, value) in self.metadata.iter() {
            let Some(own) = key.strip_prefix(&prefix) else {
                continue;
            };
            let inert = INERT.contains(&own) && json(value).and_then(|value| value.as_f64()) == Some(1.0);
            if !read.contains(key) && !NO_MATHS.contains(&own) && !inert {
                let what =
                    format!("{value}; this key is not known, and it may change what the model computes");
                return Err(self.unsupported(key, what));
            }
        }
        Ok(())
    }

    /// Texts outside of the architecture that are not UTF-8, one warning each.
    pub fn not_utf8(&self) -> Vec<String> {
        let broken = |value: &Value<'_>| matches!(value, Value::Text(_)) && value.text().is_none();
        let broken = self.metadata.iter().filter(|(_, value)| broken(value));
        broken
            .map(|(key, _)| {
                format!("{}: {}: it is not UTF-8", self.path().display(), escape_for_terminal(key))
            })
            .collect()
    }
}

/// The name of a layer's tensor below that layer.
fn below_layer(name: &str) -> Option<&str> {
    name.strip_prefix("blk.")?.split_once('.').map(|(_, own)| own)
}

/// None for NaN, infinity, text that is not UTF-8 and long lists.
fn json(value: Value<'_>) -> Option<Json> {
    Some(match value {
        Value::Unsigned(number) => number.into(),
        Value::Signed(number) => number.into(),
        Value::Float(number) => Json::Number(Number::from_f64(number)?),
        Value::Bool(flag) => flag.into(),
        Value::Text(_) => value.text()?.into(),
        Value::List(list) if list.len() > LONGEST_LIST => return None,
        Value::List(list) => Json::Array(list.iter().map(json).collect::<Option<_>>()?),
    })
}
