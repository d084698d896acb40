//! How numbers are stored: `panels/` has the formats that kernels multiply, one file each with its packing and unpacking;
//! `ggml/` and `float8` have the formats of files.
//!
//! Weights live in *panels* of [`LANES`] output rows, interleaved in *steps* along k (`kernel/README.md` draws them).
//! A format says how many k a step holds and what its bytes are.

pub mod float8;
mod ggml;
mod packed_type;
mod panels;

pub use ggml::StorageType;
pub use packed_type::{PANEL_LAYOUT, PackedType};
pub(crate) use panels::step::place_of;
pub use panels::step::{BLOCK, GROUP, LANES, SUPER_BLOCK};
pub(crate) use panels::{bit_planes, q2_k, q3_k, q4_k_q5_k, q6_k};
