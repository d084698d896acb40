//! The tensors of a block that layers share, as Zamba 2 names them.

use super::prefix::Prefix;
use super::rows::{Rows, TensorRows};
use super::spec::{AdapterTensors, Join, MatrixSpec, SharedBlockTensors};
use crate::config::{SharedBlock, Stored, tensor};

impl Prefix<'_> {
    /// The rest of the block at this path, without its attention; `linear` belongs to the layer, as the adapters with
    /// number `index` do.
    pub fn shared_block(&self, block: &SharedBlock, index: usize, linear: MatrixSpec) -> SharedBlockTensors {
        let (config, names, rank) = (self.config, &self.config.names, block.adapter_rank);
        let (hidden, width) = (config.hidden_size, config.intermediate_size);
        let part = |list: &str, place: usize, rows: usize, columns: usize| {
            let name = self.name(&format!("{list}.{index}.{place}.weight"));
            TensorRows::whole(name, Stored::OutIn, rows, columns)
        };
        let matrix = |weights: Vec<TensorRows>, in_features: usize| MatrixSpec {
            weights,
            biases: Vec::new(),
            in_features,
            join: Join::Stacked,
        };
        let heads = self.heads;
        let keys = heads.num_key_value_heads * heads.head_dim;
        let attention = [("q", heads.q_width()), ("k", keys), ("v", keys)]
            .map(|(part, rows)| (format!("self_attn.linear_{part}_adapter_list"), rows));
        let attention_adapter = block.attention_adapter.then(|| AdapterTensors {
            down: matrix(
                attention.iter().map(|(list, _)| part(list, 0, rank, self.attention_input)).collect(),
                self.attention_input,
            ),
            ups: attention
                .iter()
                .map(|(list, rows)| matrix(vec![part(list, 1, *rows, rank)], rank))
                .collect(),
        });
        let list = "feed_forward.gate_up_proj_adapter_list";
        let up = [0, width]
            .map(|first| TensorRows { rows: Rows::range(first, width), ..part(list, 1, 2 * width, rank) });
        SharedBlockTensors {
            norm: self.norm(tensor!("input_layernorm"), self.attention_input),
            attention_adapter,
            mlp_norm: self.norm(names.mlp_norm, hidden),
            mlp: self.dense_mlp(names.gate_up_proj, names.down_proj, width, config.mlp_bias),
            mlp_adapter: AdapterTensors {
                down: matrix(vec![part(list, 0, rank, hidden)], hidden),
                ups: vec![matrix(up.to_vec(), rank).interleaved()],
            },
            linear,
        }
    }
}
