//! The JSON header of a safetensors file as typed values: no arithmetic and no file size yet.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;

use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

use crate::checkpoint::escape::escape_for_terminal;

/// No tensor of a language model has more dimensions.
const MAX_DIMENSIONS: usize = 8;
/// Types that the format knows, with the bits of one value.
const DTYPES: [(&str, u64); 21] = [
    ("BOOL", 8),
    ("F4", 4),
    ("F6_E2M3", 6),
    ("F6_E3M2", 6),
    ("U8", 8),
    ("I8", 8),
    ("F8_E5M2", 8),
    ("F8_E4M3", 8),
    ("F8_E8M0", 8),
    ("F8_E4M3FNUZ", 8),
    ("F8_E5M2FNUZ", 8),
    ("I16", 16),
    ("U16", 16),
    ("F16", 16),
    ("BF16", 16),
    ("I32", 32),
    ("U32", 32),
    ("F32", 32),
    ("C64", 64),
    ("F64", 64),
    ("I64", 64),
];

/// What is wrong with a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed {
    /// Tensor name, or the part of the file.
    pub field: String,
    /// `must be X (got Y); <what to do>`.
    pub what: String,
}

impl Malformed {
    /// `field` is escaped here; foreign text in `what` must have been.
    pub(super) fn at(field: &str, what: String) -> Malformed {
        Malformed { field: escape_for_terminal(field), what }
    }
}

/// A header entry before its offsets were compared with the file.
pub(super) struct RawTensor {
    /// Type, as one of the format's own names.
    pub dtype: &'static str,
    /// Bits of one value.
    pub bits: u64,
    /// Dimensions, outermost first.
    pub shape: Shape,
    /// First byte, counted from the start of the data.
    pub begin: u64,
    /// One past the last byte.
    pub end: u64,
}

/// The header's tensors by name. A fault that belongs to no tensor has the field `header`.
pub(super) fn read(text: &str) -> Result<BTreeMap<String, RawTensor>, Malformed> {
    let at = RefCell::new(String::from("header"));
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let tensors = Header(&at).deserialize(&mut deserializer);
    tensors.and_then(|tensors| deserializer.end().map(|()| tensors)).map_err(|error| {
        Malformed::at(
            &at.borrow(),
            format!(
                "{}; a safetensors header is expected; download the file again",
                escape_for_terminal(&error.to_string())
            ),
        )
    })
}

/// The whole header; remembers the name it is at, for messages.
struct Header<'a>(&'a RefCell<String>);

impl<'de> DeserializeSeed<'de> for Header<'_> {
    type Value = BTreeMap<String, RawTensor>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Header<'_> {
    type Value = BTreeMap<String, RawTensor>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let mut tensors = BTreeMap::new();
        let mut metadata = false;
        while let Some(name) = entries.next_key::<String>()? {
            self.0.replace(name.clone());
            if tensors.contains_key(&name) || (name == "__metadata__" && metadata) {
                return Err(A::Error::custom("the name is there twice"));
            }
            if name == "__metadata__" {
                metadata = true;
                entries.next_value::<Texts>()?;
            } else {
                let tensor = entries.next_value()?;
                tensors.insert(name, tensor);
            }
            self.0.replace("header".to_owned());
        }
        Ok(tensors)
    }
}

/// `__metadata__`: text to text. Checked, not kept: nothing in it changes what the tensors are.
struct Texts;

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Texts, D::Error> {
        deserializer.deserialize_map(Texts)
    }
}

impl<'de> Visitor<'de> for Texts {
    type Value = Texts;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object of texts")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Texts, A::Error> {
        while entries.next_entry::<String, String>()?.is_some() {}
        Ok(Texts)
    }
}

impl<'de> Deserialize<'de> for RawTensor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RawTensor, D::Error> {
        deserializer.deserialize_map(TensorVisitor)
    }
}

struct TensorVisitor;

impl<'de> Visitor<'de> for TensorVisitor {
    type Value = RawTensor;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object of dtype, shape and data_offsets")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<RawTensor, A::Error> {
        let (mut dtype, mut shape, mut offsets) = (None, None, None);
        while let Some(key) = entries.next_key::<String>()? {
            let twice = match key.as_str() {
                "dtype" => dtype.replace(entries.next_value::<String>()?).is_some(),
                "shape" => shape.replace(entries.next_value::<Shape>()?).is_some(),
                "data_offsets" => offsets.replace(entries.next_value::<[u64; 2]>()?).is_some(),
                _ => entries.next_value::<IgnoredAny>().map(|_| false)?,
            };
            if twice {
                return Err(A::Error::custom(format!("{} is there twice", escape_for_terminal(&key))));
            }
        }
        let dtype = dtype.ok_or_else(|| A::Error::missing_field("dtype"))?;
        let known = DTYPES.iter().find(|known| known.0 == dtype);
        let (dtype, bits) = *known
            .ok_or_else(|| A::Error::custom(format!("unknown dtype {}", escape_for_terminal(&dtype))))?;
        let [begin, end] = offsets.ok_or_else(|| A::Error::missing_field("data_offsets"))?;
        Ok(RawTensor {
            dtype,
            bits,
            shape: shape.ok_or_else(|| A::Error::missing_field("shape"))?,
            begin,
            end,
        })
    }
}

/// At most [`MAX_DIMENSIONS`] dimensions: stops at the limit instead of collecting what a file wrote.
pub(super) struct Shape(pub Vec<u64>);

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Shape, D::Error> {
        deserializer.deserialize_seq(ShapeVisitor)
    }
}

struct ShapeVisitor;

impl<'de> Visitor<'de> for ShapeVisitor {
    type Value = Shape;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list of dimensions")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Shape, A::Error> {
        let mut shape = Vec::new();
        while let Some(dimension) = sequence.next_element()? {
            if shape.len() == MAX_DIMENSIONS {
                return Err(A::Error::custom(format!("more than {MAX_DIMENSIONS} dimensions")));
            }
            shape.push(dimension);
        }
        Ok(Shape(shape))
    }
}
