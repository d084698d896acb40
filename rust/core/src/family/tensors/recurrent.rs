//! The tensors of recurrent mixers.

use super::prefix::{Prefix, with_bias};
use super::rows::{Rows, TensorRows};
use super::spec::{BranchConvolutionTensors, Join, MatrixSpec, NormSpec, RecurrentTensors};
use crate::config::{
    Bias, GatedOutput, InProj, LayerMlp, LinearAttention, LinearRule, Recurrent, RecurrentForm, RgLru,
    SelectiveScan, Stored, Tensor, tensor,
};

impl Prefix<'_> {
    /// A layer's recurrent mixer; None where the state is attention's.
    pub fn recurrent(&self, recurrent: &Recurrent) -> Option<RecurrentTensors> {
        Some(match recurrent {
            Recurrent::BeforeAttention(_) | Recurrent::OfBranches(_) | Recurrent::OfCompression { .. } => {
                return None;
            }
            Recurrent::ShortConv { kernel_size, bias } => self.short_conv(*kernel_size, *bias),
            Recurrent::Linear(linear) => self.linear_attention(linear),
            Recurrent::SelectiveScan(scan) => self.selective_scan(scan),
            Recurrent::RgLru(unit) => self.rg_lru(unit),
        })
    }

    fn short_conv(&self, kernel_size: usize, bias: Bias) -> RecurrentTensors {
        let (names, hidden) = (&self.config.names.recurrent, self.config.hidden_size);
        RecurrentTensors {
            in_proj: self.one_in_proj(3 * hidden, bias),
            conv: self.conv(&[(names.conv[0], hidden)], kernel_size),
            conv_bias: with_bias(bias, vec![self.vector(names.conv[0].bias, Rows::all(hidden))]),
            a_log: Vec::new(),
            dt_bias: Vec::new(),
            d: Vec::new(),
            norm: None,
            inner_proj: Vec::new(),
            inner_norms: Vec::new(),
            out_proj: self.matrix(&[(names.out_proj, hidden)], hidden, bias),
        }
    }

    /// An input projection in one tensor, in its order.
    fn one_in_proj(&self, rows: usize, bias: Bias) -> MatrixSpec {
        let parts = match self.config.names.recurrent.in_proj {
            InProj::One(name) => vec![(name, rows)],
            InProj::Branches([with_state, other]) => vec![(with_state, rows / 2), (other, rows / 2)],
            _ => Vec::new(),
        };
        self.matrix(&parts, self.config.hidden_size, bias)
    }

    fn selective_scan(&self, scan: &SelectiveScan) -> RecurrentTensors {
        let (names, hidden) = (&self.config.names.recurrent, self.config.hidden_size);
        let SelectiveScan { width, state_size: state, time_step_rank: rank, .. } = *scan;
        let widths = [rank, state, state];
        let a_log = TensorRows::whole(self.name(names.a_log), Stored::OutIn, width, state);
        RecurrentTensors {
            in_proj: self.one_in_proj(2 * width, scan.bias),
            conv: self.conv(&[(names.conv[0], width)], scan.conv_kernel_size),
            conv_bias: with_bias(scan.conv_bias, vec![self.vector(names.conv[0].bias, Rows::all(width))]),
            a_log: vec![a_log],
            dt_bias: Vec::new(),
            d: vec![self.vector(names.d, Rows::all(width))],
            norm: None,
            inner_proj: vec![
                self.matrix(&[(names.inner[0], rank + 2 * state)], width, Bias::None),
                self.matrix(&[(names.inner[1], width)], rank, Bias::Added),
            ],
            inner_norms: names.inner_norms.iter().zip(widths).map(|(&name, n)| self.norm(name, n)).collect(),
            out_proj: self.matrix(&[(names.out_proj, hidden)], width, scan.bias),
        }
    }

    fn rg_lru(&self, unit: &RgLru) -> RecurrentTensors {
        let (names, hidden) = (&self.config.names.recurrent, self.config.hidden_size);
        let RgLru { width, num_heads: heads, conv_kernel_size, .. } = *unit;
        let block = width / heads;
        // All heads' matrices are in one tensor [head, in, out].
        let gates = |head: usize| {
            let rows = Rows::range(head * block, block);
            let weight = |name: &Tensor| TensorRows {
                name: self.name(name.weight),
                shape: vec![heads, block, block],
                stored: Stored::InOut,
                rows,
                transposed: None,
            };
            let bias =
                |name: &Tensor| TensorRows { shape: vec![heads, block], ..self.vector(name.bias, rows) };
            MatrixSpec {
                weights: names.inner.iter().map(weight).collect(),
                biases: names.inner.iter().map(bias).collect(),
                in_features: block,
                join: Join::Stacked,
            }
        };
        RecurrentTensors {
            in_proj: self.one_in_proj(2 * width, Bias::Added),
            conv: self.conv(&[(names.conv[0], width)], conv_kernel_size),
            conv_bias: vec![self.vector(names.conv[0].bias, Rows::all(width))],
            a_log: vec![self.vector(names.a_log, Rows::all(width))],
            dt_bias: Vec::new(),
            d: Vec::new(),
            norm: None,
            inner_proj: (0..heads).map(gates).collect(),
            inner_norms: Vec::new(),
            out_proj: self.matrix(&[(names.out_proj, hidden)], width, Bias::Added),
        }
    }

    /// A depthwise convolution in tensors with (name, channels).  // each [channels, 1, positions]
    fn conv(&self, parts: &[(Tensor, usize)], positions: usize) -> Vec<TensorRows> {
        let part = |&(name, channels): &(Tensor, usize)| TensorRows {
            shape: vec![channels, 1, positions],
            ..self.vector(name.weight, Rows::all(channels))
        };
        parts.iter().map(part).collect()
    }

    /// Convolutions of keys, of values, and of what attention and the MLP add.
    pub fn branch_convolutions(&self, positions: usize) -> BranchConvolutionTensors {
        let (heads, hidden) = (self.heads, self.config.hidden_size);
        let of = |name: Tensor, channels: usize| TensorRows {
            shape: vec![channels, 1, positions],
            ..self.vector(name.weight, Rows::all(channels))
        };
        let is_sparse = self.layer.mlp == LayerMlp::Moe;
        let scale = if is_sparse { "mlp.gate.global_scale" } else { "mlp.global_scale" };
        BranchConvolutionTensors {
            kv: [
                of(tensor!("self_attn.k_sconv.conv1d"), heads.num_key_value_heads * heads.head_dim),
                of(tensor!("self_attn.v_sconv.conv1d"), heads.num_key_value_heads * heads.v_head_dim),
            ],
            attention: of(tensor!("attn_sconv.conv1d"), hidden),
            mlp: of(tensor!("mlp_sconv.conv1d"), hidden),
            mlp_scale: self.vector(scale, Rows::all(1)),
        }
    }

    fn linear_attention(&self, linear: &LinearAttention) -> RecurrentTensors {
        let (names, heads) = (&self.config.names.recurrent, linear.num_value_heads);
        let width = linear.values_width();
        let per_head = |name: &str| vec![self.vector(name, Rows::all(heads))];
        let norm = match linear.output {
            GatedOutput::Gate => None,
            GatedOutput::NormThenGate { group, shared_weight: true, .. } => Some((group, width / group)),
            GatedOutput::NormThenGate { .. } | GatedOutput::GateThenNorm { .. } => Some((width, 1)),
        };
        let (keys, values) = (linear.keys_width(), linear.values_width());
        let [outer, inner] = names.a_log_shape;
        let a_log_shape = [outer, &[heads], inner].concat();
        let conv: Vec<(Tensor, usize)> = match (names.conv, names.conv_split) {
            ([], _) => Vec::new(),
            ([one], _) => vec![(*one, linear.conv_width())],
            (parts, Some(split)) => parts.iter().copied().zip(split).collect(),
            (parts, None) => parts.iter().copied().zip([keys, keys, values]).collect(),
        };
        RecurrentTensors {
            in_proj: self.linear_in_proj(linear),
            conv: self.conv(&conv, linear.conv_kernel_size),
            conv_bias: match names.conv {
                [] => Vec::new(),
                [first, ..] => {
                    let bias = self.vector(first.bias, Rows::all(linear.conv_width()));
                    with_bias(linear.conv_bias, vec![bias])
                }
            },
            a_log: match linear.rule {
                LinearRule::Lightning { stored_block: None } => Vec::new(),
                LinearRule::Lightning { stored_block: Some(block) } => [
                    ("slope_rate", vec![heads, 1, 1]),
                    ("query_decay", vec![heads, block, 1]),
                    ("key_decay", vec![heads, block, 1]),
                    ("diagonal_decay", vec![1, heads, block, block]),
                ]
                .map(|(table, shape)| {
                    let rows = Rows::all(shape.iter().product());
                    TensorRows { shape, ..self.vector(&format!("self_attn.{table}"), rows) }
                })
                .to_vec(),
                _ => vec![TensorRows { shape: a_log_shape, ..self.vector(names.a_log, Rows::all(heads)) }],
            },
            dt_bias: match linear.rule {
                LinearRule::GatedDelta { .. } | LinearRule::Mamba2 { .. } => per_head(names.dt_bias),
                LinearRule::KimiDelta { .. } => vec![self.vector(names.dt_bias, Rows::all(keys))],
                LinearRule::Lightning { .. } => Vec::new(),
            },
            d: match linear.rule {
                LinearRule::Mamba2 { .. } => per_head(names.d),
                _ => Vec::new(),
            },
            norm: norm.map(|(own, times)| NormSpec {
                weight: vec![self.group_norm(linear, own, times)],
                bias: Vec::new(),
                width,
                gate: Vec::new(),
            }),
            inner_proj: match linear.gate_rank {
                None => Vec::new(),
                Some(rank) => {
                    let parts = names.inner.iter().zip([values, keys]);
                    parts.map(|(&name, rows)| self.matrix(&[(name, rows)], rank, Bias::None)).collect()
                }
            },
            inner_norms: Vec::new(),
            out_proj: self.matrix(&[(names.out_proj, self.config.hidden_size)], width, linear.out_bias),
        }
    }

    /// The weight of the output's norm, `times` times.
    fn group_norm(&self, linear: &LinearAttention, own: usize, times: usize) -> TensorRows {
        let names = &self.config.names.recurrent;
        let vector = self.vector(names.norm.weight, Rows::repeated(times, own));
        match (names.form, linear.output) {
            (RecurrentForm::Gguf, GatedOutput::GateThenNorm { group, .. }) => {
                TensorRows { shape: vec![own / group, group], ..vector }
            }
            _ => vector,
        }
    }

    /// The convolution's channels (q, k, v; or x, B, C), then z, then the inputs of the steps.
    fn linear_in_proj(&self, linear: &LinearAttention) -> MatrixSpec {
        let (hidden, bias) = (self.config.hidden_size, linear.in_bias);
        let (keys, values) = (linear.keys_width(), linear.values_width());
        let (heads, conv) = (linear.num_value_heads, linear.conv_width());
        match self.config.names.recurrent.in_proj {
            InProj::One(name) => {
                let steps = Rows::range(values + conv, linear.step_width());
                let parts = [Rows::range(values, conv), Rows::range(0, values), steps];
                self.rows_of(name, linear.in_width(), &parts, hidden, bias)
            }
            InProj::ByHead([qkv, z]) => {
                let dim = linear.key_dim;
                let parts = [0, 1, 2].map(|part| Rows::each(heads, 3 * dim, part * dim, dim));
                let mut matrix = self.rows_of(qkv, conv, &parts, hidden, bias);
                matrix.weights.extend(self.matrix(&[(z, values)], hidden, Bias::None).weights);
                matrix
            }
            InProj::Branches(_) => self.matrix(&[], hidden, Bias::None), // of mixers without heads
            InProj::Qkv([qkv, z, b, a]) => {
                self.matrix(&[(qkv, conv), (z, values), (b, heads), (a, heads)], hidden, bias)
            }
            InProj::Each([q, k, v, z, b, a]) => {
                let last = linear.step_width() - heads;
                let z_rows = linear.gate_width();
                let parts = [(q, keys), (k, keys), (v, values), (z, z_rows), (b, heads), (a, last)];
                self.matrix(&parts, hidden, bias)
            }
            InProj::ByKeyHead([qkvz, ba]) => {
                let (groups, dim) = (linear.num_key_heads, linear.key_dim);
                let of_group = values / groups;
                let stride = 2 * dim + 2 * of_group;
                let parts = [(0, dim), (dim, dim), (2 * dim, of_group), (2 * dim + of_group, of_group)];
                let parts = parts.map(|(first, len)| Rows::each(groups, stride, first, len));
                let matrix = self.rows_of(qkvz, groups * stride, &parts, hidden, bias);
                self.with_steps_by_key_head(matrix, ba, linear)
            }
            InProj::QkvAndByKeyHead([qkv, z, ba]) => {
                let matrix = self.matrix(&[(qkv, conv), (z, values)], hidden, bias);
                self.with_steps_by_key_head(matrix, ba, linear)
            }
        }
    }

    /// Adds b and a, which one tensor has by key head.
    fn with_steps_by_key_head(
        &self,
        mut matrix: MatrixSpec,
        name: Tensor,
        linear: &LinearAttention,
    ) -> MatrixSpec {
        let (heads, groups) = (linear.num_value_heads, linear.num_key_heads);
        let each = heads / groups;
        let parts = [0, each].map(|first| Rows::each(groups, 2 * each, first, each));
        let steps = self.rows_of(name, 2 * heads, &parts, self.config.hidden_size, linear.in_bias);
        matrix.weights.extend(steps.weights);
        matrix.biases.extend(steps.biases);
        matrix
    }
}
