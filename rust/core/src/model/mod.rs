//! A model: its configuration and its packed weights.

mod load;
pub mod pack;
mod weights;

pub use weights::{
    Adapter, AltUpLayer, AttentionLayer, CompressionWeights, DenseAndMoe, DenseMlp, DynamicMaskWeights,
    HeadExpertsWeights, HiddenInput, HyperWeights, IndexerWeights, Layer, MlaWeights, Mlp, MoeMlp,
    NgramWeights, NormGate, NormWeights, PerLayerEmbedding, PerLayerInput, Projection, QkConvolutionWeights,
    RecurrentWeights, RelativeScoreWeights, ResidualScales, RouterMlpWeights, SharedBlockWeights,
    SharedKvWeights, ShortConvolution,
};

use crate::checkpoint::Checkpoint;
use crate::config::Config;
use crate::family;
use crate::kv_cache::KvLayout;
use crate::model::pack::PanelSource;
use crate::parts::Visit;
use load::Loader;
use ropechat_kernels::compute::panels::Arrangement;
use ropechat_kernels::compute::pool::Pool;
use ropechat_kernels::compute::weight::Weight;
use ropechat_kernels::kernel::Kernels;
use ropechat_kernels::quant::PackedType;
use ropechat_platform::error::Result;
use std::cell::RefCell;
use std::sync::Arc;

/// Everything that a forward reads.
pub struct Model {
    /// What the model is.
    pub config: Config,
    /// How its cache looks.
    pub kv_layout: KvLayout,
    /// `model.layers`.
    pub layers: Vec<Layer>,
    /// `model.norm`, where the model has it.
    pub norm: Option<NormWeights>,
    /// Norm of the embedding.
    pub embedding_norm: Option<NormWeights>,
    /// Scale and bias of the embedding: (x + bias) * scale.
    pub embedding_scales: Option<[Vec<f32>; 2]>,
    /// A second embedding, a part of which each layer adds.
    pub per_layer: Option<PerLayerEmbedding>,
    /// A matrix and a norm before the projection to logits.
    pub head_transform: Option<(Weight, NormWeights)>,
    /// From the first residual stream to the others, and back; empty where there is one stream.
    pub streams: [Vec<Weight>; 2],
    /// Learned positions.  // [max_position_embeddings, hidden_size], or empty
    pub positions: Vec<f32>,
    /// The first state of the low one of two stacks; empty where there is one stack.
    pub low_state: Vec<f32>,
    /// The hyper-connection after the last layer.
    pub hyper_head: Option<HyperWeights>,
    /// What the layer for multi-token prediction reads; None in other models.
    pub hidden_input: Option<HiddenInput>,
    /// The layer for multi-token prediction, as a model with this one's embedding and projection to logits.
    pub mtp: Option<Arc<Model>>,
    embed_tokens: Weight,
    lm_head: Option<Weight>,
}

impl Model {
    /// Loads the weights of `checkpoint`, converted to `dtype` (None: each as it is stored).
    ///
    /// # Errors
    /// A tensor is missing or misshapen; memory.
    pub fn load(
        checkpoint: &Checkpoint,
        config: Config,
        dtype: Option<PackedType>,
        pool: &Pool,
    ) -> Result<Self> {
        Self::load_with(&PanelSource::none(), checkpoint, config, dtype, pool)
    }

    /// As [`Model::load`], with the panels that `panels` has.
    ///
    /// # Errors
    /// As [`Model::load`].
    pub fn load_with(
        panels: &PanelSource,
        checkpoint: &Checkpoint,
        config: Config,
        dtype: Option<PackedType>,
        pool: &Pool,
    ) -> Result<Self> {
        let shared = RefCell::default();
        let loader = Loader { checkpoint, config: &config, dtype, panels, pool, shared: &shared };
        let tensors = family::model_tensors(&config);
        let mut layers: Vec<Layer> = Vec::with_capacity(config.layers.len());
        for (index, &spec) in config.layers.iter().enumerate() {
            layers.push(match spec.repeats {
                Some(first) => layers[first].repeated(index, spec),
                None => loader.layer(index)?,
            });
        }
        let mut embed_tokens = loader.for_embedding().embedding(&tensors.embed_tokens)?;
        if !tensors.tied_bias.is_empty() {
            let bias = loader.rows(&tensors.tied_bias, 1)?;
            embed_tokens = embed_tokens.with_bias(&[bias], Arrangement::Stacked);
        }
        let head_transform = match &tensors.head_transform {
            None => None,
            Some((dense, norm)) => Some((loader.matrix(dense)?, loader.norm(norm)?)),
        };
        let lm_head = tensors.lm_head.map(|matrix| loader.for_embedding().matrix(&matrix)).transpose()?;
        let norm = tensors.norm.as_ref().map(|norm| loader.norm(norm)).transpose()?;
        let positions = loader.rows(&tensors.positions, config.hidden_size)?;
        let hyper_head = tensors.hyper_head.as_ref().map(|hyper| loader.hyper(hyper)).transpose()?;
        let low_state = loader.rows(&tensors.low_state, 1)?;
        let mut projections = layers.iter().filter_map(|layer| Some(&layer.attention.as_ref()?.projection));
        let exact = projections.next().is_none_or(|projection| projection.dtype() == PackedType::F32);
        let kv_dtype = if exact { PackedType::F32 } else { PackedType::F16 };
        let kv_layout = KvLayout::new(&config, kv_dtype);
        let embedding_norm = tensors.embedding_norm.map(|norm| loader.norm(&norm)).transpose()?;
        let embedding_scales = match &tensors.embedding_scales[..] {
            [scale, bias] => Some([loader.vector(scale)?, loader.vector(bias)?]),
            _ => None,
        };
        let per_layer = match &tensors.per_layer {
            None => None,
            Some(spec) => Some(PerLayerEmbedding {
                embed_tokens: loader.for_embedding().matrix(&spec.embed_tokens)?,
                model_projection: loader.matrix(&spec.model_projection)?,
                projection_norm: loader.norm(&spec.projection_norm)?,
            }),
        };
        let all = |specs: &[family::MatrixSpec]| {
            specs.iter().map(|spec| loader.matrix(spec)).collect::<Result<_>>()
        };
        let streams = [all(&tensors.streams[0])?, all(&tensors.streams[1])?];
        let mtp = match (family::mtp_tensors(&config), config.of_mtp()) {
            (Some(tensors), Some(own)) => {
                let loader = Loader { config: &own, ..loader };
                Some(Arc::new(Self {
                    kv_layout: KvLayout::new(&own, kv_dtype),
                    layers: vec![loader.layer(0)?],
                    norm: Some(loader.norm(&tensors.norm)?),
                    embedding_norm: None,
                    embedding_scales: None,
                    per_layer: None,
                    head_transform: None,
                    streams: [Vec::new(), Vec::new()],
                    positions: Vec::new(),
                    low_state: Vec::new(),
                    hyper_head: None,
                    hidden_input: Some(HiddenInput {
                        embedding_norm: loader.norm(&tensors.embedding_norm)?,
                        hidden_norm: loader.norm(&tensors.hidden_norm)?,
                        fc: loader.matrix(&tensors.fc)?,
                    }),
                    mtp: None,
                    embed_tokens: embed_tokens.clone(),
                    lm_head: lm_head.clone(),
                    config: own,
                }))
            }
            _ => None,
        };
        Ok(Self {
            hidden_input: None,
            mtp,
            config,
            kv_layout,
            layers,
            norm,
            embedding_norm,
            embedding_scales,
            per_layer,
            head_transform,
            streams,
            positions,
            low_state,
            hyper_head,
            embed_tokens,
            lm_head,
        })
    }

    /// Keeps keys and values in `dtype` (F32, F16, BF16 or Q8_0). None: f32 for f32 weights; for others bf16 where `kernels`
    /// multiply it faster, else f16.
    #[must_use]
    pub fn with_kv(mut self, dtype: Option<PackedType>, kernels: Kernels) -> Self {
        let is_f16 = self.kv_layout.dtype == PackedType::F16;
        let faster = (is_f16 && kernels.multiplies_bf16()).then_some(PackedType::BF16);
        if let Some(dtype) = dtype.or(faster) {
            self.kv_layout = self.kv_layout.with_dtype(dtype);
            if let Some(mtp) = self.mtp.as_mut().and_then(Arc::get_mut) {
                mtp.kv_layout = mtp.kv_layout.with_dtype(dtype);
            }
        }
        self
    }

    /// Token id to residual stream.  // [vocab_size, hidden_size]
    pub fn embedding(&self) -> &Weight {
        &self.embed_tokens
    }

    /// Residual stream to logits.  // [vocab_size, hidden_size]
    pub fn lm_head(&self) -> &Weight {
        self.lm_head.as_ref().unwrap_or(&self.embed_tokens)
    }

    /// Stride of a row of logits: `vocab_size` up to whole panels.
    pub fn padded_vocab(&self) -> usize {
        self.lm_head().padded_out()
    }

    /// The type that most bytes of the layers' weights are stored in.
    pub fn dtype(&self) -> PackedType {
        let most = by_type(self.layer_weights().into_iter()).into_iter().max_by_key(|(_, bytes)| *bytes);
        most.map_or(self.embed_tokens.dtype(), |(dtype, _)| dtype)
    }

    /// Bytes of all packed matrices of each type.
    pub fn bytes_by_type(&self) -> Vec<(PackedType, usize)> {
        let mut all = self.layer_weights();
        let mut add = |weight| all.push(weight);
        self.embed_tokens.visit(&mut add);
        self.lm_head.visit(&mut add);
        self.per_layer.visit(&mut add);
        self.streams.visit(&mut add);
        self.hyper_head.visit(&mut add);
        self.head_transform.iter().for_each(|(dense, _)| dense.visit(&mut add));
        by_type(all.into_iter())
    }

    /// The matrices of all layers; those of a layer that repeats another one are the same.
    fn layer_weights(&self) -> Vec<&Weight> {
        let mut all = Vec::new();
        let mut add = |weight| all.push(weight);
        for model in [Some(self), self.mtp.as_deref()].into_iter().flatten() {
            let layers = model.layers.iter().filter(|layer| layer.spec.repeats.is_none());
            layers.for_each(|layer| layer.visit(&mut add));
            model.hidden_input.visit(&mut add);
        }
        all
    }

    /// Bytes of the packed matrices of all layers.
    pub fn layer_bytes(&self) -> usize {
        by_type(self.layer_weights().into_iter()).into_iter().map(|(_, bytes)| bytes).sum()
    }

    /// Bytes of all packed matrices.
    pub fn weight_bytes(&self) -> usize {
        self.bytes_by_type().into_iter().map(|(_, bytes)| bytes).sum()
    }
}

/// Bytes of the weights of each type.
fn by_type<'a>(weights: impl Iterator<Item = &'a Weight>) -> Vec<(PackedType, usize)> {
    let mut all: Vec<(PackedType, usize)> = Vec::new();
    for (dtype, bytes) in weights.flat_map(Weight::bytes_by_type) {
        match all.iter_mut().find(|(known, _)| *known == dtype) {
            Some((_, all)) => *all += bytes,
            None => all.push((dtype, bytes)),
        }
    }
    all
}
