//! `quant_state.bitsandbytes__nf4`: JSON in a tensor of bytes.

use serde_json::Value;

use super::parts::Part;
use crate::checkpoint::json;
use ropechat_platform::error::Result;

/// Longest text read; published ones have about a hundred bytes.
const LONGEST: usize = 1 << 16;

/// What it says of a matrix.
#[derive(Debug)]
pub(super) struct QuantState {
    /// `shape`.
    pub shape: Vec<usize>,
    /// `blocksize`: values that share a magnitude.
    pub block: usize,
    /// `nested_blocksize` and `nested_offset`, with double quantization.
    pub nested: Option<(usize, f32)>,
}

impl QuantState {
    /// Errors: `Tensor` that names the part, for text that is not such an object.
    pub fn read(part: &Part<'_>) -> Result<Self> {
        let fault = |what: &str| part.fault(what);
        if part.bytes.len() > LONGEST {
            return Err(fault("it is too long for the JSON of a quantization state"));
        }
        // A copy: another process may change the mapped bytes after they were checked.
        let text = String::from_utf8(part.bytes.to_vec()).map_err(|_| fault("it must be JSON in UTF-8"))?;
        let state = json::parse(&text).map_err(|bad| fault(&format!("{}: {}", bad.field, bad.what)))?;
        let whole = |value: &Value| value.as_u64().and_then(|number| usize::try_from(number).ok());
        let integer = |key: &str| {
            let number = state.get(key).and_then(whole).filter(|number| *number > 0);
            number.ok_or_else(|| fault(&format!("{key}: must be a positive integer")))
        };
        let shape =
            state.get("shape").and_then(Value::as_array).map(|shape| shape.iter().map(whole).collect());
        let shape: Option<Vec<usize>> = shape.flatten();
        let nested = match state.get("nested_offset").filter(|value| !value.is_null()) {
            None => None,
            Some(offset) => {
                let offset = offset.as_f64().ok_or_else(|| fault("nested_offset: must be a number"))?;
                Some((integer("nested_blocksize")?, offset as f32))
            }
        };
        Ok(Self {
            shape: shape.ok_or_else(|| fault("shape: must be a list of dimensions"))?,
            block: integer("blocksize")?,
            nested,
        })
    }
}
