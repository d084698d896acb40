//! The specs of attention whose one key is the value too, and of its compressed keys.
//!
//! In the file the rotated part of a head is the last one; here it is the first, as for all models. Queries, keys and
//! the inputs of compressed keys are reordered in the same way, and attention puts its output back in the file's order.

use super::config::{CompressedAttention, CompressorNames};
use super::parts::{CompressedKeys, InLayer, KeyIndexer, Outside};
use crate::config::{Bias, LayerRope};
use crate::family::tensors::{Build, OwnAttention, Prefix};
use crate::parts::{MatrixSpec, NormSpec, NumberSpec, Rows, Spec};

/// Width of the rotated part of a head.
fn rotary_dim(at: &Prefix<'_>) -> usize {
    match at.layer.rope {
        LayerRope::None => 0,
        LayerRope::Rotary(rope) => at.config.ropes[rope].rotary_dim,
    }
}

/// The rows of `heads` heads, the rotated part of each first.
fn rotated_first(at: &Prefix<'_>, heads: usize) -> Rows {
    let dim = at.heads.head_dim;
    Rows::each(heads, dim, dim - rotary_dim(at), dim)
}

impl CompressedAttention {
    /// What makes compressed keys, without the projections of their inputs.
    fn compressed_keys(&self, at: &Prefix<'_>) -> Option<CompressedKeys<Spec>> {
        let spec = self.layers[at.index]?;
        let ([of_attention, of_indexer], rotated) = (&self.names, rotary_dim(at));
        let table = |names: &CompressorNames, dim: usize| -> NumberSpec {
            // The rotated part of a key comes first, as in the projections.
            let biases = at.table(names.position_bias, spec.compress_rate, spec.series() * dim);
            biases.prepared(move |mut biases| {
                biases.chunks_exact_mut(dim).for_each(|part| part.rotate_right(rotated));
                biases
            })
        };
        let dim = at.heads.head_dim;
        let weight = vec![at.vector(of_attention.norm.weight, rotated_first(at, 1))];
        Some(CompressedKeys {
            position_bias: table(of_attention, dim),
            norm: NormSpec::new(weight, Vec::new(), dim),
            indexer: self.indexer_of(at.index).map(|indexer| KeyIndexer {
                position_bias: table(of_indexer, indexer.heads.index_head_dim),
                k_norm: indexer.heads.norm(at, of_indexer.norm),
                q_proj: indexer.heads.q_proj(at, self.index_names[0], self.q_lora_rank),
            }),
            spec,
            state_layer: at.config.state_layer(at.index),
            window: self.window(at.index, dim),
        })
    }
}

impl Build for CompressedAttention {
    type InLayer = InLayer<Spec>;
    type Outside = Outside<Spec>;

    fn in_layer(&self, at: &Prefix<'_>) -> Option<InLayer<Spec>> {
        let (names, heads, hidden) = (&at.config.names, at.heads, at.config.hidden_size);
        let (rank, groups) = (self.o_lora_rank, self.o_groups);
        let group = |group: usize| {
            let (rows, width) = (Rows::range(group * rank, rank), heads.out_width() / groups);
            at.rows_of(self.o_a_proj, groups * rank, &[rows], width, Bias::None)
        };
        let queries = rotated_first(at, heads.num_attention_heads);
        Some(InLayer {
            q_a_layernorm: at.norm(names.mla.q_a_layernorm, self.q_lora_rank),
            q_b_proj: at.rows_of(
                names.mla.q_b_proj,
                queries.count(),
                &[queries],
                self.q_lora_rank,
                Bias::None,
            ),
            o_a_proj: (0..groups).map(group).collect(),
            o_proj: at.matrix(&[(names.o_proj, hidden)], groups * rank, Bias::None),
            compressed: self.compressed_keys(at),
        })
    }

    fn attention(&self, at: &Prefix<'_>) -> Option<OwnAttention> {
        let (config, names, dim) = (at.config, &at.config.names, at.heads.head_dim);
        let mut projection = MatrixSpec::stacked(Vec::new(), Vec::new(), config.hidden_size);
        let mut add = |name, rows: Rows| {
            let part = at.rows_of(name, rows.count(), &[rows], config.hidden_size, Bias::None);
            projection.weights.extend(part.weights);
        };
        let indexer = self.indexer_of(at.index);
        if let Some(spec) = self.layers[at.index] {
            let [of_attention, of_indexer] = &self.names;
            let mut compressor = |names: &CompressorNames, rows: Rows| {
                [names.kv_proj, names.gate_proj].into_iter().for_each(|name| add(name, rows));
            };
            compressor(of_attention, rotated_first(at, spec.series()));
            if let Some(indexer) = indexer {
                compressor(of_indexer, indexer.heads.rows(config, spec.series()));
            }
        }
        add(names.mla.q_a_proj, Rows::all(self.q_lora_rank));
        add(names.mla.kv_a_proj, rotated_first(at, 1));
        if let Some(indexer) = indexer {
            add(self.index_names[1], Rows::all(indexer.heads.index_n_heads));
        }
        // Keys have a weight, queries have none.
        let k_norm = vec![at.vector(names.k_norm.weight, rotated_first(at, 1))];
        let qk_norms = [
            NormSpec::new(Vec::new(), Vec::new(), at.heads.q_width()),
            NormSpec::new(k_norm, Vec::new(), dim),
        ];
        Some(OwnAttention { projection, qk_norms: Some(qk_norms) })
    }
}
