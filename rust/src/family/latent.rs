//! Tensors of latent attention (MLA), as DeepSeek names them.

use super::layout::Prefix;
use super::rows::Rows;
use super::slots::{LatentSlots, MatrixSlot, NormSlot, ProjectionSlots};
use crate::config::{Attention, Bias, tensor};

/// The slots of latent attention.
///
/// The rotating part of a query and of a key comes first here, where rotation expects it; in the file it is last. The
/// scores do not notice: both are reordered alike.
pub(super) fn latent_slots(at: &Prefix<'_>, attention: Attention) -> ProjectionSlots {
    let config = at.config;
    let Attention::Latent { q_lora_rank, kv_lora_rank, qk_rope_head_dim: rope, .. } = attention else {
        return ProjectionSlots::Heads(at.matrix(&[], config.hidden_size, Bias::None));
    };
    let (heads, dim, hidden) = (config.num_attention_heads, config.head_dim, config.hidden_size);
    let nope = dim - rope;
    let queries = [Rows::each(heads, dim, nope, dim)];
    let kv_a = at.matrix(
        &[(tensor!("self_attn.kv_a_proj_with_mqa"), kv_lora_rank + rope)],
        hidden,
        config.attention_bias,
    );
    let norm = |name, width| NormSlot { bias: Vec::new(), ..at.norm(name, width) };
    let (first, q) = match q_lora_rank {
        None => (at.rows_of(tensor!("self_attn.q_proj"), heads * dim, &queries, hidden, Bias::None), None),
        Some(rank) => {
            let up = at.rows_of(tensor!("self_attn.q_b_proj"), heads * dim, &queries, rank, Bias::None);
            let down = at.matrix(&[(tensor!("self_attn.q_a_proj"), rank)], hidden, config.attention_bias);
            (down, Some((norm(tensor!("self_attn.q_a_layernorm"), rank), up)))
        }
    };
    let of_head = nope + config.v_head_dim;
    let parts = [Rows::each(heads, of_head, 0, nope), Rows::each(heads, of_head, nope, config.v_head_dim)];
    let kv = at.rows_of(tensor!("self_attn.kv_b_proj"), heads * of_head, &parts, kv_lora_rank, Bias::None);
    ProjectionSlots::Latent(Box::new(LatentSlots {
        down: stacked(first, kv_a),
        q,
        kv_norm: norm(tensor!("self_attn.kv_a_layernorm"), kv_lora_rank),
        kv,
    }))
}

/// Two matrices of the same input as one. Biases go along when both have them.
fn stacked(first: MatrixSlot, second: MatrixSlot) -> MatrixSlot {
    let join = |a: Vec<_>, b: Vec<_>| a.into_iter().chain(b).collect();
    MatrixSlot {
        weights: join(first.weights, second.weights),
        biases: join(first.biases, second.biases),
        ..second
    }
}
