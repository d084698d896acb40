//! How numbers are stored: `panels/` has the formats that kernels multiply, one file each with its packing and unpacking;
//! `ggml/` has the formats of files.
//!
//! Weights live in *panels* of [`LANES`] output rows, interleaved in *steps* along k (`kernel/README.md` draws them).
//! A format says how many k a step holds and what its bytes are.

mod dtype;
mod ggml;
mod panels;

pub use dtype::{DType, PANEL_LAYOUT};
pub use ggml::TensorType;
pub use panels::step::{BLOCK, GROUP, LANES};
