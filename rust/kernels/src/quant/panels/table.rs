//! Four bits that name one of 16 integers (ggml's IQ types, MXFP4): `value = scale * TABLE[q]`.
//!
//! iq4_nl and mxfp4 have a scale f16 per 32 values, as q4_0 (`q4_0.rs` draws a step). The others have a scale of a signed byte per
//! 16 values times an f32 per super-block, as q6_k (`q6_k.rs`), and of the lines those of the low four bits.

use super::bit_planes::quads;
use super::step::{LANES, SUPER_BLOCK, blocks, inverse, rounded_up, scale_of};
use super::{q4_0, q6_k};
use half::f16;

/// The integers that four bits name, ascending but for mxfp4's. Where there are fewer, the last one fills the table.
pub(crate) type Table = [i8; 16];

pub(crate) const IQ4: Table = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
/// Floats of a sign, two bits of exponent and one of mantissa, doubled; -0 is 0.
pub(crate) const MXFP4: Table = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
pub(crate) const IQ3_XXS: Table = [-62, -52, -44, -36, -28, -20, -12, -4, 4, 12, 20, 28, 36, 44, 52, 62];
pub(crate) const IQ3_S: Table = [-15, -13, -11, -9, -7, -5, -3, -1, 1, 3, 5, 7, 9, 11, 13, 15];
pub(crate) const IQ2: Table = [-43, -25, -8, 8, 25, 43, 43, 43, 43, 43, 43, 43, 43, 43, 43, 43];
/// Eighths: -1, 0 and 1, with an eighth more or less.
pub(crate) const IQ1: Table = [-9, -7, -1, 1, 7, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9];

/// The tables as kernels look them up: each integer + 128, and the table four times.
#[repr(align(64))]
pub(crate) struct Lookup(pub [u8; 4 * LANES]);

pub(crate) const fn biased(table: Table) -> Lookup {
    let (mut all, mut i) = ([0; 4 * LANES], 0);
    while i < all.len() {
        all[i] = table[i % 16] as u8 ^ 128;
        i += 1;
    }
    Lookup(all)
}

/// What names each integer; only for those of the table.
pub(crate) fn codes(table: &Table) -> [u8; 256] {
    let mut codes = [0; 256];
    table
        .iter()
        .enumerate()
        .rev()
        .for_each(|(code, integer)| codes[usize::from(*integer as u8)] = code as u8);
    codes
}

/// The integer next to x.
fn nearest(table: &Table, x: f32) -> i8 {
    table
        .iter()
        .copied()
        .fold(table[0], |a, b| if (f32::from(b) - x).abs() < (f32::from(a) - x).abs() { b } else { a })
}

/// The scale with which no value is beyond the table.
fn wanted_scale(table: &Table, values: &[f32]) -> f32 {
    let (low, high) = table.iter().fold((0, 0), |(low, high), &x| (x.min(low), x.max(high)));
    let fit = |x: f32| if x < 0.0 { x / f32::from(low) } else { x / f32::from(high) };
    values.iter().fold(0.0, |a, &x| fit(x).max(a))
}

/// Rows of the types with a scale per 32 values.
pub(crate) fn pack_row_of_blocks(table: &Table, values: &[f32], lane: usize, panel: &mut [u8]) {
    let codes = codes(table);
    for (step, block, values) in blocks(values) {
        let scale = f16::from_f32(scale_of(&values, wanted_scale(table, &values)));
        let inverse = inverse(scale.to_f32());
        let q = values.map(|x| codes[usize::from(nearest(table, x * inverse) as u8)]);
        q4_0::put_block(&mut panel[step * q4_0::STEP_BYTES..][..q4_0::STEP_BYTES], block, lane, scale, &q);
    }
}

pub(crate) fn unpack_row_of_blocks(table: &Table, panel: &[u8], lane: usize, out: &mut [f32]) {
    q4_0::unpack_with(panel, lane, out, |q| f32::from(table[usize::from(q)]));
}

/// A file's blocks, unchanged.
pub(crate) fn pack_blocks(blocks: impl Iterator<Item = (f32, [u8; 32])>, lane: usize, panel: &mut [u8]) {
    for (index, (scale, q)) in blocks.enumerate() {
        let step = &mut panel[index / 2 * q4_0::STEP_BYTES..][..q4_0::STEP_BYTES];
        q4_0::put_block(step, index % 2, lane, f16::from_f32(scale), &q);
    }
}

/// Rows of the types with a scale per 16 values.
pub(crate) fn pack_row(table: &Table, values: &[f32], lane: usize, panel: &mut [u8]) {
    const PART: usize = SUPER_BLOCK / q6_k::PARTS;
    let codes = codes(table);
    let packed = values.chunks(SUPER_BLOCK).map(|values| {
        let mut padded = [0.0; SUPER_BLOCK];
        padded[..values.len()].copy_from_slice(values);
        let wanted: [f32; q6_k::PARTS] =
            std::array::from_fn(|part| wanted_scale(table, &padded[part * PART..][..PART]));
        let largest = wanted.iter().fold(0.0_f32, |a, scale| a.max(*scale));
        let d = rounded_up(scale_of(&padded, largest / 127.0)).to_f32();
        let scales = wanted.map(|scale| (scale * inverse(d)).round() as i8);
        let q = std::array::from_fn(|i| {
            let inverse = inverse(d * f32::from(scales[i / PART]));
            codes[usize::from(nearest(table, padded[i] * inverse) as u8)]
        });
        (d, scales, quads(4, &q))
    });
    q6_k::pack_super_blocks::<4>(packed, lane, panel);
}

pub(crate) fn unpack_row(table: &Table, panel: &[u8], lane: usize, out: &mut [f32]) {
    q6_k::unpack_with::<4>(panel, lane, out, |q| f32::from(table[usize::from(q)]));
}
