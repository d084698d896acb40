//! q4_k and q5_k (ggml): `value = d * s * q - dmin * m`, q of 4 or 5 bits, s and m of 6 bits per block of 32 values, d and
//! dmin f16 per super-block of 256.
//!
//! A super-block of 16 rows is 256 bytes of numbers and up to four steps of 64 values, 512 or 640 bytes each;
//! `bit_planes.rs` shows the place of a value in the lines:
//!
//! ```text
//! | d: 16 x f16 | -dmin: 16 x f16 |                                     64 bytes
//! | for each step, a byte per row: block 0 | block 1 | upper bits |     4 x 48 bytes
//! |     block:       low four bits of m << 4 | of s
//! |     upper bits:  m of block 1 << 6 | s of block 1 << 4 | m of block 0 << 2 | s of block 0
//! | for each step: 8 lines of the low four bits |                       512 bytes
//! |                2 lines of fifth bits |                              128 bytes, q5_k only
//! ```

use super::bit_planes::{self, SuperBlock, quads};
use super::q4_1_q5_1::{fit, largest, nearest};
use super::step::{BLOCK, GROUP, LANES, SUPER_BLOCK, f16_at, place_of, put_f16, rounded_up, scale_of};
use half::f16;

/// Bytes of the numbers of a super-block.
pub(crate) const NUMBERS_BYTES: usize = STEP_SCALES + SUPER_BLOCK / GROUP * STEP_SCALES_BYTES;
/// Where the scales and minima of the first step begin.
pub(crate) const STEP_SCALES: usize = 4 * LANES;
/// Bytes of the scales and minima of a step.
pub(crate) const STEP_SCALES_BYTES: usize = 3 * LANES;

/// Blocks of a super-block.
pub(crate) const BLOCKS: usize = SUPER_BLOCK / BLOCK;

/// The numbers of a super-block of one row.
pub(crate) struct Numbers {
    pub d: f16,
    pub dmin: f16,
    pub scales: [u8; BLOCKS],
    pub mins: [u8; BLOCKS],
}

pub(crate) const fn step_bytes(bits: usize) -> usize {
    bit_planes::bytes(bits)
}

/// Writes super-block `index` of a row.
fn put<const BITS: usize>(
    panel: &mut [u8],
    index: usize,
    lane: usize,
    numbers: &Numbers,
    integers: &SuperBlock,
) {
    let (at, _) = place_of(index * SUPER_BLOCK / GROUP, NUMBERS_BYTES, step_bytes(BITS));
    let bytes = &mut panel[at..][..NUMBERS_BYTES];
    put_f16(bytes, 2 * lane, numbers.d);
    put_f16(bytes, 2 * LANES + 2 * lane, -numbers.dmin);
    for (step, bytes) in bytes[STEP_SCALES..].as_chunks_mut::<STEP_SCALES_BYTES>().0.iter_mut().enumerate() {
        let numbers = [2 * step, 2 * step + 1].map(|block| (numbers.scales[block], numbers.mins[block]));
        let [low_0, low_1] = numbers.map(|(scale, min)| scale & 15 | min << 4);
        let [upper_0, upper_1] = numbers.map(|(scale, min)| scale >> 4 | min >> 4 << 2);
        bytes[lane] = low_0;
        bytes[LANES + lane] = low_1;
        bytes[2 * LANES + lane] = upper_0 | upper_1 << 4;
    }
    bit_planes::put_super_block(BITS, panel, index, lane, (NUMBERS_BYTES, step_bytes(BITS)), integers);
}

/// Of a block's scale and minimum: the byte of the low bits, the byte of the upper ones, and how far those are shifted.
fn place(block: usize, lane: usize) -> (usize, usize, usize) {
    let step = STEP_SCALES + block / 2 * STEP_SCALES_BYTES;
    (step + block % 2 * LANES + lane, step + 2 * LANES + lane, 4 * (block % 2))
}

pub(crate) fn pack_row<const BITS: usize>(values: &[f32], lane: usize, panel: &mut [u8]) {
    let largest = largest(BITS);
    for (index, values) in values.chunks(SUPER_BLOCK).enumerate() {
        let mut padded = [0.0; SUPER_BLOCK];
        padded[..values.len()].copy_from_slice(values);
        let fitted: [_; BLOCKS] =
            std::array::from_fn(|block| fit(&padded.as_chunks::<BLOCK>().0[block], BITS));
        let fitted = fitted.map(|(scale, min)| (scale.to_f32(), -min.to_f32()));
        let most = |of: fn(&(f32, f32)) -> f32| fitted.iter().map(of).fold(0.0_f32, f32::max) / 63.0;
        let d = rounded_up(scale_of(&padded, most(|(scale, _)| *scale)));
        let dmin = rounded_up(most(|(_, min)| *min));
        let six_bits = |x: f32, of: f16| (x / of.to_f32()).round().clamp(0.0, 63.0) as u8;
        let (scales, mins) = (fitted.map(|(x, _)| six_bits(x, d)), fitted.map(|(_, x)| six_bits(x, dmin)));
        let q = std::array::from_fn(|i| {
            let scale = d.to_f32() * f32::from(scales[i / BLOCK]);
            let min = -dmin.to_f32() * f32::from(mins[i / BLOCK]);
            nearest(padded[i], min, if scale == 0.0 { 0.0 } else { 1.0 / scale }, largest) as u8
        });
        put::<BITS>(panel, index, lane, &Numbers { d, dmin, scales, mins }, &quads(BITS, &q));
    }
}

/// A file's super-blocks, unchanged.
pub(crate) fn pack_super_blocks<const BITS: usize>(
    blocks: impl Iterator<Item = (Numbers, SuperBlock)>,
    lane: usize,
    panel: &mut [u8],
) {
    for (index, (numbers, integers)) in blocks.enumerate() {
        put::<BITS>(panel, index, lane, &numbers, &integers);
    }
}

pub(crate) fn unpack_row<const BITS: usize>(panel: &[u8], lane: usize, out: &mut [f32]) {
    for (step, out) in out.chunks_mut(GROUP).enumerate() {
        let (numbers, lines) = place_of(step, NUMBERS_BYTES, step_bytes(BITS));
        let (numbers, lines) = (&panel[numbers..], &panel[lines..]);
        let (d, minus_dmin) = (f16_at(numbers, 2 * lane), f16_at(numbers, 2 * LANES + 2 * lane));
        for (i, out) in out.iter_mut().enumerate() {
            let (low, high, shift) = place(step % (SUPER_BLOCK / GROUP) * 2 + i / BLOCK, lane);
            let (low, high) = (numbers[low], numbers[high] >> shift);
            let (scale, min) = (low & 15 | (high & 3) << 4, low >> 4 | (high >> 2 & 3) << 4);
            let q = bit_planes::get(BITS, lines, i / BLOCK, i % BLOCK, lane);
            *out = d * f32::from(scale) * f32::from(q) + minus_dmin * f32::from(min);
        }
    }
}
