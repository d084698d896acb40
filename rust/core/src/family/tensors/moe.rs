//! The tensors of MLPs and of mixtures of experts.

use super::prefix::{Prefix, with_bias};
use crate::config::{
    Activation, Bias, ExpertInput, GateUp, LayerMlp, MlpShape, Moe, MoeNames, Router, Shared, SharedExpert,
    Stored, Tensor, tensor,
};
use crate::parts::{
    DenseMlp, IntegerSpec, MatrixSpec, MoeMlp, NumberSpec, Packing, RouterMlpWeights, Rows, Spec, TensorRows,
};

impl Prefix<'_> {
    /// An MLP for all tokens.
    pub fn dense_mlp(&self, gate_up: GateUp, down: Tensor, width: usize, bias: Bias) -> DenseMlp<Spec> {
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
        let learned = match config.activation {
            Activation::Xielu { .. } if self.layer.activation.is_none() => NumberSpec::vectors(learned),
            _ => NumberSpec::default(),
        };
        DenseMlp { learned, ..self.mlp(gate_up_proj, down_proj, config.mlp) }
    }

    /// A mixture of experts.
    pub fn moe(&self, moe: &Moe) -> MoeMlp<Spec> {
        let (config, count) = (self.config, moe.num_experts);
        let each = |expert: &dyn Fn(usize) -> DenseMlp<Spec>| (0..count).map(expert).collect::<Vec<_>>();
        let activated = |expert: DenseMlp<Spec>| DenseMlp {
            stated_activation: moe.activation.unwrap_or(expert.stated_activation),
            ..expert
        };
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
        let hashed = self.layer.mlp == LayerMlp::HashMoe;
        let table = || {
            let (rows, columns) = (config.vocab_size, moe.num_experts_per_tok);
            let name = self.name(config.names.tid2eid);
            IntegerSpec { table: TensorRows::whole(name, Stored::OutIn, rows, columns), below: experts.len() }
        };
        let (router_mlp, router_width) = match moe.router {
            Router::Linear => (None, config.hidden_size),
            Router::Mlp { hidden_size } => (Some(Box::new(self.router_mlp(hidden_size))), hidden_size),
        };
        let root = (config.hidden_size as f32).sqrt();
        let router_norm = || {
            self.norm(Tensor { weight: scale, bias: "" }, config.hidden_size)
                .prepared(move |weight| weight / root)
        };
        let output_bias =
            with_bias(moe.output_bias, vec![self.vector("mlp.bias", Rows::all(config.hidden_size))]);
        let (shared_expert, shared_expert_gate) = shared_expert.unzip();
        MoeMlp {
            router: self
                .matrix(&[(router, moe.router_rows())], router_width, moe.bias)
                .packed(Packing::Exact),
            router_mlp,
            e_score_correction_bias: if hashed { NumberSpec::default() } else { self.correction_bias(moe) },
            tid2eid: hashed.then(table),
            router_norm: own.then(router_norm),
            per_expert_scale: match own {
                true => self.numbers(per_expert, Rows::all(count)),
                false => NumberSpec::default(),
            },
            latent: moe.latent_size.map(|latent| {
                let [to, back] = config.names.moe_latent;
                let hidden = config.hidden_size;
                [
                    self.matrix(&[(to, latent)], hidden, moe.latent_bias),
                    self.matrix(&[(back, hidden)], latent, moe.latent_bias),
                ]
            }),
            output_bias: NumberSpec::vectors(output_bias),
            experts: experts.into_iter().map(activated).collect(),
            shared_expert,
            shared_expert_gate: shared_expert_gate.flatten(),
        }
    }

    /// The MLP of a router, up to its last matrix, as ZAYA names it.
    fn router_mlp(&self, width: usize) -> RouterMlpWeights<Spec> {
        let matrix =
            |name, columns| self.matrix(&[(name, width)], columns, Bias::Added).packed(Packing::Exact);
        RouterMlpWeights {
            down: matrix(tensor!("mlp.gate.down_proj"), self.config.hidden_size),
            state_scale: match self.index {
                0 => NumberSpec::default(),
                _ => self.numbers("mlp.gate.router_states_scale", Rows::all(width)),
            },
            norm: self.norm(tensor!("mlp.gate.router_mlp.norm"), width),
            layers: [tensor!("mlp.gate.router_mlp.fc1"), tensor!("mlp.gate.router_mlp.fc2")]
                .map(|name| matrix(name, width)),
        }
    }

    /// `e_score_correction_bias`.
    fn correction_bias(&self, moe: &Moe) -> NumberSpec {
        let (names, count) = (&self.config.names, moe.choosable());
        let tensor = self.vector(names.correction_bias, Rows::all(count));
        let shape = names.correction_bias_shape.iter().copied().chain([count]).collect();
        NumberSpec::vectors(with_bias(moe.correction_bias, vec![TensorRows { shape, ..tensor }]))
    }

    /// An expert with its own tensors, from `hidden` to `width` and back.
    fn expert(
        &self,
        path: &str,
        [gate, up, down]: [&str; 3],
        [hidden, width]: [usize; 2],
        bias: Bias,
    ) -> DenseMlp<Spec> {
        let source = |part: &str, rows, columns| {
            TensorRows::whole(self.name(&format!("{path}.{part}")), Stored::OutIn, rows, columns)
        };
        let vector = |part: &str, rows| {
            let module = part.trim_end_matches("weight");
            self.vector(&format!("{path}.{module}bias"), Rows::all(rows))
        };
        let matrix = |parts: &[&str], rows, columns| {
            let weights = parts.iter().map(|part| source(part, rows, columns)).collect();
            let biases = with_bias(bias, parts.iter().map(|part| vector(part, rows)).collect());
            MatrixSpec::stacked(weights, biases, columns)
        };
        let down_proj = matrix(&[down], hidden, width);
        match self.config.mlp {
            MlpShape::Plain => self.mlp(matrix(&[up], width, hidden), down_proj, MlpShape::Plain),
            MlpShape::Gated => {
                self.mlp(matrix(&[gate, up], width, hidden).interleaved(), down_proj, MlpShape::Gated)
            }
        }
    }

    /// Expert `number` of three tensors in which the experts are stacked.
    fn flat_expert(&self, number: usize, moe: &Moe, [gate, up, down]: [&str; 3]) -> DenseMlp<Spec> {
        let (hidden, width, count) = (self.config.hidden_size, moe.intermediate_size, moe.num_experts);
        let matrix = |names: &[&str], stored, out, columns| {
            let weight = |name: &&str| TensorRows {
                name: self.name(name),
                shape: vec![count * width, hidden],
                stored,
                rows: Rows::range(number * out, out),
                transposed: None,
            };
            MatrixSpec::stacked(names.iter().map(weight).collect(), Vec::new(), columns)
        };
        let gate_up = matrix(&[gate, up], Stored::OutIn, width, hidden).interleaved();
        self.mlp(gate_up, matrix(&[down], Stored::InOut, hidden, width), MlpShape::Gated)
    }

    /// Expert `number` of tensors [expert, in, out] whose columns alternate between gate and up.
    fn interleaved_expert(&self, number: usize, moe: &Moe, gate_up: Tensor, down: Tensor) -> DenseMlp<Spec> {
        let (hidden, width, count) = (self.config.hidden_size, moe.intermediate_size, moe.num_experts);
        let matrix = |name: Tensor, rows: &[Rows], out: usize, columns: usize| {
            let weight = |&rows: &Rows| TensorRows {
                name: self.name(name.weight),
                shape: vec![count, columns, out],
                stored: Stored::InOut,
                rows,
                transposed: None,
            };
            let bias = |&rows: &Rows| TensorRows { shape: vec![count, out], ..self.vector(name.bias, rows) };
            let biases = with_bias(moe.bias, rows.iter().map(bias).collect());
            MatrixSpec::stacked(rows.iter().map(weight).collect(), biases, columns)
        };
        let every_second = |first| Rows::each(width, 2, first, 1).from(number * 2 * width);
        let gate_up = matrix(gate_up, &[every_second(0), every_second(1)], 2 * width, hidden).interleaved();
        let down = matrix(down, &[Rows::range(number * hidden, hidden)], hidden, width);
        self.mlp(gate_up, down, MlpShape::Gated)
    }

    /// The expert that every token passes, an MLP with the model's biases, and its gate.
    fn shared_expert(
        &self,
        path: &str,
        parts: [&str; 3],
        shared: SharedExpert,
    ) -> Option<(DenseMlp<Spec>, Option<MatrixSpec>)> {
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
        let matrix = || self.matrix(&[(gate, 1)], self.config.hidden_size, Bias::None);
        gated.then(|| matrix().packed(Packing::Exact))
    }

    /// Expert `number` of tensors [expert, out, in], or [expert, in, out] if `stored` says so.
    fn merged_expert(
        &self,
        number: usize,
        moe: &Moe,
        gate_up: GateUp,
        down: Tensor,
        stored: Stored,
    ) -> DenseMlp<Spec> {
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
            let biases = with_bias(moe.bias, parts.iter().map(bias).collect());
            MatrixSpec::stacked(parts.iter().map(weight).collect(), biases, columns)
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
        self.mlp(gate_up_proj, matrix(&[(down, Rows::all(hidden))], hidden, width), shape)
    }

    /// The expert that every token passes, as a dense MLP.
    fn shared_mlp(&self, names: Shared, shared: SharedExpert) -> Option<DenseMlp<Spec>> {
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
        let gate = MatrixSpec::stacked(vec![row], Vec::new(), hidden).packed(Packing::Exact);
        matches!(shared, SharedExpert::Gated { .. }).then_some(gate)
    }

    /// An MLP of two matrices.
    ///
    /// The factor of the input reaches the gate and what it is multiplied with; the output's factor makes up for one of both. So
    /// each bias has it too.
    fn mlp(&self, gate_up_proj: MatrixSpec, down_proj: MatrixSpec, shape: MlpShape) -> DenseMlp<Spec> {
        let factor = self.config.mlp_input_factor;
        DenseMlp {
            intermediate_size: down_proj.in_features,
            gate_up_proj: gate_up_proj.with_bias_factor(factor),
            down_proj: down_proj.with_bias_factor(factor),
            learned: NumberSpec::default(),
            sub_norm: None,
            shape,
            stated_activation: self.config.activation,
            gate_cutoff: None,
        }
    }
}
