//! Rows as signed bytes, f16 or bf16, and back.
//!
//! # Safety
//! As in `matmul.rs`: the CPU must have the ISA of [`Lanes`]; `kernel/mod.rs` checks the lengths.

use super::lanes::{BIASED_ZERO, LANES, Lanes};
use crate::quant::{BLOCK, GROUP, PackedType};

/// Bytes of an activation row of `steps` for weights of a type: f32, pairs of bf16, or signed bytes in blocks of 32.
///
/// The latter has one part after the other; the values of a step are one cache line, and a row is whole lines:
///
/// - the values, signed bytes;
/// - per block its scale, f32;
/// - per block its compensation, i32: what an integer dot product with bytes stored + 128 starts from,
///   [`BIASED_ZERO`] - 128 * sum of the values;
/// - per block scale * sum of the values, f32, for weights with minima;
/// - for weights with a scale per half block the compensations of the first halves, then of the second ones;
/// - for weights of one or two bits scale * sum of the values of the first halves, then of the second ones, and per block the
///   compensation for values stored + 1: [`BIASED_ZERO`] - sum of the values.
pub fn x_row_bytes(weights: PackedType, steps: usize) -> usize {
    let numbers = match rows_as_for(weights) {
        PackedType::F32 | PackedType::BF16 => return 4 * steps,
        PackedType::Q8_0 => 24,
        PackedType::Q6K => 40,
        // A line more: rows of 128 bytes per step would often be a power of two apart, in the same sets of the first-level cache.
        _ => return steps * (GROUP + 64) + 64,
    };
    (steps * (GROUP + numbers)).next_multiple_of(64)
}

/// The type that stands for all whose weights are multiplied with the same rows: F32, BF16, Q8_0, Q6K, Q2K. Rows for each of the
/// last three are those of the one before with more numbers behind.
pub fn rows_as_for(weights: PackedType) -> PackedType {
    match weights {
        PackedType::F32 | PackedType::F16 => PackedType::F32,
        PackedType::BF16 => PackedType::BF16,
        PackedType::Q6K
        | PackedType::Q3K
        | PackedType::Iq4Xs
        | PackedType::Iq3Xxs
        | PackedType::Iq3S
        | PackedType::Iq2
        | PackedType::Iq1 => PackedType::Q6K,
        PackedType::Q2K | PackedType::Q2_0 | PackedType::Tq2_0 | PackedType::Q1_0 => PackedType::Q2K,
        _ => PackedType::Q8_0,
    }
}

/// Where the scales of a row of signed bytes begin.
pub(super) const fn x_scales_at(steps: usize) -> usize {
    steps * GROUP
}

/// The n values of a row that [`quantize_q8`] made, and the scales of its blocks.
pub fn q8_parts(row: &[u8], n: usize) -> (&[u8], impl Iterator<Item = f32> + '_) {
    let scales = &row[x_scales_at(PackedType::Q8_0.steps(n))..][..4 * n.div_ceil(BLOCK)];
    (&row[..n], scales.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])))
}

/// Blocks that are rounded together, so that their divisions overlap.
const TOGETHER: usize = 16;

/// The least that counts as the largest magnitude of a row with one scale (transformers 5.23, `integrations/bitnet.py`).
const LEAST_LARGEST: f32 = 1e-5;

/// The largest magnitude of a row with one scale.
fn largest_of_row(x: &[f32]) -> f32 {
    let (vectors, rest) = x.as_chunks::<LANES>();
    let mut largest = [LEAST_LARGEST; LANES];
    for vector in vectors {
        largest.iter_mut().zip(vector).for_each(|(largest, x)| *largest = largest.max(x.abs()));
    }
    largest.iter().chain(rest).fold(LEAST_LARGEST, |largest, x| largest.max(x.abs()))
}

/// The values that a row has after it was rounded to signed bytes with one scale. One NaN or infinite value makes NaN of
/// itself or of all.  // x [n]
pub(super) fn round_by_row(x: &mut [f32]) {
    let scale = 127.0 / largest_of_row(x);
    x.iter_mut().for_each(|x| *x = (*x * scale).round_ties_even() / scale);
}

/// Rounds a row to signed bytes for these weights, zero-padded to whole steps.  // x [n], out [`x_row_bytes`]
///
/// The scale of a block is its largest magnitude / 127; if the row has one scale, the row's.
#[inline(always)]
pub(super) unsafe fn quantize_q8<V: Lanes>(
    x: &[f32],
    has_one_scale: bool,
    weights: PackedType,
    out: &mut [u8],
) {
    let largest = has_one_scale.then(|| largest_of_row(x));
    let steps = x.len().div_ceil(GROUP);
    let (values, mut numbers) = out.split_at_mut(x_scales_at(steps));
    let mut next = || numbers.split_off_mut(..8 * steps).unwrap_or_default();
    let [scales, compensations, block_sums] = std::array::from_fn(|_| next());
    let kind = rows_as_for(weights);
    let mut halves = (kind != PackedType::Q8_0).then(|| [next(), next()]);
    let mut few_bits = (kind == PackedType::Q2K).then(|| ([next(), next()], next()));
    for first in (0..2 * steps).step_by(TOGETHER) {
        let count = TOGETHER.min(2 * steps - first);
        let values = &mut values[first * BLOCK..][..count * BLOCK];
        let (x, whole) = (&x[first * BLOCK..], x.len() / BLOCK - first);
        // SAFETY: the features are the caller's duty.
        let (scale, sum) = unsafe {
            if count <= whole {
                blocks_to_q8::<V>(&x[..count * BLOCK], largest, values)
            } else {
                let mut padded = [0.0; TOGETHER * BLOCK];
                padded[..x.len()].copy_from_slice(x);
                blocks_to_q8::<V>(&padded[..count * BLOCK], largest, values)
            }
        };
        for block in 0..count {
            let at = 4 * (first + block)..4 * (first + block + 1);
            scales[at.clone()].copy_from_slice(&scale[block].to_le_bytes());
            compensations[at.clone()].copy_from_slice(&compensation(sum[block] as i32).to_le_bytes());
            block_sums[at.clone()].copy_from_slice(&(scale[block] * sum[block]).to_le_bytes());
            let Some(halves) = &mut halves else { continue };
            let sum_of = |half: &[u8]| half.iter().map(|&value| i32::from(value as i8)).sum::<i32>();
            let (first, second) = values[block * BLOCK..][..BLOCK].split_at(BLOCK / 2);
            let half_sums = [sum_of(first), sum_of(second)];
            for (sum, out) in half_sums.into_iter().zip(halves) {
                out[at.clone()].copy_from_slice(&compensation(sum).to_le_bytes());
            }
            let Some((halves, ones)) = &mut few_bits else { continue };
            for (sum, out) in half_sums.into_iter().zip(halves) {
                out[at.clone()].copy_from_slice(&(scale[block] * sum as f32).to_le_bytes());
            }
            ones[at].copy_from_slice(&(BIASED_ZERO - sum[block] as i32).to_le_bytes());
        }
    }
}

fn compensation(sum: i32) -> i32 {
    BIASED_ZERO - 128 * sum
}

/// Writes up to [`TOGETHER`] blocks of signed bytes; returns their scales and the sums of their bytes.
///
/// One NaN or infinite value makes all these scales NaN: such a row must reach the logits as NaN, not as rounded noise.
#[inline(always)]
unsafe fn blocks_to_q8<V: Lanes>(
    x: &[f32],
    of_row: Option<f32>,
    out: &mut [u8],
) -> ([f32; TOGETHER], [f32; TOGETHER]) {
    let (mut largest, mut sums) = ([0.0; TOGETHER], [0.0; TOGETHER]);
    // SAFETY: a block is two vectors in and 32 bytes out.
    unsafe {
        let zero = V::splat(0.0);
        let mut poison = zero;
        for (x, largest) in x.chunks_exact(BLOCK).zip(&mut largest) {
            let (a, b) = (V::load(x.as_ptr()), V::load(x.as_ptr().add(LANES)));
            poison = poison.add(a.sub(a).add(b.sub(b)));
            // `max` may lose a NaN; the poison keeps it.
            *largest = a.max(zero.sub(a)).max(b.max(zero.sub(b))).reduce_max();
        }
        let poison = poison.reduce_add();
        let largest = of_row.map_or(largest, |of_row| [of_row; TOGETHER]);
        let inverses = largest.map(|largest| {
            let inverse = 127.0 / largest;
            if inverse.is_finite() { inverse } else { 0.0 } // all zero, or too small
        });
        for (block, (x, out)) in x.chunks_exact(BLOCK).zip(out.chunks_exact_mut(BLOCK)).enumerate() {
            let inverse = V::splat(inverses[block]);
            let (a, b) = (V::load(x.as_ptr()).mul(inverse), V::load(x.as_ptr().add(LANES)).mul(inverse));
            a.store_i8(out.as_mut_ptr().cast());
            b.store_i8(out.as_mut_ptr().add(LANES).cast());
            sums[block] = a.round().add(b.round()).reduce_add();
        }
        (largest.map(|largest| largest / 127.0 + poison), sums)
    }
}

/// Rounds to f16, to nearest even.  // both [n]
#[inline(always)]
pub(super) unsafe fn to_f16<V: Lanes>(x: &[f32], out: &mut [u16]) {
    // SAFETY: `start + 16 <= len` of both slices in the loop; the tail goes through arrays of 16.
    unsafe {
        let whole = x.len() - x.len() % LANES;
        for start in (0..whole).step_by(LANES) {
            V::load(x.as_ptr().add(start)).store_f16(out.as_mut_ptr().add(start));
        }
        let (mut tail, mut rounded) = ([0.0; LANES], [0; LANES]);
        tail[..x.len() - whole].copy_from_slice(&x[whole..]);
        V::load(tail.as_ptr()).store_f16(rounded.as_mut_ptr());
        out[whole..].copy_from_slice(&rounded[..x.len() - whole]);
    }
}

/// f16 as f32, exactly.  // both [n], n whole vectors
#[inline(always)]
pub(super) unsafe fn widen_f16<V: Lanes>(x: &[u16], out: &mut [f32]) {
    for (x, out) in x.chunks_exact(LANES).zip(out.chunks_exact_mut(LANES)) {
        // SAFETY: the ISA is the caller's duty; both are 16 values.
        unsafe { V::load_f16(x.as_ptr()).store(out.as_mut_ptr()) }
    }
}

/// Rounds to bf16, to nearest even; NaN stays NaN.  // x [n], out [>= n]
#[inline(always)]
pub(super) fn to_bf16(x: &[f32], out: &mut [u16]) {
    for (x, out) in x.iter().zip(out) {
        let bits = x.to_bits();
        let rounded = (bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16;
        *out = if x.is_nan() { (bits >> 16) as u16 | 0x40 } else { rounded };
    }
}

/// Dequantizes the keys of a KV block: byte * scale of its position and 32 dimensions.
///
/// bytes and out [2 panels of 16 positions][head_dim][16], scales [head_dim / 32][32 positions]
#[inline(always)]
pub(super) unsafe fn dequantize_keys<V: Lanes>(bytes: &[u8], scales: &[f32], out: &mut [f32]) {
    let panel = bytes.len() / 2;
    for (p, (bytes, out)) in bytes.chunks_exact(panel).zip(out.chunks_exact_mut(panel)).enumerate() {
        for (d, (bytes, out)) in bytes.chunks_exact(LANES).zip(out.chunks_exact_mut(LANES)).enumerate() {
            let scales = &scales[d / BLOCK * BLOCK + p * LANES..][..LANES];
            // SAFETY: the ISA is the caller's duty; each is 16 values.
            unsafe { V::load_i8(bytes.as_ptr().cast()).mul(V::load(scales.as_ptr())).store(out.as_mut_ptr()) }
        }
    }
}

/// Transposes the columns of keys (f32 or f16) from `first` on into panels of values; dimensions after the last one are 0.
///
/// keys [2 panels of 16 positions][head_dim][16], values [panels of 16 dimensions][32 positions][16]
#[inline(always)]
pub(super) unsafe fn transpose_keys<V: Lanes>(
    format: PackedType,
    keys: &[u8],
    first: usize,
    values: &mut [f32],
) {
    let column_bytes = LANES * format.value_bytes();
    let panel_bytes = keys.len() / 2;
    let width = panel_bytes / column_bytes - first;
    // Plain loops over addresses: the compiler does not always inline iterators here, and a call takes as long as a column.
    for panel in 0..2 {
        for column in (0..width).step_by(LANES) {
            let at = panel * panel_bytes + (first + column) * column_bytes;
            // SAFETY: the ISA and the lengths are the caller's duty. A column is 16 positions; columns after the last one are
            // not read. 16 positions of a panel of values are written.
            unsafe {
                let mut rows = [V::splat(0.0); LANES];
                let mut row = 0;
                while row < LANES.min(width - column) {
                    let from = keys.as_ptr().add(at + row * column_bytes);
                    rows[row] = match format {
                        PackedType::F16 => V::load_f16(from.cast()),
                        _ => V::load(from.cast()),
                    };
                    row += 1;
                }
                let rows = V::transpose(rows);
                let to = values.as_mut_ptr().add((column / LANES * BLOCK + panel * LANES) * LANES);
                let mut row = 0;
                while row < LANES {
                    rows[row].store(to.add(row * LANES));
                    row += 1;
                }
            }
        }
    }
}

/// Dequantizes the values of a KV block, by the same rule.
///
/// bytes and out [panels of 16 dimensions][32 positions][16], scales [v_head_dim / 32][32 positions]
#[inline(always)]
pub(super) unsafe fn dequantize_values<V: Lanes>(bytes: &[u8], scales: &[f32], out: &mut [f32]) {
    for (at, (bytes, out)) in bytes.chunks_exact(LANES).zip(out.chunks_exact_mut(LANES)).enumerate() {
        let (panel, position) = (at / BLOCK, at % BLOCK);
        let scale = scales[panel * LANES / BLOCK * BLOCK + position];
        // SAFETY: the ISA is the caller's duty; both are 16 values.
        unsafe { V::load_i8(bytes.as_ptr().cast()).mul(V::splat(scale)).store(out.as_mut_ptr()) }
    }
}
