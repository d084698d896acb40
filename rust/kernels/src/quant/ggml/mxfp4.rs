//! MXFP4 (OCP Microscaling Formats 1.0): blocks of 32 floats of 4 bits (a sign, two bits of exponent, one of mantissa)
//! with a power of two.
//!
//! ```text
//! | exponent e8m0 | 16 bytes: low nibbles, then high ones |      value = 2^(exponent - 127) * MXFP4[q] / 2
//! ```

use super::iq4::{codes, from_table};
use super::legacy::nibbles;
use crate::quant::panels::table::MXFP4;

/// 2^(exponent - 128): half of the scale. The two smallest are subnormal.
fn half_scale(exponent: u8) -> f32 {
    f32::from_bits(match exponent {
        0 | 1 => 0x0020_0000 << exponent,
        _ => u32::from(exponent - 1) << 23,
    })
}

pub(super) fn read_block(block: &[u8], out: &mut [f32]) {
    from_table(&MXFP4, half_scale(block[0]), &block[1..], out);
}

/// Scale, min and integers of each block, as Q5_1 has them: twelve more than the doubled floats. Exact where the exponent is
/// one of f16's, 104 to 140.
pub(super) fn blocks(bytes: &[u8]) -> impl Iterator<Item = (f32, f32, impl Iterator<Item = u8>)> {
    bytes.chunks_exact(17).map(|block| {
        let scale = half_scale(block[0]);
        (scale, -12.0 * scale, nibbles(&block[1..]).map(|q| (MXFP4[usize::from(q)] + 12) as u8))
    })
}

/// Scale and integers of each block, as they are stored. Exact where the exponent is one of f16's, 104 to 143.
pub(super) fn coded_blocks(bytes: &[u8]) -> impl Iterator<Item = (f32, [u8; 32])> {
    bytes.as_chunks::<17>().0.iter().map(|block| (half_scale(block[0]), codes(&block[1..])))
}
