//! A second embedding, of which each layer has a part (Gemma 3n and 4): the parts of all rows before the first layer, and
//! what a layer adds.

use super::residual::{BranchBuffers, add_residual, matmul, norm};
use super::state::Pass;
use crate::config::{PerLayerEmbedding as Widths, ResidualFactors};
use crate::parts::{Layer, PerLayerEmbedding};
use ropechat_kernels::compute::activations::{Activations, RowSource, by_rows};
use ropechat_kernels::compute::weight::Epilogue;

/// The parts of all rows.
#[derive(Default)]
pub(crate) struct PerLayerInputs {
    parts: Vec<f32>, // [rows, layers, width]
    gated: Vec<f32>, // [rows, width]
}

impl PerLayerInputs {
    /// (norm(model_projection(x) / sqrt(hidden_size)) + sqrt(width) embed_tokens(id)) / sqrt 2.  // x [rows, hidden_size]
    pub fn prepare(
        &mut self,
        pass: Pass<'_>,
        second: &PerLayerEmbedding,
        x: &[f32],
        input: &mut Activations,
    ) {
        let Some(Widths { hidden_size_per_layer_input: width, vocab_size_per_layer_input: vocab }) =
            pass.config.per_layer_embedding
        else {
            return;
        };
        let ids = pass.ids;
        let (hidden_size, kernels) = (pass.config.hidden_size, pass.kernels);
        let stored = |row: usize| &x[row * hidden_size..][..hidden_size];
        let dtype = second.model_projection.dtype();
        input.quantize_rows(ids.len(), hidden_size, dtype, kernels, pass.pool, RowSource::Stored(&stored));
        let mut projected = Vec::new();
        matmul(pass, &second.model_projection, input, &mut projected);
        let (stride, all) = (second.model_projection.padded_out(), pass.config.layers.len() * width);
        let scale = 1.0 / (hidden_size as f32).sqrt();
        self.parts.resize(ids.len() * all, 0.0);
        by_rows(pass.pool, &mut self.parts, all, |row, parts| {
            // Tokens beyond the table (pictures, sound) have its first row.
            let id = if (ids[row] as usize) < vocab { ids[row] as usize } else { 0 };
            let mut embedded = vec![0.0; all];
            second.embed_tokens.row(id, &mut embedded);
            let projected = &mut projected[row * stride..][..all].to_vec();
            kernels.scale(projected, scale);
            for (part, projected) in parts.chunks_exact_mut(width).zip(projected.chunks_exact(width)) {
                let weights = &second.projection_norm;
                norm(pass.config.norm, projected, &weights.weight, &weights.bias, part, kernels);
            }
            let half = std::f32::consts::FRAC_1_SQRT_2;
            kernels.axpby(parts, &embedded, half, half * (width as f32).sqrt());
        });
    }

    /// x += norm(projection(act(gate(from)) * part)).  // from, x [rows, hidden_size]
    pub fn add(
        &mut self,
        pass: Pass<'_>,
        layer: &Layer,
        from: Option<&[f32]>,
        branch: &mut BranchBuffers,
        x: &mut [f32],
    ) {
        let (Some(weights), Some(widths)) = (&layer.per_layer_input, pass.config.per_layer_embedding) else {
            return;
        };
        let (hidden_size, width) = (pass.config.hidden_size, widths.hidden_size_per_layer_input);
        let (rows, kernels, pool) = (pass.rows(x), pass.kernels, pass.pool);
        let from = from.unwrap_or(x);
        let stored = |row: usize| &from[row * hidden_size..][..hidden_size];
        let dtype = weights.gate.dtype();
        branch.input.quantize_rows(rows, hidden_size, dtype, kernels, pool, RowSource::Stored(&stored));
        self.gated.resize(rows * width, 0.0);
        let activate = Epilogue::Activate(pass.config.activation, &mut self.gated, width);
        weights.gate.matmul(&branch.input, kernels, pool, activate);
        let all = pass.config.layers.len() * width;
        let (gated, parts) = (&self.gated, &self.parts);
        let product = |row: usize, out: &mut [f32]| {
            let part = &parts[row * all + layer.index * width..][..width];
            for ((out, gate), part) in out.iter_mut().zip(&gated[row * width..]).zip(part) {
                *out = gate * part;
            }
        };
        let dtype = weights.projection.dtype();
        branch.input.quantize_rows(rows, width, dtype, kernels, pool, RowSource::Computed(&product));
        add_residual(pass, &weights.projection, Some(&weights.out_norm), ResidualFactors::ONE, branch, x);
    }
}
