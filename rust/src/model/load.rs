//! From a checkpoint's tensors to packed weights.

use std::borrow::Cow;
use std::ops::Range;

use super::pack::PanelSource;
use super::weights::{
    AltUpLayer, AttentionLayer, DenseAndMoe, DenseMlp, Layer, MlaWeights, Mlp, MoeMlp, NormWeights,
    PerLayerInput, Projection, RecurrentWeights,
};
use crate::checkpoint::quantized::{Matrix, MatrixShape, Quantized};
use crate::checkpoint::{Checkpoint, TensorView};
use crate::compute::panels::{Arrangement, PanelShape, Source, SourceRows, pack};
use crate::compute::pool::Pool;
use crate::compute::weight::{Storage, Weight};
use crate::config::{
    Activation, Attention, Config, LinearRule, NormWeight, Recurrent, ResidualFactors, Stored,
};
use crate::error::{Error, Result};
use crate::family::{
    self, AttentionTensors, DenseTensors, Join, MatrixSpec, MlpTensors, MoeTensors, NormSpec, QkvTensors,
    RecurrentTensors, Rows, TensorRows,
};
use crate::quant::{PackedType, SUPER_BLOCK, StorageType};

/// Everything that loading a tensor needs.
pub(super) struct Loader<'a> {
    pub checkpoint: &'a Checkpoint,
    pub config: &'a Config,
    pub dtype: Option<PackedType>,
    pub panels: &'a PanelSource,
    pub pool: &'a Pool,
}

impl<'a> Loader<'a> {
    pub fn layer(&self, index: usize) -> Result<Layer> {
        let tensors = family::layer_tensors(self.config, index);
        let [norm, out_norm, mlp_norm, mlp_out_norm] = tensors.norms;
        let norms = [norm.as_ref(), out_norm.as_ref()];
        let attention =
            tensors.attention.map(|attention| self.attention(index, attention, norms)).transpose()?;
        let recurrent =
            tensors.recurrent.map(|recurrent| self.recurrent(index, recurrent, norms)).transpose()?;
        let spec = self.config.layers[index];
        let dense = |mlp| Ok::<_, Error>(DenseMlp { gate_cutoff: spec.gate_cutoff, ..self.mlp(mlp)? });
        let mlp = match &tensors.mlp {
            None => None,
            Some(MlpTensors::Dense(mlp)) => Some(Mlp::Dense(Box::new(dense(mlp)?))),
            Some(MlpTensors::Moe(moe)) => Some(Mlp::Moe(Box::new(self.moe(moe)?))),
            Some(MlpTensors::DenseAndMoeForNext(mlp, moe)) => {
                Some(Mlp::DenseAndMoeForNext(Box::new((dense(mlp)?, self.moe(moe)?))))
            }
            Some(MlpTensors::DenseAndMoe(mlp, moe, [dense_out_norm, moe_norm, moe_out_norm])) => {
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
            attention,
            recurrent,
            mlp_norm: mlp_norm.map(|spec| self.mlp_norm(&spec)).transpose()?,
            mlp,
            mlp_out_norm: mlp_out_norm.map(|spec| self.norm(&spec)).transpose()?,
            per_layer_input,
            alt_up,
            scalar: self.rows(&tensors.scalar, 1)?.first().copied().unwrap_or(1.0),
        })
    }

    fn attention(
        &self,
        index: usize,
        tensors: AttentionTensors,
        [norm, out_norm]: [Option<&NormSpec>; 2],
    ) -> Result<AttentionLayer> {
        let projection = match tensors.projection {
            QkvTensors::Heads(matrix) => Projection::Heads(self.matrix(&matrix)?),
            QkvTensors::Mla(tensors) => Projection::Mla(Box::new(MlaWeights {
                a_proj: self.matrix(&tensors.a_proj)?,
                q_b: match &tensors.q_b {
                    Some((norm, q_b_proj)) => Some((self.latent_norm(norm, 0)?, self.matrix(q_b_proj)?)),
                    None => None,
                },
                kv_a_layernorm: self.latent_norm(&tensors.kv_a_layernorm, 1)?,
                kv_b_proj: self.matrix(&tensors.kv_b_proj)?,
            })),
        };
        let qk_norms = match tensors.qk_norms {
            Some([q, k]) => Some([self.norm(&q)?, self.norm(&k)?]),
            None => None,
        };
        let spec = self.config.layers[index];
        let some = |spec: Option<&NormSpec>| spec.map(|spec| self.norm(spec)).transpose();
        let mut attention_norm = some(norm)?;
        if let Some(norm) = &mut attention_norm {
            norm.weight.iter_mut().for_each(|weight| *weight *= self.config.attention_input_factor);
        }
        Ok(AttentionLayer {
            index,
            kv_index: spec.shares_kv_of.unwrap_or(index),
            heads: self.config.heads(&spec),
            spec,
            attention_norm,
            projection,
            qk_norms,
            value_norm: some(tensors.value_norm.as_ref())?,
            attention_sub_norm: some(tensors.attention_sub_norm.as_ref())?,
            lambdas: match tensors.lambdas.is_empty() {
                true => None,
                false => Some(self.lambdas(index, &tensors.lambdas)?),
            },
            sinks: self.rows(&tensors.sinks, 1)?,
            o_proj: self.matrix(&tensors.o_proj)?,
            attention_out_norm: some(out_norm)?,
        })
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
        let positions = positions + 1;
        let by_channel = self.rows(&tensors.conv, positions)?;
        let mut conv = vec![0.0; channels * positions];
        for (channel, weights) in by_channel.chunks_exact(positions).enumerate() {
            let factor = input_factor(recurrent, channel);
            for (position, &weight) in weights.iter().enumerate() {
                conv[position * channels + channel] = weight * factor;
            }
        }
        let conv_bias = match tensors.conv_bias.is_empty() {
            true => vec![0.0; channels],
            false => self.rows(&tensors.conv_bias, 1)?,
        };
        let some = |spec: Option<&NormSpec>| spec.map(|spec| self.norm(spec)).transpose();
        // The norm of the output holds its weight as it is, whatever the norms of the stream do.
        let plain_norm = |spec: &NormSpec| {
            Ok::<_, Error>(NormWeights { weight: self.rows(&spec.weight, 1)?, bias: vec![0.0; spec.width] })
        };
        let mut input_norm = some(norm)?;
        if let Some(norm) = &mut input_norm {
            norm.weight.iter_mut().for_each(|weight| *weight *= self.config.recurrent_factors.input);
        }
        let before = self.config.layers[..index].iter();
        Ok(Box::new(RecurrentWeights {
            state_layer: before.filter(|layer| layer.mixer.is_recurrent()).count(),
            input_norm,
            in_proj: self.matrix(&tensors.in_proj)?,
            conv,
            conv_bias,
            decay_rate: self.rows(&tensors.a_log, 1)?.into_iter().map(|a_log| -a_log.exp()).collect(),
            dt_bias: self.rows(&tensors.dt_bias, 1)?,
            d: self.rows(&tensors.d, 1)?,
            norm: tensors.norm.as_ref().map(plain_norm).transpose()?,
            out_proj: self.matrix(&tensors.out_proj)?,
            out_norm: some(out_norm)?,
            factors: ResidualFactors { branch: self.config.recurrent_factors.output, ..ResidualFactors::ONE },
        }))
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
        Ok(DenseMlp {
            gate_up_proj: self.matrix(&tensors.gate_up_proj)?,
            down_proj: self.matrix(&tensors.down_proj)?,
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
        Ok(MoeMlp {
            router: exact.matrix(&tensors.router)?,
            e_score_correction_bias: self.rows(&tensors.e_score_correction_bias, 1)?,
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
            experts: tensors.experts.iter().map(|expert| self.mlp(expert)).collect::<Result<_>>()?,
            shared_expert: shared.map(|shared| self.mlp(shared)).transpose()?,
            shared_expert_gate: gate.map(|gate| exact.matrix(gate)).transpose()?,
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
        let biases: Result<Vec<_>> =
            spec.biases.iter().map(|bias| self.rows(std::slice::from_ref(bias), 1)).collect();
        Ok(weight.with_bias(&biases?, arrangement(spec.join)))
    }

    /// The weight of `spec` out of `parts`, the tensors of its entries; from the pack if there is one. Stacked tensors that are
    /// stored as different types keep them, where a weight can have such parts.
    fn pack(&self, parts: &[(Matrix<'a>, Stored)], spec: &MatrixSpec) -> Result<Weight> {
        let types: Vec<PackedType> =
            parts.iter().map(|part| self.packed_type(std::slice::from_ref(part))).collect();
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
                    Matrix::Plain(view) => {
                        Gathered::Stored(gathered(*view, *stored, source.rows, spec.in_features))
                    }
                    Matrix::Quantized(quantized) => Gathered::computed(quantized, source.rows, dtype),
                })
                .collect();
            let sources: Vec<Source<'_>> =
                parts.iter().zip(&rows).map(|(part, &out_features)| part.source(out_features)).collect();
            // Mapped pages are released as soon as they are packed: loading takes little more memory than the result.
            let done = |source: usize, rows: Range<usize>| {
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

    /// The norm of a latent (0: of q, 1: of k and v), with the factor of that latent in its weight.
    fn latent_norm(&self, spec: &NormSpec, latent: usize) -> Result<NormWeights> {
        let mut norm = self.norm(spec)?;
        if let Attention::Mla { latent_factors, .. } = self.config.attention {
            norm.weight.iter_mut().for_each(|weight| *weight *= latent_factors[latent]);
        }
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
        Ok(NormWeights { weight, bias })
    }

    /// Rows of some tensors as numbers, one after the other.
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

/// The type of a matrix out of several tensors: that of the finest one, but at least a byte per value when others would
/// be rounded again.
fn packed_together(kinds: &[StorageType]) -> PackedType {
    let bits = |dtype: &PackedType| dtype.panel_bytes(dtype.steps(SUPER_BLOCK));
    let finest = kinds.iter().map(|kind| kind.packed()).max_by_key(bits).unwrap_or(PackedType::F32);
    match kinds.iter().all(|kind| kind.is_kept_in(finest)) {
        true => finest,
        false => [finest, PackedType::Q8_0].into_iter().max_by_key(bits).unwrap_or(finest),
    }
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
            Gathered::Stored(_) => None,
            Gathered::Computed { quantized, rows: of_tensor, .. } => {
                let first = of_tensor.as_range()?.start;
                quantized.piece(first + rows.start..first + rows.end)
            }
        }
    }

    /// Calls `each` with the name and the bytes of every tensor.
    fn each_tensor(&self, mut each: impl FnMut(&str, &[u8])) {
        match self {
            Gathered::Stored(StoredRows { view, .. }) => each(view.name, view.bytes),
            Gathered::Computed { quantized, .. } => {
                quantized.parts().for_each(|(name, bytes)| each(name, bytes))
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
                    let rows = rows.iter().flat_map(|index| &view.bytes[index * row..][..row]);
                    Cow::Owned(rows.copied().collect())
                }
            };
            StoredRows { view, tensor_type: kind, bytes }
        }
        Stored::InOut if kind.is_float() => {
            let bytes = Cow::Owned(transposed(&view, view.bytes, kind.row_bytes(1), rows, width));
            StoredRows { view, tensor_type: kind, bytes }
        }
        // A block holds values of several rows.
        Stored::InOut => {
            let mut values = vec![0.0; view.shape.iter().product()];
            kind.dequantize(view.bytes, &mut values);
            let bytes: Vec<u8> = values.iter().flat_map(|value: &f32| value.to_le_bytes()).collect();
            let bytes = Cow::Owned(transposed(&view, &bytes, 4, rows, width));
            StoredRows { view, tensor_type: StorageType::F32, bytes }
        }
    }
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
