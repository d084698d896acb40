//! Matmuls of the 32-block formats: exact integer dot products, scaled block by block.
//!
//! As in `matmul.rs`, the order of additions behind one output never depends on the other rows.
//!
//! # Safety
//! As in `matmul.rs`: the CPU must have the ISA of `V`, and the addresses of the arguments must be valid.

use super::lanes::{BIASED_ZERO, LANES, Lanes};
use super::matmul::MatmulArgs;
use super::prefetch::prefetch_l2;
use super::quantize::x_scales_at;
use crate::quant::{
    BLOCK, GROUP, PackedType, SUPER_BLOCK, bit_planes, place_of, q2_k, q3_k, q4_k_q5_k, q6_k,
};
use std::mem::MaybeUninit;
use std::ops::Range;

/// How a step of a 32-block format yields the values of its two blocks.
///
/// What decides between two ways to multiply is a constant, not a function: without link-time optimization a function of
/// another compilation unit is called in the innermost loop.
pub(super) trait BlockFormat {
    /// The format.
    const DTYPE: PackedType;
    /// The format whose tiles of unpacked values serve this one, because its unpacked steps are the same.
    type Unpacked: BlockFormat;
    /// Bytes of a step, without the numbers that steps share.
    const STEP_BYTES: usize = Self::DTYPE.step_bytes();
    /// Bytes of the numbers that come before each four steps.
    const NUMBERS_BYTES: usize = Self::DTYPE.numbers_bytes();
    /// Bytes of a step with its part of the shared numbers.
    const BYTES_PER_STEP: usize = Self::STEP_BYTES + Self::NUMBERS_BYTES * GROUP / SUPER_BLOCK;
    /// Whether values are unsigned with a minimum for each scale (`value = scale * q + min`), or signed bytes stored + 128.
    const HAS_MINS: bool = false;
    /// Whether values are stored + 1 instead.
    const PLUS_ONE: bool = false;
    /// The power of two by which the integers are multiplied, and the scale divided: 1, or what makes them bytes + 128.
    const FACTOR: i16 = 1;
    /// Whether there are tiles of all numbers of rows.
    const ALL_TILES: bool = false;
    /// The largest integer as it is stored.
    const MAX: usize;
    /// How many groups of four products fit a pair of i16 sums: activations are at most 127.
    const QUADS_IN_I16: usize = {
        let (fit, all) = (i16::MAX as usize / (2 * 127 * Self::MAX), 8 / Self::SCALES);
        if fit < all { fit } else { all }
    };
    /// Scales of a block: one, or one for each half.
    const SCALES: usize = 1;
    /// Bytes of the values of an unpacked step, 16 groups of four of all lanes: 1,024 bytes, or 1,024 i16.
    const UNPACKED_VALUES: usize = if Self::QUADS_IN_I16 > 0 { 16 * 4 * LANES } else { 16 * 8 * LANES };
    /// Bytes of an unpacked step: its values, the scales of each block, the minima.
    const UNPACKED_STEP: usize =
        Self::UNPACKED_VALUES + 2 * Self::SCALES * (1 + Self::HAS_MINS as usize) * LANES * size_of::<f32>();
    /// Where the values of a step begin: after its own scales, and the minima if there are any.
    const VALUES_AT: usize;
    /// Values 4 t to 4 t + 3 (t in 0..8) of block `B` (0 or 1), unsigned, of all lanes: as they are stored, or times
    /// [`BlockFormat::FACTOR`]. `table` is that of a type whose values name integers.
    ///
    /// # Safety
    /// The ISA of `V`; `values` valid for the step's bytes from `VALUES_AT` on.
    unsafe fn four_values<V: Lanes, const B: usize>(
        values: *const u8,
        t: usize,
        stored: bool,
        table: V::U8x4,
    ) -> V::U8x4;
    /// Scale `P` (0..SCALES) of block `B` of step `index` of those that share these numbers.
    ///
    /// # Safety
    /// The ISA of `V`; `numbers` valid for the numbers of the step.
    #[inline(always)]
    unsafe fn scale<V: Lanes, const B: usize, const P: usize>(numbers: *const u8, _index: usize) -> V {
        // SAFETY: the caller's duty.
        unsafe { V::load_f16(numbers.add(B * 2 * LANES).cast()) }
    }
    /// Minimum `P` of block `B`, where there are minima.
    ///
    /// # Safety
    /// As in [`BlockFormat::scale`].
    #[inline(always)]
    unsafe fn min<V: Lanes, const B: usize, const P: usize>(numbers: *const u8, _index: usize) -> V {
        // SAFETY: the caller's duty.
        unsafe { V::load_f16(numbers.add(4 * LANES + B * 2 * LANES).cast()) }
    }
}

/// Bytes, stored + 128.
pub(super) struct Q8_0;
/// 6 bits, stored + 32, with a scale per half of a block: a signed byte times a float. Multiplied by 4, they are bytes
/// stored + 128.
pub(super) struct Q6K;
/// 4 or 5 bits, unsigned, with a scale and a minimum, both f16.
pub(super) struct WithMin<const BITS: usize>;
pub(super) type Q5_1 = WithMin<5>;
pub(super) type Q4_1 = WithMin<4>;
/// 4 or 5 bits, unsigned, with a scale and a minimum of six bits, each times an f16.
pub(super) struct KQuant<const BITS: usize>;
pub(super) type Q5K = KQuant<5>;
pub(super) type Q4K = KQuant<4>;
/// 4 bits, stored + 8. Multiplied by 16, they are bytes stored + 128.
pub(super) struct Q4_0;
/// 4 bits that name bytes stored + 128.
pub(super) struct NamedBlocks;
/// 4 bits that name bytes stored + 128, with a scale per half of a block: a signed byte times a float.
pub(super) struct NamedHalves;
/// 3 bits, stored + 4, with a scale per half of a block: six bits, less 32, times a float. Multiplied by 32, they are bytes
/// stored + 128.
pub(super) struct Q3K;
/// 2 bits, unsigned, with a scale and a minimum per half of a block: four bits, each times an f16.
pub(super) struct Q2K;
/// 2 bits, stored + 1, with a scale per step.
pub(super) struct Q2_0;
/// 2 bits, stored + 1, with a scale per four steps.
pub(super) struct Tq2_0;
/// A bit, with a scale per two steps. Multiplied by 2, they are stored + 1.
pub(super) struct Q1_0;

impl BlockFormat for Q8_0 {
    type Unpacked = Self;
    const ALL_TILES: bool = true;
    const DTYPE: PackedType = PackedType::Q8_0;
    const MAX: usize = 255;
    const VALUES_AT: usize = 4 * LANES;
    #[inline(always)]
    unsafe fn four_values<V: Lanes, const B: usize>(
        values: *const u8,
        t: usize,
        _: bool,
        _: V::U8x4,
    ) -> V::U8x4 {
        // SAFETY: the caller's duty.
        unsafe { V::load_u8x4(values.add((B * 8 + t) * 4 * LANES)) }
    }
}

impl BlockFormat for Q6K {
    type Unpacked = Self;
    const ALL_TILES: bool = true;
    const DTYPE: PackedType = PackedType::Q6K;
    const FACTOR: i16 = 4;
    const MAX: usize = 63;
    const SCALES: usize = 2;
    const VALUES_AT: usize = 0;
    #[inline(always)]
    unsafe fn four_values<V: Lanes, const B: usize>(
        values: *const u8,
        t: usize,
        stored: bool,
        _: V::U8x4,
    ) -> V::U8x4 {
        let to = if stored { 0 } else { 2 };
        // SAFETY: the caller's duty.
        unsafe { V::or(bits::<V, B, 4>(values, t, to), bits::<V, B, 2>(values.add(UPPER), t, to + 4)) }
    }
    #[inline(always)]
    unsafe fn scale<V: Lanes, const B: usize, const P: usize>(numbers: *const u8, index: usize) -> V {
        // SAFETY: the caller's duty.
        unsafe {
            let scales = numbers.add(q6_k::STEP_SCALES + index * q6_k::STEP_SCALES_BYTES);
            V::load(numbers.cast()).mul(V::load_i8(scales.add((2 * B + P) * LANES).cast()))
        }
    }
}

/// Values of four or five bits.
#[inline(always)]
unsafe fn small_values<V: Lanes, const B: usize, const BITS: usize>(values: *const u8, t: usize) -> V::U8x4 {
    // SAFETY: the caller's duty.
    unsafe {
        let low = bits::<V, B, 4>(values, t, 0);
        if BITS == 4 { low } else { V::or(low, bits::<V, B, 1>(values.add(UPPER), t, 4)) }
    }
}

impl<const BITS: usize> BlockFormat for WithMin<BITS> {
    type Unpacked = Self;
    const ALL_TILES: bool = BITS == 4;
    const DTYPE: PackedType = if BITS == 4 { PackedType::Q4_1 } else { PackedType::Q5_1 };
    const MAX: usize = (1 << BITS) - 1;
    const HAS_MINS: bool = true;
    const VALUES_AT: usize = 8 * LANES;
    #[inline(always)]
    unsafe fn four_values<V: Lanes, const B: usize>(
        values: *const u8,
        t: usize,
        _: bool,
        _: V::U8x4,
    ) -> V::U8x4 {
        // SAFETY: the caller's duty.
        unsafe { small_values::<V, B, BITS>(values, t) }
    }
}

impl<const BITS: usize> BlockFormat for KQuant<BITS> {
    type Unpacked = WithMin<BITS>;
    const ALL_TILES: bool = true;
    const DTYPE: PackedType = if BITS == 4 { PackedType::Q4K } else { PackedType::Q5K };
    const MAX: usize = (1 << BITS) - 1;
    const HAS_MINS: bool = true;
    const VALUES_AT: usize = 0;
    #[inline(always)]
    unsafe fn four_values<V: Lanes, const B: usize>(
        values: *const u8,
        t: usize,
        _: bool,
        _: V::U8x4,
    ) -> V::U8x4 {
        // SAFETY: the caller's duty.
        unsafe { small_values::<V, B, BITS>(values, t) }
    }
    #[inline(always)]
    unsafe fn scale<V: Lanes, const B: usize, const P: usize>(numbers: *const u8, index: usize) -> V {
        // SAFETY: the caller's duty.
        unsafe { V::load_f16(numbers.cast()).mul(six_bits::<V, B>(numbers, index, 0)) }
    }
    #[inline(always)]
    unsafe fn min<V: Lanes, const B: usize, const P: usize>(numbers: *const u8, index: usize) -> V {
        // SAFETY: the caller's duty.
        unsafe { V::load_f16(numbers.add(2 * LANES).cast()).mul(six_bits::<V, B>(numbers, index, 1)) }
    }
}

/// The scale (0) or the minimum (1) of block `B`; `quant/panels/q4_k_q5_k.rs` draws their place.
#[inline(always)]
unsafe fn six_bits<V: Lanes, const B: usize>(numbers: *const u8, index: usize, which: usize) -> V {
    // SAFETY: the caller's duty.
    unsafe {
        let step = numbers.add(q4_k_q5_k::STEP_SCALES + index * q4_k_q5_k::STEP_SCALES_BYTES);
        V::load_u6(step.add(B * LANES), 4 * which, step.add(2 * LANES), 4 * B + 2 * which)
    }
}

impl BlockFormat for Q4_0 {
    type Unpacked = Self;
    const ALL_TILES: bool = true;
    const DTYPE: PackedType = PackedType::Q4_0;
    const FACTOR: i16 = 16;
    const MAX: usize = 15;
    const VALUES_AT: usize = 4 * LANES;
    #[inline(always)]
    unsafe fn four_values<V: Lanes, const B: usize>(
        values: *const u8,
        t: usize,
        stored: bool,
        _: V::U8x4,
    ) -> V::U8x4 {
        // SAFETY: the caller's duty.
        unsafe { bits::<V, B, 4>(values, t, if stored { 0 } else { 4 }) }
    }
}

impl BlockFormat for NamedBlocks {
    type Unpacked = Q8_0;
    const DTYPE: PackedType = PackedType::Iq4Nl;
    const MAX: usize = 255;
    const VALUES_AT: usize = 4 * LANES;
    #[inline(always)]
    unsafe fn four_values<V: Lanes, const B: usize>(
        values: *const u8,
        t: usize,
        _: bool,
        table: V::U8x4,
    ) -> V::U8x4 {
        // SAFETY: the caller's duty.
        unsafe { V::lookup(table, bits::<V, B, 4>(values, t, 0)) }
    }
}

impl BlockFormat for NamedHalves {
    type Unpacked = Self;
    const DTYPE: PackedType = PackedType::Iq4Xs;
    const MAX: usize = 255;
    const SCALES: usize = 2;
    const VALUES_AT: usize = 0;
    #[inline(always)]
    unsafe fn four_values<V: Lanes, const B: usize>(
        values: *const u8,
        t: usize,
        _: bool,
        table: V::U8x4,
    ) -> V::U8x4 {
        // SAFETY: the caller's duty.
        unsafe { V::lookup(table, bits::<V, B, 4>(values, t, 0)) }
    }
    #[inline(always)]
    unsafe fn scale<V: Lanes, const B: usize, const P: usize>(numbers: *const u8, index: usize) -> V {
        // SAFETY: the caller's duty.
        unsafe { Q6K::scale::<V, B, P>(numbers, index) }
    }
}

impl BlockFormat for Q3K {
    type Unpacked = Self;
    const DTYPE: PackedType = PackedType::Q3K;
    const FACTOR: i16 = 32;
    const MAX: usize = 7;
    const SCALES: usize = 2;
    const VALUES_AT: usize = 0;
    #[inline(always)]
    unsafe fn four_values<V: Lanes, const B: usize>(
        values: *const u8,
        t: usize,
        stored: bool,
        _: V::U8x4,
    ) -> V::U8x4 {
        const UPPER: usize = bit_planes::bytes(2);
        let to = if stored { 0 } else { 5 };
        // SAFETY: the caller's duty.
        unsafe { V::or(bits::<V, B, 2>(values, t, to), bits::<V, B, 1>(values.add(UPPER), t, to + 2)) }
    }
    #[inline(always)]
    unsafe fn scale<V: Lanes, const B: usize, const P: usize>(numbers: *const u8, index: usize) -> V {
        // SAFETY: the caller's duty. Both parts of a block are where q4_k has a scale and a minimum.
        unsafe {
            let scale = six_bits::<V, B>(numbers, index, P).sub(V::splat(f32::from(q3_k::SCALE_OFFSET)));
            V::load(numbers.cast()).mul(scale)
        }
    }
}

impl BlockFormat for Q2K {
    type Unpacked = Self;
    const DTYPE: PackedType = PackedType::Q2K;
    const MAX: usize = 3;
    const SCALES: usize = 2;
    const HAS_MINS: bool = true;
    const VALUES_AT: usize = 0;
    #[inline(always)]
    unsafe fn four_values<V: Lanes, const B: usize>(
        values: *const u8,
        t: usize,
        _: bool,
        _: V::U8x4,
    ) -> V::U8x4 {
        // SAFETY: the caller's duty.
        unsafe { bits::<V, B, 2>(values, t, 0) }
    }
    #[inline(always)]
    unsafe fn scale<V: Lanes, const B: usize, const P: usize>(numbers: *const u8, index: usize) -> V {
        // SAFETY: the caller's duty.
        unsafe { V::load_f16(numbers.cast()).mul(four_bits::<V>(numbers, index, 2 * B + P, 0)) }
    }
    #[inline(always)]
    unsafe fn min<V: Lanes, const B: usize, const P: usize>(numbers: *const u8, index: usize) -> V {
        // SAFETY: the caller's duty.
        unsafe {
            let minus_dmin = V::load_f16(numbers.add(2 * LANES).cast());
            minus_dmin.mul(four_bits::<V>(numbers, index, 2 * B + P, 4))
        }
    }
}

/// The scale (bit 0) or the minimum (bit 4) of part `part` (0..4) of a step.
#[inline(always)]
unsafe fn four_bits<V: Lanes>(numbers: *const u8, index: usize, part: usize, bit: usize) -> V {
    // SAFETY: the caller's duty.
    unsafe {
        V::load_u4(numbers.add(q2_k::STEP_SCALES + index * q2_k::STEP_SCALES_BYTES + part * LANES), bit)
    }
}

impl BlockFormat for Q2_0 {
    type Unpacked = Self;
    const DTYPE: PackedType = PackedType::Q2_0;
    const MAX: usize = 3;
    const PLUS_ONE: bool = true;
    const VALUES_AT: usize = 0;
    #[inline(always)]
    unsafe fn four_values<V: Lanes, const B: usize>(
        values: *const u8,
        t: usize,
        _: bool,
        _: V::U8x4,
    ) -> V::U8x4 {
        // SAFETY: the caller's duty.
        unsafe { bits::<V, B, 2>(values, t, 0) }
    }
    #[inline(always)]
    unsafe fn scale<V: Lanes, const B: usize, const P: usize>(numbers: *const u8, index: usize) -> V {
        // SAFETY: the caller's duty.
        unsafe { V::load_f16(numbers.add(index * 2 * LANES).cast()) }
    }
}

impl BlockFormat for Tq2_0 {
    type Unpacked = Q2_0;
    const DTYPE: PackedType = PackedType::Tq2_0;
    const MAX: usize = 3;
    const PLUS_ONE: bool = true;
    const VALUES_AT: usize = 0;
    #[inline(always)]
    unsafe fn four_values<V: Lanes, const B: usize>(
        values: *const u8,
        t: usize,
        _: bool,
        _: V::U8x4,
    ) -> V::U8x4 {
        // SAFETY: the caller's duty.
        unsafe { bits::<V, B, 2>(values, t, 0) }
    }
    #[inline(always)]
    unsafe fn scale<V: Lanes, const B: usize, const P: usize>(numbers: *const u8, _index: usize) -> V {
        // SAFETY: the caller's duty.
        unsafe { V::load(numbers.cast()) }
    }
}

impl BlockFormat for Q1_0 {
    type Unpacked = Q2_0;
    const DTYPE: PackedType = PackedType::Q1_0;
    const MAX: usize = 2;
    const PLUS_ONE: bool = true;
    const VALUES_AT: usize = 0;
    #[inline(always)]
    unsafe fn four_values<V: Lanes, const B: usize>(
        values: *const u8,
        t: usize,
        _: bool,
        _: V::U8x4,
    ) -> V::U8x4 {
        // SAFETY: the caller's duty.
        unsafe { bits::<V, B, 1>(values, t, 1) }
    }
    #[inline(always)]
    unsafe fn scale<V: Lanes, const B: usize, const P: usize>(numbers: *const u8, index: usize) -> V {
        // SAFETY: the caller's duty.
        unsafe { V::load_f16(numbers.add(index / 2 * 2 * LANES).cast()) }
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
        if from <= to { V::shift_left(line, to - from, mask) } else { V::shift_right(line, from - to, mask) }
    }
}

/// The matmul of a 32-block format in tiles of at most `T` rows by one panel.
#[inline(always)]
pub(super) unsafe fn matmul_blocks<V: Lanes, F: BlockFormat, const T: usize>(args: &MatmulArgs) {
    if args.rows >= const { unpack_from_rows::<V, F>() } {
        // SAFETY: the caller's duty.
        return unsafe { matmul_unpacked::<V, F, T>(args) };
    }
    if args.rows >= const { split_from_rows::<V, F>() } {
        // SAFETY: the caller's duty.
        return unsafe { matmul_split::<V, F, T>(args) };
    }
    for panel in 0..args.panels {
        let mut row = 0;
        while row < args.rows {
            let (rows, steps) = (tile_rows::<F, T, STORED>(args.rows - row), 0..args.steps);
            let tile = Tile { panel, row, rows, steps, values: std::ptr::null(), words: std::ptr::null() };
            // SAFETY: the caller's duty; the tile stays inside `rows` and `panels`.
            unsafe { tile_of::<V, F, T, STORED>(args, &tile) }
            row += rows;
        }
    }
}

/// How a tile takes its operands: as they are stored; the rows as i16; the rows as i16 and the panel unpacked.
const STORED: u8 = 0;
const SPLIT: u8 = 1;
const UNPACKED: u8 = 2;

/// The number of rows from which rows are converted to i16 once for all panels; only where the products are of i16.
const fn split_from_rows<V: Lanes, F: BlockFormat>() -> usize {
    if V::SUMS_IN_I16 && F::QUADS_IN_I16 == 0 { V::SPLIT_FROM_ROWS } else { usize::MAX }
}

/// The number of rows from which a panel is unpacked once for all rows. 25 where rows are converted to i16: converting them
/// makes tiles of rows cheaper, so that unpacking once pays later.
const fn unpack_from_rows<V: Lanes, F: BlockFormat>() -> usize {
    if split_from_rows::<V, F>() < usize::MAX { 25 } else { V::UNPACK_FROM_ROWS }
}

/// Matmul of bytes that converts the rows to i16 once for all panels, a part of the steps at a time.
#[inline(always)]
unsafe fn matmul_split<V: Lanes, F: BlockFormat, const T: usize>(args: &MatmulArgs) {
    let mut words = MaybeUninit::<Unpacked<UNPACKED_BYTES>>::uninit();
    let words = words.as_mut_ptr().cast::<u8>();
    let parts = args.steps.div_ceil(UNPACKED_BYTES / (args.rows * 2 * GROUP));
    for part in 0..parts {
        let steps = args.steps * part / parts..args.steps * (part + 1) / parts;
        let row_bytes = steps.len() * 2 * GROUP;
        // SAFETY: the steps and rows are those of `args`; those of a part fit `words`.
        unsafe {
            for row in 0..args.rows {
                split_row::<V>(args.x.add(row * args.x_bytes), steps.clone(), words.add(row * row_bytes));
            }
            for panel in 0..args.panels {
                let mut row = 0;
                while row < args.rows {
                    let rows = tile_rows::<F, T, SPLIT>(args.rows - row);
                    let words = words.add(row * row_bytes);
                    let tile =
                        Tile { panel, row, rows, steps: steps.clone(), values: std::ptr::null(), words };
                    tile_of::<V, F, T, SPLIT>(args, &tile);
                    row += rows;
                }
            }
        }
    }
}

/// Some steps of a row as i16.
#[inline(always)]
unsafe fn split_row<V: Lanes>(x: *const u8, steps: Range<usize>, to: *mut u8) {
    for (i, step) in steps.enumerate() {
        // SAFETY: the caller's duty.
        unsafe { V::split_words(x.add(step * GROUP), true, to.add(i * 2 * GROUP)) }
    }
}

/// Bytes of unpacked values of a panel: with the rows of a tile they fit the first-level cache.
const UNPACKED_BYTES: usize = 18 * 1024;

/// Values of a panel or of rows, unpacked.
#[repr(align(64))]
struct Unpacked<const BYTES: usize>([u8; BYTES]);

/// Matmul with the values of each panel unpacked once for all rows, a part of the steps at a time: to bytes where
/// sums fit i16, to i16 where not, and then the rows' values too. Sums wait in the output from part to part.
#[inline(always)]
unsafe fn matmul_unpacked<V: Lanes, F: BlockFormat, const T: usize>(args: &MatmulArgs) {
    let in_i16 = F::QUADS_IN_I16 > 0;
    let step_bytes = F::UNPACKED_STEP;
    // What is read was written before: zeroing these takes 10 % of the time of 8 rows.
    let mut values = MaybeUninit::<Unpacked<UNPACKED_BYTES>>::uninit();
    let mut words = MaybeUninit::<Unpacked<{ 12 * UNPACKED_BYTES / LANES }>>::uninit();
    let (values, words) = (values.as_mut_ptr().cast::<u8>(), words.as_mut_ptr().cast::<u8>());
    let parts = args.steps.div_ceil(UNPACKED_BYTES / step_bytes);
    for panel in 0..args.panels {
        for part in 0..parts {
            let steps = args.steps * part / parts..args.steps * (part + 1) / parts;
            // SAFETY: the steps and rows are those of `args`; the steps of a part fit `values`, T rows of it `words`.
            unsafe {
                for (i, step) in steps.clone().enumerate() {
                    let panel = args.weights.add(panel * args.panel_bytes);
                    unpack::<V, F>(panel, step, in_i16, args.table, values.add(i * step_bytes));
                }
                let mut row = 0;
                while row < args.rows {
                    let rows = tile_rows::<F::Unpacked, T, UNPACKED>(args.rows - row);
                    if !in_i16 {
                        for m in 0..rows {
                            let x = args.x.add((row + m) * args.x_bytes);
                            split_row::<V>(x, steps.clone(), words.add(m * steps.len() * 2 * GROUP));
                        }
                    }
                    tile_of::<V, F::Unpacked, T, UNPACKED>(
                        args,
                        &Tile { panel, row, rows, steps: steps.clone(), values, words },
                    );
                    row += rows;
                }
            }
        }
    }
}

/// Unpacks a step: its values, then the scales of both blocks, divided by [`BlockFormat::FACTOR`], and the minima, as f32.
#[inline(always)]
unsafe fn unpack<V: Lanes, F: BlockFormat>(
    panel: *const u8,
    step: usize,
    in_i16: bool,
    table: *const u8,
    to: *mut u8,
) {
    let (numbers, values) = place_of(step, F::NUMBERS_BYTES, F::STEP_BYTES);
    let (numbers, values) = (panel.wrapping_add(numbers), panel.wrapping_add(values + F::VALUES_AT));
    let index = step % (SUPER_BLOCK / GROUP);
    // SAFETY: every type has a table, of zeros where it is not used.
    let table = unsafe { V::load_u8x4(table) };
    macro_rules! groups {
        ($block:literal, $($t:literal)*) => {$(
            let i = 8 * $block + $t;
            prefetch_ahead::<F>(panel, step, i);
            let four = F::four_values::<V, $block>(values, $t, true, table);
            if in_i16 {
                V::store_u8x4(four, to.add(i * 4 * LANES));
            } else {
                let [even, odd] = V::words_of(four);
                V::store_words(even, to.add(i * 8 * LANES));
                V::store_words(odd, to.add(i * 8 * LANES + 4 * LANES));
            }
        )*};
    }
    // SAFETY: the caller's duty.
    unsafe {
        groups!(0, 0 1 2 3 4 5 6 7);
        groups!(1, 0 1 2 3 4 5 6 7);
        let to: *mut f32 = to.add(F::UNPACKED_VALUES).cast();
        let mins = to.add(2 * F::SCALES * LANES);
        scale::<V, F, 0, 0>(numbers, index).store(to);
        scale::<V, F, 1, 0>(numbers, index).store(to.add(F::SCALES * LANES));
        if F::SCALES > 1 {
            scale::<V, F, 0, 1>(numbers, index).store(to.add(LANES));
            scale::<V, F, 1, 1>(numbers, index).store(to.add(3 * LANES));
        }
        if F::HAS_MINS {
            F::min::<V, 0, 0>(numbers, index).store(mins);
            F::min::<V, 1, 0>(numbers, index).store(mins.add(F::SCALES * LANES));
        }
        if F::HAS_MINS && F::SCALES > 1 {
            F::min::<V, 0, 1>(numbers, index).store(mins.add(LANES));
            F::min::<V, 1, 1>(numbers, index).store(mins.add(3 * LANES));
        }
    }
}

/// Scale `P` of block `B`, for integers that were multiplied by [`BlockFormat::FACTOR`].
#[inline(always)]
unsafe fn scale<V: Lanes, F: BlockFormat, const B: usize, const P: usize>(
    numbers: *const u8,
    index: usize,
) -> V {
    // SAFETY: the caller's duty.
    unsafe { F::scale::<V, B, P>(numbers, index).mul(V::splat(1.0 / f32::from(F::FACTOR))) }
}

/// Rows of the next tile: the largest that is compiled and not more than are left.
#[inline(always)]
fn tile_rows<F: BlockFormat, const T: usize, const MODE: u8>(left: usize) -> usize {
    (1..=left.min(T)).rev().find(|&rows| has_size::<F, T, MODE>(rows)).unwrap_or(1)
}

/// Whether there is a tile of so many rows: each costs seconds to compile, for each instruction set. Formats that most files
/// have get all; unpacked panels the even ones, because a second tile there costs little; the others those that make up any
/// number of rows out of two or three.
const fn has_size<F: BlockFormat, const T: usize, const MODE: u8>(rows: usize) -> bool {
    match (F::ALL_TILES, MODE) {
        (false, _) => rows == T || rows.is_power_of_two(),
        (true, UNPACKED) => rows == T || rows <= 4 || rows.is_multiple_of(2),
        (true, _) => true,
    }
}

/// At most T rows from `row` on, by one panel, for some of the steps.
struct Tile {
    panel: usize,
    row: usize,
    rows: usize,
    steps: Range<usize>,
    /// The unpacked values of these steps.
    values: *const u8,
    /// The values of the rows as i16, where those of the panel are.
    words: *const u8,
}

/// Whether a tile of so many rows is ever picked.
const fn has_tile<V: Lanes, F: BlockFormat, const T: usize, const MODE: u8>(rows: usize) -> bool {
    let is_used = match MODE {
        UNPACKED => true,
        SPLIT => split_from_rows::<V, F>() < usize::MAX,
        _ => rows < unpack_from_rows::<V, F>() && rows < split_from_rows::<V, F>(),
    };
    rows <= T && is_used && has_size::<F, T, MODE>(rows)
}

/// Picks the tile compiled for the number of its rows.
#[inline(always)]
unsafe fn tile_of<V: Lanes, F: BlockFormat, const T: usize, const MODE: u8>(args: &MatmulArgs, tile: &Tile) {
    macro_rules! pick {
        ($($m:literal)*) => {
            match tile.rows {
                // SAFETY: the caller's duty.
                $($m if const { has_tile::<V, F, T, MODE>($m) } => unsafe {
                    block_tile::<V, F, $m, MODE>(args, tile)
                },)*
                rows => unreachable!("{rows} rows of at most {T}"),
            }
        };
    }
    pick!(1 2 3 4 5 6 7 8 9 10 11 12)
}

/// How far ahead weights are prefetched: 4 KiB, because hardware prefetch stops at page borders.
const AHEAD: usize = 4096;

/// Prefetches, before group `i` (0..16) of a step is used, a sixteenth of a step and of its part of the numbers that steps
/// share: a whole step's prefetches at once would delay the loads of this step.
#[inline(always)]
fn prefetch_ahead<F: BlockFormat>(panel: *const u8, step: usize, i: usize) {
    let bytes = |groups: usize| F::BYTES_PER_STEP * groups / 16 / 64 * 64;
    prefetch_l2(panel.wrapping_add(step * F::BYTES_PER_STEP + AHEAD + bytes(i)), bytes(i + 1) - bytes(i));
}

/// M rows by one panel. Per block: 8 exact integer dot products, then sum += int * weight scale * activation scale.
#[inline(always)]
unsafe fn block_tile<V: Lanes, F: BlockFormat, const M: usize, const MODE: u8>(
    args: &MatmulArgs,
    tile: &Tile,
) {
    let &Tile { panel, row, values: mut unpacked, words, .. } = tile;
    let in_i16 = V::SUMS_IN_I16 && F::QUADS_IN_I16 > 0;
    let is_unpacked = MODE == UNPACKED;
    let as_words = MODE != STORED && !in_i16;
    let converts = in_i16 && F::HAS_MINS;
    let signed = V::SIGNED && !F::HAS_MINS && !F::PLUS_ONE;
    let is_simple = !F::HAS_MINS && F::SCALES == 1;
    let keeps_order = V::TILES_KEEP_ORDER || M == 1 && (is_simple || V::ROWS_KEEP_ORDER);
    // SAFETY: panel < panels and row + M <= rows, so every address lies in the buffers of `args`.
    unsafe {
        let weights = args.weights.add(panel * args.panel_bytes);
        let table = V::load_u8x4(args.table);
        let out = args.out.add(row * args.out_stride + panel * LANES);
        // A pointer for every third row, the two after it by an index: twelve pointers do not fit the registers.
        let third_rows = |first: *const u8, stride: usize| -> [*const u8; 4] {
            std::array::from_fn(|third| first.add((3 * third).min(M - 1) * stride))
        };
        let row_of = |from: &[*const u8; 4], m: usize, stride: usize| from[m / 3].add(m % 3 * stride);
        let rows = args.x.add(row * args.x_bytes);
        let (first, x_stride, x_step) = if as_words {
            (words, tile.steps.len() * 2 * GROUP, 2 * GROUP)
        } else {
            (rows.add(tile.steps.start * GROUP), args.x_bytes, GROUP)
        };
        let mut x = third_rows(first, x_stride);
        // A step's scales; its compensations and block sums follow at distances that are the same for all rows.
        let mut numbers = third_rows(rows.add(x_scales_at(args.steps) + 8 * tile.steps.start), args.x_bytes);
        let mut sums = [V::splat(0.0); M];
        if tile.steps.start > 0 {
            for (m, sum) in sums.iter_mut().enumerate() {
                *sum = V::load(out.add(m * args.out_stride));
            }
        }
        for step in tile.steps.clone() {
            let (numbers_at, values_at) = place_of(step, F::NUMBERS_BYTES, F::STEP_BYTES);
            let (shared, values_at) = (weights.add(numbers_at), weights.add(values_at + F::VALUES_AT));
            let index = step % (SUPER_BLOCK / GROUP);
            let scales: *const f32 = unpacked.wrapping_add(F::UNPACKED_VALUES).cast();
            let number = |m: usize, at: usize| row_of(&numbers, m, args.x_bytes).add(at);
            let mut ints = [V::int_splat(BIASED_ZERO); M];
            let mut words = [V::words_zero(); M];
            macro_rules! quads {
                ($block:literal, $part:literal, $($t:literal)*) => {$(
                    if $t * F::SCALES / 8 == $part && as_words {
                        const AT: usize = 4 * (8 * $block + $t);
                        let [even, odd] = if is_unpacked {
                            let at = unpacked.add(2 * LANES * AT);
                            [V::load_words(at), V::load_words(at.add(4 * LANES))]
                        } else {
                            prefetch_ahead::<F>(weights, step, 8 * $block + $t);
                            V::words_of(F::four_values::<V, $block>(values_at, $t, true, table))
                        };
                        for (weights, x_at) in [(even, AT), (odd, GROUP + AT)] {
                            for m in 0..M {
                                let x = row_of(&x, m, x_stride).add(x_at).cast::<u32>().read_unaligned();
                                ints[m] = V::dot_words(ints[m], weights, x);
                            }
                        }
                    } else if $t * F::SCALES / 8 == $part {
                        let values = if is_unpacked {
                            V::load_u8x4(unpacked.add((8 * $block + $t) * 4 * LANES))
                        } else {
                            prefetch_ahead::<F>(weights, step, 8 * $block + $t);
                            let values = F::four_values::<V, $block>(values_at, $t, in_i16, table);
                            if signed { V::to_signed(values) } else { values }
                        };
                        for m in 0..M {
                            let at = row_of(&x, m, x_stride).add($block * BLOCK + 4 * $t);
                            let x = at.cast::<u32>().read_unaligned();
                            if in_i16 {
                                words[m] = V::dot2(words[m], values, x);
                            } else {
                                ints[m] = V::dot4(ints[m], values, x);
                            }
                            if in_i16 && ($t + 1) % F::QUADS_IN_I16 == 0 {
                                ints[m] = V::add_words(ints[m], words[m], F::FACTOR);
                                words[m] = V::words_zero();
                            }
                        }
                        if keeps_order {
                            V::keep_order();
                        }
                    }
                )*};
            }
            macro_rules! part {
                ($block:literal, $part:literal) => {
                    for m in 0..M {
                        let compensation = compensation::<V, F, $part>(number(m, 4 * $block), args.steps);
                        ints[m] = V::int_splat(if converts { 0 } else { compensation });
                    }
                    // Unrolled, so that every offset and every prefetch is a constant of the loop over steps.
                    quads!($block, $part, 0 1 2 3 4 5 6 7);
                    let scale = if is_unpacked {
                        V::load(scales.add(($block * F::SCALES + $part) * LANES))
                    } else {
                        scale::<V, F, $block, $part>(shared, index)
                    };
                    for m in 0..M {
                        let x_scale = V::splat(number(m, 4 * $block).cast::<f32>().read_unaligned());
                        let product = if converts {
                            V::int_to_float(ints[m]).mul(scale)
                        } else {
                            V::scaled(ints[m], scale, V::minus_bias(scale))
                        };
                        sums[m] = product.mul_add(x_scale, sums[m]);
                    }
                    if F::HAS_MINS {
                        let min = if is_unpacked {
                            V::load(scales.add((2 * F::SCALES + $block * F::SCALES + $part) * LANES))
                        } else {
                            F::min::<V, $block, $part>(shared, index)
                        };
                        let sums_at = x_sums_at(args.steps, F::SCALES, $part) + 4 * $block;
                        for m in 0..M {
                            let sum = number(m, sums_at).cast::<f32>();
                            sums[m] = min.mul_add(V::splat(sum.read_unaligned()), sums[m]);
                        }
                    }
                };
            }
            macro_rules! block {
                ($block:literal) => {
                    part!($block, 0);
                    if F::SCALES > 1 {
                        part!($block, 1);
                    }
                };
            }
            block!(0);
            block!(1);
            unpacked = unpacked.wrapping_add(F::UNPACKED_STEP);
            for third in 0..4 {
                x[third] = x[third].add(x_step);
                numbers[third] = numbers[third].add(8);
            }
        }
        for (m, sum) in sums.iter().enumerate() {
            sum.store(out.add(m * args.out_stride));
        }
    }
}

/// Where a row has scale * (sum of the values) of part `part` of a block; counted from its scales.
const fn x_sums_at(steps: usize, parts: usize, part: usize) -> usize {
    if parts == 1 { 16 * steps } else { (40 + 8 * part) * steps }
}

/// What the integer sums of part `P` of a block start from; a row's parts are described at
/// [`super::quantize::x_row_bytes`].
///
/// # Safety
/// `numbers` are those of the block.
#[inline(always)]
unsafe fn compensation<V: Lanes, F: BlockFormat, const P: usize>(numbers: *const u8, steps: usize) -> i32 {
    let at = match (V::SIGNED || F::HAS_MINS, F::SCALES) {
        _ if F::PLUS_ONE => 56 * steps,
        (true, _) => return BIASED_ZERO,
        (false, 1) => 8 * steps,
        (false, _) => (24 + 8 * P) * steps,
    };
    // SAFETY: the caller's duty.
    unsafe { numbers.add(at).cast::<i32>().read_unaligned() }
}
