//! The specs of lightning attention.

use super::config::{DECAYS, Lightning};
use crate::config::{Bias, tensor};
use crate::family::tensors::{BuildMixer, Prefix};
use crate::parts::{NormSpec, NumberSpec, RecurrentWeights, Rows, Spec, TensorRows};

impl BuildMixer for Lightning {
    fn specs(&self, at: &Prefix<'_>) -> RecurrentWeights<Spec> {
        let Lightning { num_heads: heads, head_dim: dim, stored_block, .. } = *self;
        let (hidden, width) = (at.config.hidden_size, self.width());
        // The file has q, k and v of each head together.
        let parts = [0, 1, 2].map(|part| Rows::each(heads, 3 * dim, part * dim, dim));
        let mut in_proj = at.rows_of(tensor!("self_attn.qkv_proj"), 3 * width, &parts, hidden, Bias::None);
        let gate = at.matrix(&[(tensor!("self_attn.output_gate"), width)], hidden, Bias::None);
        in_proj.weights.extend(gate.weights);
        let out_proj = at.matrix(&[(tensor!("self_attn.out_proj"), hidden)], width, Bias::None);
        let norm = vec![at.vector("self_attn.norm.weight", Rows::all(width))];
        RecurrentWeights {
            decay_rate: match stored_block {
                None => {
                    let (layer, layers) = (at.index, at.config.layers.len());
                    NumberSpec::default().prepared(move |_| rates(heads, layer, layers))
                }
                Some(block) => {
                    let shapes: [&[usize]; 4] =
                        [&[heads, 1, 1], &[heads, block, 1], &[heads, block, 1], &[1, heads, block, block]];
                    NumberSpec::vectors(DECAYS.into_iter().zip(shapes).map(|(table, shape)| {
                        let rows = Rows::all(shape.iter().product());
                        TensorRows { shape: shape.to_vec(), ..at.vector(table, rows) }
                    }))
                }
            },
            norm: Some(NormSpec { is_plain: true, ..NormSpec::new(norm, Vec::new(), width) }),
            ..at.mixer(in_proj, out_proj)
        }
    }
}

/// Minus the slopes: those of ALiBi, smaller from layer to layer (transformers, `MiniMaxLightningAttention.get_slope_rate`).
fn rates(heads: usize, layer: usize, layers: usize) -> Vec<f32> {
    let base = 2f64.powf(-8.0 / heads as f64);
    let factor = 1.0 - layer as f64 / ((layers - 1) as f64 + 1e-5) + 1e-5;
    (1..=heads).map(|head| -(base.powi(head as i32) * factor) as f32).collect()
}
