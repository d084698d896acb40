//! A model: its configuration and its packed weights.

mod load;
pub mod pack;
mod plan;

pub use plan::ModelPlan;

use crate::checkpoint::Checkpoint;
use crate::config::Config;
use crate::family;
use crate::kv_cache::KvLayout;
use crate::model::pack::PanelSource;
use crate::parts::{HiddenInput, Layer, LeafRef, Load, OutsideLayers, Packed, Part};
use load::{CheckpointLoader, MatrixTypes};
use plan::{by_type, kv_type};
use ropechat_kernels::compute::pool::Pool;
use ropechat_kernels::compute::weight::Weight;
use ropechat_kernels::kernel::Kernels;
use ropechat_kernels::quant::PackedType;
use ropechat_platform::error::Result;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Everything that a forward reads.
pub struct Model {
    /// What the model is.
    pub config: Config,
    /// How its cache looks.
    pub kv_layout: KvLayout,
    /// `model.layers`.
    pub layers: Vec<Layer>,
    /// What is outside the layers.
    pub outside: OutsideLayers,
    /// What the layer for multi-token prediction reads; None in other models.
    pub hidden_input: Option<HiddenInput>,
    /// The layer for multi-token prediction, as a model with this one's embedding and projection to logits.
    pub mtp: Option<Arc<Model>>,
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
        let loader = |config| CheckpointLoader {
            types: MatrixTypes { checkpoint, config, dtype },
            panels,
            pool,
            shared: RefCell::default(),
        };
        let of_model = loader(&config);
        let mut layers: Vec<Layer> = Vec::with_capacity(config.layers.len());
        for (index, &spec) in config.layers.iter().enumerate() {
            layers.push(match spec.repeats {
                Some(first) => layers[first].repeated(index, spec),
                None => family::layer(&config, index).load(&of_model)?,
            });
        }
        let outside = family::outside_layers(&config).load(&of_model)?;
        let mut projections = layers.iter().filter_map(|layer| Some(&layer.attention.as_ref()?.projection));
        let kv_dtype = kv_type(projections.next().map(|projection| projection.dtype()));
        let mtp = match (family::mtp_layer(&config), config.of_mtp()) {
            (Some(mtp), Some(own)) => {
                let mtp = mtp.load(&loader(&own))?;
                Some(Arc::new(Self {
                    kv_layout: KvLayout::new(&own, kv_dtype),
                    layers: vec![mtp.layer],
                    outside: outside.ends(mtp.norm),
                    hidden_input: Some(mtp.input),
                    mtp: None,
                    config: own,
                }))
            }
            _ => None,
        };
        let kv_layout = KvLayout::new(&config, kv_dtype);
        Ok(Self { config, kv_layout, layers, outside, hidden_input: None, mtp })
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
        &self.outside.embed_tokens
    }

    /// Residual stream to logits.  // [vocab_size, hidden_size]
    pub fn lm_head(&self) -> &Weight {
        self.outside.lm_head.as_ref().unwrap_or(self.embedding())
    }

    /// Stride of a row of logits: `vocab_size` up to whole panels.
    pub fn padded_vocab(&self) -> usize {
        self.lm_head().padded_out()
    }

    /// The type that most bytes of the layers' weights are stored in.
    pub fn dtype(&self) -> PackedType {
        let most = by_type(self.layer_weights()).into_iter().max_by_key(|(_, bytes)| *bytes);
        most.map_or(self.embedding().dtype(), |(dtype, _)| dtype)
    }

    /// Bytes of all packed matrices of each type.
    pub fn bytes_by_type(&self) -> Vec<(PackedType, usize)> {
        let mut all = self.layer_weights();
        all.extend(weights_of(&self.outside));
        by_type(all)
    }

    /// The matrices of all layers, each once: layers share those of a block, and some layers repeat another one.
    fn layer_weights(&self) -> Vec<&Weight> {
        let models = [Some(self), self.mtp.as_deref()].into_iter().flatten();
        let all = models.flat_map(|model| {
            let layers = model.layers.iter().flat_map(|layer| weights_of(layer));
            layers.chain(weights_of(&model.hidden_input))
        });
        let mut seen = BTreeSet::new();
        all.filter(|weight| seen.insert(weight.address())).collect()
    }

    /// Bytes of the packed matrices of all layers.
    pub fn layer_bytes(&self) -> usize {
        by_type(self.layer_weights()).into_iter().map(|(_, bytes)| bytes).sum()
    }

    /// Bytes of all packed matrices.
    pub fn weight_bytes(&self) -> usize {
        self.bytes_by_type().into_iter().map(|(_, bytes)| bytes).sum()
    }
}

fn weights_of(part: &impl Part<Packed>) -> Vec<&Weight> {
    let mut all = Vec::new();
    part.visit(&mut |leaf| {
        if let LeafRef::Matrix(weight) = leaf {
            all.push(weight);
        }
    });
    all
}
