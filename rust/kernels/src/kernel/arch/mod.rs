//! One file per instruction set: what sixteen lanes are on its registers, and its table.
//!
//! With `--cfg tsan` there is the scalar one only: ThreadSanitizer checks no access of more than 16 bytes.

#[cfg(all(target_arch = "x86_64", target_os = "linux", not(tsan)))]
mod amx;
#[cfg(all(target_arch = "x86_64", not(tsan)))]
mod avx2;
#[cfg(all(target_arch = "x86_64", not(tsan)))]
mod avx512;
#[cfg(all(target_arch = "aarch64", not(tsan)))]
mod neon;
mod scalar;
#[cfg(all(target_arch = "x86_64", not(tsan)))]
mod six_bits;

use super::table::{Isa, Table};
pub(super) use scalar::SCALAR;

/// The table of an instruction set, when this CPU has its instructions.
pub(super) fn table(isa: Isa) -> Option<&'static Table> {
    #[cfg(all(target_arch = "x86_64", not(tsan)))]
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
            Isa::Neon | Isa::NeonDotProd | Isa::NeonI8mm => None,
        }
    }
    #[cfg(all(target_arch = "aarch64", not(tsan)))]
    {
        use std::arch::is_aarch64_feature_detected;
        let dot_prod = is_aarch64_feature_detected!("dotprod");
        match isa {
            Isa::Scalar => Some(&SCALAR),
            Isa::Neon => Some(&neon::NEON),
            Isa::NeonDotProd => dot_prod.then_some(&neon::DOT_PROD),
            Isa::NeonI8mm => (dot_prod && is_aarch64_feature_detected!("i8mm")).then_some(&neon::I8MM),
            _ => None,
        }
    }
    #[cfg(any(tsan, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    (isa == Isa::Scalar).then_some(&SCALAR)
}

/// Whether this CPU's instructions of an ISA that it has are faster than those of the ISA before. `vdpbf16ps` is not on Intel's:
/// measured, half as many products per second as by f32 multiply-adds. (AMX has tiles, which are.)
pub(super) fn is_fast(isa: Isa) -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        let vendor = std::arch::x86_64::__cpuid(0);
        let is_intel = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).concat() == b"GenuineIntel";
        !(is_intel && isa == Isa::Avx512Bf16)
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = isa;
        true
    }
}
