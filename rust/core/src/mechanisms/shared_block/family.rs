//! The specs of a block that layers share, as Zamba 2 names them.

use super::config::SharedBlock;
use super::parts::{Adapter, InLayer, Outside};
use crate::config::{Bias, Stored, tensor};
use crate::family::tensors::{Build, Prefix};
use crate::parts::{DenseMlp, Join, MatrixSpec, NormSpec, Packing, Rows, Spec, TensorRows};

/// Where the rest of a layer with a block is.
const REST: &str = "mamba_decoder.";

impl SharedBlock {
    /// The place of a layer among those with a block, and the path of its block.
    fn block<'a>(&self, at: &Prefix<'a>) -> Option<(usize, Prefix<'a>)> {
        let [place, first] = self.of_layer(at.index)?;
        let (config, names) = (at.config, &at.config.names);
        let path = format!("{}{}.{first}.shared_transformer.", names.base, names.layers);
        let block = Prefix::new(config, path, at.index);
        Some((place, Prefix { attention_input: 2 * config.hidden_size, is_shared: true, ..block }))
    }
}

/// Norm of what the block at a path reads.
fn norm(block: &Prefix<'_>) -> NormSpec {
    block.norm(tensor!("input_layernorm"), block.attention_input)
}

impl Build for SharedBlock {
    type InLayer = InLayer<Spec>;
    type Outside = Outside<Spec>;

    fn attention_elsewhere<'a>(&self, at: &mut Prefix<'a>) -> Option<(Prefix<'a>, NormSpec)> {
        let (_, block) = self.block(at)?;
        at.path.push_str(REST);
        let norm = norm(&block);
        Some((block, norm))
    }

    /// The block without its attention. Its adapters belong to the layer, as the last projection does.
    fn in_layer(&self, at: &Prefix<'_>) -> Option<InLayer<Spec>> {
        let (index, block) = self.block(at)?;
        let layer = Prefix::new(at.config, at.path.trim_end_matches(REST).to_owned(), at.index);
        let (config, names, rank) = (at.config, &at.config.names, self.adapter_rank);
        let (hidden, width) = (config.hidden_size, config.intermediate_size);
        let part = |list: &str, place: usize, rows: usize, columns: usize| {
            let name = block.name(&format!("{list}.{index}.{place}.weight"));
            TensorRows::whole(name, Stored::OutIn, rows, columns)
        };
        let matrix = |weights: Vec<TensorRows>, in_features: usize| {
            MatrixSpec::stacked(weights, Vec::new(), in_features)
        };
        let heads = block.heads;
        let keys = heads.num_key_value_heads * heads.head_dim;
        let attention = [("q", heads.q_width()), ("k", keys), ("v", keys)]
            .map(|(part, rows)| (format!("self_attn.linear_{part}_adapter_list"), rows));
        let of_attention = || {
            let down = attention.iter().map(|(list, _)| part(list, 0, rank, block.attention_input)).collect();
            let up = |(list, rows): &(String, usize)| matrix(vec![part(list, 1, *rows, rank)], rank);
            adapter(&block.qkv(), matrix(down, block.attention_input), attention.iter().map(up).collect())
        };
        let list = "feed_forward.gate_up_proj_adapter_list";
        let up = [0, width]
            .map(|first| TensorRows { rows: Rows::range(first, width), ..part(list, 1, 2 * width, rank) });
        let mlp = block.dense_mlp(names.gate_up_proj, names.down_proj, width, config.mlp_bias);
        let [gate_up_proj, down_proj] =
            [mlp.gate_up_proj, mlp.down_proj].map(|matrix| matrix.packed(Packing::Shared));
        Some(InLayer {
            norm: norm(&block),
            attention_adapter: self.attention_adapter.then(of_attention),
            mlp_norm: block.norm(names.mlp_norm, hidden),
            mlp_adapter: adapter(
                &gate_up_proj,
                matrix(vec![part(list, 0, rank, hidden)], hidden),
                vec![matrix(up.to_vec(), rank).interleaved()],
            ),
            mlp: DenseMlp { gate_up_proj, down_proj, ..mlp },
            linear: layer.matrix(&[(tensor!("linear"), hidden)], hidden, Bias::None),
        })
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
