//! 4 bits that name one of 16 fixed integers, close to each other near zero (ggml's IQ4): `scale * VALUES[q]`.
//!
//! ```text
//! IQ4_NL | scale f16 | 16 bytes |                                            32 values
//! IQ4_XS | d f16 | 16 bits: high 2 of 8 scales | 4 bytes: low 4 of 8 scales | 128 bytes |   256 values in parts of 32
//! ```
//!
//! Each 16 bytes hold 32 values: the low nibbles, then the high ones. IQ4_XS: scale = d * (6 bits - 32).

use super::bytes::{first, half};
use super::iq::Decoded;
use super::legacy::nibbles;
use crate::quant::panels::table::IQ4;

/// 32 values of the integers in a table.
pub(super) fn from_table(table: &[i8; 16], scale: f32, quants: &[u8], out: &mut [f32]) {
    for (out, q) in out.iter_mut().zip(nibbles(quants)) {
        *out = scale * f32::from(table[usize::from(q)]);
    }
}

pub(super) fn iq4_nl(block: &[u8], out: &mut [f32]) {
    from_table(&IQ4, half(block), &block[2..], out);
}

/// Scale and integers of each block, as they are stored.
pub(super) fn iq4_nl_blocks(bytes: &[u8]) -> impl Iterator<Item = (f32, [u8; 32])> {
    bytes.as_chunks::<18>().0.iter().map(|block| (half(block), codes(&block[2..])))
}

/// What the nibbles of 16 bytes are.
pub(super) fn codes(bytes: &[u8]) -> [u8; 32] {
    let mut all = [0; 32];
    all.iter_mut().zip(nibbles(bytes)).for_each(|(to, q)| *to = q);
    all
}

pub(super) fn iq4_xs(block: &[u8]) -> Decoded {
    let (high, low) = (u16::from_le_bytes(first(&block[2..])), &block[4..8]);
    let scales = std::array::from_fn(|half| {
        let part = half / 2;
        let nibble = low[part / 2] >> (part % 2 * 4) & 0x0f;
        (nibble | ((high >> (2 * part) & 3) << 4) as u8) as i8 - 32
    });
    let mut q = [0; 256];
    for (quants, q) in block[8..].chunks_exact(16).zip(q.as_chunks_mut::<32>().0) {
        *q = codes(quants).map(|code| IQ4[usize::from(code)]);
    }
    Decoded { d: half(block), scales, q }
}
