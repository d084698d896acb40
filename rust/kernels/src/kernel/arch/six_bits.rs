//! The scales and minima of K-quants on x86-64.

use std::arch::x86_64::*;

/// Sixteen integers of six bits as bytes, see [`Lanes::load_u6`](super::super::lanes::Lanes::load_u6).
///
/// # Safety
/// Needs SSE2, which every x86-64 has; both addresses are valid for 16 bytes.
#[inline(always)]
pub(super) unsafe fn six_bits(low: *const u8, low_at: usize, high: *const u8, high_at: usize) -> __m128i {
    // SAFETY: the caller's duty. The masks leave no bit that was shifted in from a neighbour.
    unsafe {
        let low = _mm_srl_epi16(_mm_loadu_si128(low.cast()), _mm_cvtsi32_si128(low_at as i32));
        let high = _mm_loadu_si128(high.cast());
        let high = match high_at {
            0..4 => _mm_sll_epi16(high, _mm_cvtsi32_si128(4 - high_at as i32)),
            _ => _mm_srl_epi16(high, _mm_cvtsi32_si128(high_at as i32 - 4)),
        };
        let (low, high) = (_mm_and_si128(low, _mm_set1_epi8(15)), _mm_and_si128(high, _mm_set1_epi8(48)));
        _mm_or_si128(low, high)
    }
}

/// Sixteen integers of four bits as bytes, see [`Lanes::load_u4`](super::super::lanes::Lanes::load_u4).
///
/// # Safety
/// Needs SSE2, which every x86-64 has; the address is valid for 16 bytes.
#[inline(always)]
pub(super) unsafe fn four_bits(from: *const u8, at: usize) -> __m128i {
    // SAFETY: the caller's duty. The mask leaves no bit that was shifted in from a neighbour.
    unsafe {
        let bytes = _mm_srl_epi16(_mm_loadu_si128(from.cast()), _mm_cvtsi32_si128(at as i32));
        _mm_and_si128(bytes, _mm_set1_epi8(15))
    }
}
