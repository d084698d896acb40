//! The safetensors container: 8 bytes of header length, a JSON header, then the tensors' bytes without a gap.
//!
//! ```text
//! | u64 LE: n | n bytes: {"name": {"dtype": "BF16", "shape": [out, in], "data_offsets": [begin, end]}, ...} | data |
//! ```
//!
//! Format: <https://github.com/huggingface/safetensors#format>. Whatever the bytes are, [`parse`] neither panics nor
//! allocates more than a small multiple of the header that is really there: no count out of the file sizes anything.

use std::collections::BTreeMap;

use super::header::{self, RawTensor};
use super::shown::shown;
use crate::quant::DType;

/// The format's own limit on the header.
const MAX_HEADER: u64 = 100_000_000;

/// What is wrong with a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed {
    /// Tensor name, or the part of the file.
    pub field: String,
    /// `<what it is>; <what is allowed>; <what to do>`.
    pub what: String,
}

impl Malformed {
    /// `field` is escaped here; foreign text in `what` must have been.
    pub(super) fn at(field: &str, what: String) -> Malformed {
        Malformed { field: shown(field), what }
    }
}

/// One tensor of the header. `begin..end` was checked against the file: slicing with it cannot fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Type as the file writes it: one of the format's own names.
    pub dtype: &'static str,
    /// Dimensions, outermost first.
    pub shape: Box<[usize]>,
    /// First byte, counted from the start of the file.
    pub begin: usize,
    /// One past the last byte.
    pub end: usize,
}

impl Entry {
    /// The type as the engine computes with it; None for types that it does not.
    pub fn usable_dtype(&self) -> Option<DType> {
        match self.dtype {
            "F32" => Some(DType::F32),
            "F16" => Some(DType::F16),
            "BF16" => Some(DType::BF16),
            _ => None,
        }
    }
}

/// Reads and checks the header of a whole file.
///
/// Errors: anything that upstream safetensors 0.8 refuses (a header over 100 MB or longer than the file, a name twice,
/// sizes that overflow or differ from the type and shape, gaps, overlaps, a file shorter or longer than its tensors).
pub fn parse(file: &[u8]) -> Result<BTreeMap<String, Entry>, Malformed> {
    let (text, data_begin) = header_text(file)?;
    let raw = header::read(text)?;
    check_layout(&raw, file.len(), data_begin)?;
    raw.into_iter().map(|(name, tensor)| Ok((name.clone(), tensor.at(&name, data_begin)?))).collect()
}

/// The header's text and the offset where data begins.
fn header_text(file: &[u8]) -> Result<(&str, usize), Malformed> {
    let Some(length) = file.first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes)) else {
        return Err(Malformed::at(
            "header",
            format!(
                "the file has {} bytes; it begins with 8 bytes of header length; \
            download it again",
                file.len()
            ),
        ));
    };
    let rest = &file[8..];
    if !(2..=MAX_HEADER.min(rest.len() as u64)).contains(&length) {
        return Err(not_safetensors(file).unwrap_or_else(|| Malformed::at("header", format!(
            "its length is {length} bytes, and {} follow; 2 to {MAX_HEADER} bytes that lie inside the file are allowed; \
            download the file again", rest.len()))));
    }
    let bytes = &rest[..length as usize];
    if bytes[0] != b'{' {
        return Err(not_safetensors(file).unwrap_or_else(|| {
            Malformed::at(
                "header",
                "it does not begin with '{'; \
            a JSON object is expected; download the file again"
                    .to_owned(),
            )
        }));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| {
        Malformed::at(
            "header",
            format!(
                "byte {} is not UTF-8; a JSON object in UTF-8 is expected; download the file again",
                8 + error.valid_up_to()
            ),
        )
    })?;
    Ok((text, 8 + bytes.len()))
}

/// Says what a file is that is no safetensors file, if its first bytes tell.
fn not_safetensors(file: &[u8]) -> Option<Malformed> {
    if file.get(4..8) == Some(&[0; 4]) {
        return None; // a length that a header can have: safetensors, cut or damaged
    }
    let kind = match file {
        [0x80, 0x02..=0x05, ..] | [b'P', b'K', 3, 4, ..] => {
            return Some(Malformed::at("header", PICKLE.to_owned()));
        }
        [b'G', b'G', b'U', b'F', ..] => {
            "a GGUF file; safetensors is expected here; pass the .gguf file itself"
        }
        _ if file.starts_with(b"version https://git-lfs") => {
            "a Git LFS pointer, not the weights; run 'git lfs pull' in the model folder, or download the file"
        }
        [b'<', ..] => "a web page (probably an error page), not the weights; download the file again",
        _ => return None,
    };
    Some(Malformed::at("header", format!("this is {kind}")))
}

/// What to do with a pickle. Nothing in this program reads one: reading a pickle runs the code in it.
pub(crate) const PICKLE: &str = "this is a pickle (or a zip of one), which can run code when it is read; only safetensors \
    is read; convert it on a machine that you trust: safetensors.torch.save_file(torch.load(FILE, weights_only=True), \
    'model.safetensors')";

impl RawTensor {
    /// Bytes that type and shape ask for; None when that overflows or is no whole number of bytes.
    fn size(&self) -> Option<u64> {
        let values =
            self.shape.0.iter().try_fold(1u64, |product, &dimension| product.checked_mul(dimension))?;
        let bits = values.checked_mul(self.bits)?;
        bits.is_multiple_of(8).then_some(bits / 8)
    }

    fn at(self, name: &str, data_begin: usize) -> Result<Entry, Malformed> {
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
) -> Result<(), Malformed> {
    let mut places = Vec::new();
    for (name, tensor) in raw {
        let (begin, end) = (tensor.begin, tensor.end);
        let size = tensor.size().ok_or_else(|| {
            Malformed::at(
                name,
                format!(
                    "the size of {} x {:?} overflows; \
            a size that fits the file is allowed; download it again",
                    tensor.dtype, tensor.shape.0
                ),
            )
        })?;
        if end.checked_sub(begin) != Some(size) {
            return Err(Malformed::at(
                name,
                format!(
                    "data_offsets are [{begin}, {end}], and {} x {:?} takes {size} bytes; \
                end - begin must be that; download the file again",
                    tensor.dtype, tensor.shape.0
                ),
            ));
        }
        places.push((begin, end, name));
    }
    places.sort_unstable();
    let mut covered = 0;
    for (begin, end, name) in places {
        if begin != covered {
            let kind = if begin < covered {
                "shares bytes with the tensor before it"
            } else {
                "leaves a gap before it"
            };
            return Err(Malformed::at(
                name,
                format!(
                    "it begins at byte {begin} of the data and {kind}; tensors must follow each \
                other without gap or overlap (here: {covered}); download the file again"
                ),
            ));
        }
        covered = end;
    }
    let data = (file_len - data_begin) as u64;
    if covered > data {
        return Err(Malformed::at(
            "data",
            format!(
                "the file is {} bytes short: its tensors take {covered} bytes, and {data} are \
            there; download it again",
                covered - data
            ),
        ));
    }
    if covered < data {
        return Err(Malformed::at(
            "data",
            format!(
                "{} bytes follow the last tensor; the file must end there; download it again",
                data - covered
            ),
        ));
    }
    Ok(())
}
