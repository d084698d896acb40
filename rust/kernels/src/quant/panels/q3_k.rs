//! q3_k (ggml): `value = d * s * (q - 4)`, q in 0..8, a scale s of six bits (less 32) per 16 values, d an f16 per super-block
//! of 256 values.
//!
//! A super-block of 16 rows is 256 bytes of numbers and up to four steps of 64 values, 384 bytes each; `bit_planes.rs`
//! shows the place of a value in the lines:
//!
//! ```text
//! | d: 16 x f32 |                                                                        64 bytes
//! | for each step, a byte per row: k 0..32 | k 32..64 | upper bits |                     4 x 48 bytes
//! |     k 0..32:     low four bits of the scale of k 16..32 << 4 | of 0..16
//! |     upper bits:  of k 48..64 << 6 | of 32..48 << 4 | of 16..32 << 2 | of 0..16
//! | for each step: 4 lines of the low two bits |                                         256 bytes
//! |                2 lines of third bits |                                               128 bytes
//! ```

use super::bit_planes::{self, SuperBlock, quads};
use super::step::{BLOCK, GROUP, LANES, SUPER_BLOCK, inverse, place_of, rounded_up, scale_of};
use half::f16;

/// Bytes of the numbers of a super-block.
pub(crate) const NUMBERS_BYTES: usize = STEP_SCALES + SUPER_BLOCK / GROUP * STEP_SCALES_BYTES;
/// Where the scales of the first step begin.
const STEP_SCALES: usize = 4 * LANES;
/// Bytes of the scales of a step.
const STEP_SCALES_BYTES: usize = 3 * LANES;
pub(crate) const STEP_BYTES: usize = bit_planes::bytes(BITS);
pub(crate) const BITS: usize = 3;
/// Values that share a scale.
const PART: usize = 16;
/// Scales of a super-block.
pub(crate) const PARTS: usize = SUPER_BLOCK / PART;
const OFFSET: f32 = 4.0;
/// What is taken away from a stored scale.
pub(crate) const SCALE_OFFSET: u8 = 32;

/// Of scale `part` (0..4) of a step: the byte of the low bits and their shift, the byte of the upper bits and their shift.
const fn place(part: usize, lane: usize) -> [usize; 4] {
    [part / 2 * LANES + lane, part % 2 * 4, 2 * LANES + lane, 2 * part]
}

/// Writes super-block `index` of a row; the scales are as they are stored.
fn put(panel: &mut [u8], index: usize, lane: usize, d: f16, scales: [u8; PARTS], integers: &SuperBlock) {
    let (at, _) = place_of(index * SUPER_BLOCK / GROUP, NUMBERS_BYTES, STEP_BYTES);
    let numbers = &mut panel[at..][..NUMBERS_BYTES];
    numbers[4 * lane..][..4].copy_from_slice(&d.to_f32().to_le_bytes());
    let steps = numbers[STEP_SCALES..].as_chunks_mut::<STEP_SCALES_BYTES>().0;
    for (bytes, [a, b, c, d]) in steps.iter_mut().zip(scales.as_chunks::<{ GROUP / PART }>().0) {
        bytes[lane] = a & 15 | b << 4;
        bytes[LANES + lane] = c & 15 | d << 4;
        bytes[2 * LANES + lane] = a >> 4 | b >> 4 << 2 | c >> 4 << 4 | d >> 4 << 6;
    }
    bit_planes::put_super_block(BITS, panel, index, lane, (NUMBERS_BYTES, STEP_BYTES), integers);
}

pub(crate) fn pack_row(values: &[f32], lane: usize, panel: &mut [u8]) {
    for (index, values) in values.chunks(SUPER_BLOCK).enumerate() {
        let mut padded = [0.0; SUPER_BLOCK];
        padded[..values.len()].copy_from_slice(values);
        let parts = padded.as_chunks::<PART>().0;
        let wanted: [f32; PARTS] = std::array::from_fn(|part| best_scale(&parts[part]));
        let largest = wanted.iter().fold(0.0_f32, |a, scale| a.max(scale.abs()));
        let d = rounded_up(scale_of(&padded, largest / 31.0));
        let scales = wanted.map(|scale| (scale * inverse(d.to_f32())).round());
        let q = std::array::from_fn(|i| nearest(padded[i], inverse(d.to_f32() * scales[i / PART])) as u8);
        let stored = scales.map(|scale| (scale as i8 + SCALE_OFFSET as i8) as u8);
        put(panel, index, lane, d, stored, &quads(BITS, &q));
    }
}

/// The stored integer of a value.
fn nearest(x: f32, inverse: f32) -> f32 {
    (x * inverse).round().clamp(-OFFSET, OFFSET - 1.0) + OFFSET
}

/// The scale of small squared error: the best one for the integers that some scales about the range give.
fn best_scale(values: &[f32; PART]) -> f32 {
    let extreme = values.iter().fold(0.0_f32, |a, &x| if x.abs() > a.abs() { x } else { a });
    let (mut best, mut most) = (0.0, 0.0);
    for steps in 0..=16 {
        let inverse = (2.4 + 0.15 * steps as f32) / -extreme;
        let (mut qq, mut qx) = (0.0_f32, 0.0_f32);
        for &x in values {
            let q = nearest(x, inverse) - OFFSET;
            (qq, qx) = (qq + q * q, qx + q * x);
        }
        // The squared error of the scale qx / qq is the sum of squares less qx^2 / qq.
        if qx * qx > most * qq {
            (best, most) = (qx / qq, qx * qx / qq);
        }
    }
    best
}

/// A file's super-blocks, unchanged: d, the scales of 16 values each as they are stored, and 256 integers.
pub(crate) fn pack_super_blocks(
    blocks: impl Iterator<Item = (f16, [u8; PARTS], SuperBlock)>,
    lane: usize,
    panel: &mut [u8],
) {
    for (index, (d, scales, integers)) in blocks.enumerate() {
        put(panel, index, lane, d, scales, &integers);
    }
}

pub(crate) fn unpack_row(panel: &[u8], lane: usize, out: &mut [f32]) {
    for (step, out) in out.chunks_mut(GROUP).enumerate() {
        let (numbers, lines) = place_of(step, NUMBERS_BYTES, STEP_BYTES);
        let (numbers, lines) = (&panel[numbers..], &panel[lines..]);
        let (d, _) = numbers[4 * lane..].split_first_chunk().expect("a panel has the numbers of each step");
        let scales = &numbers[STEP_SCALES + step % (SUPER_BLOCK / GROUP) * STEP_SCALES_BYTES..];
        for (i, out) in out.iter_mut().enumerate() {
            let [low, low_shift, high, high_shift] = place(i / PART, lane);
            let scale = scales[low] >> low_shift & 15 | (scales[high] >> high_shift & 3) << 4;
            let scale = f32::from_le_bytes(*d) * f32::from(scale as i8 - SCALE_OFFSET as i8);
            let q = bit_planes::get(BITS, lines, i / BLOCK, i % BLOCK, lane);
            *out = scale * (f32::from(q) - OFFSET);
        }
    }
}
