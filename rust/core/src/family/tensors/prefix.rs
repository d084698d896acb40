//! The names of one layer's tensors, or the model's, and the matrices and norms that are built from them.

use crate::config::{Bias, Config, Heads, LayerSpec, NormWeight, Stored, Tensor};
use crate::parts::{MatrixSpec, NormSpec, NumberSpec, Rows, TensorRows};

/// A layer's (or the model's) path, with the dot.
pub(crate) struct Prefix<'a> {
    pub config: &'a Config,
    pub path: String,
    /// The place of the layer that the path leads to, or of the first one.
    pub index: usize,
    /// That layer.
    pub layer: &'a LayerSpec,
    pub heads: Heads,
    /// Width of what attention reads.
    pub attention_input: usize,
    /// Whether layers share what is at the path: it is packed once.
    pub is_shared: bool,
    /// Which of the layers that share a number it is: the value of `{part}` in a name.
    pub part: usize,
}

/// The sources if there is a bias, else none.
pub(super) fn with_bias(bias: Bias, sources: Vec<TensorRows>) -> Vec<TensorRows> {
    match bias {
        Bias::None => Vec::new(),
        Bias::Added | Bias::AddedInLastLayer => sources,
    }
}

impl<'a> Prefix<'a> {
    /// The tensors below `path`, in layer `index` or (with the first one) outside.
    pub fn new(config: &'a Config, path: String, index: usize) -> Self {
        let layer = &config.layers[index];
        let (heads, attention_input) = (config.heads(layer), config.hidden_size);
        Self { config, path, index, layer, heads, attention_input, is_shared: false, part: 0 }
    }

    /// The full name of a tensor.
    pub fn name(&self, name: &str) -> String {
        let name = format!("{}{name}", self.path);
        if name.contains("{part}") { name.replace("{part}", &self.part.to_string()) } else { name }
    }

    /// Some elements of a vector.
    pub fn vector(&self, name: &str, rows: Rows) -> TensorRows {
        TensorRows::vector(self.name(name), rows)
    }

    /// Some elements of a vector, as f32.
    pub fn numbers(&self, name: &str, rows: Rows) -> NumberSpec {
        NumberSpec::vectors([self.vector(name, rows)])
    }

    /// A matrix [rows, columns], as f32.
    pub fn table(&self, name: &str, rows: usize, columns: usize) -> NumberSpec {
        NumberSpec::table(TensorRows::whole(self.name(name), Stored::OutIn, rows, columns), columns)
    }

    /// Depthwise convolutions with (name, channels), each [channels, 1, positions], as [positions, all channels] after `change`.
    pub fn by_position(
        &self,
        parts: &[(&str, usize)],
        positions: usize,
        change: impl Fn(&mut [f32]) + Send + Sync + 'static,
    ) -> NumberSpec {
        let part = |&(name, channels): &(&str, usize)| {
            let rows = self.vector(name, Rows::all(channels));
            (TensorRows { shape: vec![channels, 1, positions], ..rows }, positions)
        };
        let spec = NumberSpec { rows: parts.iter().map(part).collect(), prepare: None };
        spec.prepared(move |by_channel| {
            let position = |position| by_channel.iter().skip(position).step_by(positions).copied();
            let mut weights = (0..positions).flat_map(position).collect::<Vec<f32>>();
            change(&mut weights);
            weights
        })
    }

    /// Whole tensors with (name, rows), stacked.
    pub fn matrix(&self, parts: &[(Tensor, usize)], in_features: usize, bias: Bias) -> MatrixSpec {
        let weight = |&(name, rows): &(Tensor, usize)| {
            TensorRows::whole(self.name(name.weight), self.config.names.stored, rows, in_features)
        };
        let biases = parts.iter().map(|(name, rows)| self.vector(name.bias, Rows::all(*rows))).collect();
        MatrixSpec::stacked(parts.iter().map(weight).collect(), with_bias(bias, biases), in_features)
    }

    /// Some rows of one tensor of `total` rows, stacked in this order.
    pub fn rows_of(
        &self,
        name: Tensor,
        total: usize,
        parts: &[Rows],
        in_features: usize,
        bias: Bias,
    ) -> MatrixSpec {
        let whole = TensorRows::whole(self.name(name.weight), self.config.names.stored, total, in_features);
        let whole_bias = self.vector(name.bias, Rows::all(total));
        let pick = |of: &TensorRows| parts.iter().map(|&rows| TensorRows { rows, ..of.clone() }).collect();
        MatrixSpec::stacked(pick(&whole), with_bias(bias, pick(&whole_bias)), in_features)
    }

    /// A norm of the residual stream or of a latent.
    pub fn norm(&self, name: Tensor, width: usize) -> NormSpec {
        let config = self.config;
        let weight = self.vector(name.weight, Rows::all(width));
        let weight = if config.norm_weight == NormWeight::Absent { Vec::new() } else { vec![weight] };
        NormSpec::new(
            weight,
            with_bias(config.norm_bias, vec![self.vector(name.bias, Rows::all(width))]),
            width,
        )
    }

    /// A norm whose result has a gate of this rank.
    pub fn gated_norm(&self, name: Tensor, width: usize, rank: usize) -> NormSpec {
        let path = self.name(name.weight.trim_end_matches("weight"));
        let [down, up] = self.config.names.norm_gate.map(|name| format!("{path}{name}"));
        let whole = |name, rows, columns| TensorRows::whole(name, Stored::OutIn, rows, columns);
        NormSpec {
            weight: vec![TensorRows::vector(format!("{path}norm.weight"), Rows::all(width))],
            gate: vec![whole(down, rank, width), whole(up, width, rank)],
            ..self.norm(name, width)
        }
    }
}
