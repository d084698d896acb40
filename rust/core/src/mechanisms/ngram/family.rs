//! The specs of embeddings of n-grams.

use super::config::NgramEmbedding;
use super::parts::{InLayer, Outside};
use crate::config::{Bias, Stored, tensor};
use crate::family::tensors::{Build, Prefix};
use crate::parts::{MatrixSpec, Packing, Spec, TensorRows};

impl Build for NgramEmbedding {
    type InLayer = InLayer<Spec>;
    type Outside = Outside<Spec>;

    fn in_layer(&self, at: &Prefix<'_>) -> Option<InLayer<Spec>> {
        let table = self.table_of(at.index)?;
        let (hidden, width) = (at.config.hidden_size, self.channels);
        let rows = self.tables[table].rows;
        let each = rows.div_ceil(self.split_ngram_parts);
        let part = |number: usize| {
            let name = at.name(&format!("ple.ple_embedding.ngram_embedding.shard_{number}.weight"));
            let rows = each.min(rows - number * each);
            TensorRows::whole(name, Stored::OutIn, rows, self.row_width())
        };
        let projections = [(tensor!("ple.key_proj"), width), (tensor!("ple.value_proj"), hidden)];
        let weights = (0..rows.div_ceil(each)).map(part).collect();
        Some(InLayer {
            table: MatrixSpec::stacked(weights, Vec::new(), self.row_width()).packed(Packing::Finer),
            key_value_proj: at.matrix(&projections, self.ple_embed_dim, Bias::None),
            norms: [tensor!("ple.norm_key"), tensor!("ple.norm_query"), tensor!("ple.norm_conv")]
                .map(|name| at.norm(name, width)),
            conv: at.by_position(&[("ple.conv1d.weight", width)], self.ple_conv_kernel_size, |_| {}),
            // Behind the states of the mixers.
            state_layer: at.config.state_layer(at.config.layers.len()) + table,
            table_index: table,
        })
    }
}
