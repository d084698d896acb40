//! q6_k: `value = d * s * (q - 32)`, q in 0..64, a scale s of a signed byte per 16 values, d an f16 per step of 64 values.
//!
//! ggml's Q6_K has one d per 256 values, which is repeated here in four steps; its scales and integers are kept, and so are
//! Q3_K's. In rows that are quantized here each step has a d of its own: its largest scale becomes 127.
//!
//! A step holds 16 rows, 864 bytes; `bit_planes.rs` shows the place of a value in the lines:
//!
//! ```text
//! | d: 16 x f16 |                                                    32 bytes
//! | scales of k 0..16: 16 x i8 | of 16..32 | of 32..48 | of 48..64 |   64 bytes
//! | 8 lines of the low four bits |                                   512 bytes
//! | 4 lines of the upper two bits |                                  256 bytes
//! ```

use super::bit_planes;
use super::step::{BLOCK, GROUP, LANES, f16_at, put_f16, scale_of};
use half::f16;

pub(crate) const STEP_BYTES: usize = LINES + bit_planes::bytes(BITS);
const BITS: usize = 6;
/// Where the scales of a step begin.
const SCALES: usize = 2 * LANES;
/// Where its lines begin.
const LINES: usize = 6 * LANES;
/// Values that share a scale.
const PART: usize = 16;
/// Scales of a step.
const PARTS: usize = GROUP / PART;
const OFFSET: f32 = 32.0;

/// The numbers and integers of a step of one row, in its lane.
#[inline]
fn put(step: &mut [u8], lane: usize, d: f16, scales: [i8; PARTS], mut q: impl Iterator<Item = u8>) {
    put_f16(step, 2 * lane, d);
    for (part, scale) in scales.into_iter().enumerate() {
        step[SCALES + part * LANES + lane] = scale as u8;
    }
    for block in 0..GROUP / BLOCK {
        bit_planes::put_block(BITS, &mut step[LINES..], block, lane, q.by_ref().take(BLOCK));
    }
}

pub(crate) fn pack_row(values: &[f32], lane: usize, panel: &mut [u8]) {
    for (values, step) in values.chunks(GROUP).zip(panel.chunks_exact_mut(STEP_BYTES)) {
        let mut padded = [0.0; GROUP];
        padded[..values.len()].copy_from_slice(values);
        let wanted: [f32; PARTS] = std::array::from_fn(|part| wanted_scale(&padded[part * PART..][..PART]));
        let largest = wanted.iter().fold(0.0_f32, |a, scale| a.max(scale.abs()));
        let d = rounded_up(scale_of(&padded, largest / 127.0));
        let scales = wanted.map(|scale| (scale * inverse(d.to_f32())).round() as i8);
        let inverses = scales.map(|scale| inverse(d.to_f32() * f32::from(scale)));
        let q = padded.iter().enumerate();
        let q = q.map(|(i, x)| (x * inverses[i / PART] + OFFSET + 0.5).clamp(0.0, 63.0) as u8);
        put(step, lane, d, scales, q);
    }
}

/// The scale with which the value of largest magnitude becomes -32; the other end of the range is only 31.
fn wanted_scale(values: &[f32]) -> f32 {
    values.iter().fold(0.0_f32, |a, &x| if x.abs() > a.abs() { x } else { a }) / -OFFSET
}

fn inverse(x: f32) -> f32 {
    if x == 0.0 { 0.0 } else { 1.0 / x }
}

/// The smallest f16 that is not less than x, which is not negative: scales of a smaller one would not fit a byte.
fn rounded_up(x: f32) -> f16 {
    let nearest = f16::from_f32(x);
    if nearest.to_f32() < x { f16::from_bits(nearest.to_bits() + 1) } else { nearest }
}

/// A file's steps, unchanged: d, the scales of 16 values each, and 64 integers.
pub(crate) fn pack_steps(
    steps: impl Iterator<Item = (f16, [i8; PARTS], impl Iterator<Item = u8>)>,
    lane: usize,
    panel: &mut [u8],
) {
    for ((d, scales, q), step) in steps.zip(panel.chunks_exact_mut(STEP_BYTES)) {
        put(step, lane, d, scales, q);
    }
}

pub(crate) fn unpack_row(panel: &[u8], lane: usize, out: &mut [f32]) {
    for (out, step) in out.chunks_mut(GROUP).zip(panel.chunks_exact(STEP_BYTES)) {
        for (i, out) in out.iter_mut().enumerate() {
            let scale = f16_at(step, 2 * lane) * f32::from(step[SCALES + i / PART * LANES + lane] as i8);
            let q = bit_planes::get(BITS, &step[LINES..], i / BLOCK, i % BLOCK, lane);
            *out = scale * (f32::from(q) - OFFSET);
        }
    }
}
