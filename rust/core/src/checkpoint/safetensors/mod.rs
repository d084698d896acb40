//! The safetensors container: 8 bytes of header length, a JSON header, then the tensors' bytes without a gap.
//!
//! ```text
//! | u64 LE: n | n bytes: {"name": {"dtype": "BF16", "shape": [out, in], "data_offsets": [begin, end]}, ...} | data |
//! ```
//!
//! Format: <https://github.com/huggingface/safetensors#format>. For any bytes, [`parse`] neither panics nor allocates
//! more than a small multiple of the header in the file: no count in the file sets an allocation.
//! Written by hand because the errors of the `safetensors` crate name neither the tensor nor the missing bytes.

mod header;
mod index;

use std::cmp::Ordering;
use std::collections::BTreeMap;

pub use header::Malformed;
use header::{RawTensor, Shape};
use index::{INDEX, Index};

use super::escape::escape_for_terminal;
use super::faults::{PICKLE, no_weights};
use super::folder::Folder;
use super::shards::{Shard, Shards};
pub use super::tensor::Entry;
use ropechat_platform::error::{Error, Result, size};

/// The format's own limit on the header.
const MAX_HEADER: u64 = 100_000_000;

/// An unsharded model's weights.
const SINGLE: &str = "model.safetensors";

/// Opens a model folder: [`SINGLE`], or the index and the shards that it names.
pub(super) fn open(folder: &Folder) -> Result<Shards> {
    if folder.has(SINGLE) {
        let mut shards = Shards::new(folder, folder.join(SINGLE));
        add_file(&mut shards, SINGLE)?;
        return Ok(shards);
    }
    if !folder.has(INDEX) {
        return Err(no_weights(folder));
    }
    let index = Index::read(folder)?;
    let mut shards = Shards::new(folder, folder.join(INDEX));
    for name in index.shards() {
        add_file(&mut shards, name)?;
    }
    compare(&mut shards, &index)?;
    Ok(shards)
}

fn add_file(shards: &mut Shards, name: &str) -> Result<()> {
    let shard = Shard::map(shards.folder.open_file(name)?)?;
    let entries = parse(&shard.map).map_err(|bad| Error::Format {
        path: shard.path.clone(),
        field: bad.field,
        what: bad.what,
    })?;
    shards.add(shard, entries)
}

/// Checks that the index says what the shards hold.
fn compare(shards: &mut Shards, index: &Index) -> Result<()> {
    for (name, shard) in &index.weight_map {
        let found = shards.tensors.get(name).map(|(place, _)| &shards.files[*place].path);
        if found != Some(&shards.folder.join(shard)) {
            let found = found.map_or_else(|| "no shard".to_owned(), |path| path.display().to_string());
            return Err(Error::Tensor {
                path: shards.listing.clone(),
                name: escape_for_terminal(name),
                what: format!(
                    "weight_map says {shard}, and it is in {found}; \
                     index and shards must agree; download the model again"
                ),
            });
        }
    }
    let unlisted = shards
        .tensors
        .keys()
        .find(|name| !index.weight_map.contains_key(*name))
        .map(|name| escape_for_terminal(name));
    let listing = shards.listing.display();
    if let Some(name) = unlisted {
        shards.warnings.push(format!("{listing}: {name}: a shard holds it and weight_map does not list it"));
    }
    let bytes: u64 = shards.tensors.values().map(|(_, entry)| (entry.end - entry.begin) as u64).sum();
    if let Some(total_size) = index.total_size.filter(|&total_size| total_size != bytes) {
        let what = format!("it is {total_size}, and the tensors take {bytes} bytes");
        shards.warnings.push(format!("{listing}: metadata.total_size: {what}"));
    }
    Ok(())
}

/// Reads and checks the header of a whole file.
///
/// Errors: anything that upstream safetensors 0.8 refuses (a header over 100 MB or longer than the file, a name twice,
/// sizes that overflow or differ from the type and shape, gaps, overlaps, a file shorter or longer than its tensors).
pub fn parse(file: &[u8]) -> std::result::Result<BTreeMap<String, Entry>, Malformed> {
    let (text, data_begin) = header_text(file)?;
    let raw = header::read(&text)?;
    check_layout(&raw, file.len(), data_begin)?;
    raw.into_iter().map(|(name, tensor)| Ok((name.clone(), tensor.at(&name, data_begin)?))).collect()
}

/// The header's text and the offset where data begins.
///
/// The text is a copy: others may write to a mapped file between the check of its bytes and their use.
fn header_text(file: &[u8]) -> std::result::Result<(String, usize), Malformed> {
    let at_header = |what: String| not_safetensors(file).unwrap_or_else(|| Malformed::at("header", what));
    let Some((length, rest)) = header_length(file) else {
        let len = file.len();
        return Err(at_header(format!("the file has {len} bytes; 8 or more are needed; download it again")));
    };
    if !(2..=MAX_HEADER).contains(&length) {
        let what =
            format!("its length must be 2 to {MAX_HEADER} bytes (got {length}); download the file again");
        return Err(at_header(what));
    }
    let Some(bytes) = rest.get(..length as usize) else {
        let (short, there) = (length - rest.len() as u64, rest.len());
        return Err(at_header(format!(
            "the file is {short} or more bytes short: the header takes {length} bytes, and {there} are there; \
             download it again"
        )));
    };
    let (data_begin, mut copy) = (8 + bytes.len(), Vec::new());
    if copy.try_reserve_exact(bytes.len()).is_err() {
        return Err(at_header(format!("it takes {length} bytes, and there is no memory for it; free some")));
    }
    copy.extend_from_slice(bytes);
    if !copy.starts_with(b"{") {
        return Err(at_header(
            "it does not begin with '{'; JSON is expected; download the file again".to_owned(),
        ));
    }
    let text = String::from_utf8(copy).map_err(|error| {
        let place = 8 + error.utf8_error().valid_up_to();
        at_header(format!("byte {place} is not UTF-8; JSON in UTF-8 is expected; download the file again"))
    })?;
    Ok((text, data_begin))
}

/// The first 8 bytes as a number, and what follows them.
fn header_length(file: &[u8]) -> Option<(u64, &[u8])> {
    let (length, rest) = file.split_first_chunk::<8>()?;
    Some((u64::from_le_bytes(*length), rest))
}

/// Names the kind of a file that is not safetensors, if its first bytes show it.
fn not_safetensors(file: &[u8]) -> Option<Malformed> {
    let is_zip = file.starts_with(b"PK\x03\x04"); // as a length 67 MB: within the limit, and no one's header
    if !is_zip && header_length(file).is_none_or(|(length, _)| length <= MAX_HEADER) {
        return None; // a header can be that long: safetensors, cut or damaged
    }
    let what = match file {
        _ if is_zip => PICKLE,
        [0x80, 0x02..=0x05, ..] => PICKLE,
        [b'G', b'G', b'U', b'F', ..] => {
            "this is a GGUF file; safetensors is expected here; pass the .gguf file itself"
        }
        _ if file.starts_with(b"version https://git-lfs") => {
            "this is a Git LFS pointer; the weights are expected; run 'git lfs pull' in the model folder"
        }
        [b'<', ..] => {
            "this is a web page, probably an error; the weights are expected; download the file again"
        }
        _ => return None,
    };
    Some(Malformed::at("header", what.to_owned()))
}

impl RawTensor {
    /// Bytes that type and shape ask for; None when that overflows or is no whole number of bytes.
    fn size(&self) -> Option<u64> {
        let values =
            self.shape.0.iter().try_fold(1u64, |product, &dimension| product.checked_mul(dimension))?;
        let bits = values.checked_mul(self.bits)?;
        bits.is_multiple_of(8).then_some(bits / 8)
    }

    fn at(self, name: &str, data_begin: usize) -> std::result::Result<Entry, Malformed> {
        let too_big = |_| Malformed::at(name, "a size does not fit this machine's addresses".to_owned());
        let shape = self
            .shape
            .0
            .iter()
            .map(|&size| usize::try_from(size))
            .collect::<Result<_, _>>()
            .map_err(too_big)?;
        let place = |offset: u64| usize::try_from(offset).map(|offset| data_begin.saturating_add(offset));
        Ok(Entry {
            dtype: self.dtype,
            shape,
            begin: place(self.begin).map_err(too_big)?,
            end: place(self.end).map_err(too_big)?,
        })
    }
}

/// Every tensor has the size of its type and shape, and together they cover the data without gap or overlap.
fn check_layout(
    raw: &BTreeMap<String, RawTensor>,
    file_len: usize,
    data_begin: usize,
) -> std::result::Result<(), Malformed> {
    let mut places = Vec::new();
    for (name, tensor) in raw {
        check_size(tensor).map_err(|what| Malformed::at(name, what))?;
        places.push((tensor.begin, tensor.end, name));
    }
    places.sort_unstable();
    let mut covered = 0;
    for (begin, end, name) in places {
        if begin != covered {
            let kind = if begin < covered { "overlaps the tensor before it" } else { "leaves a gap" };
            return Err(Malformed::at(
                name,
                format!(
                    "it begins at byte {begin} of the data and {kind}; \
                     it must begin where the one before ends, at {covered}; download the file again"
                ),
            ));
        }
        covered = end;
    }
    let data = (file_len - data_begin) as u64;
    let what = match covered.cmp(&data) {
        Ordering::Equal => return Ok(()),
        Ordering::Greater => format!(
            "the file is {} short: its tensors take {}, and {} are there; download it again",
            size(covered - data),
            size(covered),
            size(data)
        ),
        Ordering::Less => format!(
            "the file has {} after its last tensor; it must end there; download it again",
            size(data - covered)
        ),
    };
    Err(Malformed::at("data", what))
}

/// Checks that a tensor's extent is that of its type and shape; says what is wrong if not.
fn check_size(tensor: &RawTensor) -> std::result::Result<(), String> {
    let RawTensor { dtype, shape: Shape(shape), begin, end, .. } = tensor;
    let size = tensor
        .size()
        .ok_or_else(|| format!("its size must be a whole number of bytes in the file (got {dtype} x {shape:?}); download it again"))?;
    if end.checked_sub(*begin) == Some(size) {
        return Ok(());
    }
    Err(format!(
        "data_offsets are [{begin}, {end}], and {dtype} x {shape:?} takes {size} bytes; \
         end - begin must be that; download the file again"
    ))
}
