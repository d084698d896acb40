//! What the formats of 32-blocks share: the sizes of a step, and the place of its scales.

use half::f16;

/// Output rows of a panel, and f32 lanes of a kernel's vector.
pub const LANES: usize = 16;
/// Values that share a scale in the 32-block formats.
pub const BLOCK: usize = 32;
/// k of one step of the 32-block formats: two blocks, so that a step starts at a cache line.
pub const GROUP: usize = 2 * BLOCK;
/// Values of a super-block of the K-quants: four steps, which share numbers.
pub const SUPER_BLOCK: usize = 4 * GROUP;

/// Where in a panel the numbers of a step begin, and where the step: `numbers` bytes come before each four steps.
#[inline(always)]
pub(crate) const fn place_of(step: usize, numbers: usize, step_bytes: usize) -> (usize, usize) {
    if numbers == 0 {
        return (step * step_bytes, step * step_bytes);
    }
    let steps = SUPER_BLOCK / GROUP;
    let at = step / steps * (numbers + steps * step_bytes);
    (at, at + numbers + step % steps * step_bytes)
}

/// The scale of a block: NaN when one of its values is, so the whole block becomes NaN; integers have no NaN.
pub(super) fn scale_of(values: &[f32], scale: f32) -> f32 {
    let is_nan = values.iter().fold(false, |found, x| found | x.is_nan());
    if is_nan { f32::NAN } else { scale }
}

/// 1 / x, and 0 of 0: what a scale of nothing but zeros is multiplied with.
pub(super) fn inverse(x: f32) -> f32 {
    if x == 0.0 { 0.0 } else { 1.0 / x }
}

/// The smallest f16 that is not less than x, which is not negative: integers times a smaller one would not reach x.
pub(super) fn rounded_up(x: f32) -> f16 {
    let nearest = f16::from_f32(x);
    if nearest.to_f32() < x { f16::from_bits(nearest.to_bits() + 1) } else { nearest }
}

/// The byte of an f16 scale in a step of 32-blocks: the scales of block 0 for all lanes, then those of block 1.
#[inline]
pub(super) fn scale_at(block: usize, lane: usize) -> usize {
    (block * LANES + lane) * 2
}

/// Writes a block's scale.
#[inline]
pub(super) fn put_scale(step: &mut [u8], block: usize, lane: usize, scale: f16) {
    put_f16(step, scale_at(block, lane), scale);
}

/// Reads a block's scale.
pub(super) fn scale(step: &[u8], block: usize, lane: usize) -> f32 {
    f16_at(step, scale_at(block, lane))
}

/// Writes an f16 at a byte.
#[inline]
pub(super) fn put_f16(step: &mut [u8], at: usize, value: f16) {
    step[at..][..2].copy_from_slice(&value.to_le_bytes());
}

/// Reads the f16 at a byte.
pub(super) fn f16_at(step: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([step[at], step[at + 1]]).to_f32()
}

/// The 32-blocks of a row: (step, block of the step, values padded with zeros).
pub(super) fn blocks(values: &[f32]) -> impl Iterator<Item = (usize, usize, [f32; BLOCK])> + '_ {
    values.chunks(BLOCK).enumerate().map(|(index, chunk)| {
        let mut padded = [0.0; BLOCK];
        padded[..chunk.len()].copy_from_slice(chunk);
        (index / 2, index % 2, padded)
    })
}
