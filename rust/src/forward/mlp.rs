//! The MLP: gate_up_proj with its activation, then down_proj.

use super::residual::{BranchBuffers, add_residual};
use super::state::Pass;
use crate::compute::activations::{Activations, RowSource};
use crate::compute::weight::Epilogue;
use crate::config::MlpShape;
use crate::model::{DenseMlp, NormWeights};

/// gated = act(gate_proj(input)) * up_proj(input), or act(up_proj(input)).  // gated [rows, intermediate_size]
pub(super) fn gate_up_proj(pass: Pass<'_>, mlp: &DenseMlp, input: &Activations, gated: &mut Vec<f32>) {
    let (width, activation) = (mlp.intermediate_size, pass.config.activation);
    gated.resize(input.rows() * width, 0.0);
    let epilogue = match pass.config.mlp {
        MlpShape::Gated => Epilogue::Gate(activation, gated, width),
        MlpShape::Plain => Epilogue::Activate(activation, gated, width),
    };
    mlp.gate_up_proj.matmul(input, pass.kernels, pass.pool, epilogue);
}

/// x += down_proj(gated), behind its norm.  // gated [rows, intermediate_size], x [rows, hidden_size]
pub(super) fn down_proj(
    pass: Pass<'_>,
    mlp: &DenseMlp,
    out_norm: Option<&NormWeights>,
    gated: &[f32],
    branch: &mut BranchBuffers,
    x: &mut [f32],
) {
    quantize_gated(pass, mlp, pass.rows(x), gated, &mut branch.input);
    add_residual(pass, &mlp.down_proj, out_norm, branch, x);
}

/// input = gated, in the type that down_proj is multiplied with.  // gated [rows, intermediate_size]
pub(super) fn quantize_gated(
    pass: Pass<'_>,
    mlp: &DenseMlp,
    rows: usize,
    gated: &[f32],
    input: &mut Activations,
) {
    let width = mlp.intermediate_size;
    let dtype = mlp.down_proj.dtype();
    input.quantize_rows(
        rows,
        width,
        dtype,
        pass.kernels,
        pass.pool,
        RowSource::Stored(&|row| &gated[row * width..][..width]),
    );
}
