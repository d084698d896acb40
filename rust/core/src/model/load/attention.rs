//! The weights of attention.

use super::{Loader, by_position};

use crate::config::{
    Attention, Compression, LayerRope, LayerSpec, QkNorm, Recurrent, Rope, RopeLayout, Sinks,
};
use crate::family::{
    AttentionTensors, BranchConvolutionTensors, CompressionTensors, MatrixSpec, NormSpec,
    QkConvolutionTensors, QkvTensors, TensorRows,
};
use crate::model::weights::{
    AttentionLayer, CompressionWeights, DynamicMaskWeights, HeadExpertsWeights, IndexerWeights, MlaWeights,
    Projection, QkConvolutionWeights, RelativeScoreWeights, SharedKvWeights, ShortConvolution,
};
use ropechat_kernels::quant::PackedType;
use ropechat_platform::error::{Error, Result};

impl<'a> Loader<'a> {
    pub(super) fn attention(
        &self,
        index: usize,
        tensors: AttentionTensors,
        [norm, out_norm]: [Option<&NormSpec>; 2],
    ) -> Result<AttentionLayer> {
        let spec = self.config.layers[index];
        let latent_factors = match self.config.attention_of(&spec) {
            Attention::Mla { latent_factors, .. } => latent_factors,
            _ => [1.0; 2],
        };
        let common_key = self.common_key(&spec, &tensors.projection)?;
        let convolution = match (&tensors.convolution, &tensors.projection) {
            (Some(convolution), QkvTensors::Heads(qkv)) => {
                Some(self.qk_convolution(index, convolution, qkv)?)
            }
            _ => None,
        };
        let projection = match tensors.projection {
            QkvTensors::Heads(matrix) => Projection::Heads(self.matrix_of_layer(index, &matrix)?),
            QkvTensors::Mla(tensors) => Projection::Mla(Box::new(MlaWeights {
                a_proj: self.matrix(&tensors.a_proj)?,
                q_b: match &tensors.q_b {
                    Some((norm, q_b_proj)) => {
                        Some((self.latent_norm(norm, latent_factors[0])?, self.matrix(q_b_proj)?))
                    }
                    None => None,
                },
                kv_a_layernorm: self.latent_norm(&tensors.kv_a_layernorm, latent_factors[1])?,
                k_rope_norm: tensors.k_rope_norm.as_ref().map(|norm| self.norm(norm)).transpose()?,
                q_absorb: tensors.q_absorb.iter().map(|matrix| self.matrix(matrix)).collect::<Result<_>>()?,
            })),
            QkvTensors::Experts(tensors) => {
                let exact = Loader { dtype: Some(PackedType::F32), ..*self };
                Projection::Experts(Box::new(HeadExpertsWeights {
                    kv_proj: self.matrix(&tensors.kv_proj)?,
                    router: exact.matrix(&tensors.router)?,
                    queries: tensors
                        .queries
                        .iter()
                        .map(|matrix| self.matrix(matrix))
                        .collect::<Result<_>>()?,
                    bias: self.vector(&tensors.bias)?,
                }))
            }
            QkvTensors::SharedKv(tensors) => Projection::SharedKv(Box::new(SharedKvWeights {
                a_proj: self.matrix(&tensors.a_proj)?,
                q_a_layernorm: self.norm(&tensors.q_a_layernorm)?,
                q_b_proj: self.matrix(&tensors.q_b_proj)?,
            })),
        };
        let compression = match (&tensors.compression, spec.compression) {
            (Some(tensors), Some(spec)) => Some(Box::new(self.compression(index, tensors, spec)?)),
            _ => None,
        };
        let qk_norms = match tensors.qk_norms {
            Some([q, k]) => Some([self.norm(&q)?, self.norm(&k)?]),
            None => None,
        };
        let some = |spec: Option<&NormSpec>| spec.map(|spec| self.norm(spec)).transpose();
        let indexer = match (self.config.indexer_of(&spec), &tensors.indexer) {
            (Some(&indexer), Some(tensors)) => Some(IndexerWeights {
                spec: indexer,
                q_proj: tensors.q_proj.as_ref().map(|matrix| self.matrix(matrix)).transpose()?,
                q_norm: some(tensors.q_norm.as_ref())?,
                k_norm: self.norm(&tensors.k_norm)?,
            }),
            _ => None,
        };
        let dynamic_mask = match &tensors.dynamic_mask {
            None => None,
            Some(mask) => Some(DynamicMaskWeights {
                a: self.vector(&mask.a)?,
                dt_proj: self.rows(std::slice::from_ref(&mask.dt_proj), mask.dt_proj.shape[1])?,
                dt_bias: match &mask.dt_bias[..] {
                    [] => vec![0.0; mask.dt_proj.rows.count()],
                    bias => self.rows(bias, 1)?,
                },
            }),
        };
        let mut attention_norm = some(norm)?;
        if let Some(norm) = &mut attention_norm {
            norm.weight.iter_mut().for_each(|weight| *weight *= self.config.attention_input_factor);
        }
        Ok(AttentionLayer {
            index,
            kv_index: spec.shares_kv_of.unwrap_or(index),
            heads: self.config.cached_heads(&spec),
            spec,
            attention_norm,
            projection,
            compression,
            indexer,
            dynamic_mask,
            relative_scores: self.relative_scores(&tensors.relative_scores)?,
            common_key,
            branch_convolutions: None,
            convolution,
            qk_norms,
            value_norm: some(tensors.value_norm.as_ref())?,
            attention_sub_norm: some(tensors.attention_sub_norm.as_ref())?,
            lambdas: match tensors.lambdas.is_empty() {
                true => None,
                false => Some(self.lambdas(index, &tensors.lambdas)?),
            },
            sinks: self.rows(&tensors.sinks, 1)?,
            o_a_proj: tensors.o_a_proj.iter().map(|matrix| self.matrix(matrix)).collect::<Result<_>>()?,
            o_proj: tensors
                .o_proj
                .iter()
                .map(|matrix| self.matrix_of_layer(index, matrix))
                .collect::<Result<_>>()?,
            attention_out_norm: some(out_norm)?,
            residual_scales: None,
        })
    }

    pub(super) fn compression(
        &self,
        layer: usize,
        tensors: &CompressionTensors,
        spec: Compression,
    ) -> Result<CompressionWeights> {
        let rotated = match self.config.layers[layer].rope {
            LayerRope::None => 0,
            LayerRope::Rotary(rope) => self.config.ropes[rope].rotary_dim,
        };
        let position_bias = |table: &TensorRows| {
            let columns = table.shape[1];
            let mut biases = self.rows(std::slice::from_ref(table), columns)?;
            // The rotated part of a key comes first, as in the projections.
            biases.chunks_exact_mut(columns / spec.series()).for_each(|part| part.rotate_right(rotated));
            Ok::<_, Error>(biases)
        };
        Ok(CompressionWeights {
            spec,
            state_layer: self.state_layer(layer),
            position_biases: tensors.position_biases.iter().map(position_bias).collect::<Result<_>>()?,
            norm: self.norm(&tensors.norm)?,
        })
    }

    /// The bias of a layer's keys in the dimensions that turn by less than a radian within the trained length; empty where it
    /// is not all that keys have in common, or where softmax would see a number that is added to all scores of a query.
    pub(super) fn common_key(&self, spec: &LayerSpec, projection: &QkvTensors) -> Result<Vec<f32>> {
        let config = self.config;
        let is_seen = config.sinks != Sinks::None
            || config.attn_logit_softcapping.is_some()
            || config.dynamic_mask.is_some()
            || config.indexer_of(spec).is_some()
            || spec.compression.is_some()
            || config.layers.iter().any(|layer| layer.shares_kv_of.is_some());
        let is_changed =
            config.qk_norm != QkNorm::None || config.clip_qkv.is_some() || config.recurrent.is_some();
        let QkvTensors::Heads(matrix) = projection else { return Ok(Vec::new()) };
        let Some(bias) = matrix.biases.get(1).filter(|_| !is_seen && !is_changed) else {
            return Ok(Vec::new());
        };
        let mut bias = self.rows(std::slice::from_ref(bias), 1)?;
        if let LayerRope::Rotary(rope) = spec.rope {
            let Rope { theta, rotary_dim, layout, .. } = config.ropes[rope];
            for head in bias.chunks_exact_mut(config.cached_heads(spec).head_dim) {
                for pair in 0..rotary_dim / 2 {
                    let frequency = theta.powf(-2.0 * pair as f64 / rotary_dim as f64);
                    if frequency * config.max_position_embeddings as f64 > 1.0 {
                        let both = match layout {
                            RopeLayout::Neox => [pair, pair + rotary_dim / 2],
                            RopeLayout::Interleaved => [2 * pair, 2 * pair + 1],
                        };
                        for dimension in both {
                            head[dimension] = 0.0;
                        }
                    }
                }
            }
        }
        Ok(bias)
    }

    /// qkv: the projection of q, k, delayed and other values.
    pub(super) fn qk_convolution(
        &self,
        layer: usize,
        tensors: &QkConvolutionTensors,
        qkv: &MatrixSpec,
    ) -> Result<QkConvolutionWeights> {
        let positions = tensors.depthwise.shape[2];
        let by_channel = self.rows(std::slice::from_ref(&tensors.depthwise), positions)?;
        Ok(QkConvolutionWeights {
            state_layer: self.state_layer(layer),
            depthwise: by_position(&by_channel, positions),
            depthwise_bias: self.vector(&tensors.depthwise_bias)?,
            first_values: match qkv.biases.get(2) {
                Some(bias) => self.rows(std::slice::from_ref(bias), 1)?,
                None => vec![0.0; qkv.weights[2].rows.count()],
            },
            grouped: tensors.grouped.iter().map(|matrix| self.matrix(matrix)).collect::<Result<_>>()?,
        })
    }

    /// Convolutions of keys and values, of attention's output, and of the MLP's.
    pub(super) fn branch_convolutions(
        &self,
        layer: usize,
        tensors: &BranchConvolutionTensors,
    ) -> Result<[ShortConvolution; 3]> {
        let BranchConvolutionTensors { kv, attention, mlp, mlp_scale } = tensors;
        let (positions, state_layer) = (attention.shape[2], self.state_layer(layer));
        let hidden_size = self.config.hidden_size;
        let kv_channels = match self.config.recurrent {
            Some(Recurrent::OfBranches(convolutions)) => convolutions.kv_channels,
            _ => 0,
        };
        let load = |sources: &[TensorRows], first_channel: usize, scale: f32| {
            let by_channel = self.rows(sources, positions)?;
            let (channels, mut weight) = (by_channel.len() / positions, by_position(&by_channel, positions));
            weight[(positions - 1) * channels..].iter_mut().for_each(|weight| *weight += 1.0);
            weight.iter_mut().for_each(|weight| *weight *= scale);
            let state_start = (positions - 1) * first_channel;
            Ok::<_, Error>(ShortConvolution { state_layer, state_start, channels, weight })
        };
        let scale = self.vector(mlp_scale)?.first().copied().unwrap_or(1.0);
        Ok([
            load(kv, 0, 1.0)?,
            load(std::slice::from_ref(attention), kv_channels, 1.0)?,
            load(std::slice::from_ref(mlp), kv_channels + hidden_size, scale)?,
        ])
    }

    pub(super) fn relative_scores(&self, tensors: &[TensorRows]) -> Result<Option<RelativeScoreWeights>> {
        let [tensor] = tensors else { return Ok(None) };
        let extent = tensor.shape[1];
        let mut profiles = self.rows(tensors, extent)?;
        profiles.chunks_exact_mut(extent).for_each(<[f32]>::reverse);
        Ok(Some(RelativeScoreWeights { extent, profiles }))
    }

    /// e^(q1 k1) - e^(q2 k2) + initial, and initial = 0.8 - 0.6 e^(-0.3 layer).
    pub(super) fn lambdas(&self, layer: usize, vectors: &[TensorRows]) -> Result<[f32; 2]> {
        let all = self.rows(vectors, 1)?;
        let (first, second) = all.split_at(all.len() / 2);
        let power = |pair: &[f32]| {
            let (q, k) = pair.split_at(pair.len() / 2);
            q.iter().zip(k).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>().exp()
        };
        let initial = 0.8 - 0.6 * (-0.3 * layer as f64).exp();
        Ok([(power(first) - power(second) + initial) as f32, initial as f32])
    }
}
