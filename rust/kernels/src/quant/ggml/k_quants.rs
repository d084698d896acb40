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
//! Values that share bytes are 32 apart: of 32 bytes of 2 bits the lowest are values 0..32, the next 32..64, and so on;
//! of 32 bytes of 4 bits the low nibbles are values 0..32, the high ones 32..64. Q6_K takes 64 bytes of nibbles that way,
//! with 32 bytes of high bits.

use super::bytes::{first, half};
use crate::quant::panels::bit_planes::{SuperBlock, quads};
use crate::quant::panels::q4_k_q5_k::Numbers;
use crate::quant::panels::{q2_k, q3_k, q6_k};
use half::f16;

/// 6-bit scales and mins of 8 parts out of 12 bytes.
///
/// ```text
/// 0..4   | high 2 of scale 4..8 | scale 0..4 |
/// 4..8   | high 2 of min 4..8   | min 0..4   |
/// 8..12  | low 4 of min 4..8 | low 4 of scale 4..8 |
/// ```
#[inline]
fn scales_and_mins(bytes: &[u8]) -> [[u8; 8]; 2] {
    let [scale, min, low] = [0, 4, 8].map(|at| quad(bytes, at));
    let bytes = |first: u32, last: u32| (u64::from(first) | u64::from(last) << 32).to_le_bytes();
    [
        bytes(scale & 0x3f3f_3f3f, low & 0x0f0f_0f0f | scale >> 2 & 0x3030_3030),
        bytes(min & 0x3f3f_3f3f, low >> 4 & 0x0f0f_0f0f | min >> 2 & 0x3030_3030),
    ]
}

/// Four bytes as one number.
#[inline]
fn quad(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(first(&bytes[at..]))
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
pub(super) fn two_bits(bytes: &[u8], i: usize) -> u8 {
    bytes[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3
}

/// Numbers and integers of each block.
pub(super) fn q2_k_blocks(bytes: &[u8]) -> impl Iterator<Item = (q2_k::Numbers, SuperBlock)> {
    bytes.as_chunks::<84>().0.iter().map(|block| {
        let numbers = q2_k::Numbers {
            d: f16::from_le_bytes(first(&block[80..])),
            dmin: f16::from_le_bytes(first(&block[82..])),
            parts: first(block),
        };
        (numbers, quads(q2_k::BITS, &std::array::from_fn(|i| two_bits(&block[16..80], i))))
    })
}

pub(super) fn q3_k(block: &[u8], out: &mut [f32]) {
    let d = half(&block[108..]);
    for (part, out) in out.chunks_exact_mut(16).enumerate() {
        let scale = d * f32::from(q3_k_scale(block, part));
        for (i, out) in out.iter_mut().enumerate() {
            *out = scale * f32::from(q3_k_value(block, part * 16 + i));
        }
    }
}

/// Scale of a part of 16.
fn q3_k_scale(block: &[u8], part: usize) -> i8 {
    let scales = &block[96..108];
    let nibble = scales[part % 8] >> (part / 8 * 4) & 0x0f;
    (nibble | (scales[8 + part % 4] >> (part / 4 * 2) & 3) << 4) as i8 - 32
}

/// Integer i, in -4..4.
fn q3_k_value(block: &[u8], i: usize) -> i8 {
    // A third bit that is not set takes 4 away.
    let third = block[i % 32] >> (i / 32) & 1;
    two_bits(&block[32..96], i) as i8 - 4 * (1 - third as i8)
}

/// For each block: d, the scales of 16 values as they are stored, the integers.
pub(super) fn q3_k_blocks_of_3_bits(bytes: &[u8]) -> impl Iterator<Item = (f16, [u8; 16], SuperBlock)> {
    bytes.as_chunks::<110>().0.iter().map(|block| {
        let scales = std::array::from_fn(|part| (q3_k_scale(block, part) + q3_k::SCALE_OFFSET as i8) as u8);
        let q = std::array::from_fn(|i| (q3_k_value(block, i) + 4) as u8);
        (f16::from_le_bytes(first(&block[108..])), scales, quads(q3_k::BITS, &q))
    })
}

/// As [`q6_k_blocks`]: Q3_K is Q6_K with small numbers.
pub(super) fn q3_k_blocks(bytes: &[u8]) -> impl Iterator<Item = (f32, [i8; 16], SuperBlock)> {
    bytes.chunks_exact(110).map(|block| {
        let scales = std::array::from_fn(|part| q3_k_scale(block, part));
        let q = std::array::from_fn(|i| (q3_k_value(block, i) + 32) as u8);
        (half(&block[108..]), scales, quads(q6_k::BITS, &q))
    })
}

pub(super) fn q4_k(block: &[u8], out: &mut [f32]) {
    values(block, out, q4_k_integers(block));
}

pub(super) fn q5_k(block: &[u8], out: &mut [f32]) {
    values(block, out, q5_k_integers(block));
}

/// Numbers and integers of each block.
pub(super) fn q4_k_blocks(bytes: &[u8]) -> impl Iterator<Item = (Numbers, SuperBlock)> {
    bytes.as_chunks::<144>().0.iter().map(|block| (numbers(block), nibble_quads(&block[16..])))
}

/// The quads of 128 bytes of 4 bits: in a panel they share bytes as they do here.
#[inline]
fn nibble_quads(bytes: &[u8]) -> SuperBlock {
    let mut all = SuperBlock::default();
    for (quads, bytes) in all.iter_mut().zip(bytes.as_chunks::<32>().0) {
        (0..8).for_each(|t| quads[t] = quad(bytes, 4 * t));
    }
    all
}

/// Scales, minima and values of each super-block of Q5_K.
pub(super) fn q5_k_blocks(bytes: &[u8]) -> impl Iterator<Item = (Numbers, SuperBlock)> {
    bytes.as_chunks::<176>().0.iter().map(|block| (numbers(block), q5_k_quads(block)))
}

#[inline]
fn q5_k_quads(block: &[u8; 176]) -> SuperBlock {
    let mut all = nibble_quads(&block[48..]);
    for (step, quads) in all.iter_mut().enumerate() {
        for i in 0..8 {
            let fifth = quad(block, 16 + 4 * i) >> (2 * step);
            quads[8 + i / 4] |= (fifth & 0x0101_0101 | (fifth & 0x0202_0202) << 3) << (i % 4);
        }
    }
    all
}

/// Q4_K and Q5_K start with the same fields.
fn numbers(block: &[u8]) -> Numbers {
    let [scales, mins] = scales_and_mins(&block[4..16]);
    Numbers {
        d: f16::from_le_bytes(first(block)),
        dmin: f16::from_le_bytes(first(&block[2..])),
        scales,
        mins,
    }
}

#[inline]
fn q4_k_integers(block: &[u8]) -> [u8; 256] {
    let mut all = [0; 256];
    nibbles::<32>(&block[16..], &mut all);
    all
}

#[inline]
fn q5_k_integers(block: &[u8]) -> [u8; 256] {
    let mut all = [0; 256];
    nibbles::<32>(&block[48..], &mut all);
    for (part, all) in all.chunks_exact_mut(32).enumerate() {
        all.iter_mut().zip(&block[16..48]).for_each(|(q, fifth)| *q |= (fifth >> part & 1) << 4);
    }
    all
}

/// 4 bits of each value, in `N` bytes per 2 N values: the low ones first.
#[inline]
fn nibbles<const N: usize>(bytes: &[u8], all: &mut [u8; 256]) {
    for (bytes, all) in bytes.as_chunks::<N>().0.iter().zip(all.chunks_exact_mut(2 * N)) {
        let (low, high) = all.split_at_mut(N);
        low.iter_mut().zip(bytes).for_each(|(q, byte)| *q = byte & 0x0f);
        high.iter_mut().zip(bytes).for_each(|(q, byte)| *q = byte >> 4);
    }
}

/// Q4_K and Q5_K differ in the integers only.
fn values(block: &[u8], out: &mut [f32], q: [u8; 256]) {
    let (d, dmin) = (half(block), half(&block[2..]));
    let [scales, mins] = scales_and_mins(&block[4..16]);
    for (part, (out, q)) in out.chunks_exact_mut(32).zip(q.as_chunks::<32>().0).enumerate() {
        let (scale, min) = (d * f32::from(scales[part]), dmin * f32::from(mins[part]));
        out.iter_mut().zip(q).for_each(|(out, &q)| *out = scale * f32::from(q) - min);
    }
}

pub(super) fn q6_k(block: &[u8], out: &mut [f32]) {
    let (d, q) = (half(&block[208..]), q6_k_integers(block));
    for (part, out) in out.chunks_exact_mut(16).enumerate() {
        let scale = d * f32::from(block[192 + part] as i8);
        for (i, out) in out.iter_mut().enumerate() {
            *out = scale * f32::from(q[part * 16 + i] as i8 - 32);
        }
    }
}

#[inline]
fn q6_k_integers(block: &[u8]) -> [u8; 256] {
    let mut all = [0; 256];
    nibbles::<64>(&block[..128], &mut all);
    for (bytes, all) in block[128..192].chunks_exact(32).zip(all.chunks_exact_mut(128)) {
        for (part, all) in all.chunks_exact_mut(32).enumerate() {
            all.iter_mut().zip(bytes).for_each(|(q, high)| *q |= (high >> (2 * part) & 3) << 4);
        }
    }
    all
}

/// For each block: d, the scales of 16 values, the integers.
pub(super) fn q6_k_blocks(bytes: &[u8]) -> impl Iterator<Item = (f32, [i8; 16], SuperBlock)> {
    bytes.as_chunks::<210>().0.iter().map(|block| {
        let scales = std::array::from_fn(|part| block[192 + part] as i8);
        (half(&block[208..]), scales, q6_k_quads(block))
    })
}

#[inline]
fn q6_k_quads(block: &[u8; 210]) -> SuperBlock {
    let mut all = SuperBlock::default();
    for (half, steps) in all.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        for i in 0..8 {
            let [first, second] = [64 * half, 64 * half + 32].map(|at| quad(block, at + 4 * i));
            let upper = quad(block, 128 + 32 * half + 4 * i);
            steps[0][i] = first & 0x0f0f_0f0f | (second & 0x0f0f_0f0f) << 4;
            steps[1][i] = first >> 4 & 0x0f0f_0f0f | second & 0xf0f0_f0f0;
            let (line, shift) = (8 + i / 2, i % 2 * 2);
            steps[0][line] |= (upper & 0x0303_0303 | (upper & 0x0c0c_0c0c) << 2) << shift;
            steps[1][line] |= (upper >> 4 & 0x0303_0303 | upper >> 2 & 0x3030_3030) << shift;
        }
    }
    all
}
