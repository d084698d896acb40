//! From a checkpoint's tensors to packed weights: layer by layer.

mod attention;
mod gather;
mod matrix;
mod mlp;
mod recurrent;

use gather::gathered;

use std::cell::RefCell;
use std::collections::BTreeMap;

use crate::checkpoint::Checkpoint;
use crate::config::{Config, NormPlacement, NormWeight};
use crate::family::{self, HyperTensors, MlpTensors, NgramTensors, NormSpec, TensorRows};
use crate::model::pack::PanelSource;
use crate::model::weights::{
    AltUpLayer, AttentionLayer, DenseAndMoe, DenseMlp, HyperWeights, Layer, Mlp, NgramWeights, NormGate,
    NormWeights, PerLayerInput, ResidualScales,
};
use ropechat_kernels::compute::pool::Pool;
use ropechat_kernels::compute::weight::Weight;
use ropechat_kernels::quant::PackedType;
use ropechat_platform::error::{Error, Result};

/// Everything that loading a tensor needs.
pub(super) struct Loader<'a> {
    pub checkpoint: &'a Checkpoint,
    pub config: &'a Config,
    pub dtype: Option<PackedType>,
    pub panels: &'a PanelSource,
    pub pool: &'a Pool,
    /// Weights of blocks that layers share, by the names of their specs.
    pub shared: &'a RefCell<BTreeMap<String, Weight>>,
}

impl<'a> Loader<'a> {
    pub fn layer(&self, index: usize) -> Result<Layer> {
        let tensors = family::layer_tensors(self.config, index);
        let [norm, out_norm, mlp_norm, mlp_out_norm] = tensors.norms;
        let [scales_of_attention, of_mlp] = tensors.residual_scales;
        let some = |norm: Option<NormSpec>| norm.map(|norm| self.norm(&norm)).transpose();
        let (stream_norms, norm, mlp_norm) = match self.config.norm_placement {
            NormPlacement::InStream => ([some(norm)?, some(mlp_norm)?], None, None),
            _ => ([None, None], norm, mlp_norm),
        };
        let norms = [norm.as_ref(), out_norm.as_ref()];
        // Attention of a shared block has that one's norm.
        let of_attention = match &tensors.shared_block {
            Some(block) => [Some(&block.norm), None],
            None => norms,
        };
        let attention =
            tensors.attention.map(|attention| self.attention(index, attention, of_attention)).transpose()?;
        let (branch_convolutions, mlp_convolution) = match &tensors.branch_convolutions {
            None => (None, None),
            Some(convolutions) => {
                let [of_kv, of_attention, of_mlp] = self.branch_convolutions(index, convolutions)?;
                (Some(Box::new([of_kv, of_attention])), Some(of_mlp))
            }
        };
        let attention = match attention {
            None => None,
            Some(attention) => {
                let residual_scales = self.residual_scales(&scales_of_attention)?;
                Some(AttentionLayer { residual_scales, branch_convolutions, ..attention })
            }
        };
        let shared_block = match (&tensors.shared_block, &attention) {
            (Some(block), Some(attention)) => {
                Some(Box::new(self.shared_block(index, block, attention.projection.dtype())?))
            }
            _ => None,
        };
        let recurrent =
            tensors.recurrent.map(|recurrent| self.recurrent(index, recurrent, norms)).transpose()?;
        let spec = self.config.layers[index];
        let dense = |mlp| {
            let mlp = self.mlp(mlp)?;
            let activation = spec.activation.unwrap_or(mlp.activation);
            Ok::<_, Error>(DenseMlp { activation, gate_cutoff: spec.gate_cutoff, ..mlp })
        };
        let mlp = match &tensors.mlp {
            None => None,
            Some(MlpTensors::Dense(mlp)) => Some(Mlp::Dense(Box::new(dense(mlp)?))),
            Some(MlpTensors::Moe(moe)) => Some(Mlp::Moe(Box::new(self.moe(moe)?))),
            Some(MlpTensors::DenseAndMoeForNext(mlp, moe)) => {
                Some(Mlp::DenseAndMoeForNext(Box::new((dense(mlp)?, self.moe(moe)?))))
            }
            Some(MlpTensors::DenseAndMoe(mlp, moe, norms)) => {
                let [dense_out_norm, moe_norm, moe_out_norm] = &**norms;
                Some(Mlp::DenseAndMoe(Box::new(DenseAndMoe {
                    dense: dense(mlp)?,
                    moe: self.moe(moe)?,
                    dense_out_norm: self.norm(dense_out_norm)?,
                    moe_norm: self.norm(moe_norm)?,
                    moe_out_norm: self.norm(moe_out_norm)?,
                })))
            }
        };
        let per_layer_input = match &tensors.per_layer_input {
            None => None,
            Some((gate, projection, out_norm)) => Some(PerLayerInput {
                gate: self.matrix(gate)?,
                projection: self.matrix(projection)?,
                out_norm: self.norm(out_norm)?,
            }),
        };
        let alt_up = match &tensors.alt_up {
            None => None,
            Some(tensors) => {
                let mut router_norm = self.norm(&tensors.router_norm)?;
                let hidden = self.config.hidden_size as f32;
                router_norm.weight.iter_mut().for_each(|weight| *weight /= hidden);
                let table = |source: &TensorRows| {
                    self.rows(std::slice::from_ref(source), source.shape.get(1).copied().unwrap_or(1))
                };
                Some(Box::new(AltUpLayer {
                    router_norm,
                    modality_router: table(&tensors.modality_router)?,
                    prediction_coefs: table(&tensors.prediction_coefs)?,
                    correction_coefs: table(&tensors.correction_coefs)?,
                    correct_output_scale: table(&tensors.correct_output_scale)?,
                    laurel_left: self.matrix(&tensors.laurel_left)?,
                    laurel_right: self.matrix(&tensors.laurel_right)?,
                    laurel_norm: self.norm(&tensors.laurel_norm)?,
                    laurel_rank: tensors.laurel_right.in_features,
                }))
            }
        };
        Ok(Layer {
            index,
            spec,
            stream_norms,
            attention,
            recurrent,
            shared_block,
            mlp_norm: mlp_norm.map(|spec| self.mlp_norm(&spec)).transpose()?,
            mlp,
            mlp_convolution,
            mlp_out_norm: mlp_out_norm.map(|spec| self.norm(&spec)).transpose()?,
            per_layer_input,
            alt_up,
            hyper: match tensors.hyper.as_deref() {
                None => None,
                Some([attention, mlp]) => Some(Box::new([self.hyper(attention)?, self.hyper(mlp)?])),
            },
            ngram: match (tensors.ngram, spec.ngram_table) {
                (Some(tensors), Some(table_index)) => Some(Box::new(self.ngram(&tensors, table_index)?)),
                _ => None,
            },
            scalar: self.rows(&tensors.scalar, 1)?.first().copied().unwrap_or(1.0),
            mlp_residual_scales: self.residual_scales(&of_mlp)?,
        })
    }

    /// A layer's place among those with a recurrent state.
    pub(super) fn state_layer(&self, layer: usize) -> usize {
        self.config.layers[..layer].iter().filter(|layer| layer.mixer.is_recurrent()).count()
    }

    /// How a branch is added: scale and bias of the branch, then of the stream; or the scale of the stream alone.
    pub(super) fn residual_scales(&self, tensors: &[TensorRows]) -> Result<Option<ResidualScales>> {
        if let [stream] = tensors {
            let stream = self.vector(stream)?;
            let [branch, bias] = [1.0, 0.0].map(|value| vec![value; stream.len()]);
            return Ok(Some(ResidualScales { branch, stream, bias }));
        }
        let [branch, branch_bias, stream, stream_bias] = tensors else { return Ok(None) };
        let (branch, stream) = (self.vector(branch)?, self.vector(stream)?);
        let both = [(&branch, self.vector(branch_bias)?), (&stream, self.vector(stream_bias)?)];
        let [of_branch, of_stream] = both.map(|(scale, bias)| {
            scale.iter().zip(bias).map(|(scale, bias)| scale * bias).collect::<Vec<f32>>()
        });
        let bias = of_branch.iter().zip(&of_stream).map(|(a, b)| a + b).collect();
        Ok(Some(ResidualScales { branch, stream, bias }))
    }

    /// A vector as numbers.
    pub fn vector(&self, source: &TensorRows) -> Result<Vec<f32>> {
        self.rows(std::slice::from_ref(source), 1)
    }

    /// The norm of the MLP's input, times the factor of that input.
    pub(super) fn mlp_norm(&self, spec: &NormSpec) -> Result<NormWeights> {
        let mut norm = self.norm(spec)?;
        norm.weight.iter_mut().for_each(|weight| *weight *= self.config.mlp_input_factor);
        Ok(norm)
    }

    pub fn hyper(&self, tensors: &HyperTensors) -> Result<HyperWeights> {
        let table = |source: &TensorRows| {
            self.rows(std::slice::from_ref(source), source.shape.get(1).copied().unwrap_or(1))
        };
        Ok(match tensors {
            HyperTensors::Sigmoid { matrix, base, scale } => {
                HyperWeights::Sigmoid { matrix: table(matrix)?, base: table(base)?, scale: table(scale)? }
            }
            HyperTensors::LowRank { norm, down, up } => HyperWeights::LowRank {
                norm: self.norm(norm)?,
                down: self.matrix(down)?,
                up: self.matrix(up)?,
            },
        })
    }

    pub(super) fn ngram(&self, tensors: &NgramTensors, table_index: usize) -> Result<NgramWeights> {
        let positions = tensors.conv.shape[2];
        let by_channel = self.rows(std::slice::from_ref(&tensors.conv), positions)?;
        let [key, stream, conv] = &tensors.norms;
        Ok(NgramWeights {
            // Behind the states of the mixers.
            state_layer: self.state_layer(self.config.layers.len()) + table_index,
            table_index,
            table: self.for_embedding().matrix(&tensors.table)?,
            key_value_proj: self.matrix(&tensors.key_value_proj)?,
            norms: [self.norm(key)?, self.norm(stream)?, self.norm(conv)?],
            conv: by_position(&by_channel, positions),
        })
    }

    /// The norm of a latent, with the factor of that latent in its weight.
    pub(super) fn latent_norm(&self, spec: &NormSpec, factor: f32) -> Result<NormWeights> {
        let mut norm = self.norm(spec)?;
        norm.weight.iter_mut().for_each(|weight| *weight *= factor);
        Ok(norm)
    }

    pub fn norm(&self, spec: &NormSpec) -> Result<NormWeights> {
        let values = |sources: &[TensorRows], absent: f32| match sources {
            [] => Ok(vec![absent; spec.width]),
            sources => self.rows(sources, 1),
        };
        let (mut weight, bias) = (values(&spec.weight, 1.0)?, values(&spec.bias, 0.0)?);
        if self.config.norm_weight == NormWeight::MinusOne && !spec.weight.is_empty() {
            weight.iter_mut().for_each(|weight| *weight += 1.0);
        }
        let gate = match &spec.gate[..] {
            [down, up] => {
                let table = |source: &TensorRows| self.rows(std::slice::from_ref(source), source.shape[1]);
                Some(Box::new(NormGate { down: table(down)?, up: table(up)? }))
            }
            _ => None,
        };
        Ok(NormWeights { weight, bias, gate })
    }

    /// Rows of some tensors as numbers, one after another.
    pub fn rows(&self, sources: &[TensorRows], width: usize) -> Result<Vec<f32>> {
        let mut all = Vec::with_capacity(sources.iter().map(|source| source.rows.count() * width).sum());
        for source in sources {
            if source.is_zeros() {
                all.resize(all.len() + source.rows.count() * width, 0.0);
                continue;
            }
            let view = self.checkpoint.require(&source.name, &source.shape)?;
            let (kind, first) = (view.tensor_type, all.len());
            if !width.is_multiple_of(kind.block_values()) {
                let what = format!("it is stored as {}; F32, F16 or BF16 is expected here", kind.name());
                return Err(Error::Tensor { path: view.path.to_owned(), name: view.name.to_owned(), what });
            }
            all.resize(first + source.rows.count() * width, 0.0);
            kind.dequantize(&gathered(view, source.stored, source.rows, width).bytes, &mut all[first..]);
            self.checkpoint.release_pages(view.name, view.bytes);
        }
        Ok(all)
    }
}

/// The weights of a convolution by position.  // by_channel [channels, positions], result [positions, channels]
fn by_position(by_channel: &[f32], positions: usize) -> Vec<f32> {
    (0..positions).flat_map(|position| by_channel.iter().skip(position).step_by(positions).copied()).collect()
}
