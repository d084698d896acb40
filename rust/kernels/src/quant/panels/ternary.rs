//! Integers of one and two bits with a scale per 64 values or more. q2_0 and tq2_0: `value = d * (q - 1)`, q in 0..4 (ternary
//! weights use three of these). q1_0: `value = d * (2 q - 1)`, q a bit.
//!
//! A super-block of 16 rows is 64 or 128 bytes of scales and up to four steps of 64 values, 256 or 128 bytes each;
//! `bit_planes.rs` shows the place of a value in the lines:
//!
//! ```text
//! q2_0  | 4 x 16 f16, a scale of each step |             128 bytes    tq2_0 | 16 f32 |   64 bytes
//! q1_0  | 2 x 16 f16, a scale of each two steps |        64 bytes
//! | for each step: 4 lines of two bits, or 2 lines of one bit |
//! ```

use super::bit_planes::{self, put_quads, step_quads};
use super::step::{BLOCK, GROUP, LANES, SUPER_BLOCK, f16_at, place_of, put_f16, scale_of};
use half::f16;

/// Values that share a scale.
pub(crate) const Q2_0: usize = GROUP;
pub(crate) const Q1_0: usize = 2 * GROUP;
pub(crate) const TQ2_0: usize = SUPER_BLOCK;

/// Bytes of the scales of a super-block, for types with a scale per `part` values.
pub(crate) const fn numbers_bytes(part: usize) -> usize {
    if part == TQ2_0 { 4 * LANES } else { SUPER_BLOCK / part * 2 * LANES }
}

pub(crate) const fn step_bytes(bits: usize) -> usize {
    bit_planes::bytes(bits)
}

/// What is taken away from a stored integer, which counts steps of this many scales.
const fn offset(bits: usize) -> (f32, f32) {
    if bits == 1 { (0.5, 2.0) } else { (1.0, 1.0) }
}

/// Writes part `index` of a row.
fn put<const BITS: usize, const PART: usize>(
    panel: &mut [u8],
    index: usize,
    lane: usize,
    d: f32,
    q: &[u8; PART],
) {
    for (step, q) in q.as_chunks::<GROUP>().0.iter().enumerate() {
        let step = index * PART / GROUP + step;
        let (numbers, lines) = place_of(step, numbers_bytes(PART), step_bytes(BITS));
        if lines >= panel.len() {
            break; // zeros behind the row's end
        }
        put_scale::<PART>(&mut panel[numbers..], step, lane, d);
        put_quads(BITS, &mut panel[lines..], lane, &step_quads(BITS, q));
    }
}

/// Where the scale of a step is in the numbers of its super-block.
fn scale_at<const PART: usize>(step: usize, lane: usize) -> usize {
    (step % (SUPER_BLOCK / GROUP) / (PART / GROUP) * LANES + lane) * 2
}

fn put_scale<const PART: usize>(numbers: &mut [u8], step: usize, lane: usize, d: f32) {
    match PART {
        TQ2_0 => numbers[4 * lane..][..4].copy_from_slice(&to_22_bits(d).to_le_bytes()),
        _ => put_f16(numbers, scale_at::<PART>(step, lane), f16::from_f32(d)),
    }
}

/// The nearest number of 22 significant bits: kernels multiply it by `ROUND_BIAS`, which is 3 * 2^22, and must not round.
fn to_22_bits(d: f32) -> f32 {
    let nearest = f32::from_bits(d.to_bits().wrapping_add(2) & !3);
    if nearest.is_finite() || !d.is_finite() { nearest } else { f32::from_bits(d.to_bits() & !3) }
}

fn scale<const PART: usize>(numbers: &[u8], step: usize, lane: usize) -> f32 {
    match PART {
        TQ2_0 => f32::from_le_bytes(std::array::from_fn(|i| numbers[4 * lane + i])),
        _ => f16_at(numbers, scale_at::<PART>(step, lane)),
    }
}

pub(crate) fn pack_row<const BITS: usize, const PART: usize>(values: &[f32], lane: usize, panel: &mut [u8]) {
    for (index, values) in values.chunks(PART).enumerate() {
        if PART == TQ2_0
            && let Some((d, q)) = exactly::<PART>(values)
        {
            put::<BITS, PART>(panel, index, lane, d, &q);
            continue;
        }
        let d = scale_of(values, best_scale::<BITS>(values));
        let d = if PART == TQ2_0 { d } else { f16::from_f32(d).to_f32() };
        let mut q = [rounded::<BITS>(0.0, d); PART];
        q.iter_mut().zip(values).for_each(|(q, x)| *q = rounded::<BITS>(*x, d));
        put::<BITS, PART>(panel, index, lane, d, &q);
    }
}

/// The scale and the stored integers of values that are -d, 0 and d, which need no search.
fn exactly<const PART: usize>(values: &[f32]) -> Option<(f32, [u8; PART])> {
    let d = values.iter().fold(0.0_f32, |d, x| d.max(x.abs()));
    if !values.iter().fold(true, |all, &x| all & (x == 0.0 || x.abs() == d)) {
        return None;
    }
    let mut q = [1; PART];
    q.iter_mut().zip(values).for_each(|(q, &x)| *q = 1 + u8::from(x > 0.0) - u8::from(x < 0.0));
    Some((d, q))
}

/// One bit: the mean magnitude, which has the least squared error. Two bits: of the scales with which the extreme value is one
/// step or two, the one with the least.
fn best_scale<const BITS: usize>(values: &[f32]) -> f32 {
    if BITS == 1 {
        return values.iter().map(|x| x.abs()).sum::<f32>() / values.len() as f32;
    }
    let extreme = values.iter().fold(0.0_f32, |a, &x| if x.abs() > a.abs() { x } else { a });
    let error = |d: f32| -> f32 {
        values.iter().map(|&x| (value::<BITS>(rounded::<BITS>(x, d), d) - x).powi(2)).sum()
    };
    [extreme.abs(), extreme / 2.0].into_iter().min_by(|a, b| error(*a).total_cmp(&error(*b))).unwrap_or(0.0)
}

/// The stored integer of a value.
fn rounded<const BITS: usize>(x: f32, d: f32) -> u8 {
    match BITS {
        1 => u8::from(x >= 0.0),
        _ if d == 0.0 => 1,
        _ => (x / d + 1.0).round().clamp(0.0, 3.0) as u8,
    }
}

fn value<const BITS: usize>(q: u8, d: f32) -> f32 {
    let (offset, steps) = offset(BITS);
    d * (steps * (f32::from(q) - offset))
}

/// A file's blocks, unchanged: d and the stored integers.
pub(crate) fn pack_blocks<const BITS: usize, const PART: usize>(
    blocks: impl Iterator<Item = (f16, [u8; PART])>,
    lane: usize,
    panel: &mut [u8],
) {
    for (index, (d, q)) in blocks.enumerate() {
        put::<BITS, PART>(panel, index, lane, d.to_f32(), &q);
    }
}

pub(crate) fn unpack_row<const BITS: usize, const PART: usize>(panel: &[u8], lane: usize, out: &mut [f32]) {
    for (step, out) in out.chunks_mut(GROUP).enumerate() {
        let (numbers, lines) = place_of(step, numbers_bytes(PART), step_bytes(BITS));
        let d = scale::<PART>(&panel[numbers..], step, lane);
        for (i, out) in out.iter_mut().enumerate() {
            let q = bit_planes::get(BITS, &panel[lines..], i / BLOCK, i % BLOCK, lane);
            *out = value::<BITS>(q, d);
        }
    }
}
