//! The steps of mechanisms in a forward pass. A model has a list of them, made once; most models have none.

use super::attention::choices::Choices;
use super::attention::mla::Latent;
use super::attention::observed::FurtherKeys;
use super::attention::score_bias::AddedScores;
use super::per_layer::PerLayerInputs;
use super::recurrent::conv::Rows;
use super::residual::BranchBuffers;
use super::rope::RopeAngles;
use super::state::{Pass, Run};
use crate::kv_cache::KvSequence;
use crate::model::Model;
use crate::parts::Layer;
use ropechat_kernels::compute::activations::Activations;

/// What passes between the branches of layers.
pub(crate) struct Flow<'a> {
    pub pass: Pass<'a>,
    pub model: &'a Model,
    /// What the next branch reads, and where its result is added.  // [rows, hidden_size]
    pub x: &'a mut Vec<f32>,
    /// All residual streams, where there are several.  // [rows, streams, hidden_size]
    pub streams: &'a mut Vec<f32>,
    /// The parts of a second embedding.
    pub per_layer: &'a mut PerLayerInputs,
    pub branch: &'a mut BranchBuffers,
}

/// One of a layer's two branches.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Branch {
    Attention,
    Mlp,
}

/// A list of steps.
pub(crate) type Steps<'s> = [Box<dyn Step + 's>];

/// Adds to x what the layer's attention makes of `BranchBuffers::input`; the steps are those inside attention.
pub(crate) type Attend<'a> = dyn FnMut(&mut [Run<'_>], &mut [f32], &mut BranchBuffers, &mut Steps<'_>) + 'a;

/// What a mechanism does in a pass. Shapes: x `[rows, hidden_size]`; qkv `[rows, stride]`.
pub(crate) trait Step: Send + Sync {
    /// Before the first layer, where x is the embeddings.
    fn start(&mut self, _flow: &mut Flow<'_>) {}

    /// Before a layer.
    fn enter_layer(&mut self, _flow: &mut Flow<'_>, _layer: &Layer, _runs: &mut [Run<'_>]) {}

    /// Calls `attend` where the layer's attention reads something else than x. Returns what the layer's recurrent mixer reads then.
    fn attend_elsewhere(
        &mut self,
        _pass: Pass<'_>,
        _layer: &Layer,
        _runs: &mut [Run<'_>],
        _x: &[f32],
        _branch: &mut BranchBuffers,
        _attend: &mut Attend<'_>,
    ) -> Option<&[f32]> {
        None
    }

    /// Fills the columns of a mechanism in qkv, where the layer has latent attention.
    fn after_latent(
        &mut self,
        _pass: Pass<'_>,
        _layer: &Layer,
        _latent: &Latent<'_>,
        _input: &mut Activations,
        _qkv: &mut [f32],
    ) {
    }

    /// Fills qkv from `input`, where the layer's projection is that of a mechanism.
    fn project(
        &mut self,
        _pass: Pass<'_>,
        _layer: &Layer,
        _x: &[f32],
        _input: &mut Activations,
        _qkv: &mut [f32],
    ) {
    }

    /// After the projection of `input` to queries, keys and values.
    fn after_projection(
        &mut self,
        _pass: Pass<'_>,
        _layer: &Layer,
        _runs: &mut [Run<'_>],
        _qkv: (&mut [f32], usize),
        _input: &mut Activations,
    ) {
    }

    /// After keys and values were written into the cache.
    fn after_store(
        &mut self,
        _pass: Pass<'_>,
        _layer: &Layer,
        _runs: &mut [Run<'_>],
        _angles: &[RopeAngles],
        _qkv: (&mut [f32], usize),
    ) {
    }

    /// The keys of a mechanism that the layer's queries read besides their own.
    fn further_keys<'a>(&self, _layer: &'a Layer) -> Option<&'a dyn FurtherKeys> {
        None
    }

    /// Whether the layer's queries read what [`Self::choose`] said last.
    fn chooses(&self, _layer: &Layer) -> bool {
        false
    }

    /// Chooses what the rows behind each cache's length read.
    fn choose(
        &mut self,
        _pass: Pass<'_>,
        _layer: &Layer,
        _caches: &[(&KvSequence, usize)],
        _qkv: &[f32],
        _choices: &mut Choices,
    ) {
    }

    /// What is added to the layer's scores.
    fn added_scores(&self, _layer: &Layer) -> Option<&dyn AddedScores> {
        None
    }

    /// Adds the heads' outputs to x, where it has their projection; says whether it has. `write_heads` is given a row, its first
    /// head, and where the outputs of the heads from there on go.
    fn add_outputs(
        &mut self,
        _pass: Pass<'_>,
        _layer: &Layer,
        _angles: &[RopeAngles],
        _write_heads: &(dyn Fn(usize, usize, &mut [f32]) + Sync),
        _branch: &mut BranchBuffers,
        _x: &mut [f32],
    ) -> bool {
        false
    }

    /// Whether [`Self::add_result`] adds the results of the layer's branches.
    fn adds_results(&self, _layer: &Layer) -> bool {
        false
    }

    /// Adds the result of a branch to x.
    fn add_result(
        &mut self,
        _pass: Pass<'_>,
        _layer: &Layer,
        _branch: Branch,
        _runs: &mut [Run<'_>],
        _result: Rows<'_>,
        _x: &mut [f32],
    ) {
    }

    /// Between the branch that mixes positions and the MLP.
    fn enter_mlp(&mut self, _flow: &mut Flow<'_>, _layer: &Layer) {}

    /// After both branches. `is_read`: x is read behind the layer, by the head or an observer.
    fn leave_layer(&mut self, _flow: &mut Flow<'_>, _layer: &Layer, _is_read: bool) {}

    /// Whether it adds the layers' parts of a second embedding, which are added to x otherwise.
    fn adds_per_layer_inputs(&self) -> bool {
        false
    }
}
