//! From token ids to the first rows of the residual stream.

use super::residual::{BranchBuffers, norm};
use super::rope::RopeAngles;
use super::state::{Pass, Run};
use crate::config::EmbeddingPosition;
use crate::model::Model;
use crate::parts::{HiddenInput, NormWeights};
use ropechat_kernels::compute::activations::{RowSource, by_rows};
use ropechat_kernels::compute::weight::Epilogue;

/// x = the embeddings of all rows, with their positions where those enter here.  // x [rows, hidden_size]
pub(super) fn embed(
    model: &Model,
    pass: Pass<'_>,
    runs: &[Run<'_>],
    angles: &[RopeAngles],
    branch: &mut BranchBuffers,
    x: &mut Vec<f32>,
) {
    let (config, kernels) = (&model.config, pass.kernels);
    let tokens: Vec<(u32, usize)> =
        runs.iter().flat_map(|run| run.ids.iter().copied().zip(run.position()..)).collect();
    let hidden_size = config.hidden_size;
    x.resize(tokens.len() * hidden_size, 0.0);
    by_rows(pass.pool, x, hidden_size, |row, x| {
        let (id, position) = tokens[row];
        model.embedding().row(id as usize, x);
        if config.embedding_multiplier != 1.0 {
            kernels.scale(x, config.embedding_multiplier);
        }
        if let Some([scale, bias]) = &model.outside.embedding_scales {
            kernels.add(x, bias);
            kernels.mul(x, scale);
        }
        match config.position {
            EmbeddingPosition::None => {}
            EmbeddingPosition::Learned => {
                kernels.add(x, &model.outside.positions[position * hidden_size..][..hidden_size]);
            }
            EmbeddingPosition::Rotated { .. } => {
                let (cos, sin) = angles[0].row(row);
                kernels.rope_interleaved(x, cos, sin);
            }
        }
        if let Some(NormWeights { weight, bias, .. }) = &model.outside.embedding_norm {
            let embedded = x.to_vec();
            norm(config.norm, &embedded, weight, bias, x, kernels);
        }
    });
    if let Some(input) = &model.hidden_input {
        join_hidden(pass, input, runs, branch, x);
    }
}

/// x = fc([norm(x), norm(hidden)]).  // x [rows, hidden_size]
fn join_hidden(
    pass: Pass<'_>,
    input: &HiddenInput,
    runs: &[Run<'_>],
    branch: &mut BranchBuffers,
    x: &mut [f32],
) {
    let (width, rows) = (pass.config.hidden_size, pass.rows(x));
    let hidden: Vec<&[f32]> = runs.iter().flat_map(|run| run.hidden.chunks_exact(width)).collect();
    let both = |row: usize, out: &mut [f32]| {
        let (of_embedding, of_hidden) = out.split_at_mut(width);
        let parts = [
            (&input.embedding_norm, &x[row * width..][..width], of_embedding),
            (&input.hidden_norm, hidden[row], of_hidden),
        ];
        for (NormWeights { weight, bias, .. }, from, out) in parts {
            norm(pass.config.norm, from, weight, bias, out, pass.kernels);
        }
    };
    let dtype = input.fc.dtype();
    branch.input.quantize_rows(rows, 2 * width, dtype, pass.kernels, pass.pool, RowSource::Computed(&both));
    x.fill(0.0);
    input.fc.matmul(&branch.input, pass.kernels, pass.pool, Epilogue::AddTo(x, width));
}
