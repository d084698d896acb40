//! The instruction sets that have a table of kernels, and which of them this CPU has.

use super::Table;

/// An instruction set that has a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isa {
    /// Plain Rust for the target's baseline.
    Scalar,
    /// AVX2, FMA, F16C.
    Avx2,
    /// AVX-512 F, BW, DQ, VL.
    Avx512,
    /// The same with byte dot products (VNNI).
    Avx512Vnni,
    /// The same with byte and bf16 dot products.
    Avx512Bf16,
    /// The same with tiles of byte and bf16 products.
    Amx,
}

impl Isa {
    /// The name that `ROPECHAT_ISA` takes.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Avx512Vnni => "avx512-vnni",
            Isa::Avx512Bf16 => "avx512-bf16",
            Isa::Amx => "amx",
        }
    }

    /// From the narrowest to the widest.
    pub const ALL: [Isa; 6] =
        [Isa::Scalar, Isa::Avx2, Isa::Avx512, Isa::Avx512Vnni, Isa::Avx512Bf16, Isa::Amx];

    /// The table, when this CPU has the instructions.
    pub(super) fn table(self) -> Option<&'static Table> {
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
            match self {
                Isa::Scalar => Some(&super::scalar::TABLE),
                Isa::Avx2 => avx2.then_some(&super::avx2::TABLE),
                Isa::Avx512 => avx512.then_some(&super::avx512::base::TABLE),
                Isa::Avx512Vnni => vnni.then_some(&super::avx512::vnni::TABLE),
                Isa::Avx512Bf16 => bf16.then_some(&super::avx512::bf16::TABLE),
                #[cfg(target_os = "linux")]
                Isa::Amx => (bf16 && super::amx::is_available()).then_some(&super::amx::TABLE),
                #[cfg(not(target_os = "linux"))]
                Isa::Amx => None,
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        (self == Isa::Scalar).then_some(&super::scalar::TABLE)
    }
}
