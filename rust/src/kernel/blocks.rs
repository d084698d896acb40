//! Products of 32-blocks: exact integer dot products, scaled block by block.
//!
//! As `generic.rs`, stated once over [`Lanes`]; the order behind one output never depends on the rows beside it.
//!
//! # Safety
//! As in `generic.rs`: the CPU must have the ISA of `V`, and a job's addresses must be valid.

use super::generic::Product;
use super::lanes::{LANES, Lanes};
use crate::quant::{BLOCK, DType, GROUP};

/// How a step of a 32-block format yields the quads of its two blocks.
pub(super) trait BlockFormat {
    /// The format.
    const DTYPE: DType;
    /// What is added to a stored value, as a shift of 128: the activations carry -128 times their block's sum.
    const OFFSET_SHIFT: u32;
    /// Quad `t` (0..8) of block `B` (0..2), unsigned.
    ///
    /// # Safety
    /// The ISA of `V`; `quads` valid for the step's bytes after the scales.
    unsafe fn quads<V: Lanes, const B: usize>(quads: *const u8, t: usize) -> V::Quads;
}

/// Bytes, stored + 128.
pub(super) struct Q8_0;
/// Nibbles, stored + 8: block 0 in the low half, block 1 in the high half.
pub(super) struct Q4_0;

impl BlockFormat for Q8_0 {
    const DTYPE: DType = DType::Q8_0;
    const OFFSET_SHIFT: u32 = 0;
    #[inline(always)]
    unsafe fn quads<V: Lanes, const B: usize>(quads: *const u8, t: usize) -> V::Quads {
        // SAFETY: the caller's duty.
        unsafe { V::load_quads(quads.add((B * 8 + t) * 4 * LANES)) }
    }
}

impl BlockFormat for Q4_0 {
    const DTYPE: DType = DType::Q4_0;
    const OFFSET_SHIFT: u32 = 4;
    #[inline(always)]
    unsafe fn quads<V: Lanes, const B: usize>(quads: *const u8, t: usize) -> V::Quads {
        // SAFETY: the caller's duty.
        unsafe {
            let both = V::load_quads(quads.add(t * 4 * LANES));
            if B == 0 { V::low_nibbles(both) } else { V::high_nibbles(both) }
        }
    }
}

/// Bytes of a q8 activation row: its values, then per block an f32 scale, then per block -128 x sum as i32. Rows are
/// whole cache lines, so that the values of a step lie in one.
pub(super) const fn x_row_bytes(steps: usize) -> usize {
    (steps * (GROUP + 16)).next_multiple_of(64)
}

/// Where the scales of a q8 activation row begin.
pub(super) const fn x_scales_at(steps: usize) -> usize {
    steps * GROUP
}

/// Where the sums of a q8 activation row begin.
const fn x_sums_at(steps: usize) -> usize {
    steps * (GROUP + 8)
}

/// A whole [`Product`] on a 32-block format, in tiles of at most `T` rows by one panel.
#[inline(always)]
pub(super) unsafe fn block_product<V: Lanes, F: BlockFormat, const T: usize>(job: &Product) {
    macro_rules! pick {
        ($rows:expr, $panel:expr, $row:expr, $($m:literal)*) => {
            match $rows {
                // SAFETY: the caller's duty; the tile stays inside `rows` and `panels`.
                $($m if $m <= T => unsafe { block_tile::<V, F, $m>(job, $panel, $row) },)*
                _ => unreachable!("a tile has at most {T} rows"),
            }
        };
    }
    for panel in 0..job.panels {
        for row in (0..job.rows).step_by(T) {
            pick!((job.rows - row).min(T), panel, row, 1 2 3 4 5 6 7 8 9 10 11 12)
        }
    }
}

/// M rows by one panel. Per block: 8 exact integer dot products, then sum += int * weight scale * activation scale.
#[inline(always)]
unsafe fn block_tile<V: Lanes, F: BlockFormat, const M: usize>(job: &Product, panel: usize, row: usize) {
    // SAFETY: panel < panels and row + M <= rows, so every address lies in the job's buffers.
    unsafe {
        let mut step = job.weights.add(panel * job.panel_bytes);
        // Rows in threes, two of them reached by an index: twelve pointers would not fit the registers.
        let row_of = |from: &[*const u8; 4], m: usize| from[m / 3].add(m % 3 * job.x_bytes);
        let first = job.x.add(row * job.x_bytes);
        let mut x: [*const u8; 4] = std::array::from_fn(|third| first.add(3 * third * job.x_bytes));
        let mut scales = x.map(|x| x.add(x_scales_at(job.steps)));
        let mut sums_at = x.map(|x| x.add(x_sums_at(job.steps)));
        let mut sums = [V::splat(0.0); M];
        for _ in 0..job.steps {
            macro_rules! block {
                ($block:literal) => {
                    let mut ints = [V::int_splat(0); M];
                    for m in 0..M {
                        let start = row_of(&sums_at, m).add(4 * $block).cast::<i32>().read_unaligned();
                        ints[m] = V::int_splat(start >> F::OFFSET_SHIFT);
                    }
                    for t in 0..8 {
                        let quads = F::quads::<V, $block>(step.add(4 * LANES), t);
                        for m in 0..M {
                            let at = row_of(&x, m).add($block * BLOCK + 4 * t);
                            ints[m] = V::dot_quads(ints[m], quads, at.cast::<u32>().read_unaligned());
                        }
                    }
                    let scale = V::load_f16(step.add($block * 2 * LANES).cast());
                    for m in 0..M {
                        let x_scale = row_of(&scales, m).add(4 * $block).cast::<f32>().read_unaligned();
                        sums[m] = V::from_int(ints[m]).mul(scale).mul_add(V::splat(x_scale), sums[m]);
                    }
                };
            }
            block!(0);
            block!(1);
            step = step.add(F::DTYPE.step_bytes());
            x = x.map(|x| x.add(GROUP));
            scales = scales.map(|x| x.add(8));
            sums_at = sums_at.map(|x| x.add(8));
        }
        for (m, sum) in sums.iter().enumerate() {
            sum.store(job.out.add((row + m) * job.out_stride + panel * LANES));
        }
    }
}

/// Rounds a row to blocks of 32 signed bytes with their scale and sum, zero-padded to whole steps.
///
/// x [n], out [`x_row_bytes`(steps)]
#[inline(always)]
pub(super) unsafe fn to_q8<V: Lanes>(x: &[f32], out: &mut [u8]) {
    let steps = x.len().div_ceil(GROUP);
    let (values, tail) = out.split_at_mut(x_scales_at(steps));
    let (scales, sums) = tail.split_at_mut(x_sums_at(steps) - x_scales_at(steps));
    let numbers = scales.chunks_exact_mut(4).zip(sums.chunks_exact_mut(4));
    for ((block, values), (scale, sum)) in values.chunks_exact_mut(BLOCK).enumerate().zip(numbers) {
        let x = &x[(block * BLOCK).min(x.len())..];
        // SAFETY: a block is two vectors in and 32 bytes out.
        let of_block = unsafe {
            if let Some(x) = x.first_chunk::<BLOCK>() {
                block_to_q8::<V>(x.as_ptr(), values.as_mut_ptr().cast())
            } else {
                let mut padded = [0.0; BLOCK];
                padded[..x.len()].copy_from_slice(x);
                block_to_q8::<V>(padded.as_ptr(), values.as_mut_ptr().cast())
            }
        };
        let total: i32 = values.iter().map(|&q| i32::from(q as i8)).sum();
        scale.copy_from_slice(&of_block.to_le_bytes());
        sum.copy_from_slice(&(-128 * total).to_le_bytes());
    }
}

/// Writes 32 signed bytes, returns their scale.
#[inline(always)]
unsafe fn block_to_q8<V: Lanes>(x: *const f32, out: *mut i8) -> f32 {
    // SAFETY: the caller passes 32 values and 32 bytes.
    unsafe {
        let (a, b) = (V::load(x), V::load(x.add(LANES)));
        let zero = V::splat(0.0);
        let magnitude = a.max(zero.sub(a)).max(b.max(zero.sub(b)));
        // 0, or NaN where a value is NaN or infinite: such a row must reach the logits as NaN, not as rounded noise.
        let poison = a.sub(a).add(b.sub(b)).sum();
        let largest = magnitude.largest() + poison;
        let inverse = V::splat(if largest > 0.0 { 127.0 / largest } else { 0.0 });
        a.mul(inverse).store_i8(out);
        b.mul(inverse).store_i8(out.add(LANES));
        largest / 127.0
    }
}
