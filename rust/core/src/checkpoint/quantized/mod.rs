//! Quantized matrices of safetensors files: found by the names of their parts, checked, and read row by row.
//!
//! A matrix that a family calls `x.weight` may be in the file as
//!
//! ```text
//! fp8                 x.weight (a byte per value), x.weight_scale_inv or x.weight_scale
//! compressed-tensors  x.weight_packed or x.weight, x.weight_scale, x.weight_zero_point, x.weight_g_idx
//! gptq                x.qweight [in * bits / 32, out], x.qzeros, x.scales [groups, out], x.g_idx
//! awq                 x.qweight [in, out / 8], x.qzeros, x.scales [groups, out]
//! mxfp4               x_blocks, x_scales
//! bitsandbytes        x.weight, x.weight.absmax, x.weight.quant_map, ... or x.weight, x.SCB
//! bitnet              x.weight [out / 4, in], x.weight_scale, or x.weight [out, in] of floats
//! ```
//!
//! What reads such a matrix sees rows [out_features, in_features] of a [`StorageType`]: blocks with the file's own integers
//! and scales where a type of blocks can hold them, else f32. No copy of the whole matrix is made.

mod bitsandbytes;
mod find;
mod float8;
mod integers;
mod matrix;
mod mxfp4;
mod parts;
mod quant_state;
mod rows;
mod scales;
mod scheme;
mod ternary;

pub(super) use find::{find, names_of};
pub use matrix::{Matrix, MatrixShape, Quantized};
pub use scheme::{Number, Scheme, Strategy, TernaryForm, WeightScheme, ZeroPoints};
