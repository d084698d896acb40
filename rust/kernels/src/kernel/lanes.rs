//! Sixteen f32 lanes: the operations in which every algorithm is written.
//!
//! A file in `arch/` implements [`Lanes`] with the widest registers of its ISA (one zmm, two ymm, or an array). The
//! methods are `#[inline(always)]` and are called in `#[target_feature]` functions of the same file, where the intrinsics
//! may be used; that is why they are `unsafe`.

pub use crate::quant::LANES;

/// Sixteen f32 values, with the integers that the 32-block formats need.
///
/// # Safety
/// Every method requires the CPU features of the implementing ISA; pointers must be valid for 16 values (no alignment).
pub unsafe trait Lanes: Copy {
    /// All lanes `value`.
    unsafe fn splat(value: f32) -> Self;
    /// 16 consecutive f32.
    unsafe fn load(from: *const f32) -> Self;
    /// 16 consecutive IEEE binary16 values, widened exactly.
    unsafe fn load_f16(from: *const u16) -> Self;
    /// 16 consecutive signed bytes.
    unsafe fn load_i8(from: *const i8) -> Self;
    /// 16 integers of four bits: from bit `at` (0 or 4) of 16 bytes on.
    unsafe fn load_u4(from: *const u8, at: usize) -> Self;
    /// 16 integers of six bits: the low four from bit `low_at` (0 or 4) of 16 bytes on, the upper two from bit `high_at`
    /// (an even one) of 16 others.
    unsafe fn load_u6(low: *const u8, low_at: usize, high: *const u8, high_at: usize) -> Self;
    /// Write 16 consecutive f32.
    unsafe fn store(self, to: *mut f32);
    /// Round to nearest even and write 16 consecutive binary16 values.
    unsafe fn store_f16(self, to: *mut u16);
    /// Lane i of row j becomes lane j of row i.
    unsafe fn transpose(rows: [Self; LANES]) -> [Self; LANES];
    /// self * b + c, fused where the ISA has it (each ISA always does the same).
    unsafe fn mul_add(self, b: Self, c: Self) -> Self;
    /// self + b.
    unsafe fn add(self, b: Self) -> Self;
    /// self - b.
    unsafe fn sub(self, b: Self) -> Self;
    /// self * b.
    unsafe fn mul(self, b: Self) -> Self;
    /// self / b.
    unsafe fn div(self, b: Self) -> Self;
    /// The larger of each lane: `b` where either is NaN. A NaN survives as `b` and is lost as `self`: so bounds come first
    /// (`bound.max(value)`), and with a running maximum (`value.max(running)`) NaN must be detected elsewhere.
    unsafe fn max(self, b: Self) -> Self;
    /// The smaller of each lane: `b` where either is NaN, as in [`Lanes::max`].
    unsafe fn min(self, b: Self) -> Self;
    /// The sum of all lanes, always by the same tree: 8, 4, 2, 1.
    unsafe fn reduce_add(self) -> f32;
    /// The largest lane; any number where one is NaN.
    unsafe fn reduce_max(self) -> f32;
    /// Round to the nearest integer, ties to even.
    unsafe fn round(self) -> Self;
    /// self * 2^n for integral n >= -150; 0 where n <= -127. NaN if self is NaN, for any n.
    unsafe fn ldexp(self, n: Self) -> Self;
    /// Sixteen i32 sums.
    type Int: Copy;
    /// Sixteen groups of four unsigned bytes, the operands of [`Lanes::dot4`].
    type U8x4: Copy;
    /// All sums `value`.
    unsafe fn int_splat(value: i32) -> Self::Int;
    /// 64 consecutive bytes.
    unsafe fn load_u8x4(from: *const u8) -> Self::U8x4;
    /// Writes 64 consecutive bytes.
    unsafe fn store_u8x4(bytes: Self::U8x4, to: *mut u8);
    /// `byte >> by & mask` of each byte; `by` < 8, and the mask has no bit that was shifted in from the next byte.
    unsafe fn shift_right(bytes: Self::U8x4, by: usize, mask: u8) -> Self::U8x4;
    /// `byte << by & mask`, with the same conditions.
    unsafe fn shift_left(bytes: Self::U8x4, by: usize, mask: u8) -> Self::U8x4;
    /// The bits of both.
    unsafe fn or(a: Self::U8x4, b: Self::U8x4) -> Self::U8x4;
    /// The byte of a table that each byte of `indices` (below 16) names; the table is there four times.
    unsafe fn lookup(table: Self::U8x4, indices: Self::U8x4) -> Self::U8x4;
    /// Whether [`Lanes::dot4`] takes signed bytes.
    const SIGNED: bool = false;
    /// Signed bytes of bytes that are stored as value + 128; only where [`Lanes::SIGNED`].
    #[inline(always)]
    unsafe fn to_signed(bytes: Self::U8x4) -> Self::U8x4 {
        bytes
    }
    /// acc + the sum of the products of each group of four with the four signed bytes of `x` (exact: never saturates).
    unsafe fn dot4(acc: Self::Int, bytes: Self::U8x4, x: u32) -> Self::Int;
    /// No instruction, but a point that the compiler moves no load across: without such points it loads the weights of a
    /// whole step first, and spills them.
    unsafe fn keep_order() {}
    /// Whether tiles of several rows call [`Lanes::keep_order`]: where that was measured to pay.
    const TILES_KEEP_ORDER: bool = false;
    /// Whether a single row calls [`Lanes::keep_order`] in formats with minima or several scales. In other formats it always
    /// does.
    const ROWS_KEEP_ORDER: bool = Self::TILES_KEEP_ORDER;
    /// Whether products of bytes below 64 are summed as i16 first, by [`Lanes::dot2`]: where `dot4` is many instructions.
    const SUMS_IN_I16: bool = false;
    /// The number of rows from which a panel is unpacked once for all rows, because unpacking the panel for each tile of rows
    /// costs more.
    const UNPACK_FROM_ROWS: usize = usize::MAX;
    /// The number of rows from which rows are converted to i16 once, where products of bytes do not fit sums in i16.
    const SPLIT_FROM_ROWS: usize = 2;
    /// Two i16 sums for each of the sixteen i32 sums. Their functions are called only where [`Lanes::SUMS_IN_I16`]
    /// or [`Lanes::UNPACK_FROM_ROWS`] say so.
    type Words: Copy;
    /// All sums 0.
    unsafe fn words_zero() -> Self::Words;
    /// acc + the sums of the products of two bytes each with two signed bytes of `x`; only where they fit i16.
    #[inline(always)]
    unsafe fn dot2(_acc: Self::Words, _bytes: Self::U8x4, _x: u32) -> Self::Words {
        unreachable!("no sums in i16")
    }
    /// acc + factor * (the sum of both words).
    #[inline(always)]
    unsafe fn add_words(_acc: Self::Int, _words: Self::Words, _factor: i16) -> Self::Int {
        unreachable!("no sums in i16")
    }
    /// Writes 64 bytes as i16: first those with even numbers, then those with odd ones.
    #[inline(always)]
    unsafe fn split_words(_from: *const u8, _signed: bool, _to: *mut u8) {
        unreachable!("no sums in i16")
    }
    /// Writes 64 bytes of i16.
    #[inline(always)]
    unsafe fn store_words(_words: Self::Words, _to: *mut u8) {
        unreachable!("no sums in i16")
    }
    /// 64 bytes of i16.
    #[inline(always)]
    unsafe fn load_words(_from: *const u8) -> Self::Words {
        unreachable!("no sums in i16")
    }
    /// Unsigned bytes as i16: those with even numbers, and those with odd ones.
    #[inline(always)]
    unsafe fn words_of(_bytes: Self::U8x4) -> [Self::Words; 2] {
        unreachable!("no sums in i16")
    }
    /// acc + the sum of the products of each pair of words with the two words of `x`.
    #[inline(always)]
    unsafe fn dot_words(_acc: Self::Int, _words: Self::Words, _x: u32) -> Self::Int {
        unreachable!("no sums in i16")
    }
    /// The sums as f32, exact below 2^24; only where [`Lanes::SUMS_IN_I16`].
    #[inline(always)]
    unsafe fn int_to_float(_sums: Self::Int) -> Self {
        unreachable!("no sums in i16")
    }
    /// (sums - [`BIASED_ZERO`]) * scale, rounded once; `minus_bias` is [`Self::minus_bias`] of the scale.
    unsafe fn scaled(sums: Self::Int, scale: Self, minus_bias: Self) -> Self;
    /// What one fused multiply-add subtracts again: -1.5 * 2^23 * scale, exact for a scale that was an f16.
    #[inline(always)]
    unsafe fn minus_bias(scale: Self) -> Self {
        // SAFETY: the caller's duty.
        unsafe { scale.mul(Self::splat(-ROUND_BIAS)) }
    }
    /// Round to nearest even and write 16 signed bytes; the values are in -127..=127.
    unsafe fn store_i8(self, to: *mut i8);
    /// acc + even product + odd product of 16 pairs of bf16: `weights` is 16 pairs, `pair` one pair for all lanes.
    unsafe fn dot_bf16(acc: Self, weights: *const u32, pair: u32) -> Self;
    /// Whether bf16 panels are made f32 once for many rows: where `dot_bf16` is two f32 products, and that was measured to
    /// pay. The next two functions are called only there.
    const WIDENS_BF16: bool = false;
    /// 16 consecutive bf16.
    #[inline(always)]
    unsafe fn load_bf16(_from: *const u16) -> Self {
        unreachable!("not widened")
    }
    /// Writes the low ones of 16 pairs of bf16 as f32, then the high ones.  // to [2, 16]
    #[inline(always)]
    unsafe fn widen_pairs(_from: *const u32, _to: *mut f32) {
        unreachable!("not widened")
    }
}

/// 1.5 * 2^23: an f32 of this size has no fraction, and its low bits count units.
pub const ROUND_BIAS: f32 = 12_582_912.0;
/// What integer sums start from: below 2^22 the bits of the sum are those of the f32 `sum + ROUND_BIAS`, so no
/// conversion is needed.
pub const BIASED_ZERO: i32 = ROUND_BIAS.to_bits() as i32;

/// The f32 whose upper half is the low 16 bits of `pair`.
#[inline(always)]
pub fn bf16_low(pair: u32) -> f32 {
    f32::from_bits(pair << 16)
}

/// The f32 whose upper half is the high 16 bits of `pair`.
#[inline(always)]
pub fn bf16_high(pair: u32) -> f32 {
    f32::from_bits(pair & 0xffff_0000)
}

/// Reduces 16 values to one, by the tree 8, 4, 2, 1.
#[inline(always)]
pub fn tree(mut lanes: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] = f(lanes[i], lanes[i + width]);
        }
        width /= 2;
    }
    lanes[0]
}
