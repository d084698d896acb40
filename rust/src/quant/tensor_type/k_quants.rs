//! Blocks of 256 values with two levels of scales (ggml's "k-quants"): an f16 for the block, small integers for its parts.
//!
//! ```text
//! Q2_K | 16 x (min << 4 | scale) | 64 bytes of 2 bits | d f16 | dmin f16 |     parts of 16
//! Q3_K | 32 bytes of third bits | 64 bytes of 2 bits | 12 bytes: 16 scales of 6 bits | d f16 |   parts of 16
//! Q4_K | d f16 | dmin f16 | 12 bytes: 8 scales, 8 mins of 6 bits | 128 bytes of 4 bits |   parts of 32
//! Q5_K | d f16 | dmin f16 | 12 bytes, the same | 32 bytes of fifth bits | 128 bytes of 4 bits |   parts of 32
//! Q6_K | 128 bytes of 4 bits | 64 bytes of 2 high bits | 16 scales i8 | d f16 |   parts of 16
//!
//! Q2_K, Q4_K, Q5_K: value = (d * scale) * q - (dmin * min)
//! Q3_K, Q6_K:       value = (d * scale) * (q - 4 or 32), Q3_K's scale less 32
//! ```
//!
//! Values that share bytes lie 32 apart: of 32 bytes of 2 bits the lowest are values 0..32, the next 32..64, and so on;
//! of 32 bytes of 4 bits the low nibbles are values 0..32, the high ones 32..64. Q6_K takes 64 bytes of nibbles that way,
//! with 32 bytes of high bits.

use super::half;

/// 6-bit scales and mins of 8 parts out of 12 bytes.
///
/// ```text
/// 0..4   | high 2 of scale 4..8 | scale 0..4 |
/// 4..8   | high 2 of min 4..8   | min 0..4   |
/// 8..12  | low 4 of min 4..8 | low 4 of scale 4..8 |
/// ```
fn scale_and_min(bytes: &[u8], part: usize) -> (f32, f32) {
    let (scale, min) = match part {
        0..4 => (bytes[part] & 0x3f, bytes[part + 4] & 0x3f),
        _ => {
            let (low, scale, min) = (bytes[part + 4], bytes[part - 4], bytes[part]);
            ((low & 0x0f) | (scale >> 2 & 0x30), (low >> 4) | (min >> 2 & 0x30))
        }
    };
    (f32::from(scale), f32::from(min))
}

pub(super) fn q2_k(block: &[u8], out: &mut [f32]) {
    let (scales, quants) = (&block[..16], &block[16..80]);
    let (d, dmin) = (half(&block[80..]), half(&block[82..]));
    for (part, out) in out.chunks_exact_mut(16).enumerate() {
        let scale = d * f32::from(scales[part] & 0x0f);
        let min = dmin * f32::from(scales[part] >> 4);
        for (i, out) in out.iter_mut().enumerate() {
            *out = scale * f32::from(two_bits(quants, part * 16 + i)) - min;
        }
    }
}

/// 2 bits of value i, in 32 bytes per 128 values.
fn two_bits(bytes: &[u8], i: usize) -> u8 {
    bytes[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3
}

pub(super) fn q3_k(block: &[u8], out: &mut [f32]) {
    let (high, low, scales, d) = (&block[..32], &block[32..96], &block[96..108], half(&block[108..]));
    for (part, out) in out.chunks_exact_mut(16).enumerate() {
        let nibble = scales[part % 8] >> (part / 8 * 4) & 0x0f;
        let scale = nibble | (scales[8 + part % 4] >> (part / 4 * 2) & 3) << 4;
        let scale = d * f32::from(scale as i8 - 32);
        for (i, out) in out.iter_mut().enumerate() {
            let i = part * 16 + i;
            // A third bit that is not set takes 4 away.
            let third = high[i % 32] >> (i / 32) & 1;
            *out = scale * f32::from(two_bits(low, i) as i8 - 4 * (1 - third as i8));
        }
    }
}

pub(super) fn q4_k(block: &[u8], out: &mut [f32]) {
    let quants = &block[16..];
    four_bits_and(block, out, |i| four_bits(quants, i));
}

pub(super) fn q5_k(block: &[u8], out: &mut [f32]) {
    let (high, low) = (&block[16..48], &block[48..]);
    four_bits_and(block, out, |i| four_bits(low, i) | (high[i % 32] >> (i / 32) & 1) << 4);
}

/// Q4_K and Q5_K, which differ in the integers only.
fn four_bits_and(block: &[u8], out: &mut [f32], q: impl Fn(usize) -> u8) {
    let (d, dmin, scales) = (half(block), half(&block[2..]), &block[4..16]);
    for (part, out) in out.chunks_exact_mut(32).enumerate() {
        let (scale, min) = scale_and_min(scales, part);
        let (scale, min) = (d * scale, dmin * min);
        for (i, out) in out.iter_mut().enumerate() {
            *out = scale * f32::from(q(part * 32 + i)) - min;
        }
    }
}

/// 4 bits of value i, in 32 bytes per 64 values.
fn four_bits(bytes: &[u8], i: usize) -> u8 {
    bytes[i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4) & 0x0f
}

pub(super) fn q6_k(block: &[u8], out: &mut [f32]) {
    let (low, high, scales, d) = (&block[..128], &block[128..192], &block[192..208], half(&block[208..]));
    for (part, out) in out.chunks_exact_mut(16).enumerate() {
        let scale = d * f32::from(scales[part] as i8);
        for (i, out) in out.iter_mut().enumerate() {
            let i = part * 16 + i;
            let nibble = low[i / 128 * 64 + i % 64] >> (i % 128 / 64 * 4) & 0x0f;
            *out = scale * f32::from((nibble | two_bits(high, i) << 4) as i8 - 32);
        }
    }
}
