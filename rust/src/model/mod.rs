//! A model: its configuration and its packed weights.

mod load;
pub mod pack;

use crate::checkpoint::Checkpoint;
use crate::compute::pool::Pool;
use crate::compute::weight::Weight;
use crate::config::{Attention, Config};
use crate::error::Result;
use crate::family;
use crate::kv_cache::KvLayout;
use crate::model::pack::Packs;
use crate::quant::DType;
use load::Loader;

/// Everything that a forward reads.
pub struct Model {
    /// What the model is.
    pub config: Config,
    /// How its cache looks.
    pub kv_layout: KvLayout,
    /// `model.layers`.
    pub layers: Vec<Layer>,
    /// `model.norm`.
    pub norm: NormWeights,
    /// Learned positions.  // [max_position_embeddings, hidden_size], or empty
    pub positions: Vec<f32>,
    embed_tokens: Weight,
    lm_head: Option<Weight>,
}

/// A norm's parameters, of whatever kind: a weight that files store minus one has it back, an absent one is one.
pub struct NormWeights {
    /// The weight.
    pub weight: Vec<f32>,
    /// The bias; zeros when there is none.
    pub bias: Vec<f32>,
}

/// One decoder layer.
pub struct Layer {
    /// Norm of attention's input.
    pub attention_norm: Option<NormWeights>,
    /// Queries, keys and values.
    pub projection: Projection,
    /// Norms of q and k, written out for all heads.  // [num_heads * head_dim], [num_kv_heads * head_dim]
    pub qk_norms: Option<[NormWeights; 2]>,
    /// A score per query head that leads nowhere; empty when there is none.
    pub sinks: Vec<f32>,
    /// Attention's output.  // [hidden_size, num_heads * v_head_dim]
    pub o_proj: Weight,
    /// Norm of attention's output.
    pub attention_out_norm: Option<NormWeights>,
    /// Norm of the MLP's input.
    pub mlp_norm: Option<NormWeights>,
    /// The MLP.
    pub mlp: Mlp,
    /// Norm of the MLP's output.
    pub mlp_out_norm: Option<NormWeights>,
}

/// How a layer makes queries, keys and values.
pub enum Projection {
    /// q, k and v of all heads, stacked.  // [qkv_width, hidden_size]
    Heads(Weight),
    /// Through latents.
    Latent(Box<Latent>),
}

/// Projections of latent attention.
pub struct Latent {
    /// Queries or their latent, then keys' and values' latent, then the part of the keys that rotates.
    pub down: Weight,
    /// Norm and up-projection of the queries' latent.
    pub q: Option<(NormWeights, Weight)>,
    /// Norm of the keys' and values' latent.
    pub kv_norm: NormWeights,
    /// The part of all heads' keys that does not rotate, then all heads' values.
    pub kv: Weight,
}

/// A layer's MLP.
pub enum Mlp {
    /// One for all tokens.
    Dense(DenseMlp),
    /// A few of many.
    Experts(Box<MixtureMlp>),
}

/// down(act(up(x))), or down(act(gate(x)) * up(x)).
pub struct DenseMlp {
    /// up, or gate and up, interleaved.  // [intermediate_size or twice, hidden_size]
    pub up: Weight,
    /// down.  // [hidden_size, intermediate_size]
    pub down: Weight,
    /// `intermediate_size`.
    pub width: usize,
}

/// A mixture of experts.
pub struct MixtureMlp {
    /// A logit per expert, in f32.  // [num_experts, hidden_size]
    pub router: Weight,
    /// Added to the scores for the choice; empty when there is none.  // [num_experts]
    pub correction: Vec<f32>,
    /// The experts.
    pub experts: Vec<DenseMlp>,
    /// The expert that every token passes.
    pub shared: Option<DenseMlp>,
    /// Its gate.  // [1, hidden_size]
    pub shared_gate: Option<Weight>,
}

impl Model {
    /// Packs the weights of `checkpoint`, converted to `dtype` (None: each as it is stored).
    ///
    /// # Errors
    /// A tensor is missing or misshapen; memory.
    pub fn load(checkpoint: &Checkpoint, config: Config, dtype: Option<DType>, pool: &Pool) -> Result<Self> {
        Self::load_with(&Packs::none(), checkpoint, config, dtype, pool)
    }

    /// As [`Model::load`], with panels out of `packs` where they have them.
    ///
    /// # Errors
    /// As [`Model::load`].
    pub fn load_with(
        packs: &Packs,
        checkpoint: &Checkpoint,
        config: Config,
        dtype: Option<DType>,
        pool: &Pool,
    ) -> Result<Self> {
        let loader = Loader { checkpoint, config: &config, dtype, packs, pool };
        let slots = family::model_slots(&config);
        let layers = (0..config.layers.len()).map(|index| loader.layer(index)).collect::<Result<Vec<_>>>()?;
        let embed_tokens = loader.table().embedding(&slots.embed_tokens)?;
        let lm_head = slots.lm_head.map(|slot| loader.table().matrix(&slot)).transpose()?;
        let norm = loader.norm(&slots.norm)?;
        let positions = loader.rows(&slots.positions, config.hidden_size)?;
        let exact = layers.first().is_none_or(|layer| layer.projection.dtype() == DType::F32);
        let kv_layout = KvLayout::new(&config, if exact { DType::F32 } else { DType::F16 });
        Ok(Self { config, kv_layout, layers, norm, positions, embed_tokens, lm_head })
    }

    /// Keeps keys and values in `dtype` (F32, F16 or Q8_0) instead of f32 beside f32 weights and f16 beside others.
    #[must_use]
    pub fn with_kv(mut self, dtype: Option<DType>) -> Self {
        self.kv_layout.dtype = dtype.unwrap_or(self.kv_layout.dtype);
        self
    }

    /// Token id to residual stream.  // [vocab_size, hidden_size]
    pub fn embedding(&self) -> &Weight {
        &self.embed_tokens
    }

    /// Residual stream to logits.  // [vocab_size, hidden_size]
    pub fn unembedding(&self) -> &Weight {
        self.lm_head.as_ref().unwrap_or(&self.embed_tokens)
    }

    /// Stride of a row of logits: `vocab_size` up to whole panels.
    pub fn padded_vocab(&self) -> usize {
        self.unembedding().padded_out()
    }

    /// Stride of a row of queries, keys and values.
    pub fn qkv_stride(&self, layer: &Layer) -> usize {
        match (&layer.projection, self.config.attention) {
            (Projection::Heads(weight), Attention::Heads) => weight.padded_out(),
            _ => self.config.qkv_width(),
        }
    }

    /// What most of the layers' weights are stored in, by bytes.
    pub fn dtype(&self) -> DType {
        let mut all: Vec<(DType, usize)> = Vec::new();
        for weight in self.layers.iter().flat_map(Layer::weights) {
            match all.iter_mut().find(|(dtype, _)| *dtype == weight.dtype()) {
                Some((_, bytes)) => *bytes += weight.bytes(),
                None => all.push((weight.dtype(), weight.bytes())),
            }
        }
        let most = all.into_iter().max_by_key(|(_, bytes)| *bytes);
        most.map_or(self.embed_tokens.dtype(), |(dtype, _)| dtype)
    }

    /// Bytes of all packed matrices.
    pub fn weight_bytes(&self) -> usize {
        let ends = [Some(&self.embed_tokens), self.lm_head.as_ref()].into_iter().flatten();
        self.layers.iter().flat_map(Layer::weights).chain(ends).map(Weight::bytes).sum()
    }
}

impl Projection {
    /// What the weights are stored in.
    pub fn dtype(&self) -> DType {
        match self {
            Projection::Heads(weight) => weight.dtype(),
            Projection::Latent(latent) => latent.down.dtype(),
        }
    }
}

impl Layer {
    fn weights(&self) -> Vec<&Weight> {
        let mut all = vec![&self.o_proj];
        match &self.projection {
            Projection::Heads(weight) => all.push(weight),
            Projection::Latent(latent) => {
                all.extend([&latent.down, &latent.kv]);
                all.extend(latent.q.as_ref().map(|(_, up)| up));
            }
        }
        match &self.mlp {
            Mlp::Dense(mlp) => all.extend([&mlp.up, &mlp.down]),
            Mlp::Experts(mixture) => {
                all.push(&mixture.router);
                all.extend(&mixture.shared_gate);
                all.extend(
                    mixture.experts.iter().chain(&mixture.shared).flat_map(|mlp| [&mlp.up, &mlp.down]),
                );
            }
        }
        all
    }
}
