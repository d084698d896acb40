//! From a checkpoint's tensors to packed weights.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;

use super::pack::PanelSource;
use super::weights::{
    Adapter, AltUpLayer, AttentionLayer, CompressionWeights, DenseAndMoe, DenseMlp, DynamicMaskWeights,
    HeadExpertsWeights, HyperWeights, IndexerWeights, Layer, MlaWeights, Mlp, MoeMlp, NgramWeights, NormGate,
    NormWeights, PerLayerInput, Projection, QkConvolutionWeights, RecurrentWeights, RelativeScoreWeights,
    ResidualScales, RouterMlpWeights, SharedBlockWeights, SharedKvWeights, ShortConvolution,
};
use crate::checkpoint::quantized::{Matrix, MatrixShape, Quantized};
use crate::checkpoint::{Checkpoint, TensorView};
use crate::config::{
    Activation, Attention, Compression, Config, LayerRope, LayerSpec, LinearRule, Mixer, NormPlacement,
    NormWeight, QkNorm, Recurrent, RecurrentForm, ResidualFactors, Rope, RopeLayout, Sinks, Stored,
};
use crate::family::{
    self, AdapterTensors, AttentionTensors, BranchConvolutionTensors, CompressionTensors, DenseTensors,
    HyperTensors, Join, MatrixSpec, MlpTensors, MoeTensors, NgramTensors, NormSpec, QkConvolutionTensors,
    QkvTensors, RecurrentTensors, RouterMlpTensors, Rows, SharedBlockTensors, TensorRows,
};
use ropechat_kernels::compute::activations::share_activations;
use ropechat_kernels::compute::panels::{Arrangement, PanelShape, Source, SourceRows, pack};
use ropechat_kernels::compute::pool::Pool;
use ropechat_kernels::compute::weight::{Storage, Weight};
use ropechat_kernels::kernel::LANES;
use ropechat_kernels::quant::{PackedType, SUPER_BLOCK, StorageType};
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

    fn attention(
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

    fn compression(
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
    fn common_key(&self, spec: &LayerSpec, projection: &QkvTensors) -> Result<Vec<f32>> {
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
    fn qk_convolution(
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
    fn branch_convolutions(
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

    fn relative_scores(&self, tensors: &[TensorRows]) -> Result<Option<RelativeScoreWeights>> {
        let [tensor] = tensors else { return Ok(None) };
        let extent = tensor.shape[1];
        let mut profiles = self.rows(tensors, extent)?;
        profiles.chunks_exact_mut(extent).for_each(<[f32]>::reverse);
        Ok(Some(RelativeScoreWeights { extent, profiles }))
    }

    /// A layer's place among those with a recurrent state.
    fn state_layer(&self, layer: usize) -> usize {
        self.config.layers[..layer].iter().filter(|layer| layer.mixer.is_recurrent()).count()
    }

    /// How a branch is added: scale and bias of the branch, then of the stream; or the scale of the stream alone.
    fn residual_scales(&self, tensors: &[TensorRows]) -> Result<Option<ResidualScales>> {
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

    fn recurrent(
        &self,
        index: usize,
        tensors: RecurrentTensors,
        [norm, out_norm]: [Option<&NormSpec>; 2],
    ) -> Result<Box<RecurrentWeights>> {
        let Some(recurrent) = &self.config.recurrent else {
            return Err(Error::Internal("a recurrent layer without its sizes".to_owned()));
        };
        let (channels, positions) = recurrent.window(self.config.hidden_size);
        // Without a convolution a channel is its own input.
        let positions = if tensors.conv.is_empty() { 1 } else { positions + 1 };
        let by_channel = self.rows(&tensors.conv, positions)?;
        let mut conv = match by_channel.is_empty() {
            true => vec![1.0; channels],
            false => by_position(&by_channel, positions),
        };
        for (index, weight) in conv.iter_mut().enumerate() {
            *weight *= input_factor(recurrent, index % channels);
        }
        let conv_bias = match tensors.conv_bias.is_empty() {
            true => vec![0.0; channels],
            false => self.rows(&tensors.conv_bias, 1)?,
        };
        let some = |spec: Option<&NormSpec>| spec.map(|spec| self.norm(spec)).transpose();
        // The norm of the output holds its weight as it is, unlike the norms of the stream.
        let plain_norm = |spec: &NormSpec| {
            Ok::<_, Error>(NormWeights {
                weight: self.rows(&spec.weight, 1)?,
                bias: vec![0.0; spec.width],
                gate: None,
            })
        };
        let mut input_norm = some(norm)?;
        if let Some(norm) = &mut input_norm {
            norm.weight.iter_mut().for_each(|weight| *weight *= self.config.recurrent_factors.input);
        }
        let spec = self.config.layers[index];
        // Parallel to attention, the mixer has its own factors.
        let own = match spec.mixer {
            Mixer::Recurrent => spec.residual_factors[0],
            _ => ResidualFactors::ONE,
        };
        let factors = ResidualFactors { branch: own.branch * self.config.recurrent_factors.output, ..own };
        Ok(Box::new(RecurrentWeights {
            state_layer: self.state_layer(index),
            input_norm,
            in_proj: self.matrix(&tensors.in_proj)?,
            conv,
            conv_bias,
            decay_rate: self.decay_rates(recurrent, index, &tensors.a_log)?,
            dt_bias: self.rows(&tensors.dt_bias, 1)?,
            d: self.rows(&tensors.d, 1)?,
            norm: tensors.norm.as_ref().map(plain_norm).transpose()?,
            inner_proj: tensors.inner_proj.iter().map(|matrix| self.matrix(matrix)).collect::<Result<_>>()?,
            inner_norms: tensors.inner_norms.iter().map(|norm| self.norm(norm)).collect::<Result<_>>()?,
            out_proj: self.matrix(&tensors.out_proj)?,
            out_norm: some(out_norm)?,
            factors,
        }))
    }

    /// The rates at which the states decay, in the order of [`RecurrentWeights::decay_rate`].
    fn decay_rates(&self, recurrent: &Recurrent, layer: usize, a_log: &[TensorRows]) -> Result<Vec<f32>> {
        let rate = |stored: f32| match self.config.names.recurrent.form {
            RecurrentForm::Hub => -stored.exp(),
            RecurrentForm::Gguf => -stored.abs(), // bailingmoe3 leaves the sign out
        };
        Ok(match recurrent {
            Recurrent::Linear(linear) if linear.rule == (LinearRule::Lightning { stored_block: None }) => {
                lightning_rates(linear.num_value_heads, layer, self.config.layers.len())
            }
            Recurrent::SelectiveScan(scan) => {
                let by_channel = self.rows(a_log, scan.state_size)?;
                let mut rates = vec![0.0; scan.width.next_multiple_of(LANES) * scan.state_size];
                for (channel, values) in by_channel.chunks_exact(scan.state_size).enumerate() {
                    let first = channel / LANES * LANES * scan.state_size + channel % LANES;
                    for (key, &value) in values.iter().enumerate() {
                        rates[first + key * LANES] = rate(value);
                    }
                }
                rates
            }
            Recurrent::RgLru(_) => {
                let softplus = |x: f32| x.max(0.0) + (-x.abs()).exp().ln_1p();
                self.rows(a_log, 1)?.into_iter().map(|x| -RG_LRU_SHARPNESS * softplus(x)).collect()
            }
            Recurrent::Linear(linear) if linear.stored_block().is_some() => self.rows(a_log, 1)?,
            _ => self.rows(a_log, 1)?.into_iter().map(rate).collect(),
        })
    }

    /// A matrix of the layer, or of the block that it shares.
    fn matrix_of_layer(&self, layer: usize, spec: &MatrixSpec) -> Result<Weight> {
        match self.config.layers[layer].mixer {
            Mixer::AfterShared { .. } => self.shared_matrix(spec),
            _ => self.matrix(spec),
        }
    }

    /// A matrix that several layers have.
    fn shared_matrix(&self, spec: &MatrixSpec) -> Result<Weight> {
        let name = spec.name();
        if let Some(weight) = self.shared.borrow().get(&name) {
            return Ok(weight.clone());
        }
        let weight = self.matrix(spec)?;
        self.shared.borrow_mut().insert(name, weight.clone());
        Ok(weight)
    }

    /// The parts of the block without attention, whose projection is of type `dtype`.
    fn shared_block(
        &self,
        layer: usize,
        tensors: &SharedBlockTensors,
        dtype: PackedType,
    ) -> Result<SharedBlockWeights> {
        let is_first =
            matches!(self.config.layers[layer].mixer, Mixer::AfterShared { first, .. } if first == layer);
        let mlp = &tensors.mlp;
        let mlp = DenseMlp {
            gate_up_proj: self.shared_matrix(&mlp.gate_up_proj)?,
            down_proj: self.shared_matrix(&mlp.down_proj)?,
            intermediate_size: mlp.down_proj.in_features,
            shape: mlp.shape,
            activation: self.config.activation,
            gate_cutoff: None,
            sub_norm: None,
        };
        Ok(SharedBlockWeights {
            is_first,
            norm: self.norm(&tensors.norm)?,
            attention_adapter: match &tensors.attention_adapter {
                Some(tensors) => Some(self.adapter(tensors, dtype)?),
                None => None,
            },
            mlp_norm: self.norm(&tensors.mlp_norm)?,
            mlp_adapter: self.adapter(&tensors.mlp_adapter, mlp.gate_up_proj.dtype())?,
            mlp,
            linear: self.matrix(&tensors.linear)?,
        })
    }

    /// An adapter in the type of the matrix that it corrects: both read the same input.
    fn adapter(&self, tensors: &AdapterTensors, dtype: PackedType) -> Result<Adapter> {
        let like = Loader { dtype: Some(dtype), ..*self };
        let columns = |spec: &MatrixSpec, weight: &Weight| match spec.join {
            Join::Stacked => spec.weights.iter().map(|rows| rows.rows.count()).sum(),
            Join::Interleaved => weight.padded_out(),
        };
        let up = |spec: &MatrixSpec| {
            let weight = like.matrix(spec)?;
            Ok((columns(spec, &weight), weight))
        };
        Ok(Adapter {
            down: like.matrix(&tensors.down)?,
            ups: tensors.ups.iter().map(up).collect::<Result<_>>()?,
            rank: tensors.ups.first().map_or(0, |up| up.in_features),
        })
    }

    /// The norm of the MLP's input, times the factor of that input.
    fn mlp_norm(&self, spec: &NormSpec) -> Result<NormWeights> {
        let mut norm = self.norm(spec)?;
        norm.weight.iter_mut().for_each(|weight| *weight *= self.config.mlp_input_factor);
        Ok(norm)
    }

    /// e^(q1 k1) - e^(q2 k2) + initial, and initial = 0.8 - 0.6 e^(-0.3 layer).
    fn lambdas(&self, layer: usize, vectors: &[TensorRows]) -> Result<[f32; 2]> {
        let all = self.rows(vectors, 1)?;
        let (first, second) = all.split_at(all.len() / 2);
        let power = |pair: &[f32]| {
            let (q, k) = pair.split_at(pair.len() / 2);
            q.iter().zip(k).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>().exp()
        };
        let initial = 0.8 - 0.6 * (-0.3 * layer as f64).exp();
        Ok([(power(first) - power(second) + initial) as f32, initial as f32])
    }

    fn mlp(&self, tensors: &DenseTensors) -> Result<DenseMlp> {
        // The factor of the input reaches the gate and what it is multiplied with; the output's factor makes up for one of
        // both. So each bias has it too.
        let factor = self.config.mlp_input_factor;
        Ok(DenseMlp {
            gate_up_proj: self.matrix_with_bias(&tensors.gate_up_proj, factor)?,
            down_proj: self.matrix_with_bias(&tensors.down_proj, factor)?,
            intermediate_size: tensors.down_proj.in_features,
            shape: tensors.shape,
            activation: match (self.config.activation, &self.rows(&tensors.activation, 1)?[..]) {
                (Activation::Xielu { .. }, &[alpha_p, alpha_n]) => Activation::xielu(alpha_p, alpha_n),
                (activation, _) => activation,
            },
            gate_cutoff: None,
            sub_norm: tensors.sub_norm.as_ref().map(|norm| self.norm(norm)).transpose()?,
        })
    }

    fn moe(&self, tensors: &MoeTensors) -> Result<MoeMlp> {
        let (shared, gate) = match &tensors.shared_expert {
            Some((shared, gate)) => (Some(shared), gate.as_ref()),
            None => (None, None),
        };
        // Small differences decide which experts a token takes: the router is not rounded.
        let exact = Loader { dtype: Some(PackedType::F32), ..*self };
        let activation = self.config.moe.and_then(|moe| moe.activation);
        let routed = |expert: &DenseTensors| {
            let mlp = self.mlp(expert)?;
            Ok::<_, Error>(DenseMlp { activation: activation.unwrap_or(mlp.activation), ..mlp })
        };
        let router_mlp = match &tensors.router_mlp {
            None => None,
            Some(RouterMlpTensors { down, state_scale, norm, layers: [first, second] }) => {
                Some(Box::new(RouterMlpWeights {
                    down: exact.matrix(down)?,
                    state_scale: self.rows(state_scale, 1)?,
                    norm: self.norm(norm)?,
                    layers: [exact.matrix(first)?, exact.matrix(second)?],
                }))
            }
        };
        Ok(MoeMlp {
            router: exact.matrix(&tensors.router)?,
            router_mlp,
            e_score_correction_bias: self.rows(&tensors.e_score_correction_bias, 1)?,
            tid2eid: match &tensors.tid2eid[..] {
                [table] => self.experts_of_tokens(table, tensors.experts.len())?,
                _ => Vec::new(),
            },
            router_norm: match &tensors.router_norm {
                None => None,
                Some(spec) => {
                    let mut norm = self.norm(spec)?;
                    let root = (self.config.hidden_size as f32).sqrt();
                    norm.weight.iter_mut().for_each(|weight| *weight /= root);
                    Some(norm)
                }
            },
            per_expert_scale: self.rows(&tensors.per_expert_scale, 1)?,
            latent: match &tensors.latent {
                None => None,
                Some([to, back]) => Some([self.matrix(to)?, self.matrix(back)?]),
            },
            output_bias: self.rows(&tensors.output_bias, 1)?,
            experts: tensors.experts.iter().map(routed).collect::<Result<_>>()?,
            shared_expert: shared.map(|shared| self.mlp(shared)).transpose()?,
            shared_expert_gate: gate.map(|gate| exact.matrix(gate)).transpose()?,
        })
    }

    /// Numbers of experts, each less than `count`.
    fn experts_of_tokens(&self, table: &TensorRows, count: usize) -> Result<Vec<u32>> {
        let (name, values) = self.checkpoint.require_integers(&table.name, &table.shape)?;
        let expert = |&value: &i64| u32::try_from(value).ok().filter(|&expert| (expert as usize) < count);
        let experts: Option<Vec<u32>> = values.iter().map(expert).collect();
        experts.ok_or_else(|| Error::Tensor {
            path: self.checkpoint.path().to_owned(),
            name: name.to_owned(),
            what: format!(
                "its entries must be experts from 0 to {} (got {}); download the model again",
                count - 1,
                values.iter().find(|value| expert(value).is_none()).copied().unwrap_or(-1)
            ),
        })
    }

    /// The embedding, under whichever of its names it is stored (safetensors drops one of two shared tensors).
    pub fn embedding(&self, spec: &MatrixSpec) -> Result<Weight> {
        let names = family::embedding_names(self.config);
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let tensor = &spec.weights[0];
        let scheme = &self.config.quantization;
        let shape = [self.config.vocab_size, spec.in_features];
        let matrix = match self.checkpoint.contains(names[0]) {
            true => self.checkpoint.matrix(&names[..1], tensor.matrix_shape(), scheme)?,
            // Under the name of lm_head it is [vocab_size, hidden_size].
            false => {
                let shape = MatrixShape { stored: &shape, columns: spec.in_features, in_out: false };
                self.checkpoint.matrix(&names, shape, scheme)?
            }
        };
        let is_usual = matches!(&matrix, Matrix::Plain(view) if view.name == tensor.name);
        let stored = if is_usual { tensor.stored } else { Stored::OutIn };
        self.pack(&[(matrix, stored)], spec)
    }

    /// The loader of the embedding and lm_head, which lose too much quality in few bits: they get a finer type, as in
    /// llama.cpp.
    pub fn table(&self) -> Self {
        Self {
            dtype: self.dtype.map(|dtype| match dtype {
                PackedType::Q4_0 | PackedType::Q4_1 | PackedType::Q4K => PackedType::Q8_0,
                PackedType::Q5_1 | PackedType::Q5K => PackedType::Q6K,
                dtype => dtype,
            }),
            ..*self
        }
    }

    pub fn matrix(&self, spec: &MatrixSpec) -> Result<Weight> {
        self.matrix_with_bias(spec, 1.0)
    }

    /// The same with its biases times `factor`.
    fn matrix_with_bias(&self, spec: &MatrixSpec, factor: f32) -> Result<Weight> {
        let take = |source: &TensorRows| {
            let (names, shape) = ([source.name.as_str()], source.matrix_shape());
            let matrix = self.checkpoint.matrix(&names, shape, &self.config.quantization)?;
            Ok((matrix, source.stored))
        };
        let parts = spec.weights.iter().map(take).collect::<Result<Vec<_>>>()?;
        let weight = self.pack(&parts, spec)?;
        if spec.biases.is_empty() {
            return Ok(weight);
        }
        let bias = |bias: &TensorRows| {
            let mut bias = self.rows(std::slice::from_ref(bias), 1)?;
            bias.iter_mut().for_each(|bias| *bias *= factor);
            Ok(bias)
        };
        let biases = spec.biases.iter().map(bias).collect::<Result<Vec<_>>>()?;
        Ok(weight.with_bias(&biases, arrangement(spec.join)))
    }

    /// The weight of `spec` out of `parts`, the tensors of its entries; from the pack if there is one. Stacked tensors that are
    /// stored as different types keep them, where a weight can have such parts.
    fn pack(&self, parts: &[(Matrix<'a>, Stored)], spec: &MatrixSpec) -> Result<Weight> {
        let type_of = |(part, source): (&(Matrix<'a>, Stored), &TensorRows)| {
            let kept = self.packed_type(std::slice::from_ref(part));
            // The blocks of a transpose are not those of the file.
            if self.dtype.is_none() && source.transposed.is_some() { at_least_bytes(kept) } else { kept }
        };
        let mut types: Vec<PackedType> = parts.iter().zip(&spec.weights).map(type_of).collect();
        round_few(&mut types, &rows_of(&spec.weights));
        let (mut runs, mut start) = (Vec::new(), 0);
        for run in types.chunk_by(|a, b| a == b) {
            let run = start..start + run.len();
            start = run.end;
            let rows = rows_of(&spec.weights[run.clone()]);
            runs.push((
                run.clone(),
                PanelShape::new(&rows, Arrangement::Stacked, spec.in_features, types[run.start]),
            ));
        }
        let apart = spec.join == Join::Stacked && Weight::can_stack(runs.iter().map(|(_, shape)| *shape));
        if !apart {
            let shape = PanelShape::new(
                &rows_of(&spec.weights),
                arrangement(spec.join),
                spec.in_features,
                self.packed_type(parts),
            );
            runs = vec![(0..parts.len(), shape)];
        }
        let storage = |(run, shape): (Range<usize>, PanelShape)| {
            let spec =
                MatrixSpec { weights: spec.weights[run.clone()].to_vec(), biases: Vec::new(), ..*spec };
            Ok((shape, self.panels_of(&parts[run], &spec, shape)?))
        };
        Ok(Weight::stacked(runs.into_iter().map(storage).collect::<Result<_>>()?))
    }

    /// The panels of a weight of one type.
    fn panels_of(
        &self,
        parts: &[(Matrix<'a>, Stored)],
        spec: &MatrixSpec,
        shape: PanelShape,
    ) -> Result<Storage> {
        let (dtype, rows) = (shape.dtype, rows_of(&spec.weights));
        // The values of a quantized matrix depend on the config too, which the pack's key does not know.
        let name = match parts.iter().any(|(matrix, _)| matches!(matrix, Matrix::Quantized(_))) {
            true => format!("{} {}", spec.name(), self.config.quantization.words()),
            false => spec.name(),
        };
        self.panels.storage(&name, shape, || {
            let parts = parts.iter().zip(&spec.weights);
            let parts: Vec<Gathered<'_, '_>> = parts
                .map(|((matrix, stored), source)| match matrix {
                    _ if source.transposed.is_some() => {
                        Gathered::Transposed { matrix, bytes: transpose(matrix, source) }
                    }
                    Matrix::Plain(view) if *stored == Stored::OutIn && source.rows.as_range().is_none() => {
                        Gathered::Chosen { view: *view, order: source.rows.iter().collect() }
                    }
                    Matrix::Plain(view) => {
                        Gathered::Stored(gathered(*view, *stored, source.rows, spec.in_features))
                    }
                    Matrix::Quantized(quantized) => Gathered::computed(quantized, source.rows, dtype),
                })
                .collect();
            let sources: Vec<Source<'_>> =
                parts.iter().zip(&rows).map(|(part, &out_features)| part.source(out_features)).collect();
            // Mapped pages are released as soon as they are packed: loading takes little more memory than the result.
            let row_bytes = shape.panel_bytes() / LANES;
            let done = |source: usize, rows: Range<usize>| {
                self.panels.count(rows.len() * row_bytes);
                if let Some((name, piece)) = parts[source].piece(rows, spec.in_features) {
                    self.checkpoint.release_pages(name, piece);
                }
            };
            let join = arrangement(spec.join);
            let panels = pack(&sources, join, spec.in_features, dtype, self.pool, &done)?;
            // Gathered rows were taken from anywhere in the tensor.
            for part in &parts {
                part.each_tensor(|name, bytes| self.checkpoint.release_pages(name, bytes));
            }
            Ok(panels)
        })
    }

    /// The type of a matrix: what is asked, else that of the tensors.
    fn packed_type(&self, parts: &[(Matrix<'a>, Stored)]) -> PackedType {
        if let Some(dtype) = self.dtype {
            return dtype;
        }
        let kinds: Vec<StorageType> = parts.iter().map(|(matrix, _)| matrix.tensor_type()).collect();
        for (matrix, _) in parts {
            // The type of a quantized matrix follows from its scales, which were read for that.
            if let Matrix::Quantized(quantized) = matrix {
                quantized.parts().for_each(|(name, bytes)| self.checkpoint.release_pages(name, bytes));
            }
        }
        packed_together(&kinds)
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

    fn ngram(&self, tensors: &NgramTensors, table_index: usize) -> Result<NgramWeights> {
        let positions = tensors.conv.shape[2];
        let by_channel = self.rows(std::slice::from_ref(&tensors.conv), positions)?;
        let [key, stream, conv] = &tensors.norms;
        Ok(NgramWeights {
            // Behind the states of the mixers.
            state_layer: self.state_layer(self.config.layers.len()) + table_index,
            table_index,
            table: self.table().matrix(&tensors.table)?,
            key_value_proj: self.matrix(&tensors.key_value_proj)?,
            norms: [self.norm(key)?, self.norm(stream)?, self.norm(conv)?],
            conv: by_position(&by_channel, positions),
        })
    }

    /// The norm of a latent, with the factor of that latent in its weight.
    fn latent_norm(&self, spec: &NormSpec, factor: f32) -> Result<NormWeights> {
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

fn rows_of(sources: &[TensorRows]) -> Vec<usize> {
    sources.iter().map(|source| source.rows.count()).collect()
}

/// Makes bytes of a few plain rows beside blocks, which would else make plain numbers of all: the steps of a recurrent mixer.
fn round_few(types: &mut [PackedType], rows: &[usize]) {
    const FEW: usize = 16; // one in so many rows
    let is_blocks = |dtype: PackedType| share_activations(dtype, PackedType::Q8_0);
    let all: usize = rows.iter().sum();
    if types.iter().any(|&dtype| is_blocks(dtype)) {
        for (dtype, _) in
            types.iter_mut().zip(rows).filter(|(dtype, rows)| !is_blocks(**dtype) && **rows * FEW <= all)
        {
            *dtype = PackedType::Q8_0;
        }
    }
}

/// The type of a matrix out of several tensors: that of the finest one, but at least a byte per value when others would
/// be rounded again.
fn packed_together(kinds: &[StorageType]) -> PackedType {
    let finest = kinds.iter().map(|kind| kind.packed()).max_by_key(bits).unwrap_or(PackedType::F32);
    if kinds.iter().all(|kind| kind.is_kept_in(finest)) { finest } else { at_least_bytes(finest) }
}

/// The finer one of a type and bytes: what rounds blocks again without much loss.
fn at_least_bytes(dtype: PackedType) -> PackedType {
    if bits(&dtype) < bits(&PackedType::Q8_0) { PackedType::Q8_0 } else { dtype }
}

/// How fine a type is.
fn bits(dtype: &PackedType) -> usize {
    dtype.panel_bytes(dtype.steps(SUPER_BLOCK))
}

/// The weights of a convolution by position.  // by_channel [channels, positions], result [positions, channels]
fn by_position(by_channel: &[f32], positions: usize) -> Vec<f32> {
    (0..positions).flat_map(|position| by_channel.iter().skip(position).step_by(positions).copied()).collect()
}

/// c in the decay of RG-LRU (De et al. 2024, section 2.4).
const RG_LRU_SHARPNESS: f32 = 8.0;

/// Minus the slopes of lightning attention: those of ALiBi, smaller from layer to layer (transformers,
/// `MiniMaxLightningAttention.get_slope_rate`).
fn lightning_rates(heads: usize, layer: usize, layers: usize) -> Vec<f32> {
    let base = 2f64.powf(-8.0 / heads as f64);
    let factor = 1.0 - layer as f64 / ((layers - 1) as f64 + 1e-5) + 1e-5;
    (1..=heads).map(|head| -(base.powi(head as i32) * factor) as f32).collect()
}

/// Factor of what a channel of the convolution reads; the convolution is linear, so its weights carry it.
fn input_factor(recurrent: &Recurrent, channel: usize) -> f32 {
    let Recurrent::Linear(linear) = recurrent else { return 1.0 };
    let LinearRule::Mamba2 { multipliers: [_, x, b, c, _], .. } = linear.rule else { return 1.0 };
    match channel.checked_sub(linear.values_width()) {
        None => x,
        Some(channel) if channel < linear.keys_width() => b,
        Some(_) => c,
    }
}

fn arrangement(join: Join) -> Arrangement {
    match join {
        Join::Stacked => Arrangement::Stacked,
        Join::Interleaved => Arrangement::Interleaved,
    }
}

/// Rows of a matrix to be packed.
enum Gathered<'m, 'a> {
    /// Of a plain tensor.
    Stored(StoredRows<'a>),
    /// Of a plain tensor whose rows are not used in their order.
    Chosen { view: TensorView<'a>, order: Vec<usize> },
    /// Columns of rows that are transposed, as f32.
    Transposed { matrix: &'m Matrix<'a>, bytes: Vec<u8> },
    /// Of a quantized one, made when they are packed.
    Computed { quantized: &'m Quantized<'a>, tensor_type: StorageType, rows: Rows, make: Box<MakeRow<'m>> },
}

/// Appends the bytes of a row.
type MakeRow<'m> = dyn Fn(usize, &mut Vec<u8>) + Sync + 'm;

/// Rows of a plain tensor.
struct StoredRows<'a> {
    view: TensorView<'a>,
    /// The type of `bytes`: the tensor's, unless blocks had to be split.
    tensor_type: StorageType,
    bytes: Cow<'a, [u8]>,
}

impl<'m, 'a> Gathered<'m, 'a> {
    fn computed(quantized: &'m Quantized<'a>, rows: Rows, dtype: PackedType) -> Self {
        let (order, tensor_type): (Vec<usize>, _) = (rows.iter().collect(), quantized.row_type(dtype));
        let make = move |index: usize, out: &mut Vec<u8>| quantized.read_row(order[index], tensor_type, out);
        Gathered::Computed { quantized, tensor_type, rows, make: Box::new(make) }
    }

    fn source(&self, out_features: usize) -> Source<'_> {
        match self {
            Gathered::Stored(StoredRows { tensor_type, bytes, .. }) => {
                Source { tensor_type: *tensor_type, out_features, rows: SourceRows::Stored(bytes) }
            }
            Gathered::Chosen { view, order } => Source {
                tensor_type: view.tensor_type,
                out_features,
                rows: SourceRows::Chosen(view.bytes, order),
            },
            Gathered::Transposed { bytes, .. } => {
                Source { tensor_type: StorageType::F32, out_features, rows: SourceRows::Stored(bytes) }
            }
            Gathered::Computed { tensor_type, make, .. } => {
                Source { tensor_type: *tensor_type, out_features, rows: SourceRows::Computed(&**make) }
            }
        }
    }

    /// The tensor and the bytes that only these rows of the source need.
    fn piece(&self, rows: Range<usize>, width: usize) -> Option<(&str, &[u8])> {
        match self {
            Gathered::Stored(StoredRows { view, tensor_type, bytes: Cow::Borrowed(bytes) }) => {
                let row = tensor_type.row_bytes(width);
                Some((view.name, bytes.get(rows.start * row..rows.end * row)?))
            }
            Gathered::Stored(_) | Gathered::Chosen { .. } | Gathered::Transposed { .. } => None,
            Gathered::Computed { quantized, rows: of_tensor, .. } => {
                let first = of_tensor.as_range()?.start;
                quantized.piece(first + rows.start..first + rows.end)
            }
        }
    }

    /// Calls `each` with the name and the bytes of every tensor.
    fn each_tensor(&self, mut each: impl FnMut(&str, &[u8])) {
        match self {
            Gathered::Stored(StoredRows { view, .. })
            | Gathered::Chosen { view, .. }
            | Gathered::Transposed { matrix: Matrix::Plain(view), .. } => each(view.name, view.bytes),
            Gathered::Computed { quantized: of, .. } => {
                of.parts().for_each(|(name, bytes)| each(name, bytes))
            }
            Gathered::Transposed { matrix: Matrix::Quantized(of), .. } => {
                of.parts().for_each(|(name, bytes)| each(name, bytes));
            }
        }
    }
}

/// Rows of `width` values of a tensor, in the order asked for; copied only when they are not one piece of the file.
fn gathered(view: TensorView<'_>, stored: Stored, rows: Rows, width: usize) -> StoredRows<'_> {
    let kind = view.tensor_type;
    match stored {
        Stored::OutIn => {
            let row = kind.row_bytes(width);
            let bytes = match rows.as_range() {
                Some(range) => Cow::Borrowed(&view.bytes[range.start * row..range.end * row]),
                None => {
                    let mut bytes = Vec::with_capacity(rows.count() * row);
                    rows.iter().for_each(|index| bytes.extend_from_slice(&view.bytes[index * row..][..row]));
                    Cow::Owned(bytes)
                }
            };
            StoredRows { view, tensor_type: kind, bytes }
        }
        Stored::InOut if kind.is_float() => {
            let bytes = Cow::Owned(transposed(&view, view.bytes, kind.row_bytes(1), rows, width));
            StoredRows { view, tensor_type: kind, bytes }
        }
        // A block has values of several rows.
        Stored::InOut => {
            let mut values = vec![0.0; view.shape.iter().product()];
            kind.dequantize(view.bytes, &mut values);
            let bytes: Vec<u8> = values.iter().flat_map(|value: &f32| value.to_le_bytes()).collect();
            let bytes = Cow::Owned(transposed(&view, &bytes, 4, rows, width));
            StoredRows { view, tensor_type: StorageType::F32, bytes }
        }
    }
}

/// The transpose of some rows of a matrix, as f32.  // [source.rows, source.transposed]
fn transpose(matrix: &Matrix<'_>, source: &TensorRows) -> Vec<u8> {
    let (columns, inputs) =
        (source.matrix_shape().columns, source.transposed.as_deref().copied().unwrap_or(source.rows));
    let (mut row, mut bytes) = (vec![0.0; columns], Vec::new());
    let mut values = vec![0f32; source.rows.count() * inputs.count()];
    for (input, index) in inputs.iter().enumerate() {
        match matrix {
            Matrix::Plain(view) => {
                let width = view.tensor_type.row_bytes(columns);
                view.tensor_type.dequantize(&view.bytes[index * width..][..width], &mut row);
            }
            Matrix::Quantized(quantized) => {
                quantized.read_row(index, StorageType::F32, &mut bytes);
                StorageType::F32.dequantize(&bytes, &mut row);
            }
        }
        for (out, column) in source.rows.iter().enumerate() {
            values[out * inputs.count() + input] = row[column];
        }
    }
    bytemuck::cast_slice(&values).to_vec()
}

/// Rows of matrices [in, out], whose values have `size` bytes.
fn transposed(view: &TensorView<'_>, from: &[u8], size: usize, rows: Rows, width: usize) -> Vec<u8> {
    let out = view.shape.last().copied().unwrap_or(1);
    let mut bytes = Vec::with_capacity(rows.count() * width * size);
    for index in rows.iter() {
        let (matrix, row) = (index / out, index % out);
        for column in 0..width {
            let at = ((matrix * width + column) * out + row) * size;
            bytes.extend_from_slice(&from[at..at + size]);
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn what_is_packed_together_keeps_its_integers_or_becomes_bytes() {
        use StorageType::{F16, F32, Q4_0, Q4_1, Q4_K, Q5_K, Q6_K, Q8_0};
        for (types, dtype) in [
            (vec![Q6_K, Q6_K, Q6_K], PackedType::Q6K),
            (vec![Q4_K, Q4_1], PackedType::Q8_0),
            (vec![Q4_K, Q4_K, Q5_K], PackedType::Q5K),
            (vec![Q4_K, Q4_K, Q6_K], PackedType::Q8_0),
            (vec![Q5_K, Q6_K], PackedType::Q8_0),
            (vec![Q4_0, Q4_1], PackedType::Q4_1),
            (vec![Q4_0, Q5_K], PackedType::Q8_0),
            (vec![Q8_0, Q6_K], PackedType::Q8_0),
            (vec![F16, Q6_K], PackedType::F16),
            (vec![F16, F32], PackedType::F32),
        ] {
            assert_eq!(packed_together(&types), dtype, "{types:?}");
        }
    }

    #[test]
    fn a_few_plain_rows_beside_blocks_become_bytes() {
        use PackedType::{BF16, F32, Q4K, Q5K, Q8_0};
        for (mut types, rows, expected) in [
            ([Q5K, Q4K, F32], [6144, 2048, 16], [Q5K, Q4K, Q8_0]),
            ([Q4K, Q4K, BF16], [64, 64, 16], [Q4K, Q4K, BF16]),
            ([BF16, BF16, F32], [6144, 2048, 16], [BF16, BF16, F32]),
        ] {
            round_few(&mut types, &rows);
            assert_eq!(types, expected);
        }
    }

    /// Two matrices [in 3, out 32] of one block per row: what is taken out of them is their columns.
    #[test]
    fn blocks_are_taken_apart_to_be_transposed() {
        let block = |scale: f32| -> Vec<u8> {
            let scale = half::f16::from_f32(scale).to_le_bytes();
            scale.into_iter().chain((0..32).map(|q| q as u8)).collect()
        };
        let bytes: Vec<u8> = (1..=6).flat_map(|row| block(row as f32)).collect();
        let view = TensorView {
            name: "x",
            tensor_type: StorageType::Q8_0,
            shape: &[2, 3, 32],
            bytes: &bytes,
            path: Path::new("x"),
        };
        let rows = Rows::range(32 + 5, 2);
        let part = gathered(view, Stored::InOut, rows, 3);
        assert_eq!(part.tensor_type, StorageType::F32);
        let mut values = vec![0.0; 6];
        part.tensor_type.dequantize(&part.bytes, &mut values);
        assert_eq!(values, [4.0 * 5.0, 5.0 * 5.0, 6.0 * 5.0, 4.0 * 6.0, 5.0 * 6.0, 6.0 * 6.0]);
    }
}
