//! The tensors of MLPs and of mixtures of experts.

use super::prefix::{Prefix, with_bias};
use super::rows::{Rows, TensorRows};
use super::spec::{DenseTensors, Join, MatrixSpec, MoeTensors};
use crate::config::{Bias, GateUp, MlpShape, Moe, MoeNames, SharedExpert, Stored, Tensor};

impl Prefix<'_> {
    /// An MLP for all tokens.
    pub fn dense_mlp(&self, width: usize) -> DenseTensors {
        let config = self.config;
        let (hidden, bias) = (config.hidden_size, config.mlp_bias);
        let gate_up_proj = match (config.names.gate_up_proj, config.mlp) {
            (GateUp::Separate { up, .. }, MlpShape::Plain) => self.matrix(&[(up, width)], hidden, bias),
            (GateUp::Separate { gate, up }, MlpShape::Gated) => {
                self.matrix(&[(gate, width), (up, width)], hidden, bias).interleaved()
            }
            (GateUp::Stacked(name), _) => {
                let parts = [Rows::range(0, width), Rows::range(width, width)];
                self.rows_of(name, 2 * width, &parts, hidden, bias).interleaved()
            }
        };
        let down_proj = self.matrix(&[(config.names.down_proj, hidden)], width, bias);
        DenseTensors { gate_up_proj, down_proj }
    }

    /// A mixture of experts.
    pub fn moe(&self, moe: &Moe) -> MoeTensors {
        let count = moe.num_experts;
        let router = |router| self.matrix(&[(router, count)], self.config.hidden_size, moe.bias);
        match self.config.names.moe {
            MoeNames::Each { router: name, experts, parts, shared } => MoeTensors {
                router: router(name),
                e_score_correction_bias: self
                    .correction_bias(&name.weight.replace(".weight", ".e_score_correction_bias"), moe),
                experts: (0..count)
                    .map(|number| self.expert(&format!("{experts}.{number}"), parts, moe.intermediate_size))
                    .collect(),
                shared_expert: self.shared_expert(shared, moe.shared),
            },
            MoeNames::Interleaved { router: name, gate_up, down } => MoeTensors {
                router: router(name),
                e_score_correction_bias: Vec::new(),
                experts: (0..count)
                    .map(|number| self.interleaved_expert(number, moe, gate_up, down))
                    .collect(),
                shared_expert: None,
            },
            MoeNames::Merged { router: name, parts, shared, shared_gate, correction_bias } => MoeTensors {
                router: router(name),
                e_score_correction_bias: self.correction_bias(correction_bias, moe),
                experts: (0..count).map(|number| self.merged_expert(number, moe, parts)).collect(),
                shared_expert: self.merged_shared_expert(shared, shared_gate, moe.shared),
            },
        }
    }

    /// `e_score_correction_bias` of routers that score by a sigmoid.
    fn correction_bias(&self, name: &str, moe: &Moe) -> Vec<TensorRows> {
        let tensor = || vec![self.vector(name, Rows::all(moe.num_experts))];
        if moe.scoring.has_correction_bias() { tensor() } else { Vec::new() }
    }

    /// An expert with tensors of its own.
    fn expert(&self, path: &str, [gate, up, down]: [&str; 3], width: usize) -> DenseTensors {
        let hidden = self.config.hidden_size;
        let source = |part: &str, rows, columns| {
            TensorRows::whole(self.name(&format!("{path}.{part}")), Stored::OutIn, rows, columns)
        };
        let matrix = |weights, in_features| MatrixSpec {
            weights,
            biases: Vec::new(),
            in_features,
            join: Join::Stacked,
        };
        DenseTensors {
            gate_up_proj: matrix(vec![source(gate, width, hidden), source(up, width, hidden)], hidden)
                .interleaved(),
            down_proj: matrix(vec![source(down, hidden, width)], width),
        }
    }

    /// Expert `number` of tensors [expert, in, out] whose columns alternate between gate and up.
    fn interleaved_expert(&self, number: usize, moe: &Moe, gate_up: Tensor, down: Tensor) -> DenseTensors {
        let (hidden, width, count) = (self.config.hidden_size, moe.intermediate_size, moe.num_experts);
        let matrix = |name: Tensor, rows: &[Rows], out: usize, columns: usize| MatrixSpec {
            weights: rows
                .iter()
                .map(|&rows| TensorRows {
                    name: self.name(name.weight),
                    shape: vec![count, columns, out],
                    stored: Stored::InOut,
                    rows,
                })
                .collect(),
            biases: with_bias(
                moe.bias,
                rows.iter()
                    .map(|&rows| TensorRows { shape: vec![count, out], ..self.vector(name.bias, rows) })
                    .collect(),
            ),
            in_features: columns,
            join: Join::Stacked,
        };
        let every_second = |first| Rows::each(width, 2, first, 1).from(number * 2 * width);
        DenseTensors {
            gate_up_proj: matrix(gate_up, &[every_second(0), every_second(1)], 2 * width, hidden)
                .interleaved(),
            down_proj: matrix(down, &[Rows::range(number * hidden, hidden)], hidden, width),
        }
    }

    /// The expert that every token passes, and its gate.
    fn shared_expert(&self, path: &str, shared: SharedExpert) -> Option<(DenseTensors, Option<MatrixSpec>)> {
        let parts = ["gate_proj.weight", "up_proj.weight", "down_proj.weight"];
        match shared {
            SharedExpert::None => None,
            SharedExpert::Added { intermediate_size } => {
                Some((self.expert(path, parts, intermediate_size), None))
            }
            SharedExpert::Gated { intermediate_size } => {
                let gate = Tensor { weight: "mlp.shared_expert_gate.weight", bias: "" };
                let gate = self.matrix(&[(gate, 1)], self.config.hidden_size, Bias::None);
                Some((self.expert(path, parts, intermediate_size), Some(gate)))
            }
        }
    }

    /// Expert `number` of three tensors [expert, out, in].
    fn merged_expert(&self, number: usize, moe: &Moe, [gate, up, down]: [Tensor; 3]) -> DenseTensors {
        let (hidden, width, count) = (self.config.hidden_size, moe.intermediate_size, moe.num_experts);
        let matrix = |names: &[Tensor], out: usize, columns: usize| {
            let rows = Rows::range(number * out, out);
            let weight = |name: &Tensor| TensorRows {
                name: self.name(name.weight),
                shape: vec![count, out, columns],
                stored: Stored::OutIn,
                rows,
            };
            let bias = |name: &Tensor| TensorRows { shape: vec![count, out], ..self.vector(name.bias, rows) };
            MatrixSpec {
                weights: names.iter().map(weight).collect(),
                biases: with_bias(moe.bias, names.iter().map(bias).collect()),
                in_features: columns,
                join: Join::Stacked,
            }
        };
        DenseTensors {
            gate_up_proj: matrix(&[gate, up], width, hidden).interleaved(),
            down_proj: matrix(&[down], hidden, width),
        }
    }

    /// The expert that every token passes, and its gate, a vector.
    fn merged_shared_expert(
        &self,
        [gate, up, down]: [Tensor; 3],
        shared_gate: Tensor,
        shared: SharedExpert,
    ) -> Option<(DenseTensors, Option<MatrixSpec>)> {
        let hidden = self.config.hidden_size;
        let (width, gated) = match shared {
            SharedExpert::None => return None,
            SharedExpert::Added { intermediate_size } => (intermediate_size, false),
            SharedExpert::Gated { intermediate_size } => (intermediate_size, true),
        };
        let mlp = DenseTensors {
            gate_up_proj: self.matrix(&[(gate, width), (up, width)], hidden, Bias::None).interleaved(),
            down_proj: self.matrix(&[(down, hidden)], width, Bias::None),
        };
        let row = TensorRows { rows: Rows::all(1), ..self.vector(shared_gate.weight, Rows::all(hidden)) };
        let gate =
            MatrixSpec { weights: vec![row], biases: Vec::new(), in_features: hidden, join: Join::Stacked };
        Some((mlp, gated.then_some(gate)))
    }
}
