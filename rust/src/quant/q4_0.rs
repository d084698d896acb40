//! q4_0 (ggml): blocks of 32 values, `value = scale * (q - 8)`, q in 0..16, scale f16.
//!
//! A step holds two blocks of 16 rows, 576 bytes; byte (t, lane, j) holds value 4t + j of block 0 in its low nibble and
//! of block 1 in its high nibble:
//!
//! ```text
//! | scales of block 0: 16 x f16 | scales of block 1: 16 x f16 |   64 bytes
//! | quad 0: lane 0 k0..k3 | lane 1 k0..k3 | ... | lane 15 |       64 bytes
//! ...
//! | quad 7 |
//! ```

use super::{BLOCK, GROUP, LANES, blocks, put_scale, scale};
use half::f16;

pub(super) const STEP_BYTES: usize = 4 * LANES + GROUP / 2 * LANES;
const OFFSET: f32 = 8.0;

/// Byte of value i of a block.
fn place(i: usize, lane: usize) -> usize {
    4 * LANES + (i / 4 * LANES + lane) * 4 + i % 4
}

pub(super) fn pack_row(values: &[f32], lane: usize, panel: &mut [u8]) {
    for (step, block, values) in blocks(values) {
        let step = &mut panel[step * STEP_BYTES..][..STEP_BYTES];
        // The value of largest magnitude, with its sign, becomes -8: the only end that is used whole.
        let extreme = values.iter().fold(0.0_f32, |a, &x| if x.abs() > a.abs() { x } else { a });
        let scale = extreme / -OFFSET;
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        put_scale(step, block, lane, f16::from_f32(scale));
        for (i, x) in values.into_iter().enumerate() {
            let q = (x * inverse + OFFSET + 0.5).min(15.0) as u8;
            put_nibble(&mut step[place(i, lane)], block, q);
        }
    }
}

/// A file's blocks, unchanged: | scale f16 | 16 bytes: value i in the low nibble, value i + 16 in the high one |.
pub(super) fn pack_blocks(bytes: &[u8], lane: usize, panel: &mut [u8]) {
    for (index, source) in bytes.chunks_exact(2 + BLOCK / 2).enumerate() {
        let (step, block) = (&mut panel[index / 2 * STEP_BYTES..][..STEP_BYTES], index % 2);
        put_scale(step, block, lane, f16::from_le_bytes([source[0], source[1]]));
        for (i, &byte) in source[2..].iter().enumerate() {
            put_nibble(&mut step[place(i, lane)], block, byte & 0x0f);
            put_nibble(&mut step[place(i + BLOCK / 2, lane)], block, byte >> 4);
        }
    }
}

fn put_nibble(byte: &mut u8, block: usize, q: u8) {
    *byte = if block == 0 { *byte & 0xf0 | q } else { *byte & 0x0f | q << 4 };
}

pub(super) fn unpack_row(panel: &[u8], lane: usize, out: &mut [f32]) {
    for (out, step) in out.chunks_mut(GROUP).zip(panel.chunks_exact(STEP_BYTES)) {
        for (i, out) in out.iter_mut().enumerate() {
            let byte = step[place(i % BLOCK, lane)];
            let q = if i < BLOCK { byte & 0x0f } else { byte >> 4 };
            *out = scale(step, i / BLOCK, lane) * (f32::from(q) - OFFSET);
        }
    }
}
