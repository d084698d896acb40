//! Which tensors fill a [`Config`]'s slots, under their hub names.

use super::latent::latent_slots;
use super::rows::{Rows, Source};
use super::slots::{
    ExpertSlots, Join, LayerSlots, MatrixSlot, MlpSlots, ModelSlots, NormSlot, ProjectionSlots,
};
use crate::config::{
    Attention, Bias, Config, EmbeddingPosition, ExpertNames, Experts, HeadRows, LayerMlp, LmHead, MlpShape,
    NormPlacement, NormWeight, QkNorm, Qkv, Residual, SharedExpert, Sinks, Stored, Tensor, Up,
};

/// The tensors outside the layers.
pub fn model_slots(config: &Config) -> ModelSlots {
    let names = &config.names;
    let (vocab, hidden) = (config.vocab_size, config.hidden_size);
    let table = |name: String, stored| Source::whole(name, stored, vocab, hidden);
    let head = |bias: Bias| MatrixSlot {
        weights: vec![table(names.lm_head.weight.to_owned(), Stored::OutIn)],
        biases: vectors(bias, vec![Source::vector(names.lm_head.bias.to_owned(), Rows::all(vocab))]),
        in_features: hidden,
        join: Join::Stacked,
    };
    let positions = match config.position {
        EmbeddingPosition::Learned => {
            let name = format!("{}{}", names.base, names.position_embedding);
            vec![Source::whole(name, Stored::OutIn, config.max_position_embeddings, hidden)]
        }
        EmbeddingPosition::None | EmbeddingPosition::Rotated { .. } => Vec::new(),
    };
    ModelSlots {
        embed_tokens: MatrixSlot {
            weights: vec![table(names.embedding(), names.embedding_stored)],
            biases: Vec::new(),
            in_features: hidden,
            join: Join::Stacked,
        },
        positions,
        norm: Prefix { config, path: names.base.to_owned() }.norm(names.norm, hidden),
        lm_head: (config.lm_head == LmHead::Own).then(|| head(config.lm_head_bias)),
    }
}

/// The tensors of one layer.
pub fn layer_slots(config: &Config, layer: usize) -> LayerSlots {
    let names = &config.names;
    let at = Prefix { config, path: format!("{}{}.{layer}.", names.base, names.layers) };
    let hidden = config.hidden_size;
    let (before, after) = match config.norm_placement {
        NormPlacement::Before => (true, false),
        NormPlacement::After => (false, true),
        NormPlacement::Around => (true, true),
    };
    let norm = |wanted: bool, name| wanted.then(|| at.norm(name, hidden));
    // One norm for both branches is stored once.
    debug_assert!(config.residual == Residual::Sequential || !after, "a parallel block has no norms after");
    let dense = config.layers[layer].mlp == LayerMlp::Dense;
    LayerSlots {
        norms: [
            norm(before, names.attention_norm),
            norm(after, names.attention_out_norm),
            norm(before, names.mlp_norm),
            norm(after, names.mlp_out_norm),
        ],
        projection: match config.attention {
            Attention::Heads => ProjectionSlots::Heads(at.qkv()),
            Attention::Latent { .. } => latent_slots(&at, config.attention),
        },
        qk_norms: at.qk_norms(),
        sinks: match config.sinks {
            Sinks::None => Vec::new(),
            Sinks::PerHead => vec![at.vector(names.sinks, Rows::all(config.num_attention_heads))],
        },
        o_proj: at.matrix(
            &[(names.o_proj, hidden)],
            config.num_attention_heads * config.v_head_dim,
            config.attention_out_bias,
        ),
        mlp: dense.then(|| at.mlp(config.intermediate_size)),
        experts: config.experts.filter(|_| !dense).map(|experts| at.experts(&experts)),
    }
}

/// A layer's (or the model's) path, with the dot.
pub(super) struct Prefix<'a> {
    pub config: &'a Config,
    pub path: String,
}

/// The biases, when there are any.
fn vectors(bias: Bias, sources: Vec<Source>) -> Vec<Source> {
    match bias {
        Bias::None => Vec::new(),
        Bias::Added => sources,
    }
}

impl Prefix<'_> {
    pub fn vector(&self, name: &str, rows: Rows) -> Source {
        Source::vector(format!("{}{name}", self.path), rows)
    }

    /// Whole tensors with (name, rows), stacked.
    pub fn matrix(&self, parts: &[(Tensor, usize)], in_features: usize, bias: Bias) -> MatrixSlot {
        let weight = |&(name, rows): &(Tensor, usize)| {
            Source::whole(
                format!("{}{}", self.path, name.weight),
                self.config.names.stored,
                rows,
                in_features,
            )
        };
        let biases = parts.iter().map(|(name, rows)| self.vector(name.bias, Rows::all(*rows))).collect();
        MatrixSlot {
            weights: parts.iter().map(weight).collect(),
            biases: vectors(bias, biases),
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
    ) -> MatrixSlot {
        let whole = Source::whole(
            format!("{}{}", self.path, name.weight),
            self.config.names.stored,
            total,
            in_features,
        );
        let whole_bias = self.vector(name.bias, Rows::all(total));
        let pick = |of: &Source| parts.iter().map(|&rows| Source { rows, ..of.clone() }).collect();
        MatrixSlot {
            weights: pick(&whole),
            biases: vectors(bias, pick(&whole_bias)),
            in_features,
            join: Join::Stacked,
        }
    }

    pub fn norm(&self, name: Tensor, width: usize) -> NormSlot {
        let config = self.config;
        let weight = self.vector(name.weight, Rows::all(width));
        NormSlot {
            weight: if config.norm_weight == NormWeight::Absent { Vec::new() } else { vec![weight] },
            bias: vectors(config.norm_bias, vec![self.vector(name.bias, Rows::all(width))]),
            width,
        }
    }

    /// q, k and v, whose rows come out as the family rotates them.
    fn qkv(&self) -> MatrixSlot {
        let config = self.config;
        let mut slot = self.qkv_as_stored();
        if config.names.head_rows == HeadRows::Paired {
            let heads = [config.num_attention_heads, config.num_key_value_heads];
            for of_each in [&mut slot.weights, &mut slot.biases] {
                for (source, heads) in of_each.iter_mut().zip(heads) {
                    let first = source.rows.first();
                    source.rows = Rows::evens_then_odds(heads, config.head_dim).from(first);
                }
            }
        }
        slot
    }

    fn qkv_as_stored(&self) -> MatrixSlot {
        let config = self.config;
        let (heads, groups, dim) = (config.num_attention_heads, config.num_key_value_heads, config.head_dim);
        let (queries, keys) = (heads * dim, groups * dim);
        let (hidden, bias) = (config.hidden_size, config.attention_bias);
        let total = queries + 2 * keys;
        match config.names.qkv {
            Qkv::Separate([q, k, v]) => self.matrix(&[(q, queries), (k, keys), (v, keys)], hidden, bias),
            Qkv::Stacked(name) => {
                let parts = [(0, queries), (queries, keys), (queries + keys, keys)];
                let parts = parts.map(|(first, rows)| Rows::range(first, rows));
                self.rows_of(name, total, &parts, hidden, bias)
            }
            Qkv::Grouped(name) => {
                let group = config.group_size();
                let parts = [(0, group), (group, 1), (group + 1, 1)];
                let of_group = (group + 2) * dim;
                let parts = parts.map(|(first, n)| Rows::each(groups, of_group, first * dim, n * dim));
                self.rows_of(name, total, &parts, hidden, bias)
            }
        }
    }

    fn qk_norms(&self) -> Option<[NormSlot; 2]> {
        let config = self.config;
        let dim = config.head_dim;
        let names = [
            (config.names.q_norm, config.num_attention_heads),
            (config.names.k_norm, config.num_key_value_heads),
        ];
        let slot = |weight, bias, width| NormSlot { weight, bias, width };
        let slots = |of: &dyn Fn(Tensor, usize) -> NormSlot| Some(names.map(|(name, heads)| of(name, heads)));
        match config.qk_norm {
            QkNorm::None => None,
            QkNorm::PerHead(bias) => slots(&|name, heads| {
                let weight = self.vector(name.weight, Rows::repeated(heads, dim));
                let bias = vectors(bias, vec![self.vector(name.bias, Rows::repeated(heads, dim))]);
                slot(vec![weight], bias, heads * dim)
            }),
            QkNorm::PerHeadOwn => slots(&|name, heads| {
                let tensor = self.vector(name.weight, Rows::all(heads * dim));
                slot(vec![Source { shape: vec![heads, dim], ..tensor }], Vec::new(), heads * dim)
            }),
            QkNorm::PerHeadSplit => slots(&|name, heads| {
                let part = |head| self.vector(&name.weight.replace("{}", &format!("{head}")), Rows::all(dim));
                slot((0..heads).map(part).collect(), Vec::new(), heads * dim)
            }),
            QkNorm::FullWidth => slots(&|name, heads| {
                let weight = self.vector(name.weight, Rows::all(heads * dim));
                slot(vec![weight], Vec::new(), heads * dim)
            }),
        }
    }

    fn mlp(&self, width: usize) -> MlpSlots {
        let config = self.config;
        let (hidden, bias) = (config.hidden_size, config.mlp_bias);
        let up = match (config.names.up, config.mlp) {
            (Up::Separate { up, .. }, MlpShape::Plain) => self.matrix(&[(up, width)], hidden, bias),
            (Up::Separate { gate, up }, MlpShape::Gated) => {
                interleaved(self.matrix(&[(gate, width), (up, width)], hidden, bias))
            }
            (Up::Stacked(name), _) => {
                let parts = [Rows::range(0, width), Rows::range(width, width)];
                interleaved(self.rows_of(name, 2 * width, &parts, hidden, bias))
            }
        };
        MlpSlots { up, down: self.matrix(&[(config.names.down_proj, hidden)], width, bias) }
    }

    fn experts(&self, experts: &Experts) -> ExpertSlots {
        let (hidden, count) = (self.config.hidden_size, experts.num_experts);
        let bias = experts.bias;
        match self.config.names.experts {
            ExpertNames::Each { router, experts: list, parts, shared } => ExpertSlots {
                router: self.matrix(&[(router, count)], hidden, bias),
                correction: self
                    .correction(&router.weight.replace(".weight", ".e_score_correction_bias"), experts),
                experts: (0..count)
                    .map(|number| self.expert(&format!("{list}.{number}"), parts, experts.intermediate_size))
                    .collect(),
                shared: self.shared(shared, experts.shared),
            },
            ExpertNames::Together { router, gate_up, down } => ExpertSlots {
                router: self.matrix(&[(router, count)], hidden, bias),
                correction: Vec::new(),
                experts: (0..count)
                    .map(|number| self.expert_of_all(number, experts, gate_up, down))
                    .collect(),
                shared: None,
            },
            ExpertNames::Merged { router, parts, shared, shared_gate, correction } => ExpertSlots {
                router: self.matrix(&[(router, count)], hidden, bias),
                correction: self.correction(correction, experts),
                experts: (0..count).map(|number| self.merged_expert(number, experts, parts)).collect(),
                shared: self.merged_shared(shared, shared_gate, experts.shared),
            },
        }
    }

    /// `e_score_correction_bias` of routers that score by a sigmoid.
    fn correction(&self, name: &str, experts: &Experts) -> Vec<Source> {
        let tensor = || vec![self.vector(name, Rows::all(experts.num_experts))];
        if experts.scoring.has_correction() { tensor() } else { Vec::new() }
    }

    fn expert(&self, path: &str, [gate, up, down]: [&str; 3], width: usize) -> MlpSlots {
        let hidden = self.config.hidden_size;
        let source = |part: &str, rows, columns| {
            Source::whole(format!("{}{path}.{part}", self.path), Stored::OutIn, rows, columns)
        };
        let slot = |weights, in_features| MatrixSlot {
            weights,
            biases: Vec::new(),
            in_features,
            join: Join::Stacked,
        };
        MlpSlots {
            up: interleaved(slot(vec![source(gate, width, hidden), source(up, width, hidden)], hidden)),
            down: slot(vec![source(down, hidden, width)], width),
        }
    }

    /// Expert `number` of tensors [expert, in, out] whose first projection has gate and up in turn.
    fn expert_of_all(&self, number: usize, experts: &Experts, gate_up: Tensor, down: Tensor) -> MlpSlots {
        let (hidden, width, count) =
            (self.config.hidden_size, experts.intermediate_size, experts.num_experts);
        let slot = |name: Tensor, rows: &[Rows], out: usize, columns: usize| MatrixSlot {
            weights: rows
                .iter()
                .map(|&rows| Source {
                    name: format!("{}{}", self.path, name.weight),
                    shape: vec![count, columns, out],
                    stored: Stored::InOut,
                    rows,
                })
                .collect(),
            biases: vectors(
                experts.bias,
                rows.iter()
                    .map(|&rows| Source { shape: vec![count, out], ..self.vector(name.bias, rows) })
                    .collect(),
            ),
            in_features: columns,
            join: Join::Stacked,
        };
        let every_second = |first| Rows::each(width, 2, first, 1).from(number * 2 * width);
        MlpSlots {
            up: interleaved(slot(gate_up, &[every_second(0), every_second(1)], 2 * width, hidden)),
            down: slot(down, &[Rows::range(number * hidden, hidden)], hidden, width),
        }
    }

    fn shared(&self, path: &str, shared: SharedExpert) -> Option<(MlpSlots, Option<MatrixSlot>)> {
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
}

pub(super) fn interleaved(slot: MatrixSlot) -> MatrixSlot {
    MatrixSlot { join: Join::InTurn, ..slot }
}
