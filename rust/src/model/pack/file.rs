//! A pack's file.
//!
//! ```text
//! | "RCPACK\0\2" | u64: n | u64: checksum of the n bytes | n bytes: JSON | zeros up to a page | panels of each weight |
//! {"key": .., "model": .., "dtype": .., "bytes": of the file,
//!  "slots": [{"name": .., "dtype": .., "in_features": .., "out_features": .., "panels": .., "begin": .., "bytes": ..,
//!             "checksums": [one per 4 MiB]}, ..]}
//! ```
//!
//! Numbers are little endian; `begin` is a multiple of 64. The checksums of all panels are checked before one is used: the
//! pages have to be mapped anyway, and both together take less time than the first token.

use super::key::{Key, PackedTensor};
use crate::compute::panels::PanelShape;
use crate::compute::pool::Pool;
use crate::platform::files;
use crate::platform::mapped::{FilePart, MappedFile};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: &[u8; 8] = b"RCPACK\0\x02";
const PAGE: usize = 4096;
/// Bytes under one checksum, and written at a time.
pub(super) const PIECE: usize = 4 << 20;
/// No model has so many weights that its header is longer.
const LONGEST_HEADER: u64 = 256 << 20;

/// Why there is no pack to use.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unusable {
    Missing,
    Damaged(String),
}

/// A pack, mapped and checked.
pub(super) struct PackFile {
    map: Arc<MappedFile>,
    tensors: HashMap<String, (Value, Range<usize>)>,
}

/// A piece of panels and its checksum.
struct Piece {
    range: Range<usize>,
    sum: Option<u64>,
    is_whole: bool,
}

impl PackFile {
    /// Opens the pack of `key`, checks it as a whole and marks it as used.
    pub fn open(folder: &Path, key: &Key, pool: &Pool) -> Result<Self, Unusable> {
        let path = folder.join(&key.file_name);
        let missing = |_| Unusable::Missing;
        let damaged = |what: &str| Unusable::Damaged(what.to_owned());
        if !files::is_own_file(&path).map_err(missing)? {
            return Err(damaged("not a file that only its owner can write"));
        }
        let file = File::open(&path).map_err(missing)?;
        let len = file.metadata().map_err(missing)?.len();
        let header = read_header(&file).ok_or_else(|| damaged("the header is damaged"))?;
        if header["key"] != key.text.as_str() {
            return Err(Unusable::Missing); // another model's, whose key has the same checksum
        }
        if header["bytes"] != len {
            return Err(damaged("the file is cut"));
        }
        let len = usize::try_from(len).map_err(|_| Unusable::Missing)?;
        let map = Arc::new(MappedFile::open(&file, len, &path).map_err(missing)?);
        let (tensors, mut pieces) =
            read_tensors(&header, len).ok_or_else(|| damaged("the header is damaged"))?;
        pool.for_each(&mut pieces, |piece| {
            // A piece that cannot be read (the file was cut meanwhile) must not be touched.
            let is_there = map.populate(piece.range.clone()).is_ok();
            piece.is_whole = is_there && piece.sum == Some(xxh3_64(&map[piece.range.clone()]));
        });
        if let Some(piece) = pieces.iter().find(|piece| !piece.is_whole) {
            return Err(Unusable::Damaged(format!("damaged at byte {} or behind it", piece.range.start)));
        }
        // The least recently used pack is removed first; on a file system without times the order is arbitrary.
        let _ = file.set_modified(SystemTime::now());
        Ok(Self { map, tensors })
    }

    /// The panels of a weight, if they have its shape.
    pub fn panels(&self, name: &str, shape: PanelShape) -> Option<FilePart> {
        let (stated, range) = self.tensors.get(name)?;
        let fits = range.len() == shape.bytes()
            && shape_fields(shape).iter().all(|(key, value)| stated[key] == *value);
        fits.then(|| FilePart::new(&self.map, range.clone()))?
    }
}

/// The fields of a shape.
fn shape_fields(shape: PanelShape) -> [(&'static str, Value); 4] {
    [
        ("dtype", shape.dtype.name().into()),
        ("in_features", shape.in_features.into()),
        ("out_features", shape.out_features.into()),
        ("panels", shape.panels.into()),
    ]
}

/// The header of a pack whose own checksum is right.
pub(super) fn read_header(file: &File) -> Option<Value> {
    files::read_header(file, MAGIC, LONGEST_HEADER)
}

type PackedTensors = HashMap<String, (Value, Range<usize>)>;

/// The weights by name, and all their pieces; None when a field is missing or points out of the file.
fn read_tensors(header: &Value, len: usize) -> Option<(PackedTensors, Vec<Piece>)> {
    let (mut tensors, mut pieces) = (PackedTensors::new(), Vec::new());
    for entry in header["slots"].as_array()? {
        let number = |key: &str| entry[key].as_u64().and_then(|value| usize::try_from(value).ok());
        let (begin, bytes) = (number("begin")?, number("bytes")?);
        let end = begin.checked_add(bytes).filter(|&end| end <= len && begin.is_multiple_of(64))?;
        let sums = entry["checksums"].as_array()?;
        if sums.len() != bytes.div_ceil(PIECE) {
            return None;
        }
        let starts = (begin..end).step_by(PIECE);
        pieces.extend(starts.zip(sums).map(|(start, sum)| Piece {
            range: start..(start + PIECE).min(end),
            sum: sum.as_u64(),
            is_whole: false,
        }));
        tensors.insert(entry["name"].as_str()?.to_owned(), (entry.clone(), begin..end));
    }
    Some((tensors, pieces))
}

/// Everything of a pack's file before its first panel. Returns None as soon as `goes_on` returns false.
pub(super) fn head_of_file(
    key: &Key,
    tensors: &[PackedTensor],
    goes_on: &dyn Fn() -> bool,
) -> Option<Vec<u8>> {
    let mut sums = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        let mut of_tensor = Vec::new();
        for piece in tensor.data.bytes().chunks(PIECE) {
            of_tensor.push(xxh3_64(piece));
            goes_on().then_some(())?;
        }
        sums.push(of_tensor);
    }
    // The panels begin after the header, whose length depends on the digits of that offset.
    let mut data_begin = PAGE;
    loop {
        let mut head = files::header_bytes(MAGIC, &header_text(key, tensors, &sums, data_begin));
        let needed = head.len().next_multiple_of(PAGE);
        if needed <= data_begin {
            head.resize(data_begin, 0);
            return Some(head);
        }
        data_begin = needed;
    }
}

fn header_text(key: &Key, tensors: &[PackedTensor], sums: &[Vec<u64>], data_begin: usize) -> Vec<u8> {
    let mut end = data_begin;
    let mut described = Vec::with_capacity(tensors.len());
    for (tensor, sums) in tensors.iter().zip(sums) {
        let bytes = tensor.shape.bytes();
        let mut fields = json!({"name": tensor.name, "begin": end, "bytes": bytes, "checksums": sums});
        shape_fields(tensor.shape).into_iter().for_each(|(name, value)| fields[name] = value);
        described.push(fields);
        end += bytes;
    }
    let header =
        json!({"key": key.text, "model": key.model, "dtype": key.dtype, "bytes": end, "slots": described});
    header.to_string().into_bytes()
}
