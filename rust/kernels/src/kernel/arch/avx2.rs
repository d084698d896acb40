//! AVX2 + FMA + F16C, with byte dot products (AVX-VNNI) where the CPU has them: two ymm per sixteen lanes.

use super::super::lanes::{LANES, Lanes, ROUND_BIAS};
use super::super::table::{Isa, kernels};
use super::six_bits::{four_bits, six_bits};
use std::arch::x86_64::*;
use std::marker::PhantomData;

/// 2^n for integral n, 0 below -126.
///
/// # Safety
/// Needs avx2.
#[inline(always)]
unsafe fn pow2(n: __m256) -> __m256 {
    // SAFETY: the caller's duty.
    unsafe {
        let biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
        let clamped =
            _mm256_min_epi32(_mm256_max_epi32(biased, _mm256_setzero_si256()), _mm256_set1_epi32(254));
        _mm256_castsi256_ps(_mm256_slli_epi32::<23>(clamped))
    }
}

/// acc + the products of eight groups of four unsigned bytes with the even and odd bytes of one group, as i16
/// (`maddubs` would saturate for weights up to 255).
///
/// # Safety
/// Needs avx2.
#[inline(always)]
unsafe fn dot_half(acc: __m256i, w: __m256i, x_even: __m256i, x_odd: __m256i) -> __m256i {
    // SAFETY: the caller's duty.
    unsafe {
        let even = _mm256_madd_epi16(_mm256_and_si256(w, _mm256_set1_epi16(0xff)), x_even);
        let odd = _mm256_madd_epi16(_mm256_srli_epi16::<8>(w), x_odd);
        _mm256_add_epi32(acc, _mm256_add_epi32(even, odd))
    }
}

/// The same words, computed before what comes after: no instruction.
#[inline]
#[target_feature(enable = "avx2")]
fn in_order([mut low, mut high]: [__m256i; 2]) -> [__m256i; 2] {
    // SAFETY: a comment.
    unsafe {
        std::arch::asm!("/* {} {} */", inout(ymm_reg) low, inout(ymm_reg) high, options(nomem, nostack, preserves_flags));
    }
    [low, high]
}

/// acc + low products + high products of eight pairs of bf16.
///
/// # Safety
/// Needs avx2 and fma; `at` is valid for eight pairs.
#[inline(always)]
unsafe fn dot_bf16_half(acc: __m256, at: *const u32, x_low: __m256, x_high: __m256) -> __m256 {
    // SAFETY: the caller's duty.
    unsafe {
        let w = _mm256_loadu_si256(at.cast());
        let low = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(w));
        let high = _mm256_castsi256_ps(_mm256_and_si256(w, _mm256_set1_epi32(0xffff_0000_u32 as i32)));
        _mm256_fmadd_ps(high, x_high, _mm256_fmadd_ps(low, x_low, acc))
    }
}

/// Lane i of row j becomes lane j of row i.
///
/// # Safety
/// Needs avx2.
#[inline(always)]
unsafe fn transpose_half(rows: [__m256; 8]) -> [__m256; 8] {
    // SAFETY: the caller's duty.
    unsafe {
        // Of each four rows: column 4 l + c in half l of the c-th.
        let mut fours = rows;
        for row in [0, 4] {
            let (a, b, c, d) = (rows[row], rows[row + 1], rows[row + 2], rows[row + 3]);
            let low = (_mm256_unpacklo_ps(a, b), _mm256_unpacklo_ps(c, d));
            let high = (_mm256_unpackhi_ps(a, b), _mm256_unpackhi_ps(c, d));
            let low = (_mm256_castps_pd(low.0), _mm256_castps_pd(low.1));
            let high = (_mm256_castps_pd(high.0), _mm256_castps_pd(high.1));
            fours[row] = _mm256_castpd_ps(_mm256_unpacklo_pd(low.0, low.1));
            fours[row + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(low.0, low.1));
            fours[row + 2] = _mm256_castpd_ps(_mm256_unpacklo_pd(high.0, high.1));
            fours[row + 3] = _mm256_castpd_ps(_mm256_unpackhi_pd(high.0, high.1));
        }
        let mut out = rows;
        for c in 0..4 {
            out[c] = _mm256_permute2f128_ps::<0x20>(fours[c], fours[4 + c]);
            out[4 + c] = _mm256_permute2f128_ps::<0x31>(fours[c], fours[4 + c]);
        }
        out
    }
}

/// Sixteen lanes, with the dot products of `D`.
#[derive(Clone, Copy)]
pub(super) struct Pair<D>(__m256, __m256, PhantomData<D>);

#[inline(always)]
fn ymm<D>(low: __m256, high: __m256) -> Pair<D> {
    Pair(low, high, PhantomData)
}

/// The dot products in which the CPUs with AVX2 differ.
pub(super) trait Dots: Copy {
    /// See [`Lanes::SUMS_IN_I16`].
    const SUMS_IN_I16: bool;
    /// acc + the products of eight times four unsigned bytes with the four signed bytes of `x`.
    ///
    /// # Safety
    /// The features of the implementing type.
    unsafe fn dot4(acc: [__m256i; 2], bytes: [__m256i; 2], x: u32) -> [__m256i; 2];
}

/// No dot products: Haswell to Comet Lake, Zen to Zen 3.
#[derive(Clone, Copy)]
pub(super) struct Base;
/// AVX-VNNI: Alder Lake and later.
#[derive(Clone, Copy)]
pub(super) struct Vnni;

impl Dots for Base {
    const SUMS_IN_I16: bool = true;
    #[inline(always)]
    unsafe fn dot4(acc: [__m256i; 2], bytes: [__m256i; 2], x: u32) -> [__m256i; 2] {
        // SAFETY: the caller's duty.
        unsafe {
            let x = _mm256_set1_epi32(x as i32);
            let x_even = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(x));
            let x_odd = _mm256_srai_epi16::<8>(x);
            [dot_half(acc[0], bytes[0], x_even, x_odd), dot_half(acc[1], bytes[1], x_even, x_odd)]
        }
    }
}

impl Dots for Vnni {
    const SUMS_IN_I16: bool = false;
    #[inline(always)]
    unsafe fn dot4(acc: [__m256i; 2], bytes: [__m256i; 2], x: u32) -> [__m256i; 2] {
        // SAFETY: the caller's duty.
        unsafe {
            let x = _mm256_set1_epi32(x as i32);
            [_mm256_dpbusd_avx_epi32(acc[0], bytes[0], x), _mm256_dpbusd_avx_epi32(acc[1], bytes[1], x)]
        }
    }
}

// SAFETY: every method needs avx2, fma, f16c and the features of `D` only, which the trait makes the caller's duty; all memory access is
// unaligned and within the 16 values that the trait demands.
unsafe impl<D: Dots> Lanes for Pair<D> {
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: see the impl.
        let v = unsafe { _mm256_set1_ps(value) };
        ymm(v, v)
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: see the impl.
        unsafe { ymm(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))) }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        // SAFETY: see the impl.
        unsafe {
            let low = _mm_loadu_si128(from.cast());
            let high = _mm_loadu_si128(from.add(8).cast());
            ymm(_mm256_cvtph_ps(low), _mm256_cvtph_ps(high))
        }
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self {
        // SAFETY: see the impl.
        unsafe {
            let bytes = _mm_loadu_si128(from.cast());
            let high = _mm_unpackhi_epi64(bytes, bytes);
            ymm(
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(high)),
            )
        }
    }
    #[inline(always)]
    unsafe fn load_u4(from: *const u8, at: usize) -> Self {
        // SAFETY: see the impl.
        unsafe {
            let bytes = four_bits(from, at);
            let upper = _mm_unpackhi_epi64(bytes, bytes);
            ymm(
                _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)),
                _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(upper)),
            )
        }
    }
    #[inline(always)]
    unsafe fn load_u6(low: *const u8, low_at: usize, high: *const u8, high_at: usize) -> Self {
        // SAFETY: see the impl.
        unsafe {
            let bytes = six_bits(low, low_at, high, high_at);
            let upper = _mm_unpackhi_epi64(bytes, bytes);
            ymm(
                _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)),
                _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(upper)),
            )
        }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: see the impl.
        unsafe {
            _mm256_storeu_ps(to, self.0);
            _mm256_storeu_ps(to.add(8), self.1);
        }
    }
    #[inline(always)]
    unsafe fn store_f16(self, to: *mut u16) {
        // SAFETY: see the impl.
        unsafe {
            _mm_storeu_si128(to.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0));
            _mm_storeu_si128(to.add(8).cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.1));
        }
    }
    #[inline(always)]
    unsafe fn transpose(rows: [Self; LANES]) -> [Self; LANES] {
        // SAFETY: see the impl.
        unsafe {
            let mut out = rows;
            let mut parts = [[_mm256_setzero_ps(); 8]; 4];
            for row in 0..8 {
                (parts[0][row], parts[1][row]) = (rows[row].0, rows[8 + row].0);
                (parts[2][row], parts[3][row]) = (rows[row].1, rows[8 + row].1);
            }
            let (a, b) = (transpose_half(parts[0]), transpose_half(parts[1]));
            let (c, d) = (transpose_half(parts[2]), transpose_half(parts[3]));
            for lane in 0..8 {
                (out[lane], out[8 + lane]) = (ymm(a[lane], b[lane]), ymm(c[lane], d[lane]));
            }
            out
        }
    }
    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        // SAFETY: see the impl.
        unsafe { ymm(_mm256_fmadd_ps(self.0, b.0, c.0), _mm256_fmadd_ps(self.1, b.1, c.1)) }
    }
    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        // SAFETY: see the impl.
        unsafe { ymm(_mm256_add_ps(self.0, b.0), _mm256_add_ps(self.1, b.1)) }
    }
    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        // SAFETY: see the impl.
        unsafe { ymm(_mm256_sub_ps(self.0, b.0), _mm256_sub_ps(self.1, b.1)) }
    }
    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        // SAFETY: see the impl.
        unsafe { ymm(_mm256_mul_ps(self.0, b.0), _mm256_mul_ps(self.1, b.1)) }
    }
    #[inline(always)]
    unsafe fn div(self, b: Self) -> Self {
        // SAFETY: see the impl.
        unsafe { ymm(_mm256_div_ps(self.0, b.0), _mm256_div_ps(self.1, b.1)) }
    }
    #[inline(always)]
    unsafe fn max(self, b: Self) -> Self {
        // SAFETY: see the impl.
        unsafe { ymm(_mm256_max_ps(self.0, b.0), _mm256_max_ps(self.1, b.1)) }
    }
    #[inline(always)]
    unsafe fn min(self, b: Self) -> Self {
        // SAFETY: see the impl.
        unsafe { ymm(_mm256_min_ps(self.0, b.0), _mm256_min_ps(self.1, b.1)) }
    }
    #[inline(always)]
    unsafe fn reduce_add(self) -> f32 {
        // SAFETY: see the impl.
        unsafe {
            let eight = _mm256_add_ps(self.0, self.1);
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }
    #[inline(always)]
    unsafe fn reduce_max(self) -> f32 {
        // SAFETY: see the impl.
        unsafe {
            let eight = _mm256_max_ps(self.0, self.1);
            let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        // SAFETY: see the impl.
        unsafe { ymm(_mm256_round_ps::<NEAREST>(self.0), _mm256_round_ps::<NEAREST>(self.1)) }
    }
    #[inline(always)]
    unsafe fn ldexp(self, n: Self) -> Self {
        // SAFETY: see the impl.
        unsafe { ymm(_mm256_mul_ps(self.0, pow2(n.0)), _mm256_mul_ps(self.1, pow2(n.1))) }
    }
    type Int = [__m256i; 2];
    type U8x4 = [__m256i; 2];
    #[inline(always)]
    unsafe fn int_splat(value: i32) -> Self::Int {
        // SAFETY: see the impl.
        unsafe { [_mm256_set1_epi32(value); 2] }
    }
    #[inline(always)]
    unsafe fn load_u8x4(from: *const u8) -> Self::U8x4 {
        // SAFETY: see the impl.
        unsafe { [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(32).cast())] }
    }
    #[inline(always)]
    unsafe fn store_u8x4(bytes: Self::U8x4, to: *mut u8) {
        // SAFETY: see the impl.
        unsafe {
            _mm256_storeu_si256(to.cast(), bytes[0]);
            _mm256_storeu_si256(to.add(32).cast(), bytes[1]);
        }
    }
    #[inline(always)]
    unsafe fn shift_right(bytes: Self::U8x4, by: usize, mask: u8) -> Self::U8x4 {
        // SAFETY: see the impl.
        unsafe {
            let (by, mask) = (_mm_cvtsi32_si128(by as i32), _mm256_set1_epi8(mask as i8));
            let shifted = [_mm256_srl_epi16(bytes[0], by), _mm256_srl_epi16(bytes[1], by)];
            [_mm256_and_si256(shifted[0], mask), _mm256_and_si256(shifted[1], mask)]
        }
    }
    #[inline(always)]
    unsafe fn shift_left(bytes: Self::U8x4, by: usize, mask: u8) -> Self::U8x4 {
        // SAFETY: see the impl.
        unsafe {
            let (by, mask) = (_mm_cvtsi32_si128(by as i32), _mm256_set1_epi8(mask as i8));
            let shifted = [_mm256_sll_epi16(bytes[0], by), _mm256_sll_epi16(bytes[1], by)];
            [_mm256_and_si256(shifted[0], mask), _mm256_and_si256(shifted[1], mask)]
        }
    }
    #[inline(always)]
    unsafe fn lookup(table: Self::U8x4, indices: Self::U8x4) -> Self::U8x4 {
        // SAFETY: see the impl.
        unsafe { [_mm256_shuffle_epi8(table[0], indices[0]), _mm256_shuffle_epi8(table[1], indices[1])] }
    }
    #[inline(always)]
    unsafe fn or(a: Self::U8x4, b: Self::U8x4) -> Self::U8x4 {
        // SAFETY: see the impl.
        unsafe { [_mm256_or_si256(a[0], b[0]), _mm256_or_si256(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn dot4(acc: Self::Int, bytes: Self::U8x4, x: u32) -> Self::Int {
        // SAFETY: see the impl.
        unsafe { D::dot4(acc, bytes, x) }
    }
    #[inline(always)]
    unsafe fn keep_order() {
        // SAFETY: no instruction.
        unsafe { std::arch::asm!("", options(nostack, preserves_flags)) }
    }
    const ROWS_KEEP_ORDER: bool = D::SUMS_IN_I16;
    const SUMS_IN_I16: bool = D::SUMS_IN_I16;
    type Words = [__m256i; 2];
    #[inline(always)]
    unsafe fn words_zero() -> Self::Words {
        // SAFETY: see the impl.
        unsafe { [_mm256_setzero_si256(); 2] }
    }
    #[inline(always)]
    unsafe fn dot2(acc: Self::Words, bytes: Self::U8x4, x: u32) -> Self::Words {
        // SAFETY: see the impl. No closure: it would be compiled without the instructions.
        unsafe {
            let x = _mm256_set1_epi32(x as i32);
            let low = _mm256_add_epi16(acc[0], _mm256_maddubs_epi16(bytes[0], x));
            let high = _mm256_add_epi16(acc[1], _mm256_maddubs_epi16(bytes[1], x));
            in_order([low, high])
        }
    }
    #[inline(always)]
    unsafe fn add_words(acc: Self::Int, words: Self::Words, factor: i16) -> Self::Int {
        // SAFETY: see the impl.
        unsafe {
            let factor = _mm256_set1_epi16(factor);
            [
                _mm256_add_epi32(acc[0], _mm256_madd_epi16(words[0], factor)),
                _mm256_add_epi32(acc[1], _mm256_madd_epi16(words[1], factor)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn int_to_float(sums: Self::Int) -> Self {
        // SAFETY: see the impl.
        unsafe { ymm(_mm256_cvtepi32_ps(sums[0]), _mm256_cvtepi32_ps(sums[1])) }
    }
    const UNPACK_FROM_ROWS: usize = if D::SUMS_IN_I16 { 9 } else { usize::MAX };
    #[inline(always)]
    unsafe fn split_words(from: *const u8, signed: bool, to: *mut u8) {
        // SAFETY: see the impl.
        unsafe {
            for half in 0..2 {
                let bytes = _mm256_loadu_si256(from.add(32 * half).cast());
                let (even, odd) = if signed {
                    let even = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(bytes));
                    (even, _mm256_srai_epi16::<8>(bytes))
                } else {
                    (_mm256_and_si256(bytes, _mm256_set1_epi16(0xff)), _mm256_srli_epi16::<8>(bytes))
                };
                _mm256_storeu_si256(to.add(32 * half).cast(), even);
                _mm256_storeu_si256(to.add(64 + 32 * half).cast(), odd);
            }
        }
    }
    #[inline(always)]
    unsafe fn store_words(words: Self::Words, to: *mut u8) {
        // SAFETY: see the impl.
        unsafe {
            _mm256_storeu_si256(to.cast(), words[0]);
            _mm256_storeu_si256(to.add(32).cast(), words[1]);
        }
    }
    #[inline(always)]
    unsafe fn load_words(from: *const u8) -> Self::Words {
        // SAFETY: see the impl.
        unsafe { [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(32).cast())] }
    }
    #[inline(always)]
    unsafe fn words_of(bytes: Self::U8x4) -> [Self::Words; 2] {
        // SAFETY: see the impl.
        unsafe {
            let low = _mm256_set1_epi16(0xff);
            let even = [_mm256_and_si256(bytes[0], low), _mm256_and_si256(bytes[1], low)];
            [even, [_mm256_srli_epi16::<8>(bytes[0]), _mm256_srli_epi16::<8>(bytes[1])]]
        }
    }
    #[inline(always)]
    unsafe fn dot_words(acc: Self::Int, words: Self::Words, x: u32) -> Self::Int {
        // SAFETY: see the impl.
        unsafe {
            let x = _mm256_set1_epi32(x as i32);
            let low = _mm256_add_epi32(acc[0], _mm256_madd_epi16(words[0], x));
            let high = _mm256_add_epi32(acc[1], _mm256_madd_epi16(words[1], x));
            in_order([low, high])
        }
    }
    #[inline(always)]
    unsafe fn scaled(sums: Self::Int, scale: Self, _minus_bias: Self) -> Self {
        // SAFETY: see the impl. There is no register left for `_minus_bias`.
        unsafe {
            let floats = ymm(_mm256_castsi256_ps(sums[0]), _mm256_castsi256_ps(sums[1]));
            floats.sub(Self::splat(ROUND_BIAS)).mul(scale)
        }
    }
    #[inline(always)]
    unsafe fn store_i8(self, to: *mut i8) {
        // SAFETY: see the impl.
        unsafe {
            let words = _mm256_packs_epi32(_mm256_cvtps_epi32(self.0), _mm256_cvtps_epi32(self.1));
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(words);
            let bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            _mm_storeu_si128(to.cast(), bytes);
        }
    }
    #[inline(always)]
    unsafe fn dot_bf16(acc: Self, weights: *const u32, pair: u32) -> Self {
        // SAFETY: see the impl.
        unsafe {
            let high_half = _mm256_set1_epi32(0xffff_0000_u32 as i32);
            let x = _mm256_set1_epi32(pair as i32);
            let x_low = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(x));
            let x_high = _mm256_castsi256_ps(_mm256_and_si256(x, high_half));
            let low = dot_bf16_half(acc.0, weights, x_low, x_high);
            ymm(low, dot_bf16_half(acc.1, weights.add(8), x_low, x_high))
        }
    }
    const WIDENS_BF16: bool = true;
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        // SAFETY: see the impl.
        unsafe {
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.add(8).cast()));
            ymm(
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
            )
        }
    }
    #[inline(always)]
    unsafe fn widen_pairs(from: *const u32, to: *mut f32) {
        // SAFETY: see the impl.
        unsafe {
            for half in [0, 8] {
                let pairs = _mm256_loadu_si256(from.add(half).cast());
                let high_half = _mm256_set1_epi32(0xffff_0000_u32 as i32);
                let low = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs));
                _mm256_storeu_ps(to.add(half), low);
                let high = _mm256_castsi256_ps(_mm256_and_si256(pairs, high_half));
                _mm256_storeu_ps(to.add(LANES + half), high);
            }
        }
    }
}

kernels!(@all table [AVX2, Pair<Base>, Isa::Avx2, (2, 6), 3, 3, [target_feature(enable = "avx2,fma,f16c")]]);
kernels!(@blocks table [VNNI, Pair<Vnni>, Isa::AvxVnni, (2, 6), 3, 3,
    [target_feature(enable = "avx2,fma,f16c,avxvnni")], ..AVX2] []);
