//! The tensors of attention whose one key is the value too, and of its compressed keys.
//!
//! In the file the rotated part of a head is the last one; here it is the first, as for all models. Queries, keys and
//! the inputs of compressed keys are reordered in the same way, and attention puts its output back in the file's order.

use super::prefix::Prefix;
use crate::config::{Bias, CompressorNames, LayerRope, RotatedPart};
use crate::parts::{CompressionWeights, MatrixSpec, NormSpec, Projection, Rows, SharedKvWeights, Spec};

impl Prefix<'_> {
    /// Width of the rotated part of a head.
    fn rotary_dim(&self) -> usize {
        match self.layer.rope {
            LayerRope::None => 0,
            LayerRope::Rotary(rope) => self.config.ropes[rope].rotary_dim,
        }
    }

    /// The rows of `heads` heads, the rotated part of each first.
    pub fn rotated_first(&self, heads: usize) -> Rows {
        let dim = self.heads.head_dim;
        Rows::each(heads, dim, dim - self.rotary_dim(), dim)
    }

    /// The projections of queries, of the one key, and of the inputs of compressed keys.
    pub fn shared_kv(&self, q_lora_rank: usize) -> Projection<Spec> {
        let (config, names) = (self.config, &self.config.names);
        let (hidden, heads) = (config.hidden_size, self.heads.num_attention_heads);
        let whole =
            |name, rows: Rows, columns| self.rows_of(name, rows.count(), &[rows], columns, Bias::None);
        let mut a_proj =
            MatrixSpec { weights: Vec::new(), ..whole(names.mla.q_a_proj, Rows::all(q_lora_rank), hidden) };
        if let Some(compression) = self.layer.compression {
            let [of_attention, of_indexer] = &names.compressors;
            let mut add = |compressor: &CompressorNames, rows: Rows| {
                for name in [compressor.kv_proj, compressor.gate_proj] {
                    a_proj.weights.extend(whole(name, rows, hidden).weights);
                }
            };
            add(of_attention, self.rotated_first(compression.series()));
            if let Some(indexer) = config.indexer_of(self.layer) {
                add(of_indexer, self.index_heads(indexer, compression.series()));
            }
        }
        a_proj.weights.extend(whole(names.mla.q_a_proj, Rows::all(q_lora_rank), hidden).weights);
        a_proj.weights.extend(whole(names.mla.kv_a_proj, self.rotated_first(1), hidden).weights);
        self.add_indexer(&mut a_proj, false);
        Projection::SharedKv(Box::new(SharedKvWeights {
            a_proj,
            q_a_layernorm: self.norm(names.mla.q_a_layernorm, q_lora_rank),
            q_b_proj: whole(names.mla.q_b_proj, self.rotated_first(heads), q_lora_rank),
        }))
    }

    /// From the output of each of `groups` groups of heads to its latent.
    pub fn o_a_proj(&self, groups: usize, rank: usize) -> Vec<MatrixSpec> {
        let width = self.heads.out_width() / groups;
        let group = |group: usize| {
            let rows = Rows::range(group * rank, rank);
            self.rows_of(self.config.names.o_a_proj, groups * rank, &[rows], width, Bias::None)
        };
        (0..groups).map(group).collect()
    }

    /// The tensors of compressed keys that are no part of a projection of the row.
    pub fn compression(&self) -> Option<Box<CompressionWeights<Spec>>> {
        let compression = self.layer.compression?;
        let [of_attention, of_indexer] = &self.config.names.compressors;
        let (rotated, series) = (self.rotary_dim(), compression.series());
        let table = |name: &str, dim: usize| {
            // The rotated part of a key comes first, as in the projections.
            self.table(name, compression.compress_rate, series * dim).prepared(move |mut biases| {
                biases.chunks_exact_mut(dim).for_each(|part| part.rotate_right(rotated));
                biases
            })
        };
        let dim = self.heads.head_dim;
        let mut position_biases = vec![table(of_attention.position_bias, dim)];
        if let Some(indexer) = self.config.indexer_of(self.layer) {
            debug_assert!(indexer.rotated == RotatedPart::Last, "as in the heads of attention");
            position_biases.push(table(of_indexer.position_bias, indexer.index_head_dim));
        }
        let weight = vec![self.vector(of_attention.norm.weight, self.rotated_first(1))];
        Some(Box::new(CompressionWeights {
            position_biases,
            norm: NormSpec::new(weight, Vec::new(), dim),
            spec: compression,
            state_layer: self.config.state_layer(self.index),
        }))
    }
}
