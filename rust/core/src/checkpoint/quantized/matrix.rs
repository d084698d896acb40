//! A matrix of a file, as the loader sees it.

use std::ops::Range;

use super::parts::Part;
use super::rows::RowReader;
use crate::checkpoint::tensor::TensorView;
use ropechat_kernels::compute::activations::RowRounding;
use ropechat_kernels::quant::{PackedType, StorageType};

/// The shape of a matrix that a model needs.
#[derive(Debug, Clone, Copy)]
pub struct MatrixShape<'s> {
    /// The shape of a plain tensor, outermost first.
    pub stored: &'s [usize],
    /// in_features.
    pub columns: usize,
    /// Whether a plain tensor is [.., in_features, out_features].
    pub in_out: bool,
}

impl MatrixShape<'_> {
    /// out_features of all matrices in the tensor.
    pub(super) fn rows(&self) -> usize {
        self.stored.iter().fold(1, |all: usize, size| all.saturating_mul(*size)) / self.columns.max(1)
    }
}

/// A matrix in the parts of a quantization scheme, checked: rows can be read.
#[derive(Debug)]
pub struct Quantized<'a> {
    /// The name that the model has for it.
    pub name: String,
    pub(super) reader: Box<dyn RowReader + 'a>,
    pub(super) columns: usize,
    /// All its parts, the one with the values first.
    pub(super) parts: Vec<Part<'a>>,
    /// Bytes of a row in the first part, if rows are contiguous there.
    pub(super) row_bytes: Option<usize>,
}

impl<'a> Quantized<'a> {
    /// The type that `auto` computes it in. Reads the scales and zero points.
    pub fn tensor_type(&self) -> StorageType {
        self.reader.kept()
    }

    /// The type in which rows are handed out to be packed into `dtype`: blocks where their integers are kept, else F32.
    pub fn row_type(&self, dtype: PackedType) -> StorageType {
        let kept = self.reader.kept();
        if self.reader.has_blocks() && !kept.is_float() && kept.is_kept_in(dtype) {
            kept
        } else {
            StorageType::F32
        }
    }

    /// How the model rounds its inputs.
    pub fn rounding(&self) -> RowRounding {
        self.reader.rounding()
    }

    /// Replaces `out` by a row in [`Quantized::row_type`].
    pub fn read_row(&self, row: usize, as_type: StorageType, out: &mut Vec<u8>) {
        out.clear();
        if as_type != StorageType::F32 {
            return self.reader.blocks(row, out);
        }
        let mut values = vec![0.0; self.columns];
        self.reader.values(row, &mut values);
        out.extend_from_slice(bytemuck::cast_slice(&values));
    }

    /// Name and bytes of every part.
    pub fn parts(&self) -> impl Iterator<Item = (&'a str, &'a [u8])> {
        self.parts.iter().map(|part| (part.name, part.bytes))
    }

    /// Name and bytes of what only these rows need.
    pub fn piece(&self, rows: Range<usize>) -> Option<(&'a str, &'a [u8])> {
        let (part, bytes) = (self.parts.first()?, self.row_bytes?);
        Some((part.name, part.bytes.get(rows.start * bytes..rows.end * bytes)?))
    }
}

/// A matrix of a file.
#[derive(Debug)]
pub enum Matrix<'a> {
    /// Stored as numbers, or in blocks of GGUF.
    Plain(TensorView<'a>),
    /// In the parts of a quantization scheme.
    Quantized(Quantized<'a>),
}

impl Matrix<'_> {
    /// How the model rounds its inputs.
    pub fn rounding(&self) -> RowRounding {
        match self {
            Matrix::Plain(_) => RowRounding::AsWeights,
            Matrix::Quantized(quantized) => quantized.rounding(),
        }
    }

    /// The type that `auto` computes it in, through [`StorageType::packed`].
    pub fn tensor_type(&self) -> StorageType {
        match self {
            Matrix::Plain(view) => view.tensor_type,
            Matrix::Quantized(quantized) => quantized.tensor_type(),
        }
    }
}
