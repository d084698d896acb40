//! What passes between the layers in addition to the residual stream `x`: further streams, states of cycles, and the
//! parts of a second embedding. A model has at most one kind of further streams; for most models all of this does
//! nothing.

use super::alt_up::AltUpStreams;
use super::cycles::CycleStates;
use super::hyper::{HyperStreams, branches};
use super::ngram::{NgramBuffers, add_ngrams};
use super::per_layer::PerLayerInputs;
use super::residual::BranchBuffers;
use super::state::{Pass, Run};
use crate::model::Model;
use crate::parts::Layer;

/// The streams of a pass.
#[derive(Default)]
pub(super) struct Streams {
    per_layer: PerLayerInputs,
    alt_up: AltUpStreams,
    cycles: CycleStates,
    hyper: HyperStreams,
    ngram: NgramBuffers,
}

impl Streams {
    /// Before the first layer, from the embeddings.  // x [rows, hidden_size]
    pub fn start(&mut self, pass: Pass<'_>, model: &Model, x: &[f32], branch: &mut BranchBuffers) {
        if let Some(second) = &model.outside.per_layer {
            self.per_layer.prepare(pass, second, x, &mut branch.input);
        }
        if model.config.alt_up.is_some() {
            self.alt_up.start(pass, &model.outside.streams[0], x, branch);
        }
        self.hyper.start(pass, x);
    }

    /// x = what the layer's first branch reads.  // x [rows, hidden_size]
    pub fn enter_layer(
        &mut self,
        pass: Pass<'_>,
        model: &Model,
        layer: &Layer,
        runs: &mut [Run<'_>],
        x: &mut Vec<f32>,
        branch: &mut BranchBuffers,
    ) {
        self.alt_up.predict(pass, layer, x, branch);
        self.cycles.before_layer(pass, model, layer.index, x);
        add_ngrams(pass, layer, runs, &mut self.hyper, branch, &mut self.ngram);
        self.hyper.read(pass, branches(layer)[0], x, branch);
    }

    /// x = what the MLP reads, after the branch that mixes positions.  // x [rows, hidden_size]
    pub fn enter_mlp(&mut self, pass: Pass<'_>, layer: &Layer, x: &mut [f32], branch: &mut BranchBuffers) {
        self.alt_up.join(pass, layer, x);
        self.hyper.join(pass, layer, x, branch);
    }

    /// After both branches. x is what the head reads behind the last layer, and behind each one where `observed`.
    pub fn leave_layer(
        &mut self,
        pass: Pass<'_>,
        model: &Model,
        layer: &Layer,
        observed: bool,
        x: &mut Vec<f32>,
        branch: &mut BranchBuffers,
    ) {
        let last = layer.index + 1 == model.layers.len();
        self.hyper.write(pass, branches(layer)[1], x);
        if observed || last {
            self.hyper.read(pass, model.outside.hyper_head.as_ref(), x, branch);
        }
        if layer.alt_up.is_none() {
            return self.per_layer.add(pass, layer, None, branch, x);
        }
        self.alt_up.correct(pass, layer, &mut self.per_layer, x, branch);
        if last {
            self.alt_up.finish(pass, &model.outside.streams[1], x, branch);
        }
    }
}
