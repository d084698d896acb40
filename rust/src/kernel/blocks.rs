//! Products of 32-blocks: exact integer dot products, scaled block by block.
//!
//! As `generic.rs`, stated once over [`Lanes`]; the order behind one output never depends on the rows beside it.
//!
//! # Safety
//! As in `generic.rs`: the CPU must have the ISA of `V`, and a job's addresses must be valid.

use super::ask_for;
use super::generic::Product;
use super::lanes::{INT_START, LANES, Lanes};
use crate::quant::{BLOCK, DType, GROUP};

/// How a step of a 32-block format yields the quads of its two blocks.
pub(super) trait BlockFormat {
    /// The format.
    const DTYPE: DType;
    /// What a value is: signed bytes that are stored + 128, or unsigned ones with a minimum per block
    /// (`value = scale * q + min`).
    const HAS_MINS: bool;
    /// What the scale is divided by, because the quads hold so many times the integers: a power of two.
    const TIMES: f32;
    /// Quad `t` (0..8) of block `B` (0..2), unsigned.
    ///
    /// # Safety
    /// The ISA of `V`; `quads` valid for the step's bytes from [`quads_at`] on.
    unsafe fn quads<V: Lanes, const B: usize>(quads: *const u8, t: usize) -> V::Quads;
}

/// Bytes, stored + 128.
pub(super) struct Q8_0;
/// Nibbles, stored + 8: block 0 in the low half, block 1 in the high half. Taken 16 times, they are bytes stored + 128.
pub(super) struct Q4_0;
/// Nibbles as they are, in the same places, with a minimum.
pub(super) struct Q4K;

/// Where the quads of a step begin: after the scales, and the mins if there are any.
pub(super) const fn quads_at<F: BlockFormat>() -> usize {
    if F::HAS_MINS { 8 * LANES } else { 4 * LANES }
}

impl BlockFormat for Q8_0 {
    const DTYPE: DType = DType::Q8_0;
    const HAS_MINS: bool = false;
    const TIMES: f32 = 1.0;
    #[inline(always)]
    unsafe fn quads<V: Lanes, const B: usize>(quads: *const u8, t: usize) -> V::Quads {
        // SAFETY: the caller's duty.
        unsafe { V::load_quads(quads.add((B * 8 + t) * 4 * LANES)) }
    }
}

impl BlockFormat for Q4_0 {
    const DTYPE: DType = DType::Q4_0;
    const HAS_MINS: bool = false;
    const TIMES: f32 = 16.0;
    #[inline(always)]
    unsafe fn quads<V: Lanes, const B: usize>(quads: *const u8, t: usize) -> V::Quads {
        // SAFETY: the caller's duty.
        unsafe {
            let both = V::load_quads(quads.add(t * 4 * LANES));
            if B == 0 { V::low_nibbles_times_16(both) } else { V::high_nibbles_times_16(both) }
        }
    }
}

impl BlockFormat for Q4K {
    const DTYPE: DType = DType::Q4K;
    const HAS_MINS: bool = true;
    const TIMES: f32 = 1.0;
    #[inline(always)]
    unsafe fn quads<V: Lanes, const B: usize>(quads: *const u8, t: usize) -> V::Quads {
        // SAFETY: the caller's duty.
        unsafe {
            let both = V::load_quads(quads.add(t * 4 * LANES));
            if B == 0 { V::low_nibbles(both) } else { V::high_nibbles(both) }
        }
    }
}

/// Bytes of a q8 activation row: its values, then per block an f32 scale, then per block what dot products with bytes
/// stored + 128 start from ([`INT_START`] - 128 x sum of the values), then per block scale x sum as f32, for minima. Rows are whole cache lines, so that the values of a step lie in one.
pub(super) const fn x_row_bytes(steps: usize) -> usize {
    (steps * (GROUP + 24)).next_multiple_of(64)
}

/// Where the scales of a q8 activation row begin.
pub(super) const fn x_scales_at(steps: usize) -> usize {
    steps * GROUP
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

/// How far ahead of their use weights are asked for when rows share them: a page, where the processor stops guessing.
const AHEAD: usize = 4096;

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
        // Scales, starts and masses of a step, reached by constants that differ by whole rows of them.
        let mut numbers = x.map(|x| x.add(x_scales_at(job.steps)));
        let (starts_at, masses_at) = (8 * job.steps, 16 * job.steps);
        let mut sums = [V::splat(0.0); M];
        for _ in 0..job.steps {
            if M > 1 {
                ask_for(step.wrapping_add(AHEAD), F::DTYPE.step_bytes());
            }
            macro_rules! block {
                ($block:literal) => {
                    let mut ints = [V::int_splat(INT_START); M];
                    if !F::HAS_MINS {
                        for m in 0..M {
                            let start = row_of(&numbers, m).add(starts_at + 4 * $block).cast::<i32>();
                            ints[m] = V::int_splat(start.read_unaligned());
                        }
                    }
                    for t in 0..8 {
                        let quads = F::quads::<V, $block>(step.add(quads_at::<F>()), t);
                        for m in 0..M {
                            let at = row_of(&x, m).add($block * BLOCK + 4 * t);
                            ints[m] = V::dot_quads(ints[m], quads, at.cast::<u32>().read_unaligned());
                        }
                    }
                    let mut scale = V::load_f16(step.add($block * 2 * LANES).cast());
                    if F::TIMES != 1.0 {
                        scale = scale.mul(V::splat(1.0 / F::TIMES));
                    }
                    let start = V::int_start(scale);
                    for m in 0..M {
                        let x_scale = row_of(&numbers, m).add(4 * $block).cast::<f32>().read_unaligned();
                        sums[m] = V::scaled(ints[m], scale, start).mul_add(V::splat(x_scale), sums[m]);
                    }
                    if F::HAS_MINS {
                        let min = V::load_f16(step.add(4 * LANES + $block * 2 * LANES).cast());
                        for m in 0..M {
                            let mass = row_of(&numbers, m).add(masses_at + 4 * $block).cast::<f32>();
                            sums[m] = min.mul_add(V::splat(mass.read_unaligned()), sums[m]);
                        }
                    }
                };
            }
            block!(0);
            block!(1);
            step = step.add(F::DTYPE.step_bytes());
            x = x.map(|x| x.add(GROUP));
            numbers = numbers.map(|x| x.add(8));
        }
        for (m, sum) in sums.iter().enumerate() {
            sum.store(job.out.add((row + m) * job.out_stride + panel * LANES));
        }
    }
}

/// Blocks that are rounded together, so that their divisions are done side by side.
const TOGETHER: usize = 16;

/// Rounds a row to blocks of 32 signed bytes with their scale and sum, zero-padded to whole steps.
///
/// x [n], out [`x_row_bytes`(steps)]
#[inline(always)]
pub(super) unsafe fn to_q8<V: Lanes>(x: &[f32], out: &mut [u8]) {
    let steps = x.len().div_ceil(GROUP);
    let (values, numbers) = out.split_at_mut(x_scales_at(steps));
    let (scales, numbers) = numbers.split_at_mut(8 * steps);
    let (starts, masses) = numbers.split_at_mut(8 * steps);
    for first in (0..2 * steps).step_by(TOGETHER) {
        let count = TOGETHER.min(2 * steps - first);
        let values = &mut values[first * BLOCK..][..count * BLOCK];
        let (x, whole) = (&x[first * BLOCK..], x.len() / BLOCK - first);
        // SAFETY: the features are the caller's duty.
        let (scale, sum) = unsafe {
            if count <= whole {
                blocks_to_q8::<V>(&x[..count * BLOCK], values)
            } else {
                let mut padded = [0.0; TOGETHER * BLOCK];
                padded[..x.len()].copy_from_slice(x);
                blocks_to_q8::<V>(&padded[..count * BLOCK], values)
            }
        };
        for block in 0..count {
            let at = 4 * (first + block)..4 * (first + block + 1);
            scales[at.clone()].copy_from_slice(&scale[block].to_le_bytes());
            starts[at.clone()].copy_from_slice(&(INT_START - 128 * sum[block] as i32).to_le_bytes());
            masses[at].copy_from_slice(&(scale[block] * sum[block]).to_le_bytes());
        }
    }
}

/// Writes up to [`TOGETHER`] blocks of signed bytes; returns their scales and their (integral) sums.
///
/// A value that is NaN or infinite makes all these scales NaN: such a row must reach the logits as NaN, not as rounded
/// noise.
#[inline(always)]
unsafe fn blocks_to_q8<V: Lanes>(x: &[f32], out: &mut [u8]) -> ([f32; TOGETHER], [f32; TOGETHER]) {
    let (mut largest, mut sums) = ([0.0; TOGETHER], [0.0; TOGETHER]);
    // SAFETY: a block is two vectors in and 32 bytes out.
    unsafe {
        let zero = V::splat(0.0);
        let mut poison = zero;
        for (x, largest) in x.chunks_exact(BLOCK).zip(&mut largest) {
            let (a, b) = (V::load(x.as_ptr()), V::load(x.as_ptr().add(LANES)));
            poison = poison.add(a.sub(a).add(b.sub(b)));
            *largest = a.max(zero.sub(a)).max(b.max(zero.sub(b))).largest();
        }
        let poison = poison.sum();
        let inverses = largest.map(|largest| {
            let inverse = 127.0 / largest;
            if inverse.is_finite() { inverse } else { 0.0 } // all zero, or as good as
        });
        for (block, (x, out)) in x.chunks_exact(BLOCK).zip(out.chunks_exact_mut(BLOCK)).enumerate() {
            let inverse = V::splat(inverses[block]);
            let (a, b) = (V::load(x.as_ptr()).mul(inverse), V::load(x.as_ptr().add(LANES)).mul(inverse));
            a.store_i8(out.as_mut_ptr().cast());
            b.store_i8(out.as_mut_ptr().add(LANES).cast());
            sums[block] = a.round().add(b.round()).sum();
        }
        (largest.map(|largest| largest / 127.0 + poison), sums)
    }
}
