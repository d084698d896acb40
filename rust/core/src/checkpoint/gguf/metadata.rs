//! Metadata: typed values by key. Only the place of each value is kept; it is read from the map on request.

use std::collections::{BTreeMap, btree_map};
use std::fmt;
use std::ops::Range;

use super::cursor::Cursor;
use crate::checkpoint::escape_for_terminal;
use ropechat_platform::error::Result;

/// Most values of a list; the largest vocabularies have a quarter of a million.
const LONGEST_LIST: u64 = 64 << 20;
/// Longest key.
const LONGEST_KEY: usize = 65_535;

/// The type of a value, as files number it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // the format's own names
pub enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Text,
    List,
    U64,
    I64,
    F64,
}

impl Kind {
    /// In the order of their numbers.
    const ALL: [Kind; 13] = [
        Kind::U8,
        Kind::I8,
        Kind::U16,
        Kind::I16,
        Kind::U32,
        Kind::I32,
        Kind::F32,
        Kind::Bool,
        Kind::Text,
        Kind::List,
        Kind::U64,
        Kind::I64,
        Kind::F64,
    ];

    fn read(cursor: &mut Cursor<'_>, key: &str) -> Result<Kind> {
        let number = cursor.u32(key)?;
        Self::ALL.get(number as usize).copied().ok_or_else(|| {
            cursor.fault(key, &format!("its type must be 0 to 12 (got {number}); download the file again"))
        })
    }

    /// Bytes of a value; the length alone, for those that have one.
    fn size(self) -> u64 {
        match self {
            Kind::U8 | Kind::I8 | Kind::Bool => 1,
            Kind::U16 | Kind::I16 => 2,
            Kind::U32 | Kind::I32 | Kind::F32 => 4,
            Kind::U64 | Kind::I64 | Kind::F64 | Kind::Text => 8,
            Kind::List => 12,
        }
    }
}

/// A value out of a file.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value<'a> {
    /// u8 to u64.
    Unsigned(u64),
    /// i8 to i64.
    Signed(i64),
    /// f32 and f64; may be NaN.
    Float(f64),
    /// Bool.
    Bool(bool),
    /// A text, which should be UTF-8: see [`Value::text`].
    Text(&'a [u8]),
    /// Values of one type.
    List(List<'a>),
}

impl Value<'_> {
    /// The text, if it is one and UTF-8. A copy: others may write to a mapped file, and a `str` must stay UTF-8.
    pub fn text(&self) -> Option<String> {
        match self {
            Value::Text(bytes) => String::from_utf8(bytes.to_vec()).ok(),
            _ => None,
        }
    }
}

impl fmt::Display for Value<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Unsigned(number) => write!(formatter, "{number}"),
            Value::Signed(number) => write!(formatter, "{number} of a signed type"),
            Value::Float(number) => write!(formatter, "{number}"),
            Value::Bool(flag) => write!(formatter, "{flag}"),
            Value::Text(_) => match self.text() {
                Some(text) => write!(formatter, "the text \"{}\"", escape_for_terminal(&text)),
                None => write!(formatter, "a text that is not UTF-8"),
            },
            Value::List(list) => write!(formatter, "a list of {}", list.count),
        }
    }
}

/// The values of a list, in order.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct List<'a> {
    kind: Kind,
    count: usize,
    bytes: &'a [u8],
}

impl<'a> List<'a> {
    /// What its values are.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Are there none?
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// One after the other.
    pub fn iter(self) -> impl Iterator<Item = Value<'a>> {
        let mut rest = self.bytes;
        (0..self.count).map_while(move |_| {
            let size = match self.kind {
                Kind::Text => u64::from_le_bytes(*rest.first_chunk::<8>()?).saturating_add(8) as usize,
                kind => kind.size() as usize,
            };
            let (value, after) = rest.split_at_checked(size)?;
            rest = after;
            Some(scalar(self.kind, value))
        })
    }
}

/// A value that is no list, out of its bytes. They were measured when the file was read.
fn scalar(kind: Kind, bytes: &[u8]) -> Value<'_> {
    fn first<const N: usize>(bytes: &[u8]) -> [u8; N] {
        bytes.first_chunk().copied().unwrap_or([0; N])
    }
    match kind {
        Kind::U8 => Value::Unsigned(first::<1>(bytes)[0].into()),
        Kind::U16 => Value::Unsigned(u16::from_le_bytes(first(bytes)).into()),
        Kind::U32 => Value::Unsigned(u32::from_le_bytes(first(bytes)).into()),
        Kind::U64 => Value::Unsigned(u64::from_le_bytes(first(bytes))),
        Kind::I8 => Value::Signed(i8::from_le_bytes(first(bytes)).into()),
        Kind::I16 => Value::Signed(i16::from_le_bytes(first(bytes)).into()),
        Kind::I32 => Value::Signed(i32::from_le_bytes(first(bytes)).into()),
        Kind::I64 => Value::Signed(i64::from_le_bytes(first(bytes))),
        Kind::F32 => Value::Float(f32::from_le_bytes(first(bytes)).into()),
        Kind::F64 => Value::Float(f64::from_le_bytes(first(bytes))),
        Kind::Bool => Value::Bool(bytes.first() == Some(&1)),
        Kind::Text | Kind::List => Value::Text(bytes.get(8..).unwrap_or_default()),
    }
}

/// The place of each key's value.
#[derive(Debug, Default)]
pub(crate) struct Keys(BTreeMap<String, Place>);

#[derive(Debug)]
struct Place {
    kind: Kind,
    /// The element type and how many, of a list.
    list: Option<(Kind, usize)>,
    /// Bytes of the value; of a list, of its elements.
    bytes: Range<usize>,
}

impl Keys {
    /// Reads `count` keys.
    pub(super) fn read(cursor: &mut Cursor<'_>, count: u64) -> Result<Keys> {
        let mut keys = BTreeMap::new();
        for number in 0..count {
            let field = format!("key {number}");
            let key = cursor.name(&field)?;
            if key.is_empty() || key.len() > LONGEST_KEY {
                let what = format!(
                    "its name must have 1 to {LONGEST_KEY} bytes (got {}); download the file again",
                    key.len()
                );
                return Err(cursor.fault(&field, &what));
            }
            let place = Place::read(cursor, &key)?;
            match keys.entry(key) {
                btree_map::Entry::Vacant(entry) => entry.insert(place),
                btree_map::Entry::Occupied(entry) => {
                    let what = "the key is there twice; every key may appear once; download the file again";
                    return Err(cursor.fault(entry.key(), what));
                }
            };
        }
        Ok(Keys(keys))
    }

    /// The keys with the file that they were read from.
    pub fn on<'a>(&'a self, file: &'a [u8]) -> Metadata<'a> {
        Metadata { keys: self, file }
    }
}

impl Place {
    fn read(cursor: &mut Cursor<'_>, key: &str) -> Result<Place> {
        let kind = Kind::read(cursor, key)?;
        let mut list = None;
        let begin = match kind {
            Kind::List => {
                let element = Kind::read(cursor, key)?;
                let count = cursor.u64(key)?;
                if element == Kind::List {
                    let what =
                        "must be a list of numbers or texts (got a list of lists); download the file again";
                    return Err(cursor.fault(key, what));
                }
                if count > LONGEST_LIST {
                    let what = format!(
                        "must have at most {LONGEST_LIST} values (got {count}); download the file again"
                    );
                    return Err(cursor.fault(key, &what));
                }
                cursor.fits(count, element.size(), key)?;
                list = Some((element, count as usize));
                let begin = cursor.at();
                skip(cursor, element, count, key)?;
                begin
            }
            _ => {
                let begin = cursor.at();
                skip(cursor, kind, 1, key)?;
                begin
            }
        };
        Ok(Place { kind, list, bytes: begin..cursor.at() })
    }
}

/// Passes over `count` values, and looks at those that can be wrong.
fn skip(cursor: &mut Cursor<'_>, kind: Kind, count: u64, key: &str) -> Result<()> {
    match kind {
        Kind::Text => (0..count).try_for_each(|_| cursor.text(key).map(|_| ())),
        Kind::Bool => {
            match cursor.take(count, key)?.iter().find(|&&byte| byte > 1) {
                Some(byte) => Err(cursor
                    .fault(key, &format!("a bool must be 0 or 1 (got {byte}); download the file again"))),
                None => Ok(()),
            }
        }
        // The count is at most LONGEST_LIST: this does not overflow.
        _ => cursor.take(count * kind.size(), key).map(|_| ()),
    }
}

/// A file's metadata.
#[derive(Debug, Clone, Copy)]
pub struct Metadata<'a> {
    keys: &'a Keys,
    file: &'a [u8],
}

impl<'a> Metadata<'a> {
    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<Value<'a>> {
        self.keys.0.get(key).map(|place| self.value(place))
    }

    /// The type of a key's value.
    pub fn kind(&self, key: &str) -> Option<Kind> {
        self.keys.0.get(key).map(|place| place.kind)
    }

    /// Every key with its value, sorted.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, Value<'a>)> + use<'a> {
        let metadata = *self;
        self.keys.0.iter().map(move |(key, place)| (key.as_str(), metadata.value(place)))
    }

    fn value(&self, place: &'a Place) -> Value<'a> {
        let bytes = self.file.get(place.bytes.clone()).unwrap_or_default();
        match place.list {
            Some((kind, count)) => Value::List(List { kind, count, bytes }),
            None => scalar(place.kind, bytes),
        }
    }
}
