//! What a model is loaded from, slot by slot: which rows of which tensors make each of its matrices and vectors.

use super::rows::Source;

/// A matrix of the model: the rows of its sources.
#[derive(Debug, Clone)]
pub struct MatrixSlot {
    /// The rows, in order.
    pub weights: Vec<Source>,
    /// Their biases, one per source; empty when there is none.
    pub biases: Vec<Source>,
    /// Values per row.
    pub in_features: usize,
    /// How the sources become one weight.
    pub join: Join,
}

/// How the sources become one weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Join {
    /// One after the other.
    Stacked,
    /// Rows of each in turn: gate and up.
    InTurn,
}

/// A norm of the model.
#[derive(Debug, Clone)]
pub struct NormSlot {
    /// The weight; empty when it is one.
    pub weight: Vec<Source>,
    /// The bias; empty when it is zero.
    pub bias: Vec<Source>,
    /// Values of either.
    pub width: usize,
}

/// An MLP's matrices.
#[derive(Debug, Clone)]
pub struct MlpSlots {
    /// gate and up, or up.
    pub up: MatrixSlot,
    /// down.
    pub down: MatrixSlot,
}

/// A mixture's tensors.
#[derive(Debug, Clone)]
pub struct ExpertSlots {
    /// The router.
    pub router: MatrixSlot,
    /// `e_score_correction_bias`; empty when there is none.
    pub correction: Vec<Source>,
    /// The experts.
    pub experts: Vec<MlpSlots>,
    /// The expert that every token passes, and its gate.
    pub shared: Option<(MlpSlots, Option<MatrixSlot>)>,
}

/// How a layer projects queries, keys and values.
#[derive(Debug, Clone)]
pub enum ProjectionSlots {
    /// One matrix.
    Heads(MatrixSlot),
    /// Latent attention.
    Latent(Box<LatentSlots>),
}

/// Latent attention: down (queries or their latent, then the others'), norms, up.
#[derive(Debug, Clone)]
pub struct LatentSlots {
    /// [q or q_a, kv_a].
    pub down: MatrixSlot,
    /// Norm and up-projection of the queries' latent.
    pub q: Option<(NormSlot, MatrixSlot)>,
    /// Norm of the keys' and values' latent.
    pub kv_norm: NormSlot,
    /// [keys of all heads, values of all heads].
    pub kv: MatrixSlot,
}

/// A layer's tensors.
#[derive(Debug, Clone)]
pub struct LayerSlots {
    /// Norms before and after attention, before and after the MLP.
    pub norms: [Option<NormSlot>; 4],
    /// Queries, keys and values.
    pub projection: ProjectionSlots,
    /// Norms of q and k.
    pub qk_norms: Option<[NormSlot; 2]>,
    /// One score per head.
    pub sinks: Vec<Source>,
    /// Attention's output.
    pub o_proj: MatrixSlot,
    /// The dense MLP.
    pub mlp: Option<MlpSlots>,
    /// The mixture.
    pub experts: Option<ExpertSlots>,
}

/// The tensors outside the layers.
#[derive(Debug, Clone)]
pub struct ModelSlots {
    /// Token embedding.
    pub embed_tokens: MatrixSlot,
    /// Learned positions; empty when there are none.
    pub positions: Vec<Source>,
    /// The last norm.
    pub norm: NormSlot,
    /// The unembedding, unless it is the embedding.
    pub lm_head: Option<MatrixSlot>,
}

impl MatrixSlot {
    /// Names the matrix by what it is made of: no two of a model have the same name.
    pub fn name(&self) -> String {
        let source = |source: &Source| format!("{} {:?} {:?}", source.name, source.stored, source.rows);
        let sources: Vec<String> = self.weights.iter().map(source).collect();
        format!("{:?} {}", self.join, sources.join(" + "))
    }

    pub(super) fn each(&self, add: &mut dyn FnMut(&[Source])) {
        add(&self.weights);
        add(&self.biases);
    }
}

impl NormSlot {
    pub(super) fn each(&self, add: &mut dyn FnMut(&[Source])) {
        add(&self.weight);
        add(&self.bias);
    }
}

impl MlpSlots {
    pub(super) fn each(&self, add: &mut dyn FnMut(&[Source])) {
        self.up.each(add);
        self.down.each(add);
    }
}

impl LayerSlots {
    pub(super) fn each(&self, add: &mut dyn FnMut(&[Source])) {
        self.norms.iter().flatten().for_each(|norm| norm.each(add));
        match &self.projection {
            ProjectionSlots::Heads(slot) => slot.each(add),
            ProjectionSlots::Latent(latent) => {
                let LatentSlots { down, q, kv_norm, kv } = &**latent;
                down.each(add);
                kv_norm.each(add);
                kv.each(add);
                if let Some((norm, up)) = q {
                    norm.each(add);
                    up.each(add);
                }
            }
        }
        self.qk_norms.iter().flatten().for_each(|norm| norm.each(add));
        add(&self.sinks);
        self.o_proj.each(add);
        self.mlp.iter().for_each(|mlp| mlp.each(add));
        if let Some(experts) = &self.experts {
            experts.router.each(add);
            add(&experts.correction);
            experts.experts.iter().for_each(|expert| expert.each(add));
            if let Some((shared, gate)) = &experts.shared {
                shared.each(add);
                gate.iter().for_each(|gate| gate.each(add));
            }
        }
    }
}
