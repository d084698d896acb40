//! The table of functions that each instruction set fills.

use super::divergence::Divergence;
use super::elementwise::Activation;
use super::linear_attention::LinearSteps;
use super::logsumexp::{ChunkSums, ExpSums};
use super::matmul::MatmulArgs;
use super::selective_scan::ScanSteps;
use crate::quant::PackedType;

/// An instruction set that has a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isa {
    /// Plain Rust for the target's baseline.
    Scalar,
    /// NEON, which every 64-bit Arm processor has.
    Neon,
    /// NEON with products of signed bytes (FEAT_DotProd).
    NeonDotProd,
    /// `NeonDotProd` with products of unsigned and signed bytes (FEAT_I8MM).
    NeonI8mm,
    /// AVX2, FMA, F16C.
    Avx2,
    /// AVX2 with byte dot products (AVX-VNNI).
    AvxVnni,
    /// AVX-512 F, BW, DQ, VL.
    Avx512,
    /// AVX-512 with byte dot products (VNNI).
    Avx512Vnni,
    /// AVX-512 with byte and bf16 dot products.
    Avx512Bf16,
    /// AVX-512 with tiles of byte and bf16 products (AMX).
    Amx,
}

impl Isa {
    /// The name that `ROPECHAT_ISA` takes.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Neon => "neon",
            Isa::NeonDotProd => "neon-dotprod",
            Isa::NeonI8mm => "neon-i8mm",
            Isa::Avx2 => "avx2",
            Isa::AvxVnni => "avx-vnni",
            Isa::Avx512 => "avx512",
            Isa::Avx512Vnni => "avx512-vnni",
            Isa::Avx512Bf16 => "avx512-bf16",
            Isa::Amx => "amx",
        }
    }

    /// Of each architecture from the narrowest to the widest.
    pub const ALL: [Isa; 10] = [
        Isa::Scalar,
        Isa::Neon,
        Isa::NeonDotProd,
        Isa::NeonI8mm,
        Isa::Avx2,
        Isa::AvxVnni,
        Isa::Avx512,
        Isa::Avx512Vnni,
        Isa::Avx512Bf16,
        Isa::Amx,
    ];
}

/// The one list of all kernels. `@all struct []` declares [`Table`]; `@all table [name, lanes, isa, (rows of a tile of
/// floats by two panels, by one), rows of a tile of bytes, rows of a tile of less than bytes, [attribute of every function]]` compiles the algorithms for one
/// ISA. `@blocks table` and `@table` compile only some of them; the others are those of the table behind the attribute, so
/// the kernels that two ISAs share are not compiled twice.
macro_rules! kernels {
    (@all $then:ident $args:tt) => {
        $crate::kernel::table::kernels! { @blocks $then $args [
            fn matmul_f32(args: &MatmulArgs) = matmul::matmul::<V, matmul::F32, TILE_ROWS, TALL_ROWS>;
            fn matmul_f16(args: &MatmulArgs) = matmul::matmul::<V, matmul::F16, TILE_ROWS, TALL_ROWS>;
            fn matmul_bf16(args: &MatmulArgs) = matmul::matmul_bf16::<V, TILE_ROWS, TALL_ROWS>;
            fn quantize_q8(x: &[f32], has_one_scale: bool, weights: PackedType, out: &mut [u8]) = quantize::quantize_q8::<V>;
            fn dequantize_keys(bytes: &[u8], scales: &[f32], out: &mut [f32]) = quantize::dequantize_keys::<V>;
            fn dequantize_values(bytes: &[u8], scales: &[f32], out: &mut [f32]) = quantize::dequantize_values::<V>;
            fn transpose_keys(format: PackedType, keys: &[u8], first: usize, values: &mut [f32]) = quantize::transpose_keys::<V>;
            fn to_f16(x: &[f32], out: &mut [u16]) = quantize::to_f16::<V>;
            fn widen_f16(x: &[u16], out: &mut [f32]) = quantize::widen_f16::<V>;
            fn to_bf16(x: &[f32], out: &mut [u16]) = quantize::to_bf16;
            fn add(x: &mut [f32], y: &[f32]) = elementwise::add::<V>;
            fn mul(x: &mut [f32], y: &[f32]) = elementwise::mul::<V>;
            fn mul_add(acc: &mut [f32], x: &[f32], y: &[f32]) = elementwise::mul_add::<V>;
            fn linear_attention(steps: &mut LinearSteps<'_>) = linear_attention::linear_attention::<V>;
            fn selective_scan(steps: &mut ScanSteps<'_>) = selective_scan::selective_scan::<V>;
            fn exp(x: &mut [f32]) = elementwise::exp_in_place::<V>;
            fn axpby(acc: &mut [f32], x: &[f32], a: f32, b: f32) = elementwise::axpby::<V>;
            fn scale(x: &mut [f32], factor: f32) = elementwise::scale::<V>;
            fn softcap(x: &mut [f32], factor: f32, cap: f32) = elementwise::softcap::<V>;
            fn gate(act: Activation, gate: &[f32], up: &[f32], out: &mut [f32]) = elementwise::gate::<V>;
            fn activate(act: Activation, x: &[f32], out: &mut [f32]) = elementwise::activate::<V>;
            fn activate_in_place(act: Activation, x: &mut [f32]) = elementwise::activate_in_place::<V>;
            fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) = elementwise::rms_norm::<V>;
            fn layer_norm(x: &[f32], weight: &[f32], bias: &[f32], eps: f32, out: &mut [f32]) = elementwise::layer_norm::<V>;
            fn rope_neox(head: &mut [f32], cos: &[f32], sin: &[f32]) = elementwise::rope_neox::<V>;
            fn rope_interleaved(x: &mut [f32], cos: &[f32], sin: &[f32]) = elementwise::rope_interleaved;
            fn softmax(scores: &mut [f32], valid: usize, scale: f32) -> (f32, f32) = softmax::softmax::<V>;
            fn block_maxima(logits: &[f32], maxima: &mut [f32]) -> bool = maxima::block_maxima::<V>;
            fn count_above(logits: &[f32], logit: f32) -> usize = maxima::count_above;
            fn exp_sums(logits: &[f32], max: f32, inverse_temperature: f64) -> ExpSums = logsumexp::exp_sums;
            fn exp_sums_with_squares(logits: &[f32], max: f32) -> (ExpSums, f64) = logsumexp::exp_sums_with_squares;
            fn exp_chunks(logits: &[f32], max: f32, out: &mut [ChunkSums]) = logsumexp::exp_chunks;
            fn divergence(p: &[f32], q: &[f32], p_logsumexp: f64, q_logsumexp: f64) -> Divergence = divergence::divergence;
        ] }
    };
    (@blocks $then:ident $args:tt [$($others:tt)*]) => {
        $crate::kernel::table::kernels! { @$then $args
            fn matmul_q8_0(args: &MatmulArgs) = matmul_blocks::<V, blocks::Q8_0, BLOCK_ROWS>;
            fn matmul_q6_k(args: &MatmulArgs) = matmul_blocks::<V, blocks::Q6K, SMALL_ROWS>;
            fn matmul_q5_1(args: &MatmulArgs) = matmul_blocks::<V, blocks::Q5_1, SMALL_ROWS>;
            fn matmul_q5_k(args: &MatmulArgs) = matmul_blocks::<V, blocks::Q5K, SMALL_ROWS>;
            fn matmul_q4_1(args: &MatmulArgs) = matmul_blocks::<V, blocks::Q4_1, SMALL_ROWS>;
            fn matmul_q4_k(args: &MatmulArgs) = matmul_blocks::<V, blocks::Q4K, SMALL_ROWS>;
            fn matmul_q4_0(args: &MatmulArgs) = matmul_blocks::<V, blocks::Q4_0, SMALL_ROWS>;
            fn matmul_named_blocks(args: &MatmulArgs) = matmul_blocks::<V, blocks::NamedBlocks, BLOCK_ROWS>;
            fn matmul_named_halves(args: &MatmulArgs) = matmul_blocks::<V, blocks::NamedHalves, BLOCK_ROWS>;
            fn matmul_q3_k(args: &MatmulArgs) = matmul_blocks::<V, blocks::Q3K, SMALL_ROWS>;
            fn matmul_q2_k(args: &MatmulArgs) = matmul_blocks::<V, blocks::Q2K, SMALL_ROWS>;
            fn matmul_q2_0(args: &MatmulArgs) = matmul_blocks::<V, blocks::Q2_0, SMALL_ROWS>;
            fn matmul_tq2_0(args: &MatmulArgs) = matmul_blocks::<V, blocks::Tq2_0, SMALL_ROWS>;
            fn matmul_q1_0(args: &MatmulArgs) = matmul_blocks::<V, blocks::Q1_0, SMALL_ROWS>;
            $($others)*
        }
    };
    (@struct [] $(fn $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)? = $f:expr;)*) => {
        /// The functions of one ISA. Each is `unsafe` because the CPU must have that ISA.
        pub(in crate::kernel) struct Table {
            pub isa: Isa,
            $(pub $name: unsafe fn($($ty),*) $(-> $ret)?,)*
        }
    };
    (@table [$table:ident, $lanes:ty, $isa:expr, ($rows:literal, $tall_rows:literal), $block_rows:literal, $small_rows:literal, $attribute:tt
        $(, ..$base:expr)?]
        $(fn $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)? = $f:expr;)*) => {
        /// This ISA's functions.
        #[allow(unused_imports, dead_code)] // where a table has some functions only
        pub(in crate::kernel) const $table: $crate::kernel::table::Table = {
            use $crate::kernel::divergence::{self, Divergence};
            use $crate::kernel::elementwise::{self, Activation};
            use $crate::kernel::linear_attention::{self, LinearSteps};
            use $crate::kernel::logsumexp::{self, ChunkSums, ExpSums};
            use $crate::kernel::maxima;
            use $crate::kernel::matmul::{self, MatmulArgs};
            use $crate::kernel::matmul_blocks::{self as blocks, matmul_blocks};
            use $crate::kernel::selective_scan::{self, ScanSteps};
            use $crate::kernel::{quantize, softmax};
            use $crate::quant::PackedType;
            type V = $lanes;
            const TILE_ROWS: usize = $rows;
            const TALL_ROWS: usize = $tall_rows;
            const BLOCK_ROWS: usize = $block_rows;
            const SMALL_ROWS: usize = $small_rows;
            $(
                #$attribute
                #[allow(unused_unsafe)]
                unsafe fn $name($($arg: $ty),*) $(-> $ret)? {
                    // SAFETY: this function's features are the ISA's, and the caller vouches for the CPU.
                    unsafe { $f($($arg),*) }
                }
            )*
            $crate::kernel::table::Table { isa: $isa, $($name,)* $(..$base)? }
        };
    };
}
pub(in crate::kernel) use kernels;

kernels!(@all struct []);
