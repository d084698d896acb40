//! q8_0 (ggml): blocks of 32 values, `value = scale * q`, q in -127..=127, scale f16.
//!
//! A step holds two blocks of 16 rows, 1088 bytes; quad t holds the four k from 4t on, stored + 128 because the
//! VNNI product takes unsigned weights:
//!
//! ```text
//! | scales of block 0: 16 x f16 | scales of block 1: 16 x f16 |   64 bytes
//! | quad 0: lane 0 k0..k3 | lane 1 k0..k3 | ... | lane 15 |       64 bytes
//! ...                                                             (quads 0..8 are block 0, 8..16 block 1)
//! | quad 15 |
//! ```

use super::step::{BLOCK, GROUP, LANES, blocks, put_scale, scale, scale_of};
use half::f16;

pub(crate) const STEP_BYTES: usize = 4 * LANES + GROUP * LANES;
/// Added to a value when it is stored.
const OFFSET: i32 = 128;

/// Byte of value i of a step.
fn place(i: usize, lane: usize) -> usize {
    4 * LANES + (i / 4 * LANES + lane) * 4 + i % 4
}

pub(crate) fn pack_row(values: &[f32], lane: usize, panel: &mut [u8]) {
    for (step, block, values) in blocks(values) {
        let step = &mut panel[step * STEP_BYTES..][..STEP_BYTES];
        let largest = values.iter().fold(0.0_f32, |a, &x| a.max(x.abs()));
        let scale = scale_of(&values, largest / 127.0);
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        put_scale(step, block, lane, f16::from_f32(scale));
        for (i, x) in values.into_iter().enumerate() {
            let x = x * inverse;
            let q = (x + 0.5_f32.copysign(x)) as i32; // to nearest, halves away from zero, as ggml
            step[place(block * BLOCK + i, lane)] = (q + OFFSET) as u8;
        }
    }
}

/// A block as files hold it: | scale f16 | 32 x i8 |, `value = q * scale`.
pub(crate) fn read_block(block: &[u8], out: &mut [f32]) {
    let scale = f16::from_le_bytes([block[0], block[1]]).to_f32();
    for (out, q) in out.iter_mut().zip(&block[2..]) {
        *out = scale * f32::from(*q as i8);
    }
}

/// A file's blocks, unchanged.
pub(crate) fn pack_blocks(bytes: &[u8], lane: usize, panel: &mut [u8]) {
    for (index, source) in bytes.chunks_exact(2 + BLOCK).enumerate() {
        let (step, block) = (&mut panel[index / 2 * STEP_BYTES..][..STEP_BYTES], index % 2);
        put_scale(step, block, lane, f16::from_le_bytes([source[0], source[1]]));
        for (index, quad) in source[2..].as_chunks::<4>().0.iter().enumerate() {
            // A signed byte whose upper bit is flipped is what it was plus 128.
            let at = place(block * BLOCK + 4 * index, lane);
            step[at..][..4].copy_from_slice(&quad.map(|q| q ^ OFFSET as u8));
        }
    }
}

pub(crate) fn unpack_row(panel: &[u8], lane: usize, out: &mut [f32]) {
    for (out, step) in out.chunks_mut(GROUP).zip(panel.chunks_exact(STEP_BYTES)) {
        for (i, out) in out.iter_mut().enumerate() {
            let q = i32::from(step[place(i, lane)]) - OFFSET;
            *out = scale(step, i / BLOCK, lane) * q as f32;
        }
    }
}
