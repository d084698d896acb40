//! The tensors of a block that layers share, as Zamba 2 names them.

use super::prefix::Prefix;
use crate::config::{SharedBlock, Stored, tensor};
use crate::parts::{
    Adapter, DenseMlp, Join, MatrixSpec, NormSpec, Packing, Rows, SharedBlockWeights, Spec, TensorRows,
};

impl Prefix<'_> {
    /// Norm of what the block at this path reads.
    pub fn shared_block_norm(&self) -> NormSpec {
        self.norm(tensor!("input_layernorm"), self.attention_input)
    }

    /// The rest of the block at this path, without its attention, which projects with `projection`; `linear` belongs to the
    /// layer, as the adapters with number `index` do.
    pub fn shared_block(
        &self,
        block: &SharedBlock,
        index: usize,
        linear: MatrixSpec,
        projection: &MatrixSpec,
    ) -> SharedBlockWeights<Spec> {
        let (config, names, rank) = (self.config, &self.config.names, block.adapter_rank);
        let (hidden, width) = (config.hidden_size, config.intermediate_size);
        let part = |list: &str, place: usize, rows: usize, columns: usize| {
            let name = self.name(&format!("{list}.{index}.{place}.weight"));
            TensorRows::whole(name, Stored::OutIn, rows, columns)
        };
        let matrix = |weights: Vec<TensorRows>, in_features: usize| {
            MatrixSpec::stacked(weights, Vec::new(), in_features)
        };
        let heads = self.heads;
        let keys = heads.num_key_value_heads * heads.head_dim;
        let attention = [("q", heads.q_width()), ("k", keys), ("v", keys)]
            .map(|(part, rows)| (format!("self_attn.linear_{part}_adapter_list"), rows));
        let of_attention = || {
            let down = attention.iter().map(|(list, _)| part(list, 0, rank, self.attention_input)).collect();
            let up = |(list, rows): &(String, usize)| matrix(vec![part(list, 1, *rows, rank)], rank);
            adapter(projection, matrix(down, self.attention_input), attention.iter().map(up).collect())
        };
        let list = "feed_forward.gate_up_proj_adapter_list";
        let up = [0, width]
            .map(|first| TensorRows { rows: Rows::range(first, width), ..part(list, 1, 2 * width, rank) });
        let mlp = self.dense_mlp(names.gate_up_proj, names.down_proj, width, config.mlp_bias);
        let [gate_up_proj, down_proj] =
            [mlp.gate_up_proj, mlp.down_proj].map(|matrix| matrix.packed(Packing::Shared));
        SharedBlockWeights {
            norm: self.shared_block_norm(),
            attention_adapter: block.attention_adapter.then(of_attention),
            mlp_norm: self.norm(names.mlp_norm, hidden),
            mlp_adapter: adapter(
                &gate_up_proj,
                matrix(vec![part(list, 0, rank, hidden)], hidden),
                vec![matrix(up.to_vec(), rank).interleaved()],
            ),
            mlp: DenseMlp { gate_up_proj, down_proj, ..mlp },
            linear,
        }
    }
}

/// An adapter in the type of the matrix that it corrects: both read the same input.
fn adapter(corrected: &MatrixSpec, down: MatrixSpec, ups: Vec<MatrixSpec>) -> Adapter<Spec> {
    let like = |matrix: MatrixSpec| matrix.packed(Packing::Like(Box::new(corrected.clone())));
    let columns = |up: &MatrixSpec| match up.join {
        Join::Stacked => Some(up.weights.iter().map(|rows| rows.rows.count()).sum()),
        Join::Interleaved => None,
    };
    Adapter {
        rank: ups.first().map_or(0, |up| up.in_features),
        columns: ups.iter().map(columns).collect(),
        down: like(down),
        ups: ups.into_iter().map(like).collect(),
    }
}
