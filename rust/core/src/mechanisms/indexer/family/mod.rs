//! The specs of indexers.

pub(crate) mod keys;

use super::config::{IndexChoice, IndexHeads, Indexer, LayerIndexer, RotatedPart};
use super::parts::{InLayer, IndexerWeights, Outside};
use crate::config::{Attention, Bias, Config, Norm, Tensor};
use crate::family::tensors::{Build, Prefix};
use crate::parts::{MatrixSpec, NormSpec, Rows, Spec, TensorRows};

impl IndexHeads {
    /// Rows of so many heads, the rotated part of each first.
    pub(crate) fn rows(&self, config: &Config, heads: usize) -> Rows {
        let dim = self.index_head_dim;
        match self.rotated {
            RotatedPart::First => Rows::all(heads * dim),
            RotatedPart::Last => Rows::each(heads, dim, dim - config.ropes[self.rope].rotary_dim, dim),
        }
    }

    /// A norm of queries or keys.
    pub(crate) fn norm(&self, at: &Prefix<'_>, name: Tensor) -> NormSpec {
        let vector = |name| at.vector(name, self.rows(at.config, 1));
        let bias = match self.norm {
            Norm::LayerNorm { .. } => vec![vector(name.bias)],
            Norm::RmsNorm { .. } => Vec::new(),
        };
        NormSpec::new(vec![vector(name.weight)], bias, self.index_head_dim)
    }

    /// The projection of the queries from a latent.
    pub(crate) fn q_proj(&self, at: &Prefix<'_>, name: Tensor, rank: usize) -> MatrixSpec {
        let rows = self.rows(at.config, self.index_n_heads);
        at.rows_of(name, rows.count(), &[rows], rank, Bias::None)
    }
}

impl Build for Indexer {
    type InLayer = InLayer<Spec>;
    type Outside = Outside<Spec>;

    /// What is no part of a projection of the row.
    fn in_layer(&self, at: &Prefix<'_>) -> Option<InLayer<Spec>> {
        let rank = match at.config.attention_of(at.layer) {
            Attention::Mla { q_lora_rank, .. } => q_lora_rank,
            Attention::Heads | Attention::OfMechanism => None,
        };
        let (heads, names) = (self.heads, self.names);
        let own = || IndexerWeights {
            q_proj: rank.map(|rank| heads.q_proj(at, names.q_proj, rank)),
            q_norm: match self.choice {
                IndexChoice::Positions { .. } => None,
                IndexChoice::Blocks { .. } | IndexChoice::MeanBlocks { .. } => {
                    Some(heads.norm(at, names.q_norm))
                }
            },
            k_norm: heads.norm(at, names.k_norm),
        };
        match self.layers[at.index] {
            LayerIndexer::None => None,
            LayerIndexer::Full => Some(InLayer { own: Some(own()) }),
            LayerIndexer::Shared => Some(InLayer { own: None }),
        }
    }

    /// Its projections of the row: queries too, unless they are computed from a latent.
    fn stack_on(&self, at: &Prefix<'_>, matrix: &mut MatrixSpec) {
        if !self.is_of(at.index) {
            return;
        }
        let heads = match at.config.attention_of(at.layer) {
            Attention::Heads => self.heads.index_n_heads,
            Attention::Mla { .. } | Attention::OfMechanism => 0,
        };
        let (queries, key) = (self.heads.rows(at.config, heads), self.heads.rows(at.config, 1));
        let (weights, names) = (Rows::all(self.num_weights()), &self.names);
        let (of_queries, of_key) = match names.q_proj == names.k_proj {
            false => ((queries, queries.count()), (key, key.count())),
            true => {
                let total = queries.count() + key.count();
                ((queries, total), (key.from(queries.count()), total))
            }
        };
        let parts = [
            (names.q_proj, of_queries),
            (names.k_proj, of_key),
            (names.weights_proj, (weights, weights.count())),
        ];
        for (name, (rows, total)) in parts.into_iter().filter(|(_, (rows, _))| rows.count() > 0) {
            if !matrix.biases.is_empty() {
                matrix.biases.push(TensorRows::zeros(rows.count()));
            }
            let source = at.rows_of(name, total, &[rows], at.config.hidden_size, Bias::None);
            matrix.weights.extend(source.weights);
        }
    }
}
