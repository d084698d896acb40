//! q4_k: blocks of 32 values, `value = scale * q + min`, q in 0..16, scale and min f16.
//!
//! ggml's Q4_K keeps scale and min of eight such blocks in 6 bits each, times two f16; here they are multiplied out and
//! rounded to f16, so that a block needs no neighbours and rows of any length have whole steps. Its integers are kept.
//! ggml's Q4_1 is this format exactly.
//!
//! A step holds two blocks of 16 rows, 640 bytes; byte (t, lane, j) holds value 4t + j of block 0 in its low nibble and
//! of block 1 in its high nibble:
//!
//! ```text
//! | scales of block 0: 16 x f16 | scales of block 1: 16 x f16 |   64 bytes
//! | mins of block 0: 16 x f16   | mins of block 1: 16 x f16   |   64 bytes
//! | quad 0: lane 0 k0..k3 | lane 1 k0..k3 | ... | lane 15 |       64 bytes
//! ...
//! | quad 7 |
//! ```

use super::{BLOCK, GROUP, LANES, blocks, f16_at, put_f16, scale_at};
use half::f16;

pub(super) const STEP_BYTES: usize = 8 * LANES + GROUP / 2 * LANES;
/// Where the mins of a step begin.
const MINS: usize = 4 * LANES;
const LARGEST: f32 = 15.0;

/// Byte of value i of a block.
fn place(i: usize, lane: usize) -> usize {
    8 * LANES + (i / 4 * LANES + lane) * 4 + i % 4
}

/// A block in a panel.
struct Slot<'a> {
    step: &'a mut [u8],
    block: usize,
    lane: usize,
}

impl Slot<'_> {
    fn put(&mut self, scale: f16, min: f16, q: impl Iterator<Item = u8>) {
        let at = scale_at(self.block, self.lane);
        put_f16(self.step, at, scale);
        put_f16(self.step, MINS + at, min);
        for (i, q) in q.enumerate() {
            let byte = &mut self.step[place(i, self.lane)];
            *byte = if self.block == 0 { *byte & 0xf0 | q } else { *byte & 0x0f | q << 4 };
        }
    }
}

fn slot(panel: &mut [u8], index: usize, lane: usize) -> Slot<'_> {
    Slot { step: &mut panel[index / 2 * STEP_BYTES..][..STEP_BYTES], block: index % 2, lane }
}

pub(super) fn pack_row(values: &[f32], lane: usize, panel: &mut [u8]) {
    for (step, block, values) in blocks(values) {
        let (scale, min) = fit(&values);
        let inverse = if scale == f16::ZERO { 0.0 } else { 1.0 / scale.to_f32() };
        let q = values.iter().map(|x| nearest(*x, min.to_f32(), inverse) as u8);
        slot(panel, 2 * step + block, lane).put(scale, min, q);
    }
}

fn nearest(x: f32, min: f32, inverse: f32) -> f32 {
    ((x - min) * inverse).round().clamp(0.0, LARGEST)
}

/// Scale and min of small squared error: from the range of the values, narrowed in steps; for each the best line through
/// the integers that it gives (least squares).
fn fit(values: &[f32; BLOCK]) -> (f16, f16) {
    let (low, high) = values.iter().fold((0.0_f32, 0.0_f32), |(low, high), &x| (low.min(x), high.max(x)));
    let mut best = (f16::from_f32((high - low) / LARGEST), f16::from_f32(low));
    let mut least = error(values, best);
    for narrower in 1..8 {
        let scale = (high - low) / (LARGEST + 0.25 * narrower as f32);
        let Some(line) = line(values, low, scale) else { continue };
        let error = error(values, line);
        if error < least {
            (best, least) = (line, error);
        }
    }
    best
}

/// The best line through the integers that `scale` gives.
fn line(values: &[f32; BLOCK], low: f32, scale: f32) -> Option<(f16, f16)> {
    let inverse = if scale > 0.0 { 1.0 / scale } else { return None };
    let (mut q1, mut q2, mut x1, mut qx) = (0.0_f32, 0.0, 0.0, 0.0);
    for &x in values {
        let q = nearest(x, low, inverse);
        (q1, q2, x1, qx) = (q1 + q, q2 + q * q, x1 + x, qx + q * x);
    }
    let n = BLOCK as f32;
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
fn error(values: &[f32; BLOCK], (scale, min): (f16, f16)) -> f32 {
    let (scale, min) = (scale.to_f32(), min.to_f32());
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    values.iter().map(|&x| (scale * nearest(x, min, inverse) + min - x).powi(2)).sum()
}

/// Blocks of another format with the same integers: (scale, min, q) each.
pub(super) fn pack_blocks<Q: Iterator<Item = u8>>(
    blocks: impl Iterator<Item = (f32, f32, Q)>,
    lane: usize,
    panel: &mut [u8],
) {
    for (index, (scale, min, q)) in blocks.enumerate() {
        slot(panel, index, lane).put(f16::from_f32(scale), f16::from_f32(min), q);
    }
}

pub(super) fn unpack_row(panel: &[u8], lane: usize, out: &mut [f32]) {
    for (out, step) in out.chunks_mut(GROUP).zip(panel.chunks_exact(STEP_BYTES)) {
        for (i, out) in out.iter_mut().enumerate() {
            let byte = step[place(i % BLOCK, lane)];
            let q = if i < BLOCK { byte & 0x0f } else { byte >> 4 };
            let at = scale_at(i / BLOCK, lane);
            *out = f16_at(step, at) * f32::from(q) + f16_at(step, MINS + at);
        }
    }
}
