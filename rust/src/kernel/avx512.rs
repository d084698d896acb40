//! AVX-512 F/BW/DQ/VL, and BF16 dot products where the CPU has them: one zmm per sixteen lanes.

use super::generic;
use super::lanes::Lanes;
use super::{Isa, Table};
use std::arch::x86_64::*;

macro_rules! zmm_lanes {
    ($name:ident, $dot_bf16:path, $dot_quads:path) => {
        #[derive(Clone, Copy)]
        pub(in crate::kernel) struct $name(__m512);

        // SAFETY: every method needs avx512f/bw/dq/vl (and avx512bf16 where `dot_bf16` uses it) only, which the trait
        // makes the caller's duty; all memory access is unaligned and within the 16 values that the trait demands.
        unsafe impl Lanes for $name {
            #[inline(always)]
            unsafe fn splat(value: f32) -> Self {
                // SAFETY: see the impl.
                $name(unsafe { _mm512_set1_ps(value) })
            }
            #[inline(always)]
            unsafe fn load(from: *const f32) -> Self {
                // SAFETY: see the impl.
                $name(unsafe { _mm512_loadu_ps(from) })
            }
            #[inline(always)]
            unsafe fn load_f16(from: *const u16) -> Self {
                // SAFETY: see the impl.
                $name(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) })
            }
            #[inline(always)]
            unsafe fn load_i8(from: *const i8) -> Self {
                // SAFETY: see the impl.
                $name(unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))) })
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
            unsafe fn mul_add(self, b: Self, c: Self) -> Self {
                // SAFETY: see the impl.
                $name(unsafe { _mm512_fmadd_ps(self.0, b.0, c.0) })
            }
            #[inline(always)]
            unsafe fn add(self, b: Self) -> Self {
                // SAFETY: see the impl.
                $name(unsafe { _mm512_add_ps(self.0, b.0) })
            }
            #[inline(always)]
            unsafe fn sub(self, b: Self) -> Self {
                // SAFETY: see the impl.
                $name(unsafe { _mm512_sub_ps(self.0, b.0) })
            }
            #[inline(always)]
            unsafe fn mul(self, b: Self) -> Self {
                // SAFETY: see the impl.
                $name(unsafe { _mm512_mul_ps(self.0, b.0) })
            }
            #[inline(always)]
            unsafe fn div(self, b: Self) -> Self {
                // SAFETY: see the impl.
                $name(unsafe { _mm512_div_ps(self.0, b.0) })
            }
            #[inline(always)]
            unsafe fn max(self, b: Self) -> Self {
                // SAFETY: see the impl.
                $name(unsafe { _mm512_max_ps(self.0, b.0) })
            }
            #[inline(always)]
            unsafe fn min(self, b: Self) -> Self {
                // SAFETY: see the impl.
                $name(unsafe { _mm512_min_ps(self.0, b.0) })
            }
            #[inline(always)]
            unsafe fn sum(self) -> f32 {
                // SAFETY: see the impl.
                unsafe { _mm512_reduce_add_ps(self.0) }
            }
            #[inline(always)]
            unsafe fn largest(self) -> f32 {
                // SAFETY: see the impl.
                unsafe { _mm512_reduce_max_ps(self.0) }
            }
            #[inline(always)]
            unsafe fn round(self) -> Self {
                // SAFETY: see the impl.
                $name(unsafe { _mm512_roundscale_ps::<0>(self.0) })
            }
            #[inline(always)]
            unsafe fn scale_by_power(self, n: Self) -> Self {
                // SAFETY: see the impl.
                unsafe {
                    let biased = _mm512_add_epi32(_mm512_cvtps_epi32(n.0), _mm512_set1_epi32(127));
                    let clamped = _mm512_min_epi32(
                        _mm512_max_epi32(biased, _mm512_setzero_si512()),
                        _mm512_set1_epi32(254),
                    );
                    let power = _mm512_castsi512_ps(_mm512_slli_epi32::<23>(clamped));
                    $name(_mm512_mul_ps(self.0, power))
                }
            }
            type Int = __m512i;
            type Quads = __m512i;
            #[inline(always)]
            unsafe fn int_splat(value: i32) -> Self::Int {
                // SAFETY: see the impl.
                unsafe { _mm512_set1_epi32(value) }
            }
            #[inline(always)]
            unsafe fn load_quads(from: *const u8) -> Self::Quads {
                // SAFETY: see the impl.
                unsafe { _mm512_loadu_si512(from.cast()) }
            }
            #[inline(always)]
            unsafe fn shift_right(quads: Self::Quads, by: usize, mask: u8) -> Self::Quads {
                // SAFETY: see the impl.
                unsafe {
                    let shifted = _mm512_srl_epi16(quads, _mm_cvtsi32_si128(by as i32));
                    _mm512_and_si512(shifted, _mm512_set1_epi8(mask as i8))
                }
            }
            #[inline(always)]
            unsafe fn shift_left(quads: Self::Quads, by: usize, mask: u8) -> Self::Quads {
                // SAFETY: see the impl.
                unsafe {
                    let shifted = _mm512_sll_epi16(quads, _mm_cvtsi32_si128(by as i32));
                    _mm512_and_si512(shifted, _mm512_set1_epi8(mask as i8))
                }
            }
            #[inline(always)]
            unsafe fn or(a: Self::Quads, b: Self::Quads) -> Self::Quads {
                // SAFETY: see the impl.
                unsafe { _mm512_or_si512(a, b) }
            }
            #[inline(always)]
            unsafe fn dot_quads(acc: Self::Int, quads: Self::Quads, x: u32) -> Self::Int {
                // SAFETY: see the impl.
                unsafe { $dot_quads(acc, quads, x) }
            }
            #[inline(always)]
            unsafe fn scaled(sums: Self::Int, scale: Self, start: Self) -> Self {
                // SAFETY: see the impl.
                $name(unsafe { _mm512_fmadd_ps(_mm512_castsi512_ps(sums), scale.0, start.0) })
            }
            #[inline(always)]
            unsafe fn store_i8(self, to: *mut i8) {
                // SAFETY: see the impl.
                unsafe { _mm_storeu_si128(to.cast(), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(self.0))) }
            }
            #[inline(always)]
            unsafe fn dot_bf16(acc: Self, weights: *const u32, pair: u32) -> Self {
                // SAFETY: see the impl.
                $name(unsafe { $dot_bf16(acc.0, weights, pair) })
            }
        }
    };
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

/// Pairs of bf16 by `vdpbf16ps`.
///
/// # Safety
/// Needs avx512f and avx512bf16; `weights` is valid for 16 pairs.
#[inline(always)]
unsafe fn dot_bf16_native(acc: __m512, weights: *const u32, pair: u32) -> __m512 {
    // SAFETY: the caller's duty; __m512bh and __m512i are both 64 plain bytes.
    unsafe {
        let w: __m512bh = std::mem::transmute(_mm512_loadu_si512(weights.cast()));
        let x: __m512bh = std::mem::transmute(_mm512_set1_epi32(pair as i32));
        _mm512_dpbf16_ps(acc, w, x)
    }
}

/// Quads of bytes by two i16 multiply-adds (`maddubs` would saturate): for CPUs without VNNI.
///
/// # Safety
/// Needs avx512bw.
#[inline(always)]
unsafe fn dot_quads_widened(acc: __m512i, quads: __m512i, x: u32) -> __m512i {
    // SAFETY: the caller's duty.
    unsafe {
        let x = _mm512_set1_epi32(x as i32);
        let x_even = _mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(x));
        let x_odd = _mm512_srai_epi16::<8>(x);
        let even = _mm512_madd_epi16(_mm512_and_si512(quads, _mm512_set1_epi16(0xff)), x_even);
        let odd = _mm512_madd_epi16(_mm512_srli_epi16::<8>(quads), x_odd);
        _mm512_add_epi32(acc, _mm512_add_epi32(even, odd))
    }
}

/// Quads of bytes by `vpdpbusd`.
///
/// # Safety
/// Needs avx512vnni.
#[inline(always)]
unsafe fn dot_quads_native(acc: __m512i, quads: __m512i, x: u32) -> __m512i {
    // SAFETY: the caller's duty.
    unsafe { _mm512_dpbusd_epi32(acc, quads, _mm512_set1_epi32(x as i32)) }
}

pub(super) mod base {
    //! Neither VNNI nor BF16: Skylake-X.
    use super::*;
    zmm_lanes!(Zmm, dot_bf16_widened, dot_quads_widened);
    crate::kernel::kernel_table!(
        Zmm,
        Isa::Avx512,
        tile_rows = 12,
        quad_rows = 10,
        "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"
    );
}

pub(super) mod vnni {
    //! With byte dot products: Cascade Lake, Ice Lake.
    use super::*;
    zmm_lanes!(Zmm, dot_bf16_widened, dot_quads_native);
    crate::kernel::kernel_table!(
        Zmm,
        Isa::Avx512Vnni,
        tile_rows = 12,
        quad_rows = 12,
        "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c"
    );
}

pub(super) mod bf16 {
    //! With byte and bf16 dot products: Zen 4, Sapphire Rapids.
    use super::*;
    zmm_lanes!(Zmm, dot_bf16_native, dot_quads_native);
    crate::kernel::kernel_table!(
        Zmm,
        Isa::Avx512Bf16,
        tile_rows = 12,
        quad_rows = 12,
        "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c"
    );
}
