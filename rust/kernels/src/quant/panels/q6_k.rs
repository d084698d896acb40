//! q6_k (ggml): `value = d * s * (q - 32)`, q in 0..64, a scale s of a signed byte per 16 values, d an f16 per super-block of
//! 256 values. The types whose integers name values (`table.rs`) differ in the lines only.
//!
//! A super-block of 16 rows is 320 bytes of numbers and up to four steps of 64 values, 768 bytes each; `bit_planes.rs`
//! shows the place of a value in the lines:
//!
//! ```text
//! | d: 16 x f32 |                                                                    64 bytes
//! | for each step: scales of k 0..16: 16 x i8 | of 16..32 | of 32..48 | of 48..64 |   4 x 64 bytes
//! | for each step: 8 lines of the low four bits |                                   512 bytes
//! |                4 lines of the upper two bits |                                  256 bytes
//! ```

use super::bit_planes::{self, SuperBlock, quads};
use super::step::{BLOCK, GROUP, LANES, SUPER_BLOCK, inverse, place_of, rounded_up, scale_of};

/// Bytes of the numbers of a super-block.
pub(crate) const NUMBERS_BYTES: usize = STEP_SCALES + SUPER_BLOCK / GROUP * STEP_SCALES_BYTES;
/// Where the scales of the first step begin.
pub(crate) const STEP_SCALES: usize = 4 * LANES;
/// Bytes of the scales of a step.
pub(crate) const STEP_SCALES_BYTES: usize = 4 * LANES;
pub(crate) const STEP_BYTES: usize = bit_planes::bytes(BITS);
pub(crate) const BITS: usize = 6;
/// Values that share a scale.
const PART: usize = 16;
/// Scales of a super-block.
pub(crate) const PARTS: usize = SUPER_BLOCK / PART;
const OFFSET: f32 = 32.0;

/// Writes super-block `index` of a row.
fn put<const BITS: usize>(
    panel: &mut [u8],
    index: usize,
    lane: usize,
    d: f32,
    scales: [i8; PARTS],
    integers: &SuperBlock,
) {
    let step_bytes = bit_planes::bytes(BITS);
    let (at, _) = place_of(index * SUPER_BLOCK / GROUP, NUMBERS_BYTES, step_bytes);
    let numbers = &mut panel[at..][..NUMBERS_BYTES];
    numbers[4 * lane..][..4].copy_from_slice(&d.to_le_bytes());
    for (part, scale) in scales.into_iter().enumerate() {
        numbers[STEP_SCALES + part * LANES + lane] = scale as u8;
    }
    bit_planes::put_super_block(BITS, panel, index, lane, (NUMBERS_BYTES, step_bytes), integers);
}

pub(crate) fn pack_row(values: &[f32], lane: usize, panel: &mut [u8]) {
    for (index, values) in values.chunks(SUPER_BLOCK).enumerate() {
        let mut padded = [0.0; SUPER_BLOCK];
        padded[..values.len()].copy_from_slice(values);
        let wanted: [f32; PARTS] = std::array::from_fn(|part| wanted_scale(&padded[part * PART..][..PART]));
        let largest = wanted.iter().fold(0.0_f32, |a, scale| a.max(scale.abs()));
        let d = rounded_up(scale_of(&padded, largest / 127.0));
        let scales = wanted.map(|scale| (scale * inverse(d.to_f32())).round() as i8);
        let inverses = scales.map(|scale| inverse(d.to_f32() * f32::from(scale)));
        let q =
            std::array::from_fn(|i| (padded[i] * inverses[i / PART] + OFFSET + 0.5).clamp(0.0, 63.0) as u8);
        put::<BITS>(panel, index, lane, d.to_f32(), scales, &quads(BITS, &q));
    }
}

/// The scale with which the value of largest magnitude becomes -32; the other end of the range is only 31.
fn wanted_scale(values: &[f32]) -> f32 {
    values.iter().fold(0.0_f32, |a, &x| if x.abs() > a.abs() { x } else { a }) / -OFFSET
}

/// A file's super-blocks, unchanged: d, the scales of 16 values each, and 256 integers.
pub(crate) fn pack_super_blocks<const BITS: usize>(
    blocks: impl Iterator<Item = (f32, [i8; PARTS], SuperBlock)>,
    lane: usize,
    panel: &mut [u8],
) {
    for (index, (d, scales, integers)) in blocks.enumerate() {
        put::<BITS>(panel, index, lane, d, scales, &integers);
    }
}

pub(crate) fn unpack_row(panel: &[u8], lane: usize, out: &mut [f32]) {
    unpack_with::<BITS>(panel, lane, out, |q| f32::from(q) - OFFSET);
}

/// Reads the row in a lane, with the value of each integer.
pub(super) fn unpack_with<const BITS: usize>(
    panel: &[u8],
    lane: usize,
    out: &mut [f32],
    value: impl Fn(u8) -> f32,
) {
    for (step, out) in out.chunks_mut(GROUP).enumerate() {
        let (numbers, lines) = place_of(step, NUMBERS_BYTES, bit_planes::bytes(BITS));
        let (numbers, lines) = (&panel[numbers..], &panel[lines..]);
        let (d, _) = numbers[4 * lane..].split_first_chunk().expect("a panel has the numbers of each step");
        let scales = &numbers[STEP_SCALES + step % (SUPER_BLOCK / GROUP) * STEP_SCALES_BYTES..];
        for (i, out) in out.iter_mut().enumerate() {
            let scale = f32::from_le_bytes(*d) * f32::from(scales[i / PART * LANES + lane] as i8);
            let q = bit_planes::get(BITS, lines, i / BLOCK, i % BLOCK, lane);
            *out = scale * value(q);
        }
    }
}
