//! The tensors of recurrent mixers.

use super::prefix::{Prefix, with_bias};
use super::rows::{Rows, TensorRows};
use super::spec::{MatrixSpec, NormSpec, RecurrentTensors};
use crate::config::{Bias, GatedOutput, InProj, LinearAttention, LinearRule, Recurrent, Tensor};

impl Prefix<'_> {
    /// A layer's recurrent mixer.
    pub fn recurrent(&self, recurrent: &Recurrent) -> RecurrentTensors {
        match recurrent {
            Recurrent::ShortConv { kernel_size, bias } => self.short_conv(*kernel_size, *bias),
            Recurrent::Linear(linear) => self.linear_attention(linear),
        }
    }

    fn short_conv(&self, kernel_size: usize, bias: Bias) -> RecurrentTensors {
        let (names, hidden) = (&self.config.names.recurrent, self.config.hidden_size);
        let in_proj = match names.in_proj {
            InProj::One(name) => self.matrix(&[(name, 3 * hidden)], hidden, bias),
            _ => self.matrix(&[], hidden, Bias::None),
        };
        RecurrentTensors {
            in_proj,
            conv: self.conv(&[(names.conv[0], hidden)], kernel_size),
            conv_bias: with_bias(bias, vec![self.vector(names.conv[0].bias, Rows::all(hidden))]),
            a_log: Vec::new(),
            dt_bias: Vec::new(),
            d: Vec::new(),
            norm: None,
            out_proj: self.matrix(&[(names.out_proj, hidden)], hidden, bias),
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
        let conv: Vec<(Tensor, usize)> = match (names.conv, names.conv_split) {
            ([one], _) => vec![(*one, linear.conv_width())],
            (parts, Some(split)) => parts.iter().copied().zip(split).collect(),
            (parts, None) => parts.iter().copied().zip([keys, keys, values]).collect(),
        };
        RecurrentTensors {
            in_proj: self.linear_in_proj(linear),
            conv: self.conv(&conv, linear.conv_kernel_size),
            conv_bias: with_bias(
                linear.conv_bias,
                vec![self.vector(names.conv[0].bias, Rows::all(linear.conv_width()))],
            ),
            a_log: per_head(names.a_log),
            dt_bias: per_head(names.dt_bias),
            d: match linear.rule {
                LinearRule::GatedDelta { .. } => Vec::new(),
                LinearRule::Mamba2 { .. } => per_head(names.d),
            },
            norm: norm.map(|(own, times)| NormSpec {
                weight: vec![self.vector(names.norm.weight, Rows::repeated(times, own))],
                bias: Vec::new(),
                width,
                gate: Vec::new(),
            }),
            out_proj: self.matrix(&[(names.out_proj, self.config.hidden_size)], width, linear.out_bias),
        }
    }

    /// The convolution's channels (q, k, v; or x, B, C), then z, then the scalars of all heads.
    fn linear_in_proj(&self, linear: &LinearAttention) -> MatrixSpec {
        let (hidden, bias) = (self.config.hidden_size, linear.in_bias);
        let (keys, values) = (linear.keys_width(), linear.values_width());
        let (heads, conv) = (linear.num_value_heads, linear.conv_width());
        match self.config.names.recurrent.in_proj {
            InProj::One(name) => {
                let scalars = linear.scalars() * heads;
                let parts =
                    [Rows::range(values, conv), Rows::range(0, values), Rows::range(values + conv, scalars)];
                self.rows_of(name, linear.in_width(), &parts, hidden, bias)
            }
            InProj::Qkv([qkv, z, b, a]) => {
                self.matrix(&[(qkv, conv), (z, values), (b, heads), (a, heads)], hidden, bias)
            }
            InProj::Each([q, k, v, z, b, a]) => {
                let parts = [(q, keys), (k, keys), (v, values), (z, values), (b, heads), (a, heads)];
                self.matrix(&parts, hidden, bias)
            }
            InProj::ByKeyHead([qkvz, ba]) => {
                let (groups, dim) = (linear.num_key_heads, linear.key_dim);
                let (of_group, each) = (values / groups, heads / groups);
                let stride = 2 * dim + 2 * of_group;
                let parts = [(0, dim), (dim, dim), (2 * dim, of_group), (2 * dim + of_group, of_group)];
                let parts = parts.map(|(first, len)| Rows::each(groups, stride, first, len));
                let mut matrix = self.rows_of(qkvz, groups * stride, &parts, hidden, bias);
                let parts = [0, each].map(|first| Rows::each(groups, 2 * each, first, each));
                let scalars = self.rows_of(ba, 2 * heads, &parts, hidden, bias);
                matrix.weights.extend(scalars.weights);
                matrix.biases.extend(scalars.biases);
                matrix
            }
        }
    }
}
