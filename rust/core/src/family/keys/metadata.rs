//! Typed reading of a model's metadata: every number has a range, every fault names its key.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::path::Path;

use serde_json::{Map, Value};

use crate::checkpoint::json::{self, describe};
use crate::checkpoint::{Folder, escape_for_terminal};
use ropechat_platform::error::{Error, Result};

/// What to do about a bad value: the last part of its message.
const ADVICE: &str = "correct the file, or download it again";

/// One JSON object of metadata under Hugging Face's key names, with a memory of the keys that were read.
///
/// `null` reads as absent: transformers writes it for "not set".
pub struct Metadata<'a> {
    path: &'a Path,
    /// Key of the object in the file, with a dot: empty at the top.
    prefix: String,
    values: &'a Map<String, Value>,
    /// (usual key, the family's own).
    aliases: &'static [(&'static str, &'static str)],
    /// What the file itself calls a path of keys, where these are translated.
    origins: Option<&'a BTreeMap<String, String>>,
    read: RefCell<BTreeSet<&'a str>>,
    warnings: &'a RefCell<Vec<String>>,
}

impl<'a> Metadata<'a> {
    /// Wraps the top-level object of the file at `path`; oddities that do no harm are added to `warnings`.
    pub fn new(
        path: &'a Path,
        values: &'a Map<String, Value>,
        warnings: &'a RefCell<Vec<String>>,
    ) -> Metadata<'a> {
        let (prefix, read) = (String::new(), RefCell::default());
        Metadata { path, prefix, values, aliases: &[], origins: None, read, warnings }
    }

    /// This object as a translation of another file's keys: messages name the keys of that file.
    pub fn with_origins(self, origins: &'a BTreeMap<String, String>) -> Metadata<'a> {
        Metadata { origins: Some(origins), ..self }
    }

    /// This object, some keys of which the family names differently: (usual key, the family's own).
    pub fn with_aliases(self, aliases: &'static [(&'static str, &'static str)]) -> Metadata<'a> {
        Metadata { aliases, ..self }
    }

    /// The key that the file uses for `key`.
    fn actual<'k>(&self, key: &'k str) -> &'k str {
        let own = || self.aliases.iter().filter(|(usual, _)| *usual == key).map(|(_, own)| *own);
        let has = |key: &&str| self.values.contains_key(*key);
        own().find(has).or_else(|| if has(&key) { None } else { own().next() }).unwrap_or(key)
    }

    /// The value of a key, if it is there and not null. Marks the key as understood.
    pub fn get(&self, key: &str) -> Option<&'a Value> {
        let key = self.actual(key);
        let (key, value) = self.values.get_key_value(key)?;
        self.read.borrow_mut().insert(key);
        (!value.is_null()).then_some(value)
    }

    /// All keys of the file, read or not.
    pub fn keys(&self) -> impl Iterator<Item = &'a str> {
        self.values.keys().map(String::as_str)
    }

    /// Is the key there, with any value?
    pub fn has(&self, key: &str) -> bool {
        self.values.contains_key(self.actual(key))
    }

    /// A whole number in a range, or None when absent.
    pub fn integer_if_any(&self, key: &str, range: RangeInclusive<u64>) -> Result<Option<usize>> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let number =
            value.as_u64().filter(|number| range.contains(number)).and_then(|n| usize::try_from(n).ok());
        number.map(Some).ok_or_else(|| {
            let (least, most) = (range.start(), range.end());
            self.bad(key, &format!("must be a whole number from {least} to {most} (got {})", describe(value)))
        })
    }

    /// A whole number in a range that the file must state.
    pub fn integer(&self, key: &str, range: RangeInclusive<u64>) -> Result<usize> {
        let allowed = format!("a whole number from {} to {} is needed", range.start(), range.end());
        self.integer_if_any(key, range)?.ok_or_else(|| self.bad(key, &format!("it is missing; {allowed}")))
    }

    /// A finite number in a range, or None when absent.
    pub fn number_if_any(&self, key: &str, range: RangeInclusive<f64>) -> Result<Option<f64>> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        // A range check refuses NaN as well; JSON has neither NaN nor infinity.
        value
            .as_f64()
            .filter(|number| range.contains(number))
            .map(Some)
            .ok_or_else(|| self.bad(key, &format!("must be {} (got {})", in_words(&range), describe(value))))
    }

    /// A finite number in a range that the file must state.
    pub fn number(&self, key: &str, range: RangeInclusive<f64>) -> Result<f64> {
        let missing = || self.bad(key, &format!("it is missing; {} is needed", in_words(&range)));
        self.number_if_any(key, range.clone())?.ok_or_else(missing)
    }

    /// A finite number in a range; when absent, the family's documented default (a `null` is noted).
    pub fn number_or(&self, key: &str, range: RangeInclusive<f64>, default: f64) -> Result<f64> {
        let number = self.number_if_any(key, range)?;
        if number.is_none() && self.has(key) {
            self.warn(key, &format!("it is null; {default} is used, the family's default"));
        }
        Ok(number.unwrap_or(default))
    }

    /// true or false; when absent, the family's documented default.
    pub fn flag_or(&self, key: &str, default: bool) -> Result<bool> {
        match self.get(key) {
            None => Ok(default),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => Err(self.bad(key, &format!("must be true or false (got {})", describe(other)))),
        }
    }

    /// A text, or None when absent.
    pub fn text_if_any(&self, key: &str) -> Result<Option<&'a str>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.bad(key, &format!("must be a text (got {})", describe(other)))),
        }
    }

    /// An inner object, or None when absent.
    pub fn object_if_any(&self, key: &str) -> Result<Option<Metadata<'a>>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(values)) => Ok(Some(Metadata {
                prefix: format!("{}{key}.", self.prefix),
                values,
                aliases: &[],
                read: RefCell::default(),
                ..*self
            })),
            Some(other) => Err(self.bad(key, &format!("must be an object (got {})", describe(other)))),
        }
    }

    /// Numbers in a range, or None when absent.
    pub fn numbers_if_any(&self, key: &str, range: RangeInclusive<f64>) -> Result<Option<Vec<f64>>> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let numbers = value.as_array().and_then(|list| {
            list.iter().map(|number| number.as_f64().filter(|number| range.contains(number))).collect()
        });
        numbers.map(Some).ok_or_else(|| {
            self.bad(key, &format!("must be a list, each {} (got {})", in_words(&range), describe(value)))
        })
    }

    /// Texts, or None when absent.
    pub fn texts_if_any(&self, key: &str) -> Result<Option<Vec<&'a str>>> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let texts = value.as_array().and_then(|list| list.iter().map(Value::as_str).collect());
        texts
            .map(Some)
            .ok_or_else(|| self.bad(key, &format!("must be a list of texts (got {})", describe(value))))
    }

    /// Token ids below `vocab_size`: one number or a list, as both are written.
    pub fn token_ids(&self, key: &str, vocab_size: usize) -> Result<Vec<u32>> {
        let Some(value) = self.get(key) else {
            return Ok(Vec::new());
        };
        let list = match value {
            Value::Array(list) => list.as_slice(),
            one => std::slice::from_ref(one),
        };
        if list.is_empty() {
            self.warn(key, "it is an empty list; generation ends only at its limit");
        }
        let id = |value: &Value| {
            let id =
                value.as_u64().filter(|&id| id < vocab_size as u64).and_then(|id| u32::try_from(id).ok());
            id.ok_or_else(|| {
                self.bad(
                    key,
                    &format!(
                        "must be token ids from 0 to {}, the rows of embed_tokens (got {})",
                        vocab_size - 1,
                        describe(value)
                    ),
                )
            })
        };
        list.iter().map(id).collect()
    }

    /// Adds a warning about something unusual that does no harm.
    pub fn warn(&self, key: &str, what: &str) {
        self.warnings.borrow_mut().push(format!("{}: {}: {what}", self.path.display(), self.full(key)));
    }

    /// A value that no model can have. `what` is `must be X (got Y)`.
    pub fn bad(&self, key: &str, what: &str) -> Error {
        Error::Config { path: self.path.to_owned(), key: self.full(key), what: format!("{what}; {ADVICE}") }
    }

    /// A sound value that the engine does not compute. `what` is `must be X (got Y)`.
    pub fn unsupported(&self, key: &str, what: &str) -> Error {
        Error::Unsupported { path: self.path.to_owned(), key: self.full(key), what: what.to_owned() }
    }

    /// Keys of the file that were not read and are not null, in the order of their names.
    pub fn unread(&self) -> impl Iterator<Item = (&'a str, &'a Value)> {
        let read = self.read.borrow().clone();
        let keys = self.values.iter().map(|(key, value)| (key.as_str(), value));
        let unread: BTreeMap<_, _> =
            keys.filter(|(key, value)| !read.contains(key) && !value.is_null()).collect();
        unread.into_iter()
    }

    fn full(&self, key: &str) -> String {
        if let Some(own) = self.origins.and_then(|origins| origins.get(&format!("{}{key}", self.prefix))) {
            return escape_for_terminal(own);
        }
        let key = if self.values.contains_key(key) { key } else { self.actual(key) };
        format!("{}{}", self.prefix, escape_for_terminal(key))
    }
}

/// `a number from 0 to 1`, with exponents where a person would write them.
fn in_words(range: &RangeInclusive<f64>) -> String {
    let word = |number: f64| {
        if number == 0.0 || (1e-2..1e6).contains(&number) {
            number.to_string()
        } else {
            format!("{number:e}")
        }
    };
    format!("a number from {} to {}", word(*range.start()), word(*range.end()))
}

/// Longest config read; published ones have a few kilobytes.
const LONGEST: u64 = 1 << 20;

/// The top-level object of a JSON file.
pub(crate) fn read_object(folder: &Folder, name: &str) -> Result<Map<String, Value>> {
    let bad = |key: &str, what: String| Error::Config { path: folder.join(name), key: key.to_owned(), what };
    let text = folder.read_text(name, LONGEST).map_err(|error| match error {
        Error::Format { field, what, .. } => bad(&field, what),
        other => other,
    })?;
    match json::parse(&text) {
        Ok(Value::Object(values)) => Ok(values),
        Ok(other) => {
            Err(bad("JSON", format!("must be an object (got {}); download the file again", describe(&other))))
        }
        Err(fault) => {
            let advice = "correct the file, or download it again";
            Err(bad(
                &fault.field,
                format!("must be JSON without NaN or infinity (got {}); {advice}", fault.what),
            ))
        }
    }
}
