//! AVX-512 F/BW/DQ/VL, with VNNI and BF16 dot products where the CPU has them: one zmm per sixteen lanes.

use super::super::lanes::{LANES, Lanes};
use super::super::table::{Isa, kernels};
use super::six_bits::{four_bits, six_bits};
use std::arch::x86_64::*;
use std::marker::PhantomData;

/// Sixteen lanes, with the dot products of `D`.
#[derive(Clone, Copy)]
pub(super) struct Zmm<D>(pub(super) __m512, PhantomData<D>);

#[inline(always)]
fn zmm<D>(value: __m512) -> Zmm<D> {
    Zmm(value, PhantomData)
}

/// The dot products in which the CPUs with AVX-512 differ.
pub(super) trait Dots: Copy {
    /// See [`Lanes::SUMS_IN_I16`].
    const SUMS_IN_I16: bool = false;
    /// acc + low product + high product of 16 pairs of bf16.
    ///
    /// # Safety
    /// The features of the implementing type; `weights` is valid for 16 pairs.
    unsafe fn dot_bf16(acc: __m512, weights: *const u32, pair: u32) -> __m512;
    /// acc + the products of 16 times four unsigned bytes with the four signed bytes of `x`.
    ///
    /// # Safety
    /// The features of the implementing type.
    unsafe fn dot4(acc: __m512i, bytes: __m512i, x: u32) -> __m512i;
}

/// Neither VNNI nor BF16: Skylake-X.
#[derive(Clone, Copy)]
pub(super) struct Base;
/// VNNI: Cascade Lake, Ice Lake.
#[derive(Clone, Copy)]
pub(super) struct Vnni;
/// VNNI and BF16: Zen 4, Sapphire Rapids.
#[derive(Clone, Copy)]
pub(super) struct Bf16;

// SAFETY: every method needs avx512f/bw/dq/vl and the features of `D` only, which the trait makes the caller's duty; all
// memory access is unaligned and within the 16 values that the trait demands.
unsafe impl<D: Dots> Lanes for Zmm<D> {
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: see the impl.
        zmm(unsafe { _mm512_set1_ps(value) })
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: see the impl.
        zmm(unsafe { _mm512_loadu_ps(from) })
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        // SAFETY: see the impl.
        zmm(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) })
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self {
        // SAFETY: see the impl.
        zmm(unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))) })
    }
    #[inline(always)]
    unsafe fn load_u4(from: *const u8, at: usize) -> Self {
        // SAFETY: see the impl.
        zmm(unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(four_bits(from, at))) })
    }
    #[inline(always)]
    unsafe fn load_u6(low: *const u8, low_at: usize, high: *const u8, high_at: usize) -> Self {
        // SAFETY: see the impl.
        zmm(unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(six_bits(low, low_at, high, high_at))) })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: see the impl.
        unsafe { _mm512_storeu_ps(to, self.0) }
    }
    #[inline(always)]
    unsafe fn store_f16(self, to: *mut u16) {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        // SAFETY: see the impl.
        unsafe { _mm256_storeu_si256(to.cast(), _mm512_cvtps_ph::<NEAREST>(self.0)) }
    }
    #[inline(always)]
    unsafe fn transpose(rows: [Self; LANES]) -> [Self; LANES] {
        // SAFETY: see the impl.
        unsafe {
            // Of each four rows: column 4 l + c in quarter l of the c-th.
            let mut fours = [_mm512_setzero_ps(); LANES];
            for row in [0, 4, 8, 12] {
                let (a, b, c, d) = (rows[row].0, rows[row + 1].0, rows[row + 2].0, rows[row + 3].0);
                let low = (_mm512_unpacklo_ps(a, b), _mm512_unpacklo_ps(c, d));
                let high = (_mm512_unpackhi_ps(a, b), _mm512_unpackhi_ps(c, d));
                let low = (_mm512_castps_pd(low.0), _mm512_castps_pd(low.1));
                let high = (_mm512_castps_pd(high.0), _mm512_castps_pd(high.1));
                fours[row] = _mm512_castpd_ps(_mm512_unpacklo_pd(low.0, low.1));
                fours[row + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low.0, low.1));
                fours[row + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(high.0, high.1));
                fours[row + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(high.0, high.1));
            }
            let mut out = rows;
            for c in 0..4 {
                let (a, b) = (fours[c], fours[4 + c]);
                let even = (_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b));
                let (a, b) = (fours[8 + c], fours[12 + c]);
                let odd = (_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b));
                out[c] = zmm(_mm512_shuffle_f32x4::<0x88>(even.0, odd.0));
                out[4 + c] = zmm(_mm512_shuffle_f32x4::<0x88>(even.1, odd.1));
                out[8 + c] = zmm(_mm512_shuffle_f32x4::<0xdd>(even.0, odd.0));
                out[12 + c] = zmm(_mm512_shuffle_f32x4::<0xdd>(even.1, odd.1));
            }
            out
        }
    }
    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        // SAFETY: see the impl.
        zmm(unsafe { _mm512_fmadd_ps(self.0, b.0, c.0) })
    }
    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        // SAFETY: see the impl.
        zmm(unsafe { _mm512_add_ps(self.0, b.0) })
    }
    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        // SAFETY: see the impl.
        zmm(unsafe { _mm512_sub_ps(self.0, b.0) })
    }
    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        // SAFETY: see the impl.
        zmm(unsafe { _mm512_mul_ps(self.0, b.0) })
    }
    #[inline(always)]
    unsafe fn div(self, b: Self) -> Self {
        // SAFETY: see the impl.
        zmm(unsafe { _mm512_div_ps(self.0, b.0) })
    }
    #[inline(always)]
    unsafe fn max(self, b: Self) -> Self {
        // SAFETY: see the impl.
        zmm(unsafe { _mm512_max_ps(self.0, b.0) })
    }
    #[inline(always)]
    unsafe fn min(self, b: Self) -> Self {
        // SAFETY: see the impl.
        zmm(unsafe { _mm512_min_ps(self.0, b.0) })
    }
    #[inline(always)]
    unsafe fn reduce_add(self) -> f32 {
        // SAFETY: see the impl.
        unsafe { _mm512_reduce_add_ps(self.0) }
    }
    #[inline(always)]
    unsafe fn reduce_max(self) -> f32 {
        // SAFETY: see the impl.
        unsafe { _mm512_reduce_max_ps(self.0) }
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        // SAFETY: see the impl.
        zmm(unsafe { _mm512_roundscale_ps::<0>(self.0) })
    }
    #[inline(always)]
    unsafe fn ldexp(self, n: Self) -> Self {
        // SAFETY: see the impl.
        unsafe {
            let biased = _mm512_add_epi32(_mm512_cvtps_epi32(n.0), _mm512_set1_epi32(127));
            let clamped =
                _mm512_min_epi32(_mm512_max_epi32(biased, _mm512_setzero_si512()), _mm512_set1_epi32(254));
            let power = _mm512_castsi512_ps(_mm512_slli_epi32::<23>(clamped));
            zmm(_mm512_mul_ps(self.0, power))
        }
    }
    type Int = __m512i;
    type U8x4 = __m512i;
    #[inline(always)]
    unsafe fn int_splat(value: i32) -> Self::Int {
        // SAFETY: see the impl.
        unsafe { _mm512_set1_epi32(value) }
    }
    #[inline(always)]
    unsafe fn load_u8x4(from: *const u8) -> Self::U8x4 {
        // SAFETY: see the impl.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    unsafe fn store_u8x4(bytes: Self::U8x4, to: *mut u8) {
        // SAFETY: see the impl.
        unsafe { _mm512_storeu_si512(to.cast(), bytes) }
    }
    #[inline(always)]
    unsafe fn shift_right(bytes: Self::U8x4, by: usize, mask: u8) -> Self::U8x4 {
        // SAFETY: see the impl.
        unsafe {
            let shifted = _mm512_srl_epi16(bytes, _mm_cvtsi32_si128(by as i32));
            _mm512_and_si512(shifted, _mm512_set1_epi8(mask as i8))
        }
    }
    #[inline(always)]
    unsafe fn shift_left(bytes: Self::U8x4, by: usize, mask: u8) -> Self::U8x4 {
        // SAFETY: see the impl.
        unsafe {
            let shifted = _mm512_sll_epi16(bytes, _mm_cvtsi32_si128(by as i32));
            _mm512_and_si512(shifted, _mm512_set1_epi8(mask as i8))
        }
    }
    #[inline(always)]
    unsafe fn lookup(table: Self::U8x4, indices: Self::U8x4) -> Self::U8x4 {
        // SAFETY: see the impl.
        unsafe { _mm512_shuffle_epi8(table, indices) }
    }
    #[inline(always)]
    unsafe fn or(a: Self::U8x4, b: Self::U8x4) -> Self::U8x4 {
        // SAFETY: see the impl.
        unsafe { _mm512_or_si512(a, b) }
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
    const TILES_KEEP_ORDER: bool = !D::SUMS_IN_I16;
    const ROWS_KEEP_ORDER: bool = true;
    const SUMS_IN_I16: bool = D::SUMS_IN_I16;
    type Words = __m512i;
    #[inline(always)]
    unsafe fn words_zero() -> Self::Words {
        // SAFETY: see the impl.
        unsafe { _mm512_setzero_si512() }
    }
    #[inline(always)]
    unsafe fn dot2(acc: Self::Words, bytes: Self::U8x4, x: u32) -> Self::Words {
        // SAFETY: see the impl.
        unsafe { _mm512_add_epi16(acc, _mm512_maddubs_epi16(bytes, _mm512_set1_epi32(x as i32))) }
    }
    #[inline(always)]
    unsafe fn add_words(acc: Self::Int, words: Self::Words, factor: i16) -> Self::Int {
        // SAFETY: see the impl.
        unsafe { _mm512_add_epi32(acc, _mm512_madd_epi16(words, _mm512_set1_epi16(factor))) }
    }
    #[inline(always)]
    unsafe fn int_to_float(sums: Self::Int) -> Self {
        // SAFETY: see the impl.
        zmm(unsafe { _mm512_cvtepi32_ps(sums) })
    }
    const UNPACK_FROM_ROWS: usize = if D::SUMS_IN_I16 { 21 } else { usize::MAX };
    #[inline(always)]
    unsafe fn split_words(from: *const u8, signed: bool, to: *mut u8) {
        // SAFETY: see the impl.
        unsafe {
            let bytes = _mm512_loadu_si512(from.cast());
            let (even, odd) = if signed {
                let even = _mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(bytes));
                (even, _mm512_srai_epi16::<8>(bytes))
            } else {
                (_mm512_and_si512(bytes, _mm512_set1_epi16(0xff)), _mm512_srli_epi16::<8>(bytes))
            };
            _mm512_storeu_si512(to.cast(), even);
            _mm512_storeu_si512(to.add(64).cast(), odd);
        }
    }
    #[inline(always)]
    unsafe fn store_words(words: Self::Words, to: *mut u8) {
        // SAFETY: see the impl.
        unsafe {
            _mm512_storeu_si512(to.cast(), words);
        }
    }
    #[inline(always)]
    unsafe fn load_words(from: *const u8) -> Self::Words {
        // SAFETY: see the impl.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    const SPLIT_FROM_ROWS: usize = 3;
    #[inline(always)]
    unsafe fn words_of(bytes: Self::U8x4) -> [Self::Words; 2] {
        // SAFETY: see the impl.
        unsafe { [_mm512_and_si512(bytes, _mm512_set1_epi16(0xff)), _mm512_srli_epi16::<8>(bytes)] }
    }
    #[inline(always)]
    unsafe fn dot_words(acc: Self::Int, words: Self::Words, x: u32) -> Self::Int {
        // SAFETY: see the impl.
        unsafe { _mm512_add_epi32(acc, _mm512_madd_epi16(words, _mm512_set1_epi32(x as i32))) }
    }
    #[inline(always)]
    unsafe fn scaled(sums: Self::Int, scale: Self, minus_bias: Self) -> Self {
        // SAFETY: see the impl.
        zmm(unsafe { _mm512_fmadd_ps(_mm512_castsi512_ps(sums), scale.0, minus_bias.0) })
    }
    #[inline(always)]
    unsafe fn store_i8(self, to: *mut i8) {
        // SAFETY: see the impl.
        unsafe { _mm_storeu_si128(to.cast(), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(self.0))) }
    }
    #[inline(always)]
    unsafe fn dot_bf16(acc: Self, weights: *const u32, pair: u32) -> Self {
        // SAFETY: see the impl.
        zmm(unsafe { D::dot_bf16(acc.0, weights, pair) })
    }
}

/// Pairs of bf16 by two f32 multiply-adds: for CPUs without AVX512-BF16.
///
/// # Safety
/// Needs avx512f; `weights` is valid for 16 pairs.
#[inline(always)]
unsafe fn dot_bf16_widened(acc: __m512, weights: *const u32, pair: u32) -> __m512 {
    // SAFETY: the caller's duty.
    unsafe {
        let high_half = _mm512_set1_epi32(0xffff_0000_u32 as i32);
        let x = _mm512_set1_epi32(pair as i32);
        let w = _mm512_loadu_si512(weights.cast());
        let w_low = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(w));
        let x_low = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(x));
        let w_high = _mm512_castsi512_ps(_mm512_and_si512(w, high_half));
        let x_high = _mm512_castsi512_ps(_mm512_and_si512(x, high_half));
        _mm512_fmadd_ps(w_high, x_high, _mm512_fmadd_ps(w_low, x_low, acc))
    }
}

impl Dots for Base {
    const SUMS_IN_I16: bool = true;
    #[inline(always)]
    unsafe fn dot_bf16(acc: __m512, weights: *const u32, pair: u32) -> __m512 {
        // SAFETY: the caller's duty.
        unsafe { dot_bf16_widened(acc, weights, pair) }
    }
    #[inline(always)]
    unsafe fn dot4(acc: __m512i, bytes: __m512i, x: u32) -> __m512i {
        // Two i16 multiply-adds, because `maddubs` would saturate.
        // SAFETY: the caller's duty.
        unsafe {
            let x = _mm512_set1_epi32(x as i32);
            let x_even = _mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(x));
            let x_odd = _mm512_srai_epi16::<8>(x);
            let even = _mm512_madd_epi16(_mm512_and_si512(bytes, _mm512_set1_epi16(0xff)), x_even);
            let odd = _mm512_madd_epi16(_mm512_srli_epi16::<8>(bytes), x_odd);
            _mm512_add_epi32(acc, _mm512_add_epi32(even, odd))
        }
    }
}

impl Dots for Vnni {
    #[inline(always)]
    unsafe fn dot_bf16(acc: __m512, weights: *const u32, pair: u32) -> __m512 {
        // SAFETY: the caller's duty.
        unsafe { dot_bf16_widened(acc, weights, pair) }
    }
    #[inline(always)]
    unsafe fn dot4(acc: __m512i, bytes: __m512i, x: u32) -> __m512i {
        // SAFETY: the caller's duty.
        unsafe { _mm512_dpbusd_epi32(acc, bytes, _mm512_set1_epi32(x as i32)) }
    }
}

impl Dots for Bf16 {
    #[inline(always)]
    unsafe fn dot_bf16(acc: __m512, weights: *const u32, pair: u32) -> __m512 {
        // SAFETY: the caller's duty; __m512bh and __m512i are both 64 plain bytes.
        unsafe {
            let w: __m512bh = std::mem::transmute(_mm512_loadu_si512(weights.cast()));
            let x: __m512bh = std::mem::transmute(_mm512_set1_epi32(pair as i32));
            _mm512_dpbf16_ps(acc, w, x)
        }
    }
    #[inline(always)]
    unsafe fn dot4(acc: __m512i, bytes: __m512i, x: u32) -> __m512i {
        // SAFETY: the caller's duty.
        unsafe { Vnni::dot4(acc, bytes, x) }
    }
}

kernels!(@all table [BASE, Zmm<Base>, Isa::Avx512, (12, 12), 10, 10,
    [target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]]);
kernels!(@blocks table [VNNI, Zmm<Vnni>, Isa::Avx512Vnni, (12, 12), 12, 12,
    [target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")], ..BASE] []);
kernels!(@table [BF16, Zmm<Bf16>, Isa::Avx512Bf16, (12, 12), 12, 12,
    [target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c")], ..VNNI]
    fn matmul_bf16(args: &MatmulArgs) = matmul::matmul_bf16::<V, TILE_ROWS, TALL_ROWS>;);
