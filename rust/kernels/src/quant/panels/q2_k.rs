//! q2_k (ggml): `value = d * s * q - dmin * m`, q in 0..4, s and m of four bits per 16 values, d and dmin f16 per super-block
//! of 256 values.
//!
//! A super-block of 16 rows is 320 bytes of numbers and up to four steps of 64 values, 256 bytes each; `bit_planes.rs`
//! shows the place of a value in the lines:
//!
//! ```text
//! | d: 16 x f16 | -dmin: 16 x f16 |                                                            64 bytes
//! | for each step, m << 4 | s of each row: of k 0..16 | of 16..32 | of 32..48 | of 48..64 |   4 x 64 bytes
//! | for each step: 4 lines of two bits |                                                      256 bytes
//! ```

use super::bit_planes::{self, SuperBlock, quads};
use super::q4_1_q5_1::{fit, largest, nearest};
use super::step::{
    BLOCK, GROUP, LANES, SUPER_BLOCK, f16_at, inverse, place_of, put_f16, rounded_up, scale_of,
};
use half::f16;

/// Bytes of the numbers of a super-block.
pub(crate) const NUMBERS_BYTES: usize = STEP_SCALES + SUPER_BLOCK / GROUP * STEP_SCALES_BYTES;
/// Where the scales and minima of the first step begin.
pub(crate) const STEP_SCALES: usize = 4 * LANES;
/// Bytes of the scales and minima of a step.
pub(crate) const STEP_SCALES_BYTES: usize = 4 * LANES;
pub(crate) const STEP_BYTES: usize = bit_planes::bytes(BITS);
pub(crate) const BITS: usize = 2;
/// Values that share a scale and a minimum.
const PART: usize = 16;
/// Scales of a super-block.
pub(crate) const PARTS: usize = SUPER_BLOCK / PART;

/// The numbers of a super-block of one row.
pub(crate) struct Numbers {
    pub d: f16,
    pub dmin: f16,
    /// m << 4 | s of each part.
    pub parts: [u8; PARTS],
}

/// Writes super-block `index` of a row.
fn put(panel: &mut [u8], index: usize, lane: usize, numbers: &Numbers, integers: &SuperBlock) {
    let (at, _) = place_of(index * SUPER_BLOCK / GROUP, NUMBERS_BYTES, STEP_BYTES);
    let bytes = &mut panel[at..][..NUMBERS_BYTES];
    put_f16(bytes, 2 * lane, numbers.d);
    put_f16(bytes, 2 * LANES + 2 * lane, -numbers.dmin);
    for (part, byte) in numbers.parts.into_iter().enumerate() {
        bytes[STEP_SCALES + part * LANES + lane] = byte;
    }
    bit_planes::put_super_block(BITS, panel, index, lane, (NUMBERS_BYTES, STEP_BYTES), integers);
}

pub(crate) fn pack_row(values: &[f32], lane: usize, panel: &mut [u8]) {
    for (index, values) in values.chunks(SUPER_BLOCK).enumerate() {
        let mut padded = [0.0; SUPER_BLOCK];
        padded[..values.len()].copy_from_slice(values);
        let parts = padded.as_chunks::<PART>().0;
        let fitted: [_; PARTS] = std::array::from_fn(|part| fit(&parts[part], BITS));
        let fitted = fitted.map(|(scale, min)| (scale.to_f32(), -min.to_f32()));
        let most = |of: fn(&(f32, f32)) -> f32| fitted.iter().map(of).fold(0.0_f32, f32::max) / 15.0;
        let d = rounded_up(scale_of(&padded, most(|(scale, _)| *scale)));
        let dmin = rounded_up(most(|(_, min)| *min));
        let four_bits = |x: f32, of: f16| (x / of.to_f32()).round().clamp(0.0, 15.0) as u8;
        let numbers = fitted.map(|(scale, min)| four_bits(min, dmin) << 4 | four_bits(scale, d));
        let q = std::array::from_fn(|i| {
            let scale = d.to_f32() * f32::from(numbers[i / PART] & 15);
            let min = -dmin.to_f32() * f32::from(numbers[i / PART] >> 4);
            nearest(padded[i], min, inverse(scale), largest(BITS)) as u8
        });
        put(panel, index, lane, &Numbers { d, dmin, parts: numbers }, &quads(BITS, &q));
    }
}

/// A file's super-blocks, unchanged.
pub(crate) fn pack_super_blocks(
    blocks: impl Iterator<Item = (Numbers, SuperBlock)>,
    lane: usize,
    panel: &mut [u8],
) {
    for (index, (numbers, integers)) in blocks.enumerate() {
        put(panel, index, lane, &numbers, &integers);
    }
}

pub(crate) fn unpack_row(panel: &[u8], lane: usize, out: &mut [f32]) {
    for (step, out) in out.chunks_mut(GROUP).enumerate() {
        let (numbers, lines) = place_of(step, NUMBERS_BYTES, STEP_BYTES);
        let (numbers, lines) = (&panel[numbers..], &panel[lines..]);
        let (d, minus_dmin) = (f16_at(numbers, 2 * lane), f16_at(numbers, 2 * LANES + 2 * lane));
        let parts = &numbers[STEP_SCALES + step % (SUPER_BLOCK / GROUP) * STEP_SCALES_BYTES..];
        for (i, out) in out.iter_mut().enumerate() {
            let part = parts[i / PART * LANES + lane];
            let q = bit_planes::get(BITS, lines, i / BLOCK, i % BLOCK, lane);
            *out = d * f32::from(part & 15) * f32::from(q) + minus_dmin * f32::from(part >> 4);
        }
    }
}
