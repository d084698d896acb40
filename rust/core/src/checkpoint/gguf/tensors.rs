//! The list of tensors: names, shapes, types and offsets, checked against the file.

use std::collections::{BTreeMap, btree_map};

use super::cursor::Cursor;
use crate::checkpoint::escape::escape_for_terminal;
use crate::checkpoint::tensor::Entry;
use ropechat_platform::error::{Error, Result};

/// ggml's own limit.
const MAX_DIMENSIONS: u32 = 4;
/// Longest name of a tensor; ggml allows 63 bytes.
const LONGEST_NAME: usize = 1024;

/// A type of tensors.
struct Type {
    name: &'static str,
    /// Values of a block.
    values: u64,
    /// Bytes of a block.
    bytes: u64,
}

/// Bytes at the end of a file that are padding even if the alignment is smaller: some writers fill up a cache line.
const WIDEST_PADDING: u64 = 64;

/// The largest number of a type.
const LAST_TYPE: u32 = 42;

/// The type of that number (`ggml.h`), also of types that the engine does not read: their sizes are checked too.
fn type_of(number: u32) -> Option<Type> {
    let (name, values, bytes) = match number {
        0 => ("F32", 1, 4),
        1 => ("F16", 1, 2),
        2 => ("Q4_0", 32, 18),
        3 => ("Q4_1", 32, 20),
        6 => ("Q5_0", 32, 22),
        7 => ("Q5_1", 32, 24),
        8 => ("Q8_0", 32, 34),
        9 => ("Q8_1", 32, 36),
        10 => ("Q2_K", 256, 84),
        11 => ("Q3_K", 256, 110),
        12 => ("Q4_K", 256, 144),
        13 => ("Q5_K", 256, 176),
        14 => ("Q6_K", 256, 210),
        15 => ("Q8_K", 256, 292),
        16 => ("IQ2_XXS", 256, 66),
        17 => ("IQ2_XS", 256, 74),
        18 => ("IQ3_XXS", 256, 98),
        19 => ("IQ1_S", 256, 50),
        20 => ("IQ4_NL", 32, 18),
        21 => ("IQ3_S", 256, 110),
        22 => ("IQ2_S", 256, 82),
        23 => ("IQ4_XS", 256, 136),
        24 => ("I8", 1, 1),
        25 => ("I16", 1, 2),
        26 => ("I32", 1, 4),
        27 => ("I64", 1, 8),
        28 => ("F64", 1, 8),
        29 => ("IQ1_M", 256, 56),
        30 => ("BF16", 1, 2),
        34 => ("TQ1_0", 256, 54),
        35 => ("TQ2_0", 256, 66),
        39 => ("MXFP4", 32, 17),
        40 => ("NVFP4", 64, 36),
        41 => ("Q1_0", 128, 18),
        42 => ("Q2_0", 64, 18),
        _ => return None,
    };
    Some(Type { name, values, bytes })
}

/// What a number that is not in [`type_of`] stands for, and what to do: types of bitnet.cpp, and those that llama.cpp took back.
fn unread(number: u32) -> (String, &'static str) {
    const OTHER: &str = "use another copy of the model";
    let name = match number {
        31 => "Q4_0_4_4",
        32 => "Q4_0_4_8",
        33 => "Q4_0_8_8",
        36 => "I2_S",
        38 => "TL1",
        _ => return (format!("number {number}"), OTHER),
    };
    if number < 36 {
        return (format!("{name}, Q4_0 in the order of one kind of processor"), "use a copy in Q4_0");
    }
    let got = format!(
        "{name} of bitnet.cpp, whose layout depends on the machine that wrote it and is not in the file"
    );
    (got, "use the model's safetensors, or a copy in TQ1_0 or TQ2_0")
}

/// The tensors of a file.
#[derive(Debug)]
pub(crate) struct Tensors {
    /// By name; every place is inside the file.
    pub entries: BTreeMap<String, Entry>,
    /// What is odd about the file, though it can be read.
    pub warning: Option<String>,
}

impl Tensors {
    /// Reads `count` entries; the data begins at the next multiple of `alignment` after them.
    pub fn read(cursor: &mut Cursor<'_>, count: u64, alignment: u64) -> Result<Tensors> {
        let mut raw = BTreeMap::new();
        for number in 0..count {
            let field = format!("tensor {number}");
            let name = cursor.name(&field)?;
            if name.is_empty() || name.len() > LONGEST_NAME {
                let what = format!(
                    "its name must have 1 to {LONGEST_NAME} bytes (got {}); download the file again",
                    name.len()
                );
                return Err(cursor.fault(&field, &what));
            }
            let tensor = RawTensor::read(cursor, &name, alignment)?;
            match raw.entry(name) {
                btree_map::Entry::Vacant(entry) => entry.insert(tensor),
                btree_map::Entry::Occupied(entry) => {
                    let what =
                        "the name is there twice; every tensor may appear once; download the file again";
                    return Err(cursor.fault(entry.key(), what));
                }
            };
        }
        place(cursor, raw, alignment)
    }
}

/// An entry before its offset was checked against the file.
struct RawTensor {
    dtype: &'static str,
    /// Outermost first.
    shape: Vec<u64>,
    /// Bytes.
    size: u64,
    /// Counted from the start of the data.
    offset: u64,
}

impl RawTensor {
    fn read(cursor: &mut Cursor<'_>, name: &str, alignment: u64) -> Result<RawTensor> {
        let dimensions = cursor.u32(name)?;
        if dimensions > MAX_DIMENSIONS {
            let what = format!(
                "must have at most {MAX_DIMENSIONS} dimensions (got {dimensions}); download the file again"
            );
            return Err(cursor.fault(name, &what));
        }
        // Innermost first in the file.
        let mut shape = (0..dimensions).map(|_| cursor.u64(name)).collect::<Result<Vec<_>>>()?;
        let (row, number) = (shape.first().copied(), cursor.u32(name)?);
        shape.reverse();
        let Some(kind) = type_of(number) else {
            let (got, remedy) = unread(number);
            let what = format!(
                "its type must be one of F32, F16, BF16, Q8_0, Q4_0 and others (got {got}); {remedy}"
            );
            return Err(Error::Unsupported {
                path: cursor.path().to_owned(),
                key: escape_for_terminal(name),
                what,
            });
        };
        let offset = cursor.u64(name)?;
        if row.is_some_and(|row| !row.is_multiple_of(kind.values)) {
            let what = format!(
                "a row of {} must be whole blocks of {} values (got {}); download the file again",
                kind.name,
                kind.values,
                row.unwrap_or(0)
            );
            return Err(cursor.fault(name, &what));
        }
        if !offset.is_multiple_of(alignment) {
            let what = format!(
                "its offset must be a multiple of the alignment {alignment} (got {offset}); \
                 download the file again"
            );
            return Err(cursor.fault(name, &what));
        }
        let size = kind.size(&shape).ok_or_else(|| {
            let what =
                format!("its size must be a whole number of bytes in the file (got {} x {shape:?}); download it again", kind.name);
            cursor.fault(name, &what)
        })?;
        Ok(RawTensor { dtype: kind.name, shape, size, offset })
    }
}

impl Type {
    /// Bytes of a tensor of this shape; None when that overflows.
    fn size(&self, shape: &[u64]) -> Option<u64> {
        let values = shape.iter().try_fold(1u64, |product, &dimension| product.checked_mul(dimension))?;
        (values / self.values).checked_mul(self.bytes)
    }
}

/// Every tensor begins where the one before it ends, up to padding: a type or a shape that is not the tensor's own gives
/// another size, and so an overlap or a gap. Behind the last one there may be other bytes, but not those of another type.
fn place(cursor: &Cursor<'_>, raw: BTreeMap<String, RawTensor>, alignment: u64) -> Result<Tensors> {
    let data_begin = (cursor.at() as u64).next_multiple_of(alignment);
    let data = (cursor.file_len() as u64).saturating_sub(data_begin);
    let mut places: Vec<(u64, u64, &str)> = Vec::new();
    for (name, tensor) in &raw {
        match tensor.offset.checked_add(tensor.size) {
            Some(end) if end <= data => places.push((tensor.offset, end, name)),
            Some(end) => {
                let what = format!(
                    "it ends at byte {end} of the data, and {data} are there: the file is {} bytes short; \
                     download it again",
                    end - data
                );
                return Err(cursor.fault(name, &what));
            }
            None => {
                let what =
                    format!("its offset must be in the file (got {}); download it again", tensor.offset);
                return Err(cursor.fault(name, &what));
            }
        }
    }
    places.sort_unstable();
    let (mut covered, mut before) = (0u64, None);
    for (begin, end, name) in places {
        let expected = covered.next_multiple_of(alignment);
        if begin != expected {
            let after = before.map_or_else(
                || "it is the first tensor".to_owned(),
                |before| format!("{} ends at {covered}", escape_for_terminal(before)),
            );
            let what = format!(
                "it begins at byte {begin} of the data, and {after}: {expected} is expected; \
                 a type or a shape of the two is wrong; download the file again"
            );
            return Err(cursor.fault(name, &what));
        }
        (covered, before) = (end, Some(name));
    }
    let trailing = data.saturating_sub(covered.next_multiple_of(alignment));
    let last = before.and_then(|name| Some((name, raw.get(name)?)));
    let is_of_another_type = |(_, tensor): (&str, &RawTensor)| {
        let ends = |kind: Type| tensor.offset.checked_add(kind.size(&tensor.shape)?);
        let reaches = |end: u64| end == data || end.next_multiple_of(alignment) == data;
        (0..=LAST_TYPE).filter_map(type_of).filter_map(ends).any(reaches)
    };
    let mut warning = None;
    if trailing > 0 {
        let last_name = before.map_or_else(|| "the header".to_owned(), escape_for_terminal);
        if trailing > WIDEST_PADDING && last.is_some_and(is_of_another_type) {
            let what = format!(
                "{trailing} bytes follow {last_name} and its padding, as many as it would have in another type; \
                 its type is wrong; download the file again"
            );
            return Err(cursor.fault("data", &what));
        }
        let path = cursor.path().display();
        warning =
            Some(format!("{path}: {trailing} bytes follow {last_name} and its padding; they are not read"));
    }
    let entries = raw
        .into_iter()
        .map(|(name, tensor)| {
            // Both fit: they are inside a mapped file.
            let begin = (data_begin + tensor.offset) as usize;
            let shape = tensor.shape.iter().map(|&dimension| dimension as usize).collect();
            (name, Entry { dtype: tensor.dtype, shape, begin, end: begin + tensor.size as usize })
        })
        .collect();
    Ok(Tensors { entries, warning })
}
