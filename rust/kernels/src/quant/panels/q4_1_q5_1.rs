//! q4_1 and q5_1 (ggml): blocks of 32 values, `value = scale * q + min`, q of 4 or 5 bits, scale and min f16.
//!
//! Q5_0 is q5_1 with a min of -16 scales.
//!
//! A step holds two blocks of 16 rows, 640 or 768 bytes; `bit_planes.rs` shows the place of a value in the lines:
//!
//! ```text
//! | scales of block 0: 16 x f16 | scales of block 1: 16 x f16 |   64 bytes
//! | mins of block 0: 16 x f16   | mins of block 1: 16 x f16   |   64 bytes
//! | 8 lines of the low four bits |                                512 bytes
//! | 2 lines of fifth bits |                                       128 bytes, q5_1 only
//! ```

use super::bit_planes;
use super::step::{BLOCK, GROUP, LANES, blocks, f16_at, put_f16, scale_at, scale_of};
use half::f16;

#[inline]
pub(crate) const fn step_bytes(bits: usize) -> usize {
    LINES + bit_planes::bytes(bits)
}

/// Where the mins of a step begin.
const MINS: usize = 4 * LANES;
/// Where its lines begin.
const LINES: usize = 8 * LANES;

/// Factor of the integers of a block, and the value that is added.
pub(super) type ScaleAndMin = (f16, f16);

/// Writes block `index` of a row.
#[inline]
fn put<const BITS: usize>(
    panel: &mut [u8],
    index: usize,
    lane: usize,
    (scale, min): ScaleAndMin,
    q: impl Iterator<Item = u8>,
) {
    let (step, block) = (&mut panel[index / 2 * step_bytes(BITS)..][..step_bytes(BITS)], index % 2);
    let at = scale_at(block, lane);
    put_f16(step, at, scale);
    put_f16(step, MINS + at, min);
    let mut all = [0; BLOCK];
    all.iter_mut().zip(q).for_each(|(to, q)| *to = q);
    bit_planes::put_block(BITS, &mut step[LINES..], block, lane, &all);
}

pub(crate) fn pack_row<const BITS: usize>(values: &[f32], lane: usize, panel: &mut [u8]) {
    let largest = largest(BITS);
    for (step, block, values) in blocks(values) {
        let (scale, min) = fit(&values, BITS);
        let scale = f16::from_f32(scale_of(&values, scale.to_f32()));
        let inverse = if scale == f16::ZERO { 0.0 } else { 1.0 / scale.to_f32() };
        let q = values.iter().map(|x| nearest(*x, min.to_f32(), inverse, largest) as u8);
        put::<BITS>(panel, 2 * step + block, lane, (scale, min), q);
    }
}

/// The largest integer of `bits` bits.
pub(super) fn largest(bits: usize) -> f32 {
    ((1 << bits) - 1) as f32
}

/// The integer of a value.
pub(super) fn nearest(x: f32, min: f32, inverse: f32, largest: f32) -> f32 {
    ((x - min) * inverse).round().clamp(0.0, largest)
}

/// Scale and min of small squared error: from the range of the values, narrowed in steps; for each the best line through
/// the integers that it gives (least squares).
pub(super) fn fit<const N: usize>(values: &[f32; N], bits: usize) -> ScaleAndMin {
    let largest = largest(bits);
    let (low, high) = values.iter().fold((0.0_f32, 0.0_f32), |(low, high), &x| (low.min(x), high.max(x)));
    let mut best = (f16::from_f32((high - low) / largest), f16::from_f32(low));
    let mut least = error(values, best, largest);
    for narrower in 1..8 {
        let scale = (high - low) / (largest + 0.25 * narrower as f32);
        let Some(line) = line(values, low, scale, largest) else { continue };
        let error = error(values, line, largest);
        if error < least {
            (best, least) = (line, error);
        }
    }
    best
}

/// The best line through the integers that `scale` gives.
fn line<const N: usize>(values: &[f32; N], low: f32, scale: f32, largest: f32) -> Option<ScaleAndMin> {
    let inverse = if scale > 0.0 { 1.0 / scale } else { return None };
    let (mut q1, mut q2, mut x1, mut qx) = (0.0_f32, 0.0, 0.0, 0.0);
    for &x in values {
        let q = nearest(x, low, inverse, largest);
        (q1, q2, x1, qx) = (q1 + q, q2 + q * q, x1 + x, qx + q * x);
    }
    let n = N as f32;
    let spread = n * q2 - q1 * q1;
    if spread <= 0.0 {
        return None;
    }
    let scale = (n * qx - q1 * x1) / spread;
    let min = (x1 - scale * q1) / n;
    let (scale, min) = (f16::from_f32(scale), f16::from_f32(min));
    (scale > f16::ZERO && scale.is_finite() && min.is_finite()).then_some((scale, min))
}

/// Squared error of the values under a scale and min.
fn error(values: &[f32], (scale, min): ScaleAndMin, largest: f32) -> f32 {
    let (scale, min) = (scale.to_f32(), min.to_f32());
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    values.iter().map(|&x| (scale * nearest(x, min, inverse, largest) + min - x).powi(2)).sum()
}

/// Blocks of another format with the same integers: (scale, min, q) each.
pub(crate) fn pack_blocks<const BITS: usize>(
    blocks: impl Iterator<Item = (f32, f32, impl Iterator<Item = u8>)>,
    lane: usize,
    panel: &mut [u8],
) {
    for (index, (scale, min, q)) in blocks.enumerate() {
        put::<BITS>(panel, index, lane, (f16::from_f32(scale), f16::from_f32(min)), q);
    }
}

pub(crate) fn unpack_row<const BITS: usize>(panel: &[u8], lane: usize, out: &mut [f32]) {
    for (out, step) in out.chunks_mut(GROUP).zip(panel.chunks_exact(step_bytes(BITS))) {
        for (i, out) in out.iter_mut().enumerate() {
            let (q, at) = (
                bit_planes::get(BITS, &step[LINES..], i / BLOCK, i % BLOCK, lane),
                scale_at(i / BLOCK, lane),
            );
            *out = f16_at(step, at) * f32::from(q) + f16_at(step, MINS + at);
        }
    }
}
