//! The tensors of queries, keys and values, of their norms, and of the gate of attention's output.

use super::mechanisms;
use super::prefix::{Prefix, with_bias};
use crate::config::{
    Attention, AttentionGate, Bias, GateWidth, HeadOutputs, HeadRows, LayerRope, Mask, QkNorm, Qkv, Rope,
    RopeLayout, Sinks, SubNorms, Tensor, ValueNorm, Values, tensor,
};
use crate::parts::{
    AttentionLayer, MatrixSpec, NormSpec, NumberSpec, Packing, Projection, RelativeScoreWeights, Rows, Spec,
    TensorRows,
};

impl Prefix<'_> {
    /// The layer's attention, with the norms of its input and output.
    pub fn attention(&self, [norm, out_norm]: [Option<NormSpec>; 2]) -> AttentionLayer<Spec> {
        let (config, spec, heads) = (self.config, self.layer, self.heads);
        let (names, hidden) = (&config.names, config.hidden_size);
        let attention = config.attention_of(spec);
        // Attention of a block that layers share is packed once.
        let of_block = |matrix: MatrixSpec| match self.is_shared {
            true => matrix.packed(Packing::Shared),
            false => matrix,
        };
        let (projection, qk_norms) = match attention {
            Attention::Heads => (Projection::Heads(of_block(self.qkv())), self.qk_norms()),
            mla @ Attention::Mla { .. } => (self.mla(mla), self.qk_norms()),
            Attention::OfMechanism => match mechanisms::attention(self) {
                Some(own) => (Projection::OfMechanism(own.projection), own.qk_norms),
                None => (Projection::OfMechanism(self.matrix(&[], hidden, Bias::None)), None),
            },
        };
        let common_key = match &projection {
            Projection::Heads(qkv) => self.common_key(qkv),
            _ => NumberSpec::default(),
        };
        let o_proj = |name, width, bias| of_block(self.matrix(&[(name, hidden)], width, bias));
        let sub_norm = || self.norm(names.attention_sub_norm, heads.out_width());
        AttentionLayer {
            attention_norm: norm.map(|norm| norm.times(config.attention_input_factor)),
            projection,
            relative_scores: self.relative_scores(),
            common_key,
            qk_norms,
            value_norm: self.value_norm(),
            attention_sub_norm: (config.sub_norms == SubNorms::BeforeOutput).then(sub_norm),
            lambdas: match config.head_outputs {
                HeadOutputs::Own => NumberSpec::default(),
                HeadOutputs::Differential => self.lambdas(),
            },
            sinks: match (config.sinks, spec.mask) {
                (Sinks::PerHead, _) | (Sinks::PerHeadInWindows, Mask::Sliding(_)) => {
                    self.numbers(names.sinks, Rows::all(heads.num_attention_heads))
                }
                _ => NumberSpec::default(),
            },
            o_a_proj: match attention {
                Attention::Mla { kv_lora_rank, qk_rope_head_dim, .. } => {
                    self.values_of_latent(kv_lora_rank, heads.head_dim - qk_rope_head_dim)
                }
                Attention::Heads | Attention::OfMechanism => Vec::new(),
            },
            o_proj: match (attention, config.head_outputs) {
                (Attention::OfMechanism, _) => None,
                (_, HeadOutputs::Own) => {
                    Some(o_proj(names.o_proj, heads.out_width(), self.attention_out_bias()))
                }
                (_, HeadOutputs::Differential) => {
                    Some(o_proj(names.o_proj, heads.out_width() / 2, self.attention_out_bias()))
                }
            },
            attention_out_norm: out_norm,
            residual_scales: None,
            index: self.index,
            kv_index: spec.shares_kv_of.unwrap_or(self.index),
            heads: config.cached_heads(spec),
            further_heads: config.mechanisms.further_heads(self.index),
            columns: config.mechanisms.columns(self.index),
            spec: *spec,
        }
    }

    /// The bias of a layer's keys in the dimensions that turn by less than a radian within the trained length; empty where it
    /// is not all that keys have in common, or where softmax would see a number that is added to all scores of a query.
    fn common_key(&self, qkv: &MatrixSpec) -> NumberSpec {
        let config = self.config;
        let is_seen = config.sinks != Sinks::None
            || config.attn_logit_softcapping.is_some()
            || config.mechanisms.depend_on_scores()
            || config.layers.iter().any(|layer| layer.shares_kv_of.is_some());
        let is_changed =
            config.qk_norm != QkNorm::None || config.clip_qkv.is_some() || config.recurrent.is_some();
        let Some(bias) = qkv.biases.get(1).filter(|_| !is_seen && !is_changed) else {
            return NumberSpec::default();
        };
        let bias = NumberSpec::vectors([bias.clone()]);
        let LayerRope::Rotary(rope) = self.layer.rope else { return bias };
        let Rope { theta, rotary_dim, layout, .. } = config.ropes[rope];
        let (dim, length) = (config.cached_heads(self.layer).head_dim, config.max_position_embeddings as f64);
        bias.prepared(move |mut bias| {
            for head in bias.chunks_exact_mut(dim) {
                for pair in 0..rotary_dim / 2 {
                    let frequency = theta.powf(-2.0 * pair as f64 / rotary_dim as f64);
                    if frequency * length > 1.0 {
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
            bias
        })
    }

    /// e^(q1 k1) - e^(q2 k2) + initial, and initial = 0.8 - 0.6 e^(-0.3 layer).
    fn lambdas(&self) -> NumberSpec {
        let vectors = ["q1", "k1", "q2", "k2"]
            .map(|part| self.vector(&format!("self_attn.lambda_{part}"), Rows::all(self.heads.head_dim)));
        let layer = self.index as f64;
        NumberSpec::vectors(vectors).prepared(move |all| {
            let (first, second) = all.split_at(all.len() / 2);
            let power = |pair: &[f32]| {
                let (q, k) = pair.split_at(pair.len() / 2);
                q.iter().zip(k).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>().exp()
            };
            let initial = 0.8 - 0.6 * (-0.3 * layer).exp();
            vec![(power(first) - power(second) + initial) as f32, initial as f32]
        })
    }

    /// q, k and v, with their rows in the order that the family rotates, and the gate of attention's output.
    pub fn qkv(&self) -> MatrixSpec {
        let config = self.config;
        let mut matrix = self.qkv_as_stored();
        let order = match config.names.head_rows {
            HeadRows::InOrder => None,
            HeadRows::Paired => Some(Rows::evens_then_odds as fn(usize, usize) -> Rows),
            HeadRows::HalvesSwapped => Some(Rows::halves_swapped as fn(usize, usize) -> Rows),
        };
        if let Some(order) = order {
            let counts = [self.heads.num_attention_heads, self.heads.num_key_value_heads];
            for of_each in [&mut matrix.weights, &mut matrix.biases] {
                for (source, heads) in of_each.iter_mut().zip(counts) {
                    let first = source.rows.first();
                    source.rows = order(heads, self.heads.head_dim).from(first);
                }
            }
        }
        let (weight, bias) = self.attention_gate();
        if !matrix.biases.is_empty() || bias.is_some() {
            let unbiased = &matrix.weights[matrix.biases.len()..];
            matrix.biases.extend(unbiased.iter().map(|part| TensorRows::zeros(part.rows.count())));
            let zeros = weight.as_ref().map(|weight| TensorRows::zeros(weight.rows.count()));
            matrix.biases.extend(bias.or(zeros));
        }
        matrix.weights.extend(weight);
        mechanisms::stack_on(self, &mut matrix);
        if let Some(relative) = config.relative_scores {
            const R_PROJ: Tensor = tensor!("self_attn.r_proj");
            let rows = self.heads.num_attention_heads * relative.d_rel;
            matrix.weights.extend(self.matrix(&[(R_PROJ, rows)], self.attention_input, Bias::None).weights);
        }
        matrix
    }

    /// Learned scores by distance.
    fn relative_scores(&self) -> Option<RelativeScoreWeights<Spec>> {
        let relative = self.config.relative_scores?;
        let extent = relative.extent(self.layer);
        let profiles = self.table("self_attn.rel_logits_proj.proj", relative.d_rel, extent);
        let from_greatest = move |mut profiles: Vec<f32>| {
            profiles.chunks_exact_mut(extent).for_each(<[f32]>::reverse);
            profiles
        };
        Some(RelativeScoreWeights { profiles: profiles.prepared(from_greatest), extent })
    }

    /// The gate of attention's output and its bias.
    pub fn attention_gate(&self) -> (Option<TensorRows>, Option<TensorRows>) {
        let (config, heads) = (self.config, self.heads);
        if config.attention_gate == AttentionGate::None {
            return (None, None);
        }
        let rows = config.attention_gate.rows(heads);
        let weight = match config.names.qkv {
            Qkv::GatedQueries([q, ..]) => {
                let (count, dim) = (heads.num_attention_heads, heads.head_dim);
                let part = [Rows::each(count, 2 * dim, dim, dim)];
                let (total, hidden) = (2 * heads.q_width(), config.hidden_size);
                let mut matrix = self.rows_of(q, total, &part, hidden, config.attention_bias);
                return (matrix.weights.pop(), matrix.biases.pop());
            }
            Qkv::GateStacked(name) => {
                let part = [Rows::range(0, rows)];
                let total = rows + heads.qkv_width();
                let mut matrix = self.rows_of(name, total, &part, config.hidden_size, config.attention_bias);
                return (matrix.weights.pop(), matrix.biases.pop());
            }
            _ => {
                let name = self.name(config.names.attention_gate.weight);
                TensorRows::whole(name, config.names.stored, rows, config.hidden_size)
            }
        };
        let bias = match config.attention_gate.width() {
            Some(GateWidth::PerChannelBiasPerHead) => {
                let spread = Rows::spread(heads.num_attention_heads, heads.v_head_dim);
                let tensor = self.vector(config.names.gate_bias, spread);
                Some(TensorRows { shape: vec![heads.num_attention_heads], ..tensor })
            }
            _ => None,
        };
        (Some(weight), bias)
    }

    fn qkv_as_stored(&self) -> MatrixSpec {
        let (config, heads) = (self.config, self.heads);
        let (groups, dim) = (heads.num_key_value_heads, heads.head_dim);
        let (queries, keys, values) = (heads.q_width(), groups * dim, groups * heads.v_head_dim);
        let (hidden, bias) = (self.attention_input, config.attention_bias);
        let total = queries + keys + values;
        match config.names.qkv {
            Qkv::Separate([q, _, _]) if self.layer.shares_kv_of.is_some() => {
                self.matrix(&[(q, queries)], hidden, bias)
            }
            Qkv::Separate([q, k, v]) if config.head_outputs == HeadOutputs::Differential => {
                // Head g has the values of head g of the lower half and of head g of the upper half.
                let half = groups / 2;
                let pair = |group| [group % half, half + group % half];
                let values = (0..groups).flat_map(pair).map(|head| Rows::range(head * dim, dim));
                let values = self.rows_of(v, keys, &values.collect::<Vec<_>>(), hidden, bias);
                let mut all = self.matrix(&[(q, queries), (k, keys)], hidden, bias);
                all.weights.extend(values.weights);
                all.biases.extend(values.biases);
                all
            }
            Qkv::Separate([q, k, v]) => {
                let v = if self.layer.values == Values::OfKeyProjection { k } else { v };
                self.matrix(&[(q, queries), (k, keys), (v, values)], hidden, bias)
            }
            Qkv::GatedQueries([q, k, v]) => {
                let mut matrix = self.matrix(&[(q, 2 * queries), (k, keys), (v, values)], hidden, bias);
                let of_queries = Rows::each(heads.num_attention_heads, 2 * dim, 0, dim);
                for of_each in [&mut matrix.weights, &mut matrix.biases] {
                    of_each.iter_mut().take(1).for_each(|source| source.rows = of_queries);
                }
                matrix
            }
            // What is kept of earlier positions comes first.
            Qkv::Delayed([q, k, current, delayed]) => {
                let parts = [(q, queries), (k, keys), (delayed, values / 2), (current, values / 2)];
                self.matrix(&parts, hidden, bias)
            }
            Qkv::Stacked(name) => {
                let parts = [(0, queries), (queries, keys), (queries + keys, values)];
                let parts = parts.map(|(first, rows)| Rows::range(first, rows));
                self.rows_of(name, total, &parts, hidden, bias)
            }
            Qkv::GateStacked(name) => {
                let gates = config.attention_gate.rows(heads);
                let parts = [(gates, queries), (gates + queries, keys), (gates + queries + keys, values)];
                let parts = parts.map(|(first, rows)| Rows::range(first, rows));
                self.rows_of(name, gates + total, &parts, hidden, bias)
            }
            Qkv::Grouped(name) => {
                let group = heads.group_size();
                let parts = [(0, group), (group, 1), (group + 1, 1)];
                let of_group = (group + 2) * dim;
                let parts = parts.map(|(first, n)| Rows::each(groups, of_group, first * dim, n * dim));
                self.rows_of(name, total, &parts, hidden, bias)
            }
            Qkv::OfFourDevices(name) => {
                let part = queries / 4;
                let parts = [0, 2, 1].map(|place| Rows::each(4, 3 * part, place * part, part));
                self.rows_of(name, total, &parts, hidden, bias)
            }
        }
    }

    /// Norms of q and k, repeated for all heads where the heads share one.
    fn qk_norms(&self) -> Option<[NormSpec; 2]> {
        let (config, heads) = (self.config, self.heads);
        let dim = heads.head_dim;
        let names = [
            (config.names.q_norm, heads.num_attention_heads),
            (
                config.names.k_norm,
                if self.layer.shares_kv_of.is_some() { 0 } else { heads.num_key_value_heads },
            ),
        ];
        let spec = NormSpec::new;
        let both = |of: &dyn Fn(Tensor, usize) -> NormSpec| {
            // A layer without its own keys has no norm for them.
            let of_some =
                |heads, name| if heads == 0 { spec(Vec::new(), Vec::new(), 0) } else { of(name, heads) };
            Some(names.map(|(name, heads)| of_some(heads, name)))
        };
        match config.qk_norm {
            QkNorm::None => None,
            QkNorm::PerHead(bias) => both(&|name, heads| {
                let weight = self.vector(name.weight, Rows::repeated(heads, dim));
                let bias = with_bias(bias, vec![self.vector(name.bias, Rows::repeated(heads, dim))]);
                spec(vec![weight], bias, heads * dim)
            }),
            QkNorm::PerHeadOwn => both(&|name, heads| {
                let tensor = self.vector(name.weight, Rows::all(heads * dim));
                spec(vec![TensorRows { shape: vec![heads, dim], ..tensor }], Vec::new(), heads * dim)
            }),
            QkNorm::PerHeadSplit => both(&|name, heads| {
                let part = |head| self.vector(&name.weight.replace("{}", &format!("{head}")), Rows::all(dim));
                spec((0..heads).map(part).collect(), Vec::new(), heads * dim)
            }),
            QkNorm::FullWidth => both(&|name, heads| {
                let weight = self.vector(name.weight, Rows::all(heads * dim));
                spec(vec![weight], Vec::new(), heads * dim)
            }),
            QkNorm::Length => {
                let factor = self.vector(names[1].0.weight, Rows::spread(names[1].1, dim));
                let factor = TensorRows { shape: vec![names[1].1], ..factor };
                Some([
                    spec(Vec::new(), Vec::new(), names[0].1 * dim),
                    spec(vec![factor], Vec::new(), names[1].1 * dim),
                ])
            }
            QkNorm::Unweighted if self.layer.rope == LayerRope::None => None,
            QkNorm::Unweighted => both(&|_, heads| spec(Vec::new(), Vec::new(), heads * dim)),
        }
    }

    /// The norm of the values, which has no tensors.
    fn value_norm(&self) -> Option<NormSpec> {
        let width = self.heads.num_key_value_heads * self.heads.v_head_dim;
        let own = self.config.value_norm == ValueNorm::PerHead && self.layer.shares_kv_of.is_none();
        own.then(|| NormSpec::new(Vec::new(), Vec::new(), width))
    }

    /// Whether the layer's o_proj has a bias.
    fn attention_out_bias(&self) -> Bias {
        let last = self.index + 1 == self.config.layers.len();
        match self.config.attention_out_bias {
            Bias::AddedInLastLayer if last => Bias::Added,
            Bias::AddedInLastLayer => Bias::None,
            bias => bias,
        }
    }
}
