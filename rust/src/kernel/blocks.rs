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
    /// Quad `t` (0..8) of `block` (0..2), unsigned.
    ///
    /// # Safety
    /// The ISA of `V`; `quads` valid for the step's bytes after the scales.
    unsafe fn quads<V: Lanes>(quads: *const u8, block: usize, t: usize) -> V::Quads;
}

/// Bytes, stored + 128.
pub(super) struct Q8_0;
/// Nibbles, stored + 8: block 0 in the low half, block 1 in the high half.
pub(super) struct Q4_0;

impl BlockFormat for Q8_0 {
    const DTYPE: DType = DType::Q8_0;
    const OFFSET_SHIFT: u32 = 0;
    #[inline(always)]
    unsafe fn quads<V: Lanes>(quads: *const u8, block: usize, t: usize) -> V::Quads {
        // SAFETY: the caller's duty.
        unsafe { V::load_quads(quads.add((block * 8 + t) * 4 * LANES)) }
    }
}

impl BlockFormat for Q4_0 {
    const DTYPE: DType = DType::Q4_0;
    const OFFSET_SHIFT: u32 = 4;
    #[inline(always)]
    unsafe fn quads<V: Lanes>(quads: *const u8, block: usize, t: usize) -> V::Quads {
        // SAFETY: the caller's duty.
        unsafe {
            let both = V::load_quads(quads.add(t * 4 * LANES));
            if block == 0 { V::low_nibbles(both) } else { V::high_nibbles(both) }
        }
    }
}

/// Bytes of one step of a q8 activation row: 64 values, then per block an f32 scale, then per block -128 x sum as i32.
pub(super) const Q8_STEP_BYTES: usize = GROUP + 16;

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
        let mut x: [*const u8; M] = std::array::from_fn(|m| job.x.add((row + m) * job.x_bytes));
        let mut sums = [V::splat(0.0); M];
        for _ in 0..job.steps {
            for block in 0..2 {
                let mut ints = [V::int_splat(0); M];
                for m in 0..M {
                    let start = x[m].add(GROUP + 8 + 4 * block).cast::<i32>().read_unaligned();
                    ints[m] = V::int_splat(start >> F::OFFSET_SHIFT);
                }
                for t in 0..8 {
                    let quads = F::quads::<V>(step.add(4 * LANES), block, t);
                    for m in 0..M {
                        let at = x[m].add(block * BLOCK + 4 * t);
                        ints[m] = V::dot_quads(ints[m], quads, at.cast::<u32>().read_unaligned());
                    }
                }
                let scale = V::load_f16(step.add(block * 2 * LANES).cast());
                for m in 0..M {
                    let x_scale = x[m].add(GROUP + 4 * block).cast::<f32>().read_unaligned();
                    sums[m] = V::from_int(ints[m]).mul(scale).mul_add(V::splat(x_scale), sums[m]);
                }
            }
            step = step.add(F::DTYPE.step_bytes());
            x = x.map(|x| x.add(Q8_STEP_BYTES));
        }
        for (m, sum) in sums.iter().enumerate() {
            sum.store(job.out.add((row + m) * job.out_stride + panel * LANES));
        }
    }
}

/// Rounds a row to blocks of 32 signed bytes with their scale and sum, zero-padded to whole steps.
///
/// x [n], out [n.div_ceil(64) * [`Q8_STEP_BYTES`]]
#[inline(always)]
pub(super) unsafe fn to_q8<V: Lanes>(x: &[f32], out: &mut [u8]) {
    let mut padded = [0.0; GROUP];
    for (x, step) in x.chunks(GROUP).zip(out.chunks_exact_mut(Q8_STEP_BYTES)) {
        padded[..x.len()].copy_from_slice(x);
        padded[x.len()..].fill(0.0);
        for (block, x) in padded.chunks_exact(BLOCK).enumerate() {
            // SAFETY: a block is two vectors, its bytes lie inside the step.
            let scale = unsafe { block_to_q8::<V>(x.as_ptr(), step.as_mut_ptr().add(block * BLOCK).cast()) };
            let sum: i32 = step[block * BLOCK..][..BLOCK].iter().map(|&q| i32::from(q as i8)).sum();
            step[GROUP + 4 * block..][..4].copy_from_slice(&scale.to_le_bytes());
            step[GROUP + 8 + 4 * block..][..4].copy_from_slice(&(-128 * sum).to_le_bytes());
        }
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
