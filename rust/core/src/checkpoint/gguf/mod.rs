//! The GGUF container: metadata by key, tensors by name, then the tensors' bytes, each at a multiple of the alignment.
//!
//! ```text
//! | "GGUF" | u32 version | u64 tensors | u64 keys |
//! | text key | u32 type | value |                                      once per key
//! | text name | u32 dimensions | u64 each, innermost first | u32 type | u64 offset |   once per tensor
//! | zeros up to the alignment | data ... |
//! ```
//!
//! A text is a u64 length and its bytes; a list is a u32 type, a u64 count and the values. Everything is little endian.
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>. Reading neither panics nor allocates more,
//! for any bytes, than a small multiple of the file: a count is checked against the bytes that are left before
//! it is used.

mod cursor;
mod metadata;
mod split;
mod tensors;

use std::path::Path;

pub(super) use metadata::Keys;
pub use metadata::{Kind, List, Metadata, Value};
use tensors::Tensors;

use super::escape::escape_for_terminal;
use super::faults::{PICKLE, is_pickle};
use super::folder::{Folder, open_regular};
use super::shards::{Shard, Shards};
use cursor::Cursor;
use ropechat_platform::error::{Error, Result};
use split::{Split, siblings};

/// The key that says where tensors may begin.
const ALIGNMENT: &str = "general.alignment";
/// Alignment of files that do not say.
const USUAL_ALIGNMENT: u64 = 32;
/// No file needs more: a page is 4 KiB, a huge one 2 MiB.
const MOST_ALIGNMENT: u64 = 1 << 20;
/// First bytes of the file.
const MAGIC: &[u8] = b"GGUF";
/// Bytes of the smallest key: an empty text, a type, one byte.
const LEAST_KEY: u64 = 8 + 4 + 1;
/// Bytes of the smallest tensor entry: an empty name, no dimension, a type, an offset.
const LEAST_TENSOR: u64 = 8 + 4 + 4 + 8;

/// The metadata of a `.gguf` file; its weights are not checked.
#[derive(Debug)]
pub struct Header {
    file: Shard,
    keys: Keys,
}

impl Header {
    /// Maps a file and reads its metadata.
    ///
    /// Errors: `NotFound`, `Io`, `UnsafePath` (no regular file), `Format`, `Unsupported` (another version or byte order).
    pub fn open(path: &Path) -> Result<Header> {
        let file = Shard::map(open_regular(path)?)?;
        let keys = read_keys(&file.path, &file.map)?;
        Ok(Header { file, keys })
    }

    /// The metadata.
    pub fn metadata(&self) -> Metadata<'_> {
        self.keys.on(&self.file.map)
    }
}

/// Opens a model in one `.gguf` file, or in several of which this is the first.
///
/// The file itself may be a link to anywhere: the caller named it. Its other parts must be in its folder.
pub(super) fn open(path: &Path) -> Result<(Shards, Keys)> {
    let (parent, name) = parts(path)?;
    if is_pickle(name) {
        return Err(Error::Unsupported {
            path: path.to_owned(),
            key: escape_for_terminal(name),
            what: PICKLE.to_owned(),
        });
    }
    let folder = Folder::open(parent)?;
    let shard = Shard::map(open_regular(path)?)?;
    let contents = read(&shard.path, &shard.map)?;
    let split = Split::read(path, contents.keys.on(&shard.map))?;
    let mut shards = Shards::new(&folder, path.to_owned());
    let names = match split {
        Some(split) => siblings(path, name, split)?,
        None => Vec::new(),
    };
    let keys = add(&mut shards, shard, contents)?;
    for (number, name) in (1..).zip(names.iter().skip(1)) {
        let shard = Shard::map(folder.open_file(name)?)?;
        let contents = read(&shard.path, &shard.map)?;
        let own = Split::read(&shard.path, contents.keys.on(&shard.map))?;
        if own.map(|own| (own.number, own.count)) != Some((number, names.len() as u64)) {
            let what = format!(
                "its split.no and split.count are not those of part {} of {}; the parts of one model are expected; \
                 download them again",
                number + 1,
                names.len()
            );
            return Err(Error::Format { path: shard.path, field: "split.no".to_owned(), what });
        }
        add(&mut shards, shard, contents)?;
    }
    let (found, stated) = (shards.tensors.len() as u64, split.and_then(|split| split.tensors));
    if let Some(stated) = stated.filter(|&stated| stated != found) {
        let what = format!("{stated}, and the parts hold {found}; download the model again");
        return Err(Error::Format { path: path.to_owned(), field: "split.tensors.count".to_owned(), what });
    }
    Ok((shards, keys))
}

/// Adds a file and its tensors; returns its metadata.
fn add(shards: &mut Shards, shard: Shard, contents: Contents) -> Result<Keys> {
    shards.add(shard, contents.tensors.entries)?;
    shards.warnings.extend(contents.tensors.warning);
    Ok(contents.keys)
}

/// The folder and the name of a file.
fn parts(path: &Path) -> Result<(&Path, &str)> {
    let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(|| Error::UnsafePath {
        path: path.to_owned(),
        what: "this is not a file name; the path of a .gguf file in UTF-8 is expected".to_owned(),
    })?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    Ok((parent.unwrap_or(Path::new(".")), name))
}

/// What a file holds.
#[derive(Debug)]
struct Contents {
    /// Its metadata.
    pub keys: Keys,
    /// Its tensors.
    pub tensors: Tensors,
}

/// Reads and checks metadata and tensor list of a whole file.
///
/// Errors: `Format` for anything that is not GGUF or does not fit the file, `Unsupported` for versions, byte orders and
/// tensor types that are not read.
fn read(path: &Path, file: &[u8]) -> Result<Contents> {
    let (counts, mut cursor) = header(path, file)?;
    let keys = Keys::read(&mut cursor, counts.keys)?;
    let alignment = alignment(path, keys.on(file))?;
    let tensors = Tensors::read(&mut cursor, counts.tensors, alignment)?;
    Ok(Contents { keys, tensors })
}

/// The metadata alone, of files whose weights are not read.
fn read_keys(path: &Path, file: &[u8]) -> Result<Keys> {
    let (counts, mut cursor) = header(path, file)?;
    Keys::read(&mut cursor, counts.keys)
}

/// How many keys and tensors the file claims to have.
struct Counts {
    keys: u64,
    tensors: u64,
}

fn header<'a>(path: &'a Path, file: &'a [u8]) -> Result<(Counts, Cursor<'a>)> {
    let mut cursor = Cursor::new(path, file);
    if !file.starts_with(MAGIC) {
        return Err(cursor.fault("header", &not_gguf(file)));
    }
    cursor.take(MAGIC.len() as u64, "header")?;
    let version = cursor.u32("version")?;
    let unsupported =
        |what: String| Error::Unsupported { path: path.to_owned(), key: "version".to_owned(), what };
    match version {
        2 | 3 => {}
        0 => return Err(cursor.fault("version", "must be 2 or 3 (got 0); download the file again")),
        _ if version & 0xffff == 0 => {
            let what = "must be little endian (got big endian); use a copy for x86 or ARM";
            return Err(unsupported(what.to_owned()));
        }
        _ => {
            return Err(unsupported(format!(
                "must be 2 or 3 (got {version}); use a newer copy of the model"
            )));
        }
    }
    let (tensors, keys) = (cursor.u64("tensor_count")?, cursor.u64("metadata_kv_count")?);
    cursor.fits(keys, LEAST_KEY, "metadata_kv_count")?;
    cursor.fits(tensors, LEAST_TENSOR, "tensor_count")?;
    Ok((Counts { keys, tensors }, cursor))
}

/// Names the kind of a file that does not begin like GGUF.
fn not_gguf(file: &[u8]) -> String {
    let what = match file {
        [] => "the file is empty; a GGUF file is expected; download it again",
        _ if file.starts_with(b"version https://git-lfs") => {
            "this is a Git LFS pointer; the weights are expected; run 'git lfs pull' in the model folder"
        }
        [b'<', ..] => {
            "this is a web page, probably an error; a GGUF file is expected; download the file again"
        }
        _ if [&b"ggml"[..], b"lmgg", b"tjgg", b"fmgg"].iter().any(|magic| file.starts_with(magic)) => {
            "must be GGUF (got GGML, the format before GGUF); use a newer copy of the model"
        }
        _ => {
            let first = file[..file.len().min(4)].to_vec();
            let first = escape_for_terminal(&String::from_utf8_lossy(&first));
            return format!("it begins with \"{first}\"; \"GGUF\" is expected; download the file again");
        }
    };
    what.to_owned()
}

/// Tensors begin at multiples of this.
fn alignment(path: &Path, metadata: Metadata<'_>) -> Result<u64> {
    let Some(value) = metadata.get(ALIGNMENT) else {
        return Ok(USUAL_ALIGNMENT);
    };
    match value {
        Value::Unsigned(alignment)
            if metadata.kind(ALIGNMENT) == Some(Kind::U32)
                && alignment.is_power_of_two()
                && alignment <= MOST_ALIGNMENT =>
        {
            Ok(alignment)
        }
        other => Err(Error::Format {
            path: path.to_owned(),
            field: ALIGNMENT.to_owned(),
            what: format!(
                "must be a power of two up to {MOST_ALIGNMENT} of type u32 (got {other}); download the file again"
            ),
        }),
    }
}
