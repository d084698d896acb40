//! The tensors of MLPs and of mixtures of experts.

use super::prefix::{Prefix, with_bias};
use super::rows::{Rows, TensorRows};
use super::spec::{DenseTensors, Join, MatrixSpec, MoeTensors, RouterMlpTensors};
use crate::config::{
    Activation, Bias, ExpertInput, GateUp, LayerMlp, MlpShape, Moe, MoeNames, Router, Shared, SharedExpert,
    Stored, Tensor, tensor,
};

impl Prefix<'_> {
    /// An MLP for all tokens.
    pub fn dense_mlp(&self, gate_up: GateUp, down: Tensor, width: usize, bias: Bias) -> DenseTensors {
        let config = self.config;
        let hidden = config.hidden_size;
        let gate_up_proj = match (gate_up, config.mlp) {
            (GateUp::Separate { up, .. }, MlpShape::Plain) => self.matrix(&[(up, width)], hidden, bias),
            (GateUp::Separate { gate, up }, MlpShape::Gated) => {
                self.matrix(&[(gate, width), (up, width)], hidden, bias).interleaved()
            }
            (GateUp::Stacked(name), _) => {
                let parts = [Rows::range(0, width), Rows::range(width, width)];
                self.rows_of(name, 2 * width, &parts, hidden, bias).interleaved()
            }
        };
        let down_proj = self.matrix(&[(down, hidden)], width, bias);
        let learned =
            ["alpha_p", "alpha_n"].map(|part| self.vector(&format!("mlp.act_fn.{part}"), Rows::all(1)));
        let activation = match config.activation {
            Activation::Xielu { .. } if self.layer.activation.is_none() => learned.to_vec(),
            _ => Vec::new(),
        };
        DenseTensors { activation, ..mlp(gate_up_proj, down_proj, config.mlp) }
    }

    /// A mixture of experts.
    pub fn moe(&self, moe: &Moe) -> MoeTensors {
        let (config, count) = (self.config, moe.num_experts);
        let each = |expert: &dyn Fn(usize) -> DenseTensors| (0..count).map(expert).collect::<Vec<_>>();
        let (router, experts, shared_expert) = match config.names.moe {
            MoeNames::Each { router, experts, parts, shared, shared_parts } => {
                let outer = moe.latent_size.unwrap_or(config.hidden_size);
                let widths = [outer, moe.intermediate_size];
                let expert = |number| self.expert(&format!("{experts}.{number}"), parts, widths, Bias::None);
                (router, each(&expert), self.shared_expert(shared, shared_parts, moe.shared))
            }
            MoeNames::Interleaved { router, gate_up, down } => {
                (router, each(&|number| self.interleaved_expert(number, moe, gate_up, down)), None)
            }
            MoeNames::Fused { router, gate_up, down, stored, shared } => {
                let gate_up = GateUp::Stacked(gate_up);
                let own = each(&|number| self.merged_expert(number, moe, gate_up, down, stored));
                let scored = match moe.shared {
                    SharedExpert::Scored { count } => {
                        let all = Moe { num_experts: count, ..*moe };
                        let expert = |number| {
                            self.merged_expert(number, &all, shared.gate_up, shared.down, Stored::OutIn)
                        };
                        (0..count).map(expert).collect()
                    }
                    _ => Vec::new(),
                };
                let mlp = self.shared_mlp(shared, moe.shared);
                let shared = mlp.map(|mlp| (mlp, self.shared_gate(moe.shared)));
                (router, own.into_iter().chain(scored).collect(), shared)
            }
            MoeNames::Flat { router, parts } => {
                (router, each(&|number| self.flat_expert(number, moe, parts)), None)
            }
            MoeNames::Merged { router, gate_up, down, shared, shared_gate } => {
                let expert = |number| self.merged_expert(number, moe, gate_up, down, Stored::OutIn);
                let mlp = self.shared_mlp(shared, moe.shared);
                let shared = mlp.map(|mlp| (mlp, self.shared_gate_vector(shared_gate, moe.shared)));
                (router, each(&expert), shared)
            }
        };
        let [scale, per_expert] = config.names.router_scales;
        let own = moe.input == ExpertInput::OwnNorm;
        let per_expert = || vec![self.vector(per_expert, Rows::all(count))];
        let hashed = self.layer.mlp == LayerMlp::HashMoe;
        let table = || {
            let (rows, columns) = (config.vocab_size, moe.num_experts_per_tok);
            vec![TensorRows::whole(self.name(config.names.tid2eid), Stored::OutIn, rows, columns)]
        };
        let (router_mlp, router_width) = match moe.router {
            Router::Linear => (None, config.hidden_size),
            Router::Mlp { hidden_size } => (Some(self.router_mlp(hidden_size)), hidden_size),
        };
        MoeTensors {
            router: self.matrix(&[(router, moe.router_rows())], router_width, moe.bias),
            router_mlp,
            e_score_correction_bias: if hashed { Vec::new() } else { self.correction_bias(moe) },
            tid2eid: if hashed { table() } else { Vec::new() },
            router_norm: own.then(|| self.norm(Tensor { weight: scale, bias: "" }, config.hidden_size)),
            per_expert_scale: if own { per_expert() } else { Vec::new() },
            latent: moe.latent_size.map(|latent| {
                let [to, back] = config.names.moe_latent;
                let hidden = config.hidden_size;
                [
                    self.matrix(&[(to, latent)], hidden, moe.latent_bias),
                    self.matrix(&[(back, hidden)], latent, moe.latent_bias),
                ]
            }),
            output_bias: with_bias(
                moe.output_bias,
                vec![self.vector("mlp.bias", Rows::all(config.hidden_size))],
            ),
            experts,
            shared_expert,
        }
    }

    /// The MLP of a router, up to its last matrix, as ZAYA names it.
    fn router_mlp(&self, width: usize) -> RouterMlpTensors {
        let square = |name| self.matrix(&[(name, width)], width, Bias::Added);
        let has_scale = !self.is_first_layer();
        RouterMlpTensors {
            down: self.matrix(
                &[(tensor!("mlp.gate.down_proj"), width)],
                self.config.hidden_size,
                Bias::Added,
            ),
            state_scale: match has_scale {
                true => vec![self.vector("mlp.gate.router_states_scale", Rows::all(width))],
                false => Vec::new(),
            },
            norm: self.norm(tensor!("mlp.gate.router_mlp.norm"), width),
            layers: [square(tensor!("mlp.gate.router_mlp.fc1")), square(tensor!("mlp.gate.router_mlp.fc2"))],
        }
    }

    /// `e_score_correction_bias`.
    fn correction_bias(&self, moe: &Moe) -> Vec<TensorRows> {
        let (names, count) = (&self.config.names, moe.choosable());
        let tensor = self.vector(names.correction_bias, Rows::all(count));
        let shape = names.correction_bias_shape.iter().copied().chain([count]).collect();
        with_bias(moe.correction_bias, vec![TensorRows { shape, ..tensor }])
    }

    /// An expert with its own tensors, from `hidden` to `width` and back.
    fn expert(
        &self,
        path: &str,
        [gate, up, down]: [&str; 3],
        [hidden, width]: [usize; 2],
        bias: Bias,
    ) -> DenseTensors {
        let source = |part: &str, rows, columns| {
            TensorRows::whole(self.name(&format!("{path}.{part}")), Stored::OutIn, rows, columns)
        };
        let vector = |part: &str, rows| {
            let module = part.trim_end_matches("weight");
            self.vector(&format!("{path}.{module}bias"), Rows::all(rows))
        };
        let matrix = |parts: &[&str], rows, columns| MatrixSpec {
            weights: parts.iter().map(|part| source(part, rows, columns)).collect(),
            biases: with_bias(bias, parts.iter().map(|part| vector(part, rows)).collect()),
            in_features: columns,
            join: Join::Stacked,
        };
        let down_proj = matrix(&[down], hidden, width);
        match self.config.mlp {
            MlpShape::Plain => mlp(matrix(&[up], width, hidden), down_proj, MlpShape::Plain),
            MlpShape::Gated => {
                mlp(matrix(&[gate, up], width, hidden).interleaved(), down_proj, MlpShape::Gated)
            }
        }
    }

    /// Expert `number` of three tensors in which the experts are stacked.
    fn flat_expert(&self, number: usize, moe: &Moe, [gate, up, down]: [&str; 3]) -> DenseTensors {
        let (hidden, width, count) = (self.config.hidden_size, moe.intermediate_size, moe.num_experts);
        let matrix = |names: &[&str], stored, out, columns| MatrixSpec {
            weights: names
                .iter()
                .map(|name| TensorRows {
                    name: self.name(name),
                    shape: vec![count * width, hidden],
                    stored,
                    rows: Rows::range(number * out, out),
                    transposed: None,
                })
                .collect(),
            biases: Vec::new(),
            in_features: columns,
            join: Join::Stacked,
        };
        let gate_up = matrix(&[gate, up], Stored::OutIn, width, hidden).interleaved();
        mlp(gate_up, matrix(&[down], Stored::InOut, hidden, width), MlpShape::Gated)
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
                    transposed: None,
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
        let gate_up = matrix(gate_up, &[every_second(0), every_second(1)], 2 * width, hidden).interleaved();
        let down = matrix(down, &[Rows::range(number * hidden, hidden)], hidden, width);
        mlp(gate_up, down, MlpShape::Gated)
    }

    /// The expert that every token passes, an MLP with the model's biases, and its gate.
    fn shared_expert(
        &self,
        path: &str,
        parts: [&str; 3],
        shared: SharedExpert,
    ) -> Option<(DenseTensors, Option<MatrixSpec>)> {
        let expert = |intermediate_size| {
            let widths = [self.config.hidden_size, intermediate_size];
            self.expert(path, parts, widths, self.config.mlp_bias)
        };
        match shared {
            SharedExpert::None | SharedExpert::Scored { .. } => None,
            SharedExpert::Added { intermediate_size } => Some((expert(intermediate_size), None)),
            SharedExpert::Gated { intermediate_size } => {
                Some((expert(intermediate_size), self.shared_gate(shared)))
            }
        }
    }

    /// The gate of the expert that every token passes.
    fn shared_gate(&self, shared: SharedExpert) -> Option<MatrixSpec> {
        let gate = Tensor { weight: "mlp.shared_expert_gate.weight", bias: "" };
        let gated = matches!(shared, SharedExpert::Gated { .. });
        gated.then(|| self.matrix(&[(gate, 1)], self.config.hidden_size, Bias::None))
    }

    /// Expert `number` of tensors [expert, out, in], or [expert, in, out] if `stored` says so.
    fn merged_expert(
        &self,
        number: usize,
        moe: &Moe,
        gate_up: GateUp,
        down: Tensor,
        stored: Stored,
    ) -> DenseTensors {
        let hidden = moe.latent_size.unwrap_or(self.config.hidden_size);
        let (width, count) = (moe.intermediate_size, moe.num_experts);
        let matrix = |parts: &[(Tensor, Rows)], out: usize, columns: usize| {
            let weight = |&(name, rows): &(Tensor, Rows)| TensorRows {
                name: self.name(name.weight),
                shape: match stored {
                    Stored::OutIn => vec![count, out, columns],
                    Stored::InOut => vec![count, columns, out],
                },
                stored,
                rows: rows.from(number * out),
                transposed: None,
            };
            let bias = |&(name, rows): &(Tensor, Rows)| TensorRows {
                shape: vec![count, out],
                ..self.vector(name.bias, rows.from(number * out))
            };
            MatrixSpec {
                weights: parts.iter().map(weight).collect(),
                biases: with_bias(moe.bias, parts.iter().map(bias).collect()),
                in_features: columns,
                join: Join::Stacked,
            }
        };
        let all = Rows::all(width);
        let (shape, gate_up_proj) = match (gate_up, self.config.mlp) {
            (GateUp::Separate { up, .. }, MlpShape::Plain) => {
                (MlpShape::Plain, matrix(&[(up, all)], width, hidden))
            }
            (GateUp::Separate { gate, up }, MlpShape::Gated) => {
                (MlpShape::Gated, matrix(&[(gate, all), (up, all)], width, hidden).interleaved())
            }
            (GateUp::Stacked(name), _) => {
                let halves = [(name, Rows::range(0, width)), (name, Rows::range(width, width))];
                (MlpShape::Gated, matrix(&halves, 2 * width, hidden).interleaved())
            }
        };
        mlp(gate_up_proj, matrix(&[(down, Rows::all(hidden))], hidden, width), shape)
    }

    /// The expert that every token passes, as a dense MLP.
    fn shared_mlp(&self, names: Shared, shared: SharedExpert) -> Option<DenseTensors> {
        match shared {
            SharedExpert::None | SharedExpert::Scored { .. } => None,
            SharedExpert::Added { intermediate_size } | SharedExpert::Gated { intermediate_size } => {
                Some(self.dense_mlp(names.gate_up, names.down, intermediate_size, self.config.mlp_bias))
            }
        }
    }

    /// Its gate, where it is stored as a vector.
    fn shared_gate_vector(&self, name: Tensor, shared: SharedExpert) -> Option<MatrixSpec> {
        let hidden = self.config.hidden_size;
        let row = TensorRows { rows: Rows::all(1), ..self.vector(name.weight, Rows::all(hidden)) };
        let gate =
            MatrixSpec { weights: vec![row], biases: Vec::new(), in_features: hidden, join: Join::Stacked };
        matches!(shared, SharedExpert::Gated { .. }).then_some(gate)
    }
}

/// An MLP of two matrices.
fn mlp(gate_up_proj: MatrixSpec, down_proj: MatrixSpec, shape: MlpShape) -> DenseTensors {
    DenseTensors { gate_up_proj, down_proj, shape, activation: Vec::new(), sub_norm: None }
}
