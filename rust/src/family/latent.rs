//! Tensors of latent attention (MLA), as DeepSeek names them.

use super::layout::Prefix;
use super::rows::{Rows, Source};
use super::slots::{Join, LatentSlots, MatrixSlot, NormSlot, ProjectionSlots};
use crate::config::{Attention, Bias, KvB, Stored, Tensor};

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
    let (nope, names) = (dim - rope, &config.names.latent);
    let queries = [Rows::each(heads, dim, nope, dim)];
    let kv_a = at.matrix(&[(names.kv_a, kv_lora_rank + rope)], hidden, config.attention_bias);
    let norm = |name, width| NormSlot { bias: Vec::new(), ..at.norm(name, width) };
    let (first, q) = match q_lora_rank {
        None => (at.rows_of(names.q, heads * dim, &queries, hidden, Bias::None), None),
        Some(rank) => {
            let up = at.rows_of(names.q_b, heads * dim, &queries, rank, Bias::None);
            let down = at.matrix(&[(names.q_a, rank)], hidden, config.attention_bias);
            (down, Some((norm(names.q_a_norm, rank), up)))
        }
    };
    ProjectionSlots::Latent(Box::new(LatentSlots {
        down: stacked(first, kv_a),
        q,
        kv_norm: norm(names.kv_a_norm, kv_lora_rank),
        kv: keys_and_values(at, kv_lora_rank, nope),
    }))
}

/// The part of all heads' keys that does not rotate, then all heads' values.
fn keys_and_values(at: &Prefix<'_>, rank: usize, nope: usize) -> MatrixSlot {
    let (heads, width) = (at.config.num_attention_heads, at.config.v_head_dim);
    let of_head = nope + width;
    match at.config.names.latent.kv_b {
        KvB::Together(name) => {
            let parts = [Rows::each(heads, of_head, 0, nope), Rows::each(heads, of_head, nope, width)];
            at.rows_of(name, heads * of_head, &parts, rank, Bias::None)
        }
        KvB::Apart { keys, values } => {
            let source = |name: Tensor, shape: [usize; 3], stored, rows| Source {
                name: format!("{}{}", at.path, name.weight),
                shape: shape.to_vec(),
                stored,
                rows: Rows::all(rows),
            };
            let keys = source(keys, [heads, rank, nope], Stored::InOut, heads * nope);
            let values = source(values, [heads, width, rank], Stored::OutIn, heads * width);
            MatrixSlot {
                weights: vec![keys, values],
                biases: Vec::new(),
                in_features: rank,
                join: Join::Stacked,
            }
        }
    }
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
