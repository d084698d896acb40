//! From token ids to the first rows of the residual stream.

use super::residual::norm;
use super::rope::RopeAngles;
use super::state::{Pass, Run};
use crate::compute::activations::by_rows;
use crate::config::EmbeddingPosition;
use crate::model::{Model, NormWeights};

/// x = the embeddings of all rows, with their positions where those enter here.  // x [rows, hidden_size]
pub(super) fn embed(
    model: &Model,
    pass: Pass<'_>,
    runs: &[Run<'_>],
    angles: &[RopeAngles],
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
        if let Some([scale, bias]) = &model.embedding_scales {
            kernels.add(x, bias);
            kernels.mul(x, scale);
        }
        match config.position {
            EmbeddingPosition::None => {}
            EmbeddingPosition::Learned => {
                kernels.add(x, &model.positions[position * hidden_size..][..hidden_size]);
            }
            EmbeddingPosition::Rotated { .. } => {
                let (cos, sin) = angles[0].row(row);
                kernels.rope_interleaved(x, cos, sin);
            }
        }
        if let Some(NormWeights { weight, bias, .. }) = &model.embedding_norm {
            let embedded = x.to_vec();
            norm(config.norm, &embedded, weight, bias, x, kernels);
        }
    });
}
