//! What passes between the layers in addition to the residual stream `x`: what the steps of mechanisms keep, and the parts of
//! a second embedding. For most models all of this does nothing.

use super::per_layer::PerLayerInputs;
use super::residual::BranchBuffers;
use super::state::{Pass, Run};
use super::step::{Flow, Step};
use crate::mechanisms::mechanisms;
use crate::model::Model;
use crate::parts::Layer;

/// The steps of a model, and the streams of a pass.
pub(super) struct Streams {
    /// In their order.
    pub steps: Vec<Box<dyn Step>>,
    all: Vec<f32>,
    per_layer: PerLayerInputs,
}

macro_rules! all_steps {
    ($($name:ident: $facts:ident,)+) => {
        fn steps_of(model: &Model) -> Vec<Box<dyn Step>> {
            let mut steps: Vec<Box<dyn Step>> = Vec::new();
            $(
                if model.config.mechanisms.$name.is_some() {
                    steps.push(Box::new(crate::mechanisms::$name::forward::Steps::default()));
                }
            )+
            steps
        }
    };
}
mechanisms!(all_steps);

impl Streams {
    pub fn new(model: &Model) -> Self {
        Self { steps: steps_of(model), all: Vec::new(), per_layer: PerLayerInputs::default() }
    }

    fn flow<'a>(
        &'a mut self,
        (pass, model): (Pass<'a>, &'a Model),
        x: &'a mut Vec<f32>,
        branch: &'a mut BranchBuffers,
    ) -> (&'a mut [Box<dyn Step>], Flow<'a>) {
        let Self { steps, all, per_layer } = self;
        (steps, Flow { pass, model, x, streams: all, per_layer, branch })
    }

    /// Before the first layer, from the embeddings.  // x [rows, hidden_size]
    pub fn start(&mut self, of: (Pass<'_>, &Model), x: &mut Vec<f32>, branch: &mut BranchBuffers) {
        let (steps, mut flow) = self.flow(of, x, branch);
        if let Some(second) = &flow.model.outside.per_layer {
            flow.per_layer.prepare(flow.pass, second, flow.x, &mut flow.branch.input);
        }
        steps.iter_mut().for_each(|step| step.start(&mut flow));
    }

    /// x = what the layer's first branch reads.  // x [rows, hidden_size]
    pub fn enter_layer(
        &mut self,
        of: (Pass<'_>, &Model),
        layer: &Layer,
        runs: &mut [Run<'_>],
        x: &mut Vec<f32>,
        branch: &mut BranchBuffers,
    ) {
        let (steps, mut flow) = self.flow(of, x, branch);
        steps.iter_mut().for_each(|step| step.enter_layer(&mut flow, layer, runs));
    }

    /// x = what the MLP reads, after the branch that mixes positions.  // x [rows, hidden_size]
    pub fn enter_mlp(
        &mut self,
        of: (Pass<'_>, &Model),
        layer: &Layer,
        x: &mut Vec<f32>,
        branch: &mut BranchBuffers,
    ) {
        let (steps, mut flow) = self.flow(of, x, branch);
        steps.iter_mut().for_each(|step| step.enter_mlp(&mut flow, layer));
    }

    /// After both branches. x is what the head reads behind the last layer, and behind each one where `observed`.
    pub fn leave_layer(
        &mut self,
        of: (Pass<'_>, &Model),
        layer: &Layer,
        observed: bool,
        x: &mut Vec<f32>,
        branch: &mut BranchBuffers,
    ) {
        let (steps, mut flow) = self.flow(of, x, branch);
        let is_read = observed || layer.index + 1 == flow.model.layers.len();
        steps.iter_mut().for_each(|step| step.leave_layer(&mut flow, layer, is_read));
        if !steps.iter().any(|step| step.adds_per_layer_inputs()) {
            flow.per_layer.add(flow.pass, layer, None, flow.branch, flow.x);
        }
    }
}
