//! q4_0 (ggml): blocks of 32 values, `value = scale * (q - 8)`, q in 0..16, scale f16.
//!
//! A step holds two blocks of 16 rows, 576 bytes; `bit_planes.rs` shows the place of a value in the lines:
//!
//! ```text
//! | scales of block 0: 16 x f16 | scales of block 1: 16 x f16 |   64 bytes
//! | 8 lines of four bits |                                        512 bytes
//! ```

use super::bit_planes;
use super::step::{BLOCK, GROUP, LANES, blocks, put_scale, scale, scale_of};
use half::f16;

pub(crate) const STEP_BYTES: usize = LINES + bit_planes::bytes(4);
/// Where the lines of a step begin.
const LINES: usize = 4 * LANES;
const OFFSET: f32 = 8.0;

pub(crate) fn pack_row(values: &[f32], lane: usize, panel: &mut [u8]) {
    for (step, block, values) in blocks(values) {
        let step = &mut panel[step * STEP_BYTES..][..STEP_BYTES];
        // The value of largest magnitude, with its sign, becomes -8; the other end of the range is only 7.
        let extreme = values.iter().fold(0.0_f32, |a, &x| if x.abs() > a.abs() { x } else { a });
        let scale = scale_of(&values, extreme / -OFFSET);
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        let q = values.map(|x| (x * inverse + OFFSET + 0.5).min(15.0) as u8);
        put_block(step, block, lane, f16::from_f32(scale), &q);
    }
}

/// Writes a block of a step.
#[inline]
pub(super) fn put_block(step: &mut [u8], block: usize, lane: usize, scale: f16, q: &[u8; BLOCK]) {
    put_scale(step, block, lane, scale);
    bit_planes::put_block(4, &mut step[LINES..], block, lane, q);
}

/// A file's blocks, unchanged: | scale f16 | 16 bytes: value i in the low nibble, value i + 16 in the high one |.
pub(crate) fn pack_blocks(bytes: &[u8], lane: usize, panel: &mut [u8]) {
    for (index, source) in bytes.chunks_exact(2 + BLOCK / 2).enumerate() {
        let (step, block) = (&mut panel[index / 2 * STEP_BYTES..][..STEP_BYTES], index % 2);
        let q = std::array::from_fn(|i| source[2 + i % (BLOCK / 2)] >> (i / (BLOCK / 2) * 4) & 0x0f);
        put_block(step, block, lane, f16::from_le_bytes([source[0], source[1]]), &q);
    }
}

pub(crate) fn unpack_row(panel: &[u8], lane: usize, out: &mut [f32]) {
    unpack_with(panel, lane, out, |q| f32::from(q) - OFFSET);
}

/// Reads the row in a lane, with the value of each integer.
pub(super) fn unpack_with(panel: &[u8], lane: usize, out: &mut [f32], value: impl Fn(u8) -> f32) {
    for (out, step) in out.chunks_mut(GROUP).zip(panel.chunks_exact(STEP_BYTES)) {
        for (i, out) in out.iter_mut().enumerate() {
            let q = bit_planes::get(4, &step[LINES..], i / BLOCK, i % BLOCK, lane);
            *out = scale(step, i / BLOCK, lane) * value(q);
        }
    }
}
