//! The tensors of recurrent mixers.

use super::mechanisms;
use super::prefix::Prefix;
use crate::config::{
    Bias, GatedOutput, InProj, LinearAttention, LinearRule, Mixer, Recurrent, RecurrentForm, ResidualFactors,
    Tensor,
};
use crate::parts::{MatrixSpec, NormSpec, NumberSpec, RecurrentWeights, Rows, Spec, TensorRows};

impl Prefix<'_> {
    /// A layer's recurrent mixer with the norms of its input and output; None where the state is attention's.
    pub fn recurrent(
        &self,
        recurrent: &Recurrent,
        [norm, out_norm]: [Option<NormSpec>; 2],
    ) -> Option<RecurrentWeights<Spec>> {
        let own = match recurrent {
            Recurrent::Linear(linear) => self.linear_attention(linear),
            other => mechanisms::mixer(other, self)?,
        };
        let factors = self.config.recurrent_factors;
        let input_norm = norm.map(|norm| norm.times(factors.input));
        Some(RecurrentWeights { input_norm, out_norm, ..own })
    }

    /// A mixer of two projections, without anything between them.
    pub fn mixer(&self, in_proj: MatrixSpec, out_proj: MatrixSpec) -> RecurrentWeights<Spec> {
        // Parallel to attention, the mixer has its own factors.
        let own = match self.layer.mixer {
            Mixer::Recurrent => self.layer.residual_factors[0],
            _ => ResidualFactors::ONE,
        };
        let none = NumberSpec::default;
        RecurrentWeights {
            input_norm: None,
            in_proj,
            conv: none(),
            conv_bias: none(),
            decay_rate: none(),
            dt_bias: none(),
            d: none(),
            norm: None,
            inner_proj: Vec::new(),
            inner_norms: Vec::new(),
            out_proj,
            out_norm: None,
            state_layer: self.config.state_layer(self.index),
            factors: ResidualFactors { branch: own.branch * self.config.recurrent_factors.output, ..own },
        }
    }

    /// The bias of the convolution of all channels; zeros without one.
    pub fn conv_bias(&self, channels: usize, bias: Bias) -> NumberSpec {
        match (self.config.names.recurrent.conv, bias) {
            ([first, ..], Bias::Added | Bias::AddedInLastLayer) => {
                self.numbers(first.bias, Rows::all(channels))
            }
            _ => NumberSpec::constant(0.0, channels),
        }
    }

    /// An input projection in one tensor, in its order.
    pub fn one_in_proj(&self, rows: usize, bias: Bias) -> MatrixSpec {
        let parts = match self.config.names.recurrent.in_proj {
            InProj::One(name) => vec![(name, rows)],
            InProj::Branches([with_state, other]) => vec![(with_state, rows / 2), (other, rows / 2)],
            _ => Vec::new(),
        };
        self.matrix(&parts, self.config.hidden_size, bias)
    }

    /// From a stored value to a decay rate.
    pub fn decay_rate(&self) -> fn(f32) -> f32 {
        match self.config.names.recurrent.form {
            RecurrentForm::Hub => |stored| -stored.exp(),
            RecurrentForm::Gguf => |stored| -stored.abs(), // bailingmoe3 leaves the sign out
        }
    }

    fn linear_attention(&self, linear: &LinearAttention) -> RecurrentWeights<Spec> {
        let (names, heads) = (&self.config.names.recurrent, linear.num_value_heads);
        let width = linear.values_width();
        let per_head = |name: &str| self.numbers(name, Rows::all(heads));
        let norm = match linear.output {
            GatedOutput::Gate => None,
            GatedOutput::NormThenGate { group, shared_weight: true, .. } => Some((group, width / group)),
            GatedOutput::NormThenGate { .. } | GatedOutput::GateThenNorm { .. } => Some((width, 1)),
        };
        // The norm of the output holds its weight as it is, unlike the norms of the stream.
        let norm = norm.map(|(own, times)| NormSpec {
            is_plain: true,
            ..NormSpec::new(vec![self.group_norm(linear, own, times)], Vec::new(), width)
        });
        let (keys, values) = (linear.keys_width(), linear.values_width());
        let [outer, inner] = names.a_log_shape;
        let a_log_shape = [outer, &[heads], inner].concat();
        let conv: Vec<(&str, usize)> = match (names.conv, names.conv_split) {
            ([one], _) => vec![(one.weight, linear.conv_width())],
            (parts, split) => {
                let channels = split.unwrap_or([keys, keys, values]);
                parts.iter().map(|part| part.weight).zip(channels).collect()
            }
        };
        let (channels, of) = (linear.conv_width(), *linear);
        // Factors of what a channel of the convolution reads: the convolution is linear, so its weights carry them.
        let change = move |weights: &mut [f32]| {
            for (index, weight) in weights.iter_mut().enumerate() {
                *weight *= input_factor(&of, index % channels);
            }
        };
        let rate = self.decay_rate();
        RecurrentWeights {
            conv: self.by_position(&conv, linear.conv_kernel_size, change),
            conv_bias: self.conv_bias(channels, linear.conv_bias),
            decay_rate: NumberSpec::vectors([TensorRows {
                shape: a_log_shape,
                ..self.vector(names.a_log, Rows::all(heads))
            }])
            .each(rate),
            dt_bias: match linear.rule {
                LinearRule::GatedDelta { .. } | LinearRule::Mamba2 { .. } => per_head(names.dt_bias),
                LinearRule::KimiDelta { .. } => self.numbers(names.dt_bias, Rows::all(keys)),
            },
            d: match linear.rule {
                LinearRule::Mamba2 { .. } => per_head(names.d),
                _ => NumberSpec::default(),
            },
            norm,
            inner_proj: match linear.gate_rank {
                None => Vec::new(),
                Some(rank) => {
                    let parts = names.inner.iter().zip([values, keys]);
                    parts.map(|(&name, rows)| self.matrix(&[(name, rows)], rank, Bias::None)).collect()
                }
            },
            ..self.mixer(
                self.linear_in_proj(linear),
                self.matrix(&[(names.out_proj, self.config.hidden_size)], width, linear.out_bias),
            )
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

/// Factor of what a channel of the convolution reads.
fn input_factor(linear: &LinearAttention, channel: usize) -> f32 {
    let LinearRule::Mamba2 { multipliers: [_, x, b, c, _], .. } = linear.rule else { return 1.0 };
    match channel.checked_sub(linear.values_width()) {
        None => x,
        Some(channel) if channel < linear.keys_width() => b,
        Some(_) => c,
    }
}
