//! A tensor of a file: where it is, and its bytes.

use std::path::Path;

use ropechat_kernels::quant::StorageType;

/// One tensor of a safetensors or GGUF file. `begin..end` was checked against the file: slicing with it cannot fail.
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
    /// The type as the engine reads it; None for types that it does not.
    pub fn tensor_type(&self) -> Option<StorageType> {
        StorageType::named(self.dtype)
    }
}

/// One tensor in a mapped file.
#[derive(Debug, Clone, Copy)]
pub struct TensorView<'a> {
    /// The file's name for it.
    pub name: &'a str,
    /// How the values are stored.
    pub tensor_type: StorageType,
    /// Dimensions, outermost first.
    pub shape: &'a [usize],
    /// Values in row-major order, little endian; no alignment is promised.
    pub bytes: &'a [u8],
    /// The file, for messages.
    pub path: &'a Path,
}
