//! Mixtures whose experts share one tensor for each of their projections, as GGUF files store them.

use super::layout::{Prefix, interleaved};
use super::rows::{Rows, Source};
use super::slots::{Join, MatrixSlot, MlpSlots};
use crate::config::{Bias, Experts, SharedExpert, Stored, Tensor};

impl Prefix<'_> {
    /// Expert `number` of three tensors [expert, out, in].
    pub fn merged_expert(&self, number: usize, experts: &Experts, [gate, up, down]: [Tensor; 3]) -> MlpSlots {
        let (hidden, width, count) =
            (self.config.hidden_size, experts.intermediate_size, experts.num_experts);
        let slot = |names: &[Tensor], out: usize, columns: usize| {
            let rows = Rows::range(number * out, out);
            let weight = |name: &Tensor| Source {
                name: format!("{}{}", self.path, name.weight),
                shape: vec![count, out, columns],
                stored: Stored::OutIn,
                rows,
            };
            let bias = |name: &Tensor| Source { shape: vec![count, out], ..self.vector(name.bias, rows) };
            MatrixSlot {
                weights: names.iter().map(weight).collect(),
                biases: match experts.bias {
                    Bias::None => Vec::new(),
                    Bias::Added => names.iter().map(bias).collect(),
                },
                in_features: columns,
                join: Join::Stacked,
            }
        };
        MlpSlots { up: interleaved(slot(&[gate, up], width, hidden)), down: slot(&[down], hidden, width) }
    }

    /// The expert that every token passes, and its gate, a vector.
    pub fn merged_shared(
        &self,
        [gate, up, down]: [Tensor; 3],
        shared_gate: Tensor,
        shared: SharedExpert,
    ) -> Option<(MlpSlots, Option<MatrixSlot>)> {
        let hidden = self.config.hidden_size;
        let (width, gated) = match shared {
            SharedExpert::None => return None,
            SharedExpert::Added { intermediate_size } => (intermediate_size, false),
            SharedExpert::Gated { intermediate_size } => (intermediate_size, true),
        };
        let mlp = MlpSlots {
            up: interleaved(self.matrix(&[(gate, width), (up, width)], hidden, Bias::None)),
            down: self.matrix(&[(down, hidden)], width, Bias::None),
        };
        let row = Source { rows: Rows::all(1), ..self.vector(shared_gate.weight, Rows::all(hidden)) };
        let gate =
            MatrixSlot { weights: vec![row], biases: Vec::new(), in_features: hidden, join: Join::Stacked };
        Some((mlp, gated.then_some(gate)))
    }
}
