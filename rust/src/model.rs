//! A model: its configuration and its packed weights.

use crate::checkpoint::{Checkpoint, TensorView};
use crate::config::{Bias, Config, LmHead};
use crate::error::Result;
use crate::kv_cache::KvLayout;
use crate::parallel::Pool;
use crate::quant::DType;
use crate::weight::{Arrangement, Source, Weight};

/// Everything that a forward reads.
pub struct Model {
    /// What the model is.
    pub config: Config,
    /// How its cache looks.
    pub kv_layout: KvLayout,
    /// `model.layers`.
    pub layers: Vec<Layer>,
    /// `model.norm.weight`.  // [hidden_size]
    pub norm: Vec<f32>,
    embed_tokens: Weight,
    lm_head: Option<Weight>,
}

/// One decoder layer.
pub struct Layer {
    /// `input_layernorm.weight`.  // [hidden_size]
    pub input_layernorm: Vec<f32>,
    /// `self_attn.q_proj`, `k_proj` and `v_proj`, stacked.  // [(num_heads + 2 num_kv_heads) * head_dim, hidden_size]
    pub qkv_proj: Weight,
    /// `self_attn.o_proj`.  // [hidden_size, num_heads * head_dim]
    pub o_proj: Weight,
    /// `post_attention_layernorm.weight`.  // [hidden_size]
    pub post_attention_layernorm: Vec<f32>,
    /// `mlp.gate_proj` and `up_proj`, interleaved.  // [2 intermediate_size, hidden_size]
    pub gate_up_proj: Weight,
    /// `mlp.down_proj`.  // [hidden_size, intermediate_size]
    pub down_proj: Weight,
}

impl Model {
    /// Packs the weights of `checkpoint`, converted to `dtype` (None: each as it is stored).
    ///
    /// # Errors
    /// A tensor is missing or misshapen; memory.
    pub fn load(checkpoint: &Checkpoint, config: Config, dtype: Option<DType>, pool: &Pool) -> Result<Self> {
        let loader = Loader { checkpoint, config: &config, dtype, pool };
        let layers = (0..config.layers.len()).map(|index| loader.layer(index)).collect::<Result<Vec<_>>>()?;
        let table = [config.vocab_size, config.hidden_size];
        let (embed_tokens, lm_head) = match config.lm_head {
            // Some tied checkpoints store the matrix under the other name (safetensors drops shared tensors).
            LmHead::Tied => {
                let tensor =
                    checkpoint.require_any(&["model.embed_tokens.weight", "lm_head.weight"], &table)?;
                (loader.pack(&[tensor], Arrangement::Stacked, loader.table_dtype())?, None)
            }
            LmHead::Own => (
                loader.matrix("model.embed_tokens.weight", &table)?,
                Some(loader.matrix("lm_head.weight", &table)?),
            ),
        };
        let norm = loader.vector("model.norm.weight", config.hidden_size)?;
        let exact = layers.first().is_none_or(|layer| layer.qkv_proj.dtype() == DType::F32);
        let kv_layout = KvLayout::new(&config, if exact { DType::F32 } else { DType::F16 });
        Ok(Self { config, kv_layout, layers, norm, embed_tokens, lm_head })
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

    /// What the layers' weights are stored in.
    pub fn dtype(&self) -> DType {
        self.layers.first().map_or(self.embed_tokens.dtype(), |layer| layer.qkv_proj.dtype())
    }

    /// Bytes of all packed matrices.
    pub fn weight_bytes(&self) -> usize {
        let layer =
            |l: &Layer| l.qkv_proj.bytes() + l.o_proj.bytes() + l.gate_up_proj.bytes() + l.down_proj.bytes();
        self.layers.iter().map(layer).sum::<usize>()
            + self.embed_tokens.bytes()
            + self.lm_head.as_ref().map_or(0, Weight::bytes)
    }
}

/// What loading a tensor needs to know.
struct Loader<'a> {
    checkpoint: &'a Checkpoint,
    config: &'a Config,
    dtype: Option<DType>,
    pool: &'a Pool,
}

impl Loader<'_> {
    fn layer(&self, index: usize) -> Result<Layer> {
        let config = self.config;
        let (hidden, ffn) = (config.hidden_size, config.intermediate_size);
        let (q, kv) =
            (config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim);
        let name = |part: &str| format!("model.layers.{index}.{part}");
        let attention = |parts: &[(&str, usize)], width| {
            self.projection(index, parts, width, Arrangement::Stacked, config.attention_bias)
        };
        let mlp = |parts: &[(&str, usize)], width, arrangement| {
            self.projection(index, parts, width, arrangement, config.mlp_bias)
        };
        Ok(Layer {
            input_layernorm: self.vector(&name("input_layernorm.weight"), hidden)?,
            qkv_proj: attention(
                &[("self_attn.q_proj", q), ("self_attn.k_proj", kv), ("self_attn.v_proj", kv)],
                hidden,
            )?,
            o_proj: attention(&[("self_attn.o_proj", hidden)], q)?,
            post_attention_layernorm: self.vector(&name("post_attention_layernorm.weight"), hidden)?,
            gate_up_proj: mlp(
                &[("mlp.gate_proj", ffn), ("mlp.up_proj", ffn)],
                hidden,
                Arrangement::Interleaved,
            )?,
            down_proj: mlp(&[("mlp.down_proj", hidden)], ffn, Arrangement::Stacked)?,
        })
    }

    /// Projections of one layer that share their input, as one weight.
    fn projection(
        &self,
        layer: usize,
        parts: &[(&str, usize)],
        in_features: usize,
        arrangement: Arrangement,
        bias: Bias,
    ) -> Result<Weight> {
        let name = |part: &str, what: &str| format!("model.layers.{layer}.{part}.{what}");
        let tensors = parts
            .iter()
            .map(|&(part, out)| self.checkpoint.require(&name(part, "weight"), &[out, in_features]))
            .collect::<Result<Vec<_>>>()?;
        let weight = self.pack(&tensors, arrangement, self.dtype)?;
        match bias {
            Bias::None => Ok(weight),
            Bias::Added => {
                let biases = parts.iter().map(|&(part, out)| self.vector(&name(part, "bias"), out));
                Ok(weight.with_bias(&biases.collect::<Result<Vec<_>>>()?, arrangement))
            }
        }
    }

    /// Embedding and unembedding in q4_0 cost too much quality; q8_0 is what users of 4-bit files get elsewhere too.
    fn table_dtype(&self) -> Option<DType> {
        self.dtype.map(|dtype| if dtype == DType::Q4_0 { DType::Q8_0 } else { dtype })
    }

    fn matrix(&self, name: &str, shape: &[usize]) -> Result<Weight> {
        self.pack(&[self.checkpoint.require(name, shape)?], Arrangement::Stacked, self.table_dtype())
    }

    fn pack(
        &self,
        tensors: &[TensorView<'_>],
        arrangement: Arrangement,
        dtype: Option<DType>,
    ) -> Result<Weight> {
        let sources: Vec<Source<'_>> = tensors
            .iter()
            .map(|t| Source { dtype: t.dtype, out_features: t.shape[0], bytes: t.bytes })
            .collect();
        let dtype = dtype.unwrap_or(sources[0].dtype);
        Weight::pack(&sources, arrangement, tensors[0].shape[1], dtype, self.pool)
    }

    fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>> {
        let tensor = self.checkpoint.require(name, &[len])?;
        Ok(tensor.dtype.values(tensor.bytes).collect())
    }
}
