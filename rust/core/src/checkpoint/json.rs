//! JSON that refuses what `serde_json` accepts (a key twice), and that names the key of an error. The check for keys
//! that are there twice needs this visitor, so `serde_path_to_error` would replace four lines of it.

use std::cell::RefCell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::escape::escape_for_terminal;

/// Where and why a text is not strict JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BadJson {
    /// Path of keys to the place (at most three), or `JSON`.
    pub field: String,
    /// What is wrong, with line and column.
    pub what: String,
}

/// Reads a whole text. Nesting is limited to 128 (serde_json), numbers that no f64 holds are refused.
pub(crate) fn parse(text: &str) -> Result<Value, BadJson> {
    let path = RefCell::new(Vec::new());
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let tree = Tree(&path).deserialize(&mut deserializer);
    tree.and_then(|value| deserializer.end().map(|()| value)).map_err(|error| {
        let keys = path.borrow();
        let field = keys.iter().take(3).map(|key| escape_for_terminal(key)).collect::<Vec<_>>().join(".");
        BadJson {
            field: if field.is_empty() { "JSON".to_owned() } else { field },
            what: escape_for_terminal(&error.to_string()),
        }
    })
}

/// What a JSON value is, in words, for messages: `the text "16"`, `16.5`, `a list`.
pub(crate) fn describe(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => format!("the text \"{}\"", escape_for_terminal(text)),
        Value::Array(list) if list.is_empty() => "an empty list".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

/// Builds a [`Value`] while it remembers the keys that lead to the place it is at.
#[derive(Clone, Copy)]
struct Tree<'a>(&'a RefCell<Vec<String>>);

impl<'de> DeserializeSeed<'de> for Tree<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Tree<'_> {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Value, E> {
        Ok(flag.into())
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(value) = sequence.next_element_seed(self)? {
            list.push(value);
        }
        Ok(list.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            // Left on the stack when the value fails: that is how an error finds its key.
            self.0.borrow_mut().push(key.clone());
            if map.contains_key(&key) {
                return Err(A::Error::custom("the key is there twice; every key may appear once"));
            }
            let value = entries.next_value_seed(self)?;
            self.0.borrow_mut().pop();
            map.insert(key, value);
        }
        Ok(map.into())
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    fn field(text: &str) -> String {
        parse(text).unwrap_err().field
    }

    #[test]
    fn names_the_key_of_a_fault() {
        assert_eq!(field(r#"{"a": 1, "a": 2}"#), "a");
        assert_eq!(field(r#"{"rope_scaling": {"factor": NaN}}"#), "rope_scaling.factor");
        assert_eq!(field(r#"{"rope_theta": 1e400}"#), "rope_theta");
        assert_eq!(field("{}x"), "JSON");
        assert_eq!(field(""), "JSON");
    }

    #[test]
    fn deep_nesting_is_an_error() {
        assert_eq!(field(&format!("{{\"x\":{}", "[".repeat(100_000))), "x");
        assert_eq!(field(&"{\"a\":".repeat(20_000)), "a.a.a");
    }

    #[test]
    fn keeps_values() {
        let text = r#"{"a":[1,-2,2.5,null,true,"x"],"b":{}}"#;
        assert_eq!(parse(text).unwrap(), serde_json::from_str::<serde_json::Value>(text).unwrap());
    }
}
