//! The names of one layer's tensors, or the model's, and the matrices and norms that are built from them.

use super::rows::{Rows, TensorRows};
use super::spec::{HyperTensors, Join, MatrixSpec, NormSpec};
use crate::config::{Bias, Config, Heads, LayerSpec, NormWeight, Stored, Tensor};

/// A layer's (or the model's) path, with the dot.
pub(super) struct Prefix<'a> {
    pub config: &'a Config,
    pub path: String,
    /// The layer that the path leads to, or the first one.
    pub layer: &'a LayerSpec,
    pub heads: Heads,
    /// Width of what attention reads.
    pub attention_input: usize,
    /// Which of the layers that share a number it is: what `{part}` in a name stands for.
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
    /// The tensors below `path`, in a layer or (with the first one) outside.
    pub fn new(config: &'a Config, path: String, layer: &'a LayerSpec) -> Self {
        let (heads, attention_input) = (config.heads(layer), config.hidden_size);
        Self { config, path, layer, heads, attention_input, part: 0 }
    }

    /// Whether the path leads to the first layer.
    pub fn is_first_layer(&self) -> bool {
        std::ptr::eq(self.layer, &self.config.layers[0])
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

    /// Whole tensors with (name, rows), stacked.
    pub fn matrix(&self, parts: &[(Tensor, usize)], in_features: usize, bias: Bias) -> MatrixSpec {
        let weight = |&(name, rows): &(Tensor, usize)| {
            TensorRows::whole(self.name(name.weight), self.config.names.stored, rows, in_features)
        };
        let biases = parts.iter().map(|(name, rows)| self.vector(name.bias, Rows::all(*rows))).collect();
        MatrixSpec {
            weights: parts.iter().map(weight).collect(),
            biases: with_bias(bias, biases),
            in_features,
            join: Join::Stacked,
        }
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
        MatrixSpec {
            weights: pick(&whole),
            biases: with_bias(bias, pick(&whole_bias)),
            in_features,
            join: Join::Stacked,
        }
    }

    /// A norm of the residual stream or of a latent.
    pub fn norm(&self, name: Tensor, width: usize) -> NormSpec {
        let config = self.config;
        let weight = self.vector(name.weight, Rows::all(width));
        NormSpec {
            weight: if config.norm_weight == NormWeight::Absent { Vec::new() } else { vec![weight] },
            bias: with_bias(config.norm_bias, vec![self.vector(name.bias, Rows::all(width))]),
            width,
            gate: Vec::new(),
        }
    }

    /// A hyper-connection of so many streams and kinds of weights.
    pub fn hyper(&self, [matrix, base, scale]: [&str; 3], streams: usize, kinds: usize) -> HyperTensors {
        let (rows, width) = (streams * kinds, streams * self.config.hidden_size);
        HyperTensors {
            matrix: TensorRows::whole(self.name(matrix), Stored::OutIn, rows, width),
            base: self.vector(base, Rows::all(rows)),
            scale: self.vector(scale, Rows::all(kinds)),
        }
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
