//! The MLP: gate_up_proj with its activation, then down_proj.

use super::residual::{BranchBuffers, add_residual, matmul, norm};
use super::state::Pass;
use crate::config::{Activation, MlpShape, ResidualFactors};
use crate::parts::{DenseMlp, NormWeights};
use ropechat_kernels::compute::activations::{Activations, RowSource, by_rows};
use ropechat_kernels::compute::phases::{Phase, lap};
use ropechat_kernels::compute::weight::Epilogue;
use ropechat_kernels::kernel::{Kernels, LANES};

/// gated = act(gate_proj(input)) * up_proj(input), or act(up_proj(input)).  // gated [rows, intermediate_size]
pub(crate) fn gate_up_proj(pass: Pass<'_>, mlp: &DenseMlp, input: &Activations, gated: &mut Vec<f32>) {
    gated.resize(input.rows() * mlp.intermediate_size, 0.0);
    if let Some(cutoff) = mlp.gate_cutoff {
        return sparse_gate_up(pass, mlp, input, cutoff, gated);
    }
    mlp.gate_up_proj.matmul(input, pass.kernels, pass.pool, gate_epilogue(mlp, gated));
    lap(Phase::GateUpProj);
}

/// What is done with the product of gate_up_proj.  // gated [rows, intermediate_size]
pub(crate) fn gate_epilogue<'a>(mlp: &DenseMlp, gated: &'a mut [f32]) -> Epilogue<'a> {
    let (width, activation) = (mlp.intermediate_size, mlp.activation());
    match mlp.shape {
        MlpShape::Gated => Epilogue::Gate(activation, gated, width),
        MlpShape::Plain => Epilogue::Activate(activation, gated, width),
    }
}

/// Gate and up projection with gates below mean + `cutoff` standard deviations of their row cut to zero: what is above counts.
fn sparse_gate_up(pass: Pass<'_>, mlp: &DenseMlp, input: &Activations, cutoff: f32, gated: &mut [f32]) {
    let (width, mut product) = (mlp.intermediate_size, Vec::new());
    matmul(pass, &mlp.gate_up_proj, input, &mut product);
    let stride = mlp.gate_up_proj.padded_out();
    by_rows(pass.pool, gated, width, |row, out| {
        // Panels of 16 gates and 16 ups take turns.
        let pairs =
            product[row * stride..][..stride].chunks_exact(2 * LANES).map(|pair| pair.split_at(LANES));
        let (mut gates, mut ups) = (Vec::with_capacity(stride), Vec::with_capacity(stride));
        for (gate, up) in pairs {
            gates.extend_from_slice(gate);
            ups.extend_from_slice(up);
        }
        let gates = &mut gates[..width];
        let mean = gates.iter().map(|&x| f64::from(x)).sum::<f64>() / width as f64;
        let variance = gates.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / width as f64;
        let least = (mean + variance.sqrt() * f64::from(cutoff)) as f32;
        for gate in gates.iter_mut() {
            let above = *gate - least;
            *gate = if above < 0.0 { 0.0 } else { above }; // NaN stays
        }
        pass.kernels.gate(mlp.activation(), gates, &ups[..width], out);
    });
    lap(Phase::GateUpProj);
}

/// out = act(gate) * up of a row whose panels of 16 gates and 16 ups take turns.  // product [padded], out [intermediate_size]
pub(crate) fn gate_panels(kernels: Kernels, activation: Activation, product: &[f32], out: &mut [f32]) {
    for (pair, out) in product.chunks_exact(2 * LANES).zip(out.chunks_mut(LANES)) {
        let (gate, up) = pair.split_at(LANES);
        kernels.gate(activation, &gate[..out.len()], &up[..out.len()], out);
    }
}

/// x += down_proj(gated), behind its norm.  // gated [rows, intermediate_size], x [rows, hidden_size]
pub(crate) fn down_proj(
    pass: Pass<'_>,
    mlp: &DenseMlp,
    out_norm: Option<&NormWeights>,
    factors: ResidualFactors,
    gated: &[f32],
    branch: &mut BranchBuffers,
    x: &mut [f32],
) {
    quantize_gated(pass, mlp, pass.rows(x), gated, &mut branch.input);
    lap(Phase::Norm);
    add_residual(pass, &mlp.down_proj, out_norm, factors, branch, x);
    lap(Phase::DownProj);
}

/// branch.out = down_proj(gated); returns the stride of its rows.  // gated [rows, intermediate_size]
pub(crate) fn down_proj_result(
    pass: Pass<'_>,
    mlp: &DenseMlp,
    gated: &[f32],
    BranchBuffers { input, out }: &mut BranchBuffers,
) -> usize {
    quantize_gated(pass, mlp, gated.len() / mlp.intermediate_size, gated, input);
    matmul(pass, &mlp.down_proj, input, out);
    lap(Phase::DownProj);
    mlp.down_proj.padded_out()
}

/// input = gated, in the type that down_proj is multiplied with.  // gated [rows, intermediate_size]
pub(crate) fn quantize_gated(
    pass: Pass<'_>,
    mlp: &DenseMlp,
    rows: usize,
    gated: &[f32],
    input: &mut Activations,
) {
    let width = mlp.intermediate_size;
    let input_type = mlp.down_proj.input_type();
    let stored = |row: usize| &gated[row * width..][..width];
    let (kernels, pool) = (pass.kernels, pass.pool);
    match &mlp.sub_norm {
        None => input.quantize_rows(rows, width, input_type, kernels, pool, RowSource::Stored(&stored)),
        Some(NormWeights { weight, bias, .. }) => {
            let normed = |row: usize, out: &mut [f32]| {
                norm(pass.config.norm, stored(row), weight, bias, out, kernels);
            };
            input.quantize_rows(rows, width, input_type, kernels, pool, RowSource::Computed(&normed));
        }
    }
}
