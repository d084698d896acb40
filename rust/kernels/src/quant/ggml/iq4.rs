//! 4 bits that name one of 16 fixed integers, close to each other near zero (ggml's IQ4): `scale * VALUES[q]`.
//!
//! ```text
//! IQ4_NL | scale f16 | 16 bytes |                                            32 values
//! IQ4_XS | d f16 | 16 bits: high 2 of 8 scales | 4 bytes: low 4 of 8 scales | 128 bytes |   256 values in parts of 32
//! ```
//!
//! Each 16 bytes hold 32 values: the low nibbles, then the high ones. IQ4_XS: scale = d * (6 bits - 32).

use super::bytes::{first, half};
use super::legacy::nibbles;

/// ggml's table.
const VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// 32 values of the integers in a table.
pub(super) fn from_table(table: &[i8; 16], scale: f32, quants: &[u8], out: &mut [f32]) {
    for (out, q) in out.iter_mut().zip(nibbles(quants)) {
        *out = scale * f32::from(table[usize::from(q)]);
    }
}

pub(super) fn iq4_nl(block: &[u8], out: &mut [f32]) {
    from_table(&VALUES, half(block), &block[2..], out);
}

pub(super) fn iq4_xs(block: &[u8], out: &mut [f32]) {
    let (d, high, low) = (half(block), u16::from_le_bytes(first(&block[2..])), &block[4..8]);
    for (part, (quants, out)) in block[8..].chunks_exact(16).zip(out.chunks_exact_mut(32)).enumerate() {
        let nibble = low[part / 2] >> (part % 2 * 4) & 0x0f;
        let scale = nibble | ((high >> (2 * part) & 3) << 4) as u8;
        from_table(&VALUES, d * f32::from(scale as i8 - 32), quants, out);
    }
}
