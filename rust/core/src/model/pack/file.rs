//! A pack's file.
//!
//! ```text
//! | "RCPACK\0\2" | u64: n | u64: checksum of the n bytes | n bytes: JSON | zeros up to a page | panels of each weight |
//! {"key": .., "model": .., "dtype": .., "bytes": of the file,
//!  "slots": [{"name": .., "dtype": .., "in_features": .., "out_features": .., "panels": .., "begin": .., "bytes": ..,
//!             "checksums": [one per 4 MiB]}, ..]}
//! ```
//!
//! A pack that is not whole yet has another name, and 2^64 - 1 as the checksum of each piece that is not written.
//!
//! Numbers are little endian; `begin` is a multiple of 64. The checksums of all panels are checked before one is used: the
//! pages have to be mapped anyway, and both together take less time than the first token.

use super::key::{Key, PackedTensor};
use ropechat_kernels::compute::panels::PanelShape;
use ropechat_kernels::compute::pool::Pool;
use ropechat_kernels::compute::progress::{Progress, Stage};
use ropechat_platform::files;
use ropechat_platform::mapped::{FilePart, MappedFile};
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
/// In the place of the checksum of a piece that is not written yet.
pub(super) const UNWRITTEN: u64 = u64::MAX;

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
    pub fn open(folder: &Path, key: &Key, pool: &Pool, progress: &Progress) -> Result<Self, Unusable> {
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
            return Err(damaged("the file is truncated"));
        }
        let len = usize::try_from(len).map_err(|_| Unusable::Missing)?;
        let map = Arc::new(MappedFile::open(&file, len, &path).map_err(missing)?);
        let (tensors, mut pieces) =
            read_tensors(&header, len).ok_or_else(|| damaged("the header is damaged"))?;
        progress.begin(Stage::Loading, 0, len as u64);
        pool.for_each(&mut pieces, |piece| {
            // A piece that cannot be read (the file was cut meanwhile) must not be touched.
            let is_there = map.populate(piece.range.clone()).is_ok();
            piece.is_whole = is_there && piece.sum == Some(xxh3_64(&map[piece.range.clone()]));
            progress.add(piece.range.len() as u64);
        });
        if let Some(piece) = pieces.iter().find(|piece| !piece.is_whole) {
            return Err(Unusable::Damaged(format!("damaged at byte {} or after it", piece.range.start)));
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

/// Everything of a pack's file before its first panel. Its length is known before the checksums are, so that the panels
/// can be written first and are read only once.
pub(super) struct Head<'a> {
    key: &'a Key,
    tensors: &'a [PackedTensor],
    len: usize,
}

impl<'a> Head<'a> {
    pub fn new(key: &'a Key, tensors: &'a [PackedTensor]) -> Self {
        let sums = no_sums(tensors);
        // The panels begin after the header, whose length depends on the digits of that offset.
        let mut len = PAGE;
        loop {
            let needed = (files::PREFIX + header_text(key, tensors, &sums, len).len()).next_multiple_of(PAGE);
            if needed <= len {
                return Self { key, tensors, len };
            }
            len = needed;
        }
    }

    /// Bytes before the first panel.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes of the whole file.
    pub fn file_bytes(&self) -> u64 {
        self.len as u64 + self.tensors.iter().map(|tensor| tensor.shape.bytes() as u64).sum::<u64>()
    }

    /// The checksums of what is written of this pack in a file; none of any other file.
    pub fn sums_of(&self, file: &File) -> Vec<Vec<u64>> {
        let mut sums = no_sums(self.tensors);
        let header = read_header(file)
            .filter(|header| header["key"] == self.key.text.as_str() && header["bytes"] == self.file_bytes());
        let known = header.as_ref().and_then(|header| header["slots"].as_array()).into_iter().flatten();
        for (sums, slot) in sums.iter_mut().zip(known) {
            let known = slot["checksums"].as_array().into_iter().flatten();
            sums.iter_mut().zip(known).for_each(|(sum, known)| *sum = known.as_u64().unwrap_or(UNWRITTEN));
        }
        sums
    }

    /// sums: of each tensor, one per [`PIECE`].
    pub fn bytes(&self, sums: &[Vec<u64>]) -> Vec<u8> {
        let mut head = files::header_bytes(MAGIC, &header_text(self.key, self.tensors, sums, self.len));
        head.resize(self.len, 0);
        head
    }
}

/// As long as any checksums in text.
fn no_sums(tensors: &[PackedTensor]) -> Vec<Vec<u64>> {
    tensors.iter().map(|tensor| vec![UNWRITTEN; tensor.shape.bytes().div_ceil(PIECE)]).collect()
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
