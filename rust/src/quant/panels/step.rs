//! What the formats of 32-blocks share: the sizes of a step, and the place of its scales.

/// Output rows of a panel, and f32 lanes of a kernel's vector.
pub const LANES: usize = 16;
/// Values that share a scale in the 32-block formats.
pub const BLOCK: usize = 32;
/// k of one step of the 32-block formats: two blocks, so that a step starts at a cache line.
pub const GROUP: usize = 2 * BLOCK;

/// The scale of a block: NaN when one of its values is, so that the block comes back as NaN; integers have no NaN.
pub(super) fn scale_of(values: &[f32], scale: f32) -> f32 {
    let is_nan = values.iter().fold(false, |found, x| found | x.is_nan());
    if is_nan { f32::NAN } else { scale }
}

/// The byte of an f16 scale in a step of 32-blocks: the scales of block 0 for all lanes, then those of block 1.
#[inline]
pub(super) fn scale_at(block: usize, lane: usize) -> usize {
    (block * LANES + lane) * 2
}

/// Writes a block's scale.
#[inline]
pub(super) fn put_scale(step: &mut [u8], block: usize, lane: usize, scale: half::f16) {
    put_f16(step, scale_at(block, lane), scale);
}

/// Reads a block's scale.
pub(super) fn scale(step: &[u8], block: usize, lane: usize) -> f32 {
    f16_at(step, scale_at(block, lane))
}

/// Writes an f16 at a byte.
#[inline]
pub(super) fn put_f16(step: &mut [u8], at: usize, value: half::f16) {
    step[at..][..2].copy_from_slice(&value.to_le_bytes());
}

/// Reads the f16 at a byte.
pub(super) fn f16_at(step: &[u8], at: usize) -> f32 {
    half::f16::from_le_bytes([step[at], step[at + 1]]).to_f32()
}

/// The 32-blocks of a row: (step, block of the step, values padded with zeros).
pub(super) fn blocks(values: &[f32]) -> impl Iterator<Item = (usize, usize, [f32; BLOCK])> + '_ {
    values.chunks(BLOCK).enumerate().map(|(index, chunk)| {
        let mut padded = [0.0; BLOCK];
        padded[..chunk.len()].copy_from_slice(chunk);
        (index / 2, index % 2, padded)
    })
}
