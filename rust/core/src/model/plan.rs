//! What a model takes in memory, from the specs of its parts: nothing is loaded.

use super::load::MatrixTypes;
use crate::checkpoint::Checkpoint;
use crate::config::Config;
use crate::family;
use crate::kv_cache::KvLayout;
use crate::parts::{LeafRef, MatrixSpec, Part, Spec};
use ropechat_kernels::compute::weight::Weight;
use ropechat_kernels::quant::PackedType;
use ropechat_platform::error::Result;
use std::collections::BTreeSet;

/// The sizes of a model in one type.
#[derive(Debug, Clone)]
pub struct ModelPlan {
    /// The type of most bytes of the layers' matrices.
    pub dtype: PackedType,
    /// Bytes of all matrices of each type.
    pub bytes_by_type: Vec<(PackedType, usize)>,
    /// The cache's layout.
    pub kv_layout: KvLayout,
    /// That of the layer for multi-token prediction.
    pub mtp_kv_layout: Option<KvLayout>,
    /// Stride of a row of logits.
    pub padded_vocab: usize,
}

/// The matrices of a model in one type, without panels.
struct Matrices<'a> {
    types: MatrixTypes<'a>,
    layers: Vec<Weight>,
    outside: Vec<Weight>,
    /// The type of the first projection of queries, keys and values.
    projection: Option<PackedType>,
    padded_vocab: usize,
    dtype_of_embedding: PackedType,
}

impl ModelPlan {
    /// The plans of a model in each of the types (None: as it is stored). The specs of one layer at a time are in memory.
    ///
    /// # Errors
    /// As [`Model::load`](super::Model::load) for the tensors.
    pub fn of_types(
        checkpoint: &Checkpoint,
        config: &Config,
        dtypes: &[Option<PackedType>],
    ) -> Result<Vec<Self>> {
        let outside = family::outside_layers(config);
        let mut all = Vec::new();
        for &dtype in dtypes {
            let types = MatrixTypes { checkpoint, config, dtype };
            let embedding = types.measure(&outside.embed_tokens)?;
            let lm_head = outside.lm_head.as_ref().map(|matrix| types.measure(matrix)).transpose()?;
            all.push(Matrices {
                types,
                layers: Vec::new(),
                outside: matrices_of(&outside)
                    .into_iter()
                    .map(|matrix| types.measure(matrix))
                    .collect::<Result<_>>()?,
                projection: None,
                padded_vocab: lm_head.as_ref().unwrap_or(&embedding).padded_out(),
                dtype_of_embedding: embedding.dtype(),
            });
        }
        // Blocks that layers share count once.
        let mut names = BTreeSet::new();
        let layers = (0..config.layers.len()).filter(|&index| config.layers[index].repeats.is_none());
        for index in layers {
            let layer = family::layer(config, index);
            let projection = layer.attention.as_ref().map(|attention| attention.projection.input_matrix());
            add(&mut all, &layer, projection, &mut names)?;
        }
        if let Some(mtp) = family::mtp_layer(config) {
            add(&mut all, &mtp, None, &mut names)?;
        }
        Ok(all.into_iter().map(|matrices| matrices.plan(config)).collect())
    }

    /// Bytes of all packed matrices.
    pub fn weight_bytes(&self) -> usize {
        self.bytes_by_type.iter().map(|(_, bytes)| bytes).sum()
    }
}

impl Matrices<'_> {
    fn plan(self, config: &Config) -> ModelPlan {
        let most = by_type(&self.layers).into_iter().max_by_key(|(_, bytes)| *bytes);
        let kv_dtype = kv_type(self.projection);
        ModelPlan {
            dtype: most.map_or(self.dtype_of_embedding, |(dtype, _)| dtype),
            bytes_by_type: by_type(self.layers.iter().chain(&self.outside)),
            kv_layout: KvLayout::new(config, kv_dtype),
            mtp_kv_layout: config.of_mtp().map(|own| KvLayout::new(&own, kv_dtype)),
            padded_vocab: self.padded_vocab,
        }
    }
}

/// Adds the matrices of a part that are not in `names` yet to those of each type.
fn add(
    all: &mut [Matrices<'_>],
    part: &impl Part<Spec>,
    projection: Option<&MatrixSpec>,
    names: &mut BTreeSet<String>,
) -> Result<()> {
    let new: Vec<&MatrixSpec> =
        matrices_of(part).into_iter().filter(|matrix| names.insert(matrix.name())).collect();
    for matrices in all {
        for matrix in &new {
            matrices.layers.push(matrices.types.measure(matrix)?);
        }
        if let (None, Some(projection)) = (matrices.projection, projection) {
            matrices.projection = Some(matrices.types.measure(projection)?.dtype());
        }
    }
    Ok(())
}

fn matrices_of(part: &impl Part<Spec>) -> Vec<&MatrixSpec> {
    let mut all = Vec::new();
    part.visit(&mut |leaf| {
        if let LeafRef::Matrix(matrix) = leaf {
            all.push(matrix);
        }
    });
    all
}

/// The type of keys and values, if the user states none: f32 where the weights that make them are.
pub(super) fn kv_type(projection: Option<PackedType>) -> PackedType {
    match projection {
        None | Some(PackedType::F32) => PackedType::F32,
        Some(_) => PackedType::F16,
    }
}

/// Bytes of the weights of each type.
pub(super) fn by_type<'a>(weights: impl IntoIterator<Item = &'a Weight>) -> Vec<(PackedType, usize)> {
    let mut all: Vec<(PackedType, usize)> = Vec::new();
    for (dtype, bytes) in weights.into_iter().flat_map(Weight::bytes_by_type) {
        match all.iter_mut().find(|(known, _)| *known == dtype) {
            Some((_, all)) => *all += bytes,
            None => all.push((dtype, bytes)),
        }
    }
    all
}
