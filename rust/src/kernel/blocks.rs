//! Products of 32-blocks: exact integer dot products, scaled block by block.
//!
//! As `generic.rs`, stated once over [`Lanes`]; the order behind one output never depends on the rows beside it.
//!
//! # Safety
//! As in `generic.rs`: the CPU must have the ISA of `V`, and a job's addresses must be valid.

use super::ask_for;
use super::generic::Product;
use super::lanes::{INT_START, LANES, Lanes};
use crate::quant::{BLOCK, GROUP, PackedType};

/// How a step of a 32-block format yields the quads of its two blocks.
pub(super) trait BlockFormat {
    /// The format.
    const DTYPE: PackedType;
    /// What a value is: signed bytes that are stored + 128, or unsigned ones with a minimum per block
    /// (`value = scale * q + min`).
    const HAS_MINS: bool = false;
    /// What the scale is divided by, because the quads hold so many times the integers: a power of two.
    const TIMES: f32 = 1.0;
    /// Scales of a block: one, or one for each half.
    const SCALES: usize = 1;
    /// Where the quads of a step begin: after the scales, and the mins if there are any.
    const QUADS_AT: usize = if Self::HAS_MINS { 8 * LANES } else { 4 * LANES };
    /// Quad `t` (0..8) of block `B` (0..2), unsigned.
    ///
    /// # Safety
    /// The ISA of `V`; `quads` valid for the step's bytes from `QUADS_AT` on.
    unsafe fn quads<V: Lanes, const B: usize>(quads: *const u8, t: usize) -> V::Quads;
    /// Scale `P` (0..SCALES) of block `B`.
    ///
    /// # Safety
    /// The ISA of `V`; `step` valid for the step's bytes.
    #[inline(always)]
    unsafe fn scale<V: Lanes, const B: usize, const P: usize>(step: *const u8) -> V {
        // SAFETY: the caller's duty.
        unsafe { V::load_f16(step.add(B * 2 * LANES).cast()) }
    }
}

/// Bytes, stored + 128.
pub(super) struct Q8_0;
/// 6 bits, stored + 32, with a scale per half of a block: a signed byte times an f16. Taken 4 times, they are bytes
/// stored + 128.
pub(super) struct Q6K;
/// 5 bits as they are, with a minimum.
pub(super) struct Q5K;
/// Nibbles as they are, with a minimum.
pub(super) struct Q4K;
/// Nibbles, stored + 8. Taken 16 times, they are bytes stored + 128.
pub(super) struct Q4_0;

impl BlockFormat for Q8_0 {
    const DTYPE: PackedType = PackedType::Q8_0;
    #[inline(always)]
    unsafe fn quads<V: Lanes, const B: usize>(quads: *const u8, t: usize) -> V::Quads {
        // SAFETY: the caller's duty.
        unsafe { V::load_quads(quads.add((B * 8 + t) * 4 * LANES)) }
    }
}

impl BlockFormat for Q6K {
    const DTYPE: PackedType = PackedType::Q6K;
    const TIMES: f32 = 4.0;
    const SCALES: usize = 2;
    const QUADS_AT: usize = 6 * LANES;
    #[inline(always)]
    unsafe fn quads<V: Lanes, const B: usize>(quads: *const u8, t: usize) -> V::Quads {
        // SAFETY: the caller's duty.
        unsafe { V::or(bits::<V, B, 4, 2>(quads, t), bits::<V, B, 2, 6>(quads.add(UPPER), t)) }
    }
    #[inline(always)]
    unsafe fn scale<V: Lanes, const B: usize, const P: usize>(step: *const u8) -> V {
        // SAFETY: the caller's duty.
        unsafe {
            let scale = V::load_i8(step.add((2 + 2 * B + P) * LANES).cast());
            V::load_f16(step.cast()).mul(scale)
        }
    }
}

impl BlockFormat for Q5K {
    const DTYPE: PackedType = PackedType::Q5K;
    const HAS_MINS: bool = true;
    #[inline(always)]
    unsafe fn quads<V: Lanes, const B: usize>(quads: *const u8, t: usize) -> V::Quads {
        // SAFETY: the caller's duty.
        unsafe { V::or(bits::<V, B, 4, 0>(quads, t), bits::<V, B, 1, 4>(quads.add(UPPER), t)) }
    }
}

impl BlockFormat for Q4K {
    const DTYPE: PackedType = PackedType::Q4K;
    const HAS_MINS: bool = true;
    #[inline(always)]
    unsafe fn quads<V: Lanes, const B: usize>(quads: *const u8, t: usize) -> V::Quads {
        // SAFETY: the caller's duty.
        unsafe { bits::<V, B, 4, 0>(quads, t) }
    }
}

impl BlockFormat for Q4_0 {
    const DTYPE: PackedType = PackedType::Q4_0;
    const TIMES: f32 = 16.0;
    #[inline(always)]
    unsafe fn quads<V: Lanes, const B: usize>(quads: *const u8, t: usize) -> V::Quads {
        // SAFETY: the caller's duty.
        unsafe { bits::<V, B, 4, 4>(quads, t) }
    }
}

/// Where the lines of upper bits begin, after those of the low four bits.
const UPPER: usize = 8 * 4 * LANES;

/// Quad `t` of block `B` out of lines of `W` bits of each value, as `quant/panels/bit_planes.rs` draws them, from bit `TO` on.
#[inline(always)]
unsafe fn bits<V: Lanes, const B: usize, const W: usize, const TO: usize>(
    lines: *const u8,
    t: usize,
) -> V::Quads {
    let (line, from) = (t / (4 / W), 4 * B + W * (t % (4 / W)));
    let mask = ((1 << W) - 1) << TO;
    // SAFETY: the caller's duty.
    unsafe {
        let line = V::load_quads(lines.add(line * 4 * LANES));
        let is_below = 4 * B + (4 - W) <= TO;
        if is_below { V::shift_left(line, TO - from, mask) } else { V::shift_right(line, from - TO, mask) }
    }
}

/// Bytes of a q8 activation row: its values, then per block an f32 scale, then per block what dot products with bytes
/// stored + 128 start from ([`INT_START`] - 128 x sum of the values), then per block scale x sum as f32, for minima; for
/// weights with a scale per half block also what those of the first half start from, then the same of the second half.
/// Rows are whole cache lines, so that the values of a step lie in one.
pub(super) const fn x_row_bytes(weights: PackedType, steps: usize) -> usize {
    let halves = if wants_halves(weights) { 16 } else { 0 };
    (steps * (GROUP + 24 + halves)).next_multiple_of(64)
}

const fn wants_halves(weights: PackedType) -> bool {
    matches!(weights, PackedType::Q6K)
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

/// How far ahead of their use weights are asked for: a page, where the processor stops guessing.
const AHEAD: usize = 4096;

/// Asks for what lies ahead of the lines that come before quad `i` (0..16) of a step: a few at a time, between the loads
/// of the step itself, which would wait behind a whole step's.
#[inline(always)]
fn ask_ahead<F: BlockFormat>(step: *const u8, i: usize) {
    let lines = |quads: usize| F::DTYPE.step_bytes() * quads / 16 / 64 * 64;
    ask_for(step.wrapping_add(AHEAD + lines(i)), lines(i + 1) - lines(i));
}

/// M rows by one panel. Per block: 8 exact integer dot products, then sum += int * weight scale * activation scale.
#[inline(always)]
unsafe fn block_tile<V: Lanes, F: BlockFormat, const M: usize>(job: &Product, panel: usize, row: usize) {
    // SAFETY: panel < panels and row + M <= rows, so every address lies in the job's buffers.
    unsafe {
        let mut step = job.weights.add(panel * job.panel_bytes);
        // Rows in threes, two of them reached by an index: twelve pointers would not fit the registers.
        let row_of = |from: &[*const u8; 4], m: usize| from[m / 3].add(m % 3 * job.x_bytes);
        let mut x: [*const u8; 4] =
            std::array::from_fn(|third| job.x.add((row + (3 * third).min(M - 1)) * job.x_bytes));
        // Scales, starts and masses of a step, reached by constants that differ by whole rows of them.
        let mut numbers = x.map(|x| x.add(x_scales_at(job.steps)));
        let mut sums = [V::splat(0.0); M];
        for _ in 0..job.steps {
            let number = |m: usize, at: usize| row_of(&numbers, m).add(at);
            macro_rules! part {
                ($block:literal, $part:literal) => {
                    let mut ints = [V::int_splat(INT_START); M];
                    for m in 0..M {
                        ints[m] = V::int_splat(start::<F, $part>(number(m, 4 * $block), job.steps));
                    }
                    for t in 8 * $part / F::SCALES..8 * ($part + 1) / F::SCALES {
                        ask_ahead::<F>(step, 8 * $block + t);
                        let quads = F::quads::<V, $block>(step.add(F::QUADS_AT), t);
                        for m in 0..M {
                            let at = row_of(&x, m).add($block * BLOCK + 4 * t);
                            ints[m] = V::dot_quads(ints[m], quads, at.cast::<u32>().read_unaligned());
                        }
                    }
                    let scale = F::scale::<V, $block, $part>(step).mul(V::splat(1.0 / F::TIMES));
                    for m in 0..M {
                        let x_scale = V::splat(number(m, 4 * $block).cast::<f32>().read_unaligned());
                        sums[m] = V::scaled(ints[m], scale, V::int_start(scale)).mul_add(x_scale, sums[m]);
                    }
                };
            }
            macro_rules! block {
                ($block:literal) => {
                    part!($block, 0);
                    if F::SCALES > 1 {
                        part!($block, 1);
                    }
                    if F::HAS_MINS {
                        let min = V::load_f16(step.add(4 * LANES + $block * 2 * LANES).cast());
                        for m in 0..M {
                            let mass = number(m, 16 * job.steps + 4 * $block).cast::<f32>();
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

/// What the sums of part `P` of a block of an activation row of `steps` start from.
///
/// # Safety
/// `numbers` are those of the block.
#[inline(always)]
unsafe fn start<F: BlockFormat, const P: usize>(numbers: *const u8, steps: usize) -> i32 {
    let at = match (F::HAS_MINS, F::SCALES) {
        (true, _) => return INT_START,
        (false, 1) => 8 * steps,
        (false, _) => (24 + 8 * P) * steps,
    };
    // SAFETY: the caller's duty.
    unsafe { numbers.add(at).cast::<i32>().read_unaligned() }
}

/// Blocks that are rounded together, so that their divisions are done side by side.
const TOGETHER: usize = 16;

/// Rounds a row to blocks of 32 signed bytes with their scales, sums and what `weights` want besides, zero-padded to whole
/// steps.
///
/// x [n], out [`x_row_bytes`(weights, steps)]
#[inline(always)]
pub(super) unsafe fn to_q8<V: Lanes>(x: &[f32], weights: PackedType, out: &mut [u8]) {
    let steps = x.len().div_ceil(GROUP);
    let (values, mut numbers) = out.split_at_mut(x_scales_at(steps));
    let mut next = || numbers.split_off_mut(..8 * steps).unwrap_or_default();
    let [scales, starts, masses] = std::array::from_fn(|_| next());
    let mut halves = wants_halves(weights).then(|| [next(), next()]);
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
            starts[at.clone()].copy_from_slice(&start_for(sum[block] as i32).to_le_bytes());
            masses[at.clone()].copy_from_slice(&(scale[block] * sum[block]).to_le_bytes());
            if let Some(starts) = &mut halves {
                for (half, starts) in values[block * BLOCK..][..BLOCK].chunks_exact(BLOCK / 2).zip(starts) {
                    let sum: i32 = half.iter().map(|&value| i32::from(value as i8)).sum();
                    starts[at.clone()].copy_from_slice(&start_for(sum).to_le_bytes());
                }
            }
        }
    }
}

/// What dot products with bytes stored + 128 start from, for values of this sum.
fn start_for(sum: i32) -> i32 {
    INT_START - 128 * sum
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
            // A NaN in here may give any number: the poison is what counts then.
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

#[cfg(test)]
mod tests {
    use super::super::{Isa, Kernels, Panels, Rows};
    use super::{LANES, PackedType, x_row_bytes};
    use crate::quant::StorageType;

    /// The ends of its integers and scales, with rows of nothing but 127 or -127: a part's sum just fits 24 bits.
    #[test]
    fn sums_of_the_largest_numbers_of_q6_k_are_exact() {
        const K: usize = 256;
        const ROWS: usize = 14;
        let (format, steps) = (PackedType::Q6K, PackedType::Q6K.steps(K));
        for (bits, q) in [(0x00, -32.0), (0xff, 31.0)] {
            for scale in [i8::MIN, i8::MAX] {
                let d = half::f16::ONE.to_le_bytes();
                let block: Vec<u8> = [vec![bits; 192], vec![scale as u8; 16], d.to_vec()].concat();
                let mut panel = vec![0; steps * format.step_bytes()];
                StorageType::Q6_K.pack_row(&block, format, 5, &mut panel, &mut []);
                for x in [1.0, -1.0] {
                    let mut row = vec![0; x_row_bytes(format, steps)];
                    Kernels::of(Isa::Scalar).unwrap().to_q8(&[x; K], format, &mut row);
                    let (stride, rows) = (row.len(), row.repeat(ROWS));
                    let panels = Panels { format, bytes: &panel, panel_bytes: panel.len(), count: 1, steps };
                    let exact = q * f32::from(scale) * x * K as f32;
                    for kernels in Isa::ALL.into_iter().filter_map(|isa| Kernels::of(isa).ok()) {
                        let mut out = [f32::NAN; ROWS * LANES];
                        let x = Rows { bytes: &rows, stride, count: ROWS };
                        kernels.product(panels, x, &mut out, LANES);
                        for out in out.chunks_exact(LANES) {
                            assert!(
                                (out[5] / exact - 1.0).abs() < 1e-6,
                                "{kernels:?} {} for {exact}",
                                out[5]
                            );
                            assert!(out.iter().enumerate().all(|(lane, &sum)| lane == 5 || sum == 0.0));
                        }
                    }
                }
            }
        }
    }
}
