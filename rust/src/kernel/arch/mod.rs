//! One file per instruction set: what sixteen lanes are on its registers, and its table.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod scalar;

use super::table::{Isa, Table};
pub(super) use scalar::SCALAR;

/// The table of an instruction set, when this CPU has its instructions.
pub(super) fn table(isa: Isa) -> Option<&'static Table> {
    #[cfg(target_arch = "x86_64")]
    {
        let avx2 = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        let avx512 = avx2
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl");
        let vnni = avx512 && is_x86_feature_detected!("avx512vnni");
        let bf16 = vnni && is_x86_feature_detected!("avx512bf16");
        match isa {
            Isa::Scalar => Some(&SCALAR),
            Isa::Avx2 => avx2.then_some(&avx2::AVX2),
            Isa::AvxVnni => (avx2 && is_x86_feature_detected!("avxvnni")).then_some(&avx2::VNNI),
            Isa::Avx512 => avx512.then_some(&avx512::BASE),
            Isa::Avx512Vnni => vnni.then_some(&avx512::VNNI),
            Isa::Avx512Bf16 => bf16.then_some(&avx512::BF16),
            #[cfg(target_os = "linux")]
            Isa::Amx => (bf16 && amx::is_available()).then_some(&amx::AMX),
            #[cfg(not(target_os = "linux"))]
            Isa::Amx => None,
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    (isa == Isa::Scalar).then_some(&SCALAR)
}

/// Sixteen integers of six bits as bytes, see [`Lanes::load_u6`](super::lanes::Lanes::load_u6).
///
/// # Safety
/// Needs SSE2, which every x86-64 has; both addresses are valid for 16 bytes.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn six_bits(
    low: *const u8,
    low_at: usize,
    high: *const u8,
    high_at: usize,
) -> std::arch::x86_64::__m128i {
    use std::arch::x86_64::*;
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
