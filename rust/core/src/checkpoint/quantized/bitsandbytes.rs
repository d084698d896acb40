//! bitsandbytes in 4 bits (NF4, FP4): the whole matrix is cut into blocks, row by row without regard to rows; a value is
//! an entry of a table of 16 times the largest magnitude of its block.
//!
//! With double quantization these magnitudes are bytes: entries of a table of 256, times a float per block of them, plus an
//! offset.

use super::rows::RowReader;
use super::scales::Scales;
use ropechat_kernels::quant::StorageType;

/// How large a block's values are.
#[derive(Debug)]
pub(super) enum Absmax<'a> {
    /// A float per block.
    Floats(Scales<'a>),
    /// A byte per block.
    Bytes {
        bytes: &'a [u8],
        /// [256]
        table: Vec<f32>,
        scales: Scales<'a>,
        /// Blocks that share a scale.
        block: usize,
        offset: f32,
    },
}

#[derive(Debug)]
pub(super) struct FourBits<'a> {
    /// Two values each, the first in the high nibble.
    pub bytes: &'a [u8],
    /// [16]
    pub table: Vec<f32>,
    pub absmax: Absmax<'a>,
    /// Values that share a magnitude.
    pub block: usize,
}

impl Absmax<'_> {
    fn at(&self, index: usize) -> f32 {
        match self {
            Absmax::Floats(values) => values.at(index, 0),
            Absmax::Bytes { bytes, table, scales, block, offset } => {
                table[usize::from(bytes[index])] * scales.at(index / block, 0) + offset
            }
        }
    }

    /// The type for values as large as these.
    fn half_type(&self) -> StorageType {
        match self {
            Absmax::Floats(values) => values.half_type(1.0),
            Absmax::Bytes { scales, .. } => scales.half_type(1.0),
        }
    }
}

impl RowReader for FourBits<'_> {
    fn kept(&self) -> StorageType {
        self.absmax.half_type()
    }

    fn values(&self, row: usize, out: &mut [f32]) {
        let (mut index, mut rest) = (row * out.len(), out);
        while !rest.is_empty() {
            // Up to the end of the block.
            let count = (self.block - index % self.block).min(rest.len());
            let (now, later) = rest.split_at_mut(count);
            let scale = self.absmax.at(index / self.block);
            for (index, out) in (index..).zip(now) {
                let byte = self.bytes[index / 2];
                let q = if index.is_multiple_of(2) { byte >> 4 } else { byte & 15 };
                *out = self.table[usize::from(q)] * scale;
            }
            (index, rest) = (index + count, later);
        }
    }
}
