//! Blocks of 32 values of 4 or 5 bits (ggml): `scale * (q - offset)`, or `scale * q + min`.
//!
//! ```text
//! Q4_0 | scale f16 | 16 bytes |                        value = scale * (q - 8)
//! Q4_1 | scale f16 | min f16 | 16 bytes |              value = scale * q + min
//! Q5_0 | scale f16 | 32 fifth bits | 16 bytes |        value = scale * (q - 16)
//! Q5_1 | scale f16 | min f16 | 32 fifth bits | 16 bytes |   value = scale * q + min
//! ```
//!
//! Byte i of the 16 holds value i in its low nibble and value i + 16 in its high nibble; bit i of the fifth bits is
//! value i's.

use super::bytes::{first, half};

/// The low nibbles, then the high ones.
pub(super) fn nibbles(bytes: &[u8]) -> impl Iterator<Item = u8> + '_ {
    bytes.iter().map(|byte| byte & 0x0f).chain(bytes.iter().map(|byte| byte >> 4))
}

/// Nibbles with a fifth bit each, which `high` holds.
fn five_bits<'a>(high: &[u8], low: &'a [u8]) -> impl Iterator<Item = u8> + use<'a> {
    let high = u32::from_le_bytes(first(high));
    nibbles(low).enumerate().map(move |(i, q)| q | (((high >> i) & 1) << 4) as u8)
}

fn shifted(scale: f32, offset: i8, q: impl Iterator<Item = u8>, out: &mut [f32]) {
    out.iter_mut().zip(q).for_each(|(out, q)| *out = scale * f32::from(q as i8 - offset));
}

fn with_min(scale: f32, min: f32, q: impl Iterator<Item = u8>, out: &mut [f32]) {
    out.iter_mut().zip(q).for_each(|(out, q)| *out = scale * f32::from(q) + min);
}

pub(super) fn q4_0(block: &[u8], out: &mut [f32]) {
    shifted(half(block), 8, nibbles(&block[2..]), out);
}

/// Scale, min and integers of each block, as Q4_1 has them.
pub(super) fn q4_0_blocks(bytes: &[u8]) -> impl Iterator<Item = (f32, f32, impl Iterator<Item = u8>)> {
    bytes.chunks_exact(18).map(|block| (half(block), -8.0 * half(block), nibbles(&block[2..])))
}

/// Scale, min and integers of each block.
pub(super) fn q4_1_blocks(bytes: &[u8]) -> impl Iterator<Item = (f32, f32, impl Iterator<Item = u8>)> {
    bytes.chunks_exact(20).map(|block| (half(block), half(&block[2..]), nibbles(&block[4..])))
}

pub(super) fn q4_1(block: &[u8], out: &mut [f32]) {
    with_min(half(block), half(&block[2..]), nibbles(&block[4..]), out);
}

/// Scale, min and integers of each block, as Q5_1 has them.
pub(super) fn q5_0_blocks(bytes: &[u8]) -> impl Iterator<Item = (f32, f32, impl Iterator<Item = u8>)> {
    bytes
        .chunks_exact(22)
        .map(|block| (half(block), -16.0 * half(block), five_bits(&block[2..], &block[6..])))
}

pub(super) fn q5_1_blocks(bytes: &[u8]) -> impl Iterator<Item = (f32, f32, impl Iterator<Item = u8>)> {
    bytes.chunks_exact(24).map(|block| (half(block), half(&block[2..]), five_bits(&block[4..], &block[8..])))
}

pub(super) fn q5_0(block: &[u8], out: &mut [f32]) {
    shifted(half(block), 16, five_bits(&block[2..], &block[6..]), out);
}

pub(super) fn q5_1(block: &[u8], out: &mut [f32]) {
    with_min(half(block), half(&block[2..]), five_bits(&block[4..], &block[8..]), out);
}
