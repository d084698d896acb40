//! The tensors of queries, keys and values, and of their norms.

use super::prefix::{Prefix, with_bias};
use super::rows::{Rows, TensorRows};
use super::spec::{MatrixSpec, NormSpec};
use crate::config::{AttentionGate, GateWidth, HeadRows, QkNorm, Qkv, Tensor};

impl Prefix<'_> {
    /// q, k and v, with their rows in the order that the family rotates.
    pub fn qkv(&self) -> MatrixSpec {
        let config = self.config;
        let mut matrix = self.qkv_as_stored();
        if config.names.head_rows == HeadRows::Paired {
            let heads = [config.num_attention_heads, config.num_key_value_heads];
            for of_each in [&mut matrix.weights, &mut matrix.biases] {
                for (source, heads) in of_each.iter_mut().zip(heads) {
                    let first = source.rows.first();
                    source.rows = Rows::evens_then_odds(heads, config.head_dim).from(first);
                }
            }
        }
        matrix.weights.extend(self.attention_gate());
        matrix
    }

    /// The gate of attention's output.
    fn attention_gate(&self) -> Option<TensorRows> {
        let config = self.config;
        let (heads, dim) = (config.num_attention_heads, config.head_dim);
        let rows = match config.attention_gate {
            AttentionGate::None => return None,
            AttentionGate::Sigmoid(GateWidth::PerHead) => heads,
            AttentionGate::Sigmoid(GateWidth::PerChannel) => heads * config.v_head_dim,
        };
        let (stored, hidden) = (config.names.stored, config.hidden_size);
        Some(match config.names.qkv {
            Qkv::GatedQueries([q, ..]) => {
                let whole = TensorRows::whole(self.name(q.weight), stored, 2 * heads * dim, hidden);
                TensorRows { rows: Rows::each(heads, 2 * dim, dim, dim), ..whole }
            }
            _ => TensorRows::whole(self.name(config.names.attention_gate.weight), stored, rows, hidden),
        })
    }

    fn qkv_as_stored(&self) -> MatrixSpec {
        let config = self.config;
        let (heads, groups, dim) = (config.num_attention_heads, config.num_key_value_heads, config.head_dim);
        let (queries, keys) = (heads * dim, groups * dim);
        let (hidden, bias) = (config.hidden_size, config.attention_bias);
        let total = queries + 2 * keys;
        match config.names.qkv {
            Qkv::Separate([q, k, v]) => self.matrix(&[(q, queries), (k, keys), (v, keys)], hidden, bias),
            Qkv::GatedQueries([q, k, v]) => {
                let mut matrix = self.matrix(&[(q, 2 * queries), (k, keys), (v, keys)], hidden, bias);
                let of_queries = Rows::each(heads, 2 * dim, 0, dim);
                for of_each in [&mut matrix.weights, &mut matrix.biases] {
                    of_each.iter_mut().take(1).for_each(|source| source.rows = of_queries);
                }
                matrix
            }
            Qkv::Stacked(name) => {
                let parts = [(0, queries), (queries, keys), (queries + keys, keys)];
                let parts = parts.map(|(first, rows)| Rows::range(first, rows));
                self.rows_of(name, total, &parts, hidden, bias)
            }
            Qkv::Grouped(name) => {
                let group = config.group_size();
                let parts = [(0, group), (group, 1), (group + 1, 1)];
                let of_group = (group + 2) * dim;
                let parts = parts.map(|(first, n)| Rows::each(groups, of_group, first * dim, n * dim));
                self.rows_of(name, total, &parts, hidden, bias)
            }
        }
    }

    /// Norms of q and k, repeated for all heads where the heads share one.
    pub fn qk_norms(&self) -> Option<[NormSpec; 2]> {
        let config = self.config;
        let dim = config.head_dim;
        let names = [
            (config.names.q_norm, config.num_attention_heads),
            (config.names.k_norm, config.num_key_value_heads),
        ];
        let spec = |weight, bias, width| NormSpec { weight, bias, width };
        let both = |of: &dyn Fn(Tensor, usize) -> NormSpec| Some(names.map(|(name, heads)| of(name, heads)));
        match config.qk_norm {
            QkNorm::None => None,
            QkNorm::PerHead(bias) => both(&|name, heads| {
                let weight = self.vector(name.weight, Rows::repeated(heads, dim));
                let bias = with_bias(bias, vec![self.vector(name.bias, Rows::repeated(heads, dim))]);
                spec(vec![weight], bias, heads * dim)
            }),
            QkNorm::PerHeadOwn => both(&|name, heads| {
                let tensor = self.vector(name.weight, Rows::all(heads * dim));
                spec(vec![TensorRows { shape: vec![heads, dim], ..tensor }], Vec::new(), heads * dim)
            }),
            QkNorm::PerHeadSplit => both(&|name, heads| {
                let part = |head| self.vector(&name.weight.replace("{}", &format!("{head}")), Rows::all(dim));
                spec((0..heads).map(part).collect(), Vec::new(), heads * dim)
            }),
            QkNorm::FullWidth => both(&|name, heads| {
                let weight = self.vector(name.weight, Rows::all(heads * dim));
                spec(vec![weight], Vec::new(), heads * dim)
            }),
        }
    }
}
