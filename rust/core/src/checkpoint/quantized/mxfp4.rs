//! MXFP4 in two tensors: `_blocks` with the 4-bit floats, `_scales` with the exponents.
//!
//! A byte holds two neighbours, the first in its low nibble; a block of ggml's MXFP4 holds value i and value i + 16, after the
//! exponent.

use super::rows::RowReader;
use ropechat_kernels::quant::{BLOCK, StorageType};

/// Bytes of a block's values.
const BYTES: usize = BLOCK / 2;

#[derive(Debug)]
pub(super) struct Mxfp4<'a> {
    /// [rows, blocks, 16]
    pub values: &'a [u8],
    /// [rows, blocks]
    pub exponents: &'a [u8],
    /// Blocks of a row.
    pub blocks: usize,
}

impl RowReader for Mxfp4<'_> {
    fn kept(&self) -> StorageType {
        StorageType::MXFP4
    }

    fn values(&self, row: usize, out: &mut [f32]) {
        let mut blocks = Vec::new();
        self.blocks(row, &mut blocks);
        StorageType::MXFP4.dequantize(&blocks, out);
    }

    fn has_blocks(&self) -> bool {
        true
    }

    fn blocks(&self, row: usize, out: &mut Vec<u8>) {
        let values = self.values.as_chunks::<BYTES>().0;
        let blocks = row * self.blocks..(row + 1) * self.blocks;
        for (values, exponent) in values[blocks.clone()].iter().zip(&self.exponents[blocks]) {
            let value = |i: usize| values[i / 2] >> (i % 2 * 4) & 15;
            out.push(*exponent);
            out.extend((0..BYTES).map(|i| value(i) | value(i + BYTES) << 4));
        }
    }
}
