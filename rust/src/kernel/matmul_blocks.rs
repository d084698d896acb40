//! Matmuls of the 32-block formats: exact integer dot products, scaled block by block.
//!
//! As in `matmul.rs`, the order of additions behind one output never depends on the rows beside it.
//!
//! # Safety
//! As in `matmul.rs`: the CPU must have the ISA of `V`, and the addresses of the arguments must be valid.

use super::lanes::{BIASED_ZERO, LANES, Lanes};
use super::matmul::MatmulArgs;
use super::prefetch::prefetch_l2;
use super::quantize::x_scales_at;
use crate::quant::{BLOCK, GROUP, PackedType};

/// How a step of a 32-block format yields the values of its two blocks.
pub(super) trait BlockFormat {
    /// The format.
    const DTYPE: PackedType;
    /// Whether values are unsigned with a minimum per block (`value = scale * q + min`), or signed bytes stored + 128.
    const HAS_MINS: bool = false;
    /// The power of two by which the integers are multiplied, and the scale divided: 1, or what makes them bytes + 128.
    const FACTOR: i16 = 1;
    /// The largest integer as it is stored.
    const MAX: usize;
    /// Scales of a block: one, or one for each half.
    const SCALES: usize = 1;
    /// Where the values of a step begin: after the scales, and the minima if there are any.
    const VALUES_AT: usize = if Self::HAS_MINS { 8 * LANES } else { 4 * LANES };
    /// Values 4 t to 4 t + 3 (t in 0..8) of block `B` (0 or 1), unsigned, of all lanes: as they are stored, or times
    /// [`BlockFormat::FACTOR`].
    ///
    /// # Safety
    /// The ISA of `V`; `values` valid for the step's bytes from `VALUES_AT` on.
    unsafe fn four_values<V: Lanes, const B: usize>(values: *const u8, t: usize, stored: bool) -> V::U8x4;
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
/// 6 bits, stored + 32, with a scale per half of a block: a signed byte times an f16. Multiplied by 4, they are bytes
/// stored + 128.
pub(super) struct Q6K;
/// 5 bits, unsigned, with a minimum.
pub(super) struct Q5K;
/// 4 bits, unsigned, with a minimum.
pub(super) struct Q4K;
/// 4 bits, stored + 8. Multiplied by 16, they are bytes stored + 128.
pub(super) struct Q4_0;

impl BlockFormat for Q8_0 {
    const DTYPE: PackedType = PackedType::Q8_0;
    const MAX: usize = 255;
    #[inline(always)]
    unsafe fn four_values<V: Lanes, const B: usize>(values: *const u8, t: usize, _: bool) -> V::U8x4 {
        // SAFETY: the caller's duty.
        unsafe { V::load_u8x4(values.add((B * 8 + t) * 4 * LANES)) }
    }
}

impl BlockFormat for Q6K {
    const DTYPE: PackedType = PackedType::Q6K;
    const FACTOR: i16 = 4;
    const MAX: usize = 63;
    const SCALES: usize = 2;
    const VALUES_AT: usize = 6 * LANES;
    #[inline(always)]
    unsafe fn four_values<V: Lanes, const B: usize>(values: *const u8, t: usize, stored: bool) -> V::U8x4 {
        let to = if stored { 0 } else { 2 };
        // SAFETY: the caller's duty.
        unsafe { V::or(bits::<V, B, 4>(values, t, to), bits::<V, B, 2>(values.add(UPPER), t, to + 4)) }
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
    const MAX: usize = 31;
    const HAS_MINS: bool = true;
    #[inline(always)]
    unsafe fn four_values<V: Lanes, const B: usize>(values: *const u8, t: usize, _: bool) -> V::U8x4 {
        // SAFETY: the caller's duty.
        unsafe { V::or(bits::<V, B, 4>(values, t, 0), bits::<V, B, 1>(values.add(UPPER), t, 4)) }
    }
}

impl BlockFormat for Q4K {
    const DTYPE: PackedType = PackedType::Q4K;
    const MAX: usize = 15;
    const HAS_MINS: bool = true;
    #[inline(always)]
    unsafe fn four_values<V: Lanes, const B: usize>(values: *const u8, t: usize, _: bool) -> V::U8x4 {
        // SAFETY: the caller's duty.
        unsafe { bits::<V, B, 4>(values, t, 0) }
    }
}

impl BlockFormat for Q4_0 {
    const DTYPE: PackedType = PackedType::Q4_0;
    const FACTOR: i16 = 16;
    const MAX: usize = 15;
    #[inline(always)]
    unsafe fn four_values<V: Lanes, const B: usize>(values: *const u8, t: usize, stored: bool) -> V::U8x4 {
        // SAFETY: the caller's duty.
        unsafe { bits::<V, B, 4>(values, t, if stored { 0 } else { 4 }) }
    }
}

/// Where the lines of the upper bits begin, after those of the low four bits.
const UPPER: usize = 8 * 4 * LANES;

/// Four values (group `t`) of block `B` out of lines of `W` bits of each value, moved to bit `to`;
/// `quant/panels/bit_planes.rs` draws the lines.
#[inline(always)]
unsafe fn bits<V: Lanes, const B: usize, const W: usize>(lines: *const u8, t: usize, to: usize) -> V::U8x4 {
    let (line, from) = (t / (4 / W), 4 * B + W * (t % (4 / W)));
    let mask = ((1 << W) - 1) << to;
    // SAFETY: the caller's duty.
    unsafe {
        let line = V::load_u8x4(lines.add(line * 4 * LANES));
        let is_below = 4 * B + (4 - W) <= to;
        if is_below { V::shift_left(line, to - from, mask) } else { V::shift_right(line, from - to, mask) }
    }
}

/// The matmul of a 32-block format in tiles of at most `T` rows by one panel.
#[inline(always)]
pub(super) unsafe fn matmul_blocks<V: Lanes, F: BlockFormat, const T: usize>(args: &MatmulArgs) {
    macro_rules! pick {
        ($rows:expr, $panel:expr, $row:expr, $($m:literal)*) => {
            match $rows {
                // SAFETY: the caller's duty; the tile stays inside `rows` and `panels`.
                $($m if $m <= T => unsafe { block_tile::<V, F, $m>(args, $panel, $row) },)*
                _ => unreachable!("a tile has at most {T} rows"),
            }
        };
    }
    for panel in 0..args.panels {
        for row in (0..args.rows).step_by(T) {
            pick!((args.rows - row).min(T), panel, row, 1 2 3 4 5 6 7 8 9 10 11 12)
        }
    }
}

/// How far ahead weights are prefetched: 4 KiB, because hardware prefetch stops at page borders.
const AHEAD: usize = 4096;

/// Prefetches, before group `i` (0..16) of a step is used, a sixteenth of a step: a whole step's prefetches at once would
/// delay the loads of this step.
#[inline(always)]
fn prefetch_ahead<F: BlockFormat>(step: *const u8, i: usize) {
    let bytes = |groups: usize| F::DTYPE.step_bytes() * groups / 16 / 64 * 64;
    prefetch_l2(step.wrapping_add(AHEAD + bytes(i)), bytes(i + 1) - bytes(i));
}

/// How many groups of four products of a block fit a pair of i16 sums: activations are at most 127.
const fn quads_in_i16<F: BlockFormat>() -> usize {
    i16::MAX as usize / (2 * 127 * F::MAX)
}

/// M rows by one panel. Per block: 8 exact integer dot products, then sum += int * weight scale * activation scale.
#[inline(always)]
unsafe fn block_tile<V: Lanes, F: BlockFormat, const M: usize>(args: &MatmulArgs, panel: usize, row: usize) {
    // SAFETY: panel < panels and row + M <= rows, so every address lies in the buffers of `args`.
    unsafe {
        let mut step = args.weights.add(panel * args.panel_bytes);
        // A pointer for every third row, the two after it by an index: twelve pointers do not fit the registers.
        let row_of = |from: &[*const u8; 4], m: usize| from[m / 3].add(m % 3 * args.x_bytes);
        let mut x: [*const u8; 4] =
            std::array::from_fn(|third| args.x.add((row + (3 * third).min(M - 1)) * args.x_bytes));
        // A step's scales; its compensations and block sums follow at distances that are the same for all rows.
        let mut numbers = x.map(|x| x.add(x_scales_at(args.steps)));
        let mut sums = [V::splat(0.0); M];
        for _ in 0..args.steps {
            let number = |m: usize, at: usize| row_of(&numbers, m).add(at);
            let mut ints = [V::int_splat(BIASED_ZERO); M];
            let mut words = [V::words_zero(); M];
            let in_i16 = V::SUMS_IN_I16 && quads_in_i16::<F>() > 0;
            macro_rules! quads {
                ($block:literal, $part:literal, $($t:literal)*) => {$(
                    if $t * F::SCALES / 8 == $part {
                        prefetch_ahead::<F>(step, 8 * $block + $t);
                        let values = F::four_values::<V, $block>(step.add(F::VALUES_AT), $t, in_i16);
                        for m in 0..M {
                            let at = row_of(&x, m).add($block * BLOCK + 4 * $t);
                            let x = at.cast::<u32>().read_unaligned();
                            if in_i16 {
                                words[m] = V::dot2(words[m], values, x);
                            } else {
                                ints[m] = V::dot4(ints[m], values, x);
                            }
                            if in_i16 && ($t + 1) % quads_in_i16::<F>() == 0 {
                                ints[m] = V::add_words(ints[m], words[m], F::FACTOR);
                                words[m] = V::words_zero();
                            }
                        }
                    }
                )*};
            }
            macro_rules! part {
                ($block:literal, $part:literal) => {
                    for m in 0..M {
                        ints[m] = V::int_splat(compensation::<F, $part>(number(m, 4 * $block), args.steps));
                    }
                    // Written out, so that every offset and every prefetch is a constant of the loop over steps.
                    quads!($block, $part, 0 1 2 3 4 5 6 7);
                    let scale = F::scale::<V, $block, $part>(step).mul(V::splat(1.0 / f32::from(F::FACTOR)));
                    for m in 0..M {
                        let x_scale = V::splat(number(m, 4 * $block).cast::<f32>().read_unaligned());
                        sums[m] = V::scaled(ints[m], scale, V::minus_bias(scale)).mul_add(x_scale, sums[m]);
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
                            let sum = number(m, 16 * args.steps + 4 * $block).cast::<f32>();
                            sums[m] = min.mul_add(V::splat(sum.read_unaligned()), sums[m]);
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
            sum.store(args.out.add((row + m) * args.out_stride + panel * LANES));
        }
    }
}

/// What the integer sums of part `P` of a block start from; a row's parts are described at
/// [`super::quantize::x_row_bytes`].
///
/// # Safety
/// `numbers` are those of the block.
#[inline(always)]
unsafe fn compensation<F: BlockFormat, const P: usize>(numbers: *const u8, steps: usize) -> i32 {
    let at = match (F::HAS_MINS, F::SCALES) {
        (true, _) => return BIASED_ZERO,
        (false, 1) => 8 * steps,
        (false, _) => (24 + 8 * P) * steps,
    };
    // SAFETY: the caller's duty.
    unsafe { numbers.add(at).cast::<i32>().read_unaligned() }
}

#[cfg(test)]
mod tests {
    use super::super::{Isa, Kernels, Panels, Rows, x_row_bytes};
    use super::{LANES, PackedType};
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
                    Kernels::of(Isa::Scalar).unwrap().quantize_q8(&[x; K], format, &mut row);
                    let (stride, rows) = (row.len(), row.repeat(ROWS));
                    let panels = Panels { format, bytes: &panel, panel_bytes: panel.len(), count: 1, steps };
                    let exact = q * f32::from(scale) * x * K as f32;
                    for kernels in Isa::ALL.into_iter().filter_map(|isa| Kernels::of(isa).ok()) {
                        let mut out = [f32::NAN; ROWS * LANES];
                        let x = Rows { bytes: &rows, stride, count: ROWS };
                        kernels.matmul(panels, x, &mut out, LANES);
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
